//! Devices of filesystems from which this one has sprouted, and of those from which these have: they have superblocks
//! of their own, and hold the data and tree blocks that were not changed since.
//!
//! Invariant: nothing is ever written to them. A device counts as one of a seed by the flag in its superblock, until
//! the chunk tree is read; then its number and its UUID must be in that.

use crate::superblocks::is_seeding;
use butterfs_ondisk::DeviceId;
use butterfs_ondisk::items::DevItem;
use butterfs_ondisk::superblock::Superblock;
use butterfs_tree::MOST_SEEDS;

/// The devices that have superblocks of other filesystems.
#[derive(Debug, Default)]
pub(crate) struct Seeds {
    /// By place: the device's item and the UUID in the blocks of its filesystem.
    others: Vec<(usize, DevItem, [u8; 16])>,
    /// The places of those that count, with the numbers of the devices.
    used: Vec<(usize, DeviceId)>,
    /// The places of those that belong to something else.
    rejected: Vec<usize>,
}

impl Seeds {
    /// Those whose superblocks say that they are seeds; their items are added. `others`: the superblocks of other
    /// filesystems, by place.
    pub(crate) fn of(others: Vec<Option<&Superblock>>, items: &mut [Option<DevItem>]) -> Seeds {
        let mut seeds = Seeds::default();
        for (place, sb) in others.into_iter().enumerate().filter_map(|(place, sb)| Some((place, sb?))) {
            seeds.others.push((place, sb.dev_item, sb.block_fsid()));
            let is_taken = items.iter().flatten().any(|item| item.devid == sb.dev_item.devid);
            if is_seeding(sb) && !is_taken {
                seeds.take(place, sb.dev_item, items);
            }
        }
        seeds
    }

    fn take(&mut self, place: usize, item: DevItem, items: &mut [Option<DevItem>]) {
        items[place] = Some(item);
        self.used.push((place, DeviceId(item.devid.get())));
    }

    /// Compares them with the device items of the chunk tree, and returns the places of those that belong to something
    /// else. Of a number that the chunk tree does not know nothing is decided.
    pub(crate) fn settle(&mut self, known: &[DevItem], items: &mut [Option<DevItem>]) -> Vec<usize> {
        let others = std::mem::take(&mut self.others);
        let named = |item: &DevItem| known.iter().find(|known| known.devid == item.devid);
        let is_wrong = |item: &DevItem| named(item).is_some_and(|known| known.uuid != item.uuid);
        let is_right = |item: &DevItem| named(item).is_some_and(|known| known.uuid == item.uuid);
        for (place, ..) in others.iter().filter(|(_, item, _)| is_wrong(item)) {
            items[*place] = None;
            self.used.retain(|(used, _)| used != place);
            self.rejected.push(*place);
        }
        for (place, item, _) in others.iter().filter(|(_, item, _)| is_right(item)) {
            let is_taken = items.iter().flatten().any(|own| own.devid == item.devid);
            if !is_taken {
                self.take(*place, *item, items);
            }
        }
        self.others = others;
        self.rejected.clone()
    }

    /// The UUIDs in the blocks of the filesystems of those that count, each once.
    pub(crate) fn fsids(&self) -> Vec<[u8; 16]> {
        let is_used = |place: usize| self.used.iter().any(|(used, _)| *used == place);
        let mut all: Vec<[u8; 16]> =
            self.others.iter().filter(|(place, ..)| is_used(*place)).map(|(_, _, fsid)| *fsid).collect();
        all.sort_unstable();
        all.dedup();
        all.truncate(MOST_SEEDS);
        all
    }

    /// Whether a device is one of them.
    pub(crate) fn has(&self, id: DeviceId) -> bool {
        self.used.iter().any(|(_, used)| *used == id)
    }

    /// The places of devices that belong to something else.
    pub(crate) fn rejected(&self) -> &[usize] {
        &self.rejected
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_ondisk::superblock::super_flags;

    fn sb(devid: u64, uuid: u8, flags: u64) -> Superblock {
        let dev_item = DevItem { devid: devid.into(), uuid: [uuid; 16], ..DevItem::default() };
        Superblock {
            fsid: [uuid; 16],
            metadata_uuid: [uuid; 16],
            flags: flags.into(),
            dev_item,
            ..Superblock::default()
        }
    }

    #[test]
    fn the_chunk_tree_decides_which_seed_is_the_right_one() {
        let (wrong, right) = (sb(1, 7, super_flags::SEEDING), sb(1, 8, super_flags::SEEDING));
        let (plain, own) = (sb(3, 9, 0), sb(2, 1, 0).dev_item);
        let mut items = [Some(own), None, None, None];
        let mut seeds = Seeds::of(vec![None, Some(&wrong), Some(&right), Some(&plain)], &mut items);
        assert_eq!((items[1].is_some(), items[2].is_some(), items[3].is_some()), (true, false, false));
        assert_eq!(seeds.fsids(), [[7; 16]]);
        // Without the chunk tree nothing is decided.
        assert!(seeds.settle(&[], &mut items).is_empty() && seeds.has(DeviceId(1)));
        let known = [right.dev_item, own, plain.dev_item];
        assert_eq!(seeds.settle(&known, &mut items), [1]);
        assert_eq!(items.map(|item| item.map(|item| item.uuid[0])), [Some(1), None, Some(8), Some(9)]);
        assert_eq!(seeds.fsids(), [[8; 16], [9; 16]]);
        assert!(seeds.has(DeviceId(1)) && seeds.has(DeviceId(3)) && !seeds.has(DeviceId(2)));
    }
}
