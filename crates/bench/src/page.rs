//! `docs/performance.md`: a part for each section, replaced when the section is measured again.
//!
//! Invariant: what stands between a section's two marks is made here and nowhere else; the rest of the page is kept.

use crate::table::Table;
use crate::{Scale, Section, plot};
use butterfs_testkit::transport;
use std::io;
use std::path::Path;

/// Where the page is, from the checkout's top folder, in which the benchmark runs.
pub const FILE: &str = "docs/performance.md";
const HEAD: &str = "# Performance\n\n\
    Made by `cargo xtask bench --write`: the same work on butterfs and on the kernel's btrfs, in turn, in one run, over \
    the same backing file. A ratio is ours divided by the kernel's: below 1 we are faster where it is a time, above 1 \
    where it is a rate. Where the work was done in several rounds, the numbers are medians and the spread is from the \
    least to the greatest ratio. Each part says where it was measured, and over which transport.\n";

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
    let part = format!("## {}\n\n{head}\n\n{plot}{table}", section.name);
    let page = std::fs::read_to_string(FILE).unwrap_or_else(|_| HEAD.to_owned());
    std::fs::write(FILE, replaced(&page, section.name, &part))
}

/// The page with the section's part replaced, or added at its end.
fn replaced(page: &str, name: &str, part: &str) -> String {
    let (begin, end) = (format!("<!-- begin {name} -->\n"), format!("<!-- end {name} -->\n"));
    let part = format!("{begin}\n{part}\n{end}");
    match (page.find(&begin), page.find(&end)) {
        (Some(from), Some(to)) if from < to => format!("{}{part}{}", &page[..from], &page[to + end.len()..]),
        _ => format!("{}\n{part}", page.trim_end_matches('\n').to_owned() + "\n"),
    }
}

/// What was measured on, and how busy it was.
fn machine() -> String {
    let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    let processor = read("/proc/cpuinfo");
    let processor = processor.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let memory = read("/proc/meminfo");
    let kibibytes = memory.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next());
    let gibibytes = kibibytes.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0) >> 20;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    format!(
        "Machine: {} ({threads} threads), {gibibytes} GiB, Linux {}; our mounts over {}; load at the end of the run {}.",
        processor.map_or("unknown processor", |(_, name)| name.trim()),
        read("/proc/sys/kernel/osrelease").trim().split('-').next().unwrap_or_default(),
        transport::name(),
        read("/proc/loadavg").split(' ').next().unwrap_or("unknown"),
    )
}

#[cfg(test)]
mod tests {
    use super::replaced;

    #[test]
    fn a_part_is_added_once_and_then_replaced() {
        let page = replaced("# Head\n", "a", "one");
        let page = replaced(&page, "b", "two");
        let page = replaced(&page, "a", "three");
        let parts: Vec<&str> = page.lines().filter(|line| !line.is_empty() && !line.starts_with('<')).collect();
        assert_eq!(parts, ["# Head", "three", "two"]);
    }
}
