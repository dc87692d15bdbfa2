//! The parts of a file, from its inode and its extents, and as the extent tree has them.
//!
//! ```text
//! extents of the tree ─► those that the extent tree has ─► ranges
//!            └ the inode counts more bytes? ─► back references that fill just that
//! ```

use super::{LARGEST_EXTENT, LARGEST_PACKED, Reader};
use crate::back_references::{BackReferences, Referenced};
use crate::subvolume::{self, Extent};
use crate::tree::Losses;
use crate::trust::{Doubts, Trust};
use butterfs_fs::file_extent::{ExtentKind, FileExtent};
use butterfs_ondisk::items::inode_flags;
use butterfs_ondisk::{Key, KeyType, Logical};
use std::ops::{ControlFlow, Range};

/// Extents of a file that are not in the extent tree, as far as they are looked at one by one.
const MOST_STRANGE: usize = 64;
/// The content of one file.
#[derive(Debug)]
pub struct Content {
    /// The inode.
    pub ino: u64,
    /// Its length.
    pub size: u64,
    /// Where it has data; the rest is holes.
    pub ranges: Vec<Range<u64>>,
    /// Nothing is expected to have checksums.
    pub has_no_checksums: bool,
    pub(super) losses: Losses,
    pub(super) bad_items: u64,
    /// Data lies behind the end that the inode names.
    pub reaches_beyond: bool,
    /// Bytes that the inode counts, and that no extent has.
    pub(super) unaccounted: u64,
    /// Extents that fill gaps.
    pub(super) recovered: Vec<FileExtent>,
    /// Places in the file of extents that the extent tree does not have.
    pub(super) strange: Vec<u64>,
    /// Places in the file of extents that are not believed.
    pub(super) skipped: Vec<u64>,
    pub(super) doubts: Doubts,
}

/// The bytes of a file's extents, as its inode counts them.
#[derive(Default)]
struct Account {
    bytes: u64,
    trust: Trust,
}

impl Account {
    fn add(&mut self, extent: &FileExtent, trust: Trust) {
        self.trust = self.trust.max(trust);
        let bytes = match extent.kind {
            ExtentKind::Inline => extent.ram_bytes,
            _ if extent.is_hole() => 0,
            _ => extent.len,
        };
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// The bytes that an inode counts, where both can be believed.
    fn stored(&self, inode: &subvolume::Inode, losses: &Losses) -> Option<u64> {
        let is_sure = self.trust == Trust::Proved && inode.trust == Trust::Proved && losses.blocks() == 0;
        let regular = inode.item.filter(|item| item.mode.get() & subvolume::TYPE_MASK == subvolume::REGULAR);
        regular.filter(|_| is_sure).map(|item| item.nbytes.get())
    }
}

impl Content {
    /// The ranges without data.
    pub(super) fn holes(&self) -> impl Iterator<Item = Range<u64>> {
        let starts = std::iter::once(0).chain(self.ranges.iter().map(|range| range.end));
        let ends = self.ranges.iter().map(|range| range.start).chain(std::iter::once(self.size));
        starts.zip(ends).filter(|(start, end)| start < end).map(|(start, end)| start..end)
    }
}

/// Bytes of ranges.
pub(super) fn covered(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

impl Reader<'_> {
    /// The parts of a file's content. Without an inode item its length is where its extents end.
    pub fn content(&self, ino: u64, inode: &subvolume::Inode) -> Content {
        let size = self.size(ino, inode);
        let content = self.content_without(ino, inode, size, Vec::new());
        if content.strange.is_empty() || content.unaccounted > 0 {
            return content;
        }
        // Without extents that the extent tree does not have, if that has others in their place.
        let without = self.content_without(ino, inode, size, content.strange.clone());
        if without.recovered.is_empty() { content } else { without }
    }

    /// The content without the extents at these places in the file.
    fn content_without(&self, ino: u64, inode: &subvolume::Inode, size: Option<u64>, skipped: Vec<u64>) -> Content {
        let flags = inode.item.map_or(0, |item| item.flags.get());
        let (mut ranges, mut end): (Vec<Range<u64>>, u64) = (Vec::new(), 0);
        let (mut reaches_beyond, mut strange) = (false, Vec::new());
        let sector = self.tree.wreck.sectorsize();
        let mut account = Account::default();
        let (bad_items, losses) = subvolume::extents(&self.tree, ino, &mut |Extent { extent, trust, .. }| {
            if skipped.contains(&extent.start) {
                return ControlFlow::Continue(());
            }
            account.add(&extent, trust);
            if strange.len() < MOST_STRANGE && !self.is_in_extent_tree(&extent) {
                strange.push(extent.start);
            }
            let has_data =
                extent.kind == ExtentKind::Inline || (extent.kind == ExtentKind::Regular && !extent.is_hole());
            let until = match extent.kind {
                ExtentKind::Inline => extent.ram_bytes.min(sector),
                _ => extent.end(),
            };
            if has_data {
                end = end.max(until);
                if !self.is_reachable(&extent) {
                    return ControlFlow::Continue(());
                }
                reaches_beyond |= size.is_some_and(|size| extent.start / sector >= size.div_ceil(sector));
                let until = until.min(size.unwrap_or(until));
                match ranges.last_mut() {
                    Some(last) if last.end == extent.start => last.end = until.max(last.end),
                    _ if extent.start < until => ranges.push(extent.start..until),
                    _ => {}
                }
            }
            ControlFlow::Continue(())
        });
        let has_no_checksums = flags & inode_flags::NODATASUM != 0;
        let size = size.unwrap_or(end);
        let stored = account.stored(inode, &losses).unwrap_or(account.bytes);
        let holes = size.saturating_sub(covered(&ranges));
        let gone = stored.saturating_sub(account.bytes);
        let unaccounted = gone.min(holes);
        let is_odd = stored != account.bytes && unaccounted == 0 && bad_items == 0;
        let doubts = Doubts { content: account.trust, contradicts: is_odd || !strange.is_empty(), ..Doubts::default() };
        let recovered = Vec::new();
        let mut content = Content {
            ino,
            size,
            ranges,
            has_no_checksums,
            losses,
            bad_items,
            reaches_beyond,
            unaccounted,
            recovered,
            strange,
            skipped,
            doubts,
        };
        if content.unaccounted > 0 {
            self.recover(&mut content, gone);
        }
        content
    }

    /// Whether the extent tree has this extent, as far as that can be read.
    fn is_in_extent_tree(&self, extent: &FileExtent) -> bool {
        let Some(extents) = self.extents.filter(|_| extent.is_on_disk()) else { return true };
        let key = Key::new(extent.at.0, KeyType::EXTENT_ITEM, extent.disk_len);
        let mut is_there = false;
        let losses = extents.scan(key, key, &mut |_, _, _| {
            is_there = true;
            ControlFlow::Break(())
        });
        is_there || !losses.is_none()
    }

    /// Fills the holes of a file with what the extent tree says of it, if that is just what its inode counts too much.
    fn recover(&self, content: &mut Content, gone: u64) {
        let Some(extents) = self.extents else { return };
        let references = self.references.get_or_init(|| BackReferences::of(extents));
        let sector = self.tree.wreck.sectorsize();
        let fits = |one: &Referenced| {
            let end = one.offset.checked_add(one.len);
            let mut holes = content.holes();
            end.is_some_and(|end| {
                holes.any(|hole| hole.start <= one.offset && end <= hole.end.next_multiple_of(sector))
            })
        };
        let of_inode = references.of_inode(self.tree.root.tree.0, content.ino);
        let found: Vec<Referenced> = of_inode.into_iter().filter(fits).collect();
        let is_apart = found.windows(2).all(|pair| pair[0].offset + pair[0].len <= pair[1].offset);
        if !is_apart || found.iter().map(|one| one.len).sum::<u64>() != gone {
            return;
        }
        let of = |one: &Referenced| FileExtent::new(ExtentKind::Regular, one.offset, Logical(one.at), one.len, 0);
        content.recovered = found.iter().map(of).filter(|extent| self.is_reachable(extent)).collect();
        if content.recovered.len() < found.len() {
            content.recovered.clear();
            return;
        }
        content.ranges.extend(found.iter().map(|one| one.offset..(one.offset + one.len).min(content.size)));
        content.ranges.sort_unstable_by_key(|range| range.start);
        (content.unaccounted, content.bad_items) = (0, 0);
        content.doubts.is_by_back_reference = true;
    }

    /// The length that an inode says, if that can be: a damaged one must not contradict its extents.
    fn size(&self, ino: u64, inode: &subvolume::Inode) -> Option<u64> {
        let item = inode.item?;
        let size = item.size.get();
        if inode.trust < Trust::Doubtful {
            return Some(size);
        }
        let (mut account, mut end, mut inline) = (Account::default(), 0, None);
        subvolume::extents(&self.tree, ino, &mut |Extent { extent, trust, .. }| {
            account.add(&extent, trust);
            match extent.kind {
                ExtentKind::Inline => inline = Some(extent.ram_bytes),
                ExtentKind::Regular if !extent.is_hole() => end = extent.end(),
                _ => {}
            }
            ControlFlow::Continue(())
        });
        let sector = self.tree.wreck.sectorsize();
        let is_short = size.div_ceil(sector) < end.div_ceil(sector);
        let is_long = size > end && item.nbytes.get() != account.bytes;
        inline.or(if is_short || is_long { None } else { Some(size) })
    }

    /// Whether any of an extent could be read.
    pub(super) fn is_reachable(&self, extent: &FileExtent) -> bool {
        if extent.kind != ExtentKind::Regular {
            return true;
        }
        let longest = if extent.compression == 0 { LARGEST_EXTENT } else { LARGEST_PACKED };
        let wreck = self.tree.wreck;
        let ends = [extent.at.0, extent.at.0 + extent.disk_len.saturating_sub(1)];
        let is_sized =
            (1..=longest).contains(&extent.disk_len) && (extent.compression == 0 || extent.ram_bytes <= longest);
        is_sized && ends.into_iter().any(|at| wreck.has_storage(Logical(at)))
    }
}
