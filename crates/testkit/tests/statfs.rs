//! `statfs` answers as the kernel does, however full the filesystem is and whatever it is made of.

use butterfs_fs::Options;
use butterfs_testkit::engine::open;
use butterfs_testkit::kernel::{KernelMount, mkfs};
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::watchdog::Watchdog;
use rustix::fs::{FallocateFlags, StatVfs};
use std::path::Path;

/// Makes files that take `len` bytes of data space until there are `count` or the disk is full; true when all are
/// there.
fn fill(at: &Path, prefix: &str, count: usize, len: u64) -> bool {
    let make = |number: usize| -> std::io::Result<()> {
        let file = std::fs::File::create(at.join(format!("{prefix}{number}")))?;
        Ok(rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len)?)
    };
    (0..count).all(|number| make(number).is_ok())
}

/// Makes files that take a block of the tree each.
fn fill_trees(at: &Path, count: usize) -> bool {
    let make = |number: usize| -> std::io::Result<()> {
        let file = std::fs::File::create(at.join(format!("trees{number}")))?;
        Ok(rustix::fs::fsetxattr(&file, "user.large", &[1; 3500], rustix::fs::XattrFlags::empty())?)
    };
    (0..count).all(|number| make(number).is_ok())
}

/// The kernel's answer for the image, and ours. Mounted read-only the kernel would count no group as free.
fn answers(image: &Path) -> (StatVfs, butterfs_fs::StatFs) {
    let mount = KernelMount::new(image, "noatime");
    let kernel = rustix::fs::statvfs(mount.path()).expect("it is mounted");
    mount.finish();
    let filesystem = open(image, Options { read_only: true, ..Options::default() });
    (kernel, filesystem.statfs())
}

fn compare(what: &str, image: &Path) -> Vec<String> {
    let (kernel, ours) = answers(image);
    let pairs = [
        ("blocks", kernel.f_blocks, ours.blocks),
        ("bfree", kernel.f_bfree, ours.blocks_free),
        ("bavail", kernel.f_bavail, ours.blocks_available),
        ("bsize", kernel.f_bsize, u64::from(ours.block_size)),
        ("namemax", kernel.f_namemax, u64::from(ours.name_len)),
    ];
    let unequal = pairs.iter().filter(|(_, kernel, ours)| kernel != ours);
    unequal.map(|(name, kernel, ours)| format!("{what}: {name}: kernel {kernel}, ours {ours}")).collect()
}

const CASES: &[(&str, u64, &[&str])] = &[
    ("default", 130 << 20, &[]),
    ("default of 3 GiB", 3 << 30, &[]),
    ("data twice", 400 << 20, &["-d", "dup"]),
    ("mixed", 120 << 20, &["-M"]),
    ("no free space tree", 200 << 20, &["-O", "^free-space-tree"]),
];

#[test]
fn statfs_is_the_kernels() {
    const TEST: &str = "statfs_is_the_kernels";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let _watchdog = Watchdog::new(TEST, 200);
    let mut wrong = Vec::new();
    for (name, bytes, options) in CASES {
        let scratch = Scratch::new(TEST);
        let image = scratch.sparse_file("image", *bytes);
        mkfs(&image, options);
        wrong.extend(compare(&format!("{name}, new"), &image));
        let mount = KernelMount::new(&image, "noatime");
        fill_trees(mount.path(), 500);
        mount.finish();
        wrong.extend(compare(&format!("{name}, some trees"), &image));
        let mount = KernelMount::new(&image, "noatime");
        fill(mount.path(), "large", (*bytes >> 23) as usize, 2 << 20);
        mount.finish();
        wrong.extend(compare(&format!("{name}, a quarter"), &image));
        let mount = KernelMount::new(&image, "noatime");
        assert!(!fill(mount.path(), "rest", usize::MAX, 2 << 20), "it becomes full");
        rustix::fs::sync();
        mount.finish();
        wrong.extend(compare(&format!("{name}, full of data"), &image));
        let mount = KernelMount::new(&image, "noatime");
        for number in (0..).step_by(2) {
            if std::fs::remove_file(mount.path().join(format!("rest{number}"))).is_err() {
                break;
            }
        }
        if *name == "default" {
            assert!(!fill_trees(mount.path(), usize::MAX), "they become full");
        }
        mount.finish();
        wrong.extend(compare(&format!("{name}, full of trees"), &image));
        let mount = KernelMount::new(&image, "noatime");
        let names = std::fs::read_dir(mount.path()).expect("mounted");
        names.for_each(|name| drop(std::fs::remove_file(name.expect("mounted").path())));
        mount.finish();
        wrong.extend(compare(&format!("{name}, empty again"), &image));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
