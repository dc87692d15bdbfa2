//! Names at which subvolumes are being received.
//!
//! A receiver holds a claim on the name of an incomplete subvolume. The claim says that somebody is at
//! work: a subvolume that is not complete, and that nobody has claimed, is what an interrupted receive has left.

use super::Filesystem;
use crate::inode::InodeId;
use butterfs_sync::{Condvar, Mutex, order};
use std::time::Duration;

/// All claims of a filesystem.
#[derive(Default)]
pub(super) struct Claims {
    held: Mutex<Vec<(InodeId, Vec<u8>)>, { order::CLAIMS }>,
    released: Condvar,
}

/// A claim; dropping it releases the name.
pub struct Claim {
    filesystem: Filesystem,
    directory: InodeId,
    name: Vec<u8>,
}

impl Filesystem {
    /// Claims a name in a directory. `None` when somebody else has it and does not release it within `patience`: a
    /// receive whose connection is lost needs a moment to notice.
    pub fn claim(&self, directory: InodeId, name: &[u8], patience: Duration) -> Option<Claim> {
        let _alarm = self.0.engine.alarm();
        // It waits for others, so it is no operation that a transaction waits for.
        let claims = &self.0.claims;
        let mut held = claims.held.lock();
        let env = self.0.engine.env();
        let deadline = env.uptime() + patience;
        let mut late = false;
        while held.iter().any(|(other, known)| *other == directory && known == name) {
            if late {
                return None;
            }
            late = claims.released.wait_for(&mut held, deadline.saturating_sub(env.uptime()));
        }
        held.push((directory, name.to_vec()));
        Some(Claim { filesystem: self.clone(), directory, name: name.to_vec() })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let claims = &self.filesystem.0.claims;
        let mut held = claims.held.lock();
        if let Some(at) = held.iter().position(|(other, known)| *other == self.directory && *known == self.name) {
            held.swap_remove(at);
        }
        claims.released.notify_all();
    }
}
