//! Operations on subvolumes, and reading snapshots.

use crate::meter::{Operation, Reach};
use crate::scene::{BLOCK, Scene};
use crate::world::ROOT;
use Reach::{All, One};
use butterfs_fs::file_extent::FileExtent;
use butterfs_fs::subvolume::uuid_tree::UuidKind;
use butterfs_fs::{Error, Generation, Ino, SnapshotReader, TreeId};
use butterfs_ondisk::{Key, KeyType};
use std::ops::ControlFlow;

fn reader(s: &Scene) -> SnapshotReader {
    s.world.fs.read_snapshot(s.snapshot).unwrap()
}

/// The first extent of the scene's file, with its item.
fn extent(reader: &SnapshotReader, s: &Scene) -> (FileExtent, Vec<u8>) {
    let key = Key::new(s.file.ino.0, KeyType::EXTENT_DATA, 0);
    let at = reader.search(key).unwrap();
    let item = at.leaf.item(at.slot).to_vec();
    (FileExtent::parse(key, &item, BLOCK).unwrap(), item)
}

const FIRST: Key = Key { objectid: 0, kind: KeyType(0), offset: 0 };
const LAST: Key = Key { objectid: u64::MAX, kind: KeyType(255), offset: u64::MAX };

/// See the [module](self).
pub const OPERATIONS: &[Operation] = &[
    Operation::new("create_subvolume", "", One, |s, m| {
        let name = s.name();
        m.call(s, || s.world.fs.create_subvolume(&ROOT, s.dir, &name)).unwrap();
    }),
    Operation::new("snapshot", "of a small one", One, |s, m| {
        let (id, name) = s.subvolume();
        let copy = s.name();
        m.call(s, || s.world.fs.snapshot(id, s.dir, &copy, false)).unwrap();
        s.world.fs.delete_subvolume(s.dir, &copy).unwrap();
        s.world.fs.delete_subvolume(s.dir, &name).unwrap();
        s.world.fs.clean_subvolumes().unwrap();
    }),
    Operation::new("snapshot", "of all", One, |s, m| {
        let name = s.name();
        m.call(s, || s.world.fs.snapshot(s.tree, s.dir, &name, true)).unwrap();
    }),
    Operation::new("clean_subvolumes", "after a snapshot that shares all", One, |s, m| {
        let name = s.name();
        s.world.fs.snapshot(s.tree, s.dir, &name, true).unwrap();
        s.world.fs.delete_subvolume(s.dir, &name).unwrap();
        s.world.fs.sync().unwrap();
        m.call(s, || s.world.fs.clean_subvolumes()).unwrap();
    }),
    Operation::new("delete_subvolume", "", One, |s, m| {
        let (_, name) = s.subvolume();
        m.call(s, || s.world.fs.delete_subvolume(s.dir, &name)).unwrap();
        s.world.fs.clean_subvolumes().unwrap();
    }),
    Operation::new("delete_expected_subvolume", "", One, |s, m| {
        let (id, name) = s.subvolume();
        m.call(s, || s.world.fs.delete_expected_subvolume(s.dir, &name, id)).unwrap();
        s.world.fs.clean_subvolumes().unwrap();
    }),
    Operation::new("delete_subvolume_by_id", "", One, |s, m| {
        let (id, _) = s.subvolume();
        m.call(s, || s.world.fs.delete_subvolume_by_id(id)).unwrap();
        s.world.fs.clean_subvolumes().unwrap();
    }),
    Operation::new("deleted_generation", "", One, |s, m| {
        let (id, name) = s.subvolume();
        s.world.fs.delete_subvolume(s.dir, &name).unwrap();
        m.call(s, || s.world.fs.deleted_generation(id)).unwrap();
        s.world.fs.clean_subvolumes().unwrap();
    }),
    Operation::new("deleted_subvolumes", "", One, |s, m| {
        m.call(s, || s.world.fs.deleted_subvolumes()).unwrap();
    }),
    Operation::new("subvolumes", "", All, |s, m| {
        let _ = m.call(s, || s.world.fs.subvolumes()).unwrap();
    }),
    Operation::new("some_subvolumes", "", One, |s, m| {
        m.call(s, || s.world.fs.some_subvolumes(TreeId(256), 4)).unwrap();
    }),
    Operation::new("subvolume_info", "", One, |s, m| {
        let _ = m.call(s, || s.world.fs.subvolume_info(s.tree)).unwrap();
    }),
    Operation::new("snapshots_of", "", All, |s, m| {
        let uuid = s.world.fs.subvolume_info(s.tree).unwrap().uuid;
        m.call(s, || s.world.fs.snapshots_of(&uuid)).unwrap();
    }),
    Operation::new("subvolumes_by_uuid", "", One, |s, m| {
        let uuid = s.world.fs.subvolume_info(s.snapshot).unwrap().uuid;
        assert_eq!(m.call(s, || s.world.fs.subvolumes_by_uuid(UuidKind::Subvolume, &uuid)).unwrap(), [s.snapshot]);
    }),
    Operation::new("subvolume_path", "", All, |s, m| {
        let (id, _) = s.subvolume();
        m.call(s, || s.world.fs.subvolume_path(id)).unwrap();
    }),
    Operation::new("default_subvolume_id", "", One, |s, m| {
        m.call(s, || s.world.fs.default_subvolume_id()).unwrap();
    }),
    Operation::new("set_default_subvolume", "", One, |s, m| {
        m.call(s, || s.world.fs.set_default_subvolume(s.tree)).unwrap();
    }),
    Operation::new("set_subvolume_readonly", "", One, |s, m| {
        let (id, _) = s.subvolume();
        m.call(s, || s.world.fs.set_subvolume_readonly(id, true)).unwrap();
    }),
    Operation::new("finish_received", "", One, |s, m| {
        let (id, _) = s.subvolume();
        m.call(s, || s.world.fs.finish_received(id, &[7; 16], 1, b"user.mark")).unwrap();
    }),
    Operation::new("new_extents", "", All, |s, m| {
        m.call(s, || s.world.fs.new_extents(s.tree, Generation(0), &mut |_: Ino, _| Ok(()))).unwrap();
    }),
    Operation::new("new_extents", "of the last transaction", One, |s, m| {
        let newest = s.world.fs.superblock().generation();
        m.call(s, || s.world.fs.new_extents(s.tree, newest, &mut |_: Ino, _| Ok(()))).unwrap();
    }),
    Operation::new("repair_uuid_tree", "", All, |s, m| {
        let _ = m.call(s, || s.world.fs.repair_uuid_tree()).unwrap();
    }),
    Operation::new("read_snapshot", "", One, |s, m| {
        m.call(s, || reader(s));
    }),
    Operation::new("search", "", One, |s, m| {
        let reader = reader(s);
        m.call(s, || reader.search(LAST)).unwrap();
    }),
    Operation::new("last_before", "", One, |s, m| {
        let reader = reader(s);
        m.call(s, || reader.last_before(LAST)).unwrap();
    }),
    Operation::new("scan", "", All, |s, m| {
        let reader = reader(s);
        let scan = || reader.scan::<Error>(FIRST, LAST, &mut |_, _| Ok(ControlFlow::Continue(())));
        m.call(s, scan).unwrap();
    }),
    Operation::new("diff", "with nothing", All, |s, m| {
        let reader = reader(s);
        m.call(s, || reader.diff::<Error>(None, &mut |_, _| Ok(ControlFlow::Continue(())))).unwrap();
    }),
    Operation::new("diff", "with itself", One, |s, m| {
        let reader = reader(s);
        m.call(s, || reader.diff::<Error>(Some(&reader), &mut |_, _| Ok(ControlFlow::Continue(())))).unwrap();
    }),
    Operation::new("extent_content", "", One, |s, m| {
        let reader = reader(s);
        let (extent, item) = extent(&reader, s);
        let mut out = vec![0; BLOCK as usize];
        m.call(s, || reader.extent_content(&extent, &item, true, 0, &mut out)).unwrap();
    }),
    Operation::new("stored_content", "", One, |s, m| {
        let reader = reader(s);
        let (extent, _) = extent(&reader, s);
        let mut out = vec![0; extent.disk_len as usize];
        m.call(s, || reader.stored_content(&extent, true, &mut out)).unwrap();
    }),
    Operation::new("sharers", "", One, |s, m| {
        let reader = reader(s);
        let (extent, _) = extent(&reader, s);
        m.call(s, || reader.sharers(extent.at, extent.disk_len, 64)).unwrap();
    }),
];
