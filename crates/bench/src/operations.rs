//! Single operations of the engine, by threads, beside the same operations through the kernel's mount; both on a file.
//!
//! Ours are calls of `Filesystem`, the kernel's are system calls: what a program pays that links the library, and what
//! it pays that asks the kernel. Each thread works in a directory of its own.

use crate::Scale;
use crate::counting::Counting;
use crate::subject::{Side, Subject};
use crate::table::{Table, seconds};
use butterfs_device::BlockDevice;
use butterfs_fs::mkfs::{MkfsOptions, mkfs};
use butterfs_fs::{Caller, Env, Filesystem, InodeId, Options, TreeId};
use butterfs_testkit::{requirement, scratch};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0o022, privileged: true };
const DEVICE_BYTES: u64 = 16 << 30;
const BAR: &str = "<= 0.33x";
/// An fsync waits for the device; so few are enough.
const FSYNCS: u64 = 100;

/// One operation, the `number`th of a thread's. The names of the threads' directories are `0`, `1` and so on.
struct Operation {
    name: &'static str,
    ours: fn(&Filesystem, InodeId, u64),
    kernel: fn(&Path, u64),
    few: bool,
}

const OPERATIONS: &[Operation] = &[
    Operation {
        name: "create",
        ours: |fs, at, number| {
            let made = fs.create(&CALLER, at, name(number).as_bytes(), 0o644).expect("room");
            fs.forget(made.id, 1);
        },
        kernel: |at, number| drop(File::create_new(at.join(name(number))).expect("room")),
        few: false,
    },
    Operation {
        name: "lookup",
        ours: |fs, at, number| {
            found(fs, at, number);
        },
        kernel: |at, number| {
            std::fs::symlink_metadata(at.join(name(number))).expect("it is there");
        },
        few: false,
    },
    Operation {
        name: "write of 4 KiB",
        ours: |fs, at, number| {
            fs.write(found(fs, at, number), 0, &[number as u8; 4096], false).expect("room");
        },
        kernel: |at, number| {
            let file = File::options().write(true).open(at.join(name(number))).expect("it is there");
            file.write_all_at(&[number as u8; 4096], 0).expect("room");
        },
        few: false,
    },
    Operation {
        name: "read of 4 KiB",
        ours: |fs, at, number| {
            let mut out = Vec::with_capacity(4096);
            fs.read(found(fs, at, number), 0, 4096, &mut out).expect("a good device");
        },
        kernel: |at, number| {
            let file = File::open(at.join(name(number))).expect("it is there");
            file.read_exact_at(&mut [0; 4096], 0).expect("a good device");
        },
        few: false,
    },
    Operation {
        name: "append of 4 KiB and fsync",
        ours: |fs, at, number| {
            let id = found(fs, at, 0);
            fs.write(id, (number + 1) * 4096, &[number as u8; 4096], false).expect("room");
            fs.fsync(id, false).expect("a good device");
        },
        kernel: |at, number| {
            let file = File::options().write(true).open(at.join(name(0))).expect("it is there");
            file.write_all_at(&[number as u8; 4096], (number + 1) * 4096).expect("room");
            file.sync_all().expect("a good device");
        },
        few: true,
    },
];

fn name(number: u64) -> String {
    format!("file-{number:08}")
}

fn found(fs: &Filesystem, at: InodeId, number: u64) -> InodeId {
    let id = fs.lookup(at, name(number).as_bytes()).expect("it is there").id;
    fs.forget(id, 1);
    id
}

/// Seconds of one thread for one operation, with `threads` at it.
fn each(threads: u64, count: u64, work: impl Fn(u64, u64) + Sync) -> f64 {
    let started = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let work = &work;
            scope.spawn(move || (0..count).for_each(|number| work(thread, number)));
        }
    });
    started.elapsed().as_secs_f64() / count as f64
}

/// Enters a row for each operation and number of threads.
pub fn run(scale: Scale, table: &mut Table) {
    let folder = scratch::Scratch::new("bench-operations");
    let most = std::thread::available_parallelism().map_or(1, |threads| threads.get() as u64);
    let mut threads = vec![1];
    threads.extend((most > 1).then_some(most));
    for threads in threads {
        let ours = of_ours(&folder, scale, threads, table);
        let kernel = requirement::kernel_btrfs("bench: operations beside the kernel")
            .then(|| of_the_kernel(&folder, scale, threads));
        for (index, operation) in OPERATIONS.iter().enumerate() {
            let what = format!("library: {}, {threads} at once", operation.name);
            let kernel = kernel.as_ref().map(|times| times[index]);
            table.compared(&what, (ours[index], kernel), seconds, true, BAR);
        }
    }
}

fn count(operation: &Operation, scale: Scale) -> u64 {
    if operation.few { FSYNCS.min(scale.files) } else { scale.files }
}

fn of_ours(folder: &scratch::Scratch, scale: Scale, threads: u64, table: &mut Table) -> Vec<f64> {
    let image = folder.sparse_file("ours.img", DEVICE_BYTES);
    let counting = Arc::new(Counting::open(&image));
    let device: Arc<dyn BlockDevice> = counting.clone();
    mkfs(std::slice::from_ref(&device), &MkfsOptions::default(), &Env::system()).expect("an empty device");
    let fs = Filesystem::open(vec![device], Options::default(), Env::system()).expect("a new filesystem");
    let top = InodeId::root_of(TreeId::FS);
    let make = |thread: u64| fs.mkdir(&CALLER, top, thread.to_string().as_bytes(), 0o755).expect("room").id;
    let folders: Vec<InodeId> = (0..threads).map(make).collect();
    let mut times = Vec::new();
    for operation in OPERATIONS {
        let count = count(operation, scale);
        let before = counting.totals();
        times.push(each(threads, count, |thread, number| (operation.ours)(&fs, folders[thread as usize], number)));
        if !operation.few {
            fs.sync().expect("a good device");
        }
        if threads == 1 {
            let (written, flushes) = counting.totals();
            let each = |now: u64, before: u64| (now - before) as f64 / count as f64;
            let shown = format!("{:.0} B, {:.2} flushes", each(written, before.0), each(flushes, before.1));
            table.value(&format!("library: written per {}", operation.name), shown, None, None, "");
        }
    }
    fs.shutdown().expect("a good device");
    drop(fs);
    std::fs::remove_file(image).expect("our own file");
    times
}

fn of_the_kernel(folder: &scratch::Scratch, scale: Scale, threads: u64) -> Vec<f64> {
    let image = folder.sparse_file("kernel.img", DEVICE_BYTES);
    let subject = Subject::new(Side::Kernel, &image, &folder.folder("mnt"));
    let folders: Vec<PathBuf> = (0..threads).map(|thread| subject.path().join(thread.to_string())).collect();
    folders.iter().for_each(|folder| std::fs::create_dir(folder).expect("a new filesystem"));
    let mut times = Vec::new();
    for operation in OPERATIONS {
        let count = count(operation, scale);
        times.push(each(threads, count, |thread, number| (operation.kernel)(&folders[thread as usize], number)));
    }
    drop(subject);
    std::fs::remove_file(image).expect("our own file");
    times
}
