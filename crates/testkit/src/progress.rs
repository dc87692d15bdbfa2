//! Progress of long tests: a line now and then, for a person who waits.
//!
//! Invariant: a test that takes less than [`PERIOD`] prints nothing.

use std::time::{Duration, Instant};

/// Time between two lines.
const PERIOD: Duration = Duration::from_secs(30);

/// Progress of one test.
#[derive(Debug)]
pub struct Progress {
    test: String,
    total: u64,
    done: u64,
    findings: u64,
    begun: Instant,
    shown: Instant,
}

impl Progress {
    /// The progress of a test with `total` steps.
    pub fn new(test: &str, total: u64) -> Progress {
        let now = Instant::now();
        Progress { test: test.to_owned(), total, done: 0, findings: 0, begun: now, shown: now }
    }

    /// Counts a finding and prints it at once.
    pub fn finding(&mut self, what: &str) {
        self.findings += 1;
        println!("{}: finding {}: {what}", self.test, self.findings);
    }

    /// Counts a step that has ended; prints a line where the last one is old.
    pub fn step(&mut self) {
        self.done += 1;
        if self.shown.elapsed() >= PERIOD {
            self.shown = Instant::now();
            println!("{}", self.line(self.begun.elapsed()));
        }
    }

    fn line(&self, elapsed: Duration) -> String {
        let left = elapsed.as_secs_f64() / self.done as f64 * self.total.saturating_sub(self.done) as f64;
        let Progress { test, total, done, findings, .. } = self;
        format!("{test}: {done} of {total}, {findings} findings, {} s, about {left:.0} s to go", elapsed.as_secs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_how_much_is_left() {
        let mut progress = Progress::new("images", 40);
        (0..10).for_each(|_| progress.step());
        progress.finding("two files are missing");
        assert_eq!(progress.line(Duration::from_secs(20)), "images: 10 of 40, 1 findings, 20 s, about 60 s to go");
    }
}
