//! Which costs are too high.

use crate::scene::Kind;
use crate::server::Counts;
use std::time::Duration;

const LONGEST_STOP_STEPS: u64 = 30_000;
const LONGEST_STOP_READS: u64 = 8;
/// Steps that do not count: a commit copies paths and books what that changes; a snapshot changes the references of the
/// children of a root node, at most 493.
const FREE_STEPS: u64 = 400 + 6 * 493;
/// Time that does not count: threads that were idle wake up.
const FREE_TIME: Duration = Duration::from_millis(4);

/// How many of the things of a scene an operation touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    One,
    All,
}

/// The cost of one operation in one scene.
#[derive(Clone, Debug)]
pub struct Row {
    pub name: &'static str,
    pub reach: Reach,
    /// Of the operation, and of the sync after it.
    pub call: Counts,
    pub sync: Counts,
    /// Descriptors that the server did not close again.
    pub left_open: usize,
}

/// Operations on one thing that touch all things of a scene, with the reason.
const TOUCHES_ALL: &[(&str, Kind, &str)] = &[
    ("fsync", Kind::Links, "a log has all names of an inode or none; so has the kernel's"),
    ("fsync", Kind::Attributes, "replay drops the attributes that a whole inode in the log lacks"),
    ("fsync of a folder", Kind::Attributes, "replay drops the attributes that a whole inode in the log lacks"),
    ("snapshot", Kind::Open, "files without a name that are open are deleted from the snapshot"),
    ("rename of a folder", Kind::Levels, "a folder must not come to lie in itself, so all above it are asked"),
    ("statfs", Kind::Entries, "it adds up the groups, and larger scenes have more"),
];

#[derive(Default)]
pub struct Report {
    pub steps: Vec<String>,
    pub slow: Vec<(String, String)>,
    pub table: Vec<String>,
}

/// Compares the costs in three sizes.
pub fn faults(kind: Kind, sizes: [usize; 3], scenes: &[Vec<Row>; 3]) -> Report {
    let mut report = Report::default();
    for (index, large) in scenes[2].iter().enumerate() {
        let rows = [&scenes[0][index], &scenes[1][index], large];
        let touches_all = TOUCHES_ALL.iter().any(|(name, of, _)| *of == kind && *name == large.name);
        let reach = if touches_all { Reach::All } else { large.reach };
        for (what, part) in [("", (|row| row.call) as fn(&Row) -> Counts), (" and sync", |row| row.sync)] {
            let name = format!("{}{what} beside {sizes:?} {kind:?}", large.name);
            compare(&mut report, &name, reach, sizes, rows.map(part));
        }
        // The first scrub opens the device once more, for reads past the page cache.
        let lasting = usize::from(large.name == "scrub");
        if large.left_open > lasting {
            report.steps.push(format!("{} beside {kind:?}: {} descriptors stay open", large.name, large.left_open));
        }
    }
    report
}

fn compare(report: &mut Report, name: &str, reach: Reach, sizes: [usize; 3], costs: [Counts; 3]) {
    let (steps, times) = (costs.map(|cost| cost.steps), costs.map(|cost| cost.busy));
    let (small, large) = (sizes[0] as u64, sizes[2] as u64);
    let logarithms = (f64::from(large as u32).log2() / f64::from(small as u32).log2()).max(1.0);
    let growth = (large / small) as f64 * logarithms;
    let (most, most_time) = match reach {
        Reach::One => (2 * steps[0] + FREE_STEPS, 5 * times[0] + FREE_TIME),
        Reach::All => (
            (steps[0].max(20 * small) as f64 * growth) as u64 + FREE_STEPS,
            times[0].mul_f64(2.0 * growth) + 2 * FREE_TIME,
        ),
    };
    let Counts { stop_steps, stop_reads, .. } = costs[2];
    report.table.push(format!(
        "{name}: {steps:?} steps, {times:?}; everybody waited for {stop_steps} steps, {stop_reads} reads"
    ));
    if steps[2] > most {
        report.steps.push(format!("{name}: {steps:?} steps, more than {most} ({reach:?})"));
    }
    if stop_steps > LONGEST_STOP_STEPS || stop_reads > LONGEST_STOP_READS {
        report.steps.push(format!("{name}: everybody waited for {stop_steps} steps, {stop_reads} reads"));
    }
    if times[2] > most_time {
        report
            .slow
            .push((name.to_owned(), format!("{name}: {times:?} on processors, more than {most_time:?} ({reach:?})")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(steps: u64, stop_steps: u64, left_open: usize) -> Vec<Row> {
        let call = Counts { steps, stop_steps, ..Counts::default() };
        vec![Row { name: "chmod", reach: Reach::One, call, sync: Counts::default(), left_open }]
    }

    fn found(kind: Kind, rows: [Vec<Row>; 3]) -> Vec<String> {
        faults(kind, [100, 400, 1600], &rows).steps
    }

    #[test]
    fn growth_is_found_with_the_name() {
        assert!(found(Kind::Entries, [row(300, 0, 0), row(300, 0, 0), row(3_900, 0, 0)]).is_empty());
        let grown = found(Kind::Entries, [row(300, 0, 0), row(1_200, 0, 0), row(4_800, 0, 0)]);
        assert!(matches!(&grown[..], [one] if one.starts_with("chmod beside") && one.contains("4800")), "{grown:?}");
    }

    #[test]
    fn the_square_is_found_where_growth_is_allowed() {
        let all = |steps| row(steps, 0, 0).into_iter().map(|row| Row { reach: Reach::All, ..row }).collect::<Vec<_>>();
        assert!(found(Kind::Entries, [all(2_000), all(8_000), all(32_000)]).is_empty());
        assert_eq!(found(Kind::Entries, [all(2_000), all(32_000), all(512_000)]).len(), 1);
    }

    #[test]
    fn stops_and_descriptors_are_found() {
        assert_eq!(found(Kind::Open, [row(1, 0, 0), row(1, 0, 0), row(1, 40_000, 0)]).len(), 1);
        assert_eq!(found(Kind::Open, [row(1, 0, 0), row(1, 0, 0), row(1, 0, 1)]).len(), 1);
    }

    #[test]
    fn slow_work_in_memory_is_found() {
        let slow = |millis| {
            let mut rows = row(1, 0, 0);
            rows[0].call.busy = Duration::from_millis(millis);
            rows
        };
        assert_eq!(faults(Kind::Open, [50, 200, 800], &[slow(1), slow(4), slow(16)]).slow.len(), 1);
        assert!(faults(Kind::Open, [50, 200, 800], &[slow(1), slow(1), slow(5)]).slow.is_empty());
    }
}
