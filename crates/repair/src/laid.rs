//! Extents as the extent tree has them, laid into a file: which of those that overlap shows, which parts are only
//! allocated, and how the data is packed.
//!
//! Invariants: (1) of extents that overlap the newer one shows; (2) bytes without checksums are data only where no data
//! of the file has checksums; (3) data is taken for packed only if all of it fits its checksums and it unpacks to more
//! than it takes.

use crate::checksums;
use crate::forest::Forest;
use crate::lost_extents::{Lost, item_of};
use crate::ranges::Ranges;
use crate::trouble::Result;
use butterfs_codec::{Algorithm, MAX_UNCOMPRESSED, decompress};
use butterfs_ondisk::features::incompat;
use butterfs_ondisk::items::{FileExtent, compression, file_extent_type};
use butterfs_ondisk::packing::{LARGEST, Packing};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::iter;
use std::ops::Range;
use zerocopy::FromBytes;

/// Extents that are asked for the compression of a filesystem.
const MOST_SEEN: usize = 16;

/// The compressions that data may have, as far as something else than the data says so.
#[derive(Clone, Debug)]
pub(crate) enum Kinds {
    /// Nothing is packed.
    Plain,
    Any,
    Seen(Seen),
}

/// The compressions that a filesystem uses.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    lzo: bool,
    zstd: bool,
    /// Extents packed by zlib.
    zlib: Vec<u64>,
}

impl Seen {
    pub fn of_flags(incompat: u64) -> Seen {
        let has = |flag| incompat & flag != 0;
        Seen { lzo: has(incompat::COMPRESS_LZO), zstd: has(incompat::COMPRESS_ZSTD), zlib: Vec::new() }
    }

    /// No flag says that a filesystem has data packed by zlib.
    pub fn see(&mut self, extent: &[u8]) {
        if let Ok(own) = FileExtent::read_from_bytes(extent)
            && (own.head.compression, own.head.kind) == (compression::ZLIB, file_extent_type::REGULAR)
            && self.zlib.len() < MOST_SEEN
        {
            self.zlib.push(own.body.disk_bytenr.get());
        }
    }
}

impl Kinds {
    /// Whether data that begins so may be packed by this. Files in zlib's own format are frequent: few have the level
    /// of the filesystem, which is in the first two bytes.
    fn have(&self, forest: &Forest, kind: Algorithm, start: &[u8]) -> Result<bool> {
        let seen = match self {
            Kinds::Plain => return Ok(false),
            Kinds::Any => return Ok(true),
            Kinds::Seen(seen) => seen,
        };
        // A file in zstd's own format, as its tools write it, has a checksum.
        match kind {
            Algorithm::Lzo => return Ok(seen.lzo),
            Algorithm::Zstd => return Ok(seen.zstd && start[4] & 4 == 0),
            Algorithm::Zlib => {}
        }
        for &at in &seen.zlib {
            if checksums::verified_sector(forest, at)?.is_some_and(|other| other[..2] == start[..2]) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Extents as items of a file.
pub(crate) struct Together {
    /// By the place in the file.
    pub items: BTreeMap<u64, FileExtent>,
    /// Behind the last byte that was written.
    pub end: u64,
    /// Some of the data has checksums.
    pub has_sums: bool,
    /// Extents of one generation overlap in part: the order of their addresses decided.
    pub is_disputed: bool,
}

impl Together {
    /// Bytes of all items.
    pub fn bytes(&self) -> u64 {
        self.items.values().fold(0, |sum, extent| sum.saturating_add(extent.body.num_bytes.get()))
    }
}

/// Lays extents into a file that shows `shown` already.
pub(crate) fn together(forest: &Forest, mut shown: Ranges, mut extents: Vec<Lost>, kinds: &Kinds) -> Result<Together> {
    let sector = forest.store.sectorsize();
    let is_possible = |lost: &Lost| {
        let end = lost.start.checked_add(lost.length.max(LARGEST));
        lost.start.is_multiple_of(sector) && lost.length > 0 && end.is_some_and(|end| i64::try_from(end).is_ok())
    };
    extents.retain(is_possible);
    let mut laid: Vec<Laid> = extents.into_iter().map(|lost| lie(forest, lost, kinds)).collect::<Result<_>>()?;
    // The newest first: what it leaves the older ones show. Within a generation one that lies within another is newer,
    // because one that shows nothing has no reference; of others nothing is known, but that the allocator goes upwards.
    laid.sort_unstable_by_key(|one| (Reverse(one.lost.generation), one.unpacked, Reverse(one.lost.at)));
    let has_sums = laid.iter().any(|one| !one.summed.is_empty());
    let mut made = Together { items: BTreeMap::new(), end: 0, has_sums, is_disputed: false };
    // The insides of the extents of one generation.
    let (mut generation, mut inside) = (0, Ranges::default());
    for one in laid {
        let range = one.lost.start..one.lost.start + one.unpacked;
        if one.lost.generation != generation {
            (generation, inside) = (one.lost.generation, Ranges::default());
        }
        // Beginnings and ends are multiples of a sector.
        let is_inside = |place: u64| inside.last_overlap(place..place + 1).is_some();
        made.is_disputed |= is_inside(range.start) || is_inside(range.end);
        inside.insert(range.start + 1..range.end);
        for gap in shown.gaps(range.clone()) {
            for (part, kind) in one.parts(gap, has_sums) {
                if kind == file_extent_type::REGULAR {
                    made.end = made.end.max(part.end);
                }
                made.items.insert(part.start, one.item(part, kind));
            }
        }
        shown.insert(range);
    }
    Ok(made)
}

/// An extent and how it lies on the device.
struct Laid {
    lost: Lost,
    mark: u8,
    unpacked: u64,
    /// Its parts with checksums, within it.
    summed: Vec<Range<u64>>,
}

/// Finds out how an extent is packed and which of its parts have checksums.
fn lie(forest: &Forest, lost: Lost, kinds: &Kinds) -> Result<Laid> {
    let summed = checksums::parts(forest, lost.at, lost.length)?;
    let is_whole = matches!(&summed[..], [all] if *all == (0..lost.length));
    let packed = if is_whole { packed(forest, &lost, kinds)? } else { None };
    Ok(match packed {
        Some((mark, unpacked)) => Laid { lost, mark, unpacked, summed: iter::once(0..unpacked).collect() },
        None => Laid { lost, mark: compression::NONE, unpacked: lost.length, summed },
    })
}

/// The compression of an extent, and the length of what it unpacks to, if it is certainly packed: all of it fits its
/// checksums, and it unpacks to more than it takes.
fn packed(forest: &Forest, lost: &Lost, kinds: &Kinds) -> Result<Option<(u8, u64)>> {
    let unit = forest.store.sectorsize();
    let packing = Packing { mark: compression::NONE, stored: lost.length, unpacked: LARGEST, unit };
    if !packing.is_doubtful() {
        return Ok(None);
    }
    let Some(start) = checksums::verified_sector(forest, lost.at)? else { return Ok(None) };
    let Some(kind) = packing.right_mark(&start).and_then(Algorithm::from_raw) else { return Ok(None) };
    if !kinds.have(forest, kind, &start)? {
        return Ok(None);
    }
    let mut stored = start;
    for at in (lost.at..lost.at + lost.length).step_by(unit as usize).skip(1) {
        let Some(sector) = checksums::verified_sector(forest, at)? else { return Ok(None) };
        stored.extend(sector);
    }
    let mut content = vec![0; MAX_UNCOMPRESSED];
    let unpacked = decompress(kind, &stored, &mut content, unit as u32).map_or(0, |length| length as u64);
    let unpacked = unpacked.next_multiple_of(unit);
    Ok((unpacked > lost.length).then_some((kind.raw(), unpacked)))
}

impl Laid {
    /// The parts of a range of the file that this extent shows, each as data or as space that was only allocated.
    /// Without `has_sums` nothing tells both apart.
    fn parts(&self, range: Range<u64>, has_sums: bool) -> Vec<(Range<u64>, u8)> {
        let start = self.lost.start;
        if !has_sums {
            return vec![(range, file_extent_type::REGULAR)];
        }
        let mut summed = Ranges::default();
        self.summed.iter().for_each(|part| summed.insert(start + part.start..start + part.end));
        let data = summed.within(range.clone()).map(|part| (part, file_extent_type::REGULAR));
        let rest = summed.gaps(range.clone()).into_iter().map(|part| (part, file_extent_type::PREALLOC));
        data.chain(rest).collect()
    }

    fn item(&self, part: Range<u64>, kind: u8) -> FileExtent {
        let mut extent = item_of(&self.lost, self.mark, self.unpacked);
        extent.head.kind = kind;
        extent.body.offset = (part.start - self.lost.start).into();
        extent.body.num_bytes = (part.end - part.start).into();
        extent
    }
}
