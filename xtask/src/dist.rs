//! `cargo xtask dist`: everything that is handed out, below `target/dist`.
//!
//! ```text
//! target/dist/root/                  the files of the packages, laid out as they are installed
//! target/dist/out/butterfs_V_ARCH.deb, butterfs-V-1.ARCH.rpm
//! target/dist/out/butterfs-V-TARGET.tar.gz     static musl archives
//! target/dist/out/butterfs.cdx.json            what the program contains (CycloneDX)
//! target/dist/out/SHA256SUMS
//! ```
//!
//! Invariants: (1) the same commit and the same tools make the same bytes: times come from `SOURCE_DATE_EPOCH`, else
//! from the commit; (2) nothing outside the build output is changed; (3) whatever could not be made is named, with the
//! reason.

mod archives;
mod packages;
mod sbom;
mod try_it;

use crate::summary::{self, StepResult};
use crate::{process, workspace};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const BUILD_LIMIT: Duration = Duration::from_secs(1800);

/// A distribution: its version, its time, and its folder.
pub struct Dist {
    version: String,
    /// Seconds since 1970: the time of every file in every package.
    epoch: String,
    folder: PathBuf,
    /// The command; without one, it is built with full optimisation.
    program: Option<PathBuf>,
}

/// Runs `dist` with the words behind it; true when everything was made.
pub fn run(words: &[&str]) -> Result<bool, String> {
    let steps = match words {
        [] => [&PACKAGES[..], &[ARCHIVES, CHECKSUMS]].concat(),
        ["--archives"] => [&PACKAGES[..1], &[ARCHIVES, CHECKSUMS]].concat(),
        ["--packages"] => [&PACKAGES[..], &[CHECKSUMS]].concat(),
        _ => return Err(format!("unknown option {}", words.join(" "))),
    };
    let results = make(&steps, None)?;
    Ok(summary::print(&results, std::env::var("CI").is_ok_and(|value| value == "true")))
}

/// Packages of a program that was built before, and no static archives, which take minutes.
pub fn packages_of(program: PathBuf) -> Result<Vec<StepResult>, String> {
    make(&[&PACKAGES[..], &[CHECKSUMS]].concat(), Some(program))
}

/// A part of the work: its name, and the function that does it.
type Step = (&'static str, fn(&Dist) -> Result<(), Failure>);

/// Why something was not made.
pub enum Failure {
    /// It cannot be made on this machine.
    Unavailable(String),
    /// Making it failed.
    Failed(String),
}

impl From<String> for Failure {
    fn from(sentence: String) -> Failure {
        Failure::Failed(sentence)
    }
}

const PACKAGES: [Step; 5] = [
    ("dist: files", packages::lay_out),
    ("dist: sbom", sbom::list),
    ("dist: deb", packages::deb),
    ("dist: rpm", packages::rpm),
    ("dist: the package on a clean Debian", try_it::on_clean_debian),
];
const ARCHIVES: Step = ("dist: static archives", archives::build);
const CHECKSUMS: Step = ("dist: checksums", checksums);

fn make(steps: &[Step], program: Option<PathBuf>) -> Result<Vec<StepResult>, String> {
    let dist = Dist::new(program)?;
    let mut results = Vec::new();
    for (name, step) in steps {
        let started = Instant::now();
        let outcome = step(&dist);
        let mut result = StepResult::single(name, started.elapsed(), None);
        match outcome {
            Ok(()) => (),
            Err(Failure::Failed(sentence)) => {
                result.passed = 0;
                result.failures.push(format!("{name}: {sentence}"));
            }
            Err(Failure::Unavailable(sentence)) => {
                result.passed = 0;
                result.skips.push(format!("{name}: {sentence}"));
            }
        }
        results.push(result);
    }
    Ok(results)
}

impl Dist {
    fn new(program: Option<PathBuf>) -> Result<Dist, String> {
        let folder = workspace::target().join("dist");
        let _ = std::fs::remove_dir_all(&folder);
        create(&folder.join("out"))?;
        let manifest = read(&workspace::root().join("Cargo.toml"))?;
        let version = manifest.lines().find_map(|line| line.strip_prefix("version = \"")?.strip_suffix('"'));
        let version = version.ok_or("Cargo.toml names no version")?.to_owned();
        let committed = || process::capture("git", &["-C", &shown(&workspace::root()), "log", "-1", "--format=%ct"]);
        let epoch = std::env::var("SOURCE_DATE_EPOCH").ok().or_else(committed).unwrap_or_else(|| "0".to_owned());
        Ok(Dist { version, epoch: epoch.trim().to_owned(), folder, program })
    }

    /// The files as they are installed.
    fn root(&self) -> PathBuf {
        self.folder.join("root")
    }

    /// A file that is handed out.
    fn out(&self, name: &str) -> PathBuf {
        self.folder.join("out").join(name)
    }

    fn log(&self, name: &str) -> PathBuf {
        workspace::target().join("xtask-logs").join(format!("dist-{name}.log"))
    }

    /// Runs a program to its successful end.
    fn run(&self, name: &str, command: &mut Command) -> Result<String, String> {
        self.run_as_is(name, command.env("SOURCE_DATE_EPOCH", &self.epoch))
    }

    /// The same without the time of files. Cargo compiles the C libraries and all that needs them again when that
    /// variable changes, and a build contains no times.
    fn run_as_is(&self, name: &str, command: &mut Command) -> Result<String, String> {
        let log = self.log(name);
        let ended = process::run(command, &log, BUILD_LIMIT)?;
        match ended.success {
            true => Ok(ended.output),
            false => {
                let last = ended.output.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no output");
                Err(format!("{name}: {last} (see {})", log.display()))
            }
        }
    }

    /// Packs `folder` into a reproducible archive.
    fn pack(&self, folder: &Path, archive: &Path) -> Result<(), String> {
        let (parent, name) = (folder.parent().unwrap_or(folder), folder.file_name().unwrap_or_default());
        let mut tar = Command::new("tar");
        tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--use-compress-program=gzip -9n"]);
        tar.arg(format!("--mtime=@{}", self.epoch)).arg("-cf").arg(archive).arg("-C").arg(parent).arg(name);
        self.run("tar", &mut tar).map(drop)
    }
}

fn checksums(dist: &Dist) -> Result<(), Failure> {
    let out = dist.folder.join("out");
    let mut names: Vec<String> = std::fs::read_dir(&out)
        .map_err(|error| format!("cannot read {}: {error}", out.display()))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();
    let sums = dist.run("sha256sum", Command::new("sha256sum").args(&names).current_dir(&out))?;
    Ok(write(&dist.out("SHA256SUMS"), &sums)?)
}

fn create(folder: &Path) -> Result<(), String> {
    std::fs::create_dir_all(folder).map_err(|error| format!("cannot create {}: {error}", folder.display()))
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}
