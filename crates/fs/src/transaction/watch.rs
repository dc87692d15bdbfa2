//! A record of changes of the inodes that are in a log, so that the next log of them need not look for it.
//!
//! Invariants: (1) an inode is watched from the moment it is logged until the transaction ends; (2) a change is noted
//! after it was made, so whoever takes the notes and then looks at the tree misses none; (3) a tree that nobody watches
//! pays for one load of a flag.

use butterfs_ondisk::{Ino, Key, KeyType};
use butterfs_sync::{Mutex, order};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::atomic::{AtomicBool, Ordering};

/// The changes of one inode since the last request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// Extended attributes.
    pub xattrs: bool,
    /// Its own names.
    pub names: bool,
    /// Keys of file extents, as positions in the file.
    pub extents: Vec<u64>,
    /// Keys of directory entries, as indexes.
    pub entries: Vec<u64>,
}

#[derive(Default)]
struct Watched {
    inodes: FxHashSet<u64>,
    /// Of those that have changed: an fsync of a directory watches many that never do.
    changes: FxHashMap<u64, Changes>,
    renamed: Vec<Ino>,
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Watch {
    active: AtomicBool,
    watched: Mutex<Watched, { order::WATCHED }>,
}

impl Watch {
    /// An item was inserted, changed or removed.
    pub fn note(&self, key: Key) {
        if !self.active.load(Ordering::Acquire) || key.kind == KeyType::INODE_ITEM {
            return;
        }
        let Watched { inodes, changes, renamed } = &mut *self.watched.lock();
        if !inodes.contains(&key.objectid) {
            return;
        }
        let changes = changes.entry(key.objectid).or_default();
        match key.kind {
            KeyType::XATTR_ITEM => changes.xattrs = true,
            KeyType::EXTENT_DATA => changes.extents.push(key.offset),
            KeyType::DIR_INDEX => changes.entries.push(key.offset),
            KeyType::INODE_REF | KeyType::INODE_EXTREF if !std::mem::replace(&mut changes.names, true) => {
                renamed.push(Ino(key.objectid));
            }
            _ => {}
        }
    }

    /// Watches an inode from now on.
    pub fn begin(&self, ino: Ino) {
        self.watched.lock().inodes.insert(ino.0);
        self.active.store(true, Ordering::Release);
    }

    /// Takes what changed of an inode, but for its names.
    pub fn take(&self, ino: Ino) -> Changes {
        match self.watched.lock().changes.get_mut(&ino.0) {
            Some(changes) => {
                let names = changes.names;
                std::mem::replace(changes, Changes { names, ..Changes::default() })
            }
            None => Changes::default(),
        }
    }

    /// Takes the change of an inode's extended attributes, if there is one.
    pub fn take_xattrs(&self, ino: Ino) -> bool {
        self.watched.lock().changes.get_mut(&ino.0).is_some_and(|changes| std::mem::take(&mut changes.xattrs))
    }

    /// Puts back what was taken of an inode, for whoever takes it next.
    pub fn put_back(&self, ino: Ino, taken: Changes) {
        let Watched { changes, renamed, .. } = &mut *self.watched.lock();
        let changes = changes.entry(ino.0).or_default();
        changes.xattrs |= taken.xattrs;
        changes.extents.extend(taken.extents);
        changes.entries.extend(taken.entries);
        if taken.names && !std::mem::replace(&mut changes.names, true) {
            renamed.push(ino);
        }
    }

    /// Whether an inode's extended attributes changed.
    pub fn xattrs_changed(&self, ino: Ino) -> bool {
        self.watched.lock().changes.get(&ino.0).is_some_and(|changes| changes.xattrs)
    }

    /// Whether names of watched inodes changed.
    pub fn any_renamed(&self) -> bool {
        self.active.load(Ordering::Acquire) && !self.watched.lock().renamed.is_empty()
    }

    /// Takes the inodes whose names changed.
    pub fn take_renamed(&self) -> Vec<Ino> {
        let Watched { changes, renamed, .. } = &mut *self.watched.lock();
        let taken = std::mem::take(renamed);
        for ino in &taken {
            if let Some(changes) = changes.get_mut(&ino.0) {
                changes.names = false;
            }
        }
        taken
    }

    /// Forgets everything: the transaction ends.
    pub fn end(&self) {
        if self.active.swap(false, Ordering::AcqRel) {
            *self.watched.lock() = Watched::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_watched_is_noted() {
        let watch = Watch::default();
        let key = |ino: u64, kind: KeyType| Key::new(ino, kind, 7);
        watch.note(key(257, KeyType::EXTENT_DATA));
        watch.begin(Ino(257));
        assert_eq!(watch.take(Ino(257)), Changes::default());
        for kind in [KeyType::EXTENT_DATA, KeyType::INODE_REF, KeyType::INODE_EXTREF, KeyType::XATTR_ITEM] {
            watch.note(key(257, kind));
            watch.note(key(258, kind));
        }
        let changes = Changes { xattrs: true, names: true, extents: vec![7], entries: vec![] };
        assert_eq!(watch.take(Ino(257)), changes);
        assert_eq!(watch.take(Ino(258)), Changes::default());
        assert!(watch.any_renamed());
        assert_eq!(watch.take_renamed(), [Ino(257)]);
        assert_eq!((watch.any_renamed(), watch.take(Ino(257))), (false, Changes::default()));
        watch.note(key(257, KeyType::DIR_INDEX));
        watch.put_back(Ino(257), changes);
        watch.put_back(Ino(257), Changes { names: true, ..Changes::default() });
        assert_eq!((watch.take_renamed(), watch.any_renamed()), (vec![Ino(257)], false));
        let all = Changes { xattrs: true, names: false, extents: vec![7], entries: vec![7] };
        assert_eq!(watch.take(Ino(257)), all);
        watch.end();
        watch.note(key(257, KeyType::INODE_REF));
        assert!(!watch.any_renamed());
    }
}
