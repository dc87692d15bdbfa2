//! Which costs are too high.

use crate::meter::{Cost, Reach, Row};
use crate::scene::Kind;
use std::time::Duration;

/// Steps for which everybody may wait in one go: some ten milliseconds.
const LONGEST_STOP_STEPS: u64 = 30_000;
/// Tree blocks that may be read from a device while everybody waits.
const LONGEST_STOP_READS: u64 = 8;
/// Steps that do not count: a commit copies paths and books what that changes.
const FREE_STEPS: u64 = 400;
/// Time that does not count.
const FREE_TIME: Duration = Duration::from_micros(100);

/// Rows that touch all things of a scene although they work on one, with the reason. A name stands for all that begin so.
const TOUCHES_ALL: &[(&str, Kind, &str)] = &[
    ("fsync (after a write)", Kind::Links, "a log has all names of an inode or none; so has the kernel's"),
    ("fsync (after a write)", Kind::Attributes, "replay drops the attributes that a whole inode in the log lacks"),
    ("fsync (of the directory", Kind::Attributes, "replay drops the attributes that a whole inode in the log lacks"),
    ("rename (a folder, down)", Kind::Levels, "a folder must not come to lie in itself, so all above it are asked"),
    ("snapshot (of all)", Kind::Open, "files without a name that are open are deleted from the snapshot"),
    ("snapshot", Kind::Changed, "it writes what is changed"),
    ("new_extents", Kind::Changed, "it writes what is changed"),
    ("read_snapshot", Kind::Changed, "it writes what is changed"),
    ("set_label", Kind::Changed, "it commits"),
    ("set_read_only", Kind::Changed, "it writes what is changed"),
    ("statfs", Kind::Groups, "it adds up the groups"),
];

/// Steps for the children of a root node, at most 493, whose references a snapshot changes: a bound, but not a small one.
const CHILDREN_OF_A_ROOT: u64 = 6 * 493;

fn free_steps(name: &str) -> u64 {
    let shares_a_root = ["snapshot", "clean_subvolumes"].iter().any(|begins| name.starts_with(begins));
    FREE_STEPS + if shares_a_root { CHILDREN_OF_A_ROOT } else { 0 }
}

/// The findings in the scenes of one kind.
#[derive(Default)]
pub struct Report {
    /// Costs that are too high, each time.
    pub faults: Vec<String>,
    /// Times on the processor that were too long, with the operation.
    pub slow: Vec<(String, String)>,
    /// All costs, for people.
    pub table: Vec<String>,
}

fn reach(kind: Kind, row: &Row) -> Reach {
    if TOUCHES_ALL.iter().any(|(name, of, _)| *of == kind && row.name.starts_with(name)) {
        Reach::All
    } else {
        row.reach
    }
}

/// Compares the costs in three sizes.
pub fn judge(kind: Kind, sizes: [usize; 3], scenes: &[Vec<Row>; 3]) -> Report {
    let mut report = Report::default();
    for (index, large) in scenes[2].iter().enumerate() {
        let rows = [&scenes[0][index], &scenes[1][index], large];
        let reach = reach(kind, large);
        for (what, part) in [("", (|row| row.call) as fn(&Row) -> Cost), (" and sync", |row| row.sync)] {
            // Making everything durable includes what others have changed.
            let reach = if what.is_empty() || kind != Kind::Changed { reach } else { Reach::All };
            let name = format!("{}{what} beside {sizes:?} {kind:?}", large.name);
            compare(&mut report, &name, reach, sizes, rows.map(part));
        }
        stops(&mut report, kind, sizes[2], large);
    }
    report
}

fn compare(report: &mut Report, name: &str, reach: Reach, sizes: [usize; 3], costs: [Cost; 3]) {
    let steps = costs.map(|cost| cost.work.steps());
    let times = costs.map(|cost| cost.time);
    report.table.push(format!("{name}: {steps:?} steps, {times:?}"));
    let (small, large) = (sizes[0] as u64, sizes[2] as u64);
    // n log n, with as much for each thing as in the smallest scene, and at least some steps.
    let logarithms = (f64::from(large as u32).log2() / f64::from(small as u32).log2()).max(1.0);
    let growth = (large / small) as f64 * logarithms;
    let (most, most_time) = match reach {
        Reach::One => (2 * steps[0] + free_steps(name), 5 * times[0] + 2 * FREE_TIME),
        Reach::All => (
            (steps[0].max(20 * small) as f64 * growth) as u64 + free_steps(name),
            times[0].mul_f64(2.0 * growth) + 10 * FREE_TIME,
        ),
    };
    let kind = match reach {
        Reach::One => "it touches one",
        Reach::All => "n log n",
    };
    if steps[2] > most {
        report.faults.push(format!("{name}: {steps:?} steps, more than {most} ({kind})"));
    }
    if times[2] > most_time {
        report
            .slow
            .push((name.to_owned(), format!("{name}: {times:?} on the processor, more than {most_time:?} ({kind})")));
    }
}

fn stops(report: &mut Report, kind: Kind, size: usize, row: &Row) {
    let (steps, reads) = row.stop;
    report
        .table
        .push(format!("{} beside {size} {kind:?}: everybody waited for {steps} steps, {reads} reads", row.name));
    if steps > LONGEST_STOP_STEPS || reads > LONGEST_STOP_READS {
        let name = &row.name;
        report.faults.push(format!("{name} beside {size} {kind:?}: everybody waited for {steps} steps, {reads} reads"));
    }
}
