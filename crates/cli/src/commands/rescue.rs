//! `butterfs rescue`: finds out what is left of a filesystem that does not mount, and repairs single structures.
//! Grammar and text of what btrfs-progs has are its own.

mod chunk_recover;
mod clear;
mod clear_ino_cache;
mod clear_uuid_tree;
mod create_control_device;
mod fix_data_checksum;
mod fix_device_size;
mod scan;
mod super_recover;
mod zero_log;

use super::{Run, subcommands};
use crate::error::CliError;
use crate::report;
use butterfs_device::{BlockDevice, FileDevice, FileOptions};
use butterfs_rescue::wreck::{Opening, Wreck};
use clap::Subcommand;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

subcommands! {
    /// Find out what is left of a filesystem that does not mount, and repair single structures.
    Group {
        Scan(scan::Args),
        ChunkRecover(chunk_recover::Args),
        SuperRecover(super_recover::Args),
        ZeroLog(zero_log::Args),
        ClearUuidTree(clear_uuid_tree::Args),
        ClearInoCache(clear_ino_cache::Args),
        FixDeviceSize(fix_device_size::Args),
        FixDataChecksum(fix_data_checksum::Args),
        CreateControlDevice(create_control_device::Args),
    }
}

/// The devices, for writing, and the filesystem on them as it is.
fn open_for_writing(paths: &[PathBuf], opening: Opening) -> Result<(Vec<Arc<dyn BlockDevice>>, Wreck), CliError> {
    let devices = writable(paths)?;
    let wreck = Wreck::open(devices.clone(), opening).map_err(failed)?;
    wreck.cautions.iter().for_each(|note| report::warn(note));
    Ok((devices, wreck))
}

fn writable(paths: &[PathBuf]) -> Result<Vec<Arc<dyn BlockDevice>>, CliError> {
    let open =
        |path: &PathBuf| Ok(Arc::new(FileDevice::open(path, &FileOptions::read_write())?) as Arc<dyn BlockDevice>);
    paths.iter().map(open).collect()
}

fn failed(error: butterfs_rescue::Error) -> CliError {
    CliError::failed(error.to_string())
}

/// Asks on standard output and reads the answer from standard input.
fn agrees(question: &str, out: &mut dyn Write) -> Result<bool, CliError> {
    write!(out, "{question} [y/N]: ")?;
    out.flush()?;
    let mut answer = String::new();
    // No answer is no.
    let _ = std::io::stdin().read_line(&mut answer);
    Ok(matches!(answer.trim(), "y" | "Y" | "yes" | "YES" | "Yes"))
}
