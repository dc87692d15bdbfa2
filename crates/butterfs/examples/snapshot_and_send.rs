//! Makes snapshots and sends them: the first as a whole, the second as the difference from the first.
//!
//! `cargo run -p butterfs --example snapshot_and_send`

use butterfs::{Access, Device, Filesystem, Mkfs, StreamVersion};
use std::error::Error;
use std::fs::File;

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("butterfs-snapshot-and-send-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let disk = Device::create(folder.join("disk.img"), 512 << 20)?;
    Mkfs::new().device(disk.clone()).run()?;
    let filesystem = Filesystem::open(disk)?;
    let root = filesystem.root();

    root.create_subvolume("home")?;
    root.write("home/letter", "Dear Ada,\n")?;
    root.write("home/photo", vec![7; 3 << 20])?;
    // Only read-only snapshots can be sent. When `snapshot` returns, the snapshot is durable.
    let monday = root.snapshot("home", "monday", Access::ReadOnly)?;

    root.write("home/letter", "Dear Ada,\nthank you for the book.\n")?;
    let tuesday = root.snapshot("home", "tuesday", Access::ReadOnly)?;

    let mut full = File::create(folder.join("monday.stream"))?;
    let sent = filesystem.send(monday).version(StreamVersion::V2).write_to(&mut full)?;
    println!("monday: {} bytes, {} commands", sent.bytes, sent.commands);

    let mut difference = File::create(folder.join("tuesday.stream"))?;
    let changed = filesystem.send(tuesday).parent(monday).version(StreamVersion::V2).write_to(&mut difference)?;
    println!("tuesday: {} bytes, {} commands", changed.bytes, changed.commands);
    assert!(changed.bytes < sent.bytes / 100);

    filesystem.close()?;
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
