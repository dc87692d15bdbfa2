//! Building images of folders: beside mkfs.btrfs and mkfs.erofs, the newest that there are, and the size beside that of
//! a filesystem to which the kernel has copied the same tree.
//!
//! The other programs are wrappers in the folder of the tools (`cargo xtask bench` fetches them); without them the
//! system's are taken, and what cannot do the work is left out.

use crate::Scale;
use crate::everyday::tree_archive;
use crate::subject::Sides;
use crate::table::Table;
use butterfs_testkit::kernel::{self, KernelMount, run_ok};
use butterfs_testkit::scratch::{self, Scratch};
use butterfs_testkit::{requirement, serve};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const FILES_PER_FOLDER: u64 = 1000;
const MEMORY_BAR: &str = "<= 512 MiB";
const PROCESSOR_BAR: &str = "<= 10.00 s";

/// The time and memory that a program took.
struct Taken {
    elapsed: Duration,
    processor: Duration,
    peak_bytes: u64,
}

/// Builds images of a source tree and of many small files.
pub fn run(scale: Scale, table: &mut Table) {
    if !serve::binary().is_file() {
        return;
    }
    let folder = Scratch::new("bench-images");
    source_tree(scale, &folder, table);
    small_files(scale, &folder, table);
}

fn source_tree(scale: Scale, folder: &Scratch, table: &mut Table) {
    let Some(archive) = tree_archive(scale, folder.path()) else { return };
    let tree = folder.folder("tree");
    run_ok(600, "tar", &["-C", text(&tree), "-xf", text(&archive)]);
    fs::remove_file(archive).expect("our own file");
    let (ours, theirs) = (folder.join("ours.img"), folder.join("theirs.img"));
    warm(&tree);
    let built = measure(&serve::binary(), &build(&ours, &tree));
    for (program, what, arguments, bar) in [
        ("mkfs.btrfs", "--rootdir --compress zstd:3", mkfs_btrfs(&theirs, &tree), "<= 0.50x"),
        ("mkfs.erofs", "-zzstd", mkfs_erofs("-zzstd", &theirs, &tree), "<= 1.11x"),
        ("mkfs.erofs", "-zzstd,3 -C131072", mkfs_erofs("-zzstd,3 -C131072", &theirs, &tree), ""),
    ] {
        let Some(path) = newest(program) else { continue };
        let Some(other) = measured(&path, &arguments, &theirs) else { continue };
        let name = format!("image of a source tree, zstd:3, beside {} {what}", version(&path, program));
        table.times(&name, Sides::two(built.elapsed, Some(other.elapsed)), bar);
        let processor = Sides::two(built.processor, Some(other.processor));
        table.times(&format!("the same, processor, beside {program} {what}"), processor, "");
    }
    peak("image of a source tree: peak memory", &built, table);
    sizes(&tree, &ours, folder, table);
}

fn small_files(scale: Scale, folder: &Scratch, table: &mut Table) {
    let (tree, image) = (folder.folder("small"), folder.join("small.img"));
    for number in 0..scale.library_files {
        let parent = tree.join(format!("folder-{}", number / FILES_PER_FOLDER));
        if number % FILES_PER_FOLDER == 0 {
            fs::create_dir(&parent).expect("room");
        }
        let content = format!("content of file {number}\n").repeat(number as usize % 8);
        fs::write(parent.join(format!("file-{number}")), content).expect("room");
    }
    let arguments = ["image", "build", text(&image), "--from", text(&tree), "--epoch", "1700000000", "-q"];
    let built = measure(&serve::binary(), &arguments);
    let what = format!("image of {} small files", scale.library_files);
    let shown = format!("{:.2} s", built.processor.as_secs_f64());
    table.value(&format!("{what}: processor"), shown, None, None, PROCESSOR_BAR);
    table.times(&format!("{what}: time"), Sides::two(built.elapsed, None), "");
    peak(&format!("{what}: peak memory"), &built, table);
}

fn peak(what: &str, taken: &Taken, table: &mut Table) {
    table.value(what, format!("{} MiB", taken.peak_bytes >> 20), None, None, MEMORY_BAR);
}

/// The space in use, both copies of metadata counted, beside a filesystem that the kernel has filled.
fn sizes(tree: &Path, image: &Path, folder: &Scratch, table: &mut Table) {
    if !requirement::kernel_btrfs("bench beside the kernel") {
        return;
    }
    let theirs = folder.sparse_file("kernel.img", 8 << 30);
    kernel::mkfs(&theirs, &[]);
    let mount = KernelMount::new(&theirs, "compress=zstd:3");
    run_ok(600, "cp", &["-a", &format!("{}/.", text(tree)), text(mount.path())]);
    run_ok(600, "btrfs", &["filesystem", "sync", text(mount.path())]);
    let used = |mount: &KernelMount| {
        let shown = run_ok(60, "btrfs", &["filesystem", "usage", "-b", text(mount.path())]);
        let line = shown.lines().find_map(|line| line.trim().strip_prefix("Used:"));
        line.and_then(|number| number.trim().parse::<f64>().ok()).expect("it shows that")
    };
    let kernel = used(&mount);
    mount.finish();
    let mount = KernelMount::new(image, "ro");
    let sides = Sides::two(used(&mount), Some(kernel));
    mount.finish();
    let mebibytes = |bytes: f64| format!("{:.1} MiB", bytes / f64::from(1 << 20));
    table.compared(
        "image of a source tree: space in use, beside the kernel's copy",
        sides,
        mebibytes,
        true,
        "<= 1.00x",
    );
    let sides = Sides::two(fs::metadata(image).expect("our own file").len() as f64, Some(kernel));
    table.compared("the same: bytes of the file, beside those of the kernel's copy", sides, mebibytes, true, "");
}

fn build<'a>(image: &'a Path, tree: &'a Path) -> Vec<&'a str> {
    vec!["image", "build", text(image), "--from", text(tree), "--compress", "zstd:3", "--epoch", "1700000000", "-q"]
}

fn mkfs_btrfs<'a>(image: &'a Path, tree: &'a Path) -> Vec<&'a str> {
    vec!["-q", "-f", "--rootdir", text(tree), "--compress", "zstd:3", "--shrink", text(image)]
}

fn mkfs_erofs<'a>(how: &'a str, image: &'a Path, tree: &'a Path) -> Vec<&'a str> {
    how.split(' ').chain(["--quiet", text(image), text(tree)]).collect()
}

/// The newest program of this name.
fn newest(name: &str) -> Option<PathBuf> {
    let fetched = ["image-makers/bin", "btrfs-progs/sbin"].map(|folder| scratch::tools().join(folder).join(name));
    fetched.into_iter().find(|path| path.is_file()).or_else(|| requirement::program(name))
}

/// Its name and version.
fn version(program: &Path, name: &str) -> String {
    let output = Command::new(program).arg("-V").output().expect("the program is there");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut words = said.lines().next().unwrap_or_default().split(' ');
    let number = words.rfind(|word| word.trim_start_matches('v').starts_with(|it: char| it.is_ascii_digit()));
    format!("{name} {}", number.unwrap_or_default().trim_start_matches('v'))
}

/// Reads the tree once, so that the first to come does not pay for it.
fn warm(tree: &Path) {
    run_ok(600, "sh", &["-c", &format!("tar -cf - '{}' 2>&1 | wc -c", text(tree))]);
}

/// The time and memory that a program takes to make `image`; none where it cannot.
fn measured(program: &Path, arguments: &[&str], image: &Path) -> Option<Taken> {
    if program.ends_with("mkfs.btrfs") {
        // It fills a file that is there, and shrinks it.
        let made = fs::File::create(image).and_then(|file| file.set_len(8 << 30));
        made.expect("room for a sparse file");
    }
    let taken = try_measure(program, arguments);
    let _ = fs::remove_file(image);
    if taken.is_none() {
        eprintln!("{} {} fails", program.display(), arguments.join(" "));
    }
    taken
}

fn measure(program: &Path, arguments: &[&str]) -> Taken {
    try_measure(program, arguments).unwrap_or_else(|| panic!("{} {} fails", program.display(), arguments.join(" ")))
}

fn try_measure(program: &Path, arguments: &[&str]) -> Option<Taken> {
    let start = Instant::now();
    let mut command = Command::new(program);
    let mut child = command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
    let mut taken = Taken { elapsed: Duration::ZERO, processor: Duration::ZERO, peak_bytes: 0 };
    loop {
        taken.processor = taken.processor.max(processor_time(child.id()).unwrap_or_default());
        taken.peak_bytes = taken.peak_bytes.max(peak_of(child.id()).unwrap_or(0));
        if let Some(status) = child.try_wait().expect("it was started") {
            taken.elapsed = start.elapsed();
            return status.success().then_some(taken);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Time of a process on processors, of all its threads.
fn processor_time(process: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name stands in parentheses and can have blanks; user and system time are the 12th and 13th fields behind it.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

fn peak_of(process: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").parse::<u64>().ok().map(|kib| kib << 10)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are text")
}
