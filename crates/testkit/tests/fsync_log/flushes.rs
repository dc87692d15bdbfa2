//! The device requests of an `fsync`.

use butterfs_device::{BlockDevice, Event, MemoryDevice, Recorder};
use butterfs_fs::{Env, Filesystem, InodeId, Options};
use butterfs_testkit::engine::FORMATS;
use butterfs_testkit::library::ROOT;
use butterfs_testkit::watchdog::Watchdog;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A device on which a flush takes long enough for others to come. It counts what it is asked to begin with before.
#[derive(Debug)]
struct SlowToFlush(Arc<MemoryDevice>, Arc<AtomicU64>);

impl BlockDevice for SlowToFlush {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.0.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.0.write_at(offset, data)
    }
    fn flush(&self) -> std::io::Result<()> {
        std::thread::sleep(std::time::Duration::from_millis(3));
        self.0.flush()
    }
    fn begin_write_out(&self, _offset: u64, len: u64) {
        self.1.fetch_add(len, Ordering::Relaxed);
    }
    fn discard(&self, offset: u64, len: u64) -> std::io::Result<()> {
        self.0.discard(offset, len)
    }
    fn name(&self) -> String {
        "memory that is slow to flush".to_owned()
    }
}

struct Recorded {
    /// The device before anything was recorded.
    base: MemoryDevice,
    recorder: Recorder,
    filesystem: Filesystem,
    file: InodeId,
}

impl Recorded {
    fn new(options: Options) -> Recorded {
        let memory = Arc::new(MemoryDevice::new(256 << 20));
        let device: Arc<dyn BlockDevice> = memory.clone();
        FORMATS[0].make(&device);
        let base = memory.snapshot();
        let recorder = Recorder::new();
        let recording: Arc<dyn BlockDevice> = Arc::new(recorder.record(Arc::new(SlowToFlush(memory, Arc::default()))));
        let options = Options { commit_interval_secs: 3600, ..options };
        let filesystem = Filesystem::open(vec![recording], options, Env::system()).expect("just made");
        let file = filesystem.create(&ROOT, filesystem.root(), b"file", 0o644).expect("a new name").id;
        let recorded = Recorded { base, recorder, filesystem, file };
        recorded.append(0);
        recorded.filesystem.sync().expect("a good device");
        recorded
    }

    fn append(&self, number: u64) {
        self.filesystem.write(self.file, number * 4096, &[number as u8; 4096], false).expect("room");
    }

    /// The content that is surely on the device after so many events: everything that a flush covers.
    fn durable(&self, events: usize) -> Arc<MemoryDevice> {
        let covers = |event: &Event| if let Event::Flush { covers, .. } = event { *covers } else { 0 };
        let covered = self.recorder.events(0..events).iter().map(covers).max().unwrap_or(0);
        let disk = self.base.snapshot();
        for event in self.recorder.events(0..covered) {
            if let Event::Write { offset, data, .. } = event {
                disk.write_at(offset, &data).expect("it has the length of the recorded one");
            }
        }
        Arc::new(disk)
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

/// Small writes into a long extent that was committed, as databases make them.
#[test]
fn a_log_has_what_changed_since_the_one_before() {
    let recorded = Recorded::new(Options::default());
    let sectors = 4096;
    recorded.filesystem.write(recorded.file, 0, &vec![1; sectors * 4096], false).expect("room");
    recorded.filesystem.sync().expect("a good device");
    let mut before = recorded.filesystem.log_stats();
    for number in 1..200 {
        recorded.append(number * 1237 % sectors as u64);
        recorded.fsync();
        let after = recorded.filesystem.log_stats();
        let (syncs, bytes) = (after.syncs - before.syncs, after.item_bytes - before.item_bytes);
        // The inode, what is left of the extent on both sides, the new one and its checksum.
        assert!(syncs == 1 && bytes <= 1000, "write {number}: {bytes} bytes of items in {syncs} logs");
        before = after;
    }
}

/// Where a log lay that a commit has made superfluous, the next one lies: a sparse file that holds the device need not
/// grow, which would make its flush slower.
#[test]
fn a_log_lies_where_an_earlier_one_lay() {
    let recorded = Recorded::new(Options::default());
    let written_by_fsync = |number: u8| {
        recorded.filesystem.set_xattr(&ROOT, recorded.file, b"user.number", &[number], 0).expect("room");
        let before = recorded.recorder.len();
        recorded.filesystem.fsync(recorded.file, false).expect("a good device");
        let events = recorded.recorder.events(before..recorded.recorder.len());
        recorded.filesystem.sync().expect("a good device");
        let writes = events.iter().filter_map(|event| match event {
            Event::Write { offset, data, .. } => Some((*offset, data.len())),
            _ => None,
        });
        writes.collect::<Vec<_>>()
    };
    let first = written_by_fsync(0);
    assert_eq!(first.len(), 3, "two copies of a log and a superblock: {first:?}");
    for number in 1..10 {
        assert_eq!(written_by_fsync(number), first, "log {number}");
    }
}

#[test]
fn syncing_durable_data_costs_nothing() {
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

/// A commit that one `fsync` asks for covers what others wrote before only where `flushoncommit` says so.
#[test]
fn a_commit_covers_all_data_where_that_is_asked_for() {
    for flush_on_commit in [false, true] {
        let recorded = Recorded::new(Options { no_tree_log: true, flush_on_commit, ..Options::default() });
        let filesystem = &recorded.filesystem;
        let other = filesystem.create(&ROOT, filesystem.root(), b"other", 0o644).expect("a new name").id;
        filesystem.write(other, 0, &[9; 8192], false).expect("room");
        recorded.append(1);
        recorded.fsync();
        let disk = recorded.durable(recorded.recorder.len());
        let after = Filesystem::open(vec![disk], Options::default(), Env::system()).expect("it can be opened");
        let found = after.lookup(after.root(), b"other").expect("its name was committed");
        let mut content = Vec::new();
        after.read(found.id, 0, 1 << 20, &mut content).expect("a good device");
        assert_eq!(content == [9; 8192], flush_on_commit, "{} bytes", content.len());
    }
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

/// New files of a directory fill the log's blocks, whichever way each of them came into it.
#[test]
fn a_log_of_many_names_is_packed() {
    let recorded = Recorded::new(Options::default());
    let filesystem = &recorded.filesystem;
    let folder = filesystem.mkdir(&ROOT, filesystem.root(), b"folder", 0o755).expect("a new name").id;
    for number in 0..5000 {
        filesystem.create(&ROOT, folder, format!("file {number}").as_bytes(), 0o644).expect("a new name");
    }
    filesystem.fsync(folder, false).expect("a good device");
    let stats = filesystem.log_stats();
    assert_eq!(stats.syncs, 1, "{stats:?}");
    let full = stats.item_bytes / (16384 - 101);
    assert!(stats.blocks <= full + full / 50 + 6, "{} blocks, {full} are enough", stats.blocks);
}

/// While a large log is prepared and written, the device is busy with what was written of it before.
#[test]
fn a_large_log_is_on_its_way_before_its_flush() {
    let (memory, begun) = (Arc::new(MemoryDevice::new(1 << 30)), Arc::new(AtomicU64::new(0)));
    let device: Arc<dyn BlockDevice> = Arc::new(SlowToFlush(memory, Arc::clone(&begun)));
    FORMATS[0].make(&device);
    let options = Options { commit_interval_secs: 3600, ..Options::default() };
    let filesystem = Filesystem::open(vec![device], options, Env::system()).expect("just made");
    let begun_by_fsync = |names: u64| {
        let name = names.to_string();
        let folder = filesystem.mkdir(&ROOT, filesystem.root(), name.as_bytes(), 0o755).expect("a new name").id;
        for number in 0..names {
            filesystem.create(&ROOT, folder, format!("file {number}").as_bytes(), 0o644).expect("a new name");
        }
        begun.store(0, Ordering::Relaxed);
        let before = filesystem.log_stats();
        filesystem.fsync(folder, false).expect("a good device");
        let now = filesystem.log_stats();
        assert_eq!(now.syncs, before.syncs + 1, "{now:?}");
        (begun.load(Ordering::Relaxed), 2 * 16384 * (now.blocks - before.blocks))
    };
    let (early, all) = begun_by_fsync(12_000);
    assert!(early < all && early > all / 2, "{early} bytes of {all} in both copies");
    assert_eq!(begun_by_fsync(100).0, 0, "of a log whose flush comes at once");
}

/// Those who fsync at one time share writes and flushes; each finds what it wrote on the device when it returns.
#[test]
fn concurrent_fsyncs_are_durable_when_they_return() {
    const WRITERS: u64 = 6;
    const APPENDS: u64 = 8;
    let _watchdog = Watchdog::new("concurrent_fsyncs_are_durable_when_they_return", 300);
    let recorded = Recorded::new(super::options());
    let filesystem = &recorded.filesystem;
    let make =
        |number: u64| filesystem.create(&ROOT, filesystem.root(), &[b'a' + number as u8], 0o644).expect("room").id;
    let files: Vec<InodeId> = (0..WRITERS).map(make).collect();
    filesystem.sync().expect("a good device");
    let returned = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for (writer, file) in files.iter().enumerate() {
            let (returned, recorder) = (&returned, &recorded.recorder);
            scope.spawn(move || {
                for number in 1..=APPENDS {
                    let content = [number as u8; 4096];
                    filesystem.write(*file, (number - 1) * 4096, &content, false).expect("room");
                    filesystem.fsync(*file, false).expect("a good device");
                    returned.lock().expect("nobody panics").push((recorder.len(), writer, number));
                }
            });
        }
    });
    for (events, writer, number) in returned.into_inner().expect("nobody panics") {
        let disk = recorded.durable(events);
        let after = Filesystem::open(vec![disk], Options::default(), Env::system()).expect("it can be opened");
        let mut content = Vec::new();
        after.read(files[writer], 0, 1 << 20, &mut content).expect("a good device");
        let wanted = (1..=number).flat_map(|number| [number as u8; 4096]);
        assert!(content.len() as u64 >= number * 4096, "writer {writer}, append {number}: {} bytes", content.len());
        assert!(wanted.eq(content.iter().copied().take(number as usize * 4096)), "writer {writer}, append {number}");
    }
    let stats = filesystem.log_stats();
    let flush = |event: &&Event| matches!(event, Event::Flush { .. });
    let flushes = recorded.recorder.events(0..recorded.recorder.len()).iter().filter(flush).count();
    println!("{flushes} flushes, {stats:?}");
    assert!(stats.commits.is_empty() && stats.syncs > 0, "{stats:?}");
}

#[test]
fn the_device_begins_with_large_data_before_the_flush() {
    let (memory, begun) = (Arc::new(MemoryDevice::new(1 << 30)), Arc::new(AtomicU64::new(0)));
    let device: Arc<dyn BlockDevice> = Arc::new(SlowToFlush(memory, Arc::clone(&begun)));
    FORMATS[0].make(&device);
    let options = Options { commit_interval_secs: 3600, ..Options::default() };
    let filesystem = Filesystem::open(vec![device], options, Env::system()).expect("just made");
    for (name, len) in [("small", 32 << 10), ("large", 2 << 20)] {
        let file = filesystem.create(&ROOT, filesystem.root(), name.as_bytes(), 0o644).expect("a new name").id;
        filesystem.write(file, 0, &vec![7; len], false).expect("room");
        begun.store(0, Ordering::Relaxed);
        filesystem.fsync(file, false).expect("a good device");
        let expected = if name == "small" { 0 } else { len as u64 };
        assert_eq!(begun.load(Ordering::Relaxed), expected, "{name}");
    }
}
