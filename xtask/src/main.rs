//! The project's own commands: `cargo xtask test`, `dist`, `release`, `api`, `layering`, `bench`, `sim`, `soak`.
//!
//! Invariants: (1) a step that fails makes the exit code non-zero; (2) what was not run is printed with its reason, and
//! counts as a failure where the environment says `CI=true`; (3) no step runs without a time limit.
//! Standard library only, so that it builds in seconds. It holds no test of the filesystem itself.

mod api;
mod bench;
mod dist;
mod layering;
mod licences;
mod minimum_rust;
mod process;
mod prose;
mod release;
mod sim;
mod soak;
mod suites;
mod summary;
mod test;
mod tools;
mod workspace;

use std::process::ExitCode;

const HELP: &str = "\
usage: cargo xtask <command>

  test [--only TEXT] [--no-install]   everything that must hold; what it needs is installed first
  dist [--packages | --archives]      the packages, archives, checksums and the list of contents, below target/dist
  release [REVISION]                  cargo-deny, and cargo-semver-checks against the last release
  documents                           width and wording of documents and sources, and links
  api [--write]                       the public interface of the library against crates/butterfs/api.txt
  layering                            the edges between crates and between the modules of `fs`
  bench [--small | --least] [--only NAME]... [--write]
                                      the same work here and on the kernel's btrfs, as ratios; --write puts them
                                      into docs/performance.md
  sim [--seed S | --explore 1|2] [--runs N] [--hours H] [--kernel-every N]
                                      simulated crashes and faults, by seed (docs/testing.md)
  soak [--debug] [NAME]...            long runs, optimised; --debug checks the order of locks instead
                                      (docs/testing.md); the names: stress-ng fsx random kernel-left mutants full-disk
                                      costs waits growth fio rsync git sqlite overlay server pjdfstest
                                      containers intruders receives btrbk repairs repair-kills lost-blocks rescue
                                      rescue-repairs rescue-profiles rescue-mutants images objects volumes
                                      ceph wheel";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.split_first() {
        Some((&"test", rest)) => test::Options::parse(rest).and_then(|options| test::run(&options)),
        Some((&"layering", [])) => layering::run(),
        Some((&"api", rest)) => api::run(rest),
        Some((&"documents", [])) => prose::run(),
        Some((&"bench", rest)) => bench::run(rest),
        Some((&"dist", rest)) => dist::run(rest),
        Some((&"release", rest)) => release::run(rest),
        Some((&"sim", rest)) => sim::run(rest),
        Some((&"soak", rest)) => soak::run(rest),
        Some((&("help" | "--help" | "-h"), _)) => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(sentence) => {
            eprintln!("xtask: {sentence}");
            ExitCode::FAILURE
        }
    }
}
