//! The version 1 space cache: for each block group a file in the root tree that lists what is free.
//!
//! ```text
//! page 0:  [crc32c of each page, 4 bytes each][generation 8][entries of 17 bytes …]
//! page n:  [entries …], as many pages as they need; then one page for each bitmap, in the order of their entries
//! entry:   start 8, bytes 8, kind 1 (1: a range; 2: a bitmap, of which `bytes` are free)
//! ```
//! No entry spans two pages. The checksum of page 0 leaves out the checksums; that of a page without content may be
//! anything. A bitmap has a bit for each of 32768 sectors.
//!
//! A cache that the kernel would throw away by itself is a warning; one that it would believe and is wrong, an error.
//! What lies under a superblock copy is not listed.

use crate::extents::{ExtentScan, Runs};
use crate::finding::Finding;
use crate::roots;
use crate::session::Session;
use crate::walk::items;
use butterfs_ondisk::checksum::ChecksumKind;
use butterfs_ondisk::items::{FileExtent, FreeSpaceHeader, InodeItem, compression, file_extent_type};
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::{Key, KeyType, Logical};
use std::collections::BTreeMap;
use std::ops::Range;
use zerocopy::FromBytes;

const PAGE: usize = 4096;
const ENTRY: usize = 17;
/// The largest file that is read; a group of 10 GiB needs less than a tenth.
const LARGEST: u64 = 16 << 20;

/// A cache file, as the root tree describes it.
#[derive(Default)]
struct File {
    size: u64,
    /// By offset: address and length.
    extents: BTreeMap<u64, (u64, u64)>,
}

/// Checks all caches, when they are in use.
pub(crate) fn check(session: &Session<'_>, scan: &ExtentScan) {
    let generation = session.sb.cache_generation.get();
    if generation == 0 || generation == u64::MAX {
        return;
    }
    if generation != session.sb.generation.get() {
        return session.note("the version 1 space cache is older than the filesystem; the kernel throws it away");
    }
    let (mut headers, mut files) = (Vec::new(), BTreeMap::<u64, File>::new());
    let complete = items(session, roots::tree_root(session), &mut |key, data| match key.kind {
        KeyType(0) if key.objectid == objectid::FREE_SPACE => {
            if let Ok(header) = FreeSpaceHeader::read_from_bytes(data) {
                headers.push((key.offset, header));
            }
        }
        KeyType::INODE_ITEM => {
            let size = InodeItem::read_from_bytes(data).map_or(0, |item| item.size.get());
            files.entry(key.objectid).or_default().size = size;
        }
        KeyType::EXTENT_DATA => note_extent(files.entry(key.objectid).or_default(), key, data),
        _ => {}
    });
    if !complete || !scan.complete {
        return;
    }
    for (group, header) in headers {
        let file = files.get(&Key::from(header.location).objectid);
        match file.ok_or_else(|| "it has no file".to_owned()).and_then(|file| read(session, file, &header)) {
            Ok(free) => compare(session, scan, group, &free),
            Err(reason) => session.report(Finding::SpaceCacheUnusable { group: Logical(group), reason }),
        }
    }
}

fn note_extent(file: &mut File, key: Key, data: &[u8]) {
    let Ok(extent) = FileExtent::read_from_bytes(data) else { return };
    let plain = (extent.head.kind, extent.head.compression) == (file_extent_type::REGULAR, compression::NONE);
    if plain && extent.body.disk_bytenr.get() != 0 {
        let start = extent.body.disk_bytenr.get().saturating_add(extent.body.offset.get());
        file.extents.insert(key.offset, (start, extent.body.num_bytes.get()));
    }
}

/// The free ranges that a cache lists, in its order.
fn read(session: &Session<'_>, file: &File, header: &FreeSpaceHeader) -> Result<Vec<Range<u64>>, String> {
    let pages = Pages::read(session, file)?;
    if pages.generation() != header.generation.get() {
        return Err(format!("its generation is {}, that of its header {}", pages.generation(), header.generation));
    }
    let (mut at, mut free, mut bitmaps) = (pages.first_entry() + 8, Vec::new(), Vec::new());
    for _ in 0..header.num_entries.get() {
        if at / PAGE != (at + ENTRY - 1) / PAGE {
            at = at.next_multiple_of(PAGE);
        }
        let entry = pages.checked(at / PAGE)?.get(at % PAGE..at % PAGE + ENTRY).ok_or("an entry lies outside")?;
        let number = |from: usize| u64::from_le_bytes(entry[from..from + 8].try_into().expect("8 bytes"));
        let (start, bytes) = (number(0), number(8));
        match entry[16] {
            1 => free.push(start..start.saturating_add(bytes)),
            2 => bitmaps.push(start),
            other => return Err(format!("an entry is of the unknown kind {other}")),
        }
        at += ENTRY;
    }
    if bitmaps.len() as u64 != header.num_bitmaps.get() {
        return Err(format!("it has {} bitmaps, by its header {}", bitmaps.len(), header.num_bitmaps));
    }
    let first = at.div_ceil(PAGE);
    for (page, start) in bitmaps.into_iter().enumerate() {
        add_bitmap(pages.checked(first + page)?, start, session.sectorsize(), &mut free);
    }
    Ok(free)
}

fn add_bitmap(bits: &[u8], start: u64, sector: u64, free: &mut Vec<Range<u64>>) {
    let set = (0..bits.len() * 8).filter(|bit| bits[bit / 8] & (1 << (bit % 8)) != 0);
    for bit in set {
        let at = start.saturating_add(bit as u64 * sector);
        match free.last_mut() {
            Some(last) if last.end == at => last.end = at.saturating_add(sector),
            _ => free.push(at..at.saturating_add(sector)),
        }
    }
}

/// The content of a cache file.
struct Pages {
    bytes: Vec<u8>,
}

impl Pages {
    fn read(session: &Session<'_>, file: &File) -> Result<Pages, String> {
        let size = file.size;
        if size == 0 || !size.is_multiple_of(PAGE as u64) || size > LARGEST {
            return Err(format!("its file has {size} bytes"));
        }
        let mut bytes = vec![0; size as usize];
        for (&offset, &(start, length)) in file.extents.range(..size) {
            let part = &mut bytes[offset as usize..size.min(offset.saturating_add(length)) as usize];
            session.volume.read_copy(Logical(start), 0, part).map_err(|error| error.to_string())?;
        }
        let pages = Pages { bytes };
        pages.checked(0).map(|_| ())?;
        Ok(pages)
    }

    /// Behind the checksums.
    fn first_entry(&self) -> usize {
        self.bytes.len() / PAGE * 4
    }

    fn generation(&self) -> u64 {
        let at = self.first_entry();
        self.bytes.get(at..at + 8).map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes")))
    }

    /// A page whose checksum is good.
    fn checked(&self, page: usize) -> Result<&[u8], String> {
        let bytes = self.bytes.get(page * PAGE..(page + 1) * PAGE).ok_or("it is shorter than its content")?;
        let skipped = if page == 0 { self.first_entry() } else { 0 };
        if skipped + 8 > PAGE {
            return Err("it has more pages than checksums fit".to_owned());
        }
        let good = ChecksumKind::Crc32c.matches(&bytes[skipped..], &self.bytes[page * 4..page * 4 + 4]);
        if good { Ok(bytes) } else { Err(format!("the checksum of its page {page} is wrong")) }
    }
}

fn compare(session: &Session<'_>, scan: &ExtentScan, group: u64, listed: &[Range<u64>]) {
    let Some(item) = scan.groups.get(&group) else {
        let reason = "there is no such block group".to_owned();
        return session.report(Finding::SpaceCacheUnusable { group: Logical(group), reason });
    };
    let mut listed: Vec<Range<u64>> = listed.to_vec();
    listed.sort_by_key(|range| range.start);
    let mut free = Runs::default();
    listed.into_iter().for_each(|range| free.push(range));
    let (start, end) = (group, group.saturating_add(item.length));
    let mut taken = Runs::default();
    for range in in_use(session, scan, start..end) {
        taken.push(range);
    }
    let wrong = |range: &Range<u64>, listed: &str| {
        let (at, length, listed) = (Logical(range.start), range.end - range.start, listed.to_owned());
        session.report(Finding::SpaceCacheWrong { group: Logical(group), at, length, listed });
    };
    for run in &free.0 {
        let outside = [run.start..run.end.min(start), run.start.max(end)..run.end];
        outside.iter().filter(|range| range.start < range.end).for_each(|range| wrong(range, "free"));
        taken.within(run.start.max(start)..run.end.min(end)).for_each(|range| wrong(&range, "free"));
    }
    for truly_free in taken.gaps(start..end) {
        free.gaps(truly_free).iter().for_each(|range| wrong(range, "not free"));
    }
}

/// The ranges in use, and those under superblock copies; ascending.
fn in_use(session: &Session<'_>, scan: &ExtentScan, range: Range<u64>) -> Vec<Range<u64>> {
    let map = session.volume.chunk_map();
    let mut all: Vec<Range<u64>> = scan.used.within(range.clone()).collect();
    if let Some(chunk) = map.get(Logical(range.start)) {
        let excluded = map.superblock_exclusions(chunk).into_iter();
        all.extend(excluded.map(|excluded| excluded.start.get()..excluded.end.get()));
    }
    all.sort_by_key(|range| range.start);
    all
}
