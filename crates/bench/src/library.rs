//! The engine without FUSE: processor time and memory of creates, in a process of its own; then single operations.

use crate::Scale;
use crate::table::Table;
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::{Env, Filesystem, Options};
use butterfs_testkit::memory::peak_kib;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// The argument that makes this process the measured one.
pub const COMMAND: &str = "library-create";

const TIME_BAR: &str = "<= 5.00 us";
const MEMORY_BAR: &str = "<= 1536 MiB";

/// Starts the measured process and enters its output.
pub fn run(scale: Scale, table: &mut Table) {
    let program = std::env::current_exe().expect("a program knows its own path");
    let count = scale.library_files;
    let mut command = Command::new(program);
    command.args([COMMAND, &count.to_string()]).stderr(Stdio::inherit());
    let output = command.output().expect("this program itself");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines = text.lines();
    match (lines.next(), lines.next(), output.status.success()) {
        (Some(time), Some(memory), true) => {
            table.value(&format!("library: create, mean of {count}"), time.to_owned(), None, None, TIME_BAR);
            table.value(&format!("library: peak memory of {count} creates"), memory.to_owned(), None, None, MEMORY_BAR);
        }
        _ => table.value("library: create", format!("failed: {}", output.status), None, None, TIME_BAR),
    }
    crate::operations::run(scale, table);
}

/// The measured process: creates `count` files in one folder and prints processor time per file and peak memory.
pub fn child(count: &str) -> ExitCode {
    let Ok(count) = count.parse::<u64>() else { return ExitCode::from(2) };
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(16 << 30));
    let env = Env::system();
    let options = butterfs_fs::mkfs::MkfsOptions::default();
    butterfs_fs::mkfs::mkfs(std::slice::from_ref(&device), &options, &env).expect("an empty device");
    let memory_before = peak_kib();
    let filesystem = Filesystem::open(vec![device], Options::default(), env).expect("a new filesystem");
    let caller = butterfs_fs::Caller { uid: 0, gid: 0, umask: 0, privileged: true };
    let before = processor_time();
    for number in 0..count {
        let name = format!("file-{number:08}");
        let made = filesystem.create(&caller, filesystem.root(), name.as_bytes(), 0o644).expect("room for a file");
        filesystem.forget(made.id, 1);
    }
    let spent = processor_time() - before;
    println!("{:.2} us", spent.as_secs_f64() * 1e6 / count as f64);
    println!("{} MiB", (peak_kib() - memory_before) / 1024);
    filesystem.shutdown().expect("a good device");
    ExitCode::SUCCESS
}

/// User and system time of all threads.
pub fn processor_time() -> Duration {
    let clock = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(clock.tv_sec as u64, clock.tv_nsec as u32)
}
