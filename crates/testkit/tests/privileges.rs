//! A program that lends its owner's rights, changed by somebody else: beside the kernel's btrfs the set-id bits and
//! capabilities go with the same operations, and whoever runs the program right afterwards gets no more than there. The
//! mode that the kernel has cached decides about that, so that asking for attributes proves nothing.

use butterfs_testkit::kernel::{self, KernelMount, check_all, run};
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::serve::{self, Served};
use butterfs_testkit::transport;
use butterfs_testkit::watchdog::Watchdog;
use rustix::fs::{FallocateFlags, Gid, Mode, OFlags, Uid};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// Prints the user that it runs as.
const PROGRAM: &str = "/usr/bin/id";
/// The offset of data that the program does not need.
const BEHIND: u64 = 1 << 20;
const SOMEBODY: u32 = 1000;
/// `cap_net_bind_service=ep`, version 2.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// The changes of the program, given its path and that of another copy.
type Change = fn(&Path, &Path);

fn open(path: &Path, flags: OFlags) -> File {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).expect("everybody may").into()
}

fn allocate(path: &Path, flags: FallocateFlags, offset: u64) {
    rustix::fs::fallocate(open(path, OFlags::RDWR), flags, offset, 8192).expect("room");
}

const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

const CHANGES: [(&str, Change); 10] = [
    ("write", |path, _| open(path, OFlags::WRONLY).write_all_at(b"\x7fELF", 0).expect("room")),
    ("two writes", |path, _| {
        let file = open(path, OFlags::WRONLY);
        (0..2).for_each(|_| file.write_all_at(b"\x7fELF", 0).expect("room"));
    }),
    ("fallocate", |path, _| allocate(path, FallocateFlags::empty(), BEHIND << 1)),
    ("keep size", |path, _| allocate(path, FallocateFlags::KEEP_SIZE, BEHIND << 1)),
    ("punch", |path, _| allocate(path, PUNCH, BEHIND)),
    ("zero", |path, _| allocate(path, FallocateFlags::ZERO_RANGE, BEHIND)),
    ("copy_file_range", |path, other| {
        let (mut from, mut to) = (0, 0);
        let (source, target) = (open(other, OFlags::RDONLY), open(path, OFlags::RDWR));
        rustix::fs::copy_file_range(source, Some(&mut from), target, Some(&mut to), 8192).expect("room");
    }),
    ("truncate", |path, _| {
        let longer = (BEHIND << 1).to_string();
        kernel::run_ok(10, "xfs_io", &["-c", &format!("truncate {longer}"), &path.to_string_lossy()]);
    }),
    ("truncate while opening", |path, _| drop(open(path, OFlags::WRONLY | OFlags::TRUNC))),
    ("mapping", |path, _| {
        let commands = ["-c", "mmap -rw 0 4096", "-c", "mwrite -S 0x7f 0 1", "-c", "msync -s"];
        kernel::run_ok(10, "xfs_io", &[&commands[..], &[&path.to_string_lossy()]].concat());
    }),
];

fn as_user(user: u32, act: impl FnOnce()) {
    let [root, uid] = [0, user].map(Uid::from_raw);
    let switch = |uid, gid| {
        rustix::thread::set_thread_res_gid(Gid::ROOT, gid, Gid::ROOT)
            .and_then(|()| rustix::thread::set_thread_res_uid(root, uid, root))
    };
    if user != 0 {
        switch(uid, Gid::from_raw(user)).expect("root may become somebody");
    }
    act();
    rustix::thread::set_thread_res_uid(root, root, root).expect("the saved id is root's");
    switch(root, Gid::ROOT).expect("root again");
}

/// The user as whom the program runs when somebody starts it.
fn runs_as(path: &Path) -> String {
    let user = SOMEBODY.to_string();
    let arguments =
        ["--reuid", &user, "--regid", &user, "--clear-groups", "--", &path.to_string_lossy(), "-u"].map(str::to_owned);
    let finished = run(10, "setpriv", &arguments.each_ref().map(String::as_str));
    if finished.code == Some(0) { finished.output.trim().to_owned() } else { "does not run".to_owned() }
}

/// A program that lends root's rights, and that the kernel knows well.
fn make(path: &Path, content: &[u8], with_capability: bool) {
    std::fs::write(path, content).expect("room");
    open(path, OFlags::RDWR).write_all_at(&[1; 65536], BEHIND).expect("room");
    if with_capability {
        rustix::fs::setxattr(path, "security.capability", &CAPABILITY, rustix::fs::XattrFlags::empty()).expect("root");
    }
    rustix::fs::chmod(path, Mode::from_raw_mode(0o4777)).expect("our own file");
    assert_eq!(runs_as(path), "0", "the rights are lent at first");
    assert_eq!(std::fs::metadata(path).expect("there").mode() & 0o7777, 0o4777);
}

/// The rights that remain after a change: first what running the program shows, then what it has.
fn left(root: &Path, content: &[u8], user: u32, (name, change): (&str, Change), with_capability: bool) -> String {
    let (path, other) = (root.join(format!("{name}-{user}-{with_capability}")), root.join("other"));
    make(&path, content, with_capability);
    as_user(user, || change(&path, &other));
    let user = runs_as(&path);
    let mode = std::fs::metadata(&path).expect("there").mode();
    let capability = rustix::fs::getxattr(&path, "security.capability", &mut [0; 64]).is_ok();
    format!("runs as {user}, mode {mode:o}, capability {capability}")
}

#[test]
fn set_id_bits_and_capabilities_go_as_in_the_kernel() {
    const TEST: &str = "privileges";
    let is_ready = requirement::kernel_btrfs(TEST) && requirement::fuse(TEST);
    if !is_ready || !requirement::programs(TEST, &["setpriv", "xfs_io"]) {
        return;
    }
    let _watchdog = Watchdog::new(TEST, 120);
    let scratch = Scratch::new(TEST);
    let (image, other) = (scratch.sparse_file("image", 512 << 20), scratch.sparse_file("other", 512 << 20));
    serve::mkfs(&image, &[]);
    kernel::mkfs(&other, &[]);
    let ours = Served::mount(&image, &scratch.folder("mnt"), "allow_other");
    let kernels = KernelMount::new(&other, "");
    let content = std::fs::read(PROGRAM).expect("the system has it");
    let mut wrong = Vec::new();
    for root in [ours.path(), kernels.path()] {
        rustix::fs::chmod(root, Mode::from_raw_mode(0o777)).expect("our own mount");
        std::fs::write(root.join("other"), &content).expect("room");
    }
    for (change, user) in CHANGES.into_iter().flat_map(|change| [(change, 0), (change, SOMEBODY)]) {
        for with_capability in [false, true] {
            let [ours, kernels] =
                [ours.path(), kernels.path()].map(|root| left(root, &content, user, change, with_capability));
            if ours != kernels {
                wrong.push(format!(
                    "{} by {user}, capability {with_capability}: {ours}; the kernel: {kernels}",
                    change.0
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{} differences: {wrong:#?}", wrong.len());
    ours.unmount();
    check_all(&image);
    assert_eq!(kernels.finish(), [""; 0]);
}

#[test]
fn set_id_bits_and_capabilities_go_over_dev_fuse_too() {
    const TEST: &str = "set_id_bits_and_capabilities_go_over_dev_fuse_too";
    if requirement::kernel_btrfs(TEST) && requirement::fuse(TEST) {
        transport::again_over_dev_fuse(TEST, &["set_id_bits_and_capabilities_go_as_in_the_kernel"], 180);
    }
}
