//! A filesystem as its users see it: opened, worked in by inode, synced, closed.
//!
//! Names and inodes are in [`namespace`](self), contents in `data`. Everything is safe to call from many threads.
//! Dropping a filesystem without [`Filesystem::shutdown`] is a power cut.

mod balance;
mod chunk_migration;
mod claims;
mod courtesy;
mod data;
mod devices;
mod discards;
mod durability;
#[cfg(test)]
mod durability_tests;
mod exclusion;
mod exclusive_operation;
#[cfg(test)]
mod exclusive_tests;
mod listing;
mod memory;
mod namespace;
mod receiving;
#[cfg(test)]
mod referrer_tests;
mod relocate;
mod replace;
mod reports;
mod resync;
mod scrub;
mod snapshot_reader;
mod statfs;
mod steps;
mod subvolume_paths;
mod subvolume_root;
#[cfg(test)]
mod subvolume_tests;
mod subvolumes;
mod together;
mod usage;

pub use balance::{BalanceEnd, BalanceProgress, BalanceRun, BalanceState, BalanceStatus};
pub use butterfs_volume::SourceReads;
pub use claims::Claim;
pub use devices::{NewSize, OldContent, RemovedDevice, Resized, Storage};
pub use discards::Trim;
pub use durability::GoingDown;
pub use exclusive_operation::{Exclusive, ExclusiveOperation, OperationProgress, watched};
pub use listing::{Listed, Listing, ReferrersOf};
pub use memory::MemoryHeld;
pub use replace::{ReplaceRequest, ReplaceStatus, Replacement};
pub use snapshot_reader::SnapshotReader;
pub use statfs::{DeviceCondition, StatFs};
pub use together::Together;
pub use usage::{ChunkUsage, DeviceUsage, SpaceUsage};

use crate::commit::Engine;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::file::{Files, WriteBackThread};
use crate::inode::{InodeCache, InodeId};
use crate::mount;
use crate::namespace::Namespace;
use crate::options::Options;
use crate::subvolume::Snapshots;
use crate::tree_log::Logs;
use butterfs_device::BlockDevice;
use butterfs_ondisk::superblock::Superblock;
use butterfs_ondisk::{Ino, TreeId};
use butterfs_sync::{Mutex, order};
use exclusion::{Exclusion, Operation};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// Inodes that are kept in memory although nobody uses them.
const UNUSED_INODES: usize = 32_768;

pub(crate) struct Inner {
    exclusion: Exclusion,
    pub engine: Arc<Engine>,
    pub inodes: Arc<InodeCache>,
    pub names: Namespace,
    pub files: Arc<Files>,
    pub logs: Arc<Logs>,
    write_back_thread: Mutex<WriteBackThread, { order::WRITE_BACK_THREAD }>,
    root: OnceLock<InodeId>,
    notes: Vec<String>,
    stopping: AtomicBool,
    timer: Mutex<Option<JoinHandle<()>>, { order::THREADS }>,
    cleaner: Mutex<Option<JoinHandle<()>>, { order::THREADS }>,
    discarder: Mutex<Option<JoinHandle<()>>, { order::THREADS }>,
    /// One at a time drops deleted subvolumes or repairs the UUID tree.
    upkeep: Mutex<(), { order::UPKEEP }>,
    snapshots: Snapshots,
    told: Mutex<reports::Told, { order::TOLD }>,
    claims: claims::Claims,
    scrubs: scrub::Scrubs,
    exclusive_operations: Arc<exclusive_operation::ExclusiveOperations>,
    balance: Arc<balance::Balance>,
    /// The device of the filesystem that has sprouted from this one.
    sprouted: OnceLock<Arc<dyn BlockDevice>>,
}

/// The threads in the background hold the devices while they wait, and would wait for ever.
impl Drop for Inner {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.engine.background_requests.request_commit();
        self.engine.background_requests.request_cleaning();
        self.engine.discards.wake();
        for thread in [&self.timer, &self.cleaner, &self.discarder, &self.balance.thread] {
            let thread = thread.lock().take();
            // One of them may be the last that held the filesystem.
            if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
                let _ = thread.join();
            }
        }
        self.write_back_thread.lock().stop();
        // Changed inodes hold the engine, which holds them.
        self.engine.dirty_inodes.forget_all();
    }
}

/// See the [module](self). Clones share one filesystem.
#[derive(Clone)]
pub struct Filesystem(pub(crate) Arc<Inner>);

impl Filesystem {
    /// Opens the filesystem on `devices`.
    pub fn open(devices: Vec<Arc<dyn BlockDevice>>, options: Options, env: Env) -> Result<Filesystem> {
        let filesystem = Filesystem::from(mount::open(devices, options, env)?);
        let root = filesystem.find_subvolume(&filesystem.options().subvolume)?;
        filesystem.0.root.get_or_init(|| root);
        filesystem.prepare_writing()?;
        filesystem.start_timer();
        filesystem.start_cleaner();
        filesystem.take_over_balance()?;
        filesystem.start_discarder();
        if filesystem.0.engine.env().background()
            && let Some(replacement) = filesystem.continue_replace()?
        {
            replacement.run_in_background()?;
        }
        Ok(filesystem)
    }

    /// Without anything that runs in the background.
    fn from((engine, notes): (Engine, Vec<String>)) -> Filesystem {
        let engine = Arc::new(engine);
        let inodes = Arc::new(InodeCache::new(Arc::clone(&engine), UNUSED_INODES));
        let files = Arc::new(Files::new(Arc::clone(&engine)));
        Filesystem(Arc::new(Inner {
            exclusion: Exclusion::new(),
            logs: Logs::new(engine.core()),
            engine,
            write_back_thread: Mutex::new(WriteBackThread::start(&files)),
            names: Namespace::new(Arc::clone(&inodes), Arc::clone(&files)),
            files,
            inodes,
            root: OnceLock::new(),
            notes,
            stopping: AtomicBool::new(false),
            timer: Mutex::new(None),
            cleaner: Mutex::new(None),
            discarder: Mutex::new(None),
            upkeep: Mutex::new(()),
            snapshots: Snapshots::default(),
            told: Mutex::default(),
            claims: claims::Claims::default(),
            scrubs: scrub::Scrubs::default(),
            exclusive_operations: Arc::default(),
            balance: Arc::default(),
            sprouted: OnceLock::new(),
        }))
    }

    /// Everything that can be called from outside begins so.
    fn begin(&self) -> Operation<'_> {
        self.0.exclusion.begin(&self.0.engine)
    }

    /// Whether the filesystem on `devices` has a log, which opening it replays.
    pub fn has_log(devices: Vec<Arc<dyn BlockDevice>>) -> Result<bool> {
        mount::has_log(devices)
    }

    fn prepare_writing(&self) -> Result<()> {
        if self.0.engine.is_read_only() {
            return Ok(());
        }
        self.0.engine.number_trees()?;
        self.0.names.enter_subvolume(self.root().tree)
    }

    /// The root directory of the subvolume that is shown.
    pub fn root(&self) -> InodeId {
        self.0.root.get().copied().unwrap_or(InodeId { tree: TreeId::FS, ino: Ino::ROOT_DIR })
    }

    /// Messages to the user about the way the filesystem was opened.
    pub fn notes(&self) -> &[String] {
        &self.0.notes
    }

    /// How it was opened.
    pub fn options(&self) -> &Options {
        self.0.engine.options()
    }

    /// The present places of all chunks of the logical space.
    pub fn chunks(&self) -> Arc<butterfs_volume::ChunkMap> {
        self.0.engine.volume().chunk_map()
    }

    /// The last committed superblock.
    pub fn superblock(&self) -> Superblock {
        self.0.engine.superblock()
    }

    /// Nothing is written any more, because of `reason`: for whoever serves the filesystem and has panicked himself.
    pub fn abort(&self, reason: &str) {
        self.0.engine.abort(&Error::corrupt(reason));
    }

    /// A switch that makes every later write fail without taking a lock, superblocks included: for the panic hook of a
    /// program that serves the filesystem.
    pub fn halt_switch(&self) -> Arc<AtomicBool> {
        self.0.engine.halt_switch()
    }

    /// Whether nothing may be written now.
    pub fn is_read_only(&self) -> bool {
        self.0.engine.is_read_only()
    }

    /// Forbids writing after making everything durable, or allows it again. `EBUSY` while a device is added, removed,
    /// replaced or gets another size.
    pub fn set_read_only(&self, read_only: bool) -> Result<()> {
        let _alarm = self.0.engine.alarm();
        if read_only && !self.is_read_only() {
            self.must_not_change_devices()?;
            // It is resumed when writing is allowed again.
            let _ = self.balance_pause();
        }
        if read_only {
            // As in the kernel. Its threads have to get in once more before they end.
            self.stop_scrub();
        }
        let _operation = self.begin();
        if read_only && !self.is_read_only() {
            self.sync()?;
        }
        self.0.engine.set_read_only(read_only || self.options().read_only);
        // Such work may have begun meanwhile.
        if read_only && let Err(error) = self.must_not_change_devices() {
            self.0.engine.set_read_only(self.options().read_only);
            self.resume_left_balance();
            return Err(error);
        }
        self.resume_left_balance();
        Ok(())
    }

    /// Makes everything durable and stops. Nothing may be called afterwards but reading.
    pub fn shutdown(&self) -> Result<()> {
        let _alarm = self.0.engine.alarm();
        if self.0.exclusion.is_inside() {
            self.0.engine.must_not_be_together()?;
        }
        self.0.stopping.store(true, Ordering::Relaxed);
        self.stop_scrub();
        self.0.engine.background_requests.request_commit();
        self.0.engine.background_requests.request_cleaning();
        self.0.engine.discards.wake();
        if self.0.engine.env().background() {
            self.0.balance.wait_until_stopped();
        }
        for thread in [&self.0.timer, &self.0.cleaner, &self.0.discarder, &self.0.balance.thread] {
            if let Some(thread) = thread.lock().take() {
                let _ = thread.join();
            }
        }
        self.wait_for_chunk_work();
        // Not earlier: the threads have to get in once more before they end.
        let _operation = self.begin();
        if self.is_read_only() {
            return Ok(());
        }
        self.0.write_back_thread.lock().stop();
        self.0.inodes.delete_orphans();
        let synced = self.sync();
        if let Some(aborted) = self.0.engine.aborted() {
            return synced.and(Err(aborted));
        }
        self.0.engine.commit_unused_groups()?;
        // The secondary superblocks of the last commit wait for a flush.
        self.0.engine.volume().flush()?;
        self.discard_last();
        self.0.engine.set_read_only(true);
        // Only data of files could not be written, and is lost now.
        synced
    }

    /// Commits every `commit=` seconds, and when memory asks for it.
    fn start_timer(&self) {
        if self.is_read_only() || !self.0.engine.env().background() {
            return;
        }
        let weak = Arc::downgrade(&self.0);
        let interval = Duration::from_secs(self.options().commit_interval_secs.max(1));
        let work = move || {
            while let Some(inner) = weak.upgrade() {
                let engine = Arc::clone(&inner.engine);
                let _alarm = engine.alarm();
                drop(inner);
                let timed_out = engine.background_requests.wait_for_commit(engine.env(), interval);
                let Some(inner) = weak.upgrade() else { return };
                if inner.stopping.load(Ordering::Relaxed) {
                    return;
                }
                let filesystem = Filesystem(inner);
                // An error has stopped the filesystem, and whoever writes next is told.
                let _operation = filesystem.begin();
                let _ = if timed_out { filesystem.sync_and_tidy() } else { filesystem.commit() };
            }
        };
        let spawned = std::thread::Builder::new().name("commit".to_owned()).spawn(work);
        *self.0.timer.lock() = spawned.ok();
    }
}
