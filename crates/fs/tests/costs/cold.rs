//! The locks that an operation holds while it waits for a device: nothing that others wait for.
//!
//! Every operation runs with no clean tree block in memory, on a device that notes what a thread holds that reads,
//! writes or flushes.

use crate::all_operations;
use crate::meter::Meter;
use crate::scene::{Kind, Scene};
use butterfs_device::BlockDevice;
use butterfs_sync::order;
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Ranks that only those wait for who work with the same file, or who want the same done: a commit, cleaning.
/// `REQUESTS` is waited for once for each chunk or device that gets another place, until the requests that are under
/// way have ended.
const OWN: &[&str] =
    &["OPERATIONS", "UPKEEP", "CLAIMS", "SNAPSHOTS", "WHOLE", "MAPPING", "COMMIT", "REQUESTS", "REPAIR_GATE"];

/// A device that notes what is held by whoever waits for it.
struct Watched {
    inner: Arc<dyn BlockDevice>,
    reads: AtomicU64,
    held: Mutex<BTreeSet<String>>,
}

impl Watched {
    fn take(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.held.lock().unwrap())
    }

    fn note(&self, request: &str) {
        let held = order::held();
        let others: Vec<&str> = held.into_iter().filter(|rank| !OWN.contains(rank)).collect();
        if !others.is_empty() {
            if std::env::var_os("BUTTERFS_COLD_TRACE").is_some() {
                eprintln!("{request} {others:?} {}", std::backtrace::Backtrace::force_capture());
            }
            self.held.lock().unwrap().insert(format!("{request} {}", others.join(" ")));
        }
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl BlockDevice for Watched {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.note("reads with");
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.note("writes with");
        self.inner.write_at(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.note("flushes with");
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)
    }

    fn name(&self) -> String {
        self.inner.name()
    }
}

/// Operations that held something, with what it was.
fn held_while_waiting(kind: Kind) -> Vec<String> {
    let (size, mut watched) = (4 * kind.least(), None);
    let scene = Scene::new(kind, size, None).over(|inner| {
        let device = Arc::new(Watched { inner, reads: AtomicU64::new(0), held: Mutex::default() });
        watched = Some(device.clone());
        device
    });
    let watched = watched.expect("just made");
    let mut found = Vec::new();
    let only = std::env::var("BUTTERFS_COLD_ONLY").ok();
    for operation in all_operations().iter().filter(|one| only.as_ref().is_none_or(|only| only == one.function)) {
        scene.prepare();
        scene.world.fs.sync().expect("sync");
        watched.take();
        (operation.run)(&scene, &mut Meter::cold());
        let in_call = watched.take();
        scene.world.fs.forget_clean_blocks();
        scene.world.fs.sync().expect("sync");
        let in_sync = watched.take();
        for (held, when) in [(in_call, ""), (in_sync, ", then sync")] {
            let name = format!("{} ({}){when} beside {size} {kind:?}", operation.function, operation.how);
            found.extend(held.into_iter().map(|held| format!("{name}: {held}")));
        }
    }
    assert!(watched.reads.load(Ordering::Relaxed) > 1000, "nothing was cold");
    found
}

#[test]
fn nothing_is_held_while_a_device_works() {
    let found: Vec<String> = Kind::ALL.into_iter().flat_map(held_while_waiting).collect();
    assert!(found.is_empty(), "{} times something was held:\n{}", found.len(), found.join("\n"));
}
