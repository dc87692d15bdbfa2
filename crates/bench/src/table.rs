//! Results as a table: ours on a file and on a block device, the kernel's, the ratios, and the bar, which
//! is for the ratio on the same block device where there is one. Beside some of them the same for a filesystem in
//! memory on the same transport, where nothing is made durable.
//!
//! Work that is done in several rounds has one row: the medians, and from where to where the rounds went.

use crate::subject::Sides;
use std::fmt;
use std::time::Duration;

/// One row.
#[derive(Debug)]
struct Row {
    what: String,
    result: Result,
    bar: &'static str,
    in_memory: Option<InMemory>,
}

/// A result.
#[derive(Debug)]
enum Result {
    /// In words.
    Said { ours: String, kernel: String, ratio: String },
    /// The value of each round.
    Measured { rounds: Vec<Sides<f64>>, show: Show, less_is_better: bool },
}

type Show = fn(f64) -> String;

/// Seconds of a row's work without making it durable: ours and in memory, in each round.
#[derive(Debug)]
struct InMemory {
    rounds: Vec<(f64, f64)>,
    bar: &'static str,
}

impl InMemory {
    fn ratio(&self) -> f64 {
        median(self.rounds.iter().map(|(ours, memory)| ours / memory)).unwrap_or(f64::NAN)
    }
}

/// A row that has a ratio, for the plot.
#[derive(Debug)]
pub struct Bar {
    /// The row's name.
    pub what: String,
    /// Ours divided by the kernel's.
    pub ratio: f64,
    /// It is a time or a size, not a rate.
    pub less_is_better: bool,
}

/// All rows, in the order they were measured.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Row>,
}

impl Table {
    /// Times of the same work; printed at once too, because the whole takes long.
    pub fn times(&mut self, what: &str, times: Sides<Duration>, bar: &'static str) {
        self.compared(what, times.map(Duration::as_secs_f64), seconds, true, bar);
    }

    /// Sets beside the last row what its work takes without making it durable: ours, and a filesystem in memory.
    pub fn in_memory(&mut self, ours: Duration, memory: Duration, bar: &'static str) {
        let (ours, memory) = (ours.as_secs_f64(), memory.as_secs_f64());
        let ratio = ours / memory;
        eprintln!("    not durable: ours {}, in memory {}, ratio {ratio:.2}x", seconds(ours), seconds(memory));
        if let Some(row) = self.rows.last_mut() {
            row.in_memory = Some(InMemory { rounds: vec![(ours, memory)], bar });
        }
    }

    /// Rates, times or sizes of the same work, shown by `show`.
    pub fn compared(&mut self, what: &str, sides: Sides<f64>, show: Show, less_is_better: bool, bar: &'static str) {
        let rounds = vec![Sides { kernel: sides.kernel.filter(|kernel| *kernel > 0.0), ..sides }];
        self.add(what, Result::Measured { rounds, show, less_is_better }, bar);
    }

    /// Anything else.
    pub fn value(
        &mut self,
        what: &str,
        ours: String,
        kernel: Option<String>,
        ratio: Option<String>,
        bar: &'static str,
    ) {
        let dash = || "-".to_owned();
        let (kernel, ratio) = (kernel.unwrap_or_else(dash), ratio.unwrap_or_else(dash));
        self.add(what, Result::Said { ours, kernel, ratio }, bar);
    }

    fn add(&mut self, what: &str, result: Result, bar: &'static str) {
        let Shown { ours, ratio, on_device, device_ratio, kernel, .. } = result.shown();
        let on_device = match on_device.as_str() {
            DASH => String::new(),
            shown => format!("; on the same device {shown}, ratio {device_ratio}"),
        };
        eprintln!("{what}: kernel {kernel}, ours {ours}, ratio {ratio}{on_device}");
        self.rows.push(Row { what: what.to_owned(), result, bar, in_memory: None });
    }

    /// Adds another round of the same work. A remark in words stays as the last round made it.
    pub fn add_round(&mut self, round: Table) {
        for new in round.rows {
            match self.rows.iter_mut().find(|row| row.what == new.what) {
                Some(row) => row.add_round(new),
                None => self.rows.push(new),
            }
        }
    }

    /// The ratios, row by row.
    pub fn ratios(&self) -> Vec<Bar> {
        self.rows.iter().flat_map(Row::bars).collect()
    }
}

impl Row {
    fn add_round(&mut self, new: Row) {
        match (&mut self.result, new.result) {
            (Result::Measured { rounds, .. }, Result::Measured { rounds: more, .. }) => rounds.extend(more),
            (result, new) => *result = new,
        }
        match (&mut self.in_memory, new.in_memory) {
            (Some(known), Some(more)) => known.rounds.extend(more.rounds),
            (known, more) => *known = known.take().or(more),
        }
    }

    fn bars(&self) -> impl Iterator<Item = Bar> {
        let of_kernel = self.result.judged().map(|(ratio, less_is_better)| {
            let what = self.what.clone();
            Bar { what, ratio, less_is_better }
        });
        let beside = self.in_memory.as_ref();
        let of_memory = beside.map(|beside| Bar {
            what: format!("{}, of in memory", self.what),
            ratio: beside.ratio(),
            less_is_better: true,
        });
        of_kernel.into_iter().chain(of_memory)
    }
}

/// A row's cells.
struct Shown {
    ours: String,
    ratio: String,
    on_device: String,
    device_ratio: String,
    kernel: String,
    /// Of the ratio that the bar is for; of ours where there is none.
    spread: String,
}

/// The text for a missing measurement.
const DASH: &str = "-";

impl Result {
    fn shown(&self) -> Shown {
        let dash = || DASH.to_owned();
        let Result::Measured { rounds, show, .. } = self else {
            let Result::Said { ours, kernel, ratio } = self else { unreachable!("there are two kinds") };
            let (ours, kernel, ratio) = (ours.clone(), kernel.clone(), ratio.clone());
            return Shown { ours, ratio, on_device: dash(), device_ratio: dash(), kernel, spread: String::new() };
        };
        let shown =
            |number: fn(&Sides<f64>) -> Option<f64>| median(rounds.iter().filter_map(number)).map_or_else(dash, show);
        let ratio = |number: fn(&Sides<f64>) -> Option<f64>| {
            median(ratios(rounds, number)).map_or_else(dash, |ratio| format!("{ratio:.2}x"))
        };
        let spread = match (ends(ratios(rounds, self.judged_side())), rounds.len()) {
            (_, 1) => String::new(),
            (Some((least, most)), _) => format!("{least:.2}x to {most:.2}x"),
            (None, _) => ends(rounds.iter().map(|round| round.ours))
                .map_or_else(dash, |(least, most)| format!("{} to {}", show(least), show(most))),
        };
        Shown {
            ours: shown(|round| Some(round.ours)),
            ratio: ratio(|round| Some(round.ours)),
            on_device: shown(|round| round.on_device),
            device_ratio: ratio(|round| round.on_device),
            kernel: shown(|round| round.kernel),
            spread,
        }
    }

    /// The side that is held to the bar: ours on the kernel's block device where it was measured.
    fn judged_side(&self) -> fn(&Sides<f64>) -> Option<f64> {
        match self {
            Result::Measured { rounds, .. } if rounds.iter().any(|round| round.on_device.is_some()) => {
                |round| round.on_device
            }
            _ => |round| Some(round.ours),
        }
    }

    /// The ratio that the bar is for.
    fn judged(&self) -> Option<(f64, bool)> {
        let Result::Measured { rounds, less_is_better, .. } = self else { return None };
        Some((median(ratios(rounds, self.judged_side()))?, *less_is_better))
    }
}

impl Row {
    /// The bar, marked when the ratio misses it.
    fn bar(&self) -> String {
        let limit = |sign: &str| self.bar.strip_prefix(sign)?.split('x').next()?.trim().parse::<f64>().ok();
        let is_missed = self.result.judged().is_some_and(|(ratio, _)| {
            limit("<=").filter(|_| self.bar.contains('x')).is_some_and(|most| ratio > most)
                || limit(">=").is_some_and(|least| ratio < least)
        });
        if is_missed { format!("{} {MISSED}", self.bar) } else { self.bar.to_owned() }
    }
}

/// Behind a bar that is missed.
pub const MISSED: &str = "**missed**";

fn ratios(rounds: &[Sides<f64>], number: fn(&Sides<f64>) -> Option<f64>) -> impl Iterator<Item = f64> {
    rounds.iter().filter_map(move |round| Some(number(round)? / round.kernel?))
}

fn median(numbers: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut numbers: Vec<f64> = numbers.into_iter().collect();
    numbers.sort_by(f64::total_cmp);
    let (lower, upper) = (numbers.get(numbers.len().checked_sub(1)? / 2)?, numbers.get(numbers.len() / 2)?);
    Some((lower + upper) / 2.0)
}

/// The least and the greatest.
fn ends(numbers: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    numbers.into_iter().fold(None, |ends, number| {
        let (least, most) = ends.unwrap_or((number, number));
        Some((number.min(least), number.max(most)))
    })
}

/// A time in the unit that fits it.
pub fn seconds(time: f64) -> String {
    match time {
        _ if time < 1e-6 => format!("{:.0} ns", time * 1e9),
        _ if time < 1e-3 => format!("{:.1} us", time * 1e6),
        _ if time < 1.0 => format!("{:.2} ms", time * 1e3),
        _ => format!("{time:.2} s"),
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: Vec<Shown> = self.rows.iter().map(|row| row.result.shown()).collect();
        let has_spread = shown.iter().any(|shown| !shown.spread.is_empty());
        let has_devices = shown.iter().any(|shown| shown.on_device != DASH);
        let has_memory = self.rows.iter().any(|row| row.in_memory.is_some());
        let columns = |first: [&str; 3], devices: [&str; 2], kernel: &str, rest: [&str; 2], memory: &str| {
            let [what, ours, ratio] = first;
            let [on_device, device_ratio] = devices;
            let [spread, bar] = rest;
            let mut line = format!("| {what:<44} | {ours:>12} | {ratio:>7} |");
            if has_devices {
                line += &format!(" {on_device:>13} | {device_ratio:>7} |");
            }
            line += &format!(" {kernel:>12} |");
            if has_spread {
                line += &format!(" {spread:>20} |");
            }
            line += &format!(" {bar:<19} |");
            if has_memory {
                line += memory;
            }
            line
        };
        let memory = format!(" {:>12} | {:>12} | {:>7} | {:<18} |", "not durable", "in memory", "ratio", "bar");
        let head = columns(["work", "ours", "ratio"], ["on the device", "ratio"], "kernel", ["spread", "bar"], &memory);
        writeln!(f, "{head}")?;
        let rule = |column: &str| match column.trim() {
            "work" | "bar" => format!("{:-<width$}", "", width = column.len()),
            _ => format!("{:->width$}", ":", width = column.len()),
        };
        let rules: Vec<String> = head.trim_matches('|').split('|').map(rule).collect();
        writeln!(f, "|{}|", rules.join("|"))?;
        for (row, shown) in self.rows.iter().zip(&shown) {
            let devices = [shown.on_device.as_str(), shown.device_ratio.as_str()];
            let first = [row.what.as_str(), &shown.ours, &shown.ratio];
            let rest = [shown.spread.as_str(), &row.bar()];
            writeln!(f, "{}", columns(first, devices, &shown.kernel, rest, &row.beside()))?;
        }
        Ok(())
    }
}

impl Row {
    /// The last four columns.
    fn beside(&self) -> String {
        let Some(beside) = &self.in_memory else {
            return format!(" {:>12} | {:>12} | {:>7} | {:<18} |", "", "", "", "");
        };
        let ours = median(beside.rounds.iter().map(|round| round.0)).map_or_else(String::new, seconds);
        let memory = median(beside.rounds.iter().map(|round| round.1)).map_or_else(String::new, seconds);
        format!(" {ours:>12} | {memory:>12} | {:>6.2}x | {:<18} |", beside.ratio(), beside.bar)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    fn words(line: &str) -> Vec<&str> {
        line.split('|').map(str::trim).collect()
    }

    #[test]
    fn a_row_can_have_a_filesystem_in_memory_beside_it() {
        let mut table = Table::default();
        table.times("a", Sides::two(ms(30), Some(ms(20))), "<= 1.50x");
        assert_eq!(table.to_string().lines().next().unwrap().matches('|').count(), 6);
        table.times("b", Sides::two(ms(30), None), "<= 1.50x");
        table.in_memory(ms(12), ms(10), "<= 1.20x");
        let text = table.to_string();
        assert!(text.lines().all(|line| line.matches('|').count() == 10), "{text}");
        assert_eq!(words(text.lines().last().unwrap())[6..10], ["12.00 ms", "10.00 ms", "1.20x", "<= 1.20x"]);
        let bars: Vec<(String, f64)> = table.ratios().into_iter().map(|bar| (bar.what, bar.ratio)).collect();
        assert_eq!(bars, [("a".to_owned(), 1.5), ("b, of in memory".to_owned(), 1.2)]);
    }

    #[test]
    fn the_bar_is_for_the_same_block_device() {
        let mut table = Table::default();
        for (what, bar) in [("a", ">= 1.50x"), ("b", ">= 1.10x"), ("c", "<= 64 MiB"), ("d", "<= 1.20x, flat")] {
            let sides = Sides { ours: 300.0, on_device: Some(120.0), kernel: Some(100.0) };
            table.compared(what, sides, |rate| format!("{rate:.0}"), false, bar);
        }
        let text = table.to_string();
        let lines: Vec<Vec<&str>> = text.lines().map(words).collect();
        assert_eq!(lines[2][1..8], ["a", "300", "3.00x", "120", "1.20x", "100", ">= 1.50x **missed**"]);
        assert!(lines[3..].iter().all(|line| !line[7].contains(MISSED)), "{text}");
        assert!(
            text.lines()
                .nth(1)
                .unwrap()
                .split('|')
                .zip(lines[0].iter())
                .all(|(rule, head)| head.is_empty() || rule.len() > head.len())
        );
    }

    #[test]
    fn rounds_are_one_row_with_medians_and_spread() {
        let mut all = Table::default();
        for (ours, kernel, memory) in [(30, 20, 10), (90, 30, 40), (20, 20, 20)] {
            let mut round = Table::default();
            round.times("a", Sides::two(ms(ours), Some(ms(kernel))), "<= 1.40x");
            round.in_memory(ms(ours), ms(memory), "<= 1.20x");
            round.times("alone", Sides::two(ms(ours), None), "");
            round.value("said", ours.to_string(), None, None, "");
            all.add_round(round);
        }
        let text = all.to_string();
        let lines: Vec<Vec<&str>> = text.lines().map(words).collect();
        let row = ["a", "30.00 ms", "1.50x", "20.00 ms", "1.00x to 3.00x", "<= 1.40x **missed**"];
        assert_eq!(lines[2][1..7], row);
        assert_eq!(lines[2][7..11], ["30.00 ms", "20.00 ms", "2.25x", "<= 1.20x"]);
        assert_eq!(lines[3][1..6], ["alone", "30.00 ms", "-", "-", "20.00 ms to 90.00 ms"]);
        assert_eq!(lines[4][1..6], ["said", "20", "-", "-", ""]);
        assert_eq!(lines.len(), 5);
        assert_eq!(median([1.0, 2.0]), Some(1.5));
        assert_eq!(median([]), None);
    }
}
