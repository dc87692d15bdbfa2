//! Receives send streams into an image, as a backup server would. No root and no mount are needed.
//!
//! `cargo run -p butterfs --example receive_into_image [IMAGE STREAM...]`
//!
//! Without arguments it makes an image and streams first.

use butterfs::{Access, Device, Filesystem, Mkfs, ReceiveErrorKind};
use std::error::Error;
use std::ffi::OsString;
use std::io::Read;

pub fn main() -> Result<(), Box<dyn Error>> {
    run(std::env::args_os().skip(1).collect())
}

pub fn run(arguments: Vec<OsString>) -> Result<(), Box<dyn Error>> {
    let mut arguments = arguments.into_iter();
    if let Some(image) = arguments.next() {
        let filesystem = Filesystem::open(Device::path(image))?;
        for stream in arguments {
            receive(&filesystem, std::fs::File::open(stream)?)?;
        }
        return Ok(filesystem.close()?);
    }
    let [first, second] = streams()?;
    let disk = Device::memory(256 << 20);
    Mkfs::new().device(disk.clone()).label("backups").run()?;
    let filesystem = Filesystem::open(disk)?;

    // A difference needs its parent.
    let backups = filesystem.root();
    let error = backups.receive().read_from(second.as_slice()).unwrap_err();
    assert_eq!(error.kind(), ReceiveErrorKind::Command);
    println!("without its parent: {error}");

    receive(&filesystem, first.as_slice())?;
    receive(&filesystem, second.as_slice())?;
    assert_eq!(backups.read("monday/letter")?, b"draft");
    assert_eq!(backups.read("tuesday/letter")?, b"final");
    filesystem.close()?;
    Ok(())
}

fn receive(filesystem: &Filesystem, stream: impl Read) -> Result<(), Box<dyn Error>> {
    let received = filesystem.root().receive().read_from(stream)?;
    for subvolume in received.subvolumes {
        println!("received {} as subvolume {}", subvolume.name.display(), subvolume.id);
    }
    Ok(())
}

/// A snapshot and its successor, as streams.
fn streams() -> Result<[Vec<u8>; 2], Box<dyn Error>> {
    let disk = Device::memory(256 << 20);
    Mkfs::new().device(disk.clone()).run()?;
    let source = Filesystem::open(disk)?;
    let root = source.root();
    root.create_subvolume("home")?;
    root.write("home/letter", "draft")?;
    let monday = root.snapshot("home", "monday", Access::ReadOnly)?;
    root.write("home/letter", "final")?;
    let tuesday = root.snapshot("home", "tuesday", Access::ReadOnly)?;
    let mut streams = [Vec::new(), Vec::new()];
    source.send(monday).write_to(&mut streams[0])?;
    source.send(tuesday).parent(monday).write_to(&mut streams[1])?;
    Ok(streams)
}
