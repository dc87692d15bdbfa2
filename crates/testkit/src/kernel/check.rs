//! `btrfs check` as an oracle.
//!
//! Invariant: clean means exit code zero *and* no line that reports something: the program ends with zero after some of
//! its findings.
//!
//! [`check_all`] runs our own checker too, so that every image that a test has checked shows whether the verdicts
//! agree.

use super::LoopDevice;
use super::command::run;
use crate::{requirement, scratch};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The output of `btrfs check`.
#[derive(Debug)]
pub struct Verdict {
    /// Which program it was.
    pub program: PathBuf,
    /// Exit code zero and nothing reported.
    pub clean: bool,
    /// The lines that report something.
    pub findings: Vec<String>,
    /// Everything it printed.
    pub output: String,
}

/// Words of lines that report something.
const FINDINGS: &[&str] = &[
    "ERROR",
    "error:",
    "errors ",
    "mismatch",
    "bad ",
    "missing",
    "failed",
    "Failed",
    "incorrect",
    "wrong",
    "wanted",
    "found but",
    "not found",
    "orphan",
    "skipping",
    "can't",
    "cannot",
    "couldn't",
    "invalid",
    "corrupt",
    "unresolved",
    "ref mismatch",
    "backpointer",
    "there is no",
    "there are no",
    "overlap",
];

/// Lines that contain one of `FINDINGS` and report nothing.
const HARMLESS: &[&str] = &[
    "error(s) found",
    "no error found",
    "found 0 error",
    "skipped (not enabled",
    "in lowmem mode, skipping",
    "errors 0",
    // Looking for the other devices of a filesystem it meets devices that somebody else is just taking away.
    "ERROR: cannot scan /dev/",
    // An old space cache that was not kept up is invalid, and must be.
    "cache and super generation don't match, space cache will be invalidated",
];

/// All that the original mode says about some trees in which a leaf begins with an orphan item; it names nothing.
const NAMELESS: &str = "ERROR: errors found in fs roots";

/// Checks an image that nobody has mounted, with `program`.
pub fn check(program: &Path, image: &Path) -> Verdict {
    let verdict = check_in_mode(program, image, "original");
    // Where that cannot say what is wrong, the other implementation in the same program decides.
    match &verdict.findings[..] {
        [only] if only == NAMELESS => check_in_mode(program, image, "lowmem"),
        _ => verdict,
    }
}

fn check_in_mode(program: &Path, image: &Path, mode: &str) -> Verdict {
    let image = image.to_str().expect("test paths are text");
    let run = || run(300, program, &["check", "--check-data-csum", "--mode", mode, image]);
    let mut finished = run();
    // It looks at every mount of the machine first, and gives up when one of them ends meanwhile.
    for _ in 0..50 {
        if !finished.output.contains("could not check mount status") {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
        finished = run();
    }
    let reports = |line: &&str| {
        // The image may be named like a finding.
        let line = line.replace(image, "");
        FINDINGS.iter().any(|word| line.contains(word)) && !HARMLESS.iter().any(|word| line.contains(word))
    };
    let findings: Vec<String> = finished.output.lines().filter(reports).map(str::to_owned).collect();
    let clean = finished.code == Some(0) && findings.is_empty();
    Verdict { program: program.to_owned(), clean, findings, output: finished.output }
}

/// Checks with every btrfs-progs there is.
pub fn judge_all(image: &Path) -> Vec<Verdict> {
    programs().iter().map(|program| check(program, image)).collect()
}

/// Checks with every btrfs-progs there is and with our own checker; panics with what was said unless all find the image
/// clean.
pub fn check_all(image: &Path) {
    crate::judge::assert_clean(image);
    for Verdict { program, clean, findings, output } in judge_all(image) {
        assert!(clean, "{} check of {}: {findings:#?}\n{output}", program.display(), image.display());
    }
}

/// As [`judge_all`], of a filesystem on several images.
pub fn judge_several(images: &[impl AsRef<Path>]) -> Vec<Verdict> {
    let devices: Vec<LoopDevice> = images.iter().map(|image| LoopDevice::attach(image.as_ref(), true)).collect();
    // It finds the other devices by looking at all block devices.
    let verdicts = programs().into_iter().map(|program| {
        let verdict = check(&program, devices[0].path());
        Verdict { clean: verdict.clean || is_rebuilt_wrongly(&verdict.findings, &verdict.output), ..verdict }
    });
    let verdicts = verdicts.collect();
    for device in &devices {
        run(20, "btrfs", &["device", "scan", "--forget", &device.path().to_string_lossy()]);
    }
    verdicts
}

/// As [`check_all`], of a filesystem on several images.
pub fn check_several(images: &[impl AsRef<Path>]) {
    let (first, report) = (images[0].as_ref(), crate::judge::judge_files(images));
    assert!(report.is_clean(), "our judge of {}…: {}", first.display(), crate::judge::text(&report));
    for Verdict { program, clean, findings, output } in judge_several(images) {
        assert!(clean, "{} check of {}…: {findings:#?}\n{output}", program.display(), first.display());
    }
}

/// Whether only data that the program has rebuilt from parity is bad. With `--check-data-csum` it does so wrongly, also
/// for what the kernel wrote; a scrub by the kernel tells whether parity is right.
fn is_rebuilt_wrongly(findings: &[String], output: &str) -> bool {
    matches!(findings, [only] if only == "ERROR: errors found in csum tree")
        && output.contains("mirror 2 bytenr")
        && !output.contains("mirror 1 bytenr")
}

/// The system's `btrfs`, and the newer one that was fetched where the system's is old.
fn programs() -> Vec<PathBuf> {
    let fetched = Some(scratch::tools().join("btrfs-progs/bin/btrfs")).filter(|path| path.is_file());
    requirement::program("btrfs").into_iter().chain(fetched).collect()
}
