//! dbench with many clients: the experiment of the commit that let logging go on while a commit is written.

use crate::Scale;
use crate::subject::{Side, Sides, Subject, Usage};
use crate::table::Table;
use butterfs_testkit::kernel::run_ok;
use butterfs_testkit::{requirement, scratch};

const BACKING_BYTES: u64 = 8 << 30;

/// The report of dbench: MB/s and the longest time that a client waited, in milliseconds.
struct Report {
    throughput: f64,
    max_latency: f64,
    /// The resources that the mount used.
    usage: Usage,
}

/// Runs it on both sides.
pub fn run(scale: Scale, table: &mut Table) {
    if !requirement::fuse("bench: dbench") || !requirement::programs("bench: dbench", &["dbench"]) {
        return;
    }
    let (clients, seconds) = match scale {
        crate::LEAST => (4, 2),
        crate::SMALL => (64, 15),
        _ => (64, 60),
    };
    let kernel = requirement::kernel_btrfs("bench: dbench beside the kernel");
    let sides = Sides::measure(kernel, |side| measure(side, clients, seconds));
    let what = format!("dbench, {clients} clients, {seconds} s");
    let throughput = sides.map(|report| report.throughput);
    table.compared(&what, throughput, |rate| format!("{rate:.0} MB/s"), false, ">= 1.30x");
    let latency = sides.map(|report| report.max_latency);
    table.compared(&format!("{what}: maximum latency"), latency, |time| format!("{time:.1} ms"), true, "<= 0.60x");
    // As much as they got done in the time, which is not the same.
    let amplified = |report: &Report| report.usage.written as f64 / (report.throughput * 1e6 * f64::from(seconds));
    let amplified = sides.map(amplified);
    let name = format!("{what}: written to the device for each byte that clients read or wrote");
    table.compared(&name, amplified, |bytes| format!("{bytes:.2} B"), true, "");
    sides.map(|report| report.usage).enter_memory(&what, table);
}

fn measure(side: Side, clients: u32, seconds: u32) -> Report {
    let folder = scratch::Scratch::new("bench-dbench");
    let image = folder.sparse_file("backing.img", BACKING_BYTES);
    // As the document's script makes and mounts it.
    let made = ["-m", "single", "-d", "single"];
    let subject = Subject::made(side, &image, &folder.folder("mnt"), &made, "noatime,ssd");
    let at = subject.path().to_string_lossy().into_owned();
    let words = ["-t", &seconds.to_string(), "-D", &at, &clients.to_string()];
    let text = run_ok(seconds + 600, "dbench", &words);
    let mut report = parse(&text).unwrap_or_else(|| panic!("dbench printed no result: {text}"));
    report.usage = subject.finish();
    report
}

/// Reads `Throughput 616.2 MB/sec  64 clients  64 procs  max_latency=191.1 ms`.
fn parse(output: &str) -> Option<Report> {
    let line = output.lines().rev().find(|line| line.starts_with("Throughput "))?;
    let throughput = line.split_whitespace().nth(1)?.parse().ok()?;
    let latency = line.split_once("max_latency=")?.1.split_whitespace().next()?.parse().ok()?;
    Some(Report { throughput, max_latency: latency, usage: Usage::default() })
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_last_line_is_read() {
        let report = super::parse("x\nThroughput 616.25 MB/sec  64 clients  64 procs  max_latency=191.1 ms\n");
        let report = report.expect("a result");
        assert!((report.throughput, report.max_latency) == (616.25, 191.1));
    }
}
