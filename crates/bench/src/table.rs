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
}

/// All rows, in the order they were measured.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Row>,
}

impl Table {
    /// Times of the same work; printed at once too, because the whole takes long.
    pub fn times(&mut self, what: &str, ours: Duration, kernel: Option<Duration>, bar: &'static str) {
        let seconds = |time: Duration| format!("{:.2} s", time.as_secs_f64());
        let ratio = kernel.map(|kernel| format!("{:.2}x", ours.as_secs_f64() / kernel.as_secs_f64()));
        self.value(what, seconds(ours), kernel.map(seconds), ratio, bar);
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
        self.rows.push(Row { what: what.to_owned(), ours, kernel, ratio, bar });
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| {:<44} | {:>12} | {:>12} | {:>7} | {:<18} |", "work", "ours", "kernel", "ratio", "bar")?;
        writeln!(f, "|{:-<46}|{:->14}|{:->14}|{:->9}|{:-<20}|", "", ":", ":", ":", "")?;
        for Row { what, ours, kernel, ratio, bar } in &self.rows {
            writeln!(f, "| {what:<44} | {ours:>12} | {kernel:>12} | {ratio:>7} | {bar:<18} |")?;
        }
        Ok(())
    }
}
