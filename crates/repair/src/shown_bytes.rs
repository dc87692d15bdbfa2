//! How many bytes of its extent a file's item shows, where that number is damaged.
//!
//! It has three witnesses: the next item of the file, the length of the extent, and the inode's sum of bytes.
//!
//! Invariant: a number is changed only where one item of the file alone can be wrong, and where with the new number the
//! sum is right, nothing overlaps, and nothing is shown that the extent does not have.

use crate::action::Pass;
use crate::forest::Forest;
use crate::trouble::Result;
use butterfs_ondisk::items::{FileExtent, FileExtentHead, InodeItem, compression, file_extent_type};
use butterfs_ondisk::packing::LARGEST;
use butterfs_ondisk::{Key, KeyType, TreeId};
use std::ops::Range;
use zerocopy::{FromBytes, IntoBytes};

/// An item of a file, as far as its place and its length go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// The position in the file.
    pub start: u64,
    /// Bytes that it shows.
    pub shown: u64,
    /// Bytes that its extent has from there on.
    pub most: u64,
    /// Bytes that the inode's sum counts for it.
    counted: u64,
    /// Whether it has an extent of which it may show another part.
    is_extent: bool,
}

impl Part {
    /// The part that an item describes.
    pub fn of(key: Key, data: &[u8], sector: u64) -> Option<Part> {
        let (head, _) = FileExtentHead::read_from_prefix(data).ok()?;
        let (start, ram) = (key.offset, head.ram_bytes.get());
        if head.kind == file_extent_type::INLINE {
            let shown = ram.checked_next_multiple_of(sector)?;
            return Some(Part { start, shown, most: shown, counted: ram, is_extent: false });
        }
        let body = FileExtent::read_from_bytes(data).ok()?.body;
        let shown = body.num_bytes.get();
        if body.disk_bytenr.get() == 0 {
            return Some(Part { start, shown, most: shown, counted: 0, is_extent: false });
        }
        let length = match head.compression {
            compression::NONE => body.disk_num_bytes.get(),
            _ if ram > LARGEST => LARGEST,
            _ => ram,
        };
        let most = length.saturating_sub(body.offset.get());
        Some(Part { start, shown, most, counted: shown, is_extent: true })
    }

    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.shown)
    }

    /// Whether what it shows cannot be right.
    pub fn is_odd(&self, next: Option<&Part>, sector: u64) -> bool {
        let is_impossible = self.shown == 0 || self.shown > self.most || !self.shown.is_multiple_of(sector);
        is_impossible || next.is_some_and(|next| self.end() > next.start)
    }
}

/// The place of the part that is wrong, and the number of bytes that it shows in truth. `sum` is what the inode's item
/// says, `end` where the file ends.
pub(crate) fn right(parts: &[Part], (sum, end): (u64, u64), sector: u64) -> Option<(usize, u64)> {
    let is_odd = |place: usize| parts[place].is_odd(parts.get(place + 1), sector);
    let odd = (0..parts.len()).filter(|place| is_odd(*place)).count();
    let counted: u128 = parts.iter().map(|part| u128::from(part.counted)).sum();
    let fitting = |place: usize| {
        let (part, next) = (parts[place], parts.get(place + 1));
        let others = u64::try_from(counted - u128::from(part.counted)).ok()?;
        let right = sum.checked_sub(others).filter(|right| part.is_extent && *right != part.shown)?;
        let found = Part { shown: right, ..part };
        // The others are right, and this one either cannot be, or lacks exactly what its neighbours leave open.
        let is_alone = odd == usize::from(is_odd(place));
        let is_closed = right == part.most || next.is_some_and(|next| found.end() == next.start) || found.end() == end;
        let is_wrong = is_odd(place) || (right > part.shown && is_closed);
        (is_alone && is_wrong && !found.is_odd(next, sector)).then_some((place, right))
    };
    let mut found = (0..parts.len()).filter_map(fitting);
    found.next().filter(|_| found.next().is_none())
}

/// Puts right what an item of a file shows. More than before is shown only where `is_free` says that no other extent is
/// missing there.
pub(crate) fn settle(
    forest: &mut Forest,
    tree: TreeId,
    inode: u64,
    is_free: &dyn Fn(Range<u64>) -> bool,
) -> Result<()> {
    let sector = forest.store.sectorsize();
    let item = forest.get(tree, Key::new(inode, KeyType::INODE_ITEM, 0))?;
    let Some(item) = item.and_then(|data| InodeItem::read_from_bytes(&data).ok()) else { return Ok(()) };
    let items = forest.of_kind(tree, inode, KeyType::EXTENT_DATA)?;
    let parts: Option<Vec<Part>> = items.iter().map(|(key, data)| Part::of(*key, data, sector)).collect();
    let end = item.size.get().checked_next_multiple_of(sector).unwrap_or(u64::MAX);
    let found = parts.and_then(|parts| {
        let (place, shown) = right(&parts, (item.nbytes.get(), end), sector)?;
        let part = parts[place];
        (shown < part.shown || is_free(part.end()..part.start.saturating_add(shown))).then_some((place, shown))
    });
    let Some((place, shown)) = found else { return Ok(()) };
    let (key, data) = &items[place];
    let Ok(mut extent) = FileExtent::read_from_bytes(data) else { return Ok(()) };
    extent.body.num_bytes = shown.into();
    forest.put(tree, *key, extent.as_bytes())?;
    let start = key.offset;
    let what = format!(
        "has the extent at {start} of inode {inode} of tree {tree} show {shown} bytes, as the inode's sum has it"
    );
    forest.did(Pass::Files, what);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(start: u64, shown: u64, most: u64) -> Part {
        Part { start, shown, most, counted: shown, is_extent: true }
    }

    #[test]
    fn one_wrong_number_follows_from_the_others() {
        let parts = [part(0, 32, 32), part(32, 32, 32), part(64, 16, 32)];
        let file = (80, 80);
        assert_eq!(right(&parts, file, 4), None, "a sound file");
        for place in 0..parts.len() {
            for wrong in [0, 4, 12, 33, 64, 96, u64::MAX - 3] {
                let mut damaged = parts;
                damaged[place] = part(parts[place].start, wrong, parts[place].most);
                assert_eq!(right(&damaged, file, 4), Some((place, parts[place].shown)), "{wrong} at {place}");
            }
        }
    }

    #[test]
    fn what_is_not_certain_stays() {
        // The second extent is lost, and the first one may have been cut for it.
        let cut = [part(0, 32, 64), part(64, 16, 16)];
        assert_eq!(right(&cut, (80, 80), 4), Some((0, 64)), "only the extent tree knows better");
        // Two that are cut alike.
        let two = [part(0, 32, 64), part(64, 32, 64), part(128, 16, 16)];
        assert_eq!(right(&two, (112, 144), 4), None);
        // Two that cannot be right.
        assert_eq!(right(&[part(0, 0, 32), part(32, 0, 32)], (64, 64), 4), None);
        // A hole that leaves more open than the sum lacks.
        assert_eq!(right(&[part(0, 16, 64), part(64, 16, 16)], (48, 80), 4), None);
        // A sum that is too small for all.
        assert_eq!(right(&[part(0, 32, 32)], (16, 32), 4), None);
    }
}
