//! Seed devices and the filesystems that sprout from them, beside the kernel both ways.

use butterfs_device::{BlockDevice, FileDevice, FileOptions};
use butterfs_fs::filesystem::{NewSize, OldContent, RemovedDevice, Storage};
use butterfs_fs::{Caller, DeviceId, Env, Errno, Filesystem, Options};
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::kernel::{KernelMount, LoopDevice, check_all, check_several, mkfs, run_ok};
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const ROOT: Caller = Caller { uid: 0, gid: 0, umask: 0, privileged: true };

fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are text")
}

/// A seed that the kernel has filled, and an empty image.
fn seed(scratch: &Scratch, options: &[&str]) -> (PathBuf, PathBuf) {
    let (seed, new) = (scratch.sparse_file("seed", 300 << 20), scratch.sparse_file("new", 500 << 20));
    mkfs(&seed, options);
    let mount = KernelMount::new(&seed, "noatime");
    let script = "set -e; btrfs -q subvolume create s
        for i in $(seq 200); do head -c $((i * 90)) /dev/urandom > s/small$i; done
        head -c 6000000 /dev/urandom > s/large; cp --reflink=always s/large s/clone; btrfs -q subvolume snapshot -r s r
        touch nocow; chattr +C nocow; head -c 700000 /dev/urandom > nocow; fallocate -l 1m prealloc; sync";
    run_ok(60, "sh", &["-c", &format!("cd {} && {script}", text(mount.path()))]);
    assert_eq!(mount.finish(), [""; 0]);
    run_ok(20, "btrfstune", &["-f", "-S", "1", text(&seed)]);
    (seed, new)
}

fn device(image: &Path, options: &FileOptions) -> Arc<dyn BlockDevice> {
    Arc::new(FileDevice::open(image, options).unwrap())
}

fn open(images: &[&Path]) -> butterfs_fs::Result<Filesystem> {
    let devices = images.iter().map(|image| device(image, &FileOptions::read_write())).collect();
    Filesystem::open(devices, Options::default(), Env::system())
}

fn content(image: &Path) -> Vec<u8> {
    std::fs::read(image).unwrap()
}

fn shown(images: &[&Path]) -> Fingerprint {
    let mount = KernelMount::several(images, "noatime");
    let print = Fingerprint::of_tree(mount.path());
    let mut complaints = mount.finish();
    // The kernel remembers the seed by the loop device that it was on.
    complaints.retain(|line| !line.contains("maj:min changed"));
    assert_eq!(complaints, [""; 0]);
    print
}

fn same(before: &Fingerprint, after: &Fingerprint) {
    let found = differences(before, after, Compare::ALL);
    assert!(found.is_empty(), "{:#?}", &found[..found.len().min(20)]);
}

/// Overwrites what lies on the seed, in place where that would be possible elsewhere.
fn overwrite(fs: &Filesystem) {
    for name in [&b"nocow"[..], b"prealloc"] {
        let id = fs.lookup(fs.root(), name).unwrap().id;
        fs.write(id, 8192, &[7; 20_000], false).unwrap();
        fs.forget(id, 1);
    }
    let id = fs.create(&ROOT, fs.root(), b"own", 0o644).unwrap().id;
    fs.write(id, 0, &[9; 300_000], false).unwrap();
    fs.forget(id, 1);
    fs.sync().unwrap();
}

/// The seed leaves, and an ordinary filesystem is left.
fn remove_seed(seed: &Path, new: &Path) {
    let fs = open(&[seed, new]).unwrap();
    let refused = fs.resize_device(DeviceId(1), NewSize::Bytes(290 << 20), Storage::Stays).unwrap_err();
    assert!(refused.is(Errno::EPERM), "{refused}");
    assert!(fs.remove_device(RemovedDevice::Id(DeviceId(2))).unwrap_err().to_string().contains("only writeable"));
    fs.remove_device(RemovedDevice::Id(DeviceId(1))).unwrap();
    fs.shutdown().unwrap();
}

/// The filesystem on `new` shows the same after its seed has left. Nobody has written to the seed.
fn goes_on_without_its_seed(seed: &Path, new: &Path, bytes: &[u8]) {
    check_several(&[new, seed]);
    let before = shown(&[new, seed]);
    assert!(content(seed) == bytes, "the seed has changed");
    remove_seed(seed, new);
    assert!(content(seed) == bytes, "the seed has changed");
    check_all(new);
    same(&before, &shown(&[new]));
}

#[test]
fn a_filesystem_sprouts_here_and_the_kernel_goes_on() {
    const TEST: &str = "sprouts_here";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    for options in [&["-n", "4096"][..], &["-m", "single", "-O", "block-group-tree"]] {
        let scratch = Scratch::new(TEST);
        let (seed, new) = seed(&scratch, options);
        let (bytes, before) = (content(&seed), shown(&[&seed]));
        let devices = vec![device(&seed, &FileOptions::read_only())];
        let fs = Filesystem::open(devices, Options { read_only: true, ..Options::default() }, Env::system()).unwrap();
        let added = fs.add_device(device(&new, &FileOptions::read_write()), false, OldContent::Keep);
        assert_eq!(added.unwrap(), DeviceId(2));
        drop(fs);
        assert!(open(&[&new]).err().unwrap().to_string().contains("only 1 were given"));
        check_several(&[&seed, &new]);
        same(&before, &shown(&[&new, &seed]));
        let fs = open(&[&new, &seed]).unwrap();
        overwrite(&fs);
        fs.shutdown().unwrap();
        drop(fs);
        goes_on_without_its_seed(&seed, &new, &bytes);
    }
}

#[test]
fn what_sprouted_in_the_kernel_is_used_here() {
    const TEST: &str = "sprouted_in_the_kernel";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let (seed, new) = seed(&scratch, &[]);
    let bytes = content(&seed);
    {
        let target = LoopDevice::attach(&new, false);
        let mount = KernelMount::new(&seed, "noatime");
        run_ok(60, "btrfs", &["device", "add", "-f", "-K", text(target.path()), text(mount.path())]);
        run_ok(60, "mount", &["-o", "remount,rw", text(mount.path())]);
        std::fs::write(mount.path().join("from the kernel"), b"sprouted").unwrap();
        assert_eq!(mount.finish(), [""; 0]);
    }
    let fs = open(&[&seed, &new]).unwrap();
    overwrite(&fs);
    fs.balance_start(butterfs_ondisk::items::BalanceItem { flags: 7.into(), ..Default::default() }).unwrap();
    fs.shutdown().unwrap();
    drop(fs);
    goes_on_without_its_seed(&seed, &new, &bytes);
    // A seed that has gone on.
    let (changed, copy) = (scratch.join("changed"), scratch.sparse_file("copy", 500 << 20));
    std::fs::write(&changed, &bytes).unwrap();
    let devices = vec![device(&changed, &FileOptions::read_only())];
    let fs = Filesystem::open(devices, Options { read_only: true, ..Options::default() }, Env::system()).unwrap();
    fs.add_device(device(&copy, &FileOptions::read_write()), false, OldContent::Discard).unwrap();
    drop(fs);
    run_ok(20, "btrfstune", &["-f", "-S", "0", text(&changed)]);
    let fs = open(&[&changed]).unwrap();
    overwrite(&fs);
    fs.shutdown().unwrap();
    drop(fs);
    run_ok(20, "btrfstune", &["-f", "-S", "1", text(&changed)]);
    let refused = open(&[&copy, &changed]).err().unwrap().to_string();
    assert!(refused.contains("written after this filesystem had sprouted"), "{refused}");
}
