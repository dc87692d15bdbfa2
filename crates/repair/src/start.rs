//! Where a damaged filesystem is entered: by another copy of the superblock, a backup root, or given roots. The
//! superblock is changed on the overlay only.

use crate::overlay::Overlay;
use crate::trouble::{Result, Trouble};
use butterfs_device::BlockDevice;
use butterfs_ondisk::header::Header;
use butterfs_ondisk::superblock::{OFFSETS, RootBackup, SUPERBLOCK_LEN};
use butterfs_ondisk::{Generation, Logical, Superblock};
use butterfs_volume::{ChunkMap, Volume};
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// The way in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// The superblock copy to believe; 0 is the primary one.
    pub super_copy: usize,
    /// Use the newest backup root that can be read.
    pub backup: bool,
    /// Address of the root tree.
    pub tree_root: Option<u64>,
    /// Address of the chunk tree.
    pub chunk_root: Option<u64>,
}

/// Every valid superblock of the devices.
pub(crate) fn superblocks(devices: &[Arc<dyn BlockDevice>]) -> Vec<Superblock> {
    let read = |device: &Arc<dyn BlockDevice>| OFFSETS.map(|at| read_copy(&**device, at.get()));
    devices.iter().flat_map(read).flatten().collect()
}

/// The one that rules: a primary one if there is any, of the highest generation.
pub(crate) fn newest(superblocks: &[Superblock]) -> Option<&Superblock> {
    superblocks.iter().max_by_key(|sb| (sb.bytenr.get() == OFFSETS[0].get(), sb.generation.get()))
}

fn read_copy(device: &dyn BlockDevice, at: u64) -> Option<Superblock> {
    let mut bytes = vec![0; SUPERBLOCK_LEN];
    device.read_at(at, &mut bytes).ok()?;
    Superblock::parse(&bytes, butterfs_ondisk::Physical(at)).ok()
}

/// Changes the superblocks of the overlays so that whoever opens them enters there.
pub(crate) fn enter(overlays: &[Arc<Overlay>], start: &Start) -> Result<()> {
    if *start == Start::default() {
        return Ok(());
    }
    if start.super_copy != 0 {
        for overlay in overlays {
            let at = OFFSETS.get(start.super_copy);
            let at = at.ok_or_else(|| Trouble::new(format!("there is no superblock copy {}", start.super_copy)))?;
            let found = read_copy(&**overlay, at.get());
            let sb = found.ok_or_else(|| {
                Trouble::new(format!("superblock copy {} of {} is not valid", start.super_copy, overlay.name()))
            })?;
            write_primary(overlay, sb)?;
        }
    }
    if start.backup || start.tree_root.is_some() || start.chunk_root.is_some() {
        let devices = overlays.iter().map(|overlay| Arc::clone(overlay) as Arc<dyn BlockDevice>).collect();
        let (volume, sb, _) = Volume::open(devices)?;
        let entered = entered(&volume, &sb, start)?;
        drop(volume);
        for overlay in overlays {
            let own = read_copy(&**overlay, OFFSETS[0].get()).unwrap_or(entered);
            let sb = Superblock { dev_item: own.dev_item, ..entered };
            write_primary(overlay, sb)?;
        }
    }
    Ok(())
}

fn write_primary(overlay: &Overlay, mut sb: Superblock) -> Result<()> {
    sb.bytenr = OFFSETS[0].get().into();
    sb.seal();
    Ok(overlay.write_at(OFFSETS[0].get(), sb.as_bytes())?)
}

/// The superblock with the roots that are wanted.
fn entered(volume: &Volume, sb: &Superblock, start: &Start) -> Result<Superblock> {
    let mut entered = *sb;
    if let Some(at) = start.chunk_root {
        let header = header(volume, sb, at)?;
        entered.chunk_root = at.into();
        (entered.chunk_root_generation, entered.chunk_root_level) = (header.generation, header.level);
    }
    complete_map(volume, &entered);
    if let Some(at) = start.tree_root {
        let header = header(volume, sb, at)?;
        (entered.root, entered.root_level, entered.generation) = (at.into(), header.level, header.generation);
        entered.log_root = 0.into();
    } else if start.backup {
        let slot = backup(volume, sb)?;
        (entered.root, entered.root_level) = (slot.tree_root, slot.tree_root_level);
        entered.generation = slot.tree_root_gen;
        entered.bytes_used = slot.bytes_used;
        if slot.tree_root != sb.root {
            entered.log_root = 0.into();
        }
    }
    Ok(entered)
}

/// The newest backup root whose block is good: that of the last commit, if it can be read.
fn backup<'a>(volume: &Volume, sb: &'a Superblock) -> Result<&'a RootBackup> {
    let mut slots: Vec<&RootBackup> = sb.super_roots.iter().filter(|slot| slot.tree_root.get() != 0).collect();
    slots.sort_by_key(|slot| std::cmp::Reverse(slot.tree_root_gen.get()));
    let is_good = |slot: &&RootBackup| {
        header(volume, sb, slot.tree_root.get()).is_ok_and(|header| header.generation == slot.tree_root_gen)
    };
    slots.into_iter().find(is_good).ok_or_else(|| Trouble::new("no backup root can be read"))
}

fn complete_map(volume: &Volume, sb: &Superblock) {
    let generation = Generation(sb.generation.get() + 1);
    // The chunk tree is read with a store of its own; only the map stays.
    let store = crate::store::Store::new(reopened(volume), sb, generation);
    crate::chunks::read(&store, sb);
    let map: ChunkMap = (*store.volume.chunk_map()).clone();
    volume.set_chunk_map(map);
}

fn reopened(volume: &Volume) -> Volume {
    let copy = Volume::of_devices(volume.present_devices());
    copy.set_chunk_map((*volume.chunk_map()).clone());
    copy
}

/// The header of a good block of this filesystem.
fn header(volume: &Volume, sb: &Superblock, at: u64) -> Result<Header> {
    let mut bytes = vec![0; sb.nodesize.get() as usize];
    let kind = sb.checksum_kind().unwrap_or_default();
    for copy in volume.preferred_copies(Logical(at), bytes.len()) {
        if volume.read_copy(Logical(at), copy, &mut bytes).is_err() {
            continue;
        }
        let Ok((header, _)) = Header::read_from_prefix(&bytes) else { continue };
        if header.bytenr.get() == at && header.fsid == sb.block_fsid() && kind.matches(&bytes[32..], &header.csum) {
            return Ok(header);
        }
    }
    Err(Trouble::new(format!("there is no good tree block at {at}")))
}
