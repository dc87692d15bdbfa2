//! Contents of files: compressed and not, many writers, random reads, sharing, filling and emptying; through a mount,
//! and some of it by the engine alone on the same backing file.
//!
//! Rates are of uncompressed bytes and include making it durable. The text is C source.

use crate::Scale;
use crate::subject::{Side, Sides, Subject};
use crate::table::Table;
use butterfs_device::{FileDevice, FileOptions};
use butterfs_fs::{Caller, DataPolicy, Env, Filesystem, Options};
use butterfs_testkit::kernel::{self, run_ok};
use butterfs_testkit::rng::Rng;
use butterfs_testkit::serve::binary;
use butterfs_testkit::{requirement, scratch, source_tree};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

const MOUNT_BAR: &str = ">= 0.70x";
const LIBRARY_BAR: &str = ">= 1.00x";
const TIME_BAR: &str = "<= 2.00x";
const BACKING_BYTES: u64 = 8 << 30;
const CHUNK: usize = 1 << 20;
const WRITERS: u64 = 16;
const METHODS: [&str; 3] = ["zlib", "lzo", "zstd"];

/// The measurements of one side: rates in MB/s, bytes, seconds.
type Numbers = BTreeMap<String, f64>;

/// Contents to write.
struct Inputs {
    text: Vec<u8>,
    noise: Vec<u8>,
}

/// Runs everything on both sides.
pub fn run(scale: Scale, table: &mut Table) {
    if !requirement::fuse("bench") {
        return;
    }
    let folder = scratch::Scratch::new("bench-data");
    let inputs = Inputs { text: text(scale, folder.path()), noise: noise(scale.bytes as usize) };
    let kernel = requirement::kernel_btrfs("bench beside the kernel");
    let sides = Sides::measure(kernel, |side| measure(side, scale, &inputs, &folder));
    let rate = |rate: f64| format!("{rate:.0} MB/s");
    for what in sides.ours.keys() {
        let both = sides.find(|numbers| numbers.get(what).copied()).expect("one of ours");
        match what {
            _ if what.ends_with("on disk") => {
                table.compared(what, both, |bytes| format!("{:.1} MB", bytes / 1e6), true, "<= 1.10x");
            }
            _ if what.contains("MB/s") => table.compared(what, both, rate, false, MOUNT_BAR),
            _ => table.compared(what, both, crate::table::seconds, true, TIME_BAR),
        }
    }
    for (what, number) in library(&inputs, &folder) {
        let kernels =
            sides.kernel.as_ref().and_then(|kernel| kernel.get(what.trim_start_matches("library: ")).copied());
        table.compared(&what, Sides::two(number, kernels), rate, false, LIBRARY_BAR);
    }
}

/// Real text, as much as is asked for; the same again where there is not enough.
fn text(scale: Scale, folder: &Path) -> Vec<u8> {
    let wanted = scale.bytes as usize;
    let file = folder.join("text");
    let unpacked = source_tree::tarball("bench: real text").map(|tarball| {
        let name = source_tree::top_folder(&tarball);
        let script = format!("tar -xOJf '{}' '{name}/fs' > '{}'", tarball.display(), file.display());
        run_ok(300, "sh", &["-c", &script]);
        std::fs::read(&file).expect("just written")
    });
    let lines = || (0..200_000).flat_map(|i: u64| format!("static int line_{i}(struct inode *);\n").into_bytes());
    let source = unpacked.filter(|text| !text.is_empty()).unwrap_or_else(|| lines().collect());
    source.iter().copied().cycle().take(wanted).collect()
}

fn noise(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(1).fill(&mut bytes);
    bytes
}

fn megabytes_per_second(bytes: usize, started: Instant) -> f64 {
    bytes as f64 / 1e6 / started.elapsed().as_secs_f64()
}

fn sync(subject: &Subject) {
    run_ok(300, "sync", &["-f", &subject.path().to_string_lossy()]);
}

fn write(path: &Path, content: &[u8]) {
    let mut file = File::create(path).expect("room for a name");
    content.chunks(CHUNK).for_each(|chunk| file.write_all(chunk).expect("room"));
}

/// Reads a file to its end; returns how long it is.
pub fn read(path: &Path) -> usize {
    let mut file = File::open(path).expect("the file was written");
    let (mut buffer, mut total) = (vec![0; CHUNK], 0);
    loop {
        match file.read(&mut buffer).expect("a good device") {
            0 => return total,
            len => total += len,
        }
    }
}

fn measure(side: Side, scale: Scale, inputs: &Inputs, folder: &scratch::Scratch) -> Numbers {
    let image = folder.sparse_file("backing.img", BACKING_BYTES);
    let at = folder.folder("mnt");
    let mut numbers = Numbers::new();
    for method in METHODS {
        let mut subject = Subject::with(side, &image, &at, &format!("noatime,compress={method}"));
        compressed(&mut subject, method, inputs, &mut numbers);
    }
    let mut subject = Subject::new(side, &image, &at);
    plain(&mut subject, side, scale, inputs, &mut numbers);
    drop(subject);
    std::fs::remove_file(&image).expect("our own file");
    let image = folder.sparse_file("small.img", 256 << 20);
    let subject = Subject::new(side, &image, &at);
    fill_and_delete(&subject, inputs, &mut numbers);
    drop(subject);
    std::fs::remove_file(image).expect("our own file");
    numbers
}

fn used(subject: &Subject) -> f64 {
    let statvfs = rustix::fs::statvfs(subject.path()).expect("mounted");
    (statvfs.f_blocks - statvfs.f_bfree) as f64 * statvfs.f_frsize as f64
}

fn compressed(subject: &mut Subject, method: &str, inputs: &Inputs, numbers: &mut Numbers) {
    sync(subject);
    let before = used(subject);
    for (kind, content) in [("text", &inputs.text), ("random data", &inputs.noise)] {
        let path = subject.path().join(kind);
        let started = Instant::now();
        write(&path, content);
        sync(subject);
        let rate = megabytes_per_second(content.len(), started);
        numbers.insert(format!("write {kind}, compress={method}, MB/s"), rate);
        if kind == "text" {
            numbers.insert(format!("text, compress={method}, on disk"), used(subject) - before);
        }
        subject.cool();
        let path = subject.path().join(kind);
        let started = Instant::now();
        assert_eq!(read(&path), content.len());
        numbers.insert(
            format!("read {kind}, compress={method}, cold, MB/s"),
            megabytes_per_second(content.len(), started),
        );
    }
}

fn plain(subject: &mut Subject, side: Side, scale: Scale, inputs: &Inputs, numbers: &mut Numbers) {
    let large = subject.path().join("large");
    write(&large, &inputs.noise);
    sync(subject);
    subject.cool();
    let large = subject.path().join("large");
    let reads = (scale.bytes / (64 << 10)).max(100);
    let file = File::open(&large).expect("the file was written");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).expect("a hint");
    let (mut rng, mut buffer) = (Rng::new(7), [0; 4096]);
    let started = Instant::now();
    for _ in 0..reads {
        file.read_exact_at(&mut buffer, rng.below(scale.bytes / 4096) * 4096).expect("a good device");
    }
    numbers.insert(format!("{reads} random reads of 4 KiB, cold"), started.elapsed().as_secs_f64());
    drop(file);

    let started = Instant::now();
    clone(side, &large, &subject.path().join("clone"));
    numbers.insert(format!("clone {} MiB", scale.bytes >> 20), started.elapsed().as_secs_f64());

    let share = inputs.noise.len() / WRITERS as usize;
    let started = Instant::now();
    std::thread::scope(|scope| {
        for (number, part) in inputs.noise.chunks(share).enumerate() {
            let path = subject.path().join(format!("writer-{number}"));
            scope.spawn(move || write(&path, part));
        }
    });
    sync(subject);
    let rate = megabytes_per_second(inputs.noise.len(), started);
    numbers.insert(format!("{WRITERS} writers at once, MB/s"), rate);
}

fn clone(side: Side, from: &Path, to: &Path) {
    let [from, to] = [from, to].map(|path| path.to_string_lossy().into_owned());
    match side {
        Side::Ours | Side::OnDevice => run_ok(120, binary(), &["reflink", "clone", &from, &to]),
        Side::Kernel => run_ok(120, "cp", &["--reflink=always", &from, &to]),
        Side::Memory => unreachable!("only everyday work is compared with it"),
    };
}

/// Until nothing fits any more, and empty again; twice.
fn fill_and_delete(subject: &Subject, inputs: &Inputs, numbers: &mut Numbers) {
    let folder = subject.path().join("full");
    let started = Instant::now();
    let mut files = Vec::new();
    for _ in 0..2 {
        std::fs::create_dir(&folder).expect("room for a name");
        let mut count = 0;
        for chunk in inputs.noise.chunks(CHUNK).cycle() {
            let written = File::create(folder.join(count.to_string())).and_then(|mut file| {
                file.write_all(chunk)?;
                file.sync_data()
            });
            count += 1;
            if written.is_err() {
                break;
            }
        }
        files.push(count);
        std::fs::remove_dir_all(&folder).expect("deleting always works");
        // The first one may tell of what did not fit; nobody waits for that any more.
        kernel::run(300, "sync", &["-f", &subject.path().to_string_lossy()]);
        sync(subject);
    }
    numbers.insert("fill 256 MiB with files of 1 MiB and delete, twice".into(), started.elapsed().as_secs_f64());
    assert!(files[1] * 10 >= files[0] * 9, "the second time {} files fit, the first time {}", files[1], files[0]);
}

/// The engine without FUSE: text, by each method.
fn library(inputs: &Inputs, folder: &scratch::Scratch) -> Vec<(String, f64)> {
    let mut numbers = Vec::new();
    for method in METHODS {
        let image = folder.sparse_file("library.img", BACKING_BYTES);
        run_ok(60, binary(), &["mkfs", "-q", "-f", &image.to_string_lossy()]);
        let open = || {
            let mut data = DataPolicy::default();
            data.compress(butterfs_fs::Method::parse(method), false);
            let device = FileDevice::open(&image, &FileOptions::read_write()).expect("our own image");
            let options = Options { data, ..Options::default() };
            Filesystem::open(vec![Arc::new(device)], options, Env::system()).expect("a new filesystem")
        };
        let filesystem = open();
        let id = filesystem.create(&Caller::default(), filesystem.root(), b"text", 0o644).expect("a name").id;
        let started = Instant::now();
        for (number, chunk) in inputs.text.chunks(CHUNK).enumerate() {
            filesystem.write(id, (number * CHUNK) as u64, chunk, false).expect("room");
        }
        filesystem.sync().expect("a good device");
        let rate = megabytes_per_second(inputs.text.len(), started);
        numbers.push((format!("library: write text, compress={method}, MB/s"), rate));
        filesystem.shutdown().expect("a good device");
        drop(filesystem);
        // Without root the caches stay.
        let _ = std::fs::write("/proc/sys/vm/drop_caches", "3\n");
        let filesystem = open();
        let id = filesystem.lookup(filesystem.root(), b"text").expect("it was written").id;
        let mut out = Vec::new();
        let started = Instant::now();
        for number in 0..inputs.text.len().div_ceil(CHUNK) {
            filesystem.read(id, (number * CHUNK) as u64, CHUNK, &mut out).expect("a good device");
        }
        let rate = megabytes_per_second(inputs.text.len(), started);
        numbers.push((format!("library: read text, compress={method}, cold, MB/s"), rate));
        filesystem.shutdown().expect("a good device");
        drop(filesystem);
        std::fs::remove_file(image).expect("our own file");
    }
    numbers
}
