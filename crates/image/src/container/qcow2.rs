//! qcow2: two levels of tables of big-endian numbers lead to clusters. Versions 2 and 3, compressed clusters of both
//! kinds, subclusters. Snapshots inside of an image are left alone; its active state is shown.

use super::decoding::{Codec, Packed};
use super::fields::{be_u32, be_u64, bytes, header};
use super::{Layout, Part, Place, damaged};
use crate::error::{Error, Result};
use butterfs_device::BlockDevice;
use std::io;

/// Features without which an image is misunderstood, and that are known: dirty, corrupt, kind of compression,
/// subclusters.
const KNOWN_FEATURES: u64 = 1 << 0 | 1 << 1 | COMPRESSION_KIND | SUBCLUSTERS;
const EXTERNAL_DATA: u64 = 1 << 2;
const COMPRESSION_KIND: u64 = 1 << 3;
const SUBCLUSTERS: u64 = 1 << 4;

/// The place in an entry of a table.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
const IS_COMPRESSED: u64 = 1 << 62;
const IS_ZERO: u64 = 1;
/// Subclusters of a cluster.
const SUBCLUSTERS_OF: u64 = 32;

#[derive(Debug)]
struct Qcow2 {
    len: u64,
    cluster_bits: u32,
    /// Entries of a table of the second level, as a power of two.
    table_bits: u32,
    first_table: u64,
    has_subclusters: bool,
    /// Whether an entry can say that a cluster is zero.
    has_zero_clusters: bool,
    codec: Codec,
}

/// Reads the header.
pub fn open(file: &dyn BlockDevice) -> Result<Box<dyn Layout>> {
    let head: [u8; 72] = header(file, 0)?;
    let version = be_u32(&head, 4);
    let (features, codec) = match version {
        2 => (0, Codec::Deflate),
        3 => features(file)?,
        _ => return Err(Error::content(format!("version {version} is not known"))),
    };
    refuse_others(file, &head, features)?;
    let (cluster_bits, len) = (be_u32(&head, 20), be_u64(&head, 24));
    let has_subclusters = features & SUBCLUSTERS != 0;
    if !(9..=21).contains(&cluster_bits) || has_subclusters && cluster_bits < 14 {
        return Err(Error::content(format!("clusters have 2^{cluster_bits} bytes, which cannot be")));
    }
    let table_bits = cluster_bits - if has_subclusters { 4 } else { 3 };
    let needed = len.div_ceil(1 << (cluster_bits + table_bits));
    let (entries, first_table) = (be_u32(&head, 36), be_u64(&head, 40));
    if needed > u64::from(entries) {
        return Err(Error::content(format!("the first table has {entries} entries, but the disk needs {needed}")));
    }
    let has_zero_clusters = version >= 3;
    Ok(Box::new(Qcow2 { len, cluster_bits, table_bits, first_table, has_subclusters, has_zero_clusters, codec }))
}

fn features(file: &dyn BlockDevice) -> Result<(u64, Codec)> {
    let head: [u8; 105] = header(file, 0)?;
    let features = be_u64(&head, 72);
    let kind = if features & COMPRESSION_KIND != 0 && be_u32(&head, 100) > 104 { head[104] } else { 0 };
    match kind {
        0 => Ok((features, Codec::Deflate)),
        1 => Ok((features, Codec::Zstd)),
        _ => Err(Error::content(format!("compression {kind} is not known"))),
    }
}

/// Refuses what would be misunderstood, or would lead to other files.
fn refuse_others(file: &dyn BlockDevice, head: &[u8; 72], features: u64) -> Result<()> {
    let (name_at, name_len) = (be_u64(head, 8), be_u32(head, 16));
    if name_at != 0 {
        let mut name = vec![0; name_len.min(1023) as usize];
        let _ = file.read_at(name_at, &mut name);
        let sentence = format!(
            "it needs the backing file '{}', and no file is read because an image names it; 'qemu-img convert' makes \
             one image of both",
            name.escape_ascii()
        );
        return Err(Error::content(sentence));
    }
    if be_u32(head, 32) != 0 {
        return Err(Error::content("it is encrypted"));
    }
    if features & EXTERNAL_DATA != 0 {
        return Err(Error::content("its data is in another file, and no file is read because an image names it"));
    }
    match features & !KNOWN_FEATURES {
        0 => Ok(()),
        unknown => Err(Error::content(format!("it has features that are not known ({unknown:#x})"))),
    }
}

impl Qcow2 {
    fn cluster(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// The number in a table at `table`.
    fn entry(&self, file: &dyn BlockDevice, table: u64, index: u64, at: u64) -> io::Result<u64> {
        let place = table.checked_add(index * 8).ok_or_else(|| damaged("a table is nowhere", at))?;
        Ok(u64::from_be_bytes(bytes(file, place)?))
    }

    /// The place in an entry, which must be the beginning of a cluster.
    fn place(&self, entry: u64, at: u64) -> io::Result<u64> {
        let place = entry & OFFSET;
        match place.is_multiple_of(self.cluster()) {
            true => Ok(place),
            false => Err(damaged(format_args!("a cluster or table begins at {place}"), at)),
        }
    }

    fn compressed(&self, entry: u64, at: u64) -> Packed {
        let offset_bits = 62 - (self.cluster_bits - 8);
        let place = entry & ((1 << offset_bits) - 1) & !(0xff << 56);
        let sectors = (entry & (IS_COMPRESSED - 1)) >> offset_bits;
        let len = (sectors + 1) * 512 - place % 512;
        let skip = at % self.cluster();
        Packed { at: place, len, decoded: self.cluster(), skip, codec: self.codec }
    }

    fn whole(&self, entry: u64, at: u64) -> io::Result<Place> {
        let place = self.place(entry, at)?;
        Ok(match place {
            _ if self.has_zero_clusters && entry & IS_ZERO != 0 => Place::Zeros,
            0 => Place::Zeros,
            place => Place::At(place + at % self.cluster()),
        })
    }

    fn subcluster(&self, entry: u64, states: u64, at: u64) -> io::Result<Part> {
        let size = self.cluster() / SUBCLUSTERS_OF;
        let index = at % self.cluster() / size;
        let (is_there, is_zero) = (states >> index & 1 != 0, states >> (32 + index) & 1 != 0);
        let place = match (is_there, is_zero) {
            (true, true) => return Err(damaged("a subcluster is there and zero", at)),
            (true, false) => match self.place(entry, at)? {
                0 => return Err(damaged("a subcluster is nowhere", at)),
                place => Place::At(place + at % self.cluster()),
            },
            (false, _) => Place::Zeros,
        };
        Ok(Part { len: size - at % size, place })
    }
}

impl Layout for Qcow2 {
    fn len(&self) -> u64 {
        self.len
    }

    fn find(&self, file: &dyn BlockDevice, at: u64) -> io::Result<Part> {
        let span_bits = self.cluster_bits + self.table_bits;
        let first = self.entry(file, self.first_table, at >> span_bits, at)?;
        let table = self.place(first, at)?;
        if table == 0 {
            return Ok(Part { len: (1 << span_bits) - at % (1 << span_bits), place: Place::Zeros });
        }
        let index = at >> self.cluster_bits & ((1 << self.table_bits) - 1);
        let words = if self.has_subclusters { 2 } else { 1 };
        let entry = self.entry(file, table, index * words, at)?;
        let len = self.cluster() - at % self.cluster();
        if entry & IS_COMPRESSED != 0 {
            return Ok(Part { len, place: Place::Packed(self.compressed(entry, at)) });
        }
        if self.has_subclusters {
            let states = self.entry(file, table, index * words + 1, at)?;
            return self.subcluster(entry, states, at);
        }
        Ok(Part { len, place: self.whole(entry, at)? })
    }
}
