//! Mounts the tests' filesystem in memory, for measuring what the transport costs.
//!
//! `memory [fuse|fuseblk SOURCE] MOUNTPOINT`

#[path = "../tests/memory/mod.rs"]
mod memory;

use butterfs_fuse::mount::{self, Backing, Flags};
use butterfs_fuse::session::{Session, handshake};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
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
        flags: Flags::default(),
        allow_other: true,
        backing,
        sector_bytes: 4096,
    };
    let mounted = mount::mount(&request)?;
    drop(request);
    println!("{:?}", mounted.kind);
    println!("{:x?}", handshake(&mounted.device)?);
    let memory = memory::Memory::new();
    memory.connected(mounted.device.another()?);
    let session = Session::start(mounted.device, Arc::new(memory.clone()), 2, Arc::new(|line| eprintln!("{line}")))?;
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
