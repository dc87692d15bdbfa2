//! A tree with everything that a filesystem can have.

use butterfs_testkit::rng::Rng;
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;

/// Makes a tree at `top`. Devices, owners and attributes of the system need root.
pub fn make(top: &Path, is_root: bool) {
    fs::create_dir_all(top.join("etc/deep/er")).unwrap();
    fs::create_dir_all(top.join("empty")).unwrap();
    fs::create_dir_all(top.join("many")).unwrap();
    fs::write(top.join("etc/motd"), "hello\n").unwrap();
    fs::write(top.join("etc/empty"), "").unwrap();
    fs::write(top.join("etc/deep/er/inline-compressible"), "x".repeat(4000)).unwrap();
    fs::write(top.join("etc/deep/2048"), noise(1, 2048)).unwrap();
    fs::write(top.join("etc/deep/2049"), noise(2, 2049)).unwrap();
    fs::write(top.join("noise"), noise(3, 1_300_000)).unwrap();
    fs::write(top.join("text"), "The same line again and again, with a little more.\n".repeat(9_000)).unwrap();
    fs::write(top.join("name with \u{fc}, blanks\nand lines"), "odd").unwrap();
    fs::write(top.join("x".repeat(255)), "long").unwrap();
    symlink("etc/motd", top.join("link")).unwrap();
    symlink("/".repeat(2000), top.join("long link")).unwrap();
    fs::hard_link(top.join("etc/motd"), top.join("etc/motd.2")).unwrap();
    fs::hard_link(top.join("etc/motd"), top.join("many/motd")).unwrap();
    for number in 0..300 {
        fs::write(top.join(format!("many/file-{number:04}")), noise(number, (number * 37 % 5000) as usize)).unwrap();
        fs::hard_link(
            top.join("noise"),
            top.join(format!("many/noise-with-a-rather-long-name-so-that-not-all-fit-{number}")),
        )
        .unwrap();
    }
    sparse(top);
    rustix::fs::mknodat(CWD, top.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o640), 0).unwrap();
    drop(std::os::unix::net::UnixListener::bind(top.join("socket")).unwrap());
    attributes(top, is_root);
    if is_root {
        for (name, kind, major, minor) in
            [("null", FileType::CharacterDevice, 1, 3), ("disk", FileType::BlockDevice, 259, 300_000)]
        {
            let device = rustix::fs::makedev(major, minor);
            rustix::fs::mknodat(CWD, top.join(name), kind, Mode::from_raw_mode(0o600), device).unwrap();
        }
        rustix::fs::chownat(
            CWD,
            top.join("etc/empty"),
            Some(rustix::fs::Uid::from_raw(1000)),
            Some(rustix::fs::Gid::from_raw(4_000_000_000)),
            AtFlags::SYMLINK_NOFOLLOW,
        )
        .unwrap();
        rustix::fs::chownat(CWD, top.join("link"), Some(rustix::fs::Uid::from_raw(7)), None, AtFlags::SYMLINK_NOFOLLOW)
            .unwrap();
    }
    times(top);
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

fn sparse(top: &Path) {
    let mut file = File::create(top.join("sparse")).unwrap();
    file.set_len(40 << 20).unwrap();
    file.write_all_at(b"in the middle", (10 << 20) + 100).unwrap();
    file.seek(SeekFrom::Start(30 << 20)).unwrap();
    file.write_all(&noise(9, 300_000)).unwrap();
    // Blocks of attributes count like blocks of data on some filesystems.
    let half = File::create(top.join("half a hole")).unwrap();
    half.write_all_at(&noise(10, 4096), 4096).unwrap();
    File::create(top.join("hole")).unwrap().set_len(5 << 20).unwrap();
    File::create(top.join("small hole")).unwrap().set_len(100).unwrap();
}

fn attributes(top: &Path, is_root: bool) {
    let set = |name: &str, key: &str, value: &[u8]| {
        rustix::fs::lsetxattr(top.join(name), key, value, XattrFlags::empty())
            .unwrap_or_else(|error| panic!("{name} {key}: {error}"));
    };
    set("etc/motd", "user.comment", b"a value");
    set("etc/motd", "user.empty", b"");
    set("etc/motd", "user.a=b", b"hello=");
    set("etc/motd", "user.100%", b"x");
    set("etc/motd", "user.%3D b", b"y");
    set("half a hole", "user.large", &noise(6, 3000));
    set("etc", "user.large", &noise(5, 2500));
    fs::set_permissions(top.join("text"), fs::Permissions::from_mode(0o4751)).unwrap();
    fs::set_permissions(top.join("empty"), fs::Permissions::from_mode(0o1777)).unwrap();
    if is_root {
        let capability = [&[1, 0, 0, 2][..], &[0, 4, 0, 0], &[0; 12]].concat();
        set("text", "security.capability", &capability);
        let entry =
            |tag: u16, mode: u16, id: u32| [&tag.to_le_bytes()[..], &mode.to_le_bytes(), &id.to_le_bytes()].concat();
        let acl = [
            &2u32.to_le_bytes()[..],
            &entry(1, 7, !0),
            &entry(2, 5, 1234),
            &entry(4, 5, !0),
            &entry(16, 7, !0),
            &entry(32, 0, !0),
        ]
        .concat();
        set("etc", "system.posix_acl_access", &acl);
        set("etc", "system.posix_acl_default", &acl);
        set("link", "trusted.of-a-link", b"value");
    }
}

/// Gives everything a time of its own: before 1970, with nanoseconds, and beyond 32 bits.
fn times(top: &Path) {
    let mut waiting = vec![top.to_owned()];
    let mut all = Vec::new();
    while let Some(path) = waiting.pop() {
        if path.symlink_metadata().unwrap().is_dir() {
            waiting.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        all.push(path);
    }
    all.sort();
    for (number, path) in (0i64..).zip(&all) {
        let time = Timespec { tv_sec: number * 40_000_000 - 1_000_000_000, tv_nsec: 999_999_999 - number };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
}
