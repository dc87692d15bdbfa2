//! Random trees: built from a folder, from the archive that comes out of that image, from GNU tar's archive, and put
//! into an image that exists. All show the source, and the archive that comes out is the same bytes each time.

use crate::{KEPT, assert_shows, same_tree};
use butterfs::{Access, Device, SubvolumeId};
use butterfs_fs::mkfs::MkfsOptions;
use butterfs_fs::options::{Algorithm, Method};
use butterfs_image::{
    Builder, FilesystemSource, FilesystemTarget, FolderSource, Owners, Rule, Size, Source, TarSource, TarTarget,
};
use butterfs_ondisk::Profile;
use butterfs_testkit::engine;
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::kernel::run_ok;
use butterfs_testkit::operation::Kind;
use butterfs_testkit::requirement;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;

/// The most entries of a tree.
const MOST: u64 = 120;

/// Makes a random tree in `top`, an empty folder.
fn grow(rng: &mut Rng, top: &Path) {
    let (mut folders, mut files, mut all) = (vec![top.to_owned()], Vec::new(), vec![top.to_owned()]);
    for number in 0..rng.below(MOST) {
        let path = rng.pick(&folders).join(name(rng, number));
        match rng.below(20) {
            0..=4 => {
                fs::create_dir(&path).unwrap();
                folders.push(path.clone());
            }
            5..=12 => {
                file(rng, &path);
                files.push(path.clone());
            }
            13 | 14 if !files.is_empty() => {
                fs::hard_link(rng.pick(&files), &path).unwrap();
                // It has attributes already.
                continue;
            }
            15 => special(rng, &path),
            _ => {
                let len = *rng.pick(&[1, 99, 100, 101, 1000, 3500]);
                symlink(OsString::from_vec(vec![b'a' + rng.below(26) as u8; len]), &path).unwrap();
            }
        }
        all.push(path);
    }
    all.iter().for_each(|path| decorate(rng, path));
    // Folders last, deepest first, because what is made in one changes its time.
    all.iter().rev().for_each(|path| set_times(rng, path));
}

/// A name that is there once: short, as long as can be, with any bytes, or longer than an archive's field.
fn name(rng: &mut Rng, number: u64) -> OsString {
    let mut name = number.to_string().into_bytes();
    let len = *rng.pick(&[0, 1, 5, 20, 95, 98, 99, 100, 155, 200, 250]);
    name.extend((0..len).map(|_| match rng.below(10) {
        0 => *rng.pick(b"\n\t \\\"'%=:*?[\x7f\x01"),
        1 => 0x80 + rng.below(128) as u8,
        _ => b'a' + rng.below(26) as u8,
    }));
    name.truncate(255);
    OsString::from_vec(name)
}

/// A content of a size beside the limits, with holes, noise and repetition.
fn file(rng: &mut Rng, path: &Path) {
    let edge = *rng.pick(&[0u64, 1, 511, 512, 2048, 4095, 4096, 4097, 8192, 131_072, 131_073, 400_000, 1 << 20]);
    let size = edge + if rng.chance(30) { rng.below(5000) } else { 0 };
    let file = File::create(path).unwrap();
    let is_sparse = size >= 4096 && rng.chance(30);
    let mut at = 0;
    while at < size {
        let len = (1 + rng.below(200_000)).min(size - at);
        // Holes are whole sectors, as the host has them.
        let len = if is_sparse { len.next_multiple_of(4096).min(size - at) } else { len };
        if !is_sparse || rng.chance(50) {
            let mut bytes = vec![b'x'; len as usize];
            if rng.chance(50) {
                rng.fill(&mut bytes);
            }
            file.write_all_at(&bytes, at).unwrap();
        }
        at += len;
    }
    file.set_len(size).unwrap();
}

fn special(rng: &mut Rng, path: &Path) {
    let kinds = [FileType::Fifo, FileType::CharacterDevice, FileType::BlockDevice];
    let kind = *rng.pick(&kinds);
    let device = rustix::fs::makedev(rng.below(1 << 12) as u32, rng.below(1 << 20) as u32);
    let device = if kind == FileType::Fifo { 0 } else { device };
    rustix::fs::mknodat(CWD, path, kind, Mode::from_raw_mode(0o600), device).unwrap();
}

/// Owner, mode, attributes, ACLs and capabilities.
fn decorate(rng: &mut Rng, path: &Path) {
    let kind = path.symlink_metadata().unwrap().file_type();
    let mut id = || *rng.pick(&[0, 1, 1000, 65_534, 2_097_151, 2_097_152, 4_000_000_000]);
    let (user, group) = (Uid::from_raw(id()), Gid::from_raw(id()));
    rustix::fs::chownat(CWD, path, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW).unwrap();
    if !kind.is_symlink() {
        fs::set_permissions(path, fs::Permissions::from_mode(rng.below(0o10000) as u32)).unwrap();
    }
    let is_plain = kind.is_file() || kind.is_dir();
    let set = |key: &str, value: &[u8]| rustix::fs::lsetxattr(path, key, value, XattrFlags::empty()).unwrap();
    for number in 0..rng.below(4) {
        let mut value = vec![0; *rng.pick(&[0, 1, 30, 700])];
        rng.fill(&mut value);
        let space = if is_plain && rng.chance(60) { "user" } else { "trusted" };
        set(&format!("{space}.n{number}={}", "n".repeat(rng.index(100))), &value);
    }
    if kind.is_file() && rng.chance(10) {
        set("security.capability", &[&[1, 0, 0, 2][..], &[0, 4, 0, 0], &[0; 12]].concat());
    }
    if is_plain && rng.chance(15) {
        let user = 10_000 + rng.below(5000) as u32;
        let names: &[&str] = if kind.is_dir() {
            &["system.posix_acl_access", "system.posix_acl_default"]
        } else {
            &["system.posix_acl_access"]
        };
        names.iter().for_each(|name| set(name, &acl(user)));
    }
}

fn acl(user: u32) -> Vec<u8> {
    let entry =
        |tag: u16, mode: u16, id: u32| [&tag.to_le_bytes()[..], &mode.to_le_bytes(), &id.to_le_bytes()].concat();
    let entries = [entry(1, 6, !0), entry(2, 5, user), entry(4, 4, !0), entry(16, 7, !0), entry(32, 0, !0)];
    [&2u32.to_le_bytes()[..], &entries.concat()].concat()
}

/// A time that the host's filesystem can have too: 1901 to 2446.
fn set_times(rng: &mut Rng, path: &Path) {
    let nanoseconds = [0, 1, 500_000_000, 999_999_999, rng.below(1_000_000_000) as i64];
    let span = *rng.pick(&[1_000_000_000u64, 2_000_000_000, 15_000_000_000]);
    let sec = rng.below(span) as i64 - if rng.chance(20) { 2_000_000_000 } else { 0 };
    let time = Timespec { tv_sec: sec, tv_nsec: *rng.pick(&nanoseconds) };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

fn builder(rng: &mut Rng, source: impl Source + 'static) -> Builder {
    let methods = [
        None,
        Some(Algorithm::Lzo.into()),
        Some(Algorithm::Zlib.into()),
        Some(Method::new(Algorithm::Zstd, 1 + rng.below(9) as i32)),
    ];
    let format = MkfsOptions {
        nodesize: Some(*rng.pick(&[4096, 16384, 65536])),
        metadata: Profile::named(if rng.chance(50) { "single" } else { "dup" }),
        ..MkfsOptions::default()
    };
    let size = if rng.chance(30) { Size::Minimal } else { Size::Usable };
    let builder = Builder::new().source("/", source).and_then(|it| it.rule("/", Rule::Compress(*rng.pick(&methods))));
    builder.unwrap().format(format).size(size).epoch(20_000_000_000).threads(1 + rng.index(3))
}

fn open(image: &Path, access: Access) -> butterfs::Dir {
    let filesystem = butterfs::Builder::new().device(Device::path(image)).access(access).open().unwrap();
    filesystem.subvolume_root(SubvolumeId::TOP_LEVEL).unwrap()
}

/// The archive of everything in an image.
fn archive_of(image: &Path) -> Vec<u8> {
    let mut archive = Vec::new();
    let mut target = TarTarget::new(&mut archive);
    FilesystemSource::new("image", open(image, Access::ReadOnly)).read(&mut target).unwrap();
    assert!(target.finish().unwrap().is_empty());
    archive
}

/// Panics unless the library shows in the image what is in the source.
fn shows(image: &Path, expected: &Fingerprint, what: &str, compare: Compare) {
    butterfs_testkit::judge::assert_clean(image);
    let filesystem = engine::open(image, butterfs_fs::Options { read_only: true, ..butterfs_fs::Options::default() });
    let mut print = Fingerprint::of_library(&filesystem).unwrap();
    filesystem.shutdown().unwrap();
    same_tree(&mut print);
    let found = differences(expected, &print, compare);
    assert!(found.is_empty(), "{what}: {}", found.join("\n"));
}

fn gnu_archive(source: &Path, archive: &Path) {
    let form = ["--format=pax", "--numeric-owner", "--xattrs", "--xattrs-include=*", "--acls", "--sparse"];
    let what = ["-C", source.to_str().unwrap(), "-cf", archive.to_str().unwrap(), "."];
    run_ok(60, "tar", &[&form[..], &what].concat());
}

fn try_one(seed: u64, scratch: &Scratch, by_the_kernel: bool) {
    let mut rng = Rng::new(seed);
    let (source, image) = (scratch.folder("source"), scratch.join("image"));
    grow(&mut rng, &source);
    let mut expected = Fingerprint::of_tree(&source);
    same_tree(&mut expected);
    assert!(expected.entries.values().all(|entry| entry.kind != Kind::Socket));
    builder(&mut rng, FolderSource::new(&source)).build(&image).unwrap();
    shows(&image, &expected, &format!("{seed}, from the folder"), KEPT);
    if by_the_kernel {
        assert_shows(&image, "", &source);
    }
    let archive = archive_of(&image);
    let tar = |archive: &[u8]| TarSource::new("archive", std::io::Cursor::new(archive.to_vec()));
    builder(&mut rng, tar(&archive)).build(&image).unwrap();
    shows(&image, &expected, &format!("{seed}, from our archive"), KEPT);
    assert!(archive_of(&image) == archive, "{seed}: another archive comes out of what was built from one");
    // Into an image that exists, by transactions.
    Builder::new().free(64 << 20).build(&image).unwrap();
    let (top, owners) = (open(&image, Access::ReadWrite), Owners::default());
    let mut target = FilesystemTarget::new(&top, &owners);
    tar(&archive).read(&mut target).unwrap_or_else(|error| panic!("{seed}: {error}"));
    target.finish().unwrap();
    drop(top);
    shows(&image, &expected, &format!("{seed}, put into an image"), KEPT);
    assert!(archive_of(&image) == archive, "{seed}: another archive comes out of what was put in");
    let gnu = scratch.join("gnu.tar");
    gnu_archive(&source, &gnu);
    builder(&mut rng, TarSource::open(&gnu).unwrap()).build(&image).unwrap();
    // GNU tar takes a file with as many blocks as it is long for one without holes, also where attributes take them.
    let without_holes = Compare { holes: false, ..KEPT };
    shows(&image, &expected, &format!("{seed}, from GNU tar's archive"), without_holes);
    if by_the_kernel {
        butterfs_testkit::kernel::check_all(&image);
    }
}

/// Tries trees of these seeds, every so manyth also by the kernel.
fn try_many(test: &str, seeds: std::ops::Range<u64>, kernel_every: u64) {
    if !requirement::kernel_btrfs(test) || !requirement::programs(test, &["tar"]) {
        return;
    }
    for seed in seeds {
        let scratch = Scratch::new("image-random");
        try_one(seed, &scratch, seed % kernel_every == 0);
    }
}

#[test]
fn a_few_random_trees_come_out_as_they_went_in() {
    try_many("a_few_random_trees_come_out_as_they_went_in", 0..4, 2);
}

#[test]
#[ignore = "long: cargo xtask soak images"]
fn many_random_trees_come_out_as_they_went_in() {
    let count = std::env::var("BUTTERFS_TREES").ok().and_then(|count| count.parse().ok()).unwrap_or(500);
    try_many("many_random_trees_come_out_as_they_went_in", 1000..1000 + count, 10);
}
