//! Everyday work through a mount: create, unpack, find, remove, write, read.
//!
//! Work on names and small files is also measured on a filesystem in memory behind the same session and
//! transport, before it is made durable on both: that separates the transport's share from the engine's.

use crate::Scale;
use crate::subject::{Side, Sides, Subject, Usage};
use crate::table::Table;
use butterfs_testkit::kernel::run_ok;
use butterfs_testkit::serve::memory_binary;
use butterfs_testkit::{requirement, scratch};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const METADATA_BAR: &str = "<= 1.50x";
const MEMORY_BAR: &str = "<= 1.20x";
const SEQUENTIAL_BAR: &str = "<= 1.11x";
const IDLE_BAR: &str = "<= 64 MiB";
const BACKING_BYTES: u64 = 8 << 30;

/// The steps with an unpacked source tree, in order: its name, whether every cache is emptied first, and the
/// commands. `$A` is the archive; the unpacked tree is `tree`.
const ON_A_TREE: &[(&str, bool, &str)] = &[
    ("unpack the source tree", false, "mkdir tree && tar -xf $A -C tree"),
    ("copy it (cp -a)", false, "cp -a tree copy"),
    ("find, cold", true, "find . -size +1G"),
    ("find, warm", false, "find . -size +1G"),
    ("du, cold", true, "du -s . > /dev/null"),
    ("du, warm", false, "du -s . > /dev/null"),
    ("grep -r, cold", true, "grep -r no_such_word_anywhere tree; true"),
    ("grep -r, warm", false, "grep -r no_such_word_anywhere tree; true"),
    (
        "git add and commit",
        false,
        "cd tree && git init -q && git add -A && git -c user.name=a -c user.email=a@b -c gc.auto=0 commit -q -m first",
    ),
    ("git status, cold", true, "cd tree && git status --porcelain | wc -l > /dev/null"),
    ("git status, warm", false, "cd tree && git status --porcelain | wc -l > /dev/null"),
    ("git checkout of everything", false, "cd tree && rm -rf -- * && git checkout -q -- ."),
    ("rm -rf, cold", true, "rm -rf ./*"),
];

/// The measurements of a piece of work.
struct Measurement {
    what: String,
    bar: &'static str,
    /// Before it was made durable.
    work: Duration,
    durable: Duration,
}

/// In their order.
type Measurements = Vec<Measurement>;

/// The resources that the mounts of some of the work used.
type Usages = Vec<(&'static str, Usage)>;

/// Runs everything on both sides.
pub fn run(scale: Scale, table: &mut Table) {
    if !requirement::fuse("bench") {
        return;
    }
    let folder = scratch::Scratch::new("bench");
    let archive = tree_archive(scale, folder.path());
    let kernel = requirement::kernel_btrfs("bench beside the kernel");
    let sides = Sides::measure(kernel, |side| measure(side, scale, archive.as_deref(), &folder, table));
    let memory = match memory_binary() {
        Some(_) => by_name(measure(Side::Memory, scale, archive.as_deref(), &folder, table).0),
        None => {
            eprintln!("without the filesystem in memory, the example `memory` of butterfs-fuse: it was not built");
            BTreeMap::new()
        }
    };
    for (number, Measurement { what, bar, work, .. }) in sides.ours.0.iter().enumerate() {
        table.times(what, sides.map(|(measurements, _)| measurements[number].durable), bar);
        if let Some(memory) = memory.get(what) {
            table.in_memory(*work, memory.work, MEMORY_BAR);
        }
    }
    for (number, (what, _)) in sides.ours.1.iter().enumerate() {
        sides.map(|(_, usages)| usages[number].1).enter(what, table);
    }
}

fn by_name(measurements: Measurements) -> BTreeMap<String, Measurement> {
    measurements.into_iter().map(|measurement| (measurement.what.clone(), measurement)).collect()
}

fn measure(
    side: Side,
    scale: Scale,
    archive: Option<&Path>,
    folder: &scratch::Scratch,
    table: &mut Table,
) -> (Measurements, Usages) {
    let image = folder.sparse_file("backing.img", BACKING_BYTES);
    let at = folder.folder("mnt");
    let (mut measurements, mut usages) = (Measurements::new(), Usages::new());
    {
        let subject = Subject::new(side, &image, &at);
        if let Some(process) = subject.process().filter(|_| side == Side::Ours) {
            table.value("resident memory of an idle mount", resident(process), None, None, IDLE_BAR);
        }
        measurements.push(timed(&format!("create {} empty files", scale.files), METADATA_BAR, &subject, |root| {
            create_files(root, scale.files);
        }));
        measurements.push(timed(
            &format!("write {} files of 4 KiB", scale.files / 10),
            METADATA_BAR,
            &subject,
            |root| {
                small_files(root, scale.files / 10);
            },
        ));
        usages.push(("files made", subject.finish()));
    }
    if let Some(archive) = archive {
        let mut subject = Subject::new(side, &image, &at);
        for (what, cold, script) in ON_A_TREE {
            if *cold {
                subject.cool();
            }
            let script = script.replace("$A", &format!("'{}'", archive.display()));
            measurements.push(timed(what, METADATA_BAR, &subject, |root| shell(root, 900, &script)));
        }
        usages.push(("all with the source tree", subject.finish()));
    }
    if side != Side::Memory {
        usages.push(("large files", contents(Subject::new(side, &image, &at), scale, &mut measurements)));
    }
    std::fs::remove_file(image).expect("our own file");
    (measurements, usages)
}

/// A large file.
fn contents(mut subject: Subject, scale: Scale, measurements: &mut Measurements) -> Usage {
    let mebibytes = scale.bytes >> 20;
    measurements
        .push(timed(&format!("write {mebibytes} MiB"), SEQUENTIAL_BAR, &subject, |root| write_file(root, scale.bytes)));
    subject.cool();
    measurements.push(timed(&format!("read {mebibytes} MiB, cold"), SEQUENTIAL_BAR, &subject, |root| {
        read_file(root, scale.bytes)
    }));
    subject.cool();
    for (what, reading) in [("random 4 KiB reads", true), ("random 4 KiB writes", false)] {
        let what = format!("{} {what}", scale.files / 10);
        measurements.push(timed(&what, SEQUENTIAL_BAR, &subject, |root| random_blocks(root, scale, reading)));
    }
    subject.finish()
}

/// Runs `work` and makes it durable.
fn timed(what: &str, bar: &'static str, subject: &Subject, work: impl FnOnce(&Path)) -> Measurement {
    let root = subject.path();
    let started = Instant::now();
    work(root);
    let work = started.elapsed();
    shell(root, 300, "sync -f .");
    Measurement { what: what.to_owned(), bar, work, durable: started.elapsed() }
}

fn shell(folder: &Path, limit_s: u32, script: &str) {
    run_ok(limit_s, "sh", &["-c", &format!("cd '{}' && {script}", folder.display())]);
}

fn create_files(root: &Path, count: u64) {
    let folder = root.join("files");
    std::fs::create_dir(&folder).expect("a new filesystem");
    for number in 0..count {
        std::fs::File::create_new(folder.join(format!("file-{number:08}"))).expect("a new folder");
    }
}

fn write_file(root: &Path, bytes: u64) {
    let mut file = std::fs::File::create(root.join("large")).expect("a new filesystem");
    let mut buffer = vec![0; 1 << 20];
    butterfs_testkit::rng::Rng::new(1).fill(&mut buffer);
    for number in 0..bytes >> 20 {
        buffer[..8].copy_from_slice(&number.to_le_bytes());
        file.write_all(&buffer).expect("room for the file");
    }
}

fn read_file(root: &Path, bytes: u64) {
    let mut file = std::fs::File::open(root.join("large")).expect("the file was written");
    let mut buffer = vec![0; 1 << 20];
    let mut total = 0;
    loop {
        match file.read(&mut buffer).expect("a good device") {
            0 => break,
            len => total += len as u64,
        }
    }
    assert_eq!(total, bytes);
}

/// Blocks of the large file, in an order that nothing can foresee.
fn random_blocks(root: &Path, scale: Scale, reading: bool) {
    let file = std::fs::OpenOptions::new().read(true).write(!reading).open(root.join("large"));
    let file = file.expect("the file was written");
    let mut rng = butterfs_testkit::rng::Rng::new(2);
    let mut block = [7; 4096];
    for _ in 0..scale.files / 10 {
        let offset = rng.below(scale.bytes / 4096) * 4096;
        match reading {
            true => file.read_exact_at(&mut block, offset).expect("a good device"),
            false => file.write_all_at(&block, offset).expect("room"),
        }
    }
}

fn small_files(root: &Path, count: u64) {
    let folder = root.join("small");
    std::fs::create_dir(&folder).expect("a new name");
    for number in 0..count {
        std::fs::write(folder.join(format!("{number}")), [number as u8; 4096]).expect("room");
    }
}

fn resident(process: u32) -> String {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let kibibytes =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse::<u64>().ok());
    format!("{:.1} MiB", kibibytes.unwrap_or(0) as f64 / 1024.0)
}

/// The source tree, or the part of it that is asked for, as an archive that costs nothing to read.
pub fn tree_archive(scale: Scale, folder: &Path) -> Option<PathBuf> {
    let source = butterfs_testkit::source_tree::tarball("bench: the source tree")?;
    let archive = folder.join("tree.tar");
    let script = match scale.tree {
        "" => format!("xz -dcT0 '{}' > '{}'", source.display(), archive.display()),
        part => {
            let name = butterfs_testkit::source_tree::top_folder(&source);
            let unpack = format!("tar -xJf '{}' '{name}/{part}'", source.display());
            format!("{unpack} && tar -cf '{}' '{name}/{part}' && rm -rf '{name}'", archive.display())
        }
    };
    shell(folder, 300, &script);
    Some(archive)
}
