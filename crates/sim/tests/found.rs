//! What the simulator found, each as the shortest sequence that showed it.

use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::{Caller, Filesystem};
use butterfs_sim::meanwhile::environment;
use butterfs_sim::plan::Plan;
use butterfs_sim::state::clean;
use std::sync::Arc;

const ROOT: Caller = Caller { uid: 0, gid: 0, umask: 0, privileged: true };

fn made() -> Arc<MemoryDevice> {
    Arc::new(Plan::of(1).make(&environment(1)))
}

fn open(disk: &Arc<MemoryDevice>) -> Filesystem {
    let device: Arc<dyn BlockDevice> = disk.clone();
    Filesystem::open(vec![device], Plan::of(1).options(), environment(2)).expect("a good disk")
}

/// The first thing that a mount does is to delete the inode with the highest number; the next one is a new inode, and
/// what was still to be written about the old one must not become the new one's.
#[test]
fn numbers_of_deleted_inodes_are_not_used_again() {
    let disk = made();
    let filesystem = open(&disk);
    let made = filesystem.create(&ROOT, filesystem.root(), b"last", 0o644).expect("room");
    filesystem.shutdown().expect("a good disk");
    let filesystem = open(&disk);
    filesystem.unlink(filesystem.root(), b"last").expect("it is there");
    let next = filesystem.mkdir(&ROOT, filesystem.root(), b"next", 0o755).expect("room");
    assert!(next.id.ino > made.id.ino, "{:?} after {:?}", next.id, made.id);
    filesystem.sync().expect("a good disk");
    clean(&disk).unwrap_or_else(|what| panic!("{what}"));
}

/// The judge took an inode without a name for lost when it was the last one before its orphan item.
#[test]
fn the_last_inode_may_be_an_orphan() {
    let disk = made();
    let filesystem = open(&disk);
    let file = filesystem.tmpfile(&ROOT, filesystem.root(), 0o600).expect("room");
    filesystem.sync().expect("a good disk");
    clean(&disk).unwrap_or_else(|what| panic!("{what}"));
    filesystem.forget(file.id, 1);
}
