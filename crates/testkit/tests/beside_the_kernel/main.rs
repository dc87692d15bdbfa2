//! Our mount beside the kernel's btrfs: the same random calls on names and attributes, by root and by somebody else,
//! under changing umasks. Every answer is the same, errno by errno; what changes times is the same; and in the end
//! both trees are.
//!
//! Known to differ, and not met with the seeds below: FUSE does not tell whether the caller is in the file's group, so
//! that a set-group-id bit without execution by the group stays where the kernel's btrfs would take it from a stranger.

mod acl;
mod call;
mod watch;

use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::kernel::{self, KernelMount, check_all};
use butterfs_testkit::requirement;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::serve::{self, Served};
use butterfs_testkit::watchdog::Watchdog;
use call::{Call, Caller};
use rustix::fs::Mode;
use std::path::Path;
use std::time::Duration;
use watch::{Seen, changes};

/// Longer than a tick of the clock that file times are taken from.
const TICK: Duration = Duration::from_millis(6);

struct Pair {
    ours: Served,
    kernels: KernelMount,
    image: std::path::PathBuf,
    _scratch: Scratch,
}

impl Pair {
    fn new(name: &str) -> Pair {
        let scratch = Scratch::new(name);
        let (image, other) = (scratch.sparse_file("image", 1 << 30), scratch.sparse_file("other", 1 << 30));
        serve::mkfs(&image, &[]);
        kernel::mkfs(&other, &[]);
        let ours = Served::mount(&image, &scratch.folder("mnt"), "allow_other,default_permissions");
        let kernels = KernelMount::new(&other, "");
        for root in [ours.path(), kernels.path()] {
            rustix::fs::chmod(root, Mode::from_raw_mode(0o777)).expect("our own mount");
        }
        Pair { ours, kernels, image, _scratch: scratch }
    }

    fn roots(&self) -> [&Path; 2] {
        [self.ours.path(), self.kernels.path()]
    }

    fn compare_trees(&self, when: &str) {
        let [ours, kernels] = self.roots().map(Fingerprint::of_tree);
        let found = differences(&kernels, &ours, Compare { mtime: false, ..Compare::MODEL });
        assert!(found.is_empty(), "{when}: {} differences, first {:#?}", found.len(), &found[..found.len().min(20)]);
    }

    fn finish(self) {
        self.ours.unmount();
        check_all(&self.image);
        assert_eq!(self.kernels.finish(), [""; 0]);
    }
}

fn random_calls(pair: &Pair, seed: u64, calls: usize) {
    let mut rng = Rng::new(seed);
    for number in 0..calls {
        rustix::process::umask(Mode::from_raw_mode(*rng.pick(&[0, 0o022, 0o077])));
        let (call, caller) = (Call::random(&mut rng), *rng.pick(&Caller::ALL));
        let [ours, kernels] = pair.roots().map(|root| (call.run(root, caller), call.stat_paths(root)));
        assert_eq!(ours, kernels, "seed {seed}, call {number} by {caller:?}: {call:?}");
    }
    pair.compare_trees(&format!("seed {seed}, after {calls} calls"));
}

fn calls_and_times(pair: &Pair, seed: u64, calls: usize) {
    let mut rng = Rng::new(seed);
    for number in 0..calls {
        std::thread::sleep(TICK);
        rustix::process::umask(Mode::from_raw_mode(0o022));
        let (call, caller) = (Call::random(&mut rng), *rng.pick(&Caller::ALL));
        let [ours, kernels] = pair.roots().map(|root| {
            let before = Seen::of(root, &call);
            let answer = call.run(root, caller);
            (answer, changes(&before, &Seen::of(root, &call)))
        });
        if call.is_answered_by_fuse_alone(&kernels.0) {
            continue;
        }
        assert_eq!(ours, kernels, "seed {seed}, call {number} by {caller:?}: {call:?}");
    }
    pair.compare_trees(&format!("seed {seed}, after {calls} calls with times"));
}

#[test]
fn our_answers_are_the_kernels() {
    const TEST: &str = "our_answers_are_the_kernels";
    if !requirement::kernel_btrfs(TEST) || !requirement::fuse(TEST) {
        return;
    }
    let _watchdog = Watchdog::new(TEST, 300);
    let pair = Pair::new(TEST);
    (1..=4).for_each(|seed| random_calls(&pair, seed, 10_000));
    calls_and_times(&pair, 5, 2_000);
    pair.finish();
}
