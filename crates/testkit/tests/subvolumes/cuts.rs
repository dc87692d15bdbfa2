//! Power cuts at every flush of short workloads with snapshots and deletions, and at random moments between.
//!
//! Commits come only with the last act of a step, so that a cut shows the state before or after the step it falls into,
//! and nothing else.

use butterfs_device::{BlockDevice, Event, Kept, MemoryDevice, Recorder};
use butterfs_fs::{Caller, Env, Filesystem, InodeId, Options, TreeId};
use butterfs_testkit::engine::{FORMATS, Format};
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::kernel::check_all;
use butterfs_testkit::requirement;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::watchdog::Watchdog;
use std::sync::Arc;

const IMAGE_BYTES: u64 = 256 << 20;
const STEPS: usize = 24;
const TOP: InodeId = InodeId::root_of(TreeId::FS);
const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0o022, privileged: true };

struct RecordedStep {
    after: Fingerprint,
    began: usize,
    ended: usize,
}

struct Recorded {
    base: MemoryDevice,
    recorder: Recorder,
    steps: Vec<RecordedStep>,
}

fn shown(filesystem: &Filesystem, what: &str) -> Fingerprint {
    Fingerprint::of_library(filesystem).unwrap_or_else(|error| panic!("{what}: {error}"))
}

fn write_some(filesystem: &Filesystem, rng: &mut Rng, subvolume: TreeId) {
    let root = InodeId::root_of(subvolume);
    for _ in 0..1 + rng.below(40) {
        let name = format!("f{}", rng.below(60)).into_bytes();
        if rng.below(5) == 0 {
            let _ = filesystem.unlink(root, &name);
            continue;
        }
        let made = filesystem.create(&CALLER, root, &name, 0o644).or_else(|_| filesystem.lookup(root, &name));
        let id = made.expect("made or there").id;
        let content = vec![rng.below(256) as u8; rng.below(9000) as usize];
        filesystem.write(id, rng.below(3) * 1000, &content, false).expect("room");
        filesystem.forget(id, 1);
    }
}

fn record(seed: u64, format: &Format) -> Recorded {
    let made = Arc::new(MemoryDevice::new(IMAGE_BYTES));
    format.make(&(made.clone() as Arc<dyn BlockDevice>));
    let base = made.snapshot();
    let recorder = Recorder::new();
    let options = Options { commit_interval_secs: 3600, ..Options::default() };
    let device: Arc<dyn BlockDevice> = Arc::new(recorder.record(made));
    let filesystem = Filesystem::open(vec![device], options, Env::system()).unwrap_or_else(|error| panic!("{error}"));
    // What opening itself writes is over when the work begins.
    filesystem.repair_uuid_tree().unwrap_or_else(|error| panic!("{error}"));
    filesystem.sync().unwrap_or_else(|error| panic!("{error}"));
    let mut steps = vec![RecordedStep { after: shown(&filesystem, "new"), began: 0, ended: recorder.len() }];
    let mut rng = Rng::new(seed);
    let mut living: Vec<(TreeId, String, bool)> = Vec::new();
    for number in 0..STEPS {
        let began = recorder.len();
        let name = format!("s{number}");
        if let Some(&(id, ..)) = living.iter().filter(|one| !one.2).max_by_key(|_| rng.below(100)) {
            write_some(&filesystem, &mut rng, id);
        }
        match rng.below(4) {
            _ if living.is_empty() => {
                let id = filesystem.create_subvolume(&CALLER, TOP, name.as_bytes()).expect("room");
                write_some(&filesystem, &mut rng, id);
                filesystem.sync().expect("a good device");
                living.push((id, name, false));
            }
            0 if living.len() > 1 => {
                let (_, name, _) = living.swap_remove(rng.index(living.len()));
                filesystem.delete_subvolume(TOP, name.as_bytes()).expect("it is there");
                filesystem.sync().expect("a good device");
            }
            _ => {
                let source = living[rng.index(living.len())].0;
                let read_only = rng.below(2) == 0;
                let id = filesystem.snapshot(source, TOP, name.as_bytes(), read_only).expect("room");
                living.push((id, name, read_only));
            }
        }
        steps.push(RecordedStep { after: shown(&filesystem, "at work"), began, ended: recorder.len() });
    }
    drop(filesystem);
    Recorded { base, recorder, steps }
}

impl Recorded {
    fn disk(&self, prefix: usize, keep: &mut dyn FnMut(usize, &Event) -> Kept) -> MemoryDevice {
        let disk = self.base.snapshot();
        self.recorder.crash(prefix, &[&disk], keep).expect("memory does not fail");
        disk
    }

    fn judge(&self, what: &str, prefix: usize, disk: &MemoryDevice) {
        let filesystem = Filesystem::open(vec![Arc::new(disk.snapshot())], Options::default(), Env::system());
        let filesystem = filesystem.unwrap_or_else(|error| panic!("{what}: {error}"));
        let found = shown(&filesystem, what);
        let last = self.steps.iter().rposition(|step| step.ended <= prefix).unwrap_or(0);
        let may = self.steps[last..].iter().take_while(|step| step.began <= prefix);
        let compare = Compare { atime: false, ..Compare::MODEL };
        let wrong: Vec<Vec<String>> = may.map(|step| differences(&step.after, &found, compare)).collect();
        if !wrong.iter().any(Vec::is_empty) {
            // Before the first commit there is only what mkfs made.
            assert!(last == 0 && found.entries.len() == 1, "{what}: after step {last}: {wrong:#?}");
        }
        assert_eq!(filesystem.repair_uuid_tree().unwrap_or_else(|error| panic!("{what}: {error}")), 0, "{what}");
    }
}

fn judge_by_progs(disk: &MemoryDevice) {
    let scratch = Scratch::new("subvolume-cut");
    check_all(&scratch.image("image", disk));
}

fn cut_everywhere(seed: u64, format: &Format) {
    let recorded = record(seed, format);
    let flushes = recorded.recorder.flush_points();
    println!("seed {seed}, {format:?}: {} events, {} flushes", recorded.recorder.len(), flushes.len());
    assert!(flushes.len() > 10, "only {} flushes", flushes.len());
    for (number, prefix) in flushes.iter().copied().enumerate() {
        let disk = recorded.disk(prefix, &mut |_, _| Kept::Whole);
        recorded.judge(&format!("seed {seed}, cut at flush {number}"), prefix, &disk);
        if number % 4 == 0 {
            judge_by_progs(&disk);
        }
    }
    let mut rng = Rng::new(seed);
    for number in 0..150 {
        let prefix = rng.index(recorded.recorder.len());
        let disk = recorded.disk(prefix, &mut |_, _| if rng.below(2) == 0 { Kept::Whole } else { Kept::Nothing });
        recorded.judge(&format!("seed {seed}, cut {number} in flight at event {prefix}"), prefix, &disk);
    }
}

macro_rules! cuts {
    ($($name:ident: $seed:literal, $format:literal;)*) => { $(
        #[test]
        fn $name() {
            if !requirement::kernel_btrfs(stringify!($name)) {
                return;
            }
            let _watchdog = Watchdog::new(stringify!($name), 400);
            cut_everywhere($seed, &FORMATS[$format]);
        }
    )* };
}

cuts! {
    cuts_default: 411, 0;
    cuts_small_nodes: 412, 1;
    cuts_small_nodes_again: 413, 5;
}
