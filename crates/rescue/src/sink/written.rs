//! The paths that a sink has written: nothing takes their places.

use super::Path;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;

/// Paths by their hashes, which nobody can foresee: 16 bytes each.
#[derive(Debug, Default)]
pub(super) struct Written {
    hashes: RandomState,
    kinds: HashMap<u64, Kind>,
}

/// The kind of thing at a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A directory.
    Folder,
    /// A directory whose attributes nobody has named.
    PlainFolder,
    /// Anything else.
    Other,
}

impl Kind {
    fn is_folder(self) -> bool {
        self != Kind::Other
    }
}

impl Written {
    /// The kind of what was written at a path.
    pub fn kind(&self, path: &Path) -> Option<Kind> {
        self.kinds.get(&self.hash(path)).copied()
    }

    /// Notes a path. Fails if something above it is no directory.
    pub fn add(&mut self, path: &Path, kind: Kind) -> io::Result<()> {
        let above = (1..path.len()).filter_map(|len| self.kind(&path[..len]));
        if above.into_iter().any(|kind| !kind.is_folder()) {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        self.note(path, kind);
        Ok(())
    }

    /// The same without looking at what is above it.
    pub fn note(&mut self, path: &Path, kind: Kind) {
        self.kinds.insert(self.hash(path), kind);
    }

    fn hash(&self, path: &Path) -> u64 {
        let mut hasher = self.hashes.build_hasher();
        for name in path {
            hasher.write(name);
            hasher.write_u8(b'/');
        }
        hasher.finish()
    }
}
