//! Which costs are too high.

use crate::meter::{Cost, Reach, Row};
use crate::scene::Kind;
use std::time::Duration;

/// Steps for which everybody may wait in one go: some ten milliseconds.
const LONGEST_STOP_STEPS: u64 = 30_000;
/// The same for a commit beside many changed inodes: it writes the items of at most 16,384 at once, which takes some 40
/// ms.
const LONGEST_STOP_BESIDE_CHANGED_INODES: u64 = 8 * 16_384;
/// Tree blocks that may be read from a device while everybody waits.
const LONGEST_STOP_READS: u64 = 8;
/// Steps that do not count: a commit copies paths and books what that changes.
const FREE_STEPS: u64 = 400;
/// Time that does not count.
const FREE_TIME: Duration = Duration::from_micros(100);

/// Rows that touch all things of a scene although they work on one, with the reason. A name stands for all that begin
/// so.
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
    ("transaction", Kind::Changed, "it commits"),
    ("set_read_only", Kind::Changed, "it writes what is changed"),
    ("reset_device_stats", Kind::Changed, "it commits"),
    ("scrub_selection", Kind::Changed, "it commits"),
    ("scrub_selection", Kind::References, "it looks at all extents of the file"),
    ("scrub_selection", Kind::Extents, "it looks at all extents of the file"),
    ("statfs", Kind::Groups, "it adds up the groups"),
    ("some_subvolumes", Kind::Snapshots, "a subvolume's names of those in it lie before the next subvolume"),
];

const INODES: &str = "it looks through the inodes in memory: those that are open, and at most 32,768 others";
const CACHES: &str = "what it copies does not fit into the processor's caches any more";

/// Rows whose time grows though their steps do not, with the reason and how many times more than `n log n` it may take.
const TAKES_LONGER: &[(&str, Kind, u32, &str)] = &[
    ("snapshot", Kind::Fragments, 1, INODES),
    ("clean_subvolumes", Kind::Fragments, 1, INODES),
    ("clean_subvolumes", Kind::Open, 1, INODES),
    ("clean_subvolumes", Kind::Entries, 1, INODES),
    ("read_unnoticed (all)", Kind::References, 4, CACHES),
    ("read_unnoticed (all)", Kind::Extents, 4, CACHES),
];

/// Steps for the children of a root node, at most 493, whose references a snapshot changes: a bound, but not a small
/// one.
const CHILDREN_OF_A_ROOT: u64 = 6 * 493;

/// Where a snapshot is made or dropped, its call changes these references, and the commit books them and what that
/// changes.
fn free_steps(name: &str) -> u64 {
    let shares_a_root = ["snapshot", "clean_subvolumes"].iter().any(|begins| name.starts_with(begins));
    FREE_STEPS + if shares_a_root { 2 * CHILDREN_OF_A_ROOT } else { 0 }
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
            // Many changes are booked while they are made, few by the sync.
            let least = if reach == Reach::All { rows[0].call.time + rows[0].sync.time } else { part(rows[0]).time };
            let longer = TAKES_LONGER.iter().find(|(begins, of, ..)| *of == kind && name.starts_with(begins));
            let times = longer.map_or((least, reach, 1), |(.., factor, _)| (least, Reach::All, *factor));
            compare(&mut report, &name, reach, sizes, (rows.map(part), times));
        }
        stops(&mut report, kind, sizes[2], large);
    }
    report
}

/// Compares costs. Times grow from what it took in the smallest scene, as they may, times a factor.
fn compare(
    report: &mut Report,
    name: &str,
    reach: Reach,
    sizes: [usize; 3],
    (costs, (least, times_reach, factor)): ([Cost; 3], (Duration, Reach, u32)),
) {
    let steps = costs.map(|cost| cost.work.steps());
    let times = costs.map(|cost| cost.time);
    report.table.push(format!("{name}: {steps:?} steps, {times:?}"));
    let (small, large) = (sizes[0] as u64, sizes[2] as u64);
    // n log n, with as much for each thing as in the smallest scene, and at least some steps.
    let logarithms = (f64::from(large as u32).log2() / f64::from(small as u32).log2()).max(1.0);
    // A tree that has just got one more level makes each step longer by more than the logarithm says.
    let growth = (large / small) as f64 * logarithms * 1.1;
    let most = match reach {
        Reach::One => 2 * steps[0] + free_steps(name),
        Reach::All => (steps[0].max(20 * small) as f64 * growth) as u64 + free_steps(name),
    };
    let most_time = match times_reach {
        Reach::One => 5 * least + 2 * FREE_TIME,
        Reach::All => factor * least.mul_f64(2.0 * growth) + 10 * FREE_TIME,
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
    let changes_inodes = row.name == "making the scene" && [Kind::Open, Kind::Fragments, Kind::Entries].contains(&kind);
    let most = if changes_inodes { LONGEST_STOP_BESIDE_CHANGED_INODES } else { LONGEST_STOP_STEPS };
    if steps > most || reads > LONGEST_STOP_READS {
        let name = &row.name;
        report.faults.push(format!("{name} beside {size} {kind:?}: everybody waited for {steps} steps, {reads} reads"));
    }
}
