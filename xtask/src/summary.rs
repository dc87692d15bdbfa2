//! The list of what was run, what failed and what was skipped, and the closing line.
//!
//! The closing line is `N passed, N failed, N skipped`, alone on its line. A skipped test is never a passed one.

use std::time::Duration;

/// The mark that tests print, at the start of a line, when they cannot run here.
pub const SKIP_MARK: &str = "SKIPPED: ";

/// The result of one step.
pub struct StepResult {
    pub name: String,
    pub elapsed: Duration,
    pub passed: usize,
    /// One line for each failure.
    pub failures: Vec<String>,
    /// One line for each skip: what and why.
    pub skips: Vec<String>,
    /// Tests that failed first and passed in a second run.
    pub unsteady: Vec<String>,
}

impl StepResult {
    /// A step that is one check: passed, or failed with a sentence.
    pub fn single(name: &str, elapsed: Duration, failure: Option<String>) -> StepResult {
        let passed = usize::from(failure.is_none());
        let failures = failure.into_iter().collect();
        let name = name.to_owned();
        StepResult { name, elapsed, passed, failures, skips: Vec::new(), unsteady: Vec::new() }
    }

    /// Reads what a libtest binary printed.
    pub fn from_test_output(name: &str, elapsed: Duration, success: bool, timed_out: bool, output: &str) -> StepResult {
        let mut step = StepResult::single(name, elapsed, None);
        step.passed = 0;
        for line in output.lines() {
            if let Some(rest) = line.strip_prefix("test result: ") {
                step.passed += counted(rest, "passed");
            } else if failed_test(line).is_some() {
                step.failures.push(line.to_owned());
            } else if let Some(at) = line.find(SKIP_MARK) {
                // Without a captured stream the harness's own `test name ... ` may stand before the mark.
                step.skips.push(line[at + SKIP_MARK.len()..].to_owned());
            }
        }
        step.passed = step.passed.saturating_sub(step.skips.len());
        if timed_out {
            step.failures.push(format!("{name}: still running after {} s, killed", elapsed.as_secs()));
        } else if !success && step.failures.is_empty() {
            let last = output.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no output");
            step.failures.push(format!("{name}: ended without a result; last line: {last}"));
        }
        step
    }
}

/// The name of the test that a line of libtest says failed.
pub fn failed_test(line: &str) -> Option<&str> {
    let name = line.strip_prefix("test ")?.split_once(" ... ")?.0;
    (line.ends_with("FAILED") || line.ends_with("failed")).then_some(name)
}

/// `7` from `ok. 7 passed; 0 failed; …` when asked for `passed`.
fn counted(line: &str, what: &str) -> usize {
    let words: Vec<&str> = line.split([' ', ';']).filter(|word| !word.is_empty()).collect();
    words.windows(2).find(|pair| pair[1] == what).and_then(|pair| pair[0].parse().ok()).unwrap_or(0)
}

/// Prints all steps and the closing line; true when nothing failed, and in CI nothing was skipped.
pub fn print(steps: &[StepResult], ci: bool) -> bool {
    println!("\nWhat was run:");
    for step in steps {
        let (failed, skipped) = (step.failures.len(), step.skips.len());
        let seconds = step.elapsed.as_secs_f64();
        println!(
            "  {:<44} {:>5} passed {failed:>3} failed {skipped:>3} skipped {seconds:>8.1} s",
            step.name, step.passed
        );
    }
    let list = |title: &str, of: fn(&StepResult) -> &Vec<String>| {
        let lines: Vec<&String> = steps.iter().flat_map(of).collect();
        if !lines.is_empty() {
            println!("\n{title}:");
            lines.iter().for_each(|line| println!("  {line}"));
        }
        lines.len()
    };
    let skipped = list("Skipped", |step| &step.skips);
    list("Failed first and passed when run again (to be made steady)", |step| &step.unsteady);
    let failed = list("Failed", |step| &step.failures);
    let passed: usize = steps.iter().map(|step| step.passed).sum();
    if ci && skipped > 0 {
        println!("\nA skipped test counts as a failure here, because CI=true.");
    }
    println!("\n{passed} passed, {failed} failed, {skipped} skipped");
    failed == 0 && !(ci && skipped > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_output_is_counted() {
        let output = "running 3 tests\ntest a ... ok\ntest b ... SKIPPED: b: needs root\nok\ntest c ... FAILED\n\
                      test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in \
                      0.00s\n";
        let step = StepResult::from_test_output("x", Duration::ZERO, false, false, output);
        assert_eq!((step.passed, step.failures.len(), step.skips), (1, 1, vec!["b: needs root".to_owned()]));
    }

    #[test]
    fn failed_tests_have_names() {
        for (line, name) in [
            ("test a::b ... FAILED", Some("a::b")),
            ("test a::b ... SKIPPED: no root", None),
            ("test result: FAILED", None),
            ("test a ... ok", None),
        ] {
            assert_eq!(failed_test(line), name, "{line}");
        }
    }

    #[test]
    fn a_crash_or_a_timeout_is_a_failure() {
        for (success, timed_out) in [(false, false), (false, true)] {
            let step = StepResult::from_test_output(
                "x",
                Duration::ZERO,
                success,
                timed_out,
                "running 3 tests\ntest a ... ok\n",
            );
            assert_eq!(step.failures.len(), 1);
        }
    }
}
