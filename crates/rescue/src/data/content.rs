//! The parts of a file, from its inode and its extents, and as the extent tree has them.
//!
//! ```text
//! extents of the tree ─► those that the extent tree has ─► ranges
//!            └ the inode counts more bytes? ─► back references that fill just that
//! ```

use super::{LARGEST_EXTENT, LARGEST_PACKED, Reader};
use crate::back_references::{Referenced, Users};
use crate::subvolume::{self, Extent};
use crate::tree::Losses;
use crate::trust::{Doubts, Trust};
use butterfs_fs::file::codec::MAX_UNCOMPRESSED;
use butterfs_fs::file_extent::{ExtentKind, FileExtent};
use butterfs_ondisk::items::inode_flags;
use butterfs_ondisk::{Key, KeyType, Logical};
use std::ops::{ControlFlow, Range};

/// Extents of a file that are not in the extent tree, as far as they are looked at one by one.
const MOST_STRANGE: usize = 64;
/// Preallocated extents of a file that are read all the same.
const MOST_UNMARKED: usize = 4096;
/// The longest extent that any writer makes.
const LONGEST_WRITTEN: u64 = 128 << 20;
/// The longest file: lengths are signed numbers of 64 bits.
pub(super) const LONGEST_FILE: u64 = i64::MAX as u64;

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
    /// The inode counts more bytes than its extents have, of which tree blocks are lost, and nothing fills the gaps.
    pub(crate) lacks_extents: bool,
    /// Bytes that the inode counts, and that no extent has.
    pub(super) unaccounted: u64,
    /// Extents that fill gaps.
    pub(super) recovered: Vec<FileExtent>,
    /// The ranges of the file that its list of extents covers: data, holes, and space that is only allocated.
    pub(super) listed: Vec<Range<u64>>,
    /// Extents that the extent tree does not have.
    pub(super) strange: Vec<FileExtent>,
    /// Places in the file of extents of damaged blocks, if the inode counts other bytes than they have.
    pub(super) doubted: Vec<u64>,
    /// Places in the file of extents that are not believed.
    pub(super) skipped: Vec<u64>,
    /// Places in the file, ascending, of extents that are marked as preallocated and have data nevertheless.
    pub(super) unmarked: Vec<u64>,
    pub(super) doubts: Doubts,
}

/// The checksums of an extent that is marked as preallocated: it shows zeros, and should have none.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Preallocation {
    /// It has none, or they may be those of other files.
    Sound,
    /// All that it shows has checksums, and fits them: its mark is wrong.
    Written,
    /// It has some.
    Contradictory,
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

    /// The bytes that an inode counts.
    fn counted(inode: &subvolume::Inode) -> Option<u64> {
        let regular = inode.item.filter(|item| item.mode.get() & subvolume::TYPE_MASK == subvolume::REGULAR);
        regular.map(|item| item.nbytes.get())
    }

    /// The bytes that an inode counts, where both can be believed. Among leaves of older states the one with a file's
    /// extents may be gone, and nothing else tells that from a hole.
    fn stored(&self, inode: &subvolume::Inode, losses: &Losses) -> Option<u64> {
        let is_sure = self.trust.max(inode.trust) <= Trust::Older && losses.blocks() == 0;
        Account::counted(inode).filter(|_| is_sure)
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
        let (size, is_size_odd) = self.size(ino, inode);
        let mut content = self.content_of(ino, inode, size);
        content.doubts.contradicts |= is_size_odd;
        content
    }

    fn content_of(&self, ino: u64, inode: &subvolume::Inode, size: Option<u64>) -> Content {
        let content = self.content_without(ino, inode, size, Vec::new());
        if content.unaccounted > 0 || !content.recovered.is_empty() {
            return content;
        }
        // Without extents that cannot be the file's, or that a damaged block has, if the extent tree has others in
        // their place.
        let refuted = content.strange.iter().filter(|extent| self.is_refuted(extent, content.has_no_checksums));
        let refuted: Vec<u64> = refuted.map(|extent| extent.start).collect();
        for places in [&refuted, &content.doubted].into_iter().filter(|places| !places.is_empty()) {
            let other = self.content_without(ino, inode, size, places.clone());
            if !other.recovered.is_empty() {
                return other;
            }
        }
        content
    }

    /// The content without the extents at these places in the file.
    fn content_without(&self, ino: u64, inode: &subvolume::Inode, size: Option<u64>, skipped: Vec<u64>) -> Content {
        let flags = inode.item.map_or(0, |item| item.flags.get());
        let (mut ranges, mut end): (Vec<Range<u64>>, u64) = (Vec::new(), 0);
        let (mut reaches_beyond, mut strange, mut doubted) = (false, Vec::new(), Vec::new());
        let (mut unmarked, mut is_preallocation_written) = (Vec::new(), false);
        let mut listed: Vec<Range<u64>> = Vec::new();
        let sector = self.tree.wreck.sectorsize();
        let mut account = Account::default();
        let (bad_items, losses) = subvolume::extents(&self.tree, ino, &mut |Extent { extent, trust, .. }| {
            if skipped.contains(&extent.start) {
                return ControlFlow::Continue(());
            }
            account.add(&extent, trust);
            match listed.last_mut() {
                Some(last) if last.end == extent.start => last.end = extent.end(),
                _ => listed.push(extent.start..extent.end()),
            }
            if strange.len() < MOST_STRANGE && !self.is_in_extent_tree(&extent) {
                strange.push(extent);
            }
            if doubted.len() < MOST_STRANGE && trust == Trust::Doubtful {
                doubted.push(extent.start);
            }
            let preallocation = match self.preallocation(&extent, flags & inode_flags::NODATASUM != 0) {
                Preallocation::Written if unmarked.len() == MOST_UNMARKED => Preallocation::Contradictory,
                found => found,
            };
            is_preallocation_written |= preallocation != Preallocation::Sound;
            if preallocation == Preallocation::Written {
                unmarked.push(extent.start);
            }
            let has_data = match extent.kind {
                ExtentKind::Inline => true,
                ExtentKind::Regular => !extent.is_hole(),
                ExtentKind::Prealloc => preallocation == Preallocation::Written,
            };
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
        let contradicts = is_odd || !strange.is_empty();
        let doubts = Doubts { content: account.trust, contradicts, is_preallocation_written, ..Doubts::default() };
        let recovered = Vec::new();
        let mut content = Content {
            ino,
            size,
            ranges,
            has_no_checksums,
            losses,
            bad_items,
            reaches_beyond,
            lacks_extents: false,
            unaccounted,
            recovered,
            listed,
            strange,
            doubted,
            skipped,
            unmarked,
            doubts,
        };
        // A number from a damaged block counts too, if it is just what the extent tree has for the holes.
        let counted = Account::counted(inode).unwrap_or(0);
        if counted == account.bytes {
            content.doubted.clear();
        }
        let gone = if content.unaccounted > 0 { gone } else { counted.saturating_sub(account.bytes) };
        if gone > 0 {
            self.recover(&mut content, gone);
            content.lacks_extents = content.recovered.is_empty() && content.losses.blocks() > 0;
        }
        content
    }

    /// The judgement of checksums on an extent that is marked as preallocated. Only those of the file's own time count.
    fn preallocation(&self, extent: &FileExtent, has_no_checksums: bool) -> Preallocation {
        let is_marked = extent.kind == ExtentKind::Prealloc && extent.is_on_disk();
        let are_own = self.since.as_ref().is_none_or(|since| since.has_own_checksums);
        if !is_marked || has_no_checksums || !are_own || extent.disk_len > LARGEST_EXTENT {
            return Preallocation::Sound;
        }
        // A compressed extent has checksums for all that is stored.
        let (at, len) = match extent.compression {
            0 => (Logical(extent.at.0.saturating_add(extent.offset)), extent.len),
            _ => (extent.at, extent.disk_len),
        };
        if len == 0 || !self.has_any_checksum(at, len) {
            return Preallocation::Sound;
        }
        let as_regular = FileExtent { kind: ExtentKind::Regular, ..*extent };
        // Of an older root the checksums may be those of newer files, if no extent tree says whose the place is.
        let is_of_file = self.since.is_some() || (self.extents.is_some() && self.is_in_extent_tree(extent));
        if is_of_file && self.is_reachable(&as_regular) && self.is_verified(at, len) {
            return Preallocation::Written;
        }
        Preallocation::Contradictory
    }

    /// Whether the extent tree has this extent, as far as that can be read.
    fn is_in_extent_tree(&self, extent: &FileExtent) -> bool {
        let Some(extents) = self.extents().filter(|_| extent.is_on_disk()) else { return true };
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
        let sector = self.tree.wreck.sectorsize();
        let fits = |one: &Referenced| {
            let is_made_of_sectors = one.len > 0 && [one.offset, one.len].iter().all(|n| n.is_multiple_of(sector));
            let end = one.offset.checked_add(one.len).filter(|_| is_made_of_sectors);
            let mut holes = content.holes();
            end.is_some_and(|end| {
                holes.any(|hole| hole.start <= one.offset && end / sector <= hole.end.div_ceil(sector))
            })
        };
        let is_new = |one: &Referenced| {
            let before = content.listed.partition_point(|range| range.end <= one.offset);
            content.listed.get(before).is_none_or(|range| one.offset.saturating_add(one.len) <= range.start)
        };
        let found: Vec<Referenced> =
            self.referenced(content.ino).into_iter().filter(|one| fits(one) && is_new(one)).collect();
        let is_apart = found.windows(2).all(|pair| pair[0].offset + pair[0].len <= pair[1].offset);
        if !is_apart || found.is_empty() {
            return;
        }
        let extents: Option<Vec<FileExtent>> = match found.iter().map(|one| one.len).sum::<u64>() == gone {
            true => Some(found.iter().map(Referenced::stored).collect()),
            false => self.packed(content, &found),
        };
        let fitting = extents.filter(|extents| extents.iter().map(|extent| extent.len).sum::<u64>() == gone);
        let Some(extents) = fitting.filter(|extents| extents.iter().all(|extent| self.may_fill(content, extent)))
        else {
            return;
        };
        content.ranges.extend(extents.iter().map(|extent| extent.start..extent.end().min(content.size)));
        content.recovered = extents;
        content.ranges.sort_unstable_by_key(|range| range.start);
        (content.unaccounted, content.bad_items) = (0, 0);
        content.doubts.is_by_back_reference = true;
    }

    /// Whether an extent of the extent tree may fill a gap: its bytes fit their checksums, and they belong to no other
    /// extent and to no other file. A wrong address or a wrong reference in the extent tree fails one of these.
    fn may_fill(&self, content: &Content, extent: &FileExtent) -> bool {
        extent.at.0.is_multiple_of(self.tree.wreck.sectorsize())
            && self.is_reachable(extent)
            && (content.has_no_checksums || self.fits_checksums(extent.at, extent.disk_len))
            && !self.is_overlapped(extent.at.0, extent.disk_len)
            && !self.is_used_by_another(content.ino, extent.at.0)
    }

    /// Whether an extent that the extent tree does not have cannot be the file's: its bytes do not fit their checksums,
    /// or belong to another extent.
    fn is_refuted(&self, extent: &FileExtent, has_no_checksums: bool) -> bool {
        !self.is_reachable(extent)
            || !(has_no_checksums || self.fits_checksums(extent.at, extent.disk_len))
            || self.is_overlapped(extent.at.0, extent.disk_len)
    }

    /// Whether the extent tree has another extent that shares bytes with this one.
    fn is_overlapped(&self, at: u64, len: u64) -> bool {
        let Some(extents) = self.extents() else { return false };
        let nodesize = self.tree.wreck.nodesize() as u64;
        let first = Key::new(at.saturating_sub(LONGEST_WRITTEN), KeyType::EXTENT_ITEM, 0);
        let last = Key::new(at.saturating_add(len - 1), KeyType::METADATA_ITEM, u64::MAX);
        let mut is_found = false;
        extents.scan(first, last, &mut |key, _, quality| {
            let own_len = match key.kind {
                KeyType::EXTENT_ITEM => key.offset,
                KeyType::METADATA_ITEM => nodesize,
                _ => return ControlFlow::Continue(()),
            };
            let is_other = (key.objectid, own_len) != (at, len) && quality.trust() == Trust::Proved;
            is_found |= is_other && key.objectid.saturating_add(own_len) > at;
            if is_found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        is_found
    }

    /// Whether another file of the subvolume has the extent at this address, and the extent tree does not say so.
    fn is_used_by_another(&self, ino: u64, at: u64) -> bool {
        let users = self.users.get_or_init(|| Users::of(&self.tree));
        let is_known = |user: &u64| self.referenced(*user).iter().any(|one| one.at == at);
        users.of_extent(at).any(|user| user != ino && !is_known(&user))
    }

    /// The extents, some of them compressed: one that is shorter than its place in the file, up to the next one, fits
    /// its checksums and unpacks to the length of that place.
    fn packed(&self, content: &Content, found: &[Referenced]) -> Option<Vec<FileExtent>> {
        let sector = self.tree.wreck.sectorsize();
        let place = |number: usize| {
            let one = &found[number];
            let hole = content.holes().find(|hole| hole.contains(&one.offset))?;
            let next = found.get(number + 1).map_or(u64::MAX, |next| next.offset);
            Some(hole.end.div_ceil(sector).saturating_mul(sector).min(next) - one.offset)
        };
        let extent = |number: usize| {
            let one = &found[number];
            let len = place(number)?.min(MAX_UNCOMPRESSED as u64);
            if one.len >= len {
                return Some(one.stored());
            }
            let method = self.method_of(Logical(one.at), one.len, len)?;
            let stored = one.stored();
            Some(FileExtent { len, ram_bytes: len, compression: method, disk_len: one.len, ..stored })
        };
        (0..found.len()).map(extent).collect()
    }

    /// The extents of a file as the extent tree has them, in their order.
    fn referenced(&self, ino: u64) -> Vec<Referenced> {
        let extents = self.extents.as_ref();
        extents.map(|extents| extents.references().of_inode(self.tree.root.tree, ino)).unwrap_or_default()
    }

    /// The length that an inode says, if that can be, and whether it cannot: a damaged one must not contradict its
    /// extents, and no file has more bytes than [`LONGEST_FILE`].
    fn size(&self, ino: u64, inode: &subvolume::Inode) -> (Option<u64>, bool) {
        let Some(item) = inode.item else { return (None, false) };
        let size = item.size.get();
        let is_possible = size <= LONGEST_FILE;
        // A file that was empty in an older state, and has data, is not empty any more.
        let is_outdated = inode.trust == Trust::Older && size == 0;
        if inode.trust < Trust::Doubtful && is_possible && !is_outdated {
            return (Some(size), false);
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
        if !is_possible {
            // Without the bit that no length has, if the extents do not reach further.
            let rest = size & LONGEST_FILE;
            let is_long_enough = end.div_ceil(sector) <= rest.div_ceil(sector);
            return (inline.or(is_long_enough.then_some(rest)), true);
        }
        let is_short = size.div_ceil(sector) < end.div_ceil(sector);
        let is_last = |one: Referenced| {
            one.offset.checked_add(one.len).is_some_and(|end| end.div_ceil(sector) == size.div_ceil(sector))
        };
        let is_long =
            size > end && item.nbytes.get() != account.bytes && !self.referenced(ino).pop().is_some_and(is_last);
        (inline.or(if is_short || is_long { None } else { Some(size) }), false)
    }

    /// Whether any of an extent could be read.
    pub(super) fn is_reachable(&self, extent: &FileExtent) -> bool {
        if extent.kind != ExtentKind::Regular {
            return true;
        }
        let longest = if extent.compression == 0 { LARGEST_EXTENT } else { LARGEST_PACKED };
        let wreck = self.tree.wreck;
        let ends = [extent.at.0, extent.at.0.saturating_add(extent.disk_len.saturating_sub(1))];
        let is_sized =
            (1..=longest).contains(&extent.disk_len) && (extent.compression == 0 || extent.ram_bytes <= longest);
        is_sized && ends.into_iter().any(|at| wreck.has_storage(Logical(at)))
    }
}
