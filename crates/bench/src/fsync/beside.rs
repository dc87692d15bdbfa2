//! The two scripts through a mount, ours and the kernel's.

use super::Sizes;
use crate::subject::{Side, Sides, Subject, Usage};
use crate::table::{Table, seconds};
use butterfs_testkit::kernel::run_ok;
use butterfs_testkit::{requirement, scratch};
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

const BACKING_BYTES: u64 = 12 << 30;
const ADDED_BAR: &str = "<= 0.30x";
const DELETED_BAR: &str = "<= 0.70x";
/// How many there are, and their bar. The document has eight.
const WRITERS: [(u64, &str); 3] = [(1, ">= 1.00x"), (8, ">= 1.50x"), (64, ">= 2.00x")];

/// Enters the rows.
pub fn run(sizes: &Sizes, table: &mut Table) {
    if !requirement::fuse("bench: fsync") {
        return;
    }
    let kernel = requirement::kernel_btrfs("bench: fsync beside the kernel");
    for &count in sizes.names {
        let measured = Sides::measure(kernel, |side| directory(side, count));
        let what = format!("fsync of a directory after adding {count} files");
        table.times(&what, measured.map(|measured| measured.0), ADDED_BAR);
        let what = format!("fsync of it after deleting {} of them", count / 100);
        table.times(&what, measured.map(|measured| measured.1), DELETED_BAR);
        measured.map(|measured| measured.2).enter(&format!("the whole script with {count} files"), table);
    }
    if requirement::programs("bench: writers", &["fio"]) {
        for (count, bar) in WRITERS {
            let bytes = sizes.file_bytes * 8 / count;
            let measured = Sides::measure(kernel, |side| writers(side, count, bytes));
            let what = format!("fio, {count} writers of 64 KiB at random in {} MiB, fsync after each", bytes >> 20);
            table.compared(&what, measured.map(|report| report.rate), |rate| format!("{rate:.1} MB/s"), false, bar);
            for (name, part) in [("99.9th percentile of fsync", 0), ("longest fsync", 1)] {
                let times = measured.map(|report| report.fsync[part]);
                table.compared(&format!("fio, {count} writers: {name}"), times, seconds, true, "");
            }
            measured.map(|report| report.usage).enter(&format!("fio, {count} writers"), table);
        }
    }
}

/// The documents' own mount option: a device that calls itself rotational is none. Both commit every 300 s, so that
/// each figure is the fsync's own and leaves out the work of an earlier commit.
const OPTIONS: &str = "noatime,ssd,commit=300";

fn subject(side: Side, folder: &scratch::Scratch, made: &[&str]) -> Subject {
    let image = folder.sparse_file("backing.img", BACKING_BYTES);
    Subject::made(side, &image, &folder.folder("mnt"), made, OPTIONS)
}

/// Adds `count` files to a new directory, deletes a hundredth of them after a sync; how long the directory's fsync took
/// each time, and the mount's time.
fn directory(side: Side, count: u64) -> (Duration, Duration, Usage) {
    let folder = scratch::Scratch::new("bench-fsync");
    let subject = subject(side, &folder, &[]);
    let at = subject.path().join("testdir");
    std::fs::create_dir(&at).expect("a new filesystem");
    for number in 1..=count {
        File::create_new(at.join(format!("file_{number}"))).expect("a new folder");
    }
    let added = fsync(&at);
    run_ok(600, "sync", &["-f", &at.to_string_lossy()]);
    for number in (1..=count).step_by(100) {
        std::fs::remove_file(at.join(format!("file_{number}"))).expect("it was made");
    }
    let deleted = fsync(&at);
    (added, deleted, subject.finish())
}

fn fsync(path: &Path) -> Duration {
    let file = File::open(path).expect("it is there");
    let started = Instant::now();
    file.sync_all().expect("a good device");
    started.elapsed()
}

/// The report of fio.
struct Report {
    /// Megabytes per second.
    rate: f64,
    /// Seconds of an fsync: the 99.9th percentile and the longest.
    fsync: [f64; 2],
    /// The resources that the mount used.
    usage: Usage,
}

/// Writers that make each of their writes durable, in files with one extended attribute.
fn writers(side: Side, count: u64, bytes: u64) -> Report {
    let folder = scratch::Scratch::new("bench-writers");
    let subject = subject(side, &folder, &["-d", "single", "-m", "single"]);
    for writer in 0..count {
        let path = subject.path().join(format!("writers.{writer}.0"));
        File::create(&path).and_then(|file| file.set_len(bytes)).expect("a new filesystem");
        rustix::fs::setxattr(&path, "user.xa1", &[b'X'; 50], rustix::fs::XattrFlags::CREATE).expect("a new file");
    }
    let (at, size, jobs) = (subject.path().display(), bytes.to_string(), count.to_string());
    let words = [
        "--name=writers",
        "--rw=randwrite",
        "--fsync=1",
        "--fallocate=none",
        "--group_reporting=1",
        "--direct=0",
        "--bs=64K",
        "--ioengine=sync",
        &format!("--size={size}"),
        &format!("--directory={at}"),
        &format!("--numjobs={jobs}"),
        "--output-format=json",
    ];
    let text = run_ok(1800, "fio", &words);
    let (rate, fsync) = parsed(&text).unwrap_or_else(|| panic!("fio printed no result: {text}"));
    Report { rate, fsync, usage: subject.finish() }
}

/// Reads the write bandwidth and the times of fsync from fio's JSON.
fn parsed(text: &str) -> Option<(f64, [f64; 2])> {
    let text = &text[text.find('{')?..];
    let report: serde_json::Value = serde_json::from_str(text).ok()?;
    let job = report.get("jobs")?.get(0)?;
    let fsync = job.get("sync")?.get("lat_ns")?;
    let seconds = |value: &serde_json::Value| Some(value.as_f64()? / 1e9);
    let times = [seconds(fsync.get("percentile")?.get("99.900000")?)?, seconds(fsync.get("max")?)?];
    Some((job.get("write")?.get("bw_bytes")?.as_f64()? / 1e6, times))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_report_of_fio_is_parsed() {
        let text = r#"fio: a note
            {"jobs": [{"write": {"bw_bytes": 480000000},
            "sync": {"lat_ns": {"max": 9000000, "percentile": {"99.000000": 1, "99.900000": 5000000}}}}]}"#;
        assert_eq!(super::parsed(text), Some((480.0, [0.005, 0.009])));
    }
}
