//! The engine as what steps are done to.
//!
//! Invariant: a step that commits holds nothing of this while it runs, because the steps of other threads run inside
//! it.

use crate::maintenance::{Maintenance, Slots, is_refusal};
use crate::members::Watch;
use crate::step::Step;
use butterfs_device::BlockDevice;
use butterfs_fs::{Error, Filesystem, InodeId, Trim};
use butterfs_testkit::library::{Library, ROOT};
use butterfs_testkit::operation::{Object, Op, OperationTarget, Outcome, RelPath, Reply};
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// See the [module](self). Clones share it.
#[derive(Clone)]
pub struct Subject {
    filesystem: Filesystem,
    library: Rc<RefCell<Library>>,
    watch: Option<Watch>,
    slots: Rc<Slots>,
    /// Work on chunks and devices that came to its end.
    maintained: Rc<Cell<usize>>,
    /// Why such work failed.
    failure: Rc<RefCell<String>>,
}

impl Subject {
    /// An open filesystem.
    pub fn new(filesystem: &Filesystem) -> Subject {
        let library = Rc::new(RefCell::new(Library::new(filesystem)));
        let (slots, maintained, failure) = Default::default();
        Subject { filesystem: filesystem.clone(), library, watch: None, slots, maintained, failure }
    }

    /// The same, where `watch` learns of resyncs.
    pub fn watched(self, watch: Option<Watch>) -> Subject {
        Subject { watch, ..self }
    }

    /// The same, where devices may come to and go from these slots.
    pub fn with_slots(self, devices: Vec<Arc<dyn BlockDevice>>) -> Subject {
        Subject { slots: Rc::new(Slots::new(devices)), ..self }
    }

    /// Whether a balance runs or is paused.
    pub fn is_balancing(&self) -> bool {
        self.filesystem.balance_status().is_some()
    }

    /// Whether a step can begin without waiting for a commit.
    pub fn has_room_to_start(&self) -> bool {
        self.filesystem.has_room_to_start()
    }

    /// How much work on chunks and devices came to its end.
    pub fn maintained(&self) -> usize {
        self.maintained.get()
    }

    fn maintain(&self, what: &Maintenance) -> Outcome {
        match self.slots.perform(&self.filesystem, what) {
            Ok(()) => self.maintained.set(self.maintained.get() + 1),
            Err(error) if is_refusal(&error) => {}
            Err(error) => {
                *self.failure.borrow_mut() = error.to_string();
                return done(Err(error));
            }
        }
        Ok(Reply::Done)
    }

    /// Brings stale devices up to date.
    pub fn resync(&self) -> butterfs_fs::Result<()> {
        if self.filesystem.resync()? {
            self.watch.iter().for_each(Watch::resynced);
        }
        Ok(())
    }

    /// The sentence of the last error of an operation.
    pub fn said(&self) -> String {
        let failure = self.failure.take();
        if failure.is_empty() { self.library.borrow().said() } else { failure }
    }

    fn find(&self, path: &RelPath) -> Result<InodeId, Errno> {
        self.library.borrow().find(path)
    }

    /// The inode number at a path.
    pub fn number(&self, path: &RelPath) -> Option<u64> {
        self.find(path).ok().map(|id| id.ino.0)
    }

    fn find_object(&self, object: &Object) -> Result<InodeId, Errno> {
        self.library.borrow().find_object(object)
    }

    /// The folder of a path, and the last name.
    fn resolve<'a>(&self, path: &'a RelPath) -> Result<(InodeId, &'a [u8]), Errno> {
        let (folder, name): (RelPath, &'a [u8]) = path.split().ok_or(Errno::BUSY)?;
        Ok((self.find(&folder)?, name))
    }

    /// Does a step.
    pub fn apply(&self, step: &Step) -> Outcome {
        let fs = &self.filesystem;
        match step {
            Step::Op(Op::Fsync { object, data_only }) => done(fs.fsync(self.find_object(object)?, *data_only)),
            Step::Op(Op::Sync) => done(fs.sync()),
            Step::Op(op) => self.library.borrow_mut().apply(op),
            Step::Subvolume { path } => {
                let (folder, name) = self.resolve(path)?;
                done(fs.create_subvolume(&ROOT, folder, name).map(drop))
            }
            Step::Snapshot { from, to, read_only } => {
                let source = self.find(from)?.tree;
                let (folder, name) = self.resolve(to)?;
                done(fs.snapshot(source, folder, name, *read_only).map(drop))
            }
            Step::DeleteSubvolume { path } => {
                let (folder, name) = self.resolve(path)?;
                done(fs.delete_subvolume(folder, name).map(drop))
            }
            Step::LinkHandle { handle, to } => {
                let file = self.find_object(&Object::Handle(*handle))?;
                let (folder, name) = self.resolve(to)?;
                done(fs.link(file, folder, name).map(|attr| fs.forget(attr.id, 1)))
            }
            Step::CloneRange { from, from_offset, to, to_offset, len } => {
                let (from, to) = (self.find(from)?, self.find(to)?);
                done(fs.clone_range((from, *from_offset), (to, *to_offset), *len))
            }
            Step::WriteBack { object } => done(fs.write_back(self.find_object(object)?)),
            Step::Commit => done(fs.commit_recorded()),
            Step::Clean => done(fs.clean_once().map(drop)),
            Step::Resync => done(self.resync()),
            Step::Maintain(what) => self.maintain(what),
            Step::Trim => done(fs.trim(&Trim::ALL, &|| false).map(drop)),
            Step::DiscardFreed => {
                fs.discard_freed();
                Ok(Reply::Done)
            }
            Step::Together { steps, fails } => done(fs.transaction(|_| {
                for step in steps {
                    // Each is one that the model does.
                    let outcome = self.apply(step);
                    if outcome == Err(Errno::NOSPC) {
                        return Err(Error::refused(butterfs_fs::Errno::ENOSPC, "there is no room"));
                    }
                    // Whether a device may fail is for the caller to say.
                    if outcome == Err(Errno::IO) {
                        return Err(Error::refused(butterfs_fs::Errno::EIO, "a device has failed"));
                    }
                    assert!(outcome.is_ok(), "{step:?} fails within a transaction: {outcome:?}, {}", self.said());
                }
                if *fails { Err(Error::refused(butterfs_fs::Errno::EINTR, "on purpose")) } else { Ok(()) }
            })),
        }
    }
}

fn done(result: Result<(), Error>) -> Outcome {
    match result {
        Ok(()) => Ok(Reply::Done),
        Err(error) => Err(Errno::from_raw_os_error(error.errno().0)),
    }
}
