//! `docs/performance.md`: a summary, then a part for each section, replaced when the section is measured again.
//!
//! Invariant: what stands between a section's two marks is made here and nowhere else; the rest of the page is kept.
//! The summary is read from the parts, so it says what they say, whenever each of them was measured.

use crate::table::{MISSED, Table};
use crate::{Scale, Section, plot};
use butterfs_testkit::transport;
use std::fmt::Write;
use std::io;
use std::path::Path;

/// The path of the page, from the checkout's top folder, in which the benchmark runs.
pub const FILE: &str = "docs/performance.md";
const HEAD: &str = "Made by `cargo xtask bench --write`: the same work on butterfs and on the kernel's btrfs, in \
    turn, in one run. `ours` is on a backing file; `on the device` and `kernel` are on a loop device that passes the \
    page cache of such a file (direct I/O), made and mounted with the documents' own options. A ratio is ours \
    divided by the kernel's: below 1 we are faster where it is a time, above 1 where it is a rate. Where the work \
    was done in several rounds, the numbers are medians, and the spread is from the least to the greatest ratio on \
    the device. Each part says where it was measured, and over which transport.";

/// Writes the section's part and its plot; the table has the medians of so many rounds.
pub fn write(section: &Section, scale: Scale, rounds: usize, table: &Table) -> io::Result<()> {
    let folder = Path::new(FILE).with_extension("");
    std::fs::create_dir_all(&folder)?;
    let bars = table.ratios();
    let picture = folder.join(format!("{}.svg", section.name));
    let plot = match bars.is_empty() {
        true => String::new(),
        false => {
            std::fs::write(&picture, plot::svg(section.about, &bars))?;
            format!("![ratios](performance/{}.svg)\n\n", section.name)
        }
    };
    let rounds = match rounds {
        1 => "One round".to_owned(),
        rounds => format!("Medians of {rounds} rounds"),
    };
    let head = format!("{} Size: {}. {rounds}. {}", section.about, scale.name, machine());
    let part = format!("## {}\n\n{}\n\n{plot}{table}", section.name, wrapped(&head));
    let page = std::fs::read_to_string(FILE).unwrap_or_else(|_| format!("# Performance\n\n{}\n", wrapped(HEAD)));
    let page = replaced(&page, section.name, &part);
    std::fs::write(FILE, replaced(&page, SUMMARY, &summary(&page)))
}

/// Running text in lines of at most 120 columns, as all documents have them.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is a line");
        if line.is_empty() || line.chars().count() + 1 + word.chars().count() <= 120 {
            line.push_str(if line.is_empty() { "" } else { " " });
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines.join("\n")
}

/// The part with the summary, which stands before all others.
const SUMMARY: &str = "summary";

/// A line of a table on the page that has a ratio and a bar.
struct Line<'a> {
    section: &'a str,
    what: &'a str,
    ratio: f64,
    bar: &'a str,
}

impl Line<'_> {
    /// The ratio to the kernel: above 1 is better than the kernel.
    fn gain(&self) -> f64 {
        if self.bar.starts_with('<') { 1.0 / self.ratio.max(1e-3) } else { self.ratio }
    }
}

/// All such lines. The ratio is that on the same block device where there is one.
fn lines(page: &str) -> Vec<Line<'_>> {
    let (mut section, mut head, mut lines) = ("", Vec::new(), Vec::new());
    for line in page.lines() {
        if let Some(name) = line.strip_prefix("<!-- begin ") {
            section = name.trim_end_matches(" -->");
            head.clear();
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if cells.get(1) == Some(&"work") {
            head = cells;
            continue;
        }
        let column = |name: &str, nth: usize| {
            let at = head.iter().enumerate().filter(|(_, cell)| **cell == name).nth(nth)?.0;
            cells.get(at).copied()
        };
        let number = |text: &str| text.strip_suffix('x')?.parse::<f64>().ok();
        let on_device = head.contains(&"on the device").then(|| column("ratio", 1)).flatten();
        let ratio = on_device.and_then(number).or_else(|| number(column("ratio", 0)?));
        let bar = column("bar", 0).filter(|bar| bar.starts_with("<=") || bar.starts_with(">="));
        if let (Some(ratio), Some(bar), false) = (ratio, bar, section == SUMMARY) {
            lines.push(Line { section, what: cells[1], ratio, bar });
        }
    }
    lines
}

/// For each part how many of its lines are at least the kernel's equals and how many miss their bar; then those that
/// do.
fn summary(page: &str) -> String {
    let lines = lines(page);
    let mut text = "## Summary\n\nLines that have a ratio and a bar. The least and the greatest are how many times as \
        good as the kernel.\n\n| part | lines | as good as the kernel | miss their bar | least | greatest \
        |\n|---|--:|--:|--:|--:|--:|\n"
        .to_owned();
    for part in lines.chunk_by(|one, next| one.section == next.section) {
        let count = |is: fn(&Line<'_>) -> bool| part.iter().filter(|line| is(line)).count();
        let gains = || part.iter().map(Line::gain);
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {:.2} | {:.2} |",
            part[0].section,
            part.len(),
            count(|line| line.gain() >= 1.0),
            count(|line| line.bar.contains(MISSED)),
            gains().fold(f64::INFINITY, f64::min),
            gains().fold(0.0, f64::max),
        );
    }
    let missed: Vec<String> = lines
        .iter()
        .filter(|line| line.bar.contains(MISSED))
        .map(|line| {
            let bar = line.bar.trim_end_matches(MISSED).trim();
            format!("{}: {} ({:.2}x, bar {bar})", line.section, line.what, line.ratio)
        })
        .collect();
    if !missed.is_empty() {
        let _ = write!(text, "\nBars that are missed:\n\n- {}\n", missed.join("\n- "));
    }
    text
}

/// The page with the section's part replaced, or added at its end.
fn replaced(page: &str, name: &str, part: &str) -> String {
    let (begin, end) = (format!("<!-- begin {name} -->\n"), format!("<!-- end {name} -->\n"));
    let part = format!("{begin}\n{part}\n{end}");
    match (page.find(&begin), page.find(&end)) {
        (Some(from), Some(to)) if from < to => format!("{}{part}{}", &page[..from], &page[to + end.len()..]),
        _ if name == SUMMARY => match page.find("<!-- begin ") {
            Some(first) => format!("{}{part}\n{}", &page[..first], &page[first..]),
            None => format!("{page}\n{part}"),
        },
        _ => format!("{}\n{part}", page.trim_end_matches('\n').to_owned() + "\n"),
    }
}

/// The machine of the measurement, and its load.
fn machine() -> String {
    let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    let processor = read("/proc/cpuinfo");
    let processor = processor.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let memory = read("/proc/meminfo");
    let kibibytes = memory.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next());
    let gibibytes = kibibytes.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0) >> 20;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    format!(
        "Machine: {} ({threads} threads), {gibibytes} GiB, Linux {}; our mounts over {}; load at the end of the run \
         {}.",
        processor.map_or("unknown processor", |(_, name)| name.trim()),
        read("/proc/sys/kernel/osrelease").trim().split('-').next().unwrap_or_default(),
        transport::name(),
        read("/proc/loadavg").split(' ').next().unwrap_or("unknown"),
    )
}

#[cfg(test)]
mod tests {
    use super::{replaced, summary};

    #[test]
    fn the_summary_is_read_from_the_parts() {
        let part = "| work | ours | ratio | on the device | ratio | kernel | bar |\n|---|---|---|---|---|---|---|\n\
            | a | 1 | 0.50x | 2 | 2.00x | 1 | <= 1.50x **missed** |\n| b | 1 | 3.00x | - | - | 1 | >= 1.00x |\n\
            | c | 1 | 3.00x | - | - | 1 |  |\n";
        let page = replaced("# Head\n", "one", part);
        let text = summary(&page);
        assert!(text.contains("| one | 2 | 1 | 1 | 0.50 | 3.00 |"), "{text}");
        assert!(text.ends_with("Bars that are missed:\n\n- one: a (2.00x, bar <= 1.50x)\n"), "{text}");
        let page = replaced(&page, super::SUMMARY, &text);
        assert_eq!(summary(&page), text);
    }

    #[test]
    fn a_part_is_added_once_and_then_replaced() {
        let page = replaced("# Head\n", "a", "one");
        let page = replaced(&page, "b", "two");
        let page = replaced(&page, "a", "three");
        let parts: Vec<&str> = page.lines().filter(|line| !line.is_empty() && !line.starts_with('<')).collect();
        assert_eq!(parts, ["# Head", "three", "two"]);
    }
}
