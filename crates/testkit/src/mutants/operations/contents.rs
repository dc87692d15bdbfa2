//! Contents of files.

use super::Operation;
use butterfs_fs::file::{Defragment, Encoded, Whence};
use butterfs_fs::{Algorithm, DataPolicy};

pub const OPERATIONS: &[Operation] = &[
    ("read", |w| {
        let (id, offset, len) = (w.object(), w.offset(), w.len());
        w.filesystem.read(id, offset, len, &mut Vec::new()).map(drop)
    }),
    ("read_unnoticed", |w| {
        let (id, len) = (w.object(), w.len());
        w.filesystem.read_unnoticed(id, 0, len, &mut Vec::new()).map(drop)
    }),
    ("note_coming_access", |w| w.filesystem.note_coming_access(w.object()).map(drop)),
    ("write", |w| {
        let (id, offset, len) = (w.object(), w.offset(), w.len());
        w.filesystem.write(id, offset, &vec![1; len], true).map(drop)
    }),
    ("append", |w| {
        let (id, len) = (w.object(), w.len());
        w.filesystem.append(id, &vec![3; len], true).map(drop)
    }),
    ("write_mapped", |w| {
        let (id, offset) = (w.object(), w.rng.below(30) * 4096);
        w.filesystem.write_mapped(id, offset, &[2; 4096]).map(drop)
    }),
    ("write_encoded", |w| {
        // Stored blocks of RFC 1951 in the frame of RFC 1950.
        let data = [0x78, 0x01, 0x01, 4, 0, 0xfb, 0xff, b'a', b'b', b'c', b'd', 0x03, 0xd8, 0x01, 0x8b];
        let (id, offset) = (w.object(), w.rng.below(30) * 4096);
        let (unencoded_len, unencoded_offset, file_len) = (4, 0, 4);
        let algorithm = Algorithm::Zlib;
        let encoded = Encoded { algorithm, sectorsize: 4096, data: &data, unencoded_len, unencoded_offset, file_len };
        let keep = w.rng.chance(50);
        w.filesystem.write_encoded(id, offset, &encoded, keep)
    }),
    ("fallocate", |w| {
        let modes = [0, 1, 3, 0x10, 0x11];
        let (id, mode, offset) = (w.object(), *w.rng.pick(&modes), w.offset());
        let len = 1 + w.rng.below(300_000);
        w.filesystem.fallocate(id, mode, offset, len, true)
    }),
    ("seek", |w| {
        let (id, offset) = (w.object(), w.offset());
        w.filesystem.seek(id, offset, Whence::Data).map(drop)
    }),
    ("lseek", |w| {
        let (id, offset, whence) = (w.object(), w.offset(), 3 + w.rng.below(2) as u32);
        w.filesystem.lseek(id, offset, whence).map(drop)
    }),
    ("copy_range", |w| {
        let (source, target, len) = ((w.object(), w.offset()), (w.object(), w.offset()), w.len() as u64);
        w.filesystem.copy_range(source, target, len).map(drop)
    }),
    ("copy_range_as", |w| {
        let (source, target) = ((w.object(), 0), (w.object(), 0));
        w.filesystem.copy_range_as(source, target, 65536, true).map(drop)
    }),
    ("copy_range_privileged", |w| {
        let (source, target) = ((w.object(), 0), (w.object(), 4096));
        w.filesystem.copy_range_privileged(source, target, 40960).map(drop)
    }),
    ("clone_range", |w| {
        let at = |number: u64| number * 4096;
        let (source, target) = ((w.object(), at(w.rng.below(20))), (w.object(), at(w.rng.below(20))));
        let len = at(1 + w.rng.below(20));
        w.filesystem.clone_range(source, target, len)
    }),
    ("dedupe_range", |w| {
        let (source, target) = ((w.object(), 0), (w.object(), 0));
        let len = 4096 * (1 + w.rng.below(8));
        w.filesystem.dedupe_range(source, target, len).map(drop)
    }),
    ("may_share", |w| {
        let (source, target) = (w.object(), w.object());
        w.filesystem.may_share(source, target).map(drop)
    }),
    ("extents", |w| w.filesystem.extents(w.object(), 0..u64::MAX).map(drop)),
    ("some_extents", |w| {
        let (id, offset) = (w.object(), w.offset());
        w.filesystem.some_extents(id, offset..u64::MAX, 5).map(drop)
    }),
    ("is_shared", |w| {
        let id = w.object();
        for extent in w.filesystem.some_extents(id, 0..u64::MAX, 4)? {
            w.filesystem.is_shared(id, &extent)?;
        }
        Ok(())
    }),
    ("users_of", |w| {
        let id = w.object();
        for extent in w.filesystem.some_extents(id, 0..u64::MAX, 3)? {
            w.filesystem.users_of(extent.at, true)?.try_for_each(|user| user.map(drop))?;
        }
        Ok(())
    }),
    ("referrers_of", |w| {
        let id = w.object();
        for extent in w.filesystem.some_extents(id, 0..u64::MAX, 3)? {
            w.filesystem.referrers_of(extent.at)?.take(10_000).try_for_each(|referrer| referrer.map(drop))?;
        }
        Ok(())
    }),
    ("defragment", |w| {
        let (id, threshold) = (w.object(), 4096 << w.rng.below(10));
        let compress = w.rng.chance(30).then(|| Algorithm::Zstd.into());
        w.filesystem.defragment(id, &Defragment { threshold, compress, ..Defragment::default() }).map(drop)
    }),
    ("data_policy", |w| {
        let _ = w.filesystem.data_policy();
        Ok(())
    }),
    ("set_data_policy", |w| {
        let compress = w.rng.chance(40).then(|| Algorithm::Lzo.into());
        w.filesystem.set_data_policy(DataPolicy { compress, force: w.rng.chance(50), ..DataPolicy::default() });
        Ok(())
    }),
    ("write_back", |w| w.filesystem.write_back(w.object())),
    ("fsync", |w| {
        let (id, data_only) = (w.object(), w.rng.chance(30));
        w.filesystem.fsync(id, data_only)
    }),
];
