//! A receive is durable when it returns success, and a power cut before that leaves what is complete, or what is
//! marked.

use crate::world::{Received, Stream, TOP, receive_into};
use butterfs_device::{BlockDevice, Event, Kept, MemoryDevice, Recorder};
use butterfs_fs::mkfs::{MkfsOptions, mkfs};
use butterfs_fs::{Env, Filesystem, Options, Subvolume, TreeId};
use butterfs_send::apply::{self, Engine};
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::judge::{judge_memory, text};
use butterfs_testkit::rng::Rng;
use butterfs_testkit::watchdog::Watchdog;
use std::io::Read;
use std::sync::Arc;

fn open(device: Arc<dyn BlockDevice>) -> Filesystem {
    // The timer would make the log of writes another one each time.
    let options = Options { subvolume: Subvolume::Id(TreeId::FS), commit_interval_secs: 3600, ..Options::default() };
    Filesystem::open(vec![device], options, Env::system()).unwrap()
}

fn receive(fs: &Filesystem, stream: &[u8]) -> Received {
    receive_into(stream, &mut Engine::new(fs.clone(), TOP))
}

/// A stream during which commits happen, as the timer makes them.
struct Slow<'a> {
    fs: &'a Filesystem,
    rest: &'a [u8],
}

impl Read for Slow<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.fs.sync().map_err(std::io::Error::other)?;
        let len = buffer.len().min(30_000);
        self.rest.read(&mut buffer[..len])
    }
}

struct Fail;

impl apply::Observer for Fail {
    fn error(&mut self, error: &apply::Error) {
        panic!("{error}");
    }
}

fn print(fs: &Filesystem, name: &str) -> Option<Fingerprint> {
    let id = fs.lookup(TOP, name.as_bytes()).ok()?.id;
    let print = Fingerprint::of_library_below(fs, id).unwrap();
    fs.forget(id, 1);
    Some(print)
}

/// `again`: made anew, with times of its own where the stream says none.
fn assert_same(what: &str, again: bool, expected: &Fingerprint, actual: &Fingerprint) {
    let compare = Compare { ctime: false, btime: false, atime: !again, mtime: !again, ..Compare::ALL };
    let found = differences(expected, actual, compare);
    assert!(found.is_empty(), "{what}: {found:#?}");
}

/// Files small and large, shared content, and more than one section.
fn streams() -> [Vec<u8>; 2] {
    let mut first = Stream::subvol("a", 1).dir("d").file("large").write("large", 0, &[9; 200_000]);
    for number in 0..40 {
        let path = format!("d/{number}");
        first = first.file(&path).write(&path, 0, &[number; 900]).chmod(&path, 0o640).utimes(&path, 5);
    }
    let second = Stream::snapshot("b", 2, 1)
        .file("shared")
        .clone_from(1, "large", 0, 131_072, "shared", 0)
        .rename("d", "e")
        .unlink("e/3")
        .write("e/4", 100, &[1; 70_000])
        .utimes("", 9);
    [first.end(), second.end()]
}

#[test]
fn received_subvolumes_survive_a_power_cut() {
    let watchdog = Watchdog::new("received_subvolumes_survive_a_power_cut", 200);
    let device = Arc::new(MemoryDevice::new(256 << 20));
    let formatted: Vec<Arc<dyn BlockDevice>> = vec![device.clone()];
    mkfs(&formatted, &MkfsOptions::default(), &Env::system()).unwrap();
    let before = device.snapshot();
    let recorder = Recorder::new();
    let fs = open(Arc::new(recorder.record(device)));
    let [first, second] = streams();
    let mut ends = Vec::new();
    for stream in [&first, &second] {
        let slow = Slow { fs: &fs, rest: stream };
        apply::receive(slow, &mut Engine::new(fs.clone(), TOP), &apply::Options::default(), &mut Fail);
        ends.push(recorder.len());
    }
    let prints = ["a", "b"].map(|name| print(&fs, name).unwrap());
    assert!(ends[0] > 10 && ends[1] > ends[0], "{ends:?}");
    let mut rng = Rng::new(6);
    let mut partial = 0;
    for prefix in 0..=ends[1] {
        for lost in [100, 50] {
            watchdog.note(&format!("after {prefix} of {} events, {lost} % of the pending lost", ends[1]));
            let left = Arc::new(before.snapshot());
            let mut keep = |_: usize, _: &Event| if rng.chance(lost) { Kept::Nothing } else { Kept::Whole };
            recorder.crash(prefix, &[&*left], &mut keep).unwrap();
            let report = judge_memory(&left);
            assert_eq!(report.errors, 0, "after {prefix} events: {}", text(&report));
            let after = open(left.clone());
            let found = ["a", "b"].map(|name| print(&after, name));
            for (number, print) in found.iter().enumerate() {
                // Acknowledged and there, or not there; never under its name and not whole.
                assert!(print.is_some() || prefix < ends[number], "{number} is lost after {prefix} events");
                if let Some(print) = print {
                    assert_same(&format!("{number} after {prefix} events"), false, &prints[number], print);
                }
            }
            // The next receive deletes what is left of the one that was cut, and then all is as it should be.
            let (stream, name) = if found[0].is_none() { (&first, "a") } else { (&second, "b") };
            if found[1].is_none() {
                let left_over = after.lookup(TOP, format!("{name}.partial").as_bytes()).is_ok();
                partial += usize::from(left_over);
                assert_eq!(receive(&after, stream).errors, [""; 0]);
                assert!(after.lookup(TOP, format!("{name}.partial").as_bytes()).is_err());
                let number = usize::from(name == "b");
                assert_same("again", true, &prints[number], &print(&after, name).unwrap());
            }
            let names = after.subvolumes().unwrap().len();
            assert!(names <= 3, "{names} subvolumes after {prefix} events");
            after.shutdown().unwrap();
        }
    }
    assert!(partial > 10, "{partial} partial subvolumes prove nothing");
    println!("{} moments, {partial} with a partial subvolume", 2 * (ends[1] + 1));
}
