//! Reads one file out of a disk image, where the filesystem is in a partition.
//!
//! `cargo run -p butterfs --example read_from_disk_image [DISK OFFSET LENGTH PATH]`
//!
//! Without arguments it makes such an image first. `fdisk -l` and `sfdisk --json` print where partitions begin.

use butterfs::{Access, Builder, Device, Filesystem, Log, Mkfs};
use std::error::Error;
use std::ffi::OsString;
use std::io::Write;
use std::ops::Range;
use std::path::Path;

pub fn main() -> Result<(), Box<dyn Error>> {
    run(std::env::args_os().skip(1).collect())
}

pub fn run(arguments: Vec<OsString>) -> Result<(), Box<dyn Error>> {
    if let [disk, offset, length, path] = arguments.as_slice() {
        let number = |text: &OsString| text.to_string_lossy().parse::<u64>();
        let (offset, length) = (number(offset)?, number(length)?);
        let content = read(disk.as_ref(), offset..offset + length, path.as_ref())?;
        std::io::stdout().write_all(&content)?;
        return Ok(());
    }
    let folder = std::env::temp_dir().join(format!("butterfs-read-from-disk-image-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let disk = folder.join("disk.img");
    let partition = make_disk(&disk)?;
    let content = read(&disk, partition, Path::new("etc/hostname"))?;
    println!("etc/hostname: {}", String::from_utf8_lossy(&content));
    assert_eq!(content, b"example\n");
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

/// Reads a file and changes nothing, not even if the filesystem was not unmounted cleanly.
fn read(disk: &Path, partition: Range<u64>, path: &Path) -> Result<Vec<u8>, butterfs::Error> {
    let partition = Device::path(disk).window(partition);
    let filesystem = Builder::new().device(partition).access(Access::ReadOnly).log(Log::Ignore).open()?;
    filesystem.root().read(path)
}

/// Makes a disk whose only partition begins after 1 MiB, as partitioning tools do. Returns where the partition is.
fn make_disk(path: &Path) -> Result<Range<u64>, butterfs::Error> {
    let partition = 1 << 20..(1 << 20) + (256 << 20);
    let disk = Device::create(path, partition.end + (1 << 20))?.window(partition.clone());
    Mkfs::new().device(disk.clone()).run()?;
    let filesystem = Filesystem::open(disk)?;
    filesystem.root().create_dir("etc")?;
    filesystem.root().write("etc/hostname", "example\n")?;
    filesystem.close()?;
    Ok(partition)
}
