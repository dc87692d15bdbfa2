//! The same commands on a mount of ours and on one of the kernel's: a subvolume and a read-only snapshot of it, again
//! and again; at each size the information about one by its UUID and the sending of an empty one; then snapshots of a
//! large subvolume.
//!
//! It compares the whole command, as a user runs it: `butterfs` here, `btrfs` there.

use crate::Scale;
use crate::subject::{Side, Sides, Subject, Usage};
use crate::table::Table;
use butterfs_testkit::kernel::run_ok;
use butterfs_testkit::serve::binary;
use butterfs_testkit::{requirement, scratch};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const BACKING_BYTES: u64 = 16 << 30;
/// Subvolumes of one directory, as in the script.
const IN_ONE_DIRECTORY: usize = 1_000;
/// The number of times that a single command is timed.
const TIMES: usize = 15;

/// Median and slowest time by name, in the order of the names' first use; and the time of the mounts.
#[derive(Default)]
struct Measured(Vec<(String, &'static str, Duration)>, Usage);

/// Runs the commands on both sides.
pub fn run(scale: Scale, table: &mut Table) {
    if !requirement::fuse("bench: subvolumes") {
        return;
    }
    let folder = scratch::Scratch::new("bench-subvolumes");
    let kernel = requirement::kernel_btrfs("bench: subvolumes beside the kernel");
    let sides = Sides::measure(kernel, |side| measure(side, scale, &folder));
    for (number, (what, bar, _)) in sides.ours.0.iter().enumerate() {
        table.times(what, sides.map(|measured| measured.0[number].2), bar);
    }
    sides.map(|measured| measured.1).enter("commands: all of it", table);
}

struct Commands {
    program: PathBuf,
    root: PathBuf,
}

impl Commands {
    fn run(&self, words: &[&str]) -> String {
        run_ok(120, &self.program, words)
    }

    fn path(&self, name: &str) -> String {
        self.root.join(name).to_string_lossy().into_owned()
    }
}

fn measure(side: Side, scale: Scale, folder: &scratch::Scratch) -> Measured {
    let image = folder.sparse_file("backing.img", BACKING_BYTES);
    let at = folder.folder("mnt");
    let mut measured = Measured::default();
    {
        let subject = Subject::new(side, &image, &at);
        let program = if side == Side::Kernel { PathBuf::from("btrfs") } else { binary() };
        let commands = Commands { program, root: subject.path().to_owned() };
        many(&commands, scale, &mut measured);
        measured.1 = measured.1.and(subject.finish());
    }
    {
        let subject = Subject::new(side, &image, &at);
        let program = if side == Side::Kernel { PathBuf::from("btrfs") } else { binary() };
        large(&Commands { program, root: subject.path().to_owned() }, scale, &mut measured);
        measured.1 = measured.1.and(subject.finish());
    }
    std::fs::remove_file(image).expect("our own file");
    measured
}

fn many(commands: &Commands, scale: Scale, measured: &mut Measured) {
    let mut made = 0;
    let mut last = String::new();
    for size in super::sizes(scale.subvolumes) {
        let (before, started) = (made, Instant::now());
        while made < size {
            let directory = commands.path(&format!("d{}", made / IN_ONE_DIRECTORY));
            if !Path::new(&directory).exists() {
                std::fs::create_dir(&directory).expect("a new name");
            }
            let source = format!("{directory}/{made}");
            commands.run(&["subvolume", "create", &source]);
            last = format!("{source}ro");
            commands.run(&["subvolume", "snapshot", "-r", &source, &last]);
            made += 2;
        }
        let each = started.elapsed() / ((made - before).max(1) as u32);
        measured.0.push((format!("commands: {size} subvolumes made, each of the last"), "", each));
        let shown = commands.run(&["subvolume", "show", &last]);
        let uuid =
            shown.lines().find_map(|line| line.trim().strip_prefix("UUID:")).expect("it has one").trim().to_owned();
        let root = commands.path("");
        measured.median(&format!("commands: show by UUID among {size}"), "flat", || {
            commands.run(&["subvolume", "show", "-u", &uuid, &root]);
        });
        measured.median(&format!("commands: send of an empty one among {size}"), "<= 1.00x, flat", || {
            commands.run(&["send", "-q", "-f", "/dev/null", &last]);
        });
    }
}

fn large(commands: &Commands, scale: Scale, measured: &mut Measured) {
    let source = commands.path("large");
    commands.run(&["subvolume", "create", &source]);
    for number in 0..scale.library_files {
        std::fs::write(format!("{source}/file{number:08}"), b"content").expect("room");
    }
    run_ok(600, "sync", &["-f", &source]);
    let mut number = 0;
    measured.median(&format!("commands: snapshot of {} files", scale.library_files), "<= 10 ms", || {
        number += 1;
        let name = commands.path(&format!("snapshot{number}"));
        commands.run(&["subvolume", "snapshot", "-r", &source, &name]);
    });
}

impl Measured {
    fn median(&mut self, what: &str, bar: &'static str, mut work: impl FnMut()) {
        let mut times: Vec<Duration> = (0..TIMES)
            .map(|_| {
                let started = Instant::now();
                work();
                started.elapsed()
            })
            .collect();
        times.sort_unstable();
        self.0.push((what.to_owned(), bar, times[TIMES / 2]));
        self.0.push((format!("{what}, slowest"), bar, times[TIMES - 1]));
    }
}
