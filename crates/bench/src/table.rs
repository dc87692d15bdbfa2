//! Results as a table: ours, the kernel's, the ratio, and the bar it is held to; beside some of them the same for a
//! filesystem in memory on the same transport, where nothing is made durable.

use std::fmt;
use std::time::Duration;

/// One row.
#[derive(Debug)]
struct Row {
    what: String,
    ours: String,
    kernel: String,
    ratio: String,
    bar: &'static str,
    compared: Option<(f64, bool)>,
    in_memory: Option<InMemory>,
}

/// Times of a row's work without making it durable.
#[derive(Debug)]
struct InMemory {
    ours: Duration,
    memory: Duration,
    bar: &'static str,
}

impl InMemory {
    fn ratio(&self) -> f64 {
        self.ours.as_secs_f64() / self.memory.as_secs_f64()
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
        let beside = InMemory { ours, memory, bar };
        let shown = (seconds(ours.as_secs_f64()), seconds(memory.as_secs_f64()), beside.ratio());
        eprintln!("    not durable: ours {}, in memory {}, ratio {:.2}x", shown.0, shown.1, shown.2);
        if let Some(row) = self.rows.last_mut() {
            row.in_memory = Some(beside);
        }
    }

    /// Rates or sizes of the same work, ours and the kernel's, shown by `show`.
    pub fn compared(
        &mut self,
        what: &str,
        (ours, kernel): (f64, Option<f64>),
        show: impl Fn(f64) -> String,
        less_is_better: bool,
        bar: &'static str,
    ) {
        let ratio = kernel.filter(|kernel| *kernel > 0.0).map(|kernel| ours / kernel);
        let shown = ratio.map(|ratio| format!("{ratio:.2}x"));
        self.value(what, show(ours), kernel.map(show), shown, bar);
        if let Some(row) = self.rows.last_mut() {
            row.compared = ratio.map(|ratio| (ratio, less_is_better));
        }
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
        eprintln!("{what}: ours {ours}, kernel {kernel}, ratio {ratio}");
        self.rows.push(Row { what: what.to_owned(), ours, kernel, ratio, bar, compared: None, in_memory: None });
    }

    /// The ratios, row by row.
    pub fn ratios(&self) -> Vec<Bar> {
        self.rows.iter().flat_map(Row::bars).collect()
    }
}

impl Row {
    fn bars(&self) -> impl Iterator<Item = Bar> {
        let of_kernel =
            self.compared.map(|(ratio, less_is_better)| Bar { what: self.what.clone(), ratio, less_is_better });
        let beside = self.in_memory.as_ref();
        let of_memory = beside.map(|beside| Bar {
            what: format!("{}, of in memory", self.what),
            ratio: beside.ratio(),
            less_is_better: true,
        });
        of_kernel.into_iter().chain(of_memory)
    }
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
        let beside = self.rows.iter().any(|row| row.in_memory.is_some());
        let more = |text: String| if beside { text } else { String::new() };
        let head = more(format!(" {:>12} | {:>12} | {:>7} | {:<18} |", "not durable", "in memory", "ratio", "bar"));
        writeln!(f, "| {:<44} | {:>12} | {:>12} | {:>7} | {:<18} |{head}", "work", "ours", "kernel", "ratio", "bar")?;
        let rule = more(format!("{:->14}|{:->14}|{:->9}|{:-<20}|", ":", ":", ":", ""));
        writeln!(f, "|{:-<46}|{:->14}|{:->14}|{:->9}|{:-<20}|{rule}", "", ":", ":", ":", "")?;
        for row @ Row { what, ours, kernel, ratio, bar, .. } in &self.rows {
            let rest = more(row.beside());
            writeln!(f, "| {what:<44} | {ours:>12} | {kernel:>12} | {ratio:>7} | {bar:<18} |{rest}")?;
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
        let [ours, memory] = [beside.ours, beside.memory].map(|time| seconds(time.as_secs_f64()));
        format!(" {ours:>12} | {memory:>12} | {:>6.2}x | {:<18} |", beside.ratio(), beside.bar)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_can_have_a_filesystem_in_memory_beside_it() {
        let ms = Duration::from_millis;
        let mut table = Table::default();
        table.times("a", ms(30), Some(ms(20)), "<= 1.50x");
        assert_eq!(table.to_string().lines().next().unwrap().matches('|').count(), 6);
        table.times("b", ms(30), None, "<= 1.50x");
        table.in_memory(ms(12), ms(10), "<= 1.20x");
        let text = table.to_string();
        assert!(text.lines().all(|line| line.matches('|').count() == 10), "{text}");
        let words: Vec<&str> = text.lines().last().unwrap().split('|').map(str::trim).collect();
        assert_eq!(words[6..10], ["12.00 ms", "10.00 ms", "1.20x", "<= 1.20x"]);
        let bars: Vec<(String, f64)> = table.ratios().into_iter().map(|bar| (bar.what, bar.ratio)).collect();
        assert_eq!(bars, [("a".to_owned(), 1.5), ("b, of in memory".to_owned(), 1.2)]);
    }
}
