//! `butterfs inspect-internal dump-super`: one or all copies of the superblock as text.

use super::{Run, number};
use crate::error::CliError;
use crate::report;
use butterfs_device::{BlockDevice, FileDevice, FileOptions};
use butterfs_ondisk::dump;
use butterfs_ondisk::superblock::{MAGIC, OFFSETS, SUPERBLOCK_LEN, Superblock};
use std::io::Write;
use std::path::{Path, PathBuf};
use zerocopy::FromBytes;

/// Print the superblock of a device as text.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Also print the system chunk array and the backup roots
    #[arg(short, long)]
    full: bool,
    /// Print all copies
    #[arg(short, long)]
    all: bool,
    /// Print this copy: 0 at 64 KiB, 1 at 64 MiB, 2 at 256 GiB
    #[arg(short = 's', long = "super", value_name = "COPY", value_parser = number)]
    copy: Option<u64>,
    /// The same as --super, kept for scripts
    #[arg(short = 'i', hide = true, value_name = "COPY", value_parser = number)]
    old_copy: Option<u64>,
    /// Print the bytes at this offset as a superblock
    #[arg(long, value_name = "OFFSET", value_parser = number)]
    bytenr: Option<u64>,
    /// Print a superblock with a wrong magic too
    #[arg(short = 'F', long)]
    force: bool,
    /// Devices or files
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let offsets = self.offsets();
        for path in &self.devices {
            let device = FileDevice::open(path, &FileOptions::inspect())?;
            for &offset in &offsets {
                self.print(out, path, &device, offset)?;
            }
        }
        Ok(())
    }
}

impl Args {
    /// The offsets of the requested superblocks.
    fn offsets(&self) -> Vec<u64> {
        if self.all {
            return OFFSETS.iter().map(|at| at.get()).collect();
        }
        if let Some(offset) = self.bytenr {
            return vec![offset];
        }
        let copy = self.copy.or(self.old_copy).unwrap_or(0);
        match usize::try_from(copy).ok().and_then(|copy| OFFSETS.get(copy)) {
            Some(at) => vec![at.get()],
            None => {
                report::warn(&format!("deprecated use of -s <bytenr> with {copy}, assuming --bytenr"));
                vec![copy]
            }
        }
    }

    /// Prints one superblock and an empty line; only the line where the device ends before.
    fn print(&self, out: &mut dyn Write, path: &Path, device: &FileDevice, offset: u64) -> Result<(), CliError> {
        if let Some(bytes) = read(path, device, offset)? {
            writeln!(out, "superblock: bytenr={offset}, device={}", path.display())?;
            writeln!(out, "---------------------------------------------------------")?;
            let sb = Superblock::read_from_bytes(&bytes).expect("the buffer has the size of a superblock");
            if sb.magic != MAGIC && !self.force {
                let sentence = format!("bad magic on superblock on {} at {offset}", path.display());
                return Err(CliError::failed(sentence).hint("use --force to print it anyway"));
            }
            dump::superblock(out, &sb, self.full)?;
        }
        Ok(writeln!(out)?)
    }
}

fn read(path: &Path, device: &FileDevice, offset: u64) -> Result<Option<[u8; SUPERBLOCK_LEN]>, CliError> {
    let mut bytes = [0; SUPERBLOCK_LEN];
    if offset.checked_add(SUPERBLOCK_LEN as u64).is_none_or(|end| end > device.len()) {
        return Ok(None);
    }
    let failed =
        |error| CliError::failed(format!("failed to read the superblock on {} at {offset}: {error}", path.display()));
    device.read_at(offset, &mut bytes).map_err(failed)?;
    Ok(Some(bytes))
}
