//! Chooses the next operation from what the model holds.
//!
//! Invariants: (1) most operations succeed, some must fail, and which errno is then due is certain; (2) the filesystem
//! stays within the shape's limits, so that a run of any length fits its image.

use crate::model::{ModelFs, NodeId, ROOT};
use crate::names;
use crate::operation::{AllocateHow, Content, Kind, Moment, Object, Op, RelPath, RenameHow, Text};
use crate::rng::Rng;

/// The limits of what a workload builds.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Shape {
    pub inodes_max: usize,
    pub depth_max: usize,
    /// Bytes of data at one time.
    pub data_max: u64,
    /// The greatest single write.
    pub write_max: u64,
    /// The greatest size of a file that is not made of holes.
    pub file_max: u64,
    pub xattr_max: u64,
    pub symlink_max: u64,
    pub handles_max: usize,
    /// Percent of operations that make things durable.
    pub sync_percent: u64,
    /// Whether `O_TMPFILE` and unlinked open files appear.
    pub orphans: bool,
}

impl Shape {
    /// For images of 1 GiB with nodes of 16 KiB.
    pub const ORDINARY: Shape = Shape {
        inodes_max: 1500,
        depth_max: 6,
        data_max: 64 << 20,
        write_max: 1 << 20,
        file_max: 4 << 20,
        xattr_max: 3000,
        symlink_max: 1000,
        handles_max: 6,
        sync_percent: 1,
        orphans: true,
    };
    /// For short runs of which every moment is looked at.
    pub const SMALL: Shape = Shape {
        inodes_max: 60,
        depth_max: 3,
        data_max: 2 << 20,
        write_max: 64 << 10,
        file_max: 256 << 10,
        xattr_max: 300,
        symlink_max: 100,
        handles_max: 2,
        sync_percent: 8,
        orphans: true,
    };
}

/// Makes operations.
#[derive(Clone, Debug)]
pub struct Generator {
    seed: u64,
    rng: Rng,
    shape: Shape,
    next_handle: u32,
    names: Vec<Vec<u8>>,
}

type Maker = fn(&mut Generator, &ModelFs) -> Option<Op>;

/// The weights of the operations.
const MAKERS: &[(u64, Maker)] = &[
    (12, Generator::create),
    (4, Generator::mkdir),
    (2, Generator::mknod),
    (3, Generator::symlink),
    (6, Generator::link),
    (9, Generator::unlink),
    (3, Generator::rmdir),
    (8, Generator::rename),
    (2, Generator::open),
    (1, Generator::tmpfile),
    (2, Generator::close),
    (18, Generator::write),
    (8, Generator::read),
    (5, Generator::truncate),
    (4, Generator::allocate),
    (1, Generator::copy_range),
    (3, Generator::chmod),
    (2, Generator::chown),
    (3, Generator::set_times),
    (5, Generator::set_xattr),
    (2, Generator::remove_xattr),
    (2, Generator::get_xattr),
    (1, Generator::list_xattrs),
    (4, Generator::stat),
    (2, Generator::read_folder),
    (1, Generator::read_link),
];

impl Generator {
    /// Operations that follow from `seed`.
    pub fn new(seed: u64, shape: Shape) -> Generator {
        Generator::drawing(seed, Rng::new(seed), shape)
    }

    /// Operations that follow from these bytes.
    pub fn from_bytes(bytes: &[u8], shape: Shape) -> Generator {
        Generator::drawing(0, Rng::from_bytes(bytes), shape)
    }

    fn drawing(seed: u64, rng: Rng, shape: Shape) -> Generator {
        let short = (0..40).map(|number| format!("n{number}").into_bytes());
        let long = (0..6).map(names::longest);
        let odd = (0..4).map(names::odd);
        let names = short.chain(long).chain(odd).chain(names::colliding("", 3)).collect();
        Generator { seed, rng, shape, next_handle: 0, names }
    }

    /// The seed of the operations.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The next operation for a filesystem in the model's state.
    pub fn next_op(&mut self, model: &ModelFs) -> Op {
        if self.rng.chance(self.shape.sync_percent) {
            return self.durable(model);
        }
        let total: u64 = MAKERS.iter().map(|(weight, _)| weight).sum();
        loop {
            let mut at = self.rng.below(total);
            let maker = MAKERS.iter().find(|(weight, _)| {
                let found = at < *weight;
                at = at.saturating_sub(*weight);
                found
            });
            let (_, make) = maker.expect("the weights sum up to the total");
            if let Some(op) = make(self, model) {
                return op;
            }
        }
    }

    fn durable(&mut self, model: &ModelFs) -> Op {
        match self.object_of_kind(model, Kind::File) {
            Some(object) if self.rng.chance(60) => Op::Fsync { object, data_only: self.rng.chance(30) },
            _ => Op::Sync,
        }
    }

    fn node(&mut self, model: &ModelFs) -> NodeId {
        let id = self.rng.below(model.next_id());
        model.node_at_or_after(id)
    }

    fn folder(&mut self, model: &ModelFs) -> NodeId {
        if self.rng.chance(10) {
            return ROOT;
        }
        let tries: Vec<NodeId> = (0..8).map(|_| self.node(model)).collect();
        // A folder that was removed while open has no path.
        tries.into_iter().find(|id| model.node(*id).kind == Kind::Folder && model.node(*id).links > 0).unwrap_or(ROOT)
    }

    /// A path that exists, with its node; any kind.
    fn entry(&mut self, model: &ModelFs) -> Option<(RelPath, NodeId)> {
        let folder = self.folder(model);
        let entries = &model.folder(folder).ok()?.entries;
        let (name, id) = entries.iter().nth(self.rng.index(entries.len().max(1)))?;
        Some((model.path_of_folder(folder).join(name), *id))
    }

    fn entry_where(&mut self, model: &ModelFs, wanted: impl Fn(Kind) -> bool) -> Option<(RelPath, NodeId)> {
        (0..6).find_map(|_| self.entry(model).filter(|(_, id)| wanted(model.node(*id).kind)))
    }

    /// The path of something of this kind, if one is found.
    pub fn path_of_kind(&mut self, model: &ModelFs, kind: Kind) -> Option<RelPath> {
        self.entry_where(model, |other| other == kind).map(|(path, _)| path)
    }

    /// An object of this kind, by path or, for files, by handle.
    pub fn object_of_kind(&mut self, model: &ModelFs, kind: Kind) -> Option<Object> {
        let handles = model.handles();
        if kind == Kind::File && !handles.is_empty() && self.rng.chance(20) {
            return handles.keys().nth(self.rng.index(handles.len())).map(|handle| Object::Handle(*handle));
        }
        self.path_of_kind(model, kind).map(Object::Path)
    }

    fn name(&mut self) -> Vec<u8> {
        if self.rng.chance(1) {
            return vec![b'y'; names::NAME_MAX + 1 + self.rng.index(40)];
        }
        self.rng.pick(&self.names).clone()
    }

    /// A path that may exist; rarely one whose folder does not.
    pub fn any_path(&mut self, model: &ModelFs) -> RelPath {
        let name = self.name();
        if self.rng.chance(1) {
            return RelPath::from("nowhere").join(&name);
        }
        if self.rng.chance(1)
            && let Some(file) = self.path_of_kind(model, Kind::File)
        {
            return file.join(&name);
        }
        let folder = self.folder(model);
        model.path_of_folder(folder).join(&name)
    }

    fn room(&self, model: &ModelFs) -> bool {
        model.len() < self.shape.inodes_max
    }

    fn mode(&mut self) -> u32 {
        *self.rng.pick(&[0o644, 0o600, 0o755, 0o777, 0o400, 0o000, 0o640])
    }

    fn create(&mut self, model: &ModelFs) -> Option<Op> {
        self.room(model).then(|| Op::Create { path: self.any_path(model), mode: self.mode() })
    }

    fn mkdir(&mut self, model: &ModelFs) -> Option<Op> {
        let path = self.any_path(model);
        let flat = path.names().count() <= self.shape.depth_max;
        let mode = *self.rng.pick(&[0o755, 0o700, 0o1777, 0o775]);
        (flat && self.room(model)).then_some(Op::Mkdir { path, mode })
    }

    fn mknod(&mut self, model: &ModelFs) -> Option<Op> {
        let kind = *self.rng.pick(&[Kind::Fifo, Kind::Socket, Kind::BlockDevice, Kind::CharDevice, Kind::File]);
        let device = matches!(kind, Kind::BlockDevice | Kind::CharDevice);
        let (major, minor) =
            if device { (self.rng.below(4096) as u32, self.rng.below(1 << 20) as u32) } else { (0, 0) };
        self.room(model).then(|| Op::Mknod { path: self.any_path(model), kind, mode: self.mode(), major, minor })
    }

    fn symlink(&mut self, model: &ModelFs) -> Option<Op> {
        let len = 1 + self.rng.below(self.shape.symlink_max) as usize;
        self.room(model).then(|| Op::Symlink { path: self.any_path(model), target: Text(vec![b't'; len]) })
    }

    fn link(&mut self, model: &ModelFs) -> Option<Op> {
        let kind_is = |kind| kind != Kind::Folder;
        let (from, _) = if self.rng.chance(5) { self.entry(model)? } else { self.entry_where(model, kind_is)? };
        Some(Op::Link { from, to: self.any_path(model) })
    }

    fn unlink(&mut self, model: &ModelFs) -> Option<Op> {
        let (path, id) = self.entry(model)?;
        let open = model.node(id).opens > 0;
        if open && !self.shape.orphans {
            return None;
        }
        Some(Op::Unlink { path: if self.rng.chance(5) { self.any_path(model) } else { path } })
    }

    fn rmdir(&mut self, model: &ModelFs) -> Option<Op> {
        let (path, _) = self.entry_where(model, |kind| kind == Kind::Folder)?;
        Some(Op::Rmdir { path: if self.rng.chance(5) { self.any_path(model) } else { path } })
    }

    fn rename(&mut self, model: &ModelFs) -> Option<Op> {
        let (from, id) = self.entry(model)?;
        let to = if self.rng.chance(30) { self.entry(model)?.0 } else { self.any_path(model) };
        let deep = model.node(id).kind == Kind::Folder && to.names().count() > self.shape.depth_max;
        let how = match self.rng.below(10) {
            0 => RenameHow::NoReplace,
            1 | 2 => RenameHow::Exchange,
            3 if self.room(model) => RenameHow::Whiteout,
            _ => RenameHow::Replace,
        };
        (!deep).then_some(Op::Rename { from, to, how })
    }

    fn new_handle(&mut self, model: &ModelFs) -> Option<u32> {
        (model.handles().len() < self.shape.handles_max).then(|| {
            self.next_handle += 1;
            self.next_handle
        })
    }

    fn open(&mut self, model: &ModelFs) -> Option<Op> {
        let path = self.path_of_kind(model, Kind::File)?;
        Some(Op::Open { path, handle: self.new_handle(model)? })
    }

    fn tmpfile(&mut self, model: &ModelFs) -> Option<Op> {
        if !self.shape.orphans || !self.room(model) {
            return None;
        }
        let folder = self.folder(model);
        let folder = model.path_of_folder(folder);
        Some(Op::Tmpfile { folder, mode: self.mode(), handle: self.new_handle(model)? })
    }

    fn close(&mut self, model: &ModelFs) -> Option<Op> {
        let handles = model.handles();
        let handle = *handles.keys().nth(self.rng.index(handles.len().max(1)))?;
        Some(Op::Close { handle })
    }

    /// Mostly small and aligned numbers, sometimes any.
    fn offset(&mut self, size: u64) -> u64 {
        match self.rng.below(8) {
            0 | 1 => 0,
            2 | 3 => size,
            4 => self.rng.below(size + 1) / 4096 * 4096,
            5 => self.rng.below(self.shape.file_max),
            _ => self.rng.below(size + 1),
        }
    }

    fn length(&mut self) -> u64 {
        match self.rng.below(10) {
            0 => 1 + self.rng.below(self.shape.write_max),
            1 | 2 => 4096 * (1 + self.rng.below(16)),
            3 | 4 => 1 + self.rng.below(64),
            5 => 1 + self.rng.below(2048),
            _ => 1 + self.rng.below(20_000),
        }
    }

    fn size_of(&self, model: &ModelFs, object: &Object) -> u64 {
        let id = match object {
            Object::Path(path) => model.resolve(path).ok(),
            Object::Handle(handle) => model.handles().get(handle).copied(),
        };
        id.map_or(0, |id| model.node(id).size())
    }

    fn write(&mut self, model: &ModelFs) -> Option<Op> {
        let object = self.object_of_kind(model, Kind::File)?;
        let size = self.size_of(model, &object);
        let len = self.length() as usize;
        // A file far beyond the limit is one made of holes.
        let far = self.rng.chance(1);
        let offset = if far { self.rng.below(1 << 40) } else { self.offset(size.min(self.shape.file_max)) };
        let content = Content { seed: self.rng.bits(), len };
        (model.data_bytes() + len as u64 <= self.shape.data_max).then_some(Op::Write { object, offset, content })
    }

    fn read(&mut self, model: &ModelFs) -> Option<Op> {
        let object = self.object_of_kind(model, Kind::File)?;
        let offset = self.size_of(model, &object);
        Some(Op::Read { object, offset: self.offset(offset), len: self.length() as usize })
    }

    fn truncate(&mut self, model: &ModelFs) -> Option<Op> {
        let object = self.object_of_kind(model, Kind::File)?;
        let size = self.size_of(model, &object);
        let size = match self.rng.below(6) {
            0 => 0,
            1 => self.rng.below(1 << 41),
            2 => size,
            _ => self.offset(size.min(self.shape.file_max)),
        };
        Some(Op::Truncate { object, size })
    }

    fn allocate(&mut self, model: &ModelFs) -> Option<Op> {
        let object = self.object_of_kind(model, Kind::File)?;
        let size = self.size_of(model, &object);
        let kinds = [AllocateHow::Extend, AllocateHow::KeepSize, AllocateHow::PunchHole, AllocateHow::ZeroRange];
        let how = *self.rng.pick(&kinds);
        let (offset, len) = (self.offset(size.min(self.shape.file_max)), self.length());
        (model.data_bytes() + len <= self.shape.data_max).then_some(Op::Allocate { object, how, offset, len })
    }

    fn copy_range(&mut self, model: &ModelFs) -> Option<Op> {
        let from = self.path_of_kind(model, Kind::File)?;
        let to = self.path_of_kind(model, Kind::File)?;
        let size = |path: &RelPath| self.size_of(model, &Object::Path(path.clone())).min(self.shape.file_max);
        let (from_size, to_size) = (size(&from), size(&to));
        let (from_offset, to_offset) = (self.offset(from_size), self.offset(to_size));
        let len = self.length();
        let fits = model.data_bytes() + len <= self.shape.data_max;
        fits.then_some(Op::CopyRange { from, from_offset, to, to_offset, len })
    }

    fn chmod(&mut self, model: &ModelFs) -> Option<Op> {
        let (path, id) = self.entry_where(model, |kind| kind != Kind::Symlink)?;
        let folder = model.node(id).kind == Kind::Folder;
        let mode = if folder { *self.rng.pick(&[0o755, 0o2755, 0o1777, 0o711]) } else { self.mode() };
        Some(Op::Chmod { object: Object::Path(path), mode })
    }

    fn chown(&mut self, model: &ModelFs) -> Option<Op> {
        let (path, _) = self.entry(model)?;
        let ids = [0, 1, 1000, 65534, 0x7fff_fffe];
        Some(Op::Chown { path, uid: *self.rng.pick(&ids), gid: *self.rng.pick(&ids) })
    }

    fn moment(&mut self) -> Moment {
        let sec = self.rng.below(1 << 35) as i64 - (1 << 33);
        Moment { sec, nsec: self.rng.below(1_000_000_000) as u32 }
    }

    fn set_times(&mut self, model: &ModelFs) -> Option<Op> {
        let (path, _) = self.entry(model)?;
        Some(Op::SetTimes { path, atime: self.moment(), mtime: self.moment() })
    }

    /// A path and the name of an attribute that its kind may have.
    fn xattr(&mut self, model: &ModelFs) -> Option<(RelPath, String)> {
        let (path, id) = self.entry(model)?;
        let ordinary = matches!(model.node(id).kind, Kind::File | Kind::Folder);
        let prefix = if ordinary && self.rng.chance(70) { "user" } else { "trusted" };
        // Two of these names have the same hash.
        let twins = names::colliding("", 1);
        let name = match self.rng.below(6) {
            number @ 0..2 => String::from_utf8_lossy(&twins[number as usize]).into_owned(),
            2 => "n".repeat(240),
            number => format!("x{number}"),
        };
        Some((path, format!("{prefix}.{name}")))
    }

    fn set_xattr(&mut self, model: &ModelFs) -> Option<Op> {
        let (path, name) = self.xattr(model)?;
        let len = if self.rng.chance(20) { self.rng.below(self.shape.xattr_max) } else { self.rng.below(100) };
        let value = Content { seed: self.rng.bits(), len: len as usize };
        let (create, replace) = *self.rng.pick(&[(false, false), (false, false), (true, false), (false, true)]);
        Some(Op::SetXattr { path, name, value, create, replace })
    }

    fn remove_xattr(&mut self, model: &ModelFs) -> Option<Op> {
        let (path, name) = self.xattr(model)?;
        Some(Op::RemoveXattr { path, name })
    }

    fn get_xattr(&mut self, model: &ModelFs) -> Option<Op> {
        let (path, name) = self.xattr(model)?;
        Some(Op::GetXattr { path, name })
    }

    fn list_xattrs(&mut self, model: &ModelFs) -> Option<Op> {
        self.entry(model).map(|(path, _)| Op::ListXattrs { path })
    }

    fn stat(&mut self, model: &ModelFs) -> Option<Op> {
        let path = if self.rng.chance(10) { self.any_path(model) } else { self.entry(model)?.0 };
        Some(Op::Stat { object: Object::Path(path) })
    }

    fn read_folder(&mut self, model: &ModelFs) -> Option<Op> {
        let folder = self.folder(model);
        Some(Op::ReadFolder { path: model.path_of_folder(folder) })
    }

    fn read_link(&mut self, model: &ModelFs) -> Option<Op> {
        self.path_of_kind(model, Kind::Symlink).map(|path| Op::ReadLink { path })
    }
}
