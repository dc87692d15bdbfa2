//! Bad input: images that are damaged or made to do damage end in an error that names place and rule, or in the good
//! copy; never in a panic, a hang, unbounded memory, or wrong data.

use butterfs_device::{BlockDevice, FileDevice, FileOptions, MemoryDevice, is_zero};
use butterfs_fs::{Env, Filesystem, Options};
use butterfs_ondisk::ChecksumKind;
use butterfs_testkit::engine::Format;
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::library::Library;
use butterfs_testkit::model::ModelFs;
use butterfs_testkit::operation::{Content, Object, Op, OperationTarget, RelPath};
use butterfs_testkit::requirement;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::serve::{Served, binary};
use butterfs_testkit::watchdog::Watchdog;
use butterfs_testkit::workload::{Generator, Shape, run};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const SUPERBLOCK: u64 = 64 << 10;
const SECOND_SUPERBLOCK: u64 = 64 << 20;
/// The position at which the checksum ends in a superblock and in a node.
const CHECKSUM_BYTES: usize = 32;

fn options(read_only: bool) -> Options {
    Options { read_only, commit_interval_secs: 3600, node_cache_bytes: 16 << 20, ..Options::default() }
}

/// Opens, looks at everything, and closes; where it may be written, also changes something and commits.
fn visit(device: Arc<dyn BlockDevice>, read_only: bool) -> Result<Fingerprint, String> {
    let filesystem =
        Filesystem::open(vec![device], options(read_only), Env::system()).map_err(|error| error.to_string())?;
    let shown = Fingerprint::of_library(&filesystem);
    if !read_only {
        let mut library = Library::new(&filesystem);
        let path = RelPath::from("hostile-visitor");
        let content = Content { seed: 2, len: 10_000 };
        // Whatever they answer: they must answer.
        let _ = library.apply(&Op::Create { path: path.clone(), mode: 0o644 });
        let _ = library.apply(&Op::Write { object: Object::Path(path.clone()), offset: 0, content });
        let _ = library.apply(&Op::Sync);
        let _ = library.apply(&Op::Unlink { path });
        filesystem.shutdown().map_err(|error| error.to_string())?;
    }
    shown
}

const IMAGE: &str = "BUTTERFS_HOSTILE_IMAGE";

/// Not a test of its own: what `corpus` runs in a process with limits.
#[test]
fn child() {
    let Some(image) = std::env::var_os(IMAGE) else { return };
    for read_only in [true, false] {
        let started = Instant::now();
        let options = FileOptions { write: !read_only, ..FileOptions::read_write() };
        let device = FileDevice::open(&image, &options).unwrap_or_else(|error| panic!("{error}"));
        let ended = visit(Arc::new(device), read_only);
        let verdict = ended.map_or_else(|sentence| sentence, |print| format!("clean, {} entries", print.entries.len()));
        println!("VERDICT {} ms: {verdict}", started.elapsed().as_millis());
    }
}

/// One sentence that names something: not empty, on one line, not a debug print.
fn is_sentence(text: &str) -> bool {
    text.len() > 10 && text.contains(' ') && !text.contains('\n') && !text.contains("unwrap")
}

#[test]
fn corpus() {
    const TEST: &str = "corpus";
    const IMAGES: usize = 31;
    if !requirement::programs(TEST, &["xz", "prlimit", "timeout"]) {
        return;
    }
    let Some(folder) = requirement::shared_data(TEST, "corpus/fuzz") else { return };
    let _watchdog = Watchdog::new(TEST, 300);
    let mut images: Vec<_> =
        std::fs::read_dir(folder).expect("it exists").flatten().map(|entry| entry.path()).collect();
    images.sort();
    assert_eq!(images.len(), IMAGES);
    let scratch = Scratch::new(TEST);
    let mut problems = Vec::new();
    for packed in images {
        let name = packed.file_stem().expect("a file name").to_string_lossy().into_owned();
        let image = scratch.join(&name);
        let unpack = format!("xz -dc '{}' > '{}'", packed.display(), image.display());
        butterfs_testkit::kernel::run_ok(60, "sh", &["-c", &unpack]);
        let program = std::env::current_exe().expect("a program knows its own path");
        let mut command = Command::new("prlimit");
        command.args(["--as=1073741824", "--core=0", "timeout", "-k", "1", "20"]).arg(program);
        command.args(["--exact", "child", "--nocapture", "--test-threads=1"]).env(IMAGE, &image);
        let output = command.output().expect("prlimit was required");
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        let verdicts: Vec<&str> =
            text.lines().filter_map(|line| line.split_once("VERDICT ")).map(|(_, rest)| rest).collect();
        verdicts.iter().for_each(|verdict| println!("{name}: {verdict}"));
        if !output.status.success() || verdicts.len() != 2 {
            problems.push(format!("{name}: {}: {text}", output.status));
        }
        for verdict in verdicts {
            let (time, sentence) = verdict.split_once(" ms: ").expect("as printed");
            if time.parse::<u64>().expect("as printed") > 1000 || !is_sentence(sentence) {
                problems.push(format!("{name}: {verdict}"));
            }
        }
        let _ = std::fs::remove_file(image);
    }
    assert!(problems.is_empty(), "{problems:#?}");
}

/// The same images given to the command: it exits with one sentence, or it mounts.
#[test]
fn corpus_mounted() {
    const TEST: &str = "corpus_mounted";
    if !requirement::fuse(TEST) || !requirement::programs(TEST, &["xz"]) {
        return;
    }
    let Some(folder) = requirement::shared_data(TEST, "corpus/fuzz") else { return };
    let _watchdog = Watchdog::new(TEST, 300);
    let scratch = Scratch::new(TEST);
    let at = scratch.folder("mnt");
    let mut problems = Vec::new();
    for packed in std::fs::read_dir(folder).expect("it exists").flatten() {
        let name = packed.file_name().to_string_lossy().into_owned();
        let image = scratch.join("image");
        let unpack = format!("xz -dc '{}' > '{}'", packed.path().display(), image.display());
        butterfs_testkit::kernel::run_ok(60, "sh", &["-c", &unpack]);
        let started = Instant::now();
        match Served::try_mount(&image, &at, "ro") {
            Ok(served) => {
                let _ = std::fs::read_dir(&at).map(|entries| entries.count());
                served.unmount();
            }
            Err(said) => {
                let said = said.lines().last().unwrap_or_default().to_owned();
                if started.elapsed() > Duration::from_secs(1) || !is_sentence(&said) || said.contains("panicked") {
                    problems.push(format!("{name}: {:?}: {said}", started.elapsed()));
                }
            }
        }
    }
    assert!(problems.is_empty(), "{}: {problems:#?}", binary().display());
}

/// Notes where nodes are read.
#[derive(Debug)]
struct Traced {
    inner: MemoryDevice,
    nodesize: usize,
    nodes: Mutex<BTreeSet<u64>>,
}

impl BlockDevice for Traced {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        if buffer.len() == self.nodesize && offset.is_multiple_of(self.nodesize as u64) && offset != SUPERBLOCK {
            self.nodes.lock().expect("nobody panics").insert(offset);
        }
        self.inner.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)
    }

    fn name(&self) -> String {
        self.inner.name()
    }
}

/// A small filesystem, and where its nodes are: each with both copies.
struct Victim {
    disk: MemoryDevice,
    nodesize: usize,
    checksum: ChecksumKind,
    shown: Fingerprint,
    nodes: Vec<[u64; 2]>,
}

fn victim(format: &Format) -> Victim {
    let disk = Arc::new(MemoryDevice::new(192 << 20));
    let device: Arc<dyn BlockDevice> = disk.clone();
    format.make(&device);
    let filesystem = Filesystem::open(vec![device], options(false), Env::system()).expect("a new filesystem");
    let (mut model, mut library) = (ModelFs::default(), Library::new(&filesystem));
    let shape = Shape { inodes_max: 40, write_max: 30_000, file_max: 60_000, ..Shape::SMALL };
    run(&mut Generator::new(77, shape), 300, &mut model, &mut library).unwrap_or_else(|found| panic!("{found:?}"));
    for handle in model.handles().keys().copied().collect::<Vec<u32>>() {
        library.apply(&Op::Close { handle }).expect("it is open");
    }
    drop(library);
    filesystem.shutdown().expect("a good device");
    let nodesize = format.nodesize as usize;
    let traced = Arc::new(Traced { inner: disk.snapshot(), nodesize, nodes: Mutex::default() });
    let shown = visit(traced.clone(), true).expect("a good image");
    let read = traced.nodes.lock().expect("nobody panics").clone();
    let copies = copies_by_content(&disk, nodesize);
    let nodes = read.iter().filter_map(|offset| {
        let bytes = bytes_at(&disk, *offset, nodesize);
        let other = copies.get(&bytes)?.iter().find(|other| *other != offset)?;
        Some([*offset, *other])
    });
    let nodes: Vec<[u64; 2]> = nodes.collect();
    assert!(nodes.len() >= 7, "{} nodes with two copies of {} read", nodes.len(), read.len());
    Victim { disk: disk.snapshot(), nodesize, checksum: format.checksum, shown, nodes }
}

fn bytes_at(disk: &MemoryDevice, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    disk.read_at(offset, &mut bytes).expect("memory does not fail");
    bytes
}

fn copies_by_content(disk: &MemoryDevice, nodesize: usize) -> BTreeMap<Vec<u8>, Vec<u64>> {
    let mut copies: BTreeMap<Vec<u8>, Vec<u64>> = BTreeMap::new();
    let (node, mut offset) = (nodesize as u64, 0);
    while offset < disk.len() - node {
        let bytes = bytes_at(disk, offset, nodesize);
        if !is_zero(&bytes) {
            copies.entry(bytes).or_default().push(offset);
        }
        offset = disk.next_data(offset + node) / node * node;
    }
    copies
}

static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Visits a damaged disk; a panic anywhere or a long time is a problem, told in a sentence.
fn endure(what: &str, disk: MemoryDevice, read_only: bool) -> Result<Result<Fingerprint, String>, String> {
    const LIMIT: Duration = Duration::from_secs(2);
    let panics = PANICS.load(Ordering::SeqCst);
    let started = Instant::now();
    let ended = catch_unwind(AssertUnwindSafe(|| visit(Arc::new(disk), read_only)));
    if PANICS.load(Ordering::SeqCst) != panics {
        return Err(format!("{what}: panicked"));
    }
    if started.elapsed() > LIMIT {
        return Err(format!("{what}: took {:?}", started.elapsed()));
    }
    ended.map_err(|_| format!("{what}: panicked"))
}

fn count_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        // The test's own assertions print as always; the first of the engine's do too.
        if PANICS.fetch_add(1, Ordering::SeqCst) < 10 {
            before(info);
        }
    }));
}

impl Victim {
    fn restamp(&self, block: &mut [u8]) {
        let digest = self.checksum.digest(&block[CHECKSUM_BYTES..]);
        block[..CHECKSUM_BYTES].fill(0);
        block[..CHECKSUM_BYTES].copy_from_slice(&digest);
    }

    /// The disk with one node changed: in its first copy or in both.
    fn damaged(&self, node: usize, both: bool, change: impl Fn(&mut [u8])) -> MemoryDevice {
        let disk = self.disk.snapshot();
        let mut bytes = bytes_at(&disk, self.nodes[node][0], self.nodesize);
        change(&mut bytes);
        for offset in &self.nodes[node][..if both { 2 } else { 1 }] {
            disk.write_at(*offset, &bytes).expect("memory does not fail");
        }
        disk
    }

    fn bits(&self, step: usize) -> impl Iterator<Item = (usize, usize)> {
        let bits = self.nodesize * 8;
        (0..self.nodes.len() * bits).step_by(step).map(move |at| (at / bits, at % bits))
    }

    fn is_as_before(&self, shown: &Fingerprint) -> bool {
        differences(&self.shown, shown, Compare::ALL).is_empty()
    }
}

/// Every how many bits one is flipped, and other cases are tried; all of them where `BUTTERFS_EXHAUSTIVE` is set.
fn step(dense: usize) -> usize {
    if std::env::var_os("BUTTERFS_EXHAUSTIVE").is_some() { 1 } else { dense }
}

fn fail_on(problems: Vec<String>, count: usize) {
    println!("{count} damaged images");
    assert!(count > 0);
    assert!(problems.is_empty(), "{} problems, first {:#?}", problems.len(), &problems[..problems.len().min(10)]);
}

const SMALL_NODES: Format = Format { nodesize: 4096, checksum: ChecksumKind::Crc32c, features: "" };

/// A bit flipped in one copy of a node: the other copy is used. In both copies: an error, or nothing that was needed.
#[test]
fn flipped_bits() {
    count_panics();
    let watchdog = Watchdog::new("flipped_bits", 400);
    let victim = victim(&SMALL_NODES);
    let (mut problems, mut count) = (Vec::new(), 0);
    for (node, bit) in victim.bits(step(211)) {
        for both in [false, true] {
            let what = format!("bit {bit} of node {node} at {:?}, both copies {both}", victim.nodes[node]);
            watchdog.note(&what);
            let disk = victim.damaged(node, both, |bytes| bytes[bit / 8] ^= 1 << (bit % 8));
            count += 1;
            match endure(&what, disk, true) {
                Ok(Ok(shown)) if victim.is_as_before(&shown) => {}
                Ok(Err(sentence)) if both && is_sentence(&sentence) => {}
                Ok(Ok(_)) => problems.push(format!("{what}: shows something else")),
                Ok(Err(sentence)) => problems.push(format!("{what}: {sentence}")),
                Err(problem) => problems.push(problem),
            }
        }
    }
    fail_on(problems, count);
}

/// Flips and absurd values under a good checksum: whatever is shown, the visit ends.
#[test]
fn restamped_nodes() {
    count_panics();
    let watchdog = Watchdog::new("restamped_nodes", 500);
    let victim = victim(&SMALL_NODES);
    let (mut problems, mut count) = (Vec::new(), 0);
    let mut endure_both = |what: &str, disk: MemoryDevice, count: &mut usize| {
        watchdog.note(what);
        for read_only in [true, false] {
            *count += 1;
            match endure(what, disk.snapshot(), read_only) {
                Ok(Err(sentence)) if !is_sentence(&sentence) => problems.push(format!("{what}: {sentence}")),
                Ok(_) => {}
                Err(problem) => problems.push(problem),
            }
        }
    };
    for (node, bit) in victim.bits(step(661)) {
        let bit = bit.max(CHECKSUM_BYTES * 8);
        let disk = victim.damaged(node, true, |bytes| {
            bytes[bit / 8] ^= 1 << (bit % 8);
            victim.restamp(bytes);
        });
        endure_both(&format!("restamped bit {bit} of node {node}"), disk, &mut count);
    }
    let mut rng = Rng::new(11);
    for _ in 0..4000 / step(3) {
        let node = rng.index(victim.nodes.len());
        let width = *rng.pick(&[1usize, 2, 4, 8]);
        let at = CHECKSUM_BYTES + rng.index(victim.nodesize - CHECKSUM_BYTES - width);
        let address = victim.nodes[rng.index(victim.nodes.len())][0];
        let value = *rng.pick(&[0, 1, 2, u64::MAX, u64::MAX / 2, 1 << 63, 0xffff_f000, address, 256, 4096, 5]);
        let disk = victim.damaged(node, true, |bytes| {
            bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
            victim.restamp(bytes);
        });
        endure_both(&format!("{value:#x} in {width} bytes at {at} of node {node}"), disk, &mut count);
    }
    // One node in the place of another, as a misdirected write leaves it, and as a cycle of pointers would need it.
    for node in 0..victim.nodes.len() {
        for other in (node % step(3)..victim.nodes.len()).step_by(step(3)) {
            let content = bytes_at(&victim.disk, victim.nodes[other][0], victim.nodesize);
            let address = bytes_at(&victim.disk, victim.nodes[node][0], victim.nodesize)[48..56].to_vec();
            let disk = victim.damaged(node, true, |bytes| {
                bytes.copy_from_slice(&content);
                bytes[48..56].copy_from_slice(&address);
                victim.restamp(bytes);
            });
            endure_both(&format!("node {other} in the place of node {node}"), disk, &mut count);
        }
    }
    fail_on(problems, count);
}

#[test]
fn restamped_superblocks() {
    count_panics();
    let watchdog = Watchdog::new("restamped_superblocks", 300);
    let victim = victim(&SMALL_NODES);
    let (mut problems, mut count) = (Vec::new(), 0);
    let good = bytes_at(&victim.disk, SUPERBLOCK, 4096);
    let mut rng = Rng::new(12);
    let flips = (CHECKSUM_BYTES * 8..4096 * 8).step_by(step(13));
    let flips = flips.map(|bit| (bit / 8, vec![good[bit / 8] ^ 1 << (bit % 8)]));
    let values = (0..3000 / step(3)).map(|_| {
        let value = *rng.pick(&[0, 1, u64::MAX, u64::MAX / 2, 1 << 63, 4095, 65536, 1 << 20]);
        (
            CHECKSUM_BYTES + rng.index(4096 - CHECKSUM_BYTES - 8),
            value.to_le_bytes()[..*rng.pick(&[2usize, 4, 8])].to_vec(),
        )
    });
    for (at, bytes) in flips.chain(values.collect::<Vec<_>>()) {
        let what = format!("superblock bytes {at}: {bytes:x?}");
        watchdog.note(&what);
        let mut block = good.clone();
        block[at..at + bytes.len()].copy_from_slice(&bytes);
        victim.restamp(&mut block);
        for read_only in [true, false] {
            let disk = victim.disk.snapshot();
            // The mirror goes too, or it would be used.
            disk.write_at(SUPERBLOCK, &block).expect("memory does not fail");
            disk.write_at(SECOND_SUPERBLOCK, &[0; 4096]).expect("memory does not fail");
            count += 1;
            match endure(&what, disk, read_only) {
                Ok(Err(sentence)) if !is_sentence(&sentence) => problems.push(format!("{what}: {sentence}")),
                Ok(_) => {}
                Err(problem) => problems.push(problem),
            }
        }
    }
    fail_on(problems, count);
}

/// A broken primary superblock: the mirror is used, and that is said.
#[test]
fn broken_primary_superblock() {
    let victim = victim(&SMALL_NODES);
    let good = bytes_at(&victim.disk, SUPERBLOCK, 4096);
    let flipped = |at: usize| {
        let mut block = good.clone();
        block[at] ^= 1;
        block
    };
    for (what, block) in [("zeroed", vec![0; 4096]), ("wrong checksum", flipped(0)), ("flipped field", flipped(200))] {
        let disk = victim.disk.snapshot();
        disk.write_at(SUPERBLOCK, &block).expect("memory does not fail");
        let filesystem = Filesystem::open(vec![Arc::new(disk)], options(true), Env::system());
        let filesystem = filesystem.unwrap_or_else(|error| panic!("{what}: {error}"));
        let notes = filesystem.notes().join("\n");
        assert!(notes.contains("superblock"), "{what}: nothing is said of it: {notes:?}");
        let shown = Fingerprint::of_library(&filesystem).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(victim.is_as_before(&shown), "{what}");
    }
    // Without the magic, but not empty, the place may belong to somebody else by now: the copy is named, not used.
    let disk = victim.disk.snapshot();
    disk.write_at(SUPERBLOCK, &flipped(64)).expect("memory does not fail");
    let sentence = visit(Arc::new(disk), true).expect_err("another's place");
    assert!(is_sentence(&sentence) && sentence.contains("copy"), "{sentence}");
}

/// Images that contain no filesystem, or only a part of one.
#[test]
fn not_a_filesystem() {
    let victim = victim(&SMALL_NODES);
    let part = |len: u64| {
        let disk = MemoryDevice::new(len);
        for offset in (0..len).step_by(4096) {
            let bytes = bytes_at(&victim.disk, offset, 4096.min((len - offset) as usize));
            disk.write_at(offset, &bytes).expect("memory does not fail");
        }
        disk
    };
    let noise = MemoryDevice::new(1 << 20);
    let mut bytes = vec![0; 1 << 20];
    Rng::new(3).fill(&mut bytes);
    noise.write_at(0, &bytes).expect("memory does not fail");
    let lengths = [
        0,
        1,
        512,
        4096,
        65536,
        65536 + 512,
        65536 + 4095,
        65536 + 4096,
        1 << 20,
        16 << 20,
        100 << 20,
        (192 << 20) - 4096,
    ];
    let parts = lengths.into_iter().map(|len| (format!("cut to {len} bytes"), part(len)));
    let cases = parts.chain([("noise".to_owned(), noise), ("zeros".to_owned(), MemoryDevice::new(1 << 30))]);
    for (what, disk) in cases {
        for read_only in [true, false] {
            let sentence = endure(&what, disk.snapshot(), read_only).unwrap_or_else(|problem| panic!("{problem}"));
            let sentence = sentence.expect_err(&what);
            println!("{what}: {sentence}");
            assert!(is_sentence(&sentence), "{what}: {sentence}");
        }
    }
}

/// Damaged file data is never shown: the read fails where no other copy is good.
#[test]
fn flipped_data() {
    let victim = victim(&SMALL_NODES);
    let content = Content { seed: 2, len: 400_000 };
    let disk = Arc::new(victim.disk.snapshot());
    let device: Arc<dyn BlockDevice> = disk.clone();
    let filesystem = Filesystem::open(vec![device], options(false), Env::system()).expect("a good image");
    let (path, mut library) = (RelPath::from("data-to-damage"), Library::new(&filesystem));
    let object = Object::Path(path.clone());
    library.apply(&Op::Create { path, mode: 0o644 }).expect("room");
    library.apply(&Op::Write { object: object.clone(), offset: 0, content }).expect("room");
    filesystem.shutdown().expect("a good device");
    let bytes = content.bytes();
    let block = &bytes[40960..45056];
    let offset = (0..disk.len()).step_by(4096).find(|at| bytes_at(&disk, *at, 4096) == block).expect("it was written");
    let damaged = disk.snapshot();
    damaged.write_at(offset + 100, &[block[100] ^ 0x10]).expect("memory does not fail");
    let filesystem = Filesystem::open(vec![Arc::new(damaged)], options(true), Env::system()).expect("metadata is good");
    let mut library = Library::new(&filesystem);
    let mut read = |offset: u64, len| library.apply(&Op::Read { object: object.clone(), offset, len });
    assert_eq!(read(40960, 4096), Err(rustix::io::Errno::IO));
    assert_eq!(read(0, 4096), Ok(butterfs_testkit::operation::Reply::Bytes(bytes[..4096].to_vec())));
}
