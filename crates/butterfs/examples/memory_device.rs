//! A filesystem in memory: for tests, and for images that are uploaded instead of stored.
//!
//! `cargo run -p butterfs --example memory_device`

use butterfs::{BlockDevice, Device, Filesystem, MemoryDevice, Mkfs};
use std::error::Error;
use std::sync::Arc;

pub fn main() -> Result<(), Box<dyn Error>> {
    // Only what is written takes memory, whatever the length.
    let disk = Arc::new(MemoryDevice::new(4 << 30));
    let device = Device::from(Arc::clone(&disk) as Arc<dyn BlockDevice>);
    Mkfs::new().device(device.clone()).run()?;
    let filesystem = Filesystem::open(device)?;
    filesystem.root().write("state", "before")?;
    filesystem.sync()?;
    println!("{} of {} bytes are in memory", disk.allocated_bytes(), disk.len());

    // A snapshot of the device costs nothing. It is the disk that a power cut would leave at this moment.
    let crashed = disk.snapshot();
    filesystem.root().write("state", "after")?;
    filesystem.close()?;

    let old = Filesystem::open(Device::from(crashed))?;
    assert_eq!(old.root().read("state")?, b"before");
    let new = Filesystem::open(Device::from(disk.snapshot()))?;
    assert_eq!(new.root().read("state")?, b"after");
    println!("the copy has the state before, the disk the state after");
    Ok(())
}
