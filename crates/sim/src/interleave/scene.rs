//! The subject of the operations: a filesystem with a few objects, half of it committed and half in memory, and the
//! model of it.

use super::device::SlowDevice;
use crate::explore;
use crate::meanwhile::environment;
use crate::plan::Plan;
use crate::state;
use crate::step::Step;
use crate::subject::Subject;
use butterfs_device::{BlockDevice, MemoryDevice, Recorder};
use butterfs_fs::env::{Source, Time};
use butterfs_fs::options::Canary;
use butterfs_fs::{Env, Filesystem, InodeId, inode_flags};
use butterfs_testkit::library::{Library, ROOT};
use butterfs_testkit::model::{Body, ModelFs, NodeId};
use butterfs_testkit::operation::{AllocateHow, Content, Object, Op, Outcome, RelPath, Text};
use butterfs_testkit::promise::ModelState;
use butterfs_testkit::promise::logged::Numbers;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Everything that operations name. `A/foo` has a second name, `B/link`; `A/twin` has the content of `A/foo`; `S` and
/// `T` are subvolumes, `R` is a read-only snapshot of `S`; `S/pre` is preallocated and `S/nocow` not copied on write.
pub const NAMED: &[&str] =
    &["", "A", "A/C", "B", "A/foo", "A/bar", "A/twin", "A/sym", "S", "S/pre", "S/nocow", "S/gone", "T", "T/inner", "R"];

/// Bytes of each file.
pub const FILE_BYTES: usize = 20_000;

/// A filesystem on which runs begin: its disk, and what it shows.
pub struct Base {
    /// How it is opened and checked.
    pub plan: Plan,
    /// Committed and closed.
    pub disk: MemoryDevice,
    /// The committed state, and then the state after each operation that is in memory only.
    pub states: Vec<Arc<ModelState>>,
    /// The numbers of the inodes on it.
    pub numbers: Numbers,
    /// The nodes of what is [`NAMED`].
    pub named: Arc<BTreeMap<&'static str, NodeId>>,
}

/// A clock that stands still, so that the order of operations changes no bytes but those it must.
#[derive(Default)]
struct Still(AtomicU64);

impl Source for Still {
    fn now(&self) -> Time {
        Time { sec: 1_700_000_000, nsec: 0 }
    }

    fn random(&self) -> [u8; 16] {
        (u128::from(self.0.fetch_add(1, Ordering::Relaxed)) | 1 << 100).to_le_bytes()
    }

    fn threads(&self) -> usize {
        1
    }

    fn background(&self) -> bool {
        false
    }
}

fn path(text: &str) -> RelPath {
    RelPath::from(text)
}

fn object(text: &str) -> Object {
    Object::Path(path(text))
}

/// The steps that are committed first.
fn committed() -> Vec<Step> {
    let op = Step::Op;
    let file = |at: &str, seed| {
        let content = Content { seed, len: FILE_BYTES };
        [op(Op::Create { path: path(at), mode: 0o644 }), op(Op::Write { object: object(at), offset: 0, content })]
    };
    let folder = |at: &str| op(Op::Mkdir { path: path(at), mode: 0o755 });
    let mut steps = vec![folder("A"), folder("A/C"), folder("B")];
    steps.extend(["S", "T", "dropped"].map(|at| Step::Subvolume { path: path(at) }));
    for (at, seed) in [("A/foo", 2), ("A/bar", 3), ("A/twin", 2), ("S/gone", 6), ("T/inner", 7), ("dropped/file", 10)] {
        steps.extend(file(at, seed));
    }
    let value = Content { seed: 3, len: 40 };
    let xattr = ("user.one".to_owned(), value);
    steps.extend([
        op(Op::Link { from: path("A/foo"), to: path("B/link") }),
        op(Op::Symlink { path: path("A/sym"), target: Text(b"foo".to_vec()) }),
        op(Op::SetXattr { path: path("A/foo"), name: xattr.0, value: xattr.1, create: false, replace: false }),
        op(Op::Create { path: path("S/pre"), mode: 0o644 }),
        op(Op::Allocate { object: object("S/pre"), how: AllocateHow::Extend, offset: 0, len: 32768 }),
        Step::Snapshot { from: path("S"), to: path("R"), read_only: true },
        // Shared with the snapshot before: what is preallocated and whose alone it is, is allocated behind it.
        op(Op::Allocate { object: object("S/pre"), how: AllocateHow::Extend, offset: 32768, len: 65536 }),
        op(Op::Create { path: path("S/nocow"), mode: 0o644 }),
    ]);
    steps
}

/// The steps that are in memory only when the threads begin.
fn in_memory() -> Vec<Step> {
    let write = |at: &str, seed, offset, len| {
        let content = Content { seed, len };
        Step::Op(Op::Write { object: object(at), offset, content })
    };
    vec![
        write("A/bar", 7, 4096, 8192),
        write("S/pre", 10, 36864, 8192),
        write("S/nocow", 11, 4096, 8192),
        Step::Op(Op::Unlink { path: path("S/gone") }),
        Step::DeleteSubvolume { path: path("dropped") },
    ]
}

impl Base {
    /// The filesystem for everything, with a bug on purpose or without.
    pub fn new(canary: Option<Canary>) -> Base {
        let mut plan = explore::plan(canary);
        plan.bytes = 64 << 20;
        // One with the default booking: booking before each operation would wait for all others.
        plan.seed = 3;
        let disk = Arc::new(plan.make(&environment(1)));
        let open =
            || Filesystem::open(plan.parts(&disk), state::recovering(&plan), environment(2)).expect("a good disk");
        let filesystem = open();
        let subject = Subject::new(&filesystem);
        for step in committed() {
            subject.apply(&step).unwrap_or_else(|error| panic!("{step:?}: {error}"));
        }
        let library = Library::new(&filesystem);
        let nocow = library.find(&path("S/nocow")).expect("it was made");
        let flags = inode_flags::NODATACOW | inode_flags::NODATASUM;
        filesystem.set_flags(nocow, flags, flags).expect("it is empty");
        let content = Content { seed: 14, len: FILE_BYTES };
        filesystem.write(nocow, 0, &content.bytes(), false).expect("room");
        filesystem.shutdown().expect("a good disk");
        drop((subject, library, filesystem));
        let filesystem = open();
        let model = ModelFs::of_library(&filesystem).expect("a good disk");
        let (mut numbers, library) = (Numbers::default(), Library::new(&filesystem));
        numbers.learn(&model, &mut |path| library.find(path).ok().map(|id| id.ino.0));
        let named = NAMED.iter().map(|name| (*name, model.resolve(&path(name)).expect("it was made"))).collect();
        let mut states = vec![ModelState::new(&model)];
        for step in in_memory() {
            let mut next = states[states.len() - 1].model.clone();
            step.apply(&mut next).unwrap_or_else(|error| panic!("{step:?}: {error}"));
            states.push(ModelState::new(&next));
        }
        Base { plan, disk: disk.snapshot(), states, numbers, named: Arc::new(named) }
    }

    /// An open filesystem with what is in memory, and a view of it before anything runs. Each thread has a reference to
    /// what it uses.
    pub fn open(&self, threads: &[Uses]) -> (Stage, View) {
        let recorder = Recorder::new();
        let disk: Arc<dyn BlockDevice> = Arc::new(self.disk.snapshot());
        let device = Arc::new(SlowDevice::new(Arc::new(recorder.record(disk))));
        let env = Env::new(Still::default());
        let filesystem = Filesystem::open(vec![device], self.plan.options(), env).expect("a good disk");
        let model = self.states[self.states.len() - 1].model.clone();
        let view = View { model, named: Arc::clone(&self.named), default: None, unknown: false };
        let subject = Subject::new(&filesystem);
        let library = Library::new(&filesystem);
        let mut ids = BTreeMap::new();
        for name in NAMED {
            let id = library.find(&path(name)).expect("it was made");
            ids.insert(*name, id);
            for _ in threads.iter().filter(|uses| uses.contains(name)) {
                library.retain(&path(name)).expect("it was made");
            }
        }
        // Open while it loses its name: an orphan.
        filesystem.acquire(ids["S/gone"]);
        for step in in_memory() {
            subject.apply(&step).unwrap_or_else(|error| panic!("{step:?}: {error}"));
        }
        (Stage { filesystem, recorder, ids: Arc::new(ids) }, view)
    }
}

/// An open filesystem and the inodes of what is [`NAMED`].
#[derive(Clone)]
pub struct Stage {
    /// Open.
    pub filesystem: Filesystem,
    /// The recording of its device.
    pub recorder: Recorder,
    ids: Arc<BTreeMap<&'static str, InodeId>>,
}

/// The [`NAMED`] objects that a thread uses.
pub type Uses = BTreeSet<&'static str>;

/// One thread's view of a [`Stage`]: it forgets at its end what it uses.
pub struct Scene {
    /// Open.
    pub fs: Filesystem,
    ids: Arc<BTreeMap<&'static str, InodeId>>,
    used: RefCell<Uses>,
    forgotten: RefCell<Uses>,
}

impl Scene {
    /// For one thread.
    pub fn new(stage: &Stage) -> Scene {
        Scene {
            fs: stage.filesystem.clone(),
            ids: Arc::clone(&stage.ids),
            used: RefCell::default(),
            forgotten: RefCell::default(),
        }
    }

    /// The inode that was called `name` before anything ran.
    pub fn id(&self, name: &'static str) -> InodeId {
        self.used.borrow_mut().insert(name);
        self.ids[name]
    }

    /// The objects used so far.
    pub fn used(&self) -> Uses {
        self.used.borrow().clone()
    }

    /// Gives back the reference to something now, and not at the end.
    pub fn forget(&self, name: &'static str) {
        if self.forgotten.borrow_mut().insert(name) {
            self.fs.forget(self.id(name), 1);
        }
    }

    /// Gives back all references that are left of those to `uses`.
    pub fn forget_all(&self, uses: &Uses) {
        uses.iter().filter(|name| !name.is_empty()).for_each(|name| self.forget(name));
    }
}

/// Root, who may do everything.
pub fn caller() -> butterfs_fs::Caller {
    ROOT
}

/// The content of a filesystem after one order of operations.
#[derive(Clone)]
pub struct View {
    /// Names, contents, attributes.
    pub model: ModelFs,
    /// The subvolume that is mounted where none is named, when it is not the first.
    pub default: Option<NodeId>,
    /// Something was done of which the model cannot tell the result.
    pub unknown: bool,
    named: Arc<BTreeMap<&'static str, NodeId>>,
}

impl View {
    /// The node that was called so before anything ran, if it is still there.
    pub fn node(&self, name: &str) -> Option<NodeId> {
        self.named.get(name).copied().filter(|id| self.model.get(*id).is_some())
    }

    /// A path of it now.
    pub fn path(&self, name: &str) -> Option<RelPath> {
        let id = self.node(name)?;
        if matches!(self.model.node(id).body, Body::Folder(_)) {
            return Some(self.model.path_of_folder(id));
        }
        self.model.nodes().find_map(|(folder, node)| {
            let Body::Folder(inside) = &node.body else { return None };
            let name = inside.entries.iter().find(|(_, child)| **child == id)?.0;
            Some(self.model.path_of_folder(folder).join(name))
        })
    }

    /// The same as what operations are about.
    pub fn object(&self, name: &str) -> Option<Object> {
        self.path(name).map(Object::Path)
    }

    /// The path of a name in a folder that was called so.
    pub fn inside(&self, folder: &str, name: &str) -> Option<RelPath> {
        self.path(folder).map(|folder| folder.join(name.as_bytes()))
    }

    /// Does a step, if it can be told what comes of it.
    pub fn step(&mut self, step: Option<Step>) -> Option<Outcome> {
        let step = step.filter(|step| step.is_certain(&self.model))?;
        Some(step.apply(&mut self.model))
    }

    /// Does an operation, if it can be told what comes of it.
    pub fn op(&mut self, op: Option<Op>) -> Option<Outcome> {
        self.step(op.map(Step::Op))
    }
}

/// A path from the root.
pub fn root_path(text: &str) -> RelPath {
    path(text)
}
