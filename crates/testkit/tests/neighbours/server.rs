//! The resources of the serving process after much work of a user: its memory and its descriptors come back.

use crate::{can_run, factor, image, script};
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::serve::{Served, binary};
use std::time::{Duration, Instant};

/// Memory that may stay: 32 MiB of tree blocks and 16 MiB that the allocator keeps; less than the content that is
/// written.
const MAY_STAY_KIB: u64 = 48 << 10;
/// Descriptors that may stay: each thread that serves has one, two threads begin, and eight stay.
const MAY_STAY_DESCRIPTORS: usize = 6;
/// The caches give up after a minute in which nobody asks.
const PATIENCE: Duration = Duration::from_secs(100);

/// Each kind of work that makes many of something, and takes it away again.
const WORK: [(&str, &str); 8] = [
    ("entries", "mkdir many; (cd many; seq 1 $n | xargs touch; ls -l | wc -l); rm -r many"),
    (
        "extents",
        "for i in $(seq 1 $((n / 4))); do echo $i | dd of=f bs=4k seek=$((2 * i)) conv=notrunc,fsync status=none; \
         done; rm f",
    ),
    (
        "references",
        "head -c 4096 /dev/zero > one; for i in $(seq 1 $((n / 8))); do $B reflink clone one r$i; done; sync -f .; rm \
         r* one",
    ),
    ("links", "touch first; for i in $(seq 1 $((n / 8))); do ln first l$i; done; sync first; rm l* first"),
    ("levels", "(for i in $(seq 1 $((n / 16))); do mkdir d; cd d; done; pwd -P | wc -c); rm -r d"),
    (
        "attributes",
        "touch x; for i in $(seq 1 $((n / 8))); do setfattr -n user.a$i -v value x; done; getfattr -d x | wc -l; rm x",
    ),
    ("content", "head -c $((n * 80000)) /dev/urandom > big; sync big; cat big | wc -c; rm big"),
    (
        "snapshots",
        "for i in $(seq 1 $((n / 200))); do $B subvolume snapshot -r .. s$i > /dev/null; $B send -q s$i | wc -c; done; \
         $B subvolume delete s* > /dev/null; $B subvolume sync .. > /dev/null",
    ),
];

fn resident_kib(server: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{server}/status")).expect("the server runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
    line.split_whitespace().next().and_then(|kib| kib.parse().ok()).expect("a number")
}

fn descriptors(server: u32) -> usize {
    std::fs::read_dir(format!("/proc/{server}/fd")).expect("the server runs").count()
}

fn is_back(now: (u64, usize), before: (u64, usize)) -> bool {
    now.0 <= before.0 + MAY_STAY_KIB && now.1 <= before.1 + MAY_STAY_DESCRIPTORS
}

/// Waits until the server is back at `before`; what it holds then.
fn settled(server: u32, before: (u64, usize)) -> (u64, usize) {
    let end = Instant::now() + PATIENCE;
    loop {
        let now = (resident_kib(server), descriptors(server));
        if is_back(now, before) || Instant::now() > end {
            return now;
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

#[test]
fn memory_and_descriptors_come_back() {
    const TEST: &str = "memory_and_descriptors_come_back";
    if !can_run(TEST, &["setfattr", "getfattr"]) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let served = Served::mount(&image(&scratch, "image"), &scratch.folder("mnt"), "");
    std::fs::create_dir_all(served.path().join("work")).expect("a folder");
    let before = (resident_kib(served.id()), descriptors(served.id()));
    let mut held = Vec::new();
    for (name, work) in WORK {
        let text = format!("n=$((1000 * rounds)); B='{}'\n{work}", binary().display());
        let done = script(served.path(), scratch.path(), &text, 600);
        assert_eq!(done.code, Some(0), "{name}: {}", done.output);
        let now = settled(served.id(), before);
        println!("{name} ({} times): {} KiB, {} descriptors; before {before:?}", 1000 * factor(), now.0, now.1);
        if !is_back(now, before) {
            held.push(format!("{name}: {} KiB and {} descriptors, {before:?} before", now.0, now.1));
        }
    }
    served.unmount();
    assert!(held.is_empty(), "{}", held.join("\n"));
}
