//! Findings of attacks on sources and targets: damage that compression notices, folders that change while they are
//! read, trees that are deeper than a path can be, files that must not be replaced.

use crate::oci::entry;
use butterfs_image::{
    Attributes, Builder, Content, FilesystemTarget, FolderSource, HostTarget, Manifest, Owners, Source, Special,
    TarSource, TarTarget, Target,
};
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use rustix::fs::{CWD, FileType, Mode, OFlags};
use std::io::{Cursor, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

fn manifest(archive: Vec<u8>) -> butterfs_image::Result<Manifest> {
    Manifest::of(&mut TarSource::new("archive", Cursor::new(archive)))
}

#[test]
fn damage_in_compressed_archives_is_an_error_or_makes_no_difference() {
    let mut noise = vec![0; 20_000];
    Rng::new(1).fill(&mut noise);
    let archive = [entry("file", b'0', "", &noise), entry("other", b'0', "", b"text"), vec![0; 1024]].concat();
    let want = manifest(archive.clone()).unwrap().digest();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&archive).unwrap();
    let mut zstd = zstd::Encoder::new(Vec::new(), 1).unwrap();
    zstd.include_checksum(true).unwrap();
    zstd.write_all(&archive).unwrap();
    let mut xz = Vec::new();
    liblzma::read::XzEncoder::new(archive.as_slice(), 1).read_to_end(&mut xz).unwrap();
    for (name, packed) in [("gzip", gzip.finish().unwrap()), ("zstd", zstd.finish().unwrap()), ("xz", xz)] {
        assert_eq!(manifest(packed.clone()).unwrap().digest(), want, "{name}");
        let mut rng = Rng::new(2);
        let mut refused = 0;
        for round in 0..60 {
            let mut bad = packed.clone();
            // In the content, in its beginning or end, or cut off.
            match round % 3 {
                0 => bad[rng.index(packed.len())] ^= 1 << rng.index(8),
                1 => bad[packed.len() - 1 - rng.index(16)] ^= 1 << rng.index(8),
                _ => bad.truncate(packed.len() - 1 - rng.index(16)),
            }
            match manifest(bad) {
                Ok(found) => assert_eq!(found.digest(), want, "{name}, round {round}"),
                Err(_) => refused += 1,
            }
        }
        assert!(refused > 50, "{name}: {refused}");
    }
}

#[test]
fn a_hard_link_has_no_data_whatever_its_size_says() {
    let mut link = entry("link", b'1', "file", &[0; 600]);
    link.truncate(512);
    let archive = [entry("file", b'0', "", &[7; 600]), link, entry("next", b'0', "", b"")].concat();
    let found = manifest(archive).unwrap();
    let names: Vec<String> = found.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(names, ["/file", "/link", "/next"]);
}

#[test]
fn an_image_replaces_regular_files_only() {
    let scratch = Scratch::new("image-replaces");
    let source = scratch.folder("source");
    let build = |out: &Path| Builder::new().source("/", FolderSource::new(&source)).unwrap().build(out);
    let (fifo, link, real) = (scratch.join("fifo"), scratch.join("link"), scratch.join("real"));
    rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let mut others = vec![fifo, scratch.folder("folder")];
    if rustix::process::geteuid().is_root() {
        let device = scratch.join("device");
        let number = rustix::fs::makedev(1, 3);
        rustix::fs::mknodat(CWD, &device, FileType::CharacterDevice, Mode::from_raw_mode(0o600), number).unwrap();
        others.push(device);
    }
    for other in others {
        let before = other.symlink_metadata().unwrap().ino();
        let error = build(&other).unwrap_err().to_string();
        assert!(error.contains("cannot create"), "{error}");
        assert_eq!(other.symlink_metadata().unwrap().ino(), before);
    }
    // Where a link leads, the image is; the link stays.
    std::fs::write(&real, "old").unwrap();
    symlink("real", &link).unwrap();
    build(&link).unwrap();
    assert!(link.symlink_metadata().unwrap().is_symlink() && real.metadata().unwrap().len() > 1 << 20);
}

/// A target that swaps a folder for a link to another one when the source has read its first file.
struct Swapping {
    inner: Manifest,
    swap: Option<(PathBuf, PathBuf)>,
}

impl Target for Swapping {
    fn folder(&mut self, path: &[u8], attributes: Attributes) -> butterfs_image::Result<()> {
        self.inner.folder(path, attributes)
    }

    fn file(&mut self, path: &[u8], attributes: Attributes, content: Content<'_>) -> butterfs_image::Result<()> {
        if let Some((folder, secret)) = self.swap.take() {
            std::fs::rename(&folder, folder.with_extension("moved")).unwrap();
            symlink(secret, folder).unwrap();
        }
        self.inner.file(path, attributes, content)
    }

    fn special(&mut self, path: &[u8], attributes: Attributes, special: Special) -> butterfs_image::Result<()> {
        self.inner.special(path, attributes, special)
    }

    fn hard_link(&mut self, path: &[u8], original: &[u8]) -> butterfs_image::Result<()> {
        self.inner.hard_link(path, original)
    }
}

#[test]
fn a_folder_that_becomes_a_link_is_not_followed() {
    let scratch = Scratch::new("image-race");
    let (source, secret) = (scratch.folder("source"), scratch.folder("secret"));
    std::fs::write(secret.join("shadow"), "hidden").unwrap();
    for folder in ["1", "2", "1/deeper"] {
        std::fs::create_dir_all(source.join(folder)).unwrap();
    }
    std::fs::write(source.join("1/file"), "").unwrap();
    std::fs::write(source.join("2/file"), "").unwrap();
    for swapped in ["2", "1"] {
        let mut target = Swapping { inner: Manifest::default(), swap: Some((source.join(swapped), secret.clone())) };
        let read = FolderSource::new(&source).read(&mut target);
        let lines: Vec<String> = target.inner.lines().collect();
        assert!(lines.iter().all(|line| !line.contains("shadow")), "{lines:?}");
        // The folder in which the file was open before goes on to be read.
        assert_eq!(read.is_err(), swapped == "2", "{read:?}");
        std::fs::remove_file(source.join(swapped)).unwrap();
        std::fs::rename(source.join(swapped).with_extension("moved"), source.join(swapped)).unwrap();
    }
}

/// A content that looks at the copy while it is copied.
struct Watching<'a>(&'a Path, &'a [u8]);

impl Read for Watching<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let mode = self.0.metadata()?.permissions().mode();
        assert_eq!(mode & 0o077, 0, "{mode:o}");
        self.1.read(out)
    }
}

#[test]
fn nobody_else_reads_a_copy_before_it_has_its_owner() {
    let scratch = Scratch::new("image-copy-modes");
    let top = scratch.join("copy");
    let mut target = HostTarget::new(&top);
    let attributes = |mode| Attributes { mode, ..Attributes::default() };
    target.folder(b"", attributes(0o755)).unwrap();
    target.folder(b"a", attributes(0o750)).unwrap();
    assert_eq!(top.join("a").metadata().unwrap().mode() & 0o077, 0);
    let copy = top.join("a/file");
    let mut content = Watching(&copy, b"content");
    target.file(b"a/file", attributes(0o640), Content::whole(7, &mut content)).unwrap();
    assert_eq!(target.finish().unwrap(), Vec::<Vec<u8>>::new());
    let mode = |path: &Path| path.metadata().unwrap().mode() & 0o7777;
    assert_eq!((mode(&copy), mode(&top.join("a"))), (0o640, 0o750));
}

/// Makes a chain of folders whose path is longer than the kernel takes, and a file at its end.
pub fn deep(top: &Path) {
    let mut folder = std::fs::File::open(top).unwrap();
    for _ in 0..50 {
        let name = "d".repeat(100);
        rustix::fs::mkdirat(&folder, &name, Mode::from_raw_mode(0o755)).unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        folder = rustix::fs::openat(&folder, &name, flags, Mode::empty()).unwrap().into();
    }
    let flags = OFlags::CREATE | OFlags::WRONLY;
    let file = rustix::fs::openat(&folder, "leaf", flags, Mode::from_raw_mode(0o644)).unwrap();
    rustix::fs::linkat(&folder, "leaf", &folder, "second", rustix::fs::AtFlags::empty()).unwrap();
    let _ = rustix::fs::fsetxattr(&file, "user.deep", b"value", rustix::fs::XattrFlags::empty());
    std::fs::File::from(file).write_all(b"content").unwrap();
}

#[test]
fn trees_deeper_than_a_path_go_everywhere() {
    let scratch = Scratch::new("image-deep");
    let (source, copy) = (scratch.folder("source"), scratch.join("copy"));
    deep(&source);
    let want = Manifest::of(&mut FolderSource::new(&source)).unwrap();
    assert_eq!(want.lines().count(), 53);
    // To a folder of the host, an archive, and a filesystem that exists.
    let mut host = HostTarget::new(&copy);
    FolderSource::new(&source).read(&mut host).unwrap();
    host.finish().unwrap();
    assert_eq!(Manifest::of(&mut FolderSource::new(&copy)).unwrap().differences(&want), Vec::<String>::new());
    let mut archive = Vec::new();
    let mut tar = TarTarget::new(&mut archive);
    FolderSource::new(&source).read(&mut tar).unwrap();
    tar.finish().unwrap();
    let disk = butterfs::Device::memory(256 << 20);
    butterfs::Mkfs::new().device(disk.clone()).run().unwrap();
    let filesystem = butterfs::Filesystem::open(disk).unwrap();
    let (root, owners) = (filesystem.root(), Owners::default());
    let mut target = FilesystemTarget::new(&root, &owners);
    TarSource::new("archive", Cursor::new(archive)).read(&mut target).unwrap();
    target.finish().unwrap();
    let found = Manifest::of(&mut butterfs_image::FilesystemSource::new("filesystem", root)).unwrap();
    assert_eq!(found.differences(&want), Vec::<String>::new());
}

#[test]
fn a_link_that_the_archive_has_made_is_not_followed() {
    let disk = butterfs::Device::memory(256 << 20);
    butterfs::Mkfs::new().device(disk.clone()).run().unwrap();
    let filesystem = butterfs::Filesystem::open(disk).unwrap();
    let (root, owners) = (filesystem.root(), Owners::default());
    root.create_dir("etc").unwrap();
    root.write("etc/passwd", "kept").unwrap();
    root.symlink("etc", "before").unwrap();
    root.symlink("..", "etc/up").unwrap();
    for (link, below) in [("x", "x/passwd"), ("before/x", "etc/x/passwd"), ("etc/x", "before/x/passwd")] {
        let archive = [entry(link, b'2', "/etc", b""), entry(below, b'0', "", b"overwritten")].concat();
        let mut target = FilesystemTarget::new(&root, &owners);
        let read = TarSource::new("archive", Cursor::new(archive)).read(&mut target);
        assert!(read.is_err_and(|error| error.to_string().contains("is no folder")), "{link}");
        assert_eq!(root.read("etc/passwd").unwrap(), b"kept", "{link}");
        root.remove_file(link).unwrap();
    }
    // One that was there is, as in a tree with /bin in /usr.
    let archive = entry("before/new", b'0', "", b"new");
    let mut target = FilesystemTarget::new(&root, &owners);
    TarSource::new("archive", Cursor::new(archive)).read(&mut target).unwrap();
    assert_eq!(root.read("etc/new").unwrap(), b"new");
}
