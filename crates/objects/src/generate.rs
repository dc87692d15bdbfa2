//! A snapshot of a repository as a send stream.
//!
//! Every snapshot is a stream of its own that makes a new subvolume; so the receiver needs nothing but the snapshots
//! that content is shared with. Content that an earlier one of these has at the same place is cloned from there.
//!
//! # Invariants
//! 1. One thread reads the index, some fetch content, one writes the stream. Memory is bounded: [`AHEAD`] batches and
//!    two.
//! 2. Directories come before their entries; their owners, modes, attributes and times after them.

use crate::archive::Archive;
use crate::items::{self, DIRECTORY, Extent, Inode, REGULAR, SYMLINK};
use crate::manifest::Manifest;
use crate::piece::PieceRef;
use crate::repository::Repository;
use crate::view::View;
use butterfs_send::wire::{self, Command, Uuid, Version};
use butterfs_store::{Error, Kind, Result};
use bytes::Bytes;
use rustc_hash::FxHashMap;
use std::io::{IoSlice, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

/// Bytes of content, or of commands, in a batch.
const BATCH_BYTES: usize = 4 << 20;
/// Commands of a batch.
const BATCH_STEPS: usize = 8192;
/// Batches that are fetched at once.
const FETCHERS: usize = 4;
/// Batches that wait until they are written.
const AHEAD: usize = 6;
/// Names of a directory that are read at once.
const NAMES: usize = 1024;
/// Content of one write.
const WRITE_BYTES: [usize; 2] = [48 << 10, 128 << 10];
/// Content of so many bytes is written from where it is.
const NOT_COPIED: usize = 16 << 10;
const SECTOR: u64 = 4096;

/// The progress of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Bytes of the stream.
    pub bytes: u64,
    /// Content of files, cloned or written.
    pub content: u64,
}

enum Step {
    /// A whole command.
    Command(Vec<u8>),
    /// Content of a file: path, offset, where it is.
    Write(Arc<[u8]>, u64, (u32, u32, PieceRef)),
}

#[derive(Default)]
struct Batch {
    steps: Vec<Step>,
    bytes: usize,
    content: u64,
}

/// Writes the stream of a snapshot. `base` is a snapshot that the receiver has.
pub fn stream(
    repository: &Repository,
    manifest: &Manifest,
    base: Option<&Manifest>,
    out: &mut (dyn Write + Send),
    progress: &mut (dyn FnMut(Written) + Send),
) -> Result<Written> {
    let archive = &Archive::sequential(repository);
    let version = manifest.stream_version();
    // A batch goes to the fetchers; the place where its content will arrive goes to the writer, in order.
    let (batches, waiting) = sync_channel::<Fetch>(0);
    let (places, ready) = sync_channel::<Receiver<Fetched>>(AHEAD);
    let waiting = Arc::new(Mutex::new(waiting));
    std::thread::scope(|scope| {
        let start = |waiting: Arc<Mutex<Receiver<Fetch>>>| scope.spawn(move || fetch(archive, &waiting));
        let fetchers = std::iter::repeat_n(waiting, FETCHERS).map(start).collect::<Vec<_>>();
        let writer = scope.spawn(move || write(ready, version, out, progress));
        let walked = Walk::new(archive, manifest, base, Ahead { batches, places }).and_then(Walk::run);
        for fetcher in fetchers {
            fetcher.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        let written = writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // When the writer fails, the walk fails too: its channel is closed.
        match (walked, written) {
            (_, Err(error)) => Err(error),
            (Err(error), _) => Err(error),
            (Ok(()), written) => written,
        }
    })
}

/// A batch with the pieces that its content is in, or why they cannot be had.
type Fetched = Result<(Batch, FxHashMap<PieceRef, Bytes>)>;
/// A batch, and the place where it is wanted.
type Fetch = (Batch, SyncSender<Fetched>);

/// The ways to the fetchers and to the writer.
struct Ahead {
    batches: SyncSender<Fetch>,
    places: SyncSender<Receiver<Fetched>>,
}

fn fetch(archive: &Archive, batches: &Mutex<Receiver<Fetch>>) {
    loop {
        let next = batches.lock().expect("no thread panics with the lock").recv();
        let Ok((batch, place)) = next else { return };
        let pieces = batch.steps.iter().filter_map(|step| match step {
            Step::Write(_, _, (.., at)) => Some(*at),
            Step::Command(_) => None,
        });
        let found = archive.pieces(pieces);
        // A writer that has failed waits for nothing.
        let _ = place.send(found.map(|found| (batch, found)));
    }
}

fn write(
    ready: Receiver<Receiver<Fetched>>,
    version: Version,
    out: &mut (dyn Write + Send),
    progress: &mut (dyn FnMut(Written) + Send),
) -> Result<Written> {
    let failed = |error: std::io::Error| Error::new(Kind::Broken, format!("cannot write the stream: {error}"));
    let mut written = Written::default();
    let mut buffer = Vec::new();
    wire::encode_header(version, &mut buffer);
    // A fetcher that panics leaves the place empty; its panic goes on when it is joined.
    for fetched in ready.iter().map_while(|place| place.recv().ok()) {
        let (batch, pieces) = fetched?;
        for step in batch.steps {
            match step {
                Step::Command(bytes) => buffer.extend_from_slice(&bytes),
                Step::Write(path, offset, (skip, len, at)) => {
                    let content = &pieces[&at][skip as usize..(skip + len) as usize];
                    let most = WRITE_BYTES[usize::from(version != Version::V1)];
                    for (number, data) in content.chunks(most).enumerate() {
                        let offset = offset + (number * most) as u64;
                        let encoded = wire::encode_write_head(&path, offset, data, version, &mut buffer);
                        encoded.map_err(unencodable)?;
                        if data.len() < NOT_COPIED {
                            buffer.extend_from_slice(data);
                            continue;
                        }
                        written.bytes += (buffer.len() + data.len()) as u64;
                        write_both(out, &buffer, data).map_err(failed)?;
                        buffer.clear();
                    }
                }
            }
            if buffer.len() >= 1 << 20 {
                out.write_all(&buffer).map_err(failed)?;
                written.bytes += buffer.len() as u64;
                buffer.clear();
            }
        }
        written.content += batch.content;
        progress(written);
    }
    out.write_all(&buffer).and_then(|()| out.flush()).map_err(failed)?;
    written.bytes += buffer.len() as u64;
    progress(written);
    Ok(written)
}

/// Writes two runs of bytes, one behind the other.
fn write_both(out: &mut dyn Write, first: &[u8], second: &[u8]) -> std::io::Result<()> {
    let mut both = &mut [IoSlice::new(first), IoSlice::new(second)][..];
    while !both.is_empty() {
        match out.write_vectored(both) {
            Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
            Ok(len) => IoSlice::advance_slices(&mut both, len),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn encode(command: &Command<'_>, version: Version, out: &mut Vec<u8>) -> Result<()> {
    wire::encode(command, version, out).map_err(unencodable)
}

fn unencodable(error: wire::Unencodable) -> Error {
    Error::new(Kind::Invalid, format!("the snapshot fits into no stream: {error}"))
}

/// A snapshot that the receiver has.
struct Base<'a> {
    view: View<'a>,
    uuid: Uuid,
    transid: u64,
}

struct Walk<'a> {
    view: View<'a>,
    base: Option<Base<'a>>,
    version: Version,
    manifest: &'a Manifest,
    batch: Batch,
    ahead: Ahead,
    /// There are names of inodes that have others, which they are made by.
    has_links: bool,
}

/// A directory that is being walked.
struct Open {
    ino: u64,
    path: Vec<u8>,
    names: std::vec::IntoIter<crate::view::Entry>,
    last: Vec<u8>,
    is_done: bool,
    has_links: bool,
}

impl<'a> Walk<'a> {
    fn new(archive: &'a Archive, manifest: &'a Manifest, base: Option<&Manifest>, ahead: Ahead) -> Result<Walk<'a>> {
        let of_base = |base: &Manifest| {
            let uuid = base.uuid_bytes(archive.repository())?;
            Ok(Base { view: View::new(archive, base)?, uuid, transid: base.transid })
        };
        Ok(Walk {
            view: View::new(archive, manifest)?,
            base: base.map(of_base).transpose()?,
            version: manifest.stream_version(),
            manifest,
            batch: Batch::default(),
            ahead,
            has_links: false,
        })
    }

    fn run(mut self) -> Result<()> {
        let uuid = self.manifest.uuid_bytes(self.view.archive().repository())?;
        let (path, transid) = (self.manifest.name.as_bytes(), self.manifest.transid);
        self.command(&Command::Subvol { path, uuid, transid })?;
        self.walk(false)?;
        if self.has_links {
            self.walk(true)?;
        }
        self.command(&Command::End {})?;
        self.hand_over()
    }

    fn command(&mut self, command: &Command<'_>) -> Result<()> {
        let mut bytes = Vec::new();
        encode(command, self.version, &mut bytes)?;
        self.batch.bytes += bytes.len();
        self.batch.steps.push(Step::Command(bytes));
        self.hand_over_if_full()
    }

    fn hand_over_if_full(&mut self) -> Result<()> {
        let is_full = self.batch.bytes >= BATCH_BYTES || self.batch.steps.len() >= BATCH_STEPS;
        if is_full { self.hand_over() } else { Ok(()) }
    }

    fn hand_over(&mut self) -> Result<()> {
        let gone = || Error::new(Kind::Broken, "the stream was cut off");
        let (place, fetched) = sync_channel(1);
        self.ahead.places.send(fetched).map_err(|_| gone())?;
        self.ahead.batches.send((std::mem::take(&mut self.batch), place)).map_err(|_| gone())
    }

    /// Makes everything but links, or only links.
    fn walk(&mut self, only_links: bool) -> Result<()> {
        let open = |ino, path| Open {
            ino,
            path,
            names: Vec::new().into_iter(),
            last: Vec::new(),
            is_done: false,
            has_links: false,
        };
        let mut way = vec![open(items::ROOT, Vec::new())];
        while let Some(directory) = way.last_mut() {
            let Some(entry) = directory.names.next() else {
                if !directory.is_done {
                    let names = self.view.entries(directory.ino, &directory.last, NAMES)?;
                    directory.is_done = names.len() < NAMES;
                    directory.last = names.last().map(|entry| entry.name.clone()).unwrap_or_default();
                    directory.names = names.into_iter();
                    continue;
                }
                let Some(done) = way.pop() else { break };
                let inode = self.view.inode(done.ino)?;
                if !only_links {
                    self.attributes(&done.path, done.ino, &inode)?;
                }
                if !only_links || done.has_links {
                    self.times(&done.path, &inode)?;
                }
                continue;
            };
            let mut path = directory.path.clone();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(&entry.name);
            if entry.kind == DIRECTORY {
                self.view.enter(directory.ino, &entry)?;
                if !only_links {
                    self.command(&Command::Mkdir { path: &path, ino: entry.ino })?;
                }
                way.push(open(entry.ino, path));
                continue;
            }
            let inode = self.view.inode(entry.ino)?;
            let first = match inode.links {
                0 | 1 => None,
                _ => self.view.first_name(entry.ino)?.filter(|first| *first != (directory.ino, entry.name.clone())),
            };
            match first {
                None if only_links => {}
                None => self.make(&path, entry.ino, &inode)?,
                Some(_) if !only_links => self.has_links = true,
                Some(_) => {
                    directory.has_links = true;
                    let existing = self.view.path_of(entry.ino)?.unwrap_or_default();
                    self.command(&Command::Link { path: &path, existing: &existing })?;
                }
            }
        }
        Ok(())
    }

    /// Makes anything but a directory.
    fn make(&mut self, path: &[u8], ino: u64, inode: &Inode) -> Result<()> {
        match inode.mode & items::TYPE {
            REGULAR => {
                self.command(&Command::Mkfile { path, ino })?;
                self.flags(path, inode)?;
                self.content(path, ino, inode)?;
            }
            SYMLINK => {
                let target = self.view.link_text(ino)?;
                self.command(&Command::Symlink { path, ino, target: &target })?;
                self.owner(path, inode)?;
                self.xattrs(path, ino)?;
                return self.times(path, inode);
            }
            0o010_000 => self.command(&Command::Mkfifo { path, ino, rdev: 0, mode: inode.mode.into() })?,
            0o140_000 => self.command(&Command::Mksock { path, ino, rdev: 0, mode: inode.mode.into() })?,
            0o020_000 | 0o060_000 => {
                self.command(&Command::Mknod { path, ino, rdev: inode.device, mode: inode.mode.into() })?;
            }
            _ => {
                return Err(self
                    .view
                    .archive()
                    .repository()
                    .damaged_snapshot(self.manifest, "it has an inode of no type"));
            }
        }
        self.owner(path, inode)?;
        self.command(&Command::Chmod { path, mode: (inode.mode & 0o7777).into() })?;
        self.xattrs(path, ino)?;
        self.times(path, inode)
    }

    fn attributes(&mut self, path: &[u8], ino: u64, inode: &Inode) -> Result<()> {
        self.flags(path, inode)?;
        self.owner(path, inode)?;
        self.command(&Command::Chmod { path, mode: (inode.mode & 0o7777).into() })?;
        self.xattrs(path, ino)
    }

    fn flags(&mut self, path: &[u8], inode: &Inode) -> Result<()> {
        if self.version == Version::V1 || inode.flags == 0 {
            return Ok(());
        }
        self.command(&Command::Fileattr { path, flags: inode.flags })
    }

    fn owner(&mut self, path: &[u8], inode: &Inode) -> Result<()> {
        self.command(&Command::Chown { path, uid: inode.uid.into(), gid: inode.gid.into() })
    }

    fn xattrs(&mut self, path: &[u8], ino: u64) -> Result<()> {
        for (name, value) in self.view.xattrs(ino)? {
            self.command(&Command::SetXattr { path, name: &name, value: &value })?;
        }
        Ok(())
    }

    fn times(&mut self, path: &[u8], inode: &Inode) -> Result<()> {
        let [atime, mtime, ctime, made] = inode.times;
        let otime = (self.version != Version::V1).then_some(made);
        self.command(&Command::Utimes { path, atime, mtime, ctime, otime })
    }

    fn content(&mut self, path: &[u8], ino: u64, inode: &Inode) -> Result<()> {
        let source = self.source(ino)?;
        let view = self.view;
        let shared: Arc<[u8]> = path.into();
        let (mut end, mut clone): (u64, Option<(u64, u64)>) = (0, None);
        view.extents(ino, 0, u64::MAX, |offset, extent| {
            self.batch.content += extent.len;
            let Some((skip, at)) = extent.data else {
                // Also behind the end of the file.
                self.clone_range(&source, &mut clone, path)?;
                return self.command(&Command::Fallocate { path, mode: 1, offset, len: extent.len });
            };
            end = offset + extent.len;
            let is_shared = match &source {
                Some((base, _, size)) if self.can_clone(offset, end, inode.size, *size) => {
                    base.is_same(ino, offset, extent)?
                }
                _ => false,
            };
            if !is_shared {
                self.clone_range(&source, &mut clone, path)?;
                self.batch.bytes += at.raw as usize;
                self.batch.steps.push(Step::Write(shared.clone(), offset, (skip, extent.len as u32, at)));
                return self.hand_over_if_full();
            }
            match &mut clone {
                Some((_, until)) if *until == offset => *until = end,
                _ => {
                    self.clone_range(&source, &mut clone, path)?;
                    clone = Some((offset, end));
                }
            }
            Ok(())
        })?;
        self.clone_range(&source, &mut clone, path)?;
        if end != inode.size { self.command(&Command::Truncate { path, size: inode.size }) } else { Ok(()) }
    }

    /// The same file of the base.
    fn source(&self, ino: u64) -> Result<Option<Source<'a>>> {
        let Some(base) = &self.base else { return Ok(None) };
        let inode = base.view.inode_if_any(ino)?.filter(|inode| inode.is(REGULAR));
        let Some(inode) = inode else { return Ok(None) };
        let Some(path) = base.view.path_of(ino)? else { return Ok(None) };
        Ok(Some((Base { view: base.view, uuid: base.uuid, transid: base.transid }, path, inode.size)))
    }

    /// Whether a range may be cloned: whole sectors, or up to the end of both files.
    fn can_clone(&self, from: u64, until: u64, size: u64, source_size: u64) -> bool {
        let at_end = until == size && size == source_size;
        from.is_multiple_of(SECTOR) && until <= source_size && (at_end || until.is_multiple_of(SECTOR))
    }

    fn clone_range(&mut self, source: &Option<Source<'a>>, clone: &mut Option<(u64, u64)>, path: &[u8]) -> Result<()> {
        let (Some((base, from, _)), Some((offset, end))) = (source, clone.take()) else { return Ok(()) };
        self.command(&Command::Clone {
            offset,
            len: end - offset,
            path,
            source_uuid: base.uuid,
            source_transid: base.transid,
            source: from,
            source_offset: offset,
        })
    }
}

/// The file of the base, its path and its size.
type Source<'a> = (Base<'a>, Vec<u8>, u64);

impl Base<'_> {
    /// Whether the file has the same bytes there.
    fn is_same(&self, ino: u64, offset: u64, extent: Extent) -> Result<bool> {
        let mut covered = 0;
        self.view.extents(ino, offset, offset + extent.len, |begin, own| {
            if own == extent.part(begin - offset, own.len) {
                covered += own.len;
            }
            Ok(())
        })?;
        Ok(covered == extent.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Digest;
    use crate::items::{ENTRY, INODE, NAME, entry_value, key, name_rest};
    use crate::node::Node;
    use crate::piece::Encoder;
    use crate::repository::Access;
    use crate::segment;
    use butterfs_store::Store;

    /// The stream of a snapshot whose index has these entries, in a store whose digests are all right.
    fn streamed(mut entries: Vec<crate::node::Entry>) -> Result<Vec<u8>> {
        let repository = Repository::open_or_make(Store::in_memory(), &Access::default())?;
        entries.sort();
        let node = Node { level: 0, entries }.encode();
        let mut bytes = segment::MAGIC.to_vec();
        let (offset, stored) = (bytes.len() as u32, Encoder::new(0).append(&node, None, &mut bytes));
        let name = Digest::of(&bytes);
        repository.store().create(&segment::key(&name), bytes)?;
        let root = PieceRef { segment: name, offset, stored, raw: node.len() as u32, digest: Digest::of(&node) };
        let manifest = Manifest {
            name: "s".to_owned(),
            uuid: "00".repeat(16),
            transid: 1,
            parent: None,
            time: 0,
            bytes: 0,
            inodes: 2,
            next_inode: 3,
            stream: 1,
            root: hex::encode(root.to_bytes()),
            level: 0,
            pieces: Vec::new(),
            sent: 0,
        };
        let mut out = Vec::new();
        stream(&repository, &manifest, None, &mut out, &mut |_| {})?;
        Ok(out)
    }

    fn directory(ino: u64) -> crate::node::Entry {
        let inode = Inode { mode: DIRECTORY | 0o755, links: 1, ..Inode::default() };
        (key(ino, INODE, b""), inode.to_bytes())
    }

    fn entry(of: u64, name: &[u8], ino: u64) -> crate::node::Entry {
        (key(of, ENTRY, name), entry_value(ino, DIRECTORY))
    }

    fn name(of: u64, directory: u64, name: &[u8]) -> crate::node::Entry {
        (key(of, NAME, &name_rest(directory, name)), Vec::new())
    }

    #[test]
    fn directories_in_a_circle_and_impossible_names_are_refused() {
        let good = [directory(1), directory(2), entry(1, b"a", 2), name(2, 1, b"a")];
        assert!(streamed(good.to_vec()).is_ok());
        for (bad, rule) in [
            (entry(2, b"up", 1), "its own name does not lead to"),
            (entry(2, b"self", 2), "its own name does not lead to"),
            (entry(1, b"..", 2), "impossible name"),
            (entry(1, b"x/y", 2), "impossible name"),
            (entry(2, b"gone", 9), "its own name does not lead to"),
        ] {
            let refused = streamed([&good[..], &[bad]].concat()).unwrap_err();
            assert!(refused.to_string().contains(rule), "{refused}");
        }
    }
}
