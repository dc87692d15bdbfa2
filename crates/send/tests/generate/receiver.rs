//! A receiver in memory that is stricter than any real one: every command must make sense exactly where it stands.
//!
//! Actions that a real receiver does silently are failures here: a file that is made over another one, content written
//! through a path that means another file meanwhile, attributes that a directory hands down, a rename between two names
//! of one file. What the kernel does as a side effect is done here too: times of directories, capabilities that a write
//! takes away, set-id bits that a change of owner takes away.

use butterfs_send::wire::{Command, Decoder, Event, Timespec, Uuid};
use butterfs_testkit::fingerprint::{ContentHash, Fingerprint, PathFingerprint};
use butterfs_testkit::operation::{Kind, Moment};
use std::collections::{BTreeMap, BTreeSet};

const BLOCK: u64 = 4096;
/// The value of a time that nobody has set.
const NOW: Moment = Moment { sec: i64::MIN, nsec: 0 };
const CAPABILITY: &[u8] = b"security.capability";

type Checked<T> = Result<T, String>;

#[derive(Clone)]
struct Node {
    kind: Kind,
    mode: u32,
    uid: u32,
    gid: u32,
    device: (u32, u32),
    size: u64,
    blocks: BTreeMap<u64, Vec<u8>>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    times: [Moment; 2],
    entries: BTreeMap<Vec<u8>, usize>,
    links: u32,
    target: Option<Vec<u8>>,
}

/// A received subvolume.
#[derive(Clone)]
pub struct Tree {
    nodes: Vec<Node>,
    uuid: Uuid,
    /// The file that `btrfs receive` has open for writing, by the path it was opened at.
    open: Option<(Vec<u8>, usize)>,
}

/// Everything that was received.
#[derive(Default)]
pub struct Receiver {
    finished: Vec<(Vec<u8>, Tree)>,
    current: Option<(Vec<u8>, Tree)>,
    /// Commands by name.
    pub counts: BTreeMap<&'static str, usize>,
}

impl Receiver {
    /// Receives streams; the error names the command.
    pub fn receive(&mut self, stream: &[u8]) -> Checked<()> {
        let mut decoder = Decoder::new(stream);
        let mut open = false;
        loop {
            match decoder.next().map_err(|error| error.to_string())? {
                None if open => return Err("no end".to_owned()),
                None => return Ok(()),
                Some(Event::Header(_)) => open = true,
                Some(Event::Command(position, command)) => {
                    if matches!(command, Command::End {}) {
                        open = false;
                    }
                    *self.counts.entry(command.name()).or_default() += 1;
                    self.apply(&command).map_err(|why| format!("byte {}: {command:?}: {why}", position.offset))?;
                }
            }
        }
    }

    /// The fingerprint of the subvolume received under this name.
    pub fn print(&self, name: &[u8]) -> Fingerprint {
        let (_, tree) = self.finished.iter().rev().find(|(known, _)| known == name).expect("it was received");
        tree.print()
    }

    fn by_uuid(&self, uuid: &Uuid) -> Checked<&Tree> {
        self.finished.iter().map(|(_, tree)| tree).find(|tree| tree.uuid == *uuid).ok_or("unknown subvolume".to_owned())
    }

    fn finish(&mut self) {
        self.finished.extend(self.current.take());
    }

    fn apply(&mut self, command: &Command<'_>) -> Checked<()> {
        match *command {
            Command::Subvol { path, uuid, .. } => {
                self.finish();
                self.current = Some((path.to_vec(), Tree::empty(uuid)));
                Ok(())
            }
            Command::Snapshot { path, uuid, parent_uuid, .. } => {
                self.finish();
                let tree = Tree { uuid, open: None, ..self.by_uuid(&parent_uuid)?.clone() };
                self.current = Some((path.to_vec(), tree));
                Ok(())
            }
            Command::End {} => {
                self.finish();
                Ok(())
            }
            Command::Clone { offset, len, path, source_uuid, source, source_offset, .. } => {
                let (_, current) = self.current.as_ref().ok_or("no subvolume")?;
                let own = current.uuid == source_uuid;
                let from = if own { current } else { self.by_uuid(&source_uuid)? };
                let from_id = from.find(source)?;
                let into = current.find(path)?;
                let (source, target) = (&from.nodes[from_id], &current.nodes[into]);
                may_clone((source, source_offset), (target, offset), len, own && from_id == into)?;
                let bytes = source.read(source_offset, len);
                self.tree()?.write(path, offset, &bytes)
            }
            _ => self.tree()?.apply(command),
        }
    }

    fn tree(&mut self) -> Checked<&mut Tree> {
        self.current.as_mut().map(|(_, tree)| tree).ok_or("no subvolume".to_owned())
    }
}

fn may_clone(from: (&Node, u64), into: (&Node, u64), len: u64, same: bool) -> Checked<()> {
    let ((source, start), (target, offset)) = (from, into);
    let (source_end, end) = (start + len, offset + len);
    let fits = start % BLOCK == 0 && offset % BLOCK == 0 && len > 0 && source_end <= source.size;
    let whole = end % BLOCK == 0 || (source_end == source.size && end >= target.size);
    let apart = !same || start.abs_diff(offset) >= len;
    if fits && whole && apart {
        Ok(())
    } else {
        Err(format!("cannot be cloned: sizes {} {}", source.size, target.size))
    }
}

impl Node {
    fn new(kind: Kind, mode: u32) -> Node {
        let (blocks, xattrs, entries) = Default::default();
        let links = u32::from(kind == Kind::Folder);
        let (device, times, target) = ((0, 0), [NOW; 2], None);
        Node { kind, mode, uid: 0, gid: 0, device, size: 0, blocks, xattrs, times, entries, links, target }
    }

    fn read(&self, offset: u64, len: u64) -> Vec<u8> {
        (offset..offset + len)
            .map(|at| self.blocks.get(&(at / BLOCK)).map_or(0, |block| block[(at % BLOCK) as usize]))
            .collect()
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let within = (at % BLOCK) as usize;
            let (now, later) = rest.split_at(rest.len().min(BLOCK as usize - within));
            let block = self.blocks.entry(at / BLOCK).or_insert_with(|| vec![0; BLOCK as usize]);
            block[within..within + now.len()].copy_from_slice(now);
            at += now.len() as u64;
            rest = later;
        }
        self.size = self.size.max(offset + bytes.len() as u64);
        self.content_changed();
    }

    fn truncate(&mut self, size: u64) {
        self.blocks.retain(|block, _| block * BLOCK < size);
        if let Some(block) = self.blocks.get_mut(&(size / BLOCK)) {
            block[(size % BLOCK) as usize..].fill(0);
        }
        self.size = size;
        self.content_changed();
    }

    fn content_changed(&mut self) {
        self.times[1] = NOW;
        self.xattrs.remove(CAPABILITY);
    }

    fn hash(&self) -> u64 {
        let mut hash = ContentHash::default();
        for (number, block) in &self.blocks {
            let len = (self.size - (number * BLOCK).min(self.size)).min(BLOCK) as usize;
            hash.update(number * BLOCK, &block[..len]);
        }
        hash.finish()
    }
}

impl Tree {
    fn empty(uuid: Uuid) -> Tree {
        // A receiver's umask, and the directory it was made in, may give it any mode and group.
        let root = Node { gid: 77, ..Node::new(Kind::Folder, 0o2777) };
        Tree { nodes: vec![root], uuid, open: None }
    }

    fn find(&self, path: &[u8]) -> Checked<usize> {
        let mut at = 0;
        if path.is_empty() {
            return Ok(at);
        }
        for name in path.split(|byte| *byte == b'/') {
            let shown = || name.escape_ascii().to_string();
            if [&b""[..], b".", b".."].contains(&name) {
                return Err(format!("{} is no name", shown()));
            }
            at = *self.nodes[at].entries.get(name).ok_or_else(|| format!("there is no {}", shown()))?;
        }
        Ok(at)
    }

    fn directory<'p>(&self, path: &'p [u8]) -> Checked<(usize, &'p [u8])> {
        let (directory, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (&path[..at], &path[at + 1..]),
            None => (&b""[..], path),
        };
        let id = self.find(directory)?;
        if self.nodes[id].kind != Kind::Folder || name.is_empty() {
            return Err("no directory".to_owned());
        }
        Ok((id, name))
    }

    fn enter(&mut self, path: &[u8], id: usize) -> Checked<()> {
        let (directory, name) = self.directory(path)?;
        if self.nodes[directory].entries.insert(name.to_vec(), id).is_some() {
            return Err(format!("{} is there already", path.escape_ascii()));
        }
        self.nodes[directory].times[1] = NOW;
        Ok(())
    }

    fn leave(&mut self, path: &[u8]) -> Checked<usize> {
        let (directory, name) = self.directory(path)?;
        self.nodes[directory].times[1] = NOW;
        self.nodes[directory].entries.remove(name).ok_or_else(|| "there is no such name".to_owned())
    }

    fn make(&mut self, path: &[u8], mut node: Node) -> Checked<()> {
        let (directory, _) = self.directory(path)?;
        let parent = &self.nodes[directory];
        for name in [&b"system.posix_acl_default"[..], b"btrfs.compression"] {
            if parent.xattrs.contains_key(name) {
                return Err(format!("the directory hands down {}", name.escape_ascii()));
            }
        }
        if parent.mode & 0o2000 != 0 {
            node.gid = parent.gid;
            node.mode |= if node.kind == Kind::Folder { 0o2000 } else { 0 };
        }
        node.links = 1;
        self.nodes.push(node);
        self.enter(path, self.nodes.len() - 1)
    }

    fn rename(&mut self, path: &[u8], to: &[u8]) -> Checked<()> {
        let id = self.find(path)?;
        let is_directory = self.nodes[id].kind == Kind::Folder;
        if is_directory && to.starts_with(path) && to.get(path.len()) == Some(&b'/') {
            return Err("a directory goes into itself".to_owned());
        }
        if let Ok(other) = self.find(to) {
            if other == id || is_directory || self.nodes[other].kind == Kind::Folder {
                return Err("the new name is taken".to_owned());
            }
            self.unlink(to)?;
        }
        self.leave(path)?;
        self.enter(to, id)
    }

    fn unlink(&mut self, path: &[u8]) -> Checked<()> {
        let id = self.leave(path)?;
        if self.nodes[id].kind == Kind::Folder {
            return Err("it is a directory".to_owned());
        }
        self.nodes[id].links -= 1;
        Ok(())
    }

    /// The file that `btrfs receive` writes to.
    fn written(&mut self, path: &[u8]) -> Checked<&mut Node> {
        let id = self.find(path)?;
        if let Some((open, other)) = &self.open
            && open == path
            && *other != id
        {
            return Err("another file is still open by this path".to_owned());
        }
        if self.nodes[id].kind != Kind::File {
            return Err("no regular file".to_owned());
        }
        self.open = Some((path.to_vec(), id));
        Ok(&mut self.nodes[id])
    }

    fn write(&mut self, path: &[u8], offset: u64, bytes: &[u8]) -> Checked<()> {
        self.written(path)?.write(offset, bytes);
        Ok(())
    }

    fn change(&mut self, path: &[u8]) -> Checked<&mut Node> {
        let id = self.find(path)?;
        Ok(&mut self.nodes[id])
    }

    fn apply(&mut self, command: &Command<'_>) -> Checked<()> {
        match *command {
            Command::Mkfile { path, .. } => self.make(path, Node::new(Kind::File, 0o600)),
            Command::Mkdir { path, .. } => self.make(path, Node::new(Kind::Folder, 0o700)),
            Command::Mkfifo { path, .. } => self.make(path, Node::new(Kind::Fifo, 0o600)),
            Command::Mksock { path, .. } => self.make(path, Node::new(Kind::Socket, 0o600)),
            Command::Mknod { path, rdev, mode, .. } => {
                let device = (((rdev >> 8) & 0xfff) as u32, ((rdev & 0xff) | (rdev >> 12 & 0xfff00)) as u32);
                self.make(path, Node { device, ..Node::new(Kind::of_mode(mode as u32), 0) })
            }
            Command::Symlink { path, target, .. } => {
                let node = Node::new(Kind::Symlink, 0o777);
                self.make(path, Node { target: Some(target.to_vec()), size: target.len() as u64, ..node })
            }
            Command::Rename { path, to } => self.rename(path, to),
            Command::Link { path, existing } => {
                let id = self.find(existing)?;
                if self.nodes[id].kind == Kind::Folder {
                    return Err("it is a directory".to_owned());
                }
                self.nodes[id].links += 1;
                self.enter(path, id)
            }
            Command::Unlink { path } => self.unlink(path),
            Command::Rmdir { path } => {
                let id = self.leave(path)?;
                let node = &self.nodes[id];
                let empty = node.kind == Kind::Folder && node.entries.is_empty();
                if empty { Ok(()) } else { Err("it is no empty directory".to_owned()) }
            }
            Command::Write { path, offset, data } => self.write(path, offset, data),
            Command::Fallocate { path, mode: 3, offset, len } => {
                let node = self.written(path)?;
                let end = (offset + len).min(node.size);
                if offset < end {
                    node.write(offset, &vec![0; (end - offset) as usize]);
                }
                node.content_changed();
                Ok(())
            }
            Command::Fallocate { path, mode: 1, .. } => {
                self.written(path)?.content_changed();
                Ok(())
            }
            Command::EncodedWrite {
                path,
                offset,
                unencoded_file_len,
                unencoded_len,
                unencoded_offset,
                compression,
                data,
                ..
            } => {
                let bytes = decoded(compression, data, unencoded_len as usize)?;
                let window = bytes.get(unencoded_offset as usize..(unencoded_offset + unencoded_file_len) as usize);
                self.write(path, offset, window.ok_or("the window is not inside")?)
            }
            _ => self.set(command),
        }
    }

    fn set(&mut self, command: &Command<'_>) -> Checked<()> {
        match *command {
            Command::Truncate { path, size } => {
                let node = self.change(path)?;
                if node.kind != Kind::File {
                    return Err("no regular file".to_owned());
                }
                node.truncate(size);
            }
            Command::Chmod { path, mode } => {
                let node = self.change(path)?;
                if node.kind == Kind::Symlink {
                    return Err("follows the link".to_owned());
                }
                node.mode = mode as u32 & 0o7777;
            }
            Command::Chown { path, uid, gid } => {
                let node = self.change(path)?;
                (node.uid, node.gid) = (uid as u32, gid as u32);
                if node.kind != Kind::Folder {
                    node.mode &= if node.mode & 0o010 != 0 { !0o6000 } else { !0o4000 };
                }
                node.xattrs.remove(CAPABILITY);
            }
            Command::Utimes { path, atime, mtime, .. } => {
                let moment = |time: Timespec| Moment { sec: time.sec, nsec: time.nsec };
                self.change(path)?.times = [atime, mtime].map(moment);
            }
            Command::SetXattr { path, name, value } => {
                self.change(path)?.xattrs.insert(name.to_vec(), value.to_vec());
            }
            Command::RemoveXattr { path, name } => {
                let removed = self.change(path)?.xattrs.remove(name);
                removed.ok_or("there is no such attribute")?;
            }
            Command::Fileattr { path, .. } => drop(self.find(path)?),
            _ => return Err("not expected".to_owned()),
        }
        Ok(())
    }

    fn print(&self) -> Fingerprint {
        let mut print = Fingerprint::default();
        let mut first: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
        let mut waiting = BTreeSet::from([(Vec::new(), 0)]);
        let mut seen: Vec<(Vec<u8>, usize)> = Vec::new();
        while let Some((path, id)) = waiting.pop_first() {
            for (name, child) in &self.nodes[id].entries {
                let inside = if path.is_empty() { name.clone() } else { [&path[..], b"/", name].concat() };
                waiting.insert((inside, *child));
            }
            seen.push((path, id));
        }
        seen.sort();
        for (path, id) in seen {
            let node = &self.nodes[id];
            let mut entry = entry(node);
            if node.kind != Kind::Folder && node.links > 1 {
                entry.first_path = Some(first.entry(id).or_insert_with(|| path.clone()).clone());
            }
            print.entries.insert(path, entry);
        }
        print
    }
}

fn entry(node: &Node) -> PathFingerprint {
    let is_file = node.kind == Kind::File;
    let names: usize = node.entries.keys().map(Vec::len).sum();
    PathFingerprint {
        kind: node.kind,
        mode: node.mode,
        links: node.links,
        uid: node.uid,
        gid: node.gid,
        size: if node.kind == Kind::Folder { 2 * names as u64 } else { node.size },
        device: node.device,
        atime: Some(node.times[0]),
        mtime: Some(node.times[1]),
        ctime: None,
        btime: None,
        blocks: None,
        xattrs: node.xattrs.clone(),
        first_path: None,
        target: node.target.clone(),
        content: is_file.then(|| node.hash()),
        data: None,
    }
}

fn decoded(compression: u32, data: &[u8], len: usize) -> Checked<Vec<u8>> {
    use butterfs_fs::file::codec::{Algorithm, decompress};
    let algorithm = match compression {
        1 => Algorithm::Zlib,
        2 => Algorithm::Zstd,
        3 => Algorithm::Lzo,
        _ => return Err("unknown compression".to_owned()),
    };
    let mut out = vec![0; len];
    decompress(algorithm, data, &mut out, 4096).map_err(|error| error.to_string())?;
    Ok(out)
}
