//! The same work on ours and on the kernel's btrfs, over the same backing file, in the same run, as ratios.
//!
//! Invariants: (1) every experiment starts from a filesystem made for it and ends durable: the time includes the sync;
//! (2) nothing here decides whether a number is good enough, the bars are only printed beside it; (3) without root the
//! kernel's side is left out, and said.

#![forbid(unsafe_code)]

mod check;
mod counting;
mod data;
mod dbench;
mod device_work;
mod devices;
mod everyday;
mod fsync;
mod images;
mod library;
mod operations;
mod page;
mod plot;
mod receive;
mod requests;
mod rescue;
mod send;
mod stores;
mod subject;
mod subvolumes;
mod table;

use std::process::ExitCode;
use std::time::Instant;
use table::Table;

/// How much work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// The name of the size.
    pub name: &'static str,
    /// Empty files to create.
    pub files: u64,
    /// Bytes to write and read.
    pub bytes: u64,
    /// Bytes of large files to send.
    pub large_bytes: u64,
    /// The part of the source tree to unpack: a path prefix inside it.
    pub tree: &'static str,
    /// Files that the library creates.
    pub library_files: u64,
    /// Up to how many subvolumes commands make.
    pub subvolumes: usize,
    /// Up to how many the library makes.
    pub library_subvolumes: usize,
}

/// The size that the documents report.
pub const FULL: Scale = Scale {
    name: "full",
    files: 100_000,
    bytes: 1 << 30,
    large_bytes: 10 << 30,
    tree: "",
    library_files: 1_000_000,
    subvolumes: 100_000,
    library_subvolumes: 1_000_000,
};
/// Minutes.
pub const SMALL: Scale = Scale {
    name: "small",
    files: 10_000,
    bytes: 128 << 20,
    large_bytes: 256 << 20,
    tree: "fs",
    library_files: 100_000,
    subvolumes: 1_000,
    library_subvolumes: 5_000,
};
/// Enough to see that everything runs.
pub const LEAST: Scale = Scale {
    name: "least",
    files: 500,
    bytes: 8 << 20,
    large_bytes: 8 << 20,
    tree: "fs/ext4",
    library_files: 2_000,
    subvolumes: 50,
    library_subvolumes: 1_000,
};

/// A part of the benchmark: its name, its subject, and its function.
pub struct Section {
    /// The word after `--only`.
    pub name: &'static str,
    /// One sentence over its table.
    pub about: &'static str,
    run: fn(Scale, &mut Table),
}

/// All sections, in their order.
const SECTIONS: &[Section] = &[
    Section {
        name: "everyday",
        about: "Everyday work through a mount; times include making it durable. The last columns are without that, \
            beside a filesystem in memory on the same session and transport, which shows the engine's share.",
        run: everyday::run,
    },
    Section {
        name: "requests",
        about: "Round trips between the kernel and the serving process: requests for each file, by the kernel's own \
                count.",
        run: requests::run,
    },
    Section {
        name: "data",
        about: "Contents: compressed, by many writers, shared, on a full disk; through a mount, and by the engine \
                alone.",
        run: data::run,
    },
    Section {
        name: "devices",
        about: "Reading from two devices, cold: RAID1 and RAID0, by one reader and by four; and with a device missing. \
            Then work on devices and chunks, both on loop devices.",
        run: devices::run,
    },
    Section {
        name: "library",
        about: "The engine without FUSE: a million creates on a device in memory, then single operations on a file.",
        run: library::run,
    },
    Section {
        name: "fsync",
        about: "Making changes durable: a directory with new names and without old ones, and eight writers (the \
                scripts of two documents).",
        run: fsync::run,
    },
    Section {
        name: "dbench",
        about: "A file server's load with many clients (logging while a commit is written).",
        run: dbench::run,
    },
    Section {
        name: "subvolumes",
        about: "Many subvolumes by commands: making them, finding one by its UUID, sending one (the UUID tree's \
                script).",
        run: subvolumes::by_commands,
    },
    Section {
        name: "subvolumes-library",
        about: "The same by the library on 4 KiB nodes in memory, up to a million; snapshots of a large one, and \
                deletion.",
        run: subvolumes::by_library,
    },
    Section {
        name: "send",
        about: "Sending snapshots: files renamed and made between two of them (the send document's script), small \
                files, large ones.",
        run: send::run,
    },
    Section {
        name: "receive",
        about: "Receiving streams through the library, durably: small files, the changes between two snapshots, a \
                large file.",
        run: receive::run,
    },
    Section {
        name: "images",
        about: "Building images of folders beside mkfs.btrfs and mkfs.erofs (in the column of the kernel), with warm \
                caches; the size beside a filesystem to which the kernel has copied the same tree.",
        run: images::run,
    },
    Section {
        name: "stores",
        about: "Filesystems and snapshots in an object store, beside the plain client (in the column of the kernel) on \
                the same server on this machine.",
        run: stores::run,
    },
    Section {
        name: "check",
        about: "`butterfs check` and `btrfs check` on the same image: small files, and snapshots between changes.",
        run: check::run,
    },
    Section {
        name: "rescue",
        about: "The worst day. Scrub and scan beside reading the device (two readers, 4 MiB, past the page cache), and \
                beside the kernel's scrub; the time until damaged blocks have names.",
        run: rescue::run,
    },
];

/// The number of runs of everything, unless the command line says otherwise or it is only to run.
const ROUNDS: usize = 3;

const USAGE: &str = "usage: butterfs-bench [--small | --least] [--rounds COUNT] [--only NAME]... [--write]";

struct Arguments {
    scale: Scale,
    only: Vec<String>,
    rounds: usize,
    write: bool,
}

impl Arguments {
    fn parse(words: &[&str]) -> Option<Arguments> {
        let mut parsed = Arguments { scale: FULL, only: Vec::new(), rounds: 0, write: false };
        let (mut words, mut rounds) = (words.iter(), None);
        while let Some(word) = words.next() {
            match *word {
                "--small" => parsed.scale = SMALL,
                "--least" => parsed.scale = LEAST,
                "--write" => parsed.write = true,
                "--rounds" => rounds = Some(words.next()?.parse().ok().filter(|rounds| *rounds > 0)?),
                "--only" => {
                    let name = *words.next()?;
                    SECTIONS.iter().find(|section| section.name == name)?;
                    parsed.only.push(name.to_owned());
                }
                _ => return None,
            }
        }
        parsed.rounds = rounds.unwrap_or(if parsed.scale == LEAST { 1 } else { ROUNDS });
        Some(parsed)
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    // A part that is measured alone runs in a process of its own, so that its memory is its own.
    if let [library::COMMAND, count] = words[..] {
        return library::child(count);
    }
    let Some(arguments) = Arguments::parse(&words) else {
        let names: Vec<&str> = SECTIONS.iter().map(|section| section.name).collect();
        eprintln!("{USAGE}\nnames: {}", names.join(" "));
        return ExitCode::from(2);
    };
    for section in SECTIONS {
        if !arguments.only.is_empty() && !arguments.only.iter().any(|name| name == section.name) {
            continue;
        }
        let mut table = Table::default();
        for round in 1..=arguments.rounds {
            let begun = Instant::now();
            let mut once = Table::default();
            (section.run)(arguments.scale, &mut once);
            eprintln!("{}, round {round} of {}: {:.0?}", section.name, arguments.rounds, begun.elapsed());
            table.add_round(once);
        }
        println!("\n{}\n\n{table}", section.about);
        if arguments.write
            && let Err(error) = page::write(section, arguments.scale, arguments.rounds, &table)
        {
            eprintln!("cannot write {}: {error}", page::FILE);
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
