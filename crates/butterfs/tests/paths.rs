//! Paths never leave the directory that they begin at, and resolve as the kernel resolves them inside of a root
//! (`openat2(2)` with `RESOLVE_IN_ROOT`). The kernel needs neither root nor a mount for this: the same tree is made in
//! a folder of the host.

use butterfs::{Device, Dir, ErrorKind, Filesystem, Follow, Mkfs, OpenOptions};
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

fn made() -> Filesystem {
    let disk = Device::memory(256 << 20);
    Mkfs::new().device(disk.clone()).run().unwrap();
    Filesystem::open(disk).unwrap()
}

const DIRECTORIES: [&str; 5] = ["a", "a/b", "a/b/c", "d", "d/e"];
const FILES: [&str; 3] = ["a/f", "a/b/c/f", "d/f"];
const LINKS: [(&str, &str); 13] = [
    ("a/up", ".."),
    ("a/b/far", "../../../../d"),
    ("d/root", "/"),
    ("d/abs", "/a/b"),
    ("d/escape", "/../../../etc/passwd"),
    ("a/loop", "loop"),
    ("a/ping", "b/pong"),
    ("a/b/pong", "../ping"),
    ("d/dangling", "nothing/here"),
    ("d/slash", "f/"),
    ("a/dirslash", "b/"),
    ("a/dots", "./b/./c/.."),
    ("a/new", "made"),
];

fn make_both(root: &Dir, host: &Path) {
    for path in DIRECTORIES {
        root.create_dir(path).unwrap();
        std::fs::create_dir(host.join(path)).unwrap();
    }
    for path in FILES {
        root.write(path, path).unwrap();
        std::fs::write(host.join(path), path).unwrap();
    }
    for (path, target) in LINKS {
        root.symlink(target, path).unwrap();
        std::os::unix::fs::symlink(target, host.join(path)).unwrap();
    }
}

/// The path at which the kernel ends, relative to the root, or its errno.
fn kernel(host: &Path, root: &OwnedFd, path: &Path, follow: Follow) -> Result<PathBuf, i32> {
    let flags = match follow {
        Follow::Links => OFlags::PATH,
        Follow::Nothing => OFlags::PATH | OFlags::NOFOLLOW,
    };
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let opened =
        rustix::fs::openat2(root, path, flags, Mode::empty(), resolve).map_err(|error| error.raw_os_error())?;
    let at = std::fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd())).unwrap();
    Ok(at.strip_prefix(host).expect("the kernel stays inside").to_owned())
}

fn ours(filesystem: &Filesystem, root: &Dir, path: &Path, follow: Follow) -> Result<PathBuf, i32> {
    let node = root.node(path, follow).map_err(|error| error.errno().raw())?;
    let id = node.metadata().unwrap().id();
    match id.number {
        256 => Ok(PathBuf::new()),
        _ => Ok(filesystem.paths_of(id).unwrap().remove(0)),
    }
}

#[test]
fn paths_resolve_as_in_the_kernel() {
    let (scratch, filesystem) = (Scratch::new("facade-paths"), made());
    let host = std::fs::canonicalize(scratch.folder("root")).unwrap();
    let root = filesystem.root();
    make_both(&root, &host);
    let descriptor = rustix::fs::open(&host, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let names: Vec<&str> =
        DIRECTORIES.iter().chain(&FILES).chain(LINKS.iter().map(|(path, _)| path)).copied().collect();
    let mut rng = Rng::new(20);
    let (mut found, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let mut path = String::from(if rng.below(8) == 0 { "/" } else { "" });
        for _ in 0..=rng.below(5) {
            let part = match rng.below(10) {
                0 => "..",
                1 => ".",
                2 => "none",
                _ => names[rng.below(names.len() as u64) as usize],
            };
            path.push_str(part);
            path.push('/');
        }
        if rng.below(4) != 0 {
            path.pop();
        }
        let follow = if rng.below(2) == 0 { Follow::Links } else { Follow::Nothing };
        let path = Path::new(&path);
        let (theirs, own) = (kernel(&host, &descriptor, path, follow), ours(&filesystem, &root, path, follow));
        assert_eq!(own, theirs, "{path:?} {follow:?}");
        *if own.is_ok() { &mut found } else { &mut refused } += 1;
    }
    assert!(found > 2000 && refused > 2000, "{found} paths lead somewhere, {refused} do not");
}

#[test]
fn a_file_is_made_at_the_end_of_a_dangling_link_inside() {
    let filesystem = made();
    let root = filesystem.root();
    root.create_dir("a").unwrap();
    root.symlink("/a/made", "new").unwrap();
    root.write("new", "content").unwrap();
    assert_eq!(root.read("a/made").unwrap(), b"content");
    let new = OpenOptions::read_write().create(butterfs::Create::New);
    assert_eq!(root.open_with("new", &new).unwrap_err().kind(), ErrorKind::AlreadyExists);
    root.symlink("/a/other", "fresh").unwrap();
    assert_eq!(root.open_with("fresh", &new).unwrap_err().kind(), ErrorKind::AlreadyExists);
}

#[test]
fn a_directory_confines_its_paths() {
    let filesystem = made();
    let root = filesystem.root();
    root.create_dir_all("inner/deep").unwrap();
    root.write("secret", "x").unwrap();
    let inner = root.open_dir("inner").unwrap();
    inner.symlink("../secret", "relative").unwrap();
    inner.symlink("/secret", "absolute").unwrap();
    for path in ["../secret", "/secret", "/../secret", "deep/../../secret", "relative", "absolute"] {
        assert_eq!(inner.read(path).unwrap_err().kind(), ErrorKind::NotFound, "{path}");
    }
}

#[test]
fn names_are_bytes() {
    let filesystem = made();
    let root = filesystem.root();
    let name = OsStr::from_bytes(b"\xff\xfe\x1b[31m\n");
    root.write(name, "content").unwrap();
    let entries: Vec<_> = root.read_dir(".").unwrap().map(|entry| entry.unwrap().file_name().to_owned()).collect();
    assert_eq!(entries, [name]);
    // The message must not control the terminal of the reader.
    let error = root.read(Path::new(name).join("below")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotADirectory);
    assert!(!error.to_string().contains(['\x1b', '\n']), "{error:?}");
    assert_eq!(root.read("a\0b").unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(root.write("", "x").unwrap_err().kind(), ErrorKind::NotFound);
    for path in ["/", ".", "..", "a/.."] {
        assert!(root.create_dir(path).is_err() && root.remove_dir(path).is_err(), "{path}");
    }
}
