//! The progress, in the last line of a terminal.

use crate::args::pretty_size;
use crate::report;
use butterfs_send::apply::Summary;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// The line changes at most this often.
const INTERVAL: Duration = Duration::from_millis(200);

/// See the [module](self). Nothing is shown where standard error is no terminal.
pub struct Progress {
    shown: bool,
    total: Option<u64>,
    began: Instant,
    next: Instant,
    dirty: bool,
}

impl Progress {
    /// `total` is the length of the input, where it is known.
    pub fn new(quiet: bool, total: Option<u64>) -> Progress {
        let now = Instant::now();
        let shown = !quiet && std::io::stderr().is_terminal();
        Progress { shown, total, began: now, next: now + INTERVAL, dirty: false }
    }

    /// Shows how far it is.
    pub fn at(&mut self, bytes: u64, commands: u64) {
        let now = Instant::now();
        if self.shown && now >= self.next {
            self.next = now + INTERVAL;
            self.dirty = true;
            report::status(&self.text(bytes, commands, now - self.began));
        }
    }

    fn text(&self, bytes: u64, commands: u64, elapsed: Duration) -> String {
        let seconds = elapsed.as_secs_f64().max(0.001);
        let rate = bytes as f64 / seconds;
        let mut text = format!("{}, {commands} commands, {}/s", pretty_size(bytes), pretty_size(rate as u64));
        if let Some(total) = self.total.filter(|total| *total >= bytes && bytes > 0) {
            let left = (total - bytes) as f64 / rate;
            text += &format!(", {} % of {}, {left:.0} s left", bytes * 100 / total.max(1), pretty_size(total));
        }
        text
    }

    /// Makes room for another line.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.dirty) {
            report::status("");
        }
    }

    /// The last word.
    pub fn end(&mut self, summary: &Summary) {
        self.clear();
        if self.shown {
            report::line(&self.text(summary.bytes, summary.commands, self.began.elapsed()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_is_estimated_where_the_length_is_known() {
        let progress = Progress::new(true, Some(4 << 20));
        let text = progress.text(1 << 20, 7, Duration::from_secs(2));
        assert_eq!(text, "1.00MiB, 7 commands, 512.00KiB/s, 25 % of 4.00MiB, 6 s left");
    }
}
