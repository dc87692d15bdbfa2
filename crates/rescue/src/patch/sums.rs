//! Data sectors of which copies do not fit their checksums: which, whose they are, and what a user may decide about
//! them.

use super::Writer;
use super::sizes::write_sealed;
use crate::roots::Roots;
use crate::subvolume;
use crate::tree::Tree;
use crate::wreck::Wreck;
use crate::{Error, Result, error};
use butterfs_device::BlockDevice;
use butterfs_fs::file_extent::FileExtent;
use butterfs_ondisk::{Key, KeyType, Logical};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// A sector of which some copy does not fit.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Bad {
    /// Its address.
    pub logical: u64,
    /// The copies that do not fit or cannot be read, from 1 on.
    pub mirrors: Vec<u32>,
    /// Copies that there are.
    pub copies: u32,
    /// Files that have it: paths with their subvolumes in front.
    pub files: Vec<String>,
}

/// Sectors that are listed.
const MOST_LISTED: usize = 100_000;

/// Reads all copies of all data that has checksums. Those on devices that have missed commits are left out.
pub fn find(wreck: &Wreck) -> Result<Vec<Bad>> {
    let roots = Roots::assemble(wreck);
    let root = roots.checksums().ok_or_else(|| Error("the checksum tree is lost".to_owned()))?;
    let (sector, width) = (wreck.sectorsize(), wreck.checksum().len());
    let (mut found, mut bytes) = (Vec::new(), vec![0; sector as usize]);
    Tree::new(wreck, root).scan(Key::MIN, Key::MAX, &mut |key, data, _| {
        for (number, sum) in data.chunks_exact(width).enumerate().filter(|_| key.kind == KeyType::EXTENT_CSUM) {
            let at = Logical(key.offset.saturating_add(number as u64 * sector));
            let copies = wreck.volume().copies(at);
            let is_bad = |copy: &usize| {
                wreck.volume().read_copy(at, *copy, &mut bytes).is_err() || !wreck.checksum().matches(&bytes, sum)
            };
            let current = (0..copies).filter(|copy| !wreck.is_on_device_behind(at, *copy));
            let mirrors: Vec<u32> = current.filter(is_bad).map(|copy| copy as u32 + 1).collect();
            if !mirrors.is_empty() {
                found.push(Bad { logical: at.0, mirrors, copies: copies as u32, files: Vec::new() });
            }
        }
        if found.len() < MOST_LISTED { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    name(wreck, &roots, &mut found);
    Ok(found)
}

/// Finds the files that have the sectors, in all subvolumes.
fn name(wreck: &Wreck, roots: &Roots, found: &mut [Bad]) {
    if found.is_empty() {
        return;
    }
    let places: BTreeMap<u64, usize> = found.iter().enumerate().map(|(number, bad)| (bad.logical, number)).collect();
    for (id, root) in roots.subvolumes() {
        let tree = Tree::new(wreck, root.root);
        let mut hits: Vec<(usize, u64)> = Vec::new();
        tree.scan(Key::MIN, Key::MAX, &mut |key, data, _| {
            let extent =
                FileExtent::parse(key, data, wreck.sectorsize()).ok().filter(|_| key.kind == KeyType::EXTENT_DATA);
            if let Some(extent) = extent.filter(FileExtent::is_on_disk) {
                let range = extent.at.0..extent.at.0.saturating_add(extent.disk_len);
                hits.extend(places.range(range).map(|(_, number)| (*number, key.objectid)));
            }
            ControlFlow::Continue(())
        });
        for (number, ino) in hits {
            let path = crate::undelete::path_of(&tree, ino, &subvolume::inode(&tree, ino));
            let place = roots.path_of(*id);
            let shown = format!("{place}/{}", String::from_utf8_lossy(&path));
            let shown = shown.trim_start_matches('/').to_owned();
            if !found[number].files.contains(&shown) {
                found[number].files.push(shown);
            }
        }
    }
}

/// Declares what one copy of these sectors holds right: its checksums become theirs.
pub fn accept(wreck: &Wreck, devices: &[Arc<dyn BlockDevice>], sectors: &[Logical], mirror: u32) -> Result<()> {
    let (sector, width) = (wreck.sectorsize(), wreck.checksum().len());
    let mut wanted: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let mut bytes = vec![0; sector as usize];
    for at in sectors {
        let copy = (mirror as usize).checked_sub(1).filter(|copy| *copy < wreck.volume().copies(*at));
        let copy = copy.ok_or_else(|| Error(format!("there is no mirror {mirror} of {at}")))?;
        if wreck.is_on_device_behind(*at, copy) {
            return error(format!("mirror {mirror} of {at} is of an earlier state: its device has missed commits"));
        }
        wreck.volume().read_copy(*at, copy, &mut bytes).map_err(|failed| Error(failed.to_string()))?;
        wanted.insert(at.0, wreck.checksum().digest(&bytes)[..width].to_vec());
    }
    let root = Roots::assemble(wreck).checksums().ok_or_else(|| Error("the checksum tree is lost".to_owned()))?;
    // Leaves that change, each with all of its changes: nothing of it is read again.
    let mut leaves = Vec::new();
    Tree::new(wreck, root).blocks(&mut |block, _| {
        if block.node.is_leaf() {
            let mut leaf = block.node.clone();
            let before = wanted.len();
            for slot in 0..leaf.nritems() {
                let (key, len) = (leaf.key(slot), leaf.item_len(slot) as u64 / width as u64 * sector);
                let range = key.offset..key.offset.saturating_add(len);
                let inside = wanted.range(range).filter(|_| key.kind == KeyType::EXTENT_CSUM);
                let inside: Vec<(u64, Vec<u8>)> = inside.map(|(at, digest)| (*at, digest.clone())).collect();
                for (at, digest) in inside {
                    let start = ((at - key.offset) / sector) as usize * width;
                    leaf.item_mut(slot)[start..start + width].copy_from_slice(&digest);
                    wanted.remove(&at);
                }
            }
            if wanted.len() < before {
                leaves.push(leaf);
            }
        }
        !wanted.is_empty()
    });
    if let Some(at) = wanted.keys().next() {
        return error(format!("{at} has no checksum"));
    }
    let writer = Writer::new(wreck, devices)?;
    leaves.iter().try_for_each(|leaf| write_sealed(&writer, wreck, leaf.at(), leaf))
}
