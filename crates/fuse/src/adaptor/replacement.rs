//! A filesystem that takes the place of one that was opened read-only: because its mount becomes writable, or because
//! another host writes to it and the mount follows.
//!
//! The engine decides when it opens a filesystem whether it will write, and assumes that nobody else does, so it is
//! opened anew. Node ids stay what they are, and the references that the kernel holds are handed over.
//!
//! # Invariants
//! 1. A filesystem that was opened for writing is never replaced.
//! 2. While one takes the other's place no request is being served; but while a state takes the place of an older one
//!    that is only read, the older one may go on reading contents, which can take as long as a store does.
//! 3. A number that is another inode's now, or nobody's, is a node id that leads nowhere before the first request is
//!    served from the newer state.

use super::nodes::Nodes;
use crate::mount::mountinfo;
use arc_swap::{ArcSwap, Guard};
use butterfs_fs::{Filesystem, References};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long a state that is newer waits for a moment without requests before it lets new ones wait.
const PATIENCE: Duration = Duration::from_secs(10);
const TRY_EVERY: Duration = Duration::from_millis(2);
/// After a failed attempt to open the filesystem for writing none is made for so long.
const NO_ATTEMPT: Duration = Duration::from_secs(10);

/// Opens the filesystem once more, for writing. The error is a sentence.
pub type Reopen = Box<dyn Fn() -> Result<Filesystem, String> + Send + Sync>;

/// See the [module](self).
pub struct Engine {
    current: ArcSwap<Filesystem>,
    is_replaceable: AtomicBool,
    reopen: Reopen,
    /// Held shared while a request is served by a filesystem that may be replaced, but for those that read contents.
    gate: RwLock<()>,
    /// Held shared by those.
    reads: RwLock<()>,
    device: OnceLock<(u32, u32)>,
    /// The last attempt to open the filesystem for writing that failed.
    failed: Mutex<Option<Instant>>,
    /// Sentences for the system log.
    messages: Mutex<Vec<String>>,
}

impl Engine {
    pub fn new(first: Filesystem, reopen: Reopen) -> Engine {
        let is_replaceable = AtomicBool::new(first.options().read_only);
        let current = ArcSwap::from_pointee(first);
        Engine {
            current,
            is_replaceable,
            reopen,
            gate: RwLock::new(()),
            reads: RwLock::new(()),
            device: OnceLock::new(),
            failed: Mutex::new(None),
            messages: Mutex::default(),
        }
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

    /// Keeps the filesystem from being replaced; by a newer state, only if the request is none that `reads` contents.
    pub fn steady(&self, reads: bool) -> Option<RwLockReadGuard<'_, ()>> {
        self.is_replaceable().then(|| if reads { self.reads.read() } else { self.gate.read() })
    }

    /// Sentences for the system log, oldest first.
    pub fn take_messages(&self) -> Vec<String> {
        std::mem::take(&mut *self.messages.lock())
    }

    pub fn is_replaceable(&self) -> bool {
        self.is_replaceable.load(Ordering::Acquire)
    }

    /// Sees to it that the filesystem is one that was opened for writing.
    pub fn upgrade(&self, nodes: &Nodes) -> Result<(), String> {
        if !self.is_replaceable() {
            return Ok(());
        }
        let (_reads, _gate) = (self.reads.write(), self.gate.write());
        if !self.is_replaceable() {
            return Ok(());
        }
        let fresh = (self.reopen)()?;
        self.replace(fresh, &References::default(), nodes)?;
        self.is_replaceable.store(false, Ordering::Release);
        Ok(())
    }

    /// Shows a newer state of a filesystem that is only read, unless it has become writable. Returns the node ids that
    /// the kernel knows, also those that lead nowhere any more.
    pub fn show(&self, newer: Filesystem, nodes: &Nodes) -> Result<Vec<u64>, String> {
        // Most of the work, while requests are served.
        let compared = newer.compare_references(&self.filesystem()).map_err(|error| error.to_string())?;
        let end = Instant::now() + PATIENCE;
        let _gate = loop {
            match self.gate.try_write() {
                Some(gate) => break gate,
                None if Instant::now() > end => break self.gate.write(),
                None => std::thread::sleep(TRY_EVERY),
            }
        };
        if self.is_replaceable() { self.replace(newer, &compared, nodes) } else { Ok(Vec::new()) }
    }

    /// The gate is closed.
    fn replace(&self, fresh: Filesystem, compared: &References, nodes: &Nodes) -> Result<Vec<u64>, String> {
        let adopted = fresh.adopt_references(&self.filesystem(), compared).map_err(|error| error.to_string())?;
        let known = adopted.iter().map(|(id, same)| if same { nodes.node(id) } else { nodes.revoke(id) }).collect();
        self.current.store(Arc::new(fresh));
        Ok(known)
    }

    /// The same where the kernel's mount has become writable; says whether trying again makes sense.
    pub fn follow_remount(&self, nodes: &Nodes) -> bool {
        let Some(device) = self.device.get().filter(|_| self.is_replaceable()) else { return false };
        let is_writable = |mount: &mountinfo::Mount| mount.device == *device && !mount.is_read_only();
        let remounted = mountinfo::all().is_ok_and(|mounts| mounts.iter().any(is_writable));
        if !remounted || self.failed.lock().is_some_and(|failed| failed.elapsed() < NO_ATTEMPT) {
            return false;
        }
        let upgraded = self.upgrade(nodes);
        if let Err(why) = &upgraded {
            *self.failed.lock() = Some(Instant::now());
            self.messages.lock().push(format!("the mount is writable, and the filesystem is not: {why}"));
        }
        upgraded.is_ok()
    }
}
