//! Operations on contents.

use crate::meter::{Meter, Operation, Reach};
use crate::scene::{BLOCK, Scene};
use crate::world::{ROOT, pattern};
use Reach::{All, One};
use butterfs_fs::file::{Defragment, Encoded, Whence};
use butterfs_fs::{Algorithm, InodeId, SetAttr};

/// `fallocate` modes: keep the size, and also make a hole.
const KEEP_SIZE: u32 = 1;
const MAKE_HOLE: u32 = 3;

fn resize(s: &Scene, m: &mut Meter, id: InodeId, size: u64) {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    m.call(s, || s.world.fs.setattr(&ROOT, id, &set)).unwrap();
}

/// A file that shares everything that the scene's file has.
fn copy(s: &Scene) -> InodeId {
    let (id, _) = s.another();
    s.world.fs.clone_range((s.file, 0), (id, 0), 0).unwrap();
    s.world.fs.sync().unwrap();
    id
}

fn write(s: &Scene, m: &mut Meter, offset: u64) {
    let data = pattern(7, BLOCK as usize);
    m.call(s, || s.world.fs.write(s.file, offset, &data, false)).unwrap();
}

fn size(s: &Scene) -> u64 {
    s.world.fs.getattr(s.file).unwrap().size
}

/// See the [module](self).
pub const OPERATIONS: &[Operation] = &[
    Operation::new("read", "", One, |s, m| {
        let mut out = Vec::new();
        m.call(s, || s.world.fs.read(s.file, 0, BLOCK as usize, &mut out)).unwrap();
    }),
    Operation::new("read_unnoticed", "all", All, |s, m| {
        let size = size(s);
        // Memory that the system has given already: to get it costs more than to read.
        let mut out = vec![0; size as usize];
        out.clear();
        m.call(s, || s.world.fs.read_unnoticed(s.file, 0, size as usize, &mut out)).unwrap();
    }),
    Operation::new("note_coming_access", "", One, |s, m| {
        m.call(s, || s.world.fs.note_coming_access(s.file)).unwrap();
    }),
    Operation::new("write", "at the end", One, |s, m| write(s, m, size(s))),
    Operation::new("write", "of one sector, then to disk", One, |s, m| {
        write(s, m, BLOCK);
        m.call(s, || s.world.fs.write_back(s.file)).unwrap();
    }),
    Operation::new("append", "", One, |s, m| {
        let data = pattern(9, 1000);
        m.call(s, || s.world.fs.append(s.file, &data, false)).unwrap();
    }),
    Operation::new("write_mapped", "", One, |s, m| {
        let data = pattern(8, BLOCK as usize);
        m.call(s, || s.world.fs.write_mapped(s.file, BLOCK, &data)).unwrap();
    }),
    Operation::new("write_encoded", "", One, |s, m| {
        let (id, _) = s.another();
        let content = vec![7; 8 * BLOCK as usize];
        let data = zstd::bulk::compress(&content, 3).unwrap();
        let encoded = Encoded {
            algorithm: Algorithm::Zstd,
            sectorsize: BLOCK as u32,
            data: &data,
            unencoded_len: 8 * BLOCK,
            unencoded_offset: 0,
            file_len: 8 * BLOCK,
        };
        m.call(s, || s.world.fs.write_encoded(id, 0, &encoded, false)).unwrap();
    }),
    Operation::new("fallocate", "behind the end", One, |s, m| {
        let end = size(s).next_multiple_of(BLOCK);
        m.call(s, || s.world.fs.fallocate(s.file, KEEP_SIZE, end, BLOCK, false)).unwrap();
    }),
    Operation::new("fallocate", "a hole in all", All, |s, m| {
        let (id, end) = (copy(s), size(s));
        m.call(s, || s.world.fs.fallocate(id, MAKE_HOLE, 0, end, false)).unwrap();
    }),
    Operation::new("seek", "", All, |s, m| {
        let _ = m.call(s, || s.world.fs.seek(s.file, 0, Whence::Hole)).unwrap();
    }),
    Operation::new("lseek", "", All, |s, m| {
        let _ = m.call(s, || s.world.fs.lseek(s.file, 0, 3)).unwrap();
    }),
    Operation::new("clone_range", "one block", One, |s, m| {
        let (id, _) = s.another();
        m.call(s, || s.world.fs.clone_range((s.file, 0), (id, 0), BLOCK)).unwrap();
    }),
    Operation::new("clone_range", "all", All, |s, m| {
        let (id, _) = s.another();
        m.call(s, || s.world.fs.clone_range((s.file, 0), (id, 0), 0)).unwrap();
    }),
    Operation::new("copy_range", "one block", One, |s, m| {
        let (id, _) = s.another();
        m.call(s, || s.world.fs.copy_range((s.file, 0), (id, 0), BLOCK)).unwrap();
    }),
    Operation::new("copy_range_privileged", "one block", One, |s, m| {
        let (id, _) = s.another();
        m.call(s, || s.world.fs.copy_range_privileged((s.file, 0), (id, 0), BLOCK)).unwrap();
    }),
    Operation::new("dedupe_range", "", One, |s, m| {
        let (first, _) = s.another();
        let (second, _) = s.another();
        assert!(m.call(s, || s.world.fs.dedupe_range((first, 0), (second, 0), BLOCK)).unwrap());
    }),
    Operation::new("may_share", "", One, |s, m| {
        let (id, _) = s.another();
        m.call(s, || s.world.fs.may_share(s.file, id)).unwrap();
    }),
    Operation::new("extents", "", All, |s, m| {
        let _ = m.call(s, || s.world.fs.extents(s.file, 0..u64::MAX)).unwrap();
    }),
    Operation::new("some_extents", "", One, |s, m| {
        m.call(s, || s.world.fs.some_extents(s.file, 0..u64::MAX, 10)).unwrap();
    }),
    Operation::new("is_shared", "", One, |s, m| {
        let extents = s.world.fs.some_extents(s.file, 0..BLOCK, 1).unwrap();
        m.call(s, || s.world.fs.is_shared(s.file, &extents[0])).unwrap();
    }),
    Operation::new("users_of", "", All, |s, m| {
        let extents = s.world.fs.some_extents(s.file, 0..BLOCK, 1).unwrap();
        m.call(s, || s.world.fs.users_of(extents[0].at, true)?.try_for_each(|user| user.map(drop))).unwrap();
    }),
    Operation::new("referrers_of", "", All, |s, m| {
        let extents = s.world.fs.some_extents(s.file, 0..BLOCK, 1).unwrap();
        s.world.fs.sync().unwrap();
        m.call(s, || s.world.fs.referrers_of(extents[0].at)?.try_for_each(|referrer| referrer.map(drop))).unwrap();
    }),
    Operation::new("defragment", "", All, |s, m| {
        let id = copy(s);
        m.call(s, || s.world.fs.defragment(id, &Defragment::default())).unwrap();
    }),
    Operation::new("fsync", "nothing is changed", One, |s, m| m.call(s, || s.world.fs.fsync(s.file, false)).unwrap()),
    Operation::new("fsync", "after a write", One, |s, m| {
        s.world.write(s.file, BLOCK, &pattern(9, BLOCK as usize));
        m.call(s, || s.world.fs.fsync(s.file, false)).unwrap();
    }),
    Operation::new("fsync", "of a new file", One, |s, m| {
        let id = s.create(s.dir, &s.name());
        m.call(s, || s.world.fs.fsync(id, false)).unwrap();
    }),
    Operation::new("fsync", "of the directory after a create", One, |s, m| {
        s.create(s.dir, &s.name());
        m.call(s, || s.world.fs.fsync(s.dir, false)).unwrap();
    }),
    Operation::new("setattr", "larger", One, |s, m| resize(s, m, s.file, size(s) + BLOCK)),
    Operation::new("setattr", "smaller by a block", One, |s, m| {
        let end = size(s);
        s.world.write(s.file, end, &pattern(3, 2 * BLOCK as usize));
        s.world.fs.sync().unwrap();
        resize(s, m, s.file, end);
    }),
    Operation::new("setattr", "to nothing", All, |s, m| resize(s, m, copy(s), 0)),
    Operation::new("unlink", "of a whole copy", All, |s, m| {
        let name = s.name();
        let id = s.create(s.dir, &name);
        s.world.fs.clone_range((s.file, 0), (id, 0), 0).unwrap();
        s.world.fs.sync().unwrap();
        s.world.fs.forget(id, 1);
        m.call(s, || s.world.fs.unlink(s.dir, &name)).unwrap();
    }),
];
