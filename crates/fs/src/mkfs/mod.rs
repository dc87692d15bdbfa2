//! Makes a new filesystem: decides what it is to be, lays out its first chunks, builds every tree in full and writes
//! it, all of one generation and without the machinery of transactions.
//!
//! - [`options`]: what is asked for, with defaults and rules
//! - [`features`]: the features that can be chosen
//! - [`layout`]: the first chunks and where they lie
//! - [`trees`]: the items of every tree
//! - [`blocks`]: how many blocks a tree needs, and their addresses
//! - [`superblock`], [`image`]: the bytes, and the order in which they are written
//!
//! The crate `image` writes filesystems that are full from the start; it shares the parts that are public here.
//!
//! # Not here
//! Profiles with parity; contents other than an empty root directory.

mod blocks;
mod features;
mod image;
mod layout;
mod options;
mod superblock;
mod trees;

#[cfg(test)]
mod tests;

pub use blocks::{Item, PlacedTree};
pub use butterfs_volume::recognise;
pub use features::{FEATURES, Feature, FeatureChoice, names_of};
pub use image::identity;
pub(crate) use image::{wipe, wipe_superblocks};
pub use layout::{MemberDevice, RESERVED, usable_metadata};
pub use options::{MkfsOptions, Settings};
pub use superblock::superblock;
pub use trees::{FilesystemSpec, GENERATION, default_entry, directory_inode, inode_ref, uuid_item};

use crate::env::Env;
use crate::error::{Errno, Error, Result};
use blocks::ChunkSpace;
use butterfs_device::BlockDevice;
use butterfs_ondisk::checksum::ChecksumKind;
use butterfs_ondisk::{DeviceId, TreeId};
use butterfs_volume::{Chunk, ChunkMap, Volume};
use std::sync::Arc;

/// The result of making a filesystem.
#[derive(Clone, Debug)]
pub struct MkfsReport {
    /// The filesystem's UUID.
    pub fsid: [u8; 16],
    /// Its label.
    pub label: Vec<u8>,
    /// Bytes of a tree block.
    pub nodesize: u32,
    /// Bytes of a sector.
    pub sectorsize: u32,
    /// Bytes of the filesystem: of all its devices together.
    pub total_bytes: u64,
    /// Its first chunks.
    pub chunks: Vec<Chunk>,
    /// Feature bits.
    pub incompat: u64,
    /// Feature bits.
    pub compat_ro: u64,
    /// The checksum.
    pub checksum: ChecksumKind,
    /// Number, bytes and name of each device.
    pub devices: Vec<(DeviceId, u64, String)>,
    /// Errors that leave the filesystem no worse than one without copies of its superblock.
    pub warnings: Vec<String>,
}

/// Makes a filesystem on `devices`. When this returns it is durable.
///
/// Refuses what [`MkfsOptions::settings`] refuses, with `ENOSPC` a device that is too small (the sentence names the
/// minimum), and without `force` with `EEXIST` a device on which something is recognised.
pub fn mkfs(devices: &[Arc<dyn BlockDevice>], options: &MkfsOptions, env: &Env) -> Result<MkfsReport> {
    let settings = options.settings(devices.len())?;
    if devices.is_empty() {
        return Err(Error::refused(Errno::EINVAL, "a filesystem needs a device"));
    }
    let sizes =
        devices.iter().map(|device| usable_bytes(&**device, options, &settings)).collect::<Result<Vec<u64>>>()?;
    if !options.force {
        devices.iter().try_for_each(|device| refuse_existing(&**device))?;
    }
    let members = (1..).zip(devices).zip(&sizes).map(|((id, device), &total_bytes)| MemberDevice {
        id: DeviceId(id),
        uuid: options.device_uuid.filter(|_| devices.len() == 1).unwrap_or_else(|| env.uuid()),
        total_bytes,
        name: device.name(),
    });
    let spec = specify(members.collect(), options, settings, env);
    devices.iter().zip(&sizes).try_for_each(|(device, &size)| clear(&**device, size, options))?;
    let volume = Volume::of_devices(spec.device_items().into_iter().zip(devices.iter().cloned()).collect());
    let map = ChunkMap::from_chunks(spec.chunks.iter().cloned()).expect("the first chunks do not overlap");
    let placed = place(&spec, &map);
    volume.set_chunk_map(map);
    image::write_image(&volume, &spec, &placed)?;
    Ok(report(spec, volume.take_messages()))
}

/// Gives every tree block its address: the chunk tree in the system chunk, everything else in the metadata chunk.
fn place(spec: &FilesystemSpec, map: &ChunkMap) -> Vec<PlacedTree> {
    let spaces: Vec<ChunkSpace> =
        spec.chunks.iter().map(|chunk| ChunkSpace::of(chunk, map, spec.settings.nodesize)).collect();
    let space_of = |tree| if tree == TreeId::CHUNK { 0 } else { 1 };
    blocks::lay_out(&spec.trees(), &spaces, space_of, |tree, placed| spec.items(tree, placed))
        .expect("the first chunks have room for the first blocks")
}

/// Refuses a device on which something is recognised, unless that was allowed, and leaves nothing of the old content of
/// its first bytes that anything would recognise.
pub fn prepare(device: &dyn BlockDevice, total_bytes: u64, options: &MkfsOptions) -> Result<()> {
    if !options.force {
        refuse_existing(device)?;
    }
    clear(device, total_bytes, options)
}

/// Leaves nothing of the old content that anything would recognise.
fn clear(device: &dyn BlockDevice, total_bytes: u64, options: &MkfsOptions) -> Result<()> {
    image::wipe(device, total_bytes)?;
    if options.keep_old_blocks {
        return Ok(());
    }
    // Only advice, which may fail; and afterwards everything reads as anything, also what was zero.
    let _ = device.discard(0, total_bytes);
    image::wipe(device, total_bytes)
}

/// Bytes of `device` that the filesystem gets: whole sectors, and enough of them.
fn usable_bytes(device: &dyn BlockDevice, options: &MkfsOptions, settings: &Settings) -> Result<u64> {
    let (name, len) = (device.name(), device.len());
    let wanted = options.byte_count.unwrap_or(len);
    if wanted > len {
        let what = format!("{name} is smaller than the requested size, expected {wanted}, found {len}");
        return Err(Error::refused_at(Errno::EINVAL, what));
    }
    let sector = u64::from(settings.sectorsize);
    let (usable, minimum) = (wanted / sector * sector, layout::minimum_bytes(settings));
    if usable < minimum {
        let what = format!("{name} with {wanted} bytes is too small for a filesystem, the minimum is {minimum} bytes");
        return Err(Error::refused_at(Errno::ENOSPC, what));
    }
    Ok(usable)
}

/// Refuses a device on which something is recognised.
pub(crate) fn refuse_existing(device: &dyn BlockDevice) -> Result<()> {
    let name = device.name();
    let found = recognise(device).map_err(|error| Error::Device(format!("cannot read {name}: {error}").into()))?;
    match found {
        Some(what) => {
            Err(Error::refused_at(Errno::EEXIST, format!("{name} appears to contain an existing filesystem ({what})")))
        }
        None => Ok(()),
    }
}

fn specify(devices: Vec<MemberDevice>, options: &MkfsOptions, settings: Settings, env: &Env) -> FilesystemSpec {
    let chunks = layout::chunks(&settings, &devices);
    FilesystemSpec {
        settings,
        fsid: options.fsid.unwrap_or_else(|| env.uuid()),
        chunk_tree_uuid: env.uuid(),
        subvolume_uuid: env.uuid(),
        now: env.now(),
        devices,
        chunks,
    }
}

fn report(spec: FilesystemSpec, warnings: Vec<String>) -> MkfsReport {
    MkfsReport {
        fsid: spec.fsid,
        total_bytes: spec.total_bytes(),
        label: spec.settings.label,
        nodesize: spec.settings.nodesize,
        sectorsize: spec.settings.sectorsize,
        chunks: spec.chunks,
        incompat: spec.settings.incompat,
        compat_ro: spec.settings.compat_ro,
        checksum: spec.settings.checksum,
        devices: spec.devices.into_iter().map(|device| (device.id, device.total_bytes, device.name)).collect(),
        warnings,
    }
}
