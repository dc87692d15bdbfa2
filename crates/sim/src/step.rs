//! One step of a run as data: an operation, or a piece of the work that a mounted filesystem does in the background.

use crate::maintenance::Maintenance;
use butterfs_testkit::model::ModelFs;
use butterfs_testkit::names::NAME_MAX;
use butterfs_testkit::operation::{Object, Op, OperationTarget, Outcome, RelPath, RenameHow, Reply};
use butterfs_testkit::promise::Promise;
use rustix::io::Errno;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Step {
    Op(Op),
    Subvolume {
        path: RelPath,
    },
    Snapshot {
        from: RelPath,
        to: RelPath,
        read_only: bool,
    },
    DeleteSubvolume {
        path: RelPath,
    },
    /// A name for a file that an `O_TMPFILE` made.
    LinkHandle {
        handle: u32,
        to: RelPath,
    },
    /// Sharing of whole extents (`FICLONERANGE`).
    CloneRange {
        from: RelPath,
        from_offset: u64,
        to: RelPath,
        to_offset: u64,
        len: u64,
    },
    /// Memory pressure writes a file back.
    WriteBack {
        object: Object,
    },
    /// Memory pressure has what is recorded committed.
    Commit,
    /// The cleaner does one step.
    Clean,
    /// Stale devices are brought up to date.
    Resync,
    /// Work on chunks and devices.
    Maintain(Maintenance),
    /// Free space is discarded (`fstrim`).
    Trim,
    /// The background discards what was freed.
    DiscardFreed,
    /// Several steps become durable together, or are taken back.
    Together {
        steps: Vec<Step>,
        fails: bool,
    },
}

/// The error of a transaction of several steps that is to fail.
pub const TAKEN_BACK: Errno = Errno::INTR;

/// A step, and what other threads do while its commits write.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Planned {
    pub step: Step,
    pub meanwhile: Vec<Step>,
}

impl Step {
    /// Whether the step is there to commit.
    pub fn commits(&self) -> bool {
        let background = matches!(self, Step::Commit | Step::Resync);
        background || matches!(self, Step::Op(Op::Sync | Op::Fsync { .. }) | Step::Snapshot { .. })
    }

    /// Whether the step opens, uses or closes a handle.
    pub fn is_about_handles(&self) -> bool {
        match self {
            Step::Op(op) => matches!(op, Op::Open { .. } | Op::Close { .. } | Op::Tmpfile { .. }),
            step => matches!(
                step,
                Step::LinkHandle { .. } | Step::Clean | Step::Trim | Step::DiscardFreed | Step::Maintain(_)
            ),
        }
    }

    /// The durability that the step guarantees when it returns; asked before it is applied to `model`.
    pub fn promise(&self, model: &ModelFs) -> Option<Promise> {
        match self {
            Step::Op(op) => Promise::of(op, model),
            Step::Snapshot { .. } => Some(Promise::All),
            Step::Commit => Some(Promise::Names),
            Step::Together { .. } => Some(Promise::All),
            _ => None,
        }
    }

    /// Does the step to the model.
    pub fn apply(&self, model: &mut ModelFs) -> Outcome {
        let done = |answer: Result<(), Errno>| answer.map(|()| Reply::Done);
        match self {
            Step::Op(op) => model.apply(op),
            Step::Subvolume { path } => done(model.create_subvolume(path)),
            Step::Snapshot { from, to, read_only } => done(model.snapshot(from, to, *read_only)),
            Step::DeleteSubvolume { path } => done(model.delete_subvolume(path)),
            Step::LinkHandle { handle, to } => done(model.link_handle(*handle, to)),
            Step::CloneRange { from, from_offset, to, to_offset, len } => {
                let (from, to) = (from.clone(), to.clone());
                let copy = Op::CopyRange { from, from_offset: *from_offset, to, to_offset: *to_offset, len: *len };
                model.apply(&copy).map(|_| Reply::Done)
            }
            Step::WriteBack { object } => model.find(object).map(|_| Reply::Done).ok_or(Errno::NOENT),
            Step::Commit | Step::Clean | Step::Resync | Step::Trim | Step::DiscardFreed | Step::Maintain(_) => {
                Ok(Reply::Done)
            }
            Step::Together { fails: true, .. } => Err(TAKEN_BACK),
            Step::Together { steps, fails: false } => {
                steps.iter().for_each(|step| drop(step.apply(model)));
                Ok(Reply::Done)
            }
        }
    }

    /// Whether the model knows what comes of the step: it leaves alone what is read-only, placeholders, and what only
    /// works within one subvolume.
    pub fn is_certain(&self, model: &ModelFs) -> bool {
        match self {
            Step::Op(op) => op_is_certain(op, model),
            Step::Subvolume { path } => free(model, path),
            Step::Snapshot { from, to, .. } => model.resolve(from).is_ok() && free(model, to),
            Step::DeleteSubvolume { path } => is_deletable(model, path),
            Step::LinkHandle { to, .. } => free(model, to),
            Step::CloneRange { from, to, .. } => !frozen(model, from) && !frozen(model, to),
            Step::WriteBack { object } => model.find(object).is_some(),
            Step::Commit | Step::Clean | Step::Resync | Step::Trim | Step::DiscardFreed | Step::Maintain(_) => true,
            Step::Together { steps, .. } => {
                let mut model = model.clone();
                steps.iter().all(|step| step.is_certain(&model) && step.apply(&mut model).is_ok())
            }
        }
    }
}

/// Whether a path, or the folder that would hold it, is read-only, a placeholder or the inside of one.
fn frozen(model: &ModelFs, path: &RelPath) -> bool {
    let above = path.split().map(|(folder, _)| folder);
    [Some(path.clone()), above]
        .into_iter()
        .flatten()
        .any(|path| model.resolve(&path).is_ok_and(|id| model.is_read_only(id) || model.node(id).placeholder))
}

/// Nothing is at `path`, and at most one thing is wrong with it: which of two errors wins is not known.
fn free(model: &ModelFs, path: &RelPath) -> bool {
    let is_folder = |path: &RelPath| model.resolve(path).is_ok_and(|id| model.folder(id).is_ok());
    let fits = path.split().is_none_or(|(folder, name)| name.len() <= NAME_MAX || is_folder(&folder));
    fits && !frozen(model, path) && model.resolve(path).is_err()
}

fn is_root(model: &ModelFs, path: &RelPath) -> bool {
    model.resolve(path).is_ok_and(|id| model.is_subvolume(id))
}

fn is_deletable(model: &ModelFs, path: &RelPath) -> bool {
    let Some((folder, _)) = path.split() else { return false };
    let found = model.resolve(path).ok().filter(|id| model.is_subvolume(*id));
    found.is_some_and(|id| !model.is_in_use(id)) && !frozen(model, &folder)
}

/// The subvolume in which a name is or would be.
fn holder(model: &ModelFs, path: &RelPath) -> Option<u64> {
    let (folder, _) = path.split()?;
    model.resolve(&folder).ok().map(|id| model.node(id).subvolume)
}

fn op_is_certain(op: &Op, model: &ModelFs) -> bool {
    let thawed = |object: &Object| match object {
        Object::Path(path) => !frozen(model, path),
        Object::Handle(_) => model.find(object).is_none_or(|id| !model.is_read_only(id)),
    };
    match op {
        Op::Link { from, to } => {
            let within = holder(model, from) == holder(model, to) && !is_root(model, from);
            within && !frozen(model, from) && !frozen(model, to)
        }
        Op::Rename { from, to, how } => {
            let within = holder(model, from) == holder(model, to) && !is_root(model, to);
            let simple = !is_root(model, from) || (*how == RenameHow::Replace && model.resolve(to).is_err());
            within && simple && !frozen(model, from) && !frozen(model, to)
        }
        Op::Rmdir { path } => !is_root(model, path) && !frozen(model, path),
        Op::Create { path, .. }
        | Op::Mkdir { path, .. }
        | Op::Mknod { path, .. }
        | Op::Symlink { path, .. }
        | Op::Unlink { path }
        | Op::Open { path, .. }
        | Op::Chown { path, .. }
        | Op::SetTimes { path, .. }
        | Op::GetXattr { path, .. }
        | Op::SetXattr { path, .. }
        | Op::RemoveXattr { path, .. }
        | Op::ListXattrs { path } => !frozen(model, path),
        Op::Tmpfile { folder, .. } => !frozen(model, folder),
        Op::Write { object, .. }
        | Op::Truncate { object, .. }
        | Op::Allocate { object, .. }
        | Op::Chmod { object, .. } => thawed(object),
        Op::CopyRange { from, to, .. } => !frozen(model, from) && !frozen(model, to),
        Op::Stat { object: Object::Path(path) } | Op::Fsync { object: Object::Path(path), .. } => {
            model.resolve(path).is_ok_and(|id| !model.node(id).placeholder)
        }
        Op::Close { .. }
        | Op::Read { .. }
        | Op::Stat { .. }
        | Op::ReadFolder { .. }
        | Op::ReadLink { .. }
        | Op::Fsync { .. }
        | Op::Sync => true,
    }
}
