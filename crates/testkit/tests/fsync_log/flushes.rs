//! What an `fsync` costs the device.

use butterfs_device::{BlockDevice, Event, MemoryDevice, Recorder};
use butterfs_fs::{Env, Filesystem, InodeId, Options};
use butterfs_testkit::engine::FORMATS;
use butterfs_testkit::library::ROOT;
use std::sync::Arc;

struct Recorded {
    recorder: Recorder,
    filesystem: Filesystem,
    file: InodeId,
}

impl Recorded {
    fn new(options: Options) -> Recorded {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(256 << 20));
        FORMATS[0].make(&device);
        let recorder = Recorder::new();
        let recording: Arc<dyn BlockDevice> = Arc::new(recorder.record(device));
        let options = Options { commit_interval_secs: 3600, ..options };
        let filesystem = Filesystem::open(vec![recording], options, Env::system()).expect("just made");
        let file = filesystem.create(&ROOT, filesystem.root(), b"file", 0o644).expect("a new name").id;
        let recorded = Recorded { recorder, filesystem, file };
        recorded.append(0);
        recorded.filesystem.sync().expect("a good device");
        recorded
    }

    fn append(&self, number: u64) {
        self.filesystem.write(self.file, number * 4096, &[number as u8; 4096], false).expect("room");
    }

    /// Flushes, writes and bytes written by an `fsync`.
    fn fsync(&self) -> (usize, usize, usize) {
        let before = self.recorder.len();
        self.filesystem.fsync(self.file, false).expect("a good device");
        let events = self.recorder.events(before..self.recorder.len());
        let flushes = events.iter().filter(|event| matches!(event, Event::Flush { .. })).count();
        let writes = events.iter().filter_map(|event| match event {
            Event::Write { data, .. } => Some(data.len()),
            _ => None,
        });
        (flushes, writes.clone().count(), writes.sum())
    }
}

#[test]
fn an_append_is_two_flushes_and_few_blocks() {
    let recorded = Recorded::new(Options::default());
    for number in 1..40 {
        recorded.append(number);
        let (flushes, writes, bytes) = recorded.fsync();
        assert_eq!(flushes, 2, "append {number}");
        // Data, the log's leaf and its root in one run and in both copies, the superblock.
        assert!(writes <= 4 && bytes <= 4096 + 2 * 2 * 16384 + 4096, "append {number}: {writes} writes, {bytes} bytes");
    }
    assert_eq!(recorded.filesystem.log_stats().syncs, 39);
}

#[test]
fn what_is_durable_costs_nothing() {
    let recorded = Recorded::new(Options::default());
    assert_eq!(recorded.fsync(), (0, 0, 0), "after a commit");
    recorded.append(1);
    recorded.fsync();
    assert_eq!(recorded.fsync(), (0, 0, 0), "after a log");
}

#[test]
fn without_a_log_it_is_a_commit() {
    let recorded = Recorded::new(Options { no_tree_log: true, ..Options::default() });
    recorded.append(1);
    let generation = recorded.filesystem.superblock().generation();
    assert_eq!(recorded.fsync().0, 2);
    assert_eq!(recorded.filesystem.superblock().generation(), generation.next());
    assert_eq!(recorded.filesystem.log_stats().syncs, 0);
}

#[test]
fn attributes_are_logged_again_only_where_a_policy_asks_for_it() {
    let logged = |all: bool| {
        let mut options = Options::default();
        options.policies.log_all_xattrs = all;
        let recorded = Recorded::new(options);
        recorded.filesystem.set_xattr(&ROOT, recorded.file, b"user.a", &[7; 1000], 0).expect("room");
        recorded.fsync();
        let before = recorded.filesystem.log_stats().item_bytes;
        recorded.append(1);
        recorded.fsync();
        recorded.filesystem.log_stats().item_bytes - before
    };
    let (now, before) = (logged(false), logged(true));
    assert!(now + 1000 <= before, "{now} bytes are logged, with all attributes {before}");
}

#[test]
fn directories_without_hashed_entries_are_much_smaller() {
    let logged = |both: bool| {
        let mut options = Options::default();
        options.policies.log_dir_items = both;
        let recorded = Recorded::new(options);
        let filesystem = &recorded.filesystem;
        let folder = filesystem.mkdir(&ROOT, filesystem.root(), b"folder", 0o755).expect("a new name").id;
        let names: Vec<Vec<u8>> = (0..500).map(|number| format!("a file with a name {number}").into_bytes()).collect();
        let inode = filesystem.create(&ROOT, folder, &names[0], 0o644).expect("a new name").id;
        filesystem.sync().expect("a good device");
        for name in &names[1..] {
            filesystem.link(inode, folder, name).expect("a new name");
        }
        filesystem.fsync(folder, false).expect("a good device");
        assert_eq!(filesystem.log_stats().syncs, 1, "{:?}", filesystem.log_stats());
        filesystem.log_stats().item_bytes
    };
    let (now, before) = (logged(false), logged(true));
    assert!(now * 10 <= before * 8, "{now} bytes are logged, with both kinds of entries {before}");
}
