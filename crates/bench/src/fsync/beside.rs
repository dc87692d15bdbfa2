//! The two scripts through a mount, ours and the kernel's.

use super::Sizes;
use crate::subject::{Side, Subject, Usage};
use crate::table::Table;
use butterfs_testkit::kernel::run_ok;
use butterfs_testkit::{requirement, scratch};
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

const BACKING_BYTES: u64 = 12 << 30;
const WRITERS: u64 = 8;
const ADDED_BAR: &str = "<= 0.30x";
const DELETED_BAR: &str = "<= 0.70x";
const WRITERS_BAR: &str = ">= 1.50x";

/// Enters the rows.
pub fn run(sizes: &Sizes, table: &mut Table) {
    if !requirement::fuse("bench: fsync") {
        return;
    }
    let kernel = requirement::kernel_btrfs("bench: fsync beside the kernel");
    for &count in sizes.names {
        let (added, deleted, usage) = directory(Side::Ours, count);
        let theirs = kernel.then(|| directory(Side::Kernel, count));
        let what = format!("fsync of a directory after adding {count} files");
        table.times(&what, added, theirs.map(|theirs| theirs.0), ADDED_BAR);
        let what = format!("fsync of it after deleting {} of them", count / 100);
        table.times(&what, deleted, theirs.map(|theirs| theirs.1), DELETED_BAR);
        let what = format!("the whole script with {count} files");
        usage.enter(&what, theirs.map(|theirs| theirs.2), table);
    }
    if requirement::programs("bench: eight writers", &["fio"]) {
        let (ours, usage) = writers(Side::Ours, sizes.file_bytes);
        let theirs = kernel.then(|| writers(Side::Kernel, sizes.file_bytes));
        let what =
            format!("fio, {WRITERS} writers of 64 KiB at random in {} MiB, fsync after each", sizes.file_bytes >> 20);
        let rates = (ours, theirs.map(|(rate, _)| rate));
        table.compared(&what, rates, |rate| format!("{rate:.1} MB/s"), false, WRITERS_BAR);
        usage.enter("fio", theirs.map(|(_, usage)| usage), table);
    }
}

fn subject(side: Side, folder: &scratch::Scratch) -> Subject {
    let image = folder.sparse_file("backing.img", BACKING_BYTES);
    Subject::with(side, &image, &folder.folder("mnt"), "noatime,commit=300")
}

/// Adds `count` files to a new directory, deletes a hundredth of them after a sync; how long the directory's fsync took
/// each time, and what the mount took.
fn directory(side: Side, count: u64) -> (Duration, Duration, Usage) {
    let folder = scratch::Scratch::new("bench-fsync");
    let subject = subject(side, &folder);
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

/// Megabytes per second of writers that make each of their writes durable, in files with one extended attribute; and what
/// the mount took.
fn writers(side: Side, bytes: u64) -> (f64, Usage) {
    let folder = scratch::Scratch::new("bench-writers");
    let subject = subject(side, &folder);
    for writer in 0..WRITERS {
        let path = subject.path().join(format!("writers.{writer}.0"));
        File::create(&path).and_then(|file| file.set_len(bytes)).expect("a new filesystem");
        rustix::fs::setxattr(&path, "user.xa1", &[b'X'; 50], rustix::fs::XattrFlags::CREATE).expect("a new file");
    }
    let (at, size, jobs) = (subject.path().display(), bytes.to_string(), WRITERS.to_string());
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
        "--output-format=terse",
        "--terse-version=3",
    ];
    let report = run_ok(1800, "fio", &words);
    (rate(&report).unwrap_or_else(|| panic!("fio printed no result: {report}")), subject.finish())
}

/// Reads the write bandwidth of fio's terse form: field 48 of version 3, in KiB per second.
fn rate(report: &str) -> Option<f64> {
    let line = report.lines().find(|line| line.starts_with("3;"))?;
    let kibibytes: f64 = line.split(';').nth(47)?.parse().ok()?;
    Some(kibibytes * 1024.0 / 1e6)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_bandwidth_is_read() {
        let fields: Vec<String> =
            (1..=130).map(|field| if field == 1 { "3".into() } else { (field * 10).to_string() }).collect();
        assert_eq!(super::rate(&format!("warning\n{}\n", fields.join(";"))), Some(480.0 * 1024.0 / 1e6));
    }
}
