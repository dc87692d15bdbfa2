//! Subvolumes, their trees read as trees, streams.

use super::super::shapes::top;
use super::{Operation, Worker, shown};
use crate::library::ROOT;
use butterfs_fs::file_extent::ExtentKind;
use butterfs_fs::subvolume::uuid_tree::UuidKind;
use butterfs_fs::{Error, Generation, InodeId, Result, TreeId, inode_flags};
use butterfs_ondisk::{Key, KeyType};
use butterfs_send::apply::{self, Engine, Observer};
use butterfs_send::generate::{Job, run as send};
use butterfs_send::wire::Version;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::time::Duration;

pub const OPERATIONS: &[Operation] = &[
    ("create_subvolume", |w| {
        let (folder, name) = (w.folder(), w.fresh());
        w.filesystem.create_subvolume(&ROOT, folder, &name).map(drop)
    }),
    ("snapshot", |w| {
        let (source, name, read_only) = (w.subvolume(), w.fresh(), w.rng.chance(60));
        let made = w.filesystem.snapshot(source, top(), &name, read_only)?;
        w.subvolumes.push(made);
        Ok(())
    }),
    ("snapshot_recorded", |w| {
        let (source, name) = (w.subvolume(), w.fresh());
        w.filesystem.snapshot_recorded(source, top(), &name, true).map(|made| w.subvolumes.push(made))
    }),
    ("delete_subvolume", |w| {
        let name = w.top_name();
        w.filesystem.delete_subvolume(top(), &name).map(drop)
    }),
    ("delete_expected_subvolume", |w| {
        let (name, expected) = (w.top_name(), w.subvolume());
        w.filesystem.delete_expected_subvolume(top(), &name, expected)
    }),
    ("delete_subvolume_by_id", |w| {
        let id = w.subvolume();
        if id == TreeId::FS { Ok(()) } else { w.filesystem.delete_subvolume_by_id(id).map(drop) }
    }),
    ("clean_once", |w| w.filesystem.clean_once().map(drop)),
    ("clean_subvolumes", |w| w.filesystem.clean_subvolumes()),
    ("deleted_subvolumes", |w| w.filesystem.deleted_subvolumes().map(drop)),
    ("deleted_generation", |w| w.filesystem.deleted_generation(w.subvolume()).map(drop)),
    ("subvolumes", |w| {
        for info in w.filesystem.subvolumes()? {
            w.filesystem.subvolume_path(info.id)?;
        }
        Ok(())
    }),
    ("some_subvolumes", |w| w.filesystem.some_subvolumes(TreeId(256), 3).map(drop)),
    ("subvolume_info", |w| w.filesystem.subvolume_info(w.subvolume()).map(drop)),
    ("subvolume_path", |w| w.filesystem.subvolume_path(w.subvolume()).map(drop)),
    ("directory_path", |w| w.filesystem.directory_path(w.object()).map(drop)),
    ("inode_paths", |w| w.filesystem.inode_paths(w.object()).take(100).try_for_each(|path| path.map(drop))),
    ("snapshots_of", |w| {
        let uuid = w.filesystem.subvolume_info(w.subvolume())?.uuid;
        w.filesystem.snapshots_of(&uuid).map(drop)
    }),
    ("subvolumes_by_uuid", |w| {
        let uuid = w.filesystem.subvolume_info(w.subvolume())?.uuid;
        w.filesystem.subvolumes_by_uuid(UuidKind::Subvolume, &uuid)?;
        w.filesystem.subvolumes_by_uuid(UuidKind::Received, &uuid).map(drop)
    }),
    ("default_subvolume_id", |w| w.filesystem.default_subvolume_id().map(drop)),
    ("set_default_subvolume", |w| {
        // And back, because a run opens the top level again.
        w.filesystem.set_default_subvolume(w.subvolume())?;
        w.filesystem.set_default_subvolume(TreeId::FS)
    }),
    ("set_subvolume_readonly", |w| {
        let (id, read_only) = (w.subvolume(), w.rng.chance(50));
        if id == TreeId::FS { Ok(()) } else { w.filesystem.set_subvolume_readonly(id, read_only) }
    }),
    ("repair_uuid_tree", |w| w.filesystem.repair_uuid_tree().map(drop)),
    ("is_in_place_stopped", |w| {
        let _ = w.filesystem.is_in_place_stopped(w.subvolume());
        Ok(())
    }),
    ("new_extents", |w| {
        let (id, since, mut count) = (w.subvolume(), Generation(w.rng.below(20)), 0);
        w.filesystem.new_extents(id, since, &mut |_, _| {
            shown(&mut count);
            Ok(())
        })
    }),
    ("claim", |w| {
        let name = w.fresh();
        drop(w.filesystem.claim(top(), &name, Duration::ZERO));
        Ok(())
    }),
    ("finish_received", |w| {
        let name = w.fresh();
        let id = w.filesystem.create_subvolume(&ROOT, top(), &name)?;
        w.filesystem.finish_received(id, &[7; 16], 3, b"user.short")
    }),
    ("read_snapshot", |w| w.reader().map(drop)),
    ("info", |w| w.reader().map(|reader| drop(reader.info().clone()))),
    ("sectorsize", |w| {
        let _ = w.reader()?.sectorsize();
        Ok(())
    }),
    ("search", |w| w.reader()?.search(Key::new(257, KeyType::INODE_ITEM, 0)).map(drop)),
    ("last_before", |w| w.reader()?.last_before(Key::MAX).map(drop)),
    ("scan", |w| w.reader()?.scan::<Error>(Key::MIN, Key::MAX, &mut |_, _| Ok(ControlFlow::Continue(())))),
    ("diff", |w| {
        let (old, new) = (w.reader()?, w.reader()?);
        new.diff::<Error>(Some(&old), &mut |_, _| Ok(ControlFlow::Continue(())))
    }),
    ("extent_content", |w| contents_of(w, false)),
    ("stored_content", |w| contents_of(w, true)),
    ("sharers", |w| {
        let id = w.object();
        let reader = w.reader()?;
        for extent in w.filesystem.some_extents(id, 0..u64::MAX, 3)? {
            reader.sharers(extent.at, extent.disk_len, 64)?;
        }
        Ok(())
    }),
    ("send", send_one),
    ("receive", |w| {
        if w.stream.is_empty() {
            send_one(w)?;
        }
        let name = w.fresh();
        let folder = w.filesystem.mkdir(&ROOT, top(), &name, 0o755)?.id;
        let mut target = Engine::new(w.filesystem.clone(), folder);
        apply::receive(&w.stream[..], &mut target, &apply::Options::default(), &mut Deaf);
        drop(target);
        w.filesystem.forget(folder, 1);
        Ok(())
    }),
];

fn contents_of(w: &mut Worker<'_>, stored: bool) -> Result<()> {
    const MOST: u64 = 1 << 20;
    let reader = w.reader()?;
    let (tree, ino) = (reader.info().id, w.object().ino);
    let id = InodeId::new(tree, ino);
    let verified = w.filesystem.getattr(id)?.flags & inode_flags::NODATASUM == 0;
    for extent in w.filesystem.some_extents(id, 0..u64::MAX, 4)? {
        // Others may have checksums of a part only.
        if stored && extent.kind == ExtentKind::Regular && extent.compression != 0 {
            reader.stored_content(&extent, verified, &mut vec![0; extent.disk_len.min(MOST) as usize])?;
        }
        let key = Key::new(ino.0, KeyType::EXTENT_DATA, extent.start);
        if let Some((_, payload)) = reader.last_before(key.successor())?.filter(|(found, _)| *found == key && !stored) {
            let len = extent.len.min(MOST) / 4096 * 4096;
            reader.extent_content(&extent, &payload, verified, 0, &mut vec![0; len as usize])?;
        }
    }
    Ok(())
}

/// With a parent or without.
fn send_one(w: &mut Worker<'_>) -> Result<()> {
    let parent = w.rng.chance(50).then(|| w.subvolume());
    let version = *w.rng.pick(&[Version::V1, Version::V2]);
    let mut job = Job { subvolumes: vec![w.subvolume()], parent, version, ..Job::default() };
    job.clone_sources.extend(w.rng.chance(30).then(|| w.subvolume()));
    job.options.compressed_data = version != Version::V1 && w.rng.chance(50);
    let mut sink = Limited(Vec::new());
    let sent = send(w.filesystem, &job, &mut sink, &mut |_| true, &mut |_| {});
    w.stream = sink.0;
    match sent {
        Err(butterfs_send::generate::Error::Filesystem(error)) => Err(error),
        _ => Ok(()),
    }
}

/// A pipe whose reader has gone when it has had enough.
struct Limited(Vec<u8>);

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > 8 << 20 {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Deaf;

impl Observer for Deaf {
    fn error(&mut self, _error: &apply::Error) {}
}
