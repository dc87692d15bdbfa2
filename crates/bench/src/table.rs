//! Results as a table: ours, the kernel's, the ratio, and the bar it is held to.

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
        self.rows.push(Row { what: what.to_owned(), ours, kernel, ratio, bar, compared: None });
    }

    /// The rows that have a ratio.
    pub fn ratios(&self) -> Vec<Bar> {
        let bar = |row: &Row| {
            let (ratio, less_is_better) = row.compared?;
            Some(Bar { what: row.what.clone(), ratio, less_is_better })
        };
        self.rows.iter().filter_map(bar).collect()
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
        writeln!(f, "| {:<44} | {:>12} | {:>12} | {:>7} | {:<18} |", "work", "ours", "kernel", "ratio", "bar")?;
        writeln!(f, "|{:-<46}|{:->14}|{:->14}|{:->9}|{:-<20}|", "", ":", ":", ":", "")?;
        for Row { what, ours, kernel, ratio, bar, .. } in &self.rows {
            writeln!(f, "| {what:<44} | {ours:>12} | {kernel:>12} | {ratio:>7} | {bar:<18} |")?;
        }
        Ok(())
    }
}
