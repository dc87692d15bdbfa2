//! Mounts the tests' filesystem in memory, for measuring what the transport costs; the benchmark does.
//!
//! `memory [--OPTION[,OPTION]...] [SOURCE] MOUNTPOINT`, with the options of a mount

#[path = "../tests/memory/mod.rs"]
mod memory;

use butterfs_fuse::mount::{self, Backing, MountOptions};
use butterfs_fuse::session::{Session, connect};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn main() -> std::io::Result<()> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let options = arguments.iter().position(|argument| argument.starts_with("--")).map(|at| arguments.remove(at));
    let words = options.unwrap_or_default();
    let options = MountOptions::parse([words.trim_start_matches("--")]).map_err(std::io::Error::other)?;
    let (backing, source, mountpoint) = match &arguments[..] {
        [mountpoint] => (Backing::Unclaimed, "memory".to_string(), mountpoint),
        [source, mountpoint] if source.starts_with("/dev") => (Backing::BlockDevice, source.clone(), mountpoint),
        [source, mountpoint] => {
            let image = OwnedFd::from(std::fs::OpenOptions::new().read(true).write(true).open(source)?);
            (Backing::ImageFile(image), source.clone(), mountpoint)
        }
        _ => panic!("memory [SOURCE] MOUNTPOINT"),
    };
    let request = mount::Request {
        source: source.into(),
        mountpoint: mountpoint.into(),
        flags: options.flags,
        allow_other: true,
        backing,
        sector_bytes: 4096,
    };
    let mounted = mount::mount(&request)?;
    mounted.place.show(&request)?;
    drop(request);
    println!("{:?}", mounted.kind);
    let connected = connect(&mounted.device, options.transport)?;
    println!("{:x?} over {}", connected.agreement, if connected.rings.is_some() { "io_uring" } else { "/dev/fuse" });
    connected.why_classic.iter().for_each(|why| println!("{why}"));
    let memory = memory::Memory::new();
    memory.connected(mounted.device.another()?);
    let log = Arc::new(|line: &str| eprintln!("{line}"));
    let session = Session::over(mounted.device, connected.rings, Arc::new(memory.clone()), 2, log)?;
    println!("{:?}", session.wait());
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    println!(
        "syncs {} fsyncs {} destroyed {} nodes {}",
        count(&memory.syncs),
        count(&memory.fsyncs),
        count(&memory.destroyed),
        memory.len()
    );
    Ok(())
}
