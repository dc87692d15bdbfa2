//! The content of a file whose list of extents is lost, or a part of it: the extents that the extent tree has for it.
//!
//! The extent tree knows where in the file an extent begins, how many bytes it has on the device, and when it was
//! written. It does not know the length of the file, which parts of an extent the file shows, nor how it is packed:
//!
//! - packed extents are known by their bytes ([`packed`](super::packed));
//! - where extents overlap, the newer one shows. Each of them shows somewhere, because the extent tree has no others:
//!   one that would be hidden, such as an old extent that was cloned into the file, lies above the rest;
//! - sectors without checksums were never written, if other sectors of the file have some. If none has, nothing tells.
//!
//! Invariants: (1) such a file has a doubt; (2) extents of the list stay, and only gaps that lost blocks may have made
//! are filled; (3) time and memory follow the number of references and the bytes behind them.

use super::content::{Content, LONGEST_FILE};
use super::{LARGEST_EXTENT, PIECE, Reader, Sector, covered, packed};
use crate::back_references::Referenced;
use crate::live::topmost;
use crate::subvolume::Inode;
use crate::tree::{meets, merged};
use crate::trust::Trust;
use butterfs_fs::file_extent::FileExtent;
use butterfs_ondisk::packing::LARGEST;
use butterfs_ondisk::{Key, KeyType, Logical};
use std::cmp::Reverse;
use std::ops::Range;

/// An extent of the extent tree at its place in the file.
struct Layer {
    extent: FileExtent,
    /// The parts of the file that it has checksums for.
    summed: Vec<Range<u64>>,
    /// All checksums of it could be read.
    are_sums_known: bool,
    /// Some of it can be read.
    is_reachable: bool,
}

impl Layer {
    fn range(&self) -> Range<u64> {
        self.extent.start..self.extent.end()
    }

    /// The part of it that shows in a range of the file.
    fn part(&self, range: Range<u64>) -> FileExtent {
        let offset = self.extent.offset + (range.start - self.extent.start);
        FileExtent { start: range.start, len: range.end - range.start, offset, ..self.extent }
    }
}

impl Reader<'_> {
    /// The content, with these extents of the extent tree in the gaps of the file's list.
    pub(crate) fn with_references(&self, content: Content, inode: &Inode, references: &[Referenced]) -> Content {
        if references.is_empty() {
            return content;
        }
        let nexts = references.iter().map(|one| {
            let next = references.partition_point(|other| other.offset <= one.offset);
            references.get(next).map(|next| next.offset)
        });
        let layers: Vec<Layer> = references.iter().zip(nexts).filter_map(|(one, next)| self.layer(one, next)).collect();
        let sectors = |len: u64| len.div_ceil(self.tree.wreck.sectorsize());
        let last = layers.iter().map(|layer| layer.extent.end()).max().unwrap_or(0);
        let is_size_known =
            inode.trust < Trust::Older || inode.item.is_some_and(|item| sectors(item.size.get()) == sectors(last));
        let end = if is_size_known { content.size } else { LONGEST_FILE };
        let has_checksums = inode.trust < Trust::Older && !content.has_no_checksums;
        let is_summed = has_checksums || layers.iter().any(|layer| !layer.summed.is_empty());
        filled(content, &layers, end, is_summed)
    }

    fn layer(&self, one: &Referenced, next: Option<u64>) -> Option<Layer> {
        let sector = self.tree.wreck.sectorsize();
        let hidden = if one.offset > LONGEST_FILE { one.offset.wrapping_neg() } else { 0 };
        let start = if hidden > 0 { 0 } else { one.offset };
        let is_made_of_sectors = [start, hidden, one.at, one.len].iter().all(|number| number.is_multiple_of(sector));
        let is_possible = (1..=LARGEST_EXTENT).contains(&one.len) && one.at.checked_add(one.len).is_some();
        if !is_made_of_sectors || !is_possible {
            return None;
        }
        let stored = FileExtent { generation: one.generation, start, ..one.stored() };
        let is_reachable = self.is_reachable(&stored);
        let room = next.filter(|_| hidden == 0).map(|next| next - start);
        let packing = if is_reachable { self.packing(one, room) } else { None };
        let (compression, ram_bytes) = packing.unwrap_or((0, one.len));
        let len = ram_bytes.checked_sub(hidden).filter(|len| *len > 0)?;
        start.checked_add(len).filter(|end| *end <= LONGEST_FILE)?;
        let extent = FileExtent { len, offset: hidden, ram_bytes, compression, ..stored };
        let mut layer = Layer { extent, summed: Vec::new(), are_sums_known: true, is_reachable };
        if packing.is_some() {
            layer.summed.push(layer.range());
        } else if is_reachable {
            layer.are_sums_known = self.has_all_checksums(Logical(one.at), one.len);
            let of_file = |range: Range<u64>| start + range.start.max(hidden) - hidden..start + range.end - hidden;
            let summed = self.summed(one).into_iter().filter(|range| range.end > hidden);
            layer.summed.extend(summed.map(of_file));
        }
        Some(layer)
    }

    /// The compression of an extent, and the bytes that it unpacks to. One that cannot be unpacked because it is
    /// damaged takes the room up to the next extent.
    fn packing(&self, one: &Referenced, room: Option<u64>) -> Option<(u8, u64)> {
        let (wreck, at) = (self.tree.wreck, Logical(one.at));
        let (sector, features) = (wreck.sectorsize(), wreck.superblock().incompat_flags.get());
        let (head, states) = self.stored(at, sector, true);
        let kind = packed::begins_as(&head, one.len, sector, features).filter(|_| states == [Sector::Verified])?;
        let (stored, states) = self.stored(at, one.len, true);
        if states.iter().all(|state| *state == Sector::Verified) {
            return packed::unpacked_len(kind, &stored, sector).map(|len| (kind, len));
        }
        let is_summed = !states.contains(&Sector::Unverified);
        room.filter(|room| is_summed && (one.len + 1..=LARGEST).contains(room)).map(|room| (kind, room))
    }

    /// The parts of an extent that have checksums, by their distance from its beginning.
    fn summed(&self, one: &Referenced) -> Vec<Range<u64>> {
        let sector = self.tree.wreck.sectorsize();
        let mut found: Vec<Range<u64>> = Vec::new();
        for done in (0..one.len).step_by(PIECE as usize) {
            let sums = self.sums(Logical(one.at.saturating_add(done)), (one.len - done).min(PIECE));
            for (number, _) in sums.iter().enumerate().filter(|(_, sums)| !sums.is_empty()) {
                let start = done + number as u64 * sector;
                match found.last_mut().filter(|last| last.end == start) {
                    Some(last) => last.end += sector,
                    None => found.push(start..start + sector),
                }
            }
        }
        found
    }
}

/// The content with these extents in the gaps of its list, up to an end. `is_summed`: all data of the file has
/// checksums, and the rest is space that was never written.
fn filled(mut content: Content, layers: &[Layer], end: u64, is_summed: bool) -> Content {
    let gaps = gaps(&content);
    let (visible, is_order_unknown) = visible(layers);
    let mut missing = 0;
    for (range, layer) in visible {
        for part in within(&range, &gaps).into_iter().filter(|part| part.start < end) {
            let part = part.start..part.end.min(end);
            let shown = match layer {
                Layer { is_reachable: false, .. } => Vec::new(),
                Layer { are_sums_known: true, .. } if is_summed => within(&part, &layer.summed),
                _ => vec![part.clone()],
            };
            missing += if layer.is_reachable { 0 } else { part.end - part.start };
            // Space that was never written may lie behind the end of the file.
            let last = if layer.is_reachable { shown.last() } else { Some(&part) };
            content.size = content.size.max(last.map_or(0, |last| last.end));
            content.recovered.extend(shown.into_iter().map(|range| layer.part(range)));
        }
    }
    content.ranges.extend(content.recovered.iter().map(|extent| extent.start..extent.end()));
    content.ranges.sort_unstable_by_key(|range| range.start);
    let holes = content.size - covered(&content.ranges);
    content.unaccounted = content.unaccounted.saturating_add(missing).min(holes);
    content.doubts.is_list_lost = content.listed.is_empty() || !content.recovered.is_empty() || missing > 0;
    content.doubts.is_order_unknown = is_order_unknown;
    content.doubts.may_be_unwritten = !is_summed && !content.recovered.is_empty();
    let are_sums_known = layers.iter().all(|layer| layer.are_sums_known);
    content.has_no_checksums |= content.listed.is_empty() && !is_summed && are_sums_known;
    content
}

/// The ranges of a file that its list of extents lacks, as far as lost blocks may have had them.
fn gaps(content: &Content) -> Vec<Range<u64>> {
    let starts = std::iter::once(0).chain(content.listed.iter().map(|range| range.end));
    let ends = content.listed.iter().map(|range| range.start).chain(std::iter::once(LONGEST_FILE));
    let first = Key::new(content.ino, KeyType::EXTENT_DATA, 0);
    let place = |key: &Key| match key {
        key if (key.objectid, key.kind) == (first.objectid, first.kind) => key.offset,
        key if *key < first => 0,
        _ => u64::MAX,
    };
    let windows = content.losses.ranges.iter();
    let lost = merged(windows.map(|(from, end)| place(from)..end.as_ref().map_or(u64::MAX, place)).collect());
    let gaps = starts.zip(ends).filter(|(start, end)| start < end).map(|(start, end)| start..end);
    gaps.filter(|gap| content.listed.is_empty() || meets(&lost, gap)).collect()
}

/// The parts of a range that lie in others, which are in order.
fn within(range: &Range<u64>, others: &[Range<u64>]) -> Vec<Range<u64>> {
    let first = others.partition_point(|other| other.end <= range.start);
    let met = others[first..].iter().take_while(|other| other.start < range.end);
    met.map(|other| range.start.max(other.start)..range.end.min(other.end)).collect()
}

/// The layers that show, in the order of the file, and whether some overlap without an order.
fn visible(layers: &[Layer]) -> (Vec<(Range<u64>, &Layer)>, bool) {
    let mut order: Vec<&Layer> = layers.iter().collect();
    order.sort_by_key(|layer| (layer.extent.generation, layer.extent.start));
    let mut reach = (0, 0);
    let mut is_order_unknown = false;
    for layer in &order {
        let (generation, end) = (layer.extent.generation, layer.extent.end());
        is_order_unknown |= reach.0 == generation && layer.extent.start < reach.1;
        reach = (generation, if reach.0 == generation { end.max(reach.1) } else { end });
    }
    // Of equally old ones the shorter one shows: it would be gone if the longer one had hidden it.
    order.sort_by_key(|layer| (layer.extent.generation, Reverse(layer.extent.len)));
    let ranked = |order: &[&Layer]| topmost((0..).zip(order).map(|(rank, layer)| (layer.range(), rank)).collect());
    let mut found = ranked(&order);
    let mut is_shown = vec![false; order.len()];
    found.iter().for_each(|(_, rank)| is_shown[*rank as usize] = true);
    if is_shown.contains(&false) {
        let mut flags = is_shown.into_iter();
        let (shown, hidden): (Vec<&Layer>, Vec<&Layer>) = order.iter().partition(|_| flags.next().unwrap_or_default());
        order = [shown, hidden].concat();
        found = ranked(&order);
        is_order_unknown = true;
    }
    (found.into_iter().map(|(range, rank)| (range, order[rank as usize])).collect(), is_order_unknown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_fs::file_extent::ExtentKind;

    fn layers(extents: &[(u64, u64, u64)]) -> Vec<Layer> {
        let layer = |(number, (start, end, generation)): (usize, &(u64, u64, u64))| Layer {
            extent: FileExtent {
                at: Logical(number as u64),
                ..FileExtent::new(ExtentKind::Regular, *start, Logical(0), end - start, *generation)
            },
            summed: Vec::new(),
            are_sums_known: true,
            is_reachable: true,
        };
        extents.iter().enumerate().map(layer).collect()
    }

    fn shown(extents: &[(u64, u64, u64)]) -> (Vec<(Range<u64>, u64)>, bool) {
        let layers = layers(extents);
        let (found, is_order_unknown) = visible(&layers);
        (found.into_iter().map(|(range, layer)| (range, layer.extent.at.0)).collect(), is_order_unknown)
    }

    #[test]
    fn the_newer_extent_shows_and_no_extent_is_hidden() {
        assert_eq!(shown(&[(0, 8, 5), (8, 16, 5)]), (vec![(0..8, 0), (8..16, 1)], false));
        assert_eq!(shown(&[(0, 8, 5), (4, 12, 4)]), (vec![(0..8, 0), (8..12, 1)], false));
        assert_eq!(
            shown(&[(0, 8, 5), (2, 4, 6), (4, 5, 7)]),
            (vec![(0..2, 0), (2..4, 1), (4..5, 2), (5..8, 0)], false)
        );
        // An old extent that was cloned, and one that the same transaction wrote again.
        assert_eq!(shown(&[(0, 8, 5), (2, 4, 3)]), (vec![(0..2, 0), (2..4, 1), (4..8, 0)], true));
        assert_eq!(shown(&[(2, 4, 5), (0, 8, 5)]), (vec![(0..2, 1), (2..4, 0), (4..8, 1)], true));
        assert!(shown(&[(0, 8, 5), (6, 10, 5), (12, 13, 6)]).1);
        assert_eq!(shown(&[]), (Vec::new(), false));
    }

    #[test]
    fn ranges_are_cut() {
        let all = merged(vec![8..9, 0..2, 5..8, 1..4, 20..20]);
        assert_eq!(all, [0..4, 5..9]);
        assert!(meets(&all, &(3..5)) && !meets(&all, &(4..5)) && meets(&all, &(8..30)) && !meets(&all, &(9..30)));
        assert_eq!(within(&(6..30), &[1..3, 5..8, 9..22, 40..50]), [6..8, 9..22]);
        assert!(within(&(0..10), &[]).is_empty());
    }
}
