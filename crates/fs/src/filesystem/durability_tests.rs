//! Events between the two halves of an `fsync`, logging and making the log durable.

use crate::inode::attr::Caller;
use crate::options::Options;
use crate::tree_log::{Synced, Ticket};
use crate::{Env, Filesystem, InodeId, mkfs};
use butterfs_device::{BlockDevice, MemoryDevice};
use std::sync::Arc;

const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0o022, privileged: true };

fn open(device: &Arc<MemoryDevice>) -> Filesystem {
    Filesystem::open(vec![device.clone()], Options::default(), Env::system()).unwrap()
}

/// Logs a new file.
fn logged(fs: &Filesystem, name: &str) -> Ticket {
    let id: InodeId = fs.create(&CALLER, fs.root(), name.as_bytes(), 0o644).unwrap().id;
    let ticket = fs.log(&fs.0.inodes.get(id).unwrap()).unwrap();
    assert!(matches!(ticket, Ticket::Logged(..)), "{ticket:?}");
    ticket
}

fn sync(fs: &Filesystem, ticket: Ticket) -> Synced {
    let Ticket::Logged(generation, point) = ticket else { unreachable!("it was logged") };
    fs.0.logs.sync(generation, point).unwrap()
}

/// A commit comes between what the first one logs and makes durable, and the second one logs in the next transaction:
/// when the first one goes on and finds that the commit has done it all, the second one's log is not durable.
#[test]
fn a_forgotten_log_says_nothing_about_the_next_one() {
    let device = Arc::new(MemoryDevice::new(256 << 20));
    let devices: Vec<Arc<dyn BlockDevice>> = vec![device.clone()];
    mkfs::mkfs(&devices, &mkfs::MkfsOptions::default(), &Env::system()).unwrap();
    let fs = open(&device);
    let first = logged(&fs, "first");
    fs.sync().unwrap();
    let second = logged(&fs, "second");
    assert_eq!(sync(&fs, first), Synced::Done);
    assert_eq!(sync(&fs, second), Synced::Done);
    let crashed = open(&Arc::new(device.snapshot()));
    for name in ["first", "second"] {
        crashed.lookup(crashed.root(), name.as_bytes()).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}
