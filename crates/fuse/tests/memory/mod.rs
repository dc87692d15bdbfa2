//! A filesystem in memory behind the session: what the transport costs without an engine, and proof that it works.
//!
//! It knows what the tests and the benchmark use and nothing about durability. It answers as the engine's adaptor does
//! where the kernel asks more or less after it. Node ids are indexes that are never used again. Two names
//! are special: looking up `panic` panics, and looking up names that begin with `meet` waits until [`MEETING`] such
//! lookups are under way.

#![allow(dead_code)]

use butterfs_fuse::protocol::directory::{Listing, nodes_of_plus};
use butterfs_fuse::protocol::flags::{open, setattr};
use butterfs_fuse::protocol::wire::*;
use butterfs_fuse::protocol::{Operation, Request, request::opcode};
use butterfs_fuse::session::{Reply, Server};
use butterfs_fuse::transport::DevFuse;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};
use zerocopy::{FromBytes, IntoBytes};

const DIR: u32 = 0o040000;
const LINK: u32 = 0o120000;
const FOREVER: u64 = 86400;

#[derive(Default)]
struct Node {
    attr: AttrWire,
    data: Vec<u8>,
    /// Names by the offset that follows them.
    entries: BTreeMap<u64, (Vec<u8>, u64)>,
    offsets: HashMap<Vec<u8>, u64>,
    next_offset: u64,
    parent: u64,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    lookups: u64,
}

/// The number of lookups that wait for each other.
pub const MEETING: usize = 40;

/// See the [module](self).
#[derive(Clone)]
pub struct Memory(Arc<Shared>);

/// The state that the clones share.
pub struct Shared {
    nodes: Mutex<HashMap<u64, Node>>,
    next: AtomicU64,
    meeting: Barrier,
    /// The connection, to have the kernel write back through.
    device: OnceLock<DevFuse>,
    /// Bytes of the largest WRITE.
    pub largest_write: AtomicU64,
    /// Calls of SYNCFS.
    pub syncs: AtomicU64,
    /// Calls of DESTROY.
    pub destroyed: AtomicU64,
    /// Calls of FSYNC.
    pub fsyncs: AtomicU64,
    /// A hook between the arrival of the next WRITE and its effect.
    pub before_write: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl std::ops::Deref for Memory {
    type Target = Shared;
    fn deref(&self) -> &Shared {
        &self.0
    }
}

type Nodes = HashMap<u64, Node>;
type Outcome = Result<(), Errno>;

impl Memory {
    pub fn new() -> Memory {
        let memory = Shared {
            nodes: Mutex::new(HashMap::new()),
            next: AtomicU64::new(1),
            meeting: Barrier::new(MEETING),
            device: OnceLock::new(),
            largest_write: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            destroyed: AtomicU64::new(0),
            fsyncs: AtomicU64::new(0),
            before_write: Mutex::new(None),
        };
        let root = memory.make(DIR | 0o755, 0, 0, 0, 1);
        memory.nodes.lock().insert(1, root);
        Memory(Arc::new(memory))
    }
}

impl Shared {
    /// The connection that this is served over.
    pub fn connected(&self, device: DevFuse) {
        assert!(self.device.set(device).is_ok(), "connected once");
    }

    /// Nodes in memory, the root included.
    pub fn len(&self) -> usize {
        self.nodes.lock().len()
    }

    fn make(&self, mode: u32, uid: u32, gid: u32, rdev: u32, parent: u64) -> Node {
        let ino = self.next.fetch_add(1, Ordering::Relaxed);
        let (sec, nsec) = now();
        let attr = AttrWire {
            ino,
            atime: sec,
            mtime: sec,
            ctime: sec,
            atimensec: nsec,
            mtimensec: nsec,
            ctimensec: nsec,
            mode,
            nlink: 1,
            uid,
            gid,
            rdev,
            blksize: 4096,
            ..AttrWire::default()
        };
        Node { attr, parent, next_offset: 3, ..Node::default() }
    }

    fn add(&self, header: &InHeader, name: &[u8], mode: u32, rdev: u32, data: &[u8], payload: &mut Vec<u8>) -> Outcome {
        let mut nodes = self.nodes.lock();
        if get(&nodes, header.nodeid)?.offsets.contains_key(name) {
            return Err(Errno::EXIST);
        }
        let mut node = self.make(mode, header.uid, header.gid, rdev, header.nodeid);
        node.data = data.to_vec();
        node.attr.size = data.len() as u64;
        let ino = node.attr.ino;
        nodes.insert(ino, node);
        add_name(&mut nodes, header.nodeid, name, ino)?;
        entry(&mut nodes, ino, payload)
    }
}

fn now() -> (i64, u32) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    (since.as_secs() as i64, since.subsec_nanos())
}

fn get(nodes: &Nodes, id: u64) -> Result<&Node, Errno> {
    nodes.get(&id).ok_or(Errno::STALE)
}

fn get_mut(nodes: &mut Nodes, id: u64) -> Result<&mut Node, Errno> {
    nodes.get_mut(&id).ok_or(Errno::STALE)
}

fn child(nodes: &Nodes, parent: u64, name: &[u8]) -> Result<u64, Errno> {
    let parent = get(nodes, parent)?;
    let offset = parent.offsets.get(name).ok_or(Errno::NOENT)?;
    Ok(parent.entries[offset].1)
}

fn add_name(nodes: &mut Nodes, parent: u64, name: &[u8], node: u64) -> Outcome {
    let parent = get_mut(nodes, parent)?;
    touch(parent);
    let offset = parent.next_offset;
    parent.next_offset += 1;
    parent.entries.insert(offset, (name.to_vec(), node));
    parent.offsets.insert(name.to_vec(), offset);
    Ok(())
}

fn remove_name(nodes: &mut Nodes, parent: u64, name: &[u8]) -> Result<u64, Errno> {
    let parent = get_mut(nodes, parent)?;
    let offset = parent.offsets.remove(name).ok_or(Errno::NOENT)?;
    touch(parent);
    Ok(parent.entries.remove(&offset).unwrap().1)
}

fn drop_link(nodes: &mut Nodes, id: u64) {
    let node = nodes.get_mut(&id).unwrap();
    node.attr.nlink -= 1;
    collect(nodes, id);
}

fn collect(nodes: &mut Nodes, id: u64) {
    if nodes.get(&id).is_some_and(|node| node.lookups == 0 && node.attr.nlink == 0) {
        nodes.remove(&id);
    }
}

fn entry_of(node: &Node) -> EntryOut {
    EntryOut {
        nodeid: node.attr.ino,
        generation: 1,
        entry_valid: FOREVER,
        attr_valid: FOREVER,
        attr: node.attr,
        ..EntryOut::default()
    }
}

fn entry(nodes: &mut Nodes, id: u64, payload: &mut Vec<u8>) -> Outcome {
    let node = get_mut(nodes, id)?;
    node.lookups += 1;
    payload.extend_from_slice(entry_of(node).as_bytes());
    Ok(())
}

fn attributes(node: &Node, payload: &mut Vec<u8>) {
    let answer = AttrOut { attr_valid: FOREVER, attr: node.attr, ..AttrOut::default() };
    payload.extend_from_slice(answer.as_bytes());
}

/// The adaptor's answer, so that as much is asked.
fn opened(payload: &mut Vec<u8>) {
    let open_flags = open::KEEP_CACHE | open::NOFLUSH;
    payload.extend_from_slice(OpenOut { open_flags, ..OpenOut::default() }.as_bytes());
}

/// Sets the time of the last change.
fn touch(node: &mut Node) {
    let (sec, nsec) = now();
    let attr = &mut node.attr;
    (attr.mtime, attr.mtimensec, attr.ctime, attr.ctimensec) = (sec, nsec, sec, nsec);
}

fn resize(node: &mut Node, size: u64) {
    touch(node);
    node.data.resize(size as usize, 0);
    node.attr.size = size;
    node.attr.blocks = size.div_ceil(512);
}

fn write(node: &mut Node, offset: u64, data: &[u8]) {
    touch(node);
    let end = offset as usize + data.len();
    if end > node.data.len() {
        resize(node, end as u64);
    }
    node.data[offset as usize..end].copy_from_slice(data);
}

fn set(node: &mut Node, arguments: &SetattrIn) {
    let has = |bit| arguments.valid & bit != 0;
    let attr = &mut node.attr;
    if has(setattr::MODE) {
        attr.mode = attr.mode & 0o170000 | arguments.mode & 0o7777;
    }
    if has(setattr::UID) {
        attr.uid = arguments.uid;
    }
    if has(setattr::GID) {
        attr.gid = arguments.gid;
    }
    if has(setattr::ATIME) {
        (attr.atime, attr.atimensec) = (arguments.atime, arguments.atimensec);
    }
    if has(setattr::MTIME) {
        (attr.mtime, attr.mtimensec) = (arguments.mtime, arguments.mtimensec);
    }
    if has(setattr::SIZE) {
        resize(node, arguments.size);
    }
}

/// Copies what there is of a range; how much that was.
fn copy(nodes: &mut Nodes, from: u64, arguments: &CopyFileRangeIn) -> Result<u64, Errno> {
    let data = &get(nodes, from)?.data;
    let begin = data.len().min(arguments.off_in as usize);
    let end = data.len().min(begin + arguments.len.min(1 << 30) as usize);
    let part = data[begin..end].to_vec();
    write(get_mut(nodes, arguments.nodeid_out)?, arguments.off_out, &part);
    Ok(part.len() as u64)
}

fn rename(nodes: &mut Nodes, from: (u64, &[u8]), to: (u64, &[u8]), flags: u32) -> Outcome {
    let moved = child(nodes, from.0, from.1)?;
    let replaced = child(nodes, to.0, to.1).ok();
    if flags & 1 != 0 && replaced.is_some() {
        return Err(Errno::EXIST);
    }
    remove_name(nodes, from.0, from.1)?;
    if let Some(replaced) = replaced {
        remove_name(nodes, to.0, to.1)?;
        if flags & 2 != 0 {
            add_name(nodes, from.0, from.1, replaced)?;
        } else {
            drop_link(nodes, replaced);
        }
    }
    get_mut(nodes, moved)?.parent = to.0;
    add_name(nodes, to.0, to.1, moved)
}

fn sized(payload: &mut Vec<u8>, value: &[u8], size: u32) -> Outcome {
    match size {
        0 => payload.extend_from_slice(GetxattrOut { size: value.len() as u32, padding: 0 }.as_bytes()),
        size if (size as usize) < value.len() => return Err(Errno::RANGE),
        _ => payload.extend_from_slice(value),
    }
    Ok(())
}

/// SEEK_DATA (3) and SEEK_HOLE (4); a block of zeros is a hole.
fn seek(data: &[u8], from: u64, whence: u32) -> Result<u64, Errno> {
    let blocks = data.chunks(4096).zip(0u64..).skip((from / 4096) as usize);
    let wanted = |block: &[u8]| block.iter().any(|byte| *byte != 0) == (whence == 3);
    let found = blocks.into_iter().find(|(block, _)| wanted(block)).map(|(_, number)| (number * 4096).max(from));
    match (found, whence) {
        (Some(offset), _) => Ok(offset),
        (None, 4) if from < data.len() as u64 => Ok(data.len() as u64),
        _ => Err(Errno::NXIO),
    }
}

fn list(nodes: &mut Nodes, dir: u64, arguments: &ReadIn, plus: bool, payload: &mut Vec<u8>) -> Outcome {
    let node = get(nodes, dir)?;
    let dots = [(0, &b"."[..], dir), (1, &b".."[..], node.parent)];
    let names = node.entries.range(arguments.offset..).map(|(offset, (name, node))| (*offset, &name[..], *node));
    let mut listing = Listing::new(payload, arguments.size);
    let mut handed = Vec::new();
    for (offset, name, id) in dots.into_iter().filter(|dot| dot.0 >= arguments.offset).chain(names) {
        let dot = offset < 2;
        let node = get(nodes, id)?;
        let kind = (node.attr.mode >> 12) as u8;
        let fitted = match plus {
            true => {
                let entry = if dot { EntryOut::default() } else { entry_of(node) };
                listing.push_plus(&entry, id, offset + 1, kind, name)
            }
            false => listing.push(id, offset + 1, kind, name),
        };
        if !fitted {
            break;
        }
        handed.extend((plus && !dot).then_some(id));
    }
    handed.into_iter().try_for_each(|id| get_mut(nodes, id).map(|node| node.lookups += 1))
}

impl Shared {
    fn serve(&self, request: &Request<'_>, payload: &mut Vec<u8>) -> Outcome {
        let header = &request.header;
        let id = header.nodeid;
        match request.operation {
            Operation::Lookup { name } => {
                self.special(name);
                let mut nodes = self.nodes.lock();
                let found = match name {
                    b"." => id,
                    b".." => get(&nodes, id)?.parent,
                    _ => child(&nodes, id, name).or_else(|_| get(&nodes, id).map(|_| 0))?,
                };
                if found == 0 {
                    payload.extend_from_slice(EntryOut { entry_valid: FOREVER, ..EntryOut::default() }.as_bytes());
                } else {
                    entry(&mut nodes, found, payload)?;
                }
            }
            Operation::Forget { nlookup } => self.forget(id, nlookup),
            Operation::BatchForget { nodes } => nodes.iter().for_each(|one| self.forget(one.nodeid, one.nlookup)),
            Operation::Getattr {} => attributes(get(&self.nodes.lock(), id)?, payload),
            Operation::Setattr { arguments } => {
                let mut nodes = self.nodes.lock();
                let node = get_mut(&mut nodes, id)?;
                set(node, &arguments);
                attributes(node, payload);
            }
            Operation::Readlink {} => payload.extend_from_slice(&get(&self.nodes.lock(), id)?.data),
            Operation::Symlink { name, target } => self.add(header, name, LINK | 0o777, 0, target, payload)?,
            Operation::Mknod { arguments, name } => {
                self.add(header, name, arguments.mode & !arguments.umask, arguments.rdev, &[], payload)?;
            }
            Operation::Mkdir { arguments, name } => {
                self.add(header, name, DIR | (arguments.mode & !arguments.umask), 0, &[], payload)?;
            }
            Operation::Create { arguments, name } => {
                self.add(header, name, arguments.mode & !arguments.umask, 0, &[], payload)?;
                opened(payload);
            }
            Operation::Unlink { name } => {
                let mut nodes = self.nodes.lock();
                let gone = remove_name(&mut nodes, id, name)?;
                drop_link(&mut nodes, gone);
            }
            Operation::Rmdir { name } => {
                let mut nodes = self.nodes.lock();
                let gone = child(&nodes, id, name)?;
                if !get(&nodes, gone)?.entries.is_empty() {
                    return Err(Errno::NOTEMPTY);
                }
                remove_name(&mut nodes, id, name)?;
                drop_link(&mut nodes, gone);
            }
            Operation::Rename { new_parent, name, new_name } => {
                rename(&mut self.nodes.lock(), (id, name), (new_parent, new_name), 0)?;
            }
            Operation::Rename2 { new_parent, flags, name, new_name } => {
                rename(&mut self.nodes.lock(), (id, name), (new_parent, new_name), flags)?;
            }
            Operation::Link { node, new_name } => {
                let mut nodes = self.nodes.lock();
                get_mut(&mut nodes, node)?.attr.nlink += 1;
                add_name(&mut nodes, id, new_name, node)?;
                entry(&mut nodes, node, payload)?;
            }
            Operation::Open { .. } => opened(payload),
            Operation::Read { arguments } => {
                let nodes = self.nodes.lock();
                let data = &get(&nodes, id)?.data;
                let from = data.len().min(arguments.offset as usize);
                payload.extend_from_slice(&data[from..data.len().min(from + arguments.size as usize)]);
            }
            Operation::Write { arguments, data } => {
                self.largest_write.fetch_max(data.len() as u64, Ordering::Relaxed);
                let before = self.before_write.lock().take();
                before.into_iter().for_each(|happen| happen());
                write(get_mut(&mut self.nodes.lock(), id)?, arguments.offset, data);
                payload.extend_from_slice(WriteOut { size: arguments.size, padding: 0 }.as_bytes());
            }
            Operation::CopyFileRange { arguments } => {
                let size = copy(&mut self.nodes.lock(), id, &arguments)? as u32;
                payload.extend_from_slice(WriteOut { size, padding: 0 }.as_bytes());
            }
            Operation::CopyFileRange64 { arguments } => {
                let bytes_copied = copy(&mut self.nodes.lock(), id, &arguments)?;
                payload.extend_from_slice(CopyFileRangeOut { bytes_copied }.as_bytes());
            }
            Operation::Statfs {} => {
                let statfs = StatfsOut {
                    blocks: 1 << 20,
                    bfree: 1 << 19,
                    bavail: 1 << 19,
                    bsize: 4096,
                    frsize: 4096,
                    namelen: 255,
                    ..StatfsOut::default()
                };
                payload.extend_from_slice(statfs.as_bytes());
            }
            Operation::Readdir { arguments } => list(&mut self.nodes.lock(), id, &arguments, false, payload)?,
            Operation::Readdirplus { arguments } => list(&mut self.nodes.lock(), id, &arguments, true, payload)?,
            Operation::Setxattr { name, value, .. } => {
                get_mut(&mut self.nodes.lock(), id)?.xattrs.insert(name.to_vec(), value.to_vec());
            }
            Operation::Removexattr { name } => {
                get_mut(&mut self.nodes.lock(), id)?.xattrs.remove(name).ok_or(Errno::NODATA)?;
            }
            Operation::Getxattr { size, name } => {
                let nodes = self.nodes.lock();
                sized(payload, get(&nodes, id)?.xattrs.get(name).ok_or(Errno::NODATA)?, size)?;
            }
            Operation::Listxattr { size } => {
                let nodes = self.nodes.lock();
                let names: Vec<u8> =
                    get(&nodes, id)?.xattrs.keys().flat_map(|name| [name, &b"\0"[..]].concat()).collect();
                sized(payload, &names, size)?;
            }
            Operation::Fsync { .. } | Operation::Fsyncdir { .. } => drop(self.fsyncs.fetch_add(1, Ordering::Relaxed)),
            Operation::Syncfs {} => drop(self.syncs.fetch_add(1, Ordering::Relaxed)),
            Operation::Destroy {} => drop(self.destroyed.fetch_add(1, Ordering::Relaxed)),
            Operation::Release { .. } => {}
            Operation::Ioctl { .. } => return Err(Errno::NOTTY),
            _ => return Err(Errno::NOSYS),
        }
        Ok(())
    }

    fn special(&self, name: &[u8]) {
        assert_ne!(name, b"panic", "asked for");
        if name.starts_with(b"meet") {
            self.meeting.wait();
        }
    }

    fn forget(&self, id: u64, count: u64) {
        let mut nodes = self.nodes.lock();
        if let Some(node) = nodes.get_mut(&id) {
            node.lookups = node.lookups.checked_sub(count).expect("more references given back than taken");
        }
        collect(&mut nodes, id);
    }
}

impl Memory {
    fn seek_later(&self, node: u64, offset: u64, whence: u32, payload: &mut Vec<u8>) -> Reply {
        if let Some(device) = self.device.get() {
            device.drop_cached_data(node).expect("the connection stands");
        }
        let nodes = self.nodes.lock();
        match get(&nodes, node).and_then(|found| seek(&found.data, offset, whence)) {
            Ok(offset) => payload.extend_from_slice(LseekOut { offset }.as_bytes()),
            Err(errno) => return Reply::Failed(errno),
        }
        Reply::Done
    }
}

impl Server for Memory {
    fn handle(&self, request: &Request<'_>, payload: &mut Vec<u8>) -> Reply {
        if let Operation::Lseek { arguments: LseekIn { offset, whence, .. } } = request.operation {
            let (shared, node) = (self.clone(), request.header.nodeid);
            return Reply::Later(Box::new(move |payload| shared.seek_later(node, offset, whence, payload)));
        }
        match self.serve(request, payload) {
            Ok(()) => Reply::Done,
            Err(errno) => Reply::Failed(errno),
        }
    }

    fn reply_refused(&self, request: &Request<'_>, payload: &[u8]) {
        match request.operation.opcode() {
            opcode::Readdirplus => nodes_of_plus(payload).for_each(|node| self.forget(node, 1)),
            opcode::Lookup | opcode::Create | opcode::Mkdir | opcode::Mknod | opcode::Symlink | opcode::Link => {
                if let Ok((entry, _)) = EntryOut::read_from_prefix(payload) {
                    self.forget(entry.nodeid, 1);
                }
            }
            _ => {}
        }
    }
}
