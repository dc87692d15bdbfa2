//! The progress of long work, in the last line of a terminal: how much is done, the rate, and the time left.
//!
//! # Invariants
//! 1. Nothing is shown where standard error is no terminal, and nothing in the first two seconds.
//! 2. Whatever else is printed meanwhile is printed inside [`Progress::above`], so that the line stays the last one.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::{Duration, Instant};

/// Work that ends sooner shows no progress.
const QUIET: Duration = Duration::from_secs(2);

/// The unit that work is measured in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Chunks of the filesystem.
    Chunks,
    /// Thousandths of the work.
    Permille,
}

impl Unit {
    fn template(self, has_total: bool) -> &'static str {
        match (self, has_total) {
            (Unit::Bytes, true) => {
                "{prefix}{binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} left{msg}"
            }
            (Unit::Bytes, false) => "{prefix}{binary_bytes}, {binary_bytes_per_sec}{msg}",
            (Unit::Chunks, true) => "{prefix}{pos} of {len} chunks, {per_sec}, {eta} left{msg}",
            (Unit::Chunks, false) => "{prefix}{pos} chunks, {per_sec}{msg}",
            (Unit::Permille, _) => "{prefix}{percent} %, {eta} left{msg}",
        }
    }
}

/// See the [module](self).
pub struct Progress {
    bar: ProgressBar,
    target: Option<ProgressDrawTarget>,
    unit: Unit,
    began: Instant,
    has_total: Option<bool>,
}

impl Progress {
    /// Progress of work that is called `name` in front of the numbers.
    pub fn new(name: &str, unit: Unit) -> Progress {
        Progress::on(ProgressDrawTarget::stderr(), name, unit)
    }

    /// Progress that is never shown.
    pub fn none() -> Progress {
        Progress::on(ProgressDrawTarget::hidden(), "", Unit::Bytes)
    }

    fn on(target: ProgressDrawTarget, name: &str, unit: Unit) -> Progress {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        if !name.is_empty() {
            bar.set_prefix(format!("{name}: "));
        }
        Progress { bar, target: Some(target), unit, began: Instant::now(), has_total: None }
    }

    /// Shows that `done` of `total` is done, if the total is known.
    pub fn at(&mut self, done: u64, total: Option<u64>) {
        if self.has_total != Some(total.is_some()) {
            self.has_total = Some(total.is_some());
            let style = ProgressStyle::with_template(self.unit.template(total.is_some()));
            self.bar.set_style(style.expect("the templates are valid"));
        }
        match total {
            Some(total) => self.bar.set_length(total),
            None => self.bar.unset_length(),
        }
        if self.began.elapsed() >= QUIET
            && let Some(target) = self.target.take()
        {
            self.bar.set_draw_target(target);
        }
        self.bar.set_position(done);
    }

    /// Another part of the work begins: its rate and time left are its own.
    pub fn restart(&mut self) {
        self.bar.reset_eta();
    }

    /// Shows these words behind the numbers.
    pub fn say(&self, words: String) {
        self.bar.set_message(words);
    }

    /// Prints something above the line.
    pub fn above<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }
}

impl Drop for Progress {
    /// The line goes.
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::InMemoryTerm;

    fn shown(unit: Unit, after: Duration, (done, total): (u64, Option<u64>)) -> String {
        let terminal = InMemoryTerm::new(4, 120);
        let target = ProgressDrawTarget::term_like(Box::new(terminal.clone()));
        let mut progress = Progress::on(target, "moving", unit);
        progress.began = Instant::now().checked_sub(after).expect("the machine is up for longer");
        progress.say(", 7 commands".to_owned());
        progress.at(done, total);
        progress.bar.tick();
        terminal.contents()
    }

    #[test]
    fn long_work_shows_amount_rate_and_time_left() {
        let late = Duration::from_secs(3);
        let text = shown(Unit::Bytes, late, (1 << 20, Some(4 << 20)));
        assert!(text.starts_with("moving: 1.00 MiB of 4.00 MiB, "), "{text}");
        assert!(text.contains("/s, ") && text.ends_with(" left, 7 commands"), "{text}");
        assert!(shown(Unit::Bytes, late, (1 << 20, None)).starts_with("moving: 1.00 MiB, "));
        assert!(shown(Unit::Chunks, late, (2, Some(5))).starts_with("moving: 2 of 5 chunks, "));
        assert!(shown(Unit::Permille, late, (250, Some(1000))).starts_with("moving: 25 %, "));
    }

    #[test]
    fn short_work_shows_nothing() {
        assert_eq!(shown(Unit::Bytes, Duration::ZERO, (1, Some(2))), "");
    }
}
