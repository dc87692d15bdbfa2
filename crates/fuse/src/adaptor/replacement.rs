//! A filesystem that takes the place of one that was opened read-only: because its mount becomes writable, or because
//! another host writes to it and the mount follows.
//!
//! The engine decides when it opens a filesystem whether it will write, and assumes that nobody else does, so it is
//! opened anew. Node ids stay what they are, and the references that the kernel holds are handed over.
//!
//! # Invariants
//! 1. A filesystem that was opened for writing is never replaced.
//! 2. While one takes the other's place no request is being served.

use crate::mount::mountinfo;
use arc_swap::{ArcSwap, Guard};
use butterfs_fs::{Filesystem, InodeId};
use parking_lot::{RwLock, RwLockReadGuard};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Opens the filesystem once more, for writing. The error is a sentence.
pub type Reopen = Box<dyn Fn() -> Result<Filesystem, String> + Send + Sync>;

/// See the [module](self).
pub struct Engine {
    current: ArcSwap<Filesystem>,
    is_replaceable: AtomicBool,
    reopen: Reopen,
    /// Held shared while a request is served by a filesystem that may be replaced.
    gate: RwLock<()>,
    device: OnceLock<(u32, u32)>,
}

impl Engine {
    pub fn new(first: Filesystem, reopen: Reopen) -> Engine {
        let is_replaceable = AtomicBool::new(first.options().read_only);
        let current = ArcSwap::from_pointee(first);
        Engine { current, is_replaceable, reopen, gate: RwLock::new(()), device: OnceLock::new() }
    }

    pub fn mounted_as(&self, device: (u32, u32)) {
        // It is known once.
        let _ = self.device.set(device);
    }

    /// The device number of the mount, once it is known.
    pub fn device(&self) -> Option<(u32, u32)> {
        self.device.get().copied()
    }

    pub fn filesystem(&self) -> Guard<Arc<Filesystem>> {
        self.current.load()
    }

    /// Keeps the filesystem from being replaced.
    pub fn steady(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.is_replaceable().then(|| self.gate.read())
    }

    pub fn is_replaceable(&self) -> bool {
        self.is_replaceable.load(Ordering::Acquire)
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
        self.replace(fresh);
        self.is_replaceable.store(false, Ordering::Release);
        Ok(())
    }

    /// Shows a newer state of a filesystem that is only read, unless it has become writable. Returns the inodes that
    /// the kernel knows.
    pub fn show(&self, newer: Filesystem) -> Vec<InodeId> {
        let _gate = self.gate.write();
        if self.is_replaceable() { self.replace(newer) } else { Vec::new() }
    }

    /// The gate is closed.
    fn replace(&self, fresh: Filesystem) -> Vec<InodeId> {
        let known = fresh.adopt_references(&self.filesystem());
        self.current.store(Arc::new(fresh));
        known
    }

    /// The same where the kernel's mount has become writable; says whether trying again makes sense.
    pub fn follow_remount(&self) -> bool {
        let Some(device) = self.device.get().filter(|_| self.is_replaceable()) else { return false };
        let is_writable = |mount: &mountinfo::Mount| mount.device == *device && !mount.is_read_only();
        let remounted = mountinfo::all().is_ok_and(|mounts| mounts.iter().any(is_writable));
        remounted && self.upgrade().is_ok()
    }
}
