//! Balances that panic: nobody waits for a run that is gone, and the next mount goes on.

use super::scene::Worker;
use super::{all_content, everything};
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::env::{Source, Time};
use butterfs_fs::{BalanceEnd, BalanceState, Env, Errno, ExclusiveOperation, Filesystem, Options};
use butterfs_testkit::watchdog::Watchdog;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The system, but the engine panics when it has moved extents this often.
struct Stumbling {
    left: AtomicU64,
    ticks: AtomicU64,
}

impl Source for Stumbling {
    fn now(&self) -> Time {
        Time { sec: 1_700_000_000 + self.ticks.fetch_add(1, Ordering::Relaxed) as i64, nsec: 0 }
    }

    fn random(&self) -> [u8; 16] {
        (u128::from(self.ticks.fetch_add(1, Ordering::Relaxed)) | 1 << 100).to_le_bytes()
    }

    fn threads(&self) -> usize {
        2
    }

    fn passes(&self, point: &'static str) {
        if point == "extents have been moved" && self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            panic!("planted: {point}");
        }
    }
}

fn open(device: &Arc<MemoryDevice>, options: Options, env: Env) -> Filesystem {
    Filesystem::open(vec![Arc::clone(device) as Arc<dyn BlockDevice>], options, env).unwrap()
}

fn stumbling_after(moves: u64) -> Env {
    Env::new(Stumbling { left: AtomicU64::new(moves), ticks: AtomicU64::new(0) })
}

/// A filesystem with some content.
fn device() -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(512 << 20));
    let devices: Vec<Arc<dyn BlockDevice>> = vec![device.clone()];
    butterfs_fs::mkfs::mkfs(&devices, &Default::default(), &Env::system()).unwrap();
    let fs = open(&device, Options::default(), Env::system());
    Worker::new(&fs, 1).write_all(40).unwrap();
    fs.shutdown().unwrap();
    device
}

#[test]
fn a_panic_leaves_a_paused_balance() {
    let _watchdog = Watchdog::new("a_panic_leaves_a_paused_balance", 60);
    let device = device();
    let fs = open(&device, Options::default(), stumbling_after(2));
    let runner = fs.clone();
    assert!(std::thread::spawn(move || runner.balance_start(all_content())).join().is_err(), "the panic was planted");
    assert_eq!(fs.balance_status().unwrap().state, BalanceState::Paused);
    assert_eq!(fs.exclusive_operation().unwrap().0, ExclusiveOperation::BalancePaused);
    assert_eq!(fs.balance_pause().unwrap_err().errno(), Errno::ENOTCONN);
    assert!(fs.shutdown().is_err(), "a panic in the engine ends all writing");
    drop(fs);
    // The thread that resumes it panics too.
    let fs = open(&device, Options::default(), stumbling_after(1));
    while fs.balance_status().unwrap().state != BalanceState::Paused {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(fs.shutdown().is_err());
    drop(fs);
    let fs = open(&device, Options { skip_balance: true, ..Options::default() }, Env::system());
    assert!(matches!(fs.balance_resume().unwrap(), BalanceEnd::Completed { no_space: 0, .. }));
    fs.shutdown().unwrap();
    let report = butterfs_testkit::judge::judge_memory(&device);
    assert!(report.is_clean(), "{}", butterfs_testkit::judge::text(&report));
}

#[test]
fn a_run_that_is_dropped_is_paused() {
    let device = device();
    let fs = open(&device, Options::default(), Env::system());
    let mut run = fs.balance_begin(everything()).unwrap();
    assert_eq!(fs.balance_step(&mut run).unwrap(), None);
    assert_eq!(fs.balance_status().unwrap().state, BalanceState::Running);
    drop(run);
    assert_eq!(fs.balance_status().unwrap().state, BalanceState::Paused);
    fs.balance_cancel().unwrap();
    assert!(fs.balance_status().is_none() && fs.exclusive_operation().is_none());
    fs.shutdown().unwrap();
}
