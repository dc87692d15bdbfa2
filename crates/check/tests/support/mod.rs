//! Support for the tests of the checker: images made by mkfs.btrfs and the kernel, in memory.

#![allow(dead_code)] // each test program uses a part

use butterfs_check::{Options, Report, check};
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_testkit::scratch::load;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Says that a test cannot run; fails in CI.
pub fn skip(test: &str, reason: &str) {
    assert!(std::env::var("CI").as_deref() != Ok("true"), "CI does not skip {test}: {reason}");
    let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: {reason}");
}

/// Whether both hold the same bytes.
pub fn same(one: &MemoryDevice, other: &MemoryDevice) -> bool {
    let (mut a, mut b) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    (0..one.len()).step_by(1 << 20).all(|at| {
        let len = (one.len() - at).min(1 << 20) as usize;
        one.read_at(at, &mut a[..len]).expect("it is inside");
        other.read_at(at, &mut b[..len]).expect("it is inside");
        a[..len] == b[..len]
    })
}

/// A folder for one test, removed when it ends well.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("the build folder can be written");
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

/// Whether the kernel's btrfs can be used; says so if not.
pub fn kernel(test: &str) -> bool {
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let ready = known.contains("btrfs") && Command::new("mkfs.btrfs").arg("--version").output().is_ok();
    let root = std::fs::write("/proc/self/oom_score_adj", "0").is_ok()
        && Command::new("id").arg("-u").output().is_ok_and(|out| out.stdout == b"0\n");
    if !(ready && root) {
        skip(test, "needs root, the kernel's btrfs and mkfs.btrfs");
    }
    ready && root
}

/// Fills a mounted filesystem: snapshots that share, many links, sparse and preallocated files, a deleted subvolume.
const FILL: &str = r#"
set -e
btrfs subvolume create sv > /dev/null
for i in $(seq 250); do echo $i > sv/f$i; ln sv/f$i sv/l$i; done
for i in $(seq 60); do ln sv/f1 sv/a-long-name-that-fills-the-item-of-links-$(printf %0150d $i); done
for i in $(seq 200); do head -c 8192 /dev/urandom > sv/d$i; done
for i in $(seq 0 2 399); do dd if=/dev/urandom of=sv/sparse bs=4k seek=$i count=1 conv=notrunc status=none; done
fallocate -l 1M sv/pre; head -c 12M /dev/urandom > sv/big
touch sv/nocow; chattr +C sv/nocow; head -c 256K /dev/urandom > sv/nocow
cp --reflink sv/d1 sv/clone; ln -s target sv/sym; mkfifo sv/fifo; setfattr -n user.a -v b sv/f1 || true
sync
for s in 1 2 3; do
    btrfs subvolume snapshot sv snap$s > /dev/null
    for i in $(seq $s 5 250); do echo new$s > sv/f$i; done
    sync
done
btrfs subvolume create snap2/inner > /dev/null
btrfs subvolume delete snap3 > /dev/null
mkdir -p a/b/c; sync
"#;

/// An image with that content, or `None` where the machine cannot make one, which has been said.
pub fn filled(test: &str, bytes: u64, options: &[&str]) -> Option<Arc<MemoryDevice>> {
    made_with(test, bytes, options, FILL)
}

/// Fills a subvolume with files of each compression, and one that is not packed.
const PACKED: &str = r#"
set -e
btrfs subvolume create sv > /dev/null
for kind in zlib lzo zstd; do
    touch sv/$kind; btrfs property set sv/$kind compression $kind
    for i in $(seq 9000); do echo "line $i of the file that $kind packs"; done > sv/$kind
done
head -c 1M /dev/urandom > sv/plain; head -c 64K /dev/urandom > sv/short
for kind in zlib lzo zstd; do
    touch sv/line-$kind; btrfs property set sv/line-$kind compression $kind
    for i in $(seq 90); do echo "the same line"; done > sv/line-$kind
done
sync; for kind in zlib lzo zstd; do cp --reflink sv/$kind sv/cut-$kind; truncate -s 4096 sv/cut-$kind; done
sync; btrfs subvolume snapshot sv snap > /dev/null; sync
"#;

/// Makes subvolumes with more and more files, so that leaves end at all places between the items of a file.
const STAIRS: &str = r#"
set -e
for s in $(seq 24); do
    btrfs subvolume create sv$s > /dev/null
    for i in $(seq $((10 + s))); do printf "file $i of subvolume $s" > sv$s/file$i; done
done
sync
"#;

/// An image with such subvolumes, or `None` as above.
pub fn stairs(test: &str) -> Option<Arc<MemoryDevice>> {
    made(test, STAIRS)
}

/// Makes a subvolume and more snapshots of it than a repair has rounds without progress.
const SHARED: &str = r#"
set -e
btrfs subvolume create sv > /dev/null; mkdir sv/dir
for i in $(seq 40); do head -c $((i % 3 * 8192 + 4096)) /dev/urandom > sv/dir/f$i; ln sv/dir/f$i sv/l$i; done
touch sv/packed; btrfs property set sv/packed compression zstd
for i in $(seq 9000); do echo "line $i of a file"; done > sv/packed; sync
for s in $(seq 9); do btrfs subvolume snapshot sv snap$s > /dev/null; done; sync
"#;

/// An image with leaves that ten subvolumes share, or `None` as above.
pub fn shared(test: &str) -> Option<Arc<MemoryDevice>> {
    made(test, SHARED)
}

/// Makes symbolic links, some with two names, and a snapshot that shares them.
const SYMLINKS: &str = r#"
set -e
btrfs subvolume create sv > /dev/null; mkdir sv/dir; echo file > sv/file
ln -s target sv/dir/link; ln -P sv/dir/link sv/again
for i in $(seq 60); do ln -s $(printf target-%0*d $i 1) sv/dir/link-$i; done; sync
btrfs subvolume snapshot sv snap > /dev/null; sync
"#;

/// An image with symbolic links, or `None` as above.
pub fn symlinks(test: &str, options: &[&str]) -> Option<Arc<MemoryDevice>> {
    made_with(test, 160 << 20, &[&["-n", "4096"], options].concat(), SYMLINKS)
}

/// Makes files and directories in leaves that a snapshot shares, and that have room, because `$PADS` other files were
/// removed. A name with an underscore is the name that a repair makes up for one with a slash there.
const NAMES: &str = r#"
set -e
btrfs subvolume create sv > /dev/null; mkdir sv/tree; cd sv/tree
for i in $(seq $PADS); do
    echo "pad $i" > pad-$(printf %03d $i); [ $i -gt 60 ] || echo "file $i" > file-$(printf %03d $i)
done
for name in subdir other _irs; do mkdir $name; echo "in $name" > $name/inner; done
for name in _lash _ __ nu_l hard-a; do echo "content of $name" > $name; done
ln hard-a hard-b; ln hard-a other/hard-c; ln -s target symlink
for name in nested _ested; do btrfs subvolume create $name > /dev/null; echo "in $name" > $name/inner; done
cd ../..; sync; rm sv/tree/pad-*; sync; btrfs subvolume snapshot sv snap > /dev/null; sync
"#;

/// An image with such names, or `None` as above. The number of files that were removed moves the ends of the leaves.
pub fn names(test: &str, removed: usize) -> Option<Arc<MemoryDevice>> {
    made(test, &format!("PADS={removed}{NAMES}"))
}

/// An image with what a script makes in it, or `None` as above.
pub fn made(test: &str, script: &str) -> Option<Arc<MemoryDevice>> {
    made_with(test, 160 << 20, &["-n", "4096"], script)
}

fn made_with(test: &str, bytes: u64, options: &[&str], script: &str) -> Option<Arc<MemoryDevice>> {
    if !kernel(test) {
        return None;
    }
    let scratch = Scratch::new(test);
    fill(&scratch, bytes, options, "loop,noatime", script);
    let image = scratch.0.join("image");
    Some(Arc::new(MemoryDevice::from_bytes(&std::fs::read(&image).expect("the image can be read"))))
}

/// An image with compressed files, or `None` as above.
pub fn packed(test: &str) -> Option<Arc<MemoryDevice>> {
    made(test, PACKED)
}

/// Changes a committed filesystem, with an fsync of each change.
const LOG: &str = r#"
set -e
btrfs subvolume create sv > /dev/null; btrfs subvolume create other > /dev/null
mkdir sv/dir; for i in $(seq 9); do head -c 20000 /dev/urandom > sv/dir/f$i; done
head -c 8192 /dev/urandom > other/file
sync; sync
rm sv/dir/f3 sv/dir/f4; echo new > sv/dir/new; sync sv/dir
head -c 40000 /dev/urandom >> sv/dir/f5; sync sv/dir/f5
head -c 12288 /dev/urandom > sv/dir/made; sync sv/dir/made; ln sv/dir/made sv/dir/link; sync sv/dir/made
head -c 12288 /dev/urandom >> other/file; sync other/file
cp --sparse=always "$IMAGE" "$IMAGE.cut"
"#;

/// An image whose superblock points at logs of two subvolumes, or `None` as above.
pub fn logged(test: &str) -> Option<Arc<MemoryDevice>> {
    if !kernel(test) {
        return None;
    }
    let scratch = Scratch::new(test);
    let image = scratch.0.join("image");
    fill(&scratch, 256 << 20, &[], "loop,noatime", LOG);
    Some(Arc::new(MemoryDevice::from_bytes(&std::fs::read(image.with_extension("cut")).expect("it was cut off"))))
}

/// Fills a filesystem with so many holes that its space cache has bitmaps.
const CACHED: &str = r#"
set -e
for i in {1..3000}; do printf '%4096d' $i > f$i; done; sync
rm f{1..2999..2}; sync; printf again > again; sync
"#;

/// An image with a version 1 space cache, or `None` as above.
pub fn cached(test: &str) -> Option<Arc<MemoryDevice>> {
    if !kernel(test) {
        return None;
    }
    let scratch = Scratch::new(test);
    let options = ["-R", "^free-space-tree", "-O", "^block-group-tree"];
    let options = if knows_block_group_tree() { &options[..] } else { &options[..2] };
    fill(&scratch, 2 << 30, options, "loop,noatime,space_cache=v1,max_inline=0", CACHED);
    Some(Arc::new(load(&scratch.0.join("image"))))
}

fn knows_block_group_tree() -> bool {
    let listed = Command::new("mkfs.btrfs").args(["-O", "list-all"]).output().expect("mkfs.btrfs runs");
    String::from_utf8_lossy(&[listed.stdout, listed.stderr].concat()).contains("block-group-tree")
}

fn fill(scratch: &Scratch, bytes: u64, options: &[&str], mount_options: &str, script: &str) {
    let (image, mount) = (scratch.0.join("image"), scratch.0.join("mount"));
    std::fs::File::create(&image).and_then(|file| file.set_len(bytes)).expect("an image can be made");
    std::fs::create_dir_all(&mount).expect("a folder can be made");
    let run = |command: &mut Command| {
        let out = command.output().expect("the program runs");
        assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
    };
    run(Command::new("mkfs.btrfs").arg("-q").args(options).arg(&image));
    run(Command::new("mount").args(["-o", mount_options]).arg(&image).arg(&mount));
    let filled =
        Command::new("timeout").args(["100", "bash", "-c", script]).current_dir(&mount).env("IMAGE", &image).output();
    run(Command::new("umount").arg(&mount));
    let filled = filled.expect("bash runs");
    assert!(filled.status.success(), "{}", String::from_utf8_lossy(&filled.stderr));
}

pub fn judge_with(device: &Arc<MemoryDevice>, options: &Options) -> Report {
    check(vec![device.clone() as Arc<dyn BlockDevice>], options, &|_| {})
}
