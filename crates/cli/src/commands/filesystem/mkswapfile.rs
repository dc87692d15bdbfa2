//! `butterfs filesystem mkswapfile`: a preallocated file without copy on write, with the header of a swap area.
//!
//! The kernel swaps to files of its own filesystems only, so the file is of use where the kernel has mounted the
//! filesystem: on a FUSE mount swapon(8) refuses every file.

use crate::args;
use crate::commands::Run;
use crate::error::{CliError, os_message};
use rustix::fs::{FallocateFlags, IFlags};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Fewer pages are no swap area.
const LEAST_BYTES: u64 = 40 << 10;
/// The kernel's pages here, and the unit of swapping.
const PAGE: u64 = 4096;
/// The offsets of the header's fields: version, last page, number of bad pages, UUID.
const HEADER_AT: usize = 1024;
const MAGIC: &[u8; 10] = b"SWAPSPACE2";

/// Make a file that can be used as swap space.
///
/// The file is preallocated, is not copied on write, and can be read and written by its owner only. 'swapon' takes it
/// where the kernel has mounted the filesystem, not on a mount of butterfs.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Size of the file, rounded down to whole pages; at least 40k
    #[arg(short, long, value_name = "SIZE", default_value = "2g", value_parser = args::size)]
    size: u64,
    /// The UUID of the swap area: one of one's own, or 'clear', 'random' or 'time'
    #[arg(short = 'U', long = "uuid", value_name = "UUID", default_value = "random", value_parser = SwapUuid::parse)]
    uuid: SwapUuid,
    /// The file, which must not exist
    file: PathBuf,
}

/// The source of the UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SwapUuid {
    Clear,
    Random,
    Time,
    Given(uuid::Uuid),
}

impl SwapUuid {
    fn parse(text: &str) -> Result<SwapUuid, String> {
        match text {
            "clear" => Ok(SwapUuid::Clear),
            "random" => Ok(SwapUuid::Random),
            "time" => Ok(SwapUuid::Time),
            given => {
                uuid::Uuid::try_parse(given).map(SwapUuid::Given).map_err(|_| format!("UUID not recognized: {given}"))
            }
        }
    }

    fn bytes(self) -> [u8; 16] {
        match self {
            SwapUuid::Clear => [0; 16],
            SwapUuid::Random => butterfs_fs::Env::system().uuid(),
            SwapUuid::Time => by_time(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()),
            SwapUuid::Given(given) => *given.as_bytes(),
        }
    }
}

/// A UUID of version 1, whose clock sequence and node are random.
fn by_time(since_1970: Duration) -> [u8; 16] {
    /// Units of 100 nanoseconds from 1582-10-15 to 1970.
    const EPOCH: u64 = 0x01b2_1dd2_1381_4000;
    let units = EPOCH.wrapping_add((since_1970.as_nanos() / 100) as u64);
    let mut bytes = butterfs_fs::Env::system().uuid();
    bytes[..4].copy_from_slice(&(units as u32).to_be_bytes());
    bytes[4..6].copy_from_slice(&((units >> 32) as u16).to_be_bytes());
    bytes[6..8].copy_from_slice(&(((units >> 48) as u16 & 0x0fff) | 0x1000).to_be_bytes());
    // A node that is no network card's.
    bytes[10] |= 1;
    bytes
}

/// The first page.
fn header(bytes: u64, uuid: [u8; 16]) -> [u8; PAGE as usize] {
    let mut page = [0; PAGE as usize];
    let last_page = (bytes / PAGE - 1) as u32;
    page[HEADER_AT..HEADER_AT + 4].copy_from_slice(&1u32.to_ne_bytes());
    page[HEADER_AT + 4..HEADER_AT + 8].copy_from_slice(&last_page.to_ne_bytes());
    page[HEADER_AT + 12..HEADER_AT + 28].copy_from_slice(&uuid);
    page[PAGE as usize - MAGIC.len()..].copy_from_slice(MAGIC);
    page
}

fn failed(what: &str, error: std::io::Error) -> CliError {
    CliError::failed(format!("{what}: {}", os_message(&error)))
}

fn create(path: &Path) -> Result<File, CliError> {
    let mut options = OpenOptions::new();
    let opened = options.read(true).write(true).create_new(true).mode(0o600).open(path);
    opened.map_err(|error| failed("cannot create new swapfile", error))
}

fn fill(file: &File, bytes: u64, uuid: [u8; 16]) -> Result<(), CliError> {
    let flags = rustix::fs::ioctl_getflags(file).unwrap_or(IFlags::empty());
    rustix::fs::ioctl_setflags(file, flags | IFlags::NOCOW)
        .map_err(|error| failed("cannot set NOCOW flag", error.into()))?;
    rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes)
        .map_err(|error| failed("cannot fallocate file", error.into()))?;
    file.write_all_at(&header(bytes, uuid), 0).map_err(|error| failed("cannot write swap header", error))?;
    file.sync_all().map_err(|error| failed("cannot write swap header", error))
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        if self.size < LEAST_BYTES {
            return Err(CliError::failed("swapfile needs to be at least 40 KiB"));
        }
        let bytes = (self.size / PAGE * PAGE).min(u64::from(u32::MAX) * PAGE);
        let file = create(&self.file)?;
        if let Err(error) = fill(&file, bytes, self.uuid.bytes()) {
            // A file that is no swap area is of no use to anybody.
            let _ = std::fs::remove_file(&self.file);
            return Err(error);
        }
        let shown = args::pretty_size(bytes);
        Ok(writeln!(out, "create swapfile {} size {shown} ({bytes})", self.file.display())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_that_of_mkswap() {
        let page = header(1 << 20, [0x12; 16]);
        assert_eq!(page[..1024], [0; 1024]);
        assert_eq!(page[1024..1036], [1, 0, 0, 0, 255, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(page[1036..1052], [0x12; 16]);
        assert_eq!(&page[4086..], MAGIC);
        assert!(page[1052..4086].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn uuids_are_made_in_four_ways() {
        assert_eq!(SwapUuid::parse("clear").map(SwapUuid::bytes), Ok([0; 16]));
        let given = "12345678-1234-1234-1234-123456789abc";
        assert_eq!(
            SwapUuid::parse(given).map(|uuid| uuid::Uuid::from_bytes(uuid.bytes()).to_string()),
            Ok(given.into())
        );
        assert_eq!(SwapUuid::parse("bogus"), Err("UUID not recognized: bogus".to_owned()));
        for (text, version) in [("random", 4), ("time", 1)] {
            let made = SwapUuid::parse(text).map(SwapUuid::bytes).unwrap();
            assert_eq!(uuid::Uuid::from_bytes(made).get_version_num(), version, "{text}");
        }
        // 2026-01-01, whose clock 100 ns count is known.
        let time = uuid::Uuid::from_bytes(by_time(Duration::from_secs(1_767_225_600)));
        assert!(time.to_string().split('-').nth(2).is_some_and(|part| part == "11f0"), "{time}");
    }
}
