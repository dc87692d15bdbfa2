//! Opens a broken filesystem read-only and saves what is still good.
//!
//! `cargo run -p butterfs --example rescue [DEVICE...]`
//!
//! Nothing is written to the devices: no log is replayed, no copy is repaired.

use butterfs::{
    Access, BlockDevice, Builder, Device, Dir, FileType, Filesystem, Log, MemoryDevice, MissingDevices, Mkfs, Profile,
};
use std::error::Error;
use std::ffi::OsString;
use std::sync::Arc;

pub fn main() -> Result<(), Box<dyn Error>> {
    run(std::env::args_os().skip(1).collect())
}

pub fn run(arguments: Vec<OsString>) -> Result<(), Box<dyn Error>> {
    let is_demonstration = arguments.is_empty();
    let named = arguments.into_iter().map(Device::path).collect();
    let devices = if is_demonstration { vec![broken_disk()?] } else { named };
    let filesystem = Builder::new()
        .devices(devices)
        .access(Access::ReadOnly)
        .log(Log::Ignore)
        .missing_devices(MissingDevices::Allow)
        .open()?;
    filesystem.notes().iter().for_each(|note| println!("note: {note}"));
    let (saved, lost) = save(&filesystem.root())?;
    println!("{saved} files are good, {lost} are damaged");
    if is_demonstration {
        assert_eq!((saved, lost), (2, 1));
    }
    Ok(())
}

/// Reads every file. Directories wait in a list: an image can be deeper than the stack.
fn save(root: &Dir) -> Result<(usize, usize), butterfs::Error> {
    let (mut saved, mut lost) = (0, 0);
    let mut open = vec![root.clone()];
    while let Some(directory) = open.pop() {
        for entry in directory.read_dir(".")? {
            // A damaged block of the directory hides its other entries.
            let Ok(entry) = entry.inspect_err(|error| println!("a directory is damaged: {error}")) else { break };
            match entry.file_type() {
                FileType::Directory => match entry.open_dir() {
                    Ok(below) => open.push(below),
                    Err(error) => println!("{}: {error}", entry.file_name().display()),
                },
                FileType::File => match entry.open_file().and_then(|file| file.read_all()) {
                    Ok(_content) => saved += 1, // write it somewhere else here
                    Err(error) => {
                        lost += 1;
                        println!("{}: {error}", entry.file_name().display());
                        let place = error.place();
                        println!("    device {:?}, byte {:?}", place.device, place.physical);
                    }
                },
                _ => {}
            }
        }
    }
    Ok((saved, lost))
}

/// A RAID1 filesystem of which one device is lost, and a file on the other one is damaged.
fn broken_disk() -> Result<Device, Box<dyn Error>> {
    let disk = Arc::new(MemoryDevice::new(512 << 20));
    let device = Device::from(Arc::clone(&disk) as Arc<dyn BlockDevice>);
    let lost = Device::memory(512 << 20);
    let mkfs = Mkfs::new().metadata(Profile::Raid1).data(Profile::Raid1);
    mkfs.devices([device.clone(), lost.clone()]).run()?;
    let filesystem = Builder::new().devices([device.clone(), lost]).open()?;
    let root = filesystem.root();
    root.create_dir("letters")?;
    for name in ["one", "two", "three"] {
        root.write(format!("letters/{name}"), format!("this is letter {name}. ").repeat(500))?;
    }
    filesystem.close()?;

    let bytes = disk.to_bytes();
    let at = bytes.windows(14).position(|window| window == b"is letter two.").ok_or("the letter is on the disk")?;
    disk.write_at(at as u64, b"damaged bytes!")?;
    let filesystem = Filesystem::open(device.clone());
    println!("without options: {}", filesystem.err().ok_or("a device is missing")?);
    Ok(device)
}
