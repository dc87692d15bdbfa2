//! A full disk: `ENOSPC` when an operation begins, deleting always works, and nothing is lost.

use butterfs_fs::{Filesystem, Options};
use butterfs_testkit::engine::{FORMATS, Format, device, open};
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::kernel::{KernelMount, check_all};
use butterfs_testkit::library::Library;
use butterfs_testkit::model::ModelFs;
use butterfs_testkit::operation::{Content, Object, Op, OperationTarget, RelPath, Reply, agree};
use butterfs_testkit::requirement;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::serve::{Served, mkfs};
use butterfs_testkit::watchdog::Watchdog;
use butterfs_testkit::workload::{Generator, Shape};
use rustix::io::Errno;
use std::path::Path;

const IMAGE_BYTES: u64 = 160 << 20;

/// Both sides of a run in which operations may be refused for want of space.
struct Run {
    model: ModelFs,
    library: Library,
    refused: usize,
}

impl Run {
    /// True when it was done; false when there was no space. Anything else must agree with the model.
    fn apply(&mut self, op: &Op) -> bool {
        let actual = self.library.apply(op);
        if std::env::var_os("BUTTERFS_VERBOSE").is_some() {
            println!("op: {op:?}: {}", actual.as_ref().map_or_else(|error| error.to_string(), |_| String::new()));
        }
        if actual == Err(Errno::NOSPC) {
            self.refused += 1;
            return false;
        }
        if let (Op::Write { object, offset, content }, Ok(Reply::Count(done))) = (op, &actual)
            && *done < content.len as u64
        {
            // A write that had room for a part of it says so.
            let part = Content { len: *done as usize, ..*content };
            let bytes = content.bytes();
            assert_eq!(&bytes[..*done as usize], &part.bytes()[..], "a shorter content is a prefix");
            let shorter = Op::Write { object: object.clone(), offset: *offset, content: part };
            assert_eq!(self.model.apply(&shorter), actual);
            return true;
        }
        let expected = self.model.apply(op);
        let said = self.library.said();
        assert!(agree(&expected, &actual), "{op:?}: expected {expected:?}, actual {actual:?}; last error: {said}");
        true
    }

    fn must(&mut self, op: &Op) {
        assert!(self.apply(op), "no space for {op:?}");
    }

    fn compare(&self, filesystem: &Filesystem) -> Fingerprint {
        filesystem.sync().unwrap_or_else(|error| panic!("{error}"));
        let shown = Fingerprint::of_library(filesystem).unwrap_or_else(|error| panic!("{error}"));
        same(&Fingerprint::of_model(&self.model), &shown, Compare::MODEL);
        shown
    }
}

fn same(expected: &Fingerprint, actual: &Fingerprint, compare: Compare) {
    let found = differences(expected, actual, compare);
    assert!(found.is_empty(), "{} differences, first {:#?}", found.len(), &found[..found.len().min(20)]);
}

fn judge(image: &Path, shown: &Fingerprint) {
    check_all(image);
    let mount = KernelMount::new(image, "ro,noatime");
    same(shown, &Fingerprint::of_tree(mount.path()), Compare { atime: false, ..Compare::ALL });
    assert_eq!(mount.finish(), [""; 0]);
}

fn file(number: u64) -> RelPath {
    RelPath(format!("file-{number:06}").into_bytes())
}

/// Creates and fills files until that is refused three times in a row, also after a sync.
fn fill(run: &mut Run, first: u64, len: usize) -> u64 {
    let mut number = first;
    let mut refusals = 0;
    while refusals < 3 {
        let path = file(number);
        let content = Content { seed: 4 * number + 2, len };
        let done = run.apply(&Op::Create { path: path.clone(), mode: 0o644 })
            && (len == 0 || run.apply(&Op::Write { object: Object::Path(path), offset: 0, content }));
        refusals = if done { 0 } else { refusals + 1 };
        if !done {
            run.must(&Op::Sync);
        }
        number += 1;
        assert!(number < first + 2_000_000, "the disk does not become full");
    }
    number
}

fn full(test: &str, format: &Format, len: usize, image_bytes: u64) {
    if !requirement::kernel_btrfs(test) {
        return;
    }
    let _watchdog = Watchdog::new(test, 400);
    let scratch = Scratch::new(test);
    let image = scratch.sparse_file("image", image_bytes);
    format.make(&device(&image));
    // Access times of everything that is compared wait for the last commit.
    let filesystem = open(&image, Options { commit_interval_secs: 300, ..Options::default() });
    let mut run = Run { model: ModelFs::default(), library: Library::new(&filesystem), refused: 0 };
    let mut next = 0;
    for round in 0..3 {
        next = fill(&mut run, next, len);
        println!("round {round}: full after {next} files, {} refusals", run.refused);
        run.must(&Op::Sync);
        // Everything but each third file goes; that must work however full the disk is.
        let names: Vec<RelPath> = (0..next).map(file).filter(|path| run.model.resolve(path).is_ok()).collect();
        for path in names.iter().enumerate().filter(|(number, _)| number % 3 != round % 3).map(|(_, path)| path) {
            run.must(&Op::Unlink { path: path.clone() });
        }
        run.must(&Op::Sync);
        run.must(&Op::Create { path: RelPath(format!("round-{round}").into_bytes()), mode: 0o644 });
    }
    let shown = run.compare(&filesystem);
    drop(run);
    filesystem.shutdown().unwrap_or_else(|error| panic!("{error}"));
    judge(&image, &shown);
}

macro_rules! full_disks {
    ($($name:ident: $format:literal, $len:literal, $image:expr;)*) => {
        $(#[test] fn $name() { full(stringify!($name), &FORMATS[$format], $len, $image); })*
    };
}

full_disks! {
    full_of_data: 0, 300_000, IMAGE_BYTES;
    full_of_small_files: 0, 9_000, IMAGE_BYTES;
    full_of_inline_files: 1, 1_000, IMAGE_BYTES;
    // Empty files are small: this takes 100,000 of them as it is.
    full_of_empty_files_mixed: 3, 0, 48 << 20;
}

/// A random workload on a disk that is nearly full all the time.
#[test]
fn workload_on_a_full_disk() {
    const TEST: &str = "workload_on_a_full_disk";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let _watchdog = Watchdog::new(TEST, 400);
    for seed in 0..3 {
        let scratch = Scratch::new(TEST);
        let image = scratch.sparse_file("image", IMAGE_BYTES);
        FORMATS[0].make(&device(&image));
        let filesystem = open(&image, Options { commit_interval_secs: 2, ..Options::default() });
        let mut run = Run { model: ModelFs::default(), library: Library::new(&filesystem), refused: 0 };
        let mut generator = Generator::new(
            6000 + seed,
            Shape { data_max: 1 << 40, write_max: 4 << 20, file_max: 64 << 20, ..Shape::ORDINARY },
        );
        for _ in 0..6000 {
            let op = generator.next_op(&run.model);
            run.apply(&op);
        }
        println!("seed {}: {} of 6000 refused", 6000 + seed, run.refused);
        assert!(run.refused > 0, "the disk never became full");
        for handle in run.model.handles().keys().copied().collect::<Vec<u32>>() {
            run.must(&Op::Close { handle });
        }
        let shown = run.compare(&filesystem);
        drop(run);
        filesystem.shutdown().unwrap_or_else(|error| panic!("{error}"));
        judge(&image, &shown);
    }
}

/// Through the mount: the writer sees `ENOSPC`, everything can be removed, and the space is there again.
#[test]
fn full_mount() {
    const TEST: &str = "full_mount";
    if !requirement::kernel_btrfs(TEST) || !requirement::fuse(TEST) {
        return;
    }
    let _watchdog = Watchdog::new(TEST, 300);
    let scratch = Scratch::new(TEST);
    let image = scratch.sparse_file("image", IMAGE_BYTES);
    mkfs(&image, &[]);
    let at = scratch.folder("mnt");
    let served = Served::mount(&image, &at, "");
    let mut rng = Rng::new(1);
    let mut piece = vec![0; 1 << 20];
    for round in 0..3 {
        let write = |number: usize, piece: &[u8]| {
            let file = std::fs::File::create(at.join(format!("file-{number}")))?;
            std::io::Write::write_all(&mut &file, piece)?;
            file.sync_all()
        };
        let mut written = 0;
        let error = loop {
            rng.fill(&mut piece);
            match write(written, &piece) {
                Ok(()) => written += 1,
                Err(error) => break error,
            }
        };
        println!("round {round}: {written} MiB, then {error}");
        assert_eq!(error.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
        assert!(written > 40, "only {written} MiB fit");
        for entry in std::fs::read_dir(&at).expect("mounted") {
            std::fs::remove_file(entry.expect("mounted").path()).expect("removing needs no space");
        }
    }
    served.unmount();
    check_all(&image);
}
