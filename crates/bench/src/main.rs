//! The same work on ours and on the kernel's btrfs, over the same backing file, in the same run, as ratios.
//!
//! Invariants: (1) every experiment starts from a filesystem made for it and ends durable: the time includes the sync;
//! (2) nothing here decides whether a number is good enough, the bars are only printed beside it; (3) without root the
//! kernel's side is left out, and said.

#![forbid(unsafe_code)]

mod experiments;
mod library;
mod subject;
mod table;

use std::process::ExitCode;

/// How much work is done.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Empty files to create.
    pub files: u64,
    /// Bytes to write and read.
    pub bytes: u64,
    /// The part of the source tree to unpack: a path prefix inside it.
    pub tree: &'static str,
    /// Files that the library creates.
    pub library_files: u64,
}

const FULL: Scale = Scale { files: 100_000, bytes: 1 << 30, tree: "", library_files: 1_000_000 };
const SMALL: Scale = Scale { files: 10_000, bytes: 128 << 20, tree: "fs", library_files: 100_000 };

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let scale = match words[..] {
        [] => FULL,
        ["--small"] => SMALL,
        // The library's run has a process of its own, so that its memory is its own.
        [library::COMMAND, count] => return library::child(count),
        _ => {
            eprintln!("usage: butterfs-bench [--small]");
            return ExitCode::from(2);
        }
    };
    let mut table = table::Table::default();
    experiments::run(scale, &mut table);
    library::run(scale, &mut table);
    print!("{table}");
    ExitCode::SUCCESS
}
