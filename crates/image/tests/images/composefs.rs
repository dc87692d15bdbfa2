//! Dumps of composefs: what the text says is in the image, and contents are those with the digests.

use crate::build;
use butterfs_image::{
    Attributes, Builder, ComposefsSource, Content, FilesystemSource, FolderSource, Manifest, Result, Source, Special,
    Target,
};
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::Command;

const DIGEST: &str = "b0d074abef4d544404facfab6ba242f6a8ccbde90f1325cd286f3c8aa8d0f8aa";

/// A folder with an object of 4097 bytes, and a link to something outside.
fn objects(scratch: &Scratch) -> std::path::PathBuf {
    let objects = scratch.folder("objects");
    std::fs::create_dir(objects.join("b0")).unwrap();
    std::fs::write(objects.join("b0/object"), (0..4097).map(|at| (at % 251) as u8).collect::<Vec<_>>()).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", objects.join("link")).unwrap();
    std::fs::write(scratch.join("outside"), "secret").unwrap();
    objects
}

fn source(text: &str, objects: Option<&Path>) -> ComposefsSource {
    ComposefsSource::new("dump", std::io::Cursor::new(text.to_owned().into_bytes()), objects).unwrap()
}

fn lines(image: &Path) -> String {
    let filesystem = butterfs::Filesystem::open(image).unwrap();
    let manifest = Manifest::of(&mut FilesystemSource::new("image", filesystem.root())).unwrap();
    manifest.lines().collect::<Vec<_>>().join("\n")
}

#[test]
fn a_dump_becomes_an_image() {
    let scratch = Scratch::new("image-composefs");
    let (objects, image) = (objects(&scratch), scratch.join("disk.img"));
    let text = format!(
        "/ 4096 40755 4 0 0 0 1695372970.944925700 - - - security.selinux=system_u:object_r:root_t:s0\\x00\n\
         /a\\x20dir 27 40710 2 1000 1001 0 5.7 - - - user.x=\\x00\\=\n\
         /a\\x20dir/file 4097 104755 2 1 2 0 1.1 b0/object - {DIGEST} user.empty=\n\
         /hard 4097 @104755 2 1 2 0 1.1 /a\\x20dir/file - {DIGEST}\n\
         /inline 10 100644 1 0 0 0 -3.5 - some-text\\n -\n\
         /empty 0 100600 1 0 0 0 0.0 - - -\n\
         /link 5 120777 1 0 0 0 0.0 ../a\\x0ab - -\n\
         /null 0 20666 1 0 0 259 0.0 - - -\n\
         /pipe 0 10644 1 0 0 0 0.0 - - -"
    );
    build(Builder::new().source("/", source(&text, Some(&objects))).unwrap(), &image);
    let found = lines(&image);
    for part in [
        "/ dir mode=0755 uid=0 gid=0 mtime=1695372970.944925700 security.selinux=73797374656d5f753a",
        "/a\\x20dir dir mode=0710 uid=1000 gid=1001 mtime=5.000000007 user.x=003d",
        "/a\\x20dir/file file mode=4755 uid=1 gid=2 mtime=1.000000001 size=4097 sha256=",
        "user.empty=",
        "/hard same as /a\\x20dir/file",
        "/inline file mode=0644 uid=0 gid=0 mtime=-3.000000005 size=10 sha256=",
        "/empty file mode=0600 uid=0 gid=0 mtime=0.000000000 size=0",
        "/link link mode=0777 uid=0 gid=0 mtime=0.000000000 target=../a\\nb",
        "/null char mode=0666",
        "/pipe fifo mode=0644",
    ] {
        assert!(found.contains(part), "{part}: {found}");
    }
    assert!(ComposefsSource::begins(text.as_bytes()) && !ComposefsSource::begins(b"/ x"));
}

#[test]
fn what_a_dump_must_not_say_is_refused() {
    let scratch = Scratch::new("image-composefs-hostile");
    let (objects, image) = (objects(&scratch), scratch.join("disk.img"));
    let object =
        |size: u64, payload: &str, digest: &str| format!("/f {size} 100644 1 0 0 0 0.0 {payload} - {digest}\n");
    for (text, part) in [
        (object(4097, "b0/object", &DIGEST.replace('b', "c")), "line 1: /b0/object: the fs-verity digest is b0d0"),
        (object(4096, "b0/object", DIGEST), "should be a file of 4096 bytes"),
        (object(6, "../outside", "-"), "leads out"),
        (object(6, "b0/../../outside", "-"), "leads out"),
        (object(6, "link", "-"), "cannot open the object"),
        (object(6, "/etc/hostname", "-"), "cannot open the object"),
        (object(6, "b0", "-"), "should be a file"),
        (object(4097, "b0/object", "abcd"), "32 or 64 bytes"),
        ("/a/../../b 0 40755 1 0 0 0 0.0 - - -\n".to_owned(), "leads out"),
        ("/ 0 40755 1 0 0 0 0.0 - - -\n/h 0 @100644 1 0 0 0 0.0 /none - -\n".to_owned(), "line 2: /h is a link"),
        ("/l 0 120777 1 0 0 0 0.0 - - -\n".to_owned(), "no target"),
        (format!("/f {} 100644 1 0 0 0 0.0 - {} -\n", 17 << 20, "a".repeat(17 << 20)), "more than 16777216 bytes"),
        ("\n".to_owned(), "PATH is missing"),
    ] {
        let builder = Builder::new().source("/", source(&text, Some(&objects))).unwrap();
        let error = builder.build(&image).unwrap_err().to_string();
        assert!(error.contains(part), "{}: {error}", &text[..text.len().min(100)]);
        assert!(!image.exists());
    }
    let builder = Builder::new().source("/", source(&object(4097, "b0/object", DIGEST), None)).unwrap();
    assert!(builder.build(&image).unwrap_err().to_string().contains("no folder of objects is given"));
}

/// Objects of every size around the borders of the tree of hashes have the digest that the kernel's tool prints.
#[test]
fn digests_are_those_of_the_tool() {
    if !requirement::programs("digests_are_those_of_the_tool", &["fsverity"]) {
        return;
    }
    let scratch = Scratch::new("image-composefs-digests");
    let (objects, image) = (scratch.folder("objects"), scratch.join("disk.img"));
    let mut text = "/ 0 40755 1 0 0 0 0.0 - - -\n".to_owned();
    for (index, size) in [1, 4095, 4096, 8192, 524_288, 524_289, 2 << 20].into_iter().enumerate() {
        let path = objects.join(index.to_string());
        std::fs::write(&path, vec![index as u8; size]).unwrap();
        for hash in ["sha256", "sha512"] {
            let option = format!("--hash-alg={hash}");
            let said = Command::new("fsverity").args(["digest", "--compact", &option]).arg(&path).output().unwrap();
            let digest = String::from_utf8(said.stdout).unwrap();
            text += &format!("/{index}{hash} {size} 100644 1 0 0 0 0.0 {index} - {}\n", digest.trim());
        }
    }
    let report = Builder::new().source("/", source(&text, Some(&objects))).unwrap().build(&image).unwrap();
    assert_eq!(report.inodes, 15);
}

/// A dump of what a source has: contents in the text.
#[derive(Default)]
struct Dump(Vec<u8>);

fn escaped(bytes: &[u8]) -> String {
    match bytes {
        b"" => "-".to_owned(),
        b"-" => "\\x2d".to_owned(),
        bytes => bytes
            .iter()
            .map(|byte| match byte {
                b'!'..=b'~' if !b"\\=".contains(byte) => char::from(*byte).to_string(),
                byte => format!("\\x{byte:02x}"),
            })
            .collect(),
    }
}

impl Dump {
    fn line(&mut self, path: &[u8], attributes: &Attributes, kind: u32, size: u64, rdev: u64, rest: &str) {
        let Attributes { mode, uid, gid, mtime, xattrs, .. } = attributes;
        let path = [b"/", path].concat();
        let fields = format!("{size} {:o} 1 {uid} {gid} {rdev} {}.{} {rest}", kind | mode, mtime.sec, mtime.nsec);
        self.0.extend_from_slice(format!("{} {fields}", escaped(&path)).as_bytes());
        for (name, value) in xattrs {
            let value: String = value.iter().map(|byte| format!("\\x{byte:02X}")).collect();
            self.0.extend_from_slice(format!(" {}={value}", escaped(name)).as_bytes());
        }
        self.0.push(b'\n');
    }
}

impl Target for Dump {
    fn folder(&mut self, path: &[u8], attributes: Attributes) -> Result<()> {
        self.line(path, &attributes, 0o040000, 0, 0, "- - -");
        Ok(())
    }

    fn file(&mut self, path: &[u8], attributes: Attributes, content: Content<'_>) -> Result<()> {
        let mut bytes = vec![0; content.size as usize];
        for range in content.data {
            content.reader.read_exact(&mut bytes[range.start as usize..range.end as usize]).unwrap();
        }
        let rest = format!("- {} -", escaped(&bytes));
        self.line(path, &attributes, 0o100000, content.size, 0, &rest);
        Ok(())
    }

    fn special(&mut self, path: &[u8], attributes: Attributes, special: Special) -> Result<()> {
        let device = |major, minor| rustix::fs::makedev(major, minor);
        let (kind, rdev, target) = match special {
            Special::Symlink(target) => (0o120000, 0, escaped(&target)),
            Special::CharacterDevice(major, minor) => (0o020000, device(major, minor), "-".into()),
            Special::BlockDevice(major, minor) => (0o060000, device(major, minor), "-".into()),
            Special::Fifo => (0o010000, 0, "-".into()),
            Special::Socket => (0o140000, 0, "-".into()),
        };
        self.line(path, &attributes, kind, 0, rdev, &format!("{target} - -"));
        Ok(())
    }

    fn hard_link(&mut self, path: &[u8], original: &[u8]) -> Result<()> {
        let rest = format!("/{} - -", escaped(original));
        self.line(path, &Attributes::default(), 0, 0, 0, &rest);
        let line = self.0.split(|byte| *byte == b'\n').rev().nth(1).unwrap().to_vec();
        self.0.truncate(self.0.len() - line.len() - 1);
        let line = String::from_utf8(line).unwrap().replacen(" 0 0 1 ", " 0 @100644 1 ", 1);
        self.0.extend_from_slice(format!("{line}\n").as_bytes());
        Ok(())
    }
}

/// A folder with every kind of thing and all bytes in names, as a dump, makes the image that the folder makes.
#[test]
fn a_dump_of_a_folder_makes_the_same_image() {
    let scratch = Scratch::new("image-composefs-folder");
    let folder = scratch.folder("source");
    std::fs::create_dir_all(folder.join("a b/=\\c")).unwrap();
    for byte in (1..=255u8).filter(|byte| *byte != b'/' && *byte != b'.') {
        let name = std::ffi::OsString::from_vec(vec![byte, b'-']);
        std::fs::write(folder.join("a b").join(name), vec![byte; usize::from(byte) * 40]).unwrap();
    }
    std::fs::write(folder.join("-"), "-").unwrap();
    std::fs::hard_link(folder.join("-"), folder.join("a b/=\\c/other")).unwrap();
    std::os::unix::fs::symlink("-", folder.join("link")).unwrap();
    rustix::fs::lsetxattr(folder.join("-"), "user.=\\", b"\0=\n \\", rustix::fs::XattrFlags::empty()).unwrap();
    std::os::unix::net::UnixListener::bind(folder.join("socket")).unwrap();
    let mut dump = Dump::default();
    FolderSource::new(&folder).read(&mut dump).unwrap();
    let images = [scratch.join("folder.img"), scratch.join("dump.img")];
    let builder = || Builder::new().epoch(4_000_000_000);
    builder().source("/", FolderSource::new(&folder)).unwrap().build(&images[0]).unwrap();
    let source = ComposefsSource::new("dump", std::io::Cursor::new(dump.0), None).unwrap();
    build(builder().source("/", source).unwrap(), &images[1]);
    assert!(std::fs::read(&images[0]).unwrap() == std::fs::read(&images[1]).unwrap(), "the same bytes");
}
