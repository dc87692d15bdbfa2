//! Bytes per second of file contents through the library, over an image file or memory.
//!
//! `cargo run --release -p butterfs-fs --example throughput -- [IMAGE] [MIB]`

use butterfs_device::{BlockDevice, FileDevice, FileOptions, MemoryDevice};
use butterfs_fs::mkfs::{MkfsOptions, mkfs};
use butterfs_fs::{Caller, Env, Filesystem, InodeId, Options};
use std::sync::Arc;
use std::time::Instant;

const CHUNK: usize = 1 << 20;

fn device(path: Option<&str>, len: u64) -> Arc<dyn BlockDevice> {
    let Some(path) = path.filter(|path| *path != "-") else { return Arc::new(MemoryDevice::new(len)) };
    let file = std::fs::File::create(path).expect("the image can be made");
    file.set_len(len).expect("the image can be sparse");
    Arc::new(FileDevice::open(path, &FileOptions::read_write()).expect("the image opens"))
}

/// Seconds of processor time that the program has used.
fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn measured(what: &str, bytes: u64, work: impl FnOnce()) {
    let (start, used) = (Instant::now(), processor_seconds());
    work();
    let (seconds, used) = (start.elapsed().as_secs_f64(), processor_seconds() - used);
    let rate = |seconds: f64| bytes as f64 / seconds / 1e6;
    println!("{what:36} {seconds:6.2} s {:6.0} MB/s   {used:6.2} s of CPU, {:6.0} MB/s", rate(seconds), rate(used));
}

fn file(fs: &Filesystem, name: &str) -> InodeId {
    fs.create(&Caller::default(), fs.root(), name.as_bytes(), 0o644).expect("create").id
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mib: u64 = arguments.get(1).map_or(1024, |text| text.parse().expect("a number of MiB"));
    let (bytes, len) = (mib << 20, (mib << 20) * 4 + (1 << 30));
    let device = device(arguments.first().map(String::as_str), len);
    mkfs(std::slice::from_ref(&device), &MkfsOptions { force: true, ..MkfsOptions::default() }, &Env::system())
        .expect("mkfs");
    let fs = Filesystem::open(vec![device], Options::default(), Env::system()).expect("open");
    let data: Vec<u8> = (0..CHUNK).map(|i| (i * 7 + i / 251) as u8).collect();

    let id = file(&fs, "sequential");
    measured("write, 1 MiB at a time, and fsync", bytes, || {
        (0..mib).for_each(|i| assert_eq!(fs.write(id, i * CHUNK as u64, &data, false).expect("write"), CHUNK));
        fs.fsync(id, true).expect("fsync");
    });
    let mut out = Vec::new();
    for turn in ["read, 1 MiB at a time", "again"] {
        measured(turn, bytes, || {
            (0..mib).for_each(|i| assert_eq!(fs.read(id, i * CHUNK as u64, CHUNK, &mut out).expect("read"), CHUNK));
        });
    }
    measured("read, 4 KiB at random places", bytes / 8, || {
        for i in 0..bytes / 8 / 4096 {
            let at = i.wrapping_mul(0x9E37_79B9_7F4A_7C15) % (bytes / 4096) * 4096;
            fs.read(id, at, 4096, &mut out).expect("read");
        }
    });
    measured("write, 4 KiB at random places, fsync", bytes / 2, || {
        for i in 0..bytes / 2 / 4096 {
            let at = i.wrapping_mul(0x9E37_79B9_7F4A_7C15) % (bytes / 4096) * 4096;
            fs.write(id, at, &data[..4096], false).expect("write");
        }
        fs.fsync(id, true).expect("fsync");
    });
    measured("read what is scattered now", bytes, || {
        (0..mib).for_each(|i| assert_eq!(fs.read(id, i * CHUNK as u64, CHUNK, &mut out).expect("read"), CHUNK));
    });
    let small = file(&fs, "small writes");
    measured("write, 4 KiB in order, and fsync", bytes / 4, || {
        (0..bytes / 4 / 4096)
            .for_each(|i| assert_eq!(fs.write(small, i * 4096, &data[..4096], false).expect("write"), 4096));
        fs.fsync(small, true).expect("fsync");
    });
    let files = 20_000;
    measured("20,000 files of 10,000 bytes, sync", files * 10_000, || {
        for i in 0..files {
            let id = file(&fs, &format!("file{i}"));
            fs.write(id, 0, &data[..10_000], false).expect("write");
            fs.forget(id, 1);
        }
        fs.sync().expect("sync");
    });
    measured("shutdown", 1, || fs.shutdown().expect("shutdown"));
}
