//! Results as a table: ours, the kernel's, the ratio, and the bar it is held to; beside some of them the same for a
//! filesystem in memory on the same transport, where nothing is made durable.
//!
//! Work that is done in several rounds has one row: the medians, and from where to where the rounds went.

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

/// What was found.
#[derive(Debug)]
enum Result {
    /// In words.
    Said { ours: String, kernel: String, ratio: String },
    /// Ours and the kernel's, in each round.
    Measured { rounds: Vec<(f64, Option<f64>)>, show: Show, less_is_better: bool },
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
    pub fn times(&mut self, what: &str, ours: Duration, kernel: Option<Duration>, bar: &'static str) {
        self.compared(what, (ours.as_secs_f64(), kernel.map(|kernel| kernel.as_secs_f64())), seconds, true, bar);
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

    /// Rates, times or sizes of the same work, ours and the kernel's, shown by `show`.
    pub fn compared(
        &mut self,
        what: &str,
        (ours, kernel): (f64, Option<f64>),
        show: Show,
        less_is_better: bool,
        bar: &'static str,
    ) {
        let rounds = vec![(ours, kernel.filter(|kernel| *kernel > 0.0))];
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
        let [ours, kernel, ratio, _] = result.shown();
        eprintln!("{what}: ours {ours}, kernel {kernel}, ratio {ratio}");
        self.rows.push(Row { what: what.to_owned(), result, bar, in_memory: None });
    }

    /// Adds another round of the same work. What is said in words stays as it was said last.
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
        let of_kernel = self.result.ratio().map(|(ratio, less_is_better)| {
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

impl Result {
    /// Ours, the kernel's, the ratio, and the spread: of the ratio, or of ours where there is none.
    fn shown(&self) -> [String; 4] {
        let Result::Measured { rounds, show, .. } = self else {
            let Result::Said { ours, kernel, ratio } = self else { unreachable!("there are two kinds") };
            return [ours.clone(), kernel.clone(), ratio.clone(), String::new()];
        };
        let dash = || "-".to_owned();
        let ours = median(rounds.iter().map(|round| round.0)).map_or_else(dash, show);
        let kernel = median(rounds.iter().filter_map(|round| round.1)).map_or_else(dash, show);
        let ratios: Vec<f64> = ratios(rounds).collect();
        let ratio = median(ratios.iter().copied()).map_or_else(dash, |ratio| format!("{ratio:.2}x"));
        let spread = match (ends(ratios), rounds.len()) {
            (_, 1) => String::new(),
            (Some((least, most)), _) => format!("{least:.2}x to {most:.2}x"),
            (None, _) => ends(rounds.iter().map(|round| round.0))
                .map_or_else(dash, |(least, most)| format!("{} to {}", show(least), show(most))),
        };
        [ours, kernel, ratio, spread]
    }

    fn ratio(&self) -> Option<(f64, bool)> {
        let Result::Measured { rounds, less_is_better, .. } = self else { return None };
        Some((median(ratios(rounds))?, *less_is_better))
    }
}

fn ratios(rounds: &[(f64, Option<f64>)]) -> impl Iterator<Item = f64> {
    rounds.iter().filter_map(|(ours, kernel)| Some(ours / (*kernel)?))
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
        let shown: Vec<[String; 4]> = self.rows.iter().map(|row| row.result.shown()).collect();
        let spreads = shown.iter().any(|[.., spread]| !spread.is_empty());
        let beside = self.rows.iter().any(|row| row.in_memory.is_some());
        let more = |has: bool, text: String| if has { text } else { String::new() };
        let spread = more(spreads, format!(" {:>20} |", "spread"));
        let head =
            more(beside, format!(" {:>12} | {:>12} | {:>7} | {:<18} |", "not durable", "in memory", "ratio", "bar"));
        writeln!(
            f,
            "| {:<44} | {:>12} | {:>12} | {:>7} |{spread} {:<18} |{head}",
            "work", "ours", "kernel", "ratio", "bar"
        )?;
        let spread = more(spreads, format!("{:->22}|", ":"));
        let head = more(beside, format!("{:->14}|{:->14}|{:->9}|{:-<20}|", ":", ":", ":", ""));
        writeln!(f, "|{:-<46}|{:->14}|{:->14}|{:->9}|{spread}{:-<20}|{head}", "", ":", ":", ":", "")?;
        for (row, [ours, kernel, ratio, spread]) in self.rows.iter().zip(shown) {
            let (spread, rest) = (more(spreads, format!(" {spread:>20} |")), more(beside, row.beside()));
            let Row { what, bar, .. } = row;
            writeln!(f, "| {what:<44} | {ours:>12} | {kernel:>12} | {ratio:>7} |{spread} {bar:<18} |{rest}")?;
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
        table.times("a", ms(30), Some(ms(20)), "<= 1.50x");
        assert_eq!(table.to_string().lines().next().unwrap().matches('|').count(), 6);
        table.times("b", ms(30), None, "<= 1.50x");
        table.in_memory(ms(12), ms(10), "<= 1.20x");
        let text = table.to_string();
        assert!(text.lines().all(|line| line.matches('|').count() == 10), "{text}");
        assert_eq!(words(text.lines().last().unwrap())[6..10], ["12.00 ms", "10.00 ms", "1.20x", "<= 1.20x"]);
        let bars: Vec<(String, f64)> = table.ratios().into_iter().map(|bar| (bar.what, bar.ratio)).collect();
        assert_eq!(bars, [("a".to_owned(), 1.5), ("b, of in memory".to_owned(), 1.2)]);
    }

    #[test]
    fn rounds_are_one_row_with_medians_and_spread() {
        let mut all = Table::default();
        for (ours, kernel, memory) in [(30, 20, 10), (90, 30, 40), (20, 20, 20)] {
            let mut round = Table::default();
            round.times("a", ms(ours), Some(ms(kernel)), "<= 1.50x");
            round.in_memory(ms(ours), ms(memory), "<= 1.20x");
            round.times("alone", ms(ours), None, "");
            round.value("said", ours.to_string(), None, None, "");
            all.add_round(round);
        }
        let text = all.to_string();
        let lines: Vec<Vec<&str>> = text.lines().map(words).collect();
        let row = ["a", "30.00 ms", "20.00 ms", "1.50x", "1.00x to 3.00x", "<= 1.50x"];
        assert_eq!(lines[2][1..7], row);
        assert_eq!(lines[2][7..11], ["30.00 ms", "20.00 ms", "2.25x", "<= 1.20x"]);
        assert_eq!(lines[3][1..6], ["alone", "30.00 ms", "-", "-", "20.00 ms to 90.00 ms"]);
        assert_eq!(lines[4][1..6], ["said", "20", "-", "-", ""]);
        assert_eq!(lines.len(), 5);
        assert_eq!(median([1.0, 2.0]), Some(1.5));
        assert_eq!(median([]), None);
    }
}
