//! The pass `free-space`: the free space tree is made the complement of the extents, group by group.

use crate::forest::Forest;
use crate::ranges::Ranges;
use crate::trouble::Result;
use crate::walk;
use butterfs_ondisk::header::ITEM_LEN;
use butterfs_ondisk::items::FreeSpaceInfo;
use butterfs_ondisk::{Key, KeyType, TreeId};
use std::collections::BTreeMap;
use std::ops::Range;
use zerocopy::{FromBytes, IntoBytes};

/// Sectors that one bitmap item covers.
const BITMAP_SECTORS: u64 = 2048;

/// The items of one group.
#[derive(Default)]
struct Listed {
    keys: Vec<Key>,
    info: Option<FreeSpaceInfo>,
    free: Ranges,
    extents: u64,
    bitmaps: u64,
}

/// Makes the tree right; true when anything was changed.
pub(crate) fn write(forest: &mut Forest, used: &Ranges) -> Result<bool> {
    let map = forest.store.volume.chunk_map();
    let (mut listed, mut stray) = (BTreeMap::<u64, Listed>::new(), Vec::new());
    let (ptr, sector) = (forest.ptr(TreeId::FREE_SPACE)?, forest.store.sectorsize());
    walk::items(&forest.store, &ptr, &mut |key, data| {
        let end = key.objectid.saturating_add(key.offset);
        let chunk = map.get(butterfs_ondisk::Logical(key.objectid)).filter(|chunk| end <= chunk.end().get());
        let is_odd = |start: u64, length: u64| {
            key.kind == KeyType::FREE_SPACE_INFO && (key.objectid, key.offset) != (start, length)
        };
        match chunk.filter(|chunk| !is_odd(chunk.start.get(), chunk.length)) {
            Some(chunk) => add(listed.entry(chunk.start.get()).or_default(), key, data, sector),
            None => stray.push(key),
        }
    });
    let mut changed = false;
    for key in stray {
        changed |= forest.remove(TreeId::FREE_SPACE, key)?;
    }
    for chunk in map.iter() {
        let group = chunk.start.get()..chunk.end().get();
        let free = used.gaps(group.clone());
        let own = listed.remove(&group.start).unwrap_or_default();
        if !is_right(&own, &group, &free) {
            changed = true;
            own.keys.iter().try_for_each(|key| forest.remove(TreeId::FREE_SPACE, *key).map(drop))?;
            for (key, data) in items(&group, &free, sector) {
                forest.put(TreeId::FREE_SPACE, key, &data)?;
            }
        }
    }
    Ok(changed)
}

fn add(listed: &mut Listed, key: Key, data: &[u8], sector: u64) {
    listed.keys.push(key);
    match key.kind {
        KeyType::FREE_SPACE_INFO => listed.info = FreeSpaceInfo::read_from_bytes(data).ok(),
        KeyType::FREE_SPACE_EXTENT => {
            listed.extents += 1;
            listed.free.insert(key.objectid..key.objectid.saturating_add(key.offset));
        }
        KeyType::FREE_SPACE_BITMAP => {
            listed.bitmaps += 1;
            for bit in 0..(key.offset / sector).min(data.len() as u64 * 8) {
                if data[(bit / 8) as usize] & (1 << (bit % 8)) != 0 {
                    let at = key.objectid + bit * sector;
                    listed.free.insert(at..at + sector);
                }
            }
        }
        _ => {}
    }
}

fn is_right(listed: &Listed, group: &Range<u64>, free: &[Range<u64>]) -> bool {
    let Some(info) = listed.info else { return false };
    let of_bitmaps = info.flags.get() & FreeSpaceInfo::USING_BITMAPS != 0;
    let right_form = if of_bitmaps { listed.extents == 0 } else { listed.bitmaps == 0 };
    let right_count = u64::from(info.extent_count.get()) == free.len() as u64;
    let maximal = of_bitmaps || listed.extents == free.len() as u64;
    right_form && right_count && maximal && listed.free.within(group.clone()).eq(free.iter().cloned())
}

/// The items of a group with these free runs.
fn items(group: &Range<u64>, free: &[Range<u64>], sector: u64) -> Vec<(Key, Vec<u8>)> {
    let length = group.end - group.start;
    let bitmap_bytes = BITMAP_SECTORS * sector;
    let bitmaps = length.div_ceil(bitmap_bytes);
    let as_bitmaps = free.len() as u64 * ITEM_LEN as u64 > bitmaps * (ITEM_LEN as u64 + BITMAP_SECTORS / 8);
    let flags = if as_bitmaps { FreeSpaceInfo::USING_BITMAPS } else { 0 };
    let info = FreeSpaceInfo { extent_count: (free.len() as u32).into(), flags: flags.into() };
    let mut items = vec![(Key::new(group.start, KeyType::FREE_SPACE_INFO, length), info.as_bytes().to_vec())];
    if !as_bitmaps {
        let run = |run: &Range<u64>| (Key::new(run.start, KeyType::FREE_SPACE_EXTENT, run.end - run.start), Vec::new());
        items.extend(free.iter().map(run));
        return items;
    }
    let mut set = Ranges::default();
    free.iter().for_each(|run| set.insert(run.clone()));
    for index in 0..bitmaps {
        let start = group.start + index * bitmap_bytes;
        let end = group.end.min(start + bitmap_bytes);
        let sectors = (end - start) / sector;
        let mut bits = vec![0; sectors.div_ceil(8) as usize];
        for run in set.within(start..end) {
            for bit in (run.start - start) / sector..(run.end - start) / sector {
                bits[(bit / 8) as usize] |= 1 << (bit % 8);
            }
        }
        items.push((Key::new(start, KeyType::FREE_SPACE_BITMAP, end - start), bits));
    }
    items
}
