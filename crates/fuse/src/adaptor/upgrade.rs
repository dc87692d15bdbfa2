//! A mount that was made read-only and becomes writable.
//!
//! The engine decides when it opens a filesystem whether it will write, so it is opened anew. Nothing was changed until
//! then; node ids stay what they are, and the references that the kernel holds are handed over.
//!
//! # Invariants
//! 1. A filesystem that was opened for writing is never replaced.
//! 2. While one takes the other's place no request is being served.

use crate::mount::mountinfo;
use butterfs_fs::Filesystem;
use parking_lot::{RwLock, RwLockReadGuard};
use std::sync::OnceLock;

/// Opens the filesystem once more, for writing. The error is a sentence.
pub type Reopen = Box<dyn Fn() -> Result<Filesystem, String> + Send + Sync>;

/// See the [module](self).
pub struct Engine {
    first: Filesystem,
    writable: OnceLock<Filesystem>,
    reopen: Reopen,
    /// Held shared while a request is served that `first` may serve.
    gate: RwLock<()>,
    device: OnceLock<(u32, u32)>,
}

impl Engine {
    pub fn new(first: Filesystem, reopen: Reopen) -> Engine {
        Engine { first, writable: OnceLock::new(), reopen, gate: RwLock::new(()), device: OnceLock::new() }
    }

    pub fn mounted_as(&self, device: (u32, u32)) {
        // It is known once.
        let _ = self.device.set(device);
    }

    /// The device number of the mount, once it is known.
    pub fn device(&self) -> Option<(u32, u32)> {
        self.device.get().copied()
    }

    pub fn filesystem(&self) -> &Filesystem {
        self.writable.get().unwrap_or(&self.first)
    }

    /// Keeps the filesystem from being replaced.
    pub fn steady(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.is_replaceable().then(|| self.gate.read())
    }

    fn is_replaceable(&self) -> bool {
        self.first.options().read_only && self.writable.get().is_none()
    }

    /// Sees to it that the filesystem is one that was opened for writing.
    pub fn upgrade(&self) -> Result<(), String> {
        if !self.is_replaceable() {
            return Ok(());
        }
        let _gate = self.gate.write();
        if !self.is_replaceable() {
            return Ok(());
        }
        let fresh = (self.reopen)()?;
        fresh.adopt_references(&self.first);
        // Nobody else sets it: the gate is closed.
        let _ = self.writable.set(fresh);
        Ok(())
    }

    /// The same where the kernel's mount has become writable; says whether trying again makes sense.
    pub fn follow_remount(&self) -> bool {
        let Some(device) = self.device.get().filter(|_| self.is_replaceable()) else { return false };
        let is_writable = |mount: &mountinfo::Mount| mount.device == *device && !mount.is_read_only();
        let remounted = mountinfo::all().is_ok_and(|mounts| mounts.iter().any(is_writable));
        remounted && self.upgrade().is_ok()
    }
}
