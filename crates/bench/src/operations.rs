//! Single operations of the engine, by threads, beside the same operations through the kernel's mount; both on a file.
//!
//! Twice: as calls of `Filesystem` by inode beside the kernel's system calls by path, which is the price for a program
//! that links the library, and for one that asks the kernel; and as the same system calls on both mounts. Each thread
//! works in a directory of its own. Then the cost of a call of ours beside time: allocations, memory, and bytes
//! written.

use crate::Scale;
use crate::counting::Counting;
use crate::library::processor_time;
use crate::subject::{Side, Sides, Subject};
use crate::table::{Table, seconds};
use butterfs_device::BlockDevice;
use butterfs_fs::mkfs::{MkfsOptions, mkfs};
use butterfs_fs::{Caller, Env, Filesystem, InodeId, Options, TreeId};
use butterfs_testkit::kernel::run_ok;
use butterfs_testkit::serve::binary;
use butterfs_testkit::{requirement, scratch};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0o022, privileged: true };
const DEVICE_BYTES: u64 = 16 << 30;
/// Three times the kernel's rate of each core.
const BAR: &str = "<= 0.33x";
const EVEN_BAR: &str = "<= 1.00x";
/// An fsync or a snapshot waits for the device, a listing is many steps; so few are enough.
const FEW: u64 = 100;

/// One operation, the `number`th of a thread's. The names of the threads' directories are `0`, `1` and so on.
struct Operation {
    name: &'static str,
    library: fn(&Filesystem, InodeId, u64),
    /// On a mount of this side.
    mounted: fn(&Path, u64, Side),
    few: bool,
    /// Bytes of content that it brings.
    content: u64,
    bar: &'static str,
}

const OPERATIONS: &[Operation] = &[
    Operation {
        name: "create",
        library: |fs, at, number| {
            let made = fs.create(&CALLER, at, name(number).as_bytes(), 0o644).expect("room");
            fs.forget(made.id, 1);
        },
        mounted: |at, number, _| drop(File::create_new(at.join(name(number))).expect("room")),
        few: false,
        content: 0,
        bar: BAR,
    },
    Operation {
        name: "lookup",
        library: |fs, at, number| {
            found(fs, at, number);
        },
        mounted: |at, number, _| {
            std::fs::symlink_metadata(at.join(name(number))).expect("it is there");
        },
        few: false,
        content: 0,
        bar: BAR,
    },
    Operation {
        name: "readdir of a whole directory",
        library: |fs, at, _| {
            let mut entries = 0u64;
            fs.readdir(at, 0, &mut |_| {
                entries += 1;
                true
            })
            .expect("a good device");
            assert!(entries > 2, "it is full of files");
        },
        mounted: |at, _, _| assert!(std::fs::read_dir(at).expect("it is there").count() > 0),
        few: true,
        content: 0,
        bar: EVEN_BAR,
    },
    Operation {
        name: "write of 4 KiB",
        library: |fs, at, number| {
            fs.write(found(fs, at, number), 0, &[number as u8; 4096], false).expect("room");
        },
        mounted: |at, number, _| {
            let file = File::options().write(true).open(at.join(name(number))).expect("it is there");
            file.write_all_at(&[number as u8; 4096], 0).expect("room");
        },
        few: false,
        content: 4096,
        bar: EVEN_BAR,
    },
    Operation {
        name: "read of 4 KiB",
        library: |fs, at, number| {
            let mut out = Vec::with_capacity(4096);
            fs.read(found(fs, at, number), 0, 4096, &mut out).expect("a good device");
        },
        mounted: |at, number, _| {
            let file = File::open(at.join(name(number))).expect("it is there");
            file.read_exact_at(&mut [0; 4096], 0).expect("a good device");
        },
        few: false,
        content: 0,
        bar: EVEN_BAR,
    },
    Operation {
        name: "append of 4 KiB and fsync",
        library: |fs, at, number| {
            let id = found(fs, at, 0);
            fs.write(id, (number + 1) * 4096, &[number as u8; 4096], false).expect("room");
            fs.fsync(id, false).expect("a good device");
        },
        mounted: |at, number, _| {
            let file = File::options().write(true).open(at.join(name(0))).expect("it is there");
            file.write_all_at(&[number as u8; 4096], (number + 1) * 4096).expect("room");
            file.sync_all().expect("a good device");
        },
        few: true,
        content: 4096,
        bar: EVEN_BAR,
    },
    // On a mount by a command, which takes about a millisecond of that: there is no other safe way to ask.
    Operation {
        name: "snapshot, durable",
        library: |fs, at, number| {
            let name = format!("snapshot-{number}");
            fs.snapshot(TreeId::FS, at, name.as_bytes(), false).expect("room");
        },
        mounted: |at, number, side| {
            let top = at.parent().expect("in the root folder").to_string_lossy().into_owned();
            let name = at.join(format!("snapshot-{number}")).to_string_lossy().into_owned();
            let program = if side == Side::Kernel { PathBuf::from("btrfs") } else { binary() };
            run_ok(60, program, &["subvolume", "snapshot", &top, &name]);
        },
        few: true,
        content: 0,
        bar: EVEN_BAR,
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

/// The time that one thread takes for one operation, in seconds.
#[derive(Clone, Copy)]
struct Times {
    wall: f64,
    /// Of all threads of this process, those in the background too, for each operation.
    processor: f64,
}

/// The time of an operation with `threads` threads.
fn each(threads: u64, count: u64, work: impl Fn(u64, u64) + Sync) -> Times {
    let (started, before) = (Instant::now(), processor_time());
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let work = &work;
            scope.spawn(move || (0..count).for_each(|number| work(thread, number)));
        }
    });
    Times {
        wall: started.elapsed().as_secs_f64() / count as f64,
        processor: (processor_time() - before).as_secs_f64() / (threads * count) as f64,
    }
}

/// Enters a row for each operation and number of threads, and the cost of each.
pub fn run(scale: Scale, table: &mut Table) {
    let folder = scratch::Scratch::new("bench-operations");
    let most = std::thread::available_parallelism().map_or(1, |threads| threads.get() as u64);
    let mut threads = vec![1];
    threads.extend((most > 1).then_some(most));
    for threads in threads {
        let called = of_the_library(&folder, scale, threads);
        let kernel = requirement::kernel_btrfs("bench: operations beside the kernel");
        let mounted = requirement::fuse("bench: operations on a mount")
            .then(|| Sides::measure(kernel, |side| on_a_mount(side, &folder, scale, threads)));
        for (index, operation) in OPERATIONS.iter().enumerate() {
            let what = format!("{}, {threads} at once", operation.name);
            let kernel = mounted.as_ref().and_then(|sides| Some(sides.kernel.as_ref()?[index]));
            let sides = Sides::two(called[index], kernel);
            let name = format!("library, by inode (the kernel's by path): {what}");
            table.compared(&name, sides.map(|times| times.wall), seconds, true, operation.bar);
            if !operation.few {
                let name = format!("{name}, processor time");
                table.compared(&name, sides.map(|times| times.processor), seconds, true, operation.bar);
            }
            if let Some(sides) = &mounted {
                let wall = sides.map(|times| times[index].wall);
                table.compared(&format!("mounts, both by path: {what}"), wall, seconds, true, "");
            }
        }
    }
    costs(&folder, scale, table);
}

fn count(operation: &Operation, scale: Scale) -> u64 {
    if operation.few { FEW.min(scale.files) } else { scale.files }
}

/// A new filesystem of ours, and a directory for each thread.
struct Ours {
    image: PathBuf,
    device: Arc<Counting>,
    fs: Filesystem,
    folders: Vec<InodeId>,
}

impl Ours {
    fn new(folder: &scratch::Scratch, threads: u64) -> Ours {
        let image = folder.sparse_file("ours.img", DEVICE_BYTES);
        let device = Arc::new(Counting::open(&image));
        let devices: [Arc<dyn BlockDevice>; 1] = [device.clone()];
        mkfs(&devices, &MkfsOptions::default(), &Env::system()).expect("an empty device");
        let fs = Filesystem::open(devices.into(), Options::default(), Env::system()).expect("a new filesystem");
        let top = InodeId::root_of(TreeId::FS);
        let make = |thread: u64| fs.mkdir(&CALLER, top, thread.to_string().as_bytes(), 0o755).expect("room").id;
        let folders = (0..threads).map(make).collect();
        Ours { image, device, fs, folders }
    }

    fn end(self) {
        self.fs.shutdown().expect("a good device");
        std::fs::remove_file(&self.image).expect("our own file");
    }
}

fn of_the_library(folder: &scratch::Scratch, scale: Scale, threads: u64) -> Vec<Times> {
    let ours = Ours::new(folder, threads);
    let time = |operation: &Operation| {
        let work = |thread: u64, number| (operation.library)(&ours.fs, ours.folders[thread as usize], number);
        let time = each(threads, count(operation, scale), work);
        if !operation.few {
            ours.fs.sync().expect("a good device");
        }
        time
    };
    let times = OPERATIONS.iter().map(time).collect();
    ours.end();
    times
}

/// The allocations of one thread, the most memory it holds, and the bytes written until everything is durable.
fn costs(folder: &scratch::Scratch, scale: Scale, table: &mut Table) {
    let ours = Ours::new(folder, 1);
    for operation in OPERATIONS {
        let count = count(operation, scale);
        let (written, flushes) = ours.device.totals();
        let memory = allocation_counter::measure(|| {
            (0..count).for_each(|number| (operation.library)(&ours.fs, ours.folders[0], number));
            ours.fs.sync().expect("a good device");
        });
        let now = ours.device.totals();
        let each = |total: u64| total as f64 / count as f64;
        let (written, flushes) = (each(now.0 - written), each(now.1 - flushes));
        let row = |table: &mut Table, what: &str, shown: String| {
            table.value(&format!("library: {what} {}", operation.name), shown, None, None, "");
        };
        let allocated = format!("{:.1}, {:.0} B", each(memory.count_total), each(memory.bytes_total));
        row(table, "allocations per", allocated);
        row(table, &format!("peak of memory of {count} times"), format!("{:.1} MB", memory.bytes_max as f64 / 1e6));
        let amplified = match operation.content {
            0 => String::new(),
            content => format!(" ({:.2}x)", written / content as f64),
        };
        row(table, "written per", format!("{written:.0} B{amplified}, {flushes:.2} flushes"));
    }
    ours.end();
}

fn on_a_mount(side: Side, folder: &scratch::Scratch, scale: Scale, threads: u64) -> Vec<Times> {
    let image = folder.sparse_file("mounted.img", DEVICE_BYTES);
    let subject = Subject::new(side, &image, &folder.folder("mnt"));
    let folders: Vec<PathBuf> = (0..threads).map(|thread| subject.path().join(thread.to_string())).collect();
    folders.iter().for_each(|folder| std::fs::create_dir(folder).expect("a new filesystem"));
    let mut times = Vec::new();
    for operation in OPERATIONS {
        let count = count(operation, scale);
        let work = |thread: u64, number| (operation.mounted)(&folders[thread as usize], number, side);
        times.push(each(threads, count, work));
    }
    drop(subject);
    std::fs::remove_file(image).expect("our own file");
    times
}
