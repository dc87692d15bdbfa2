//! The commands that write to a damaged filesystem, each by name. Nothing here allocates: a tree block is rewritten at
//! its own address, one copy after the other with a flush between them, so that a power cut leaves one copy whole where
//! there are two.
//!
//! - [`supers`]: copies of the superblock from a good one
//! - [`log`]: what the log would bring, and leaving it behind
//! - [`sizes`]: sizes of devices
//! - [`chunk_tree`]: the chunk tree from what was found
//! - [`sums`]: data sectors that do not fit their checksums
//!
//! Invariant: a function that plans writes nothing, and one that applies writes only what its plan names.

pub mod chunk_tree;
pub mod log;
pub mod sizes;
pub mod sums;
pub mod supers;

use crate::superblocks;
use crate::wreck::Wreck;
use crate::{Error, Result, error};
use butterfs_device::BlockDevice;
use butterfs_ondisk::items::DevItem;
use butterfs_ondisk::superblock::Superblock;
use butterfs_ondisk::{DeviceId, Logical};
use butterfs_volume::{Layout, Volume};
use std::sync::Arc;

/// The devices of a wreck, open for writing, in the same order.
#[derive(Debug)]
pub struct Writer<'a> {
    wreck: &'a Wreck,
    devices: &'a [Arc<dyn BlockDevice>],
}

impl<'a> Writer<'a> {
    /// Writes to these devices; refuses while the kernel has the filesystem mounted.
    pub fn new(wreck: &'a Wreck, devices: &'a [Arc<dyn BlockDevice>]) -> Result<Writer<'a>> {
        for device in devices {
            if let Some(usage) = device.kernel_use(&wreck.superblock().fsid) {
                return error(format!("{} is {usage}; unmount it first", device.name()));
            }
        }
        Ok(Writer { wreck, devices })
    }

    fn device(&self, id: DeviceId) -> Result<&Arc<dyn BlockDevice>> {
        if self.wreck.is_seed(id) {
            return error(format!("device {id} is a seed device, which is only read"));
        }
        let place = self.wreck.numbers().iter().position(|number| *number == Some(id));
        place.map(|place| &self.devices[place]).ok_or_else(|| Error(format!("device {id} is missing")))
    }

    /// Rewrites a tree block in all of its copies, one after the other.
    pub fn write_block(&self, at: Logical, bytes: &[u8]) -> Result<()> {
        let map = &self.wreck.chunks().map;
        let chunk =
            map.get_range(at, bytes.len() as u64).ok_or_else(|| Error(format!("no chunk holds the block {at}")))?;
        let layout = Layout::of(chunk).map_err(Error)?;
        if layout.parity() > 0 {
            return error(format!("the block {at} lies in a chunk with parity, which is not rewritten in place"));
        }
        for mirror in 0..layout.mirrors() {
            for piece in layout.pieces(at, bytes.len()) {
                let address = layout.stripe_address(&piece, mirror);
                let device = self.device(chunk.stripes[address.stripe].device)?;
                let wrap = |failed: std::io::Error| Error(format!("{}: {failed}", device.name()));
                device.write_at(address.physical.0, &bytes[piece.range.clone()]).map_err(wrap)?;
                device.flush().map_err(wrap)?;
            }
        }
        Ok(())
    }

    /// Makes this the superblock of all devices, in all copies; each keeps its own device item, changed by `change`.
    /// Devices that have missed commits keep their older one: it is what tells that. Those of seeds keep theirs.
    pub fn write_superblock(&self, sb: &Superblock, change: &dyn Fn(&mut DevItem)) -> Result<()> {
        let items = self.wreck.device_items().iter().zip(self.devices);
        let mut members = Vec::new();
        let own = items.filter_map(|(item, device)| Some(((*item)?, device)));
        for (mut item, device) in own.filter(|(item, _)| !self.wreck.is_seed(DeviceId(item.devid.get()))) {
            let before = item;
            change(&mut item);
            if !self.wreck.is_behind(DeviceId(item.devid.get())) {
                members.push((item, device.clone()));
            } else if item != before {
                return error(superblocks::behind_note(&**device));
            }
        }
        let volume = Volume::of_devices(members);
        volume.write_superblock(sb).map_err(|failed| Error(failed.to_string()))?;
        let told = volume.take_messages();
        told.into_iter().next().map_or(Ok(()), error)
    }
}
