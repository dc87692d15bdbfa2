//! Version 1 space caches: files of the root tree that say what is free in a block group. Nothing here updates them, so
//! their content is old. They lie in data groups, which can be emptied only without them; whoever mounts such a
//! filesystem next writes them anew.
//!
//! ```text
//! (-11, 0, group)   the key of the inode
//! (ino, …)          inode and extents, in the root tree
//! ```
//!
//! # Invariants
//! 1. A cache goes in one transaction, its items and what leads to them.

use crate::commit::Engine;
use crate::error::{Error, Result};
use crate::file_extent::FileExtent;
use crate::transaction::{Handle, Reserve};
use butterfs_ondisk::key::{DiskKey, objectid};
use butterfs_ondisk::{Key, KeyType};
use std::ops::ControlFlow;
use zerocopy::FromBytes;

/// Items of one cache, at most: an extent is at least a sector, and a cache has some megabytes at most.
const MOST_ITEMS: u64 = 512;

/// Deletes all caches, and commits if there were any. No handle may be held.
pub fn drop_all(engine: &Engine) -> Result<()> {
    if !engine.has_version_1_caches()? {
        return Ok(());
    }
    let root = &engine.globals().root;
    let key = |group| Key::new(objectid::FREE_SPACE, KeyType(0), group);
    let mut caches = Vec::new();
    root.scan(engine.core(), key(0), key(u64::MAX), &mut |key, payload| {
        let (location, _) = DiskKey::read_from_prefix(payload)
            .map_err(|_| Error::corrupt(format!("the space cache item {key} has {} bytes", payload.len())))?;
        caches.push((key, Key::from(location).objectid));
        Ok(ControlFlow::Continue(()))
    })?;
    for (key, ino) in caches {
        root.preload_range(engine, Key::new(ino, KeyType(0), 0), Key::new(ino, KeyType(255), u64::MAX), 1);
        let handle = engine.start(Reserve::removal(MOST_ITEMS))?;
        drop_one(&handle, key, ino).inspect_err(|error| handle.failed(error))?;
        drop(handle);
        engine.book_what_is_too_much()?;
    }
    engine.commit()?;
    engine.forget_version_1_caches();
    Ok(())
}

fn drop_one(handle: &Handle, key: Key, ino: u64) -> Result<()> {
    let core = handle.core();
    let root = &core.globals().root;
    let sector = u64::from(core.sectorsize());
    let mut visit = |key: Key, payload: &[u8]| {
        if key.kind == KeyType::EXTENT_DATA
            && let Some(data) = FileExtent::parse(key, payload, sector)?.data_ref(root.id(), ino)
        {
            handle.drop_data_ref(data);
        }
        Ok(())
    };
    let (from, to) = (Key::new(ino, KeyType(0), 0), Key::new(ino, KeyType(255), u64::MAX));
    while root.remove_range(handle, from, to, &mut visit)? {}
    root.remove(handle, key)?;
    Ok(())
}
