//! From trees to a sink: walks directories, restores what is wanted, and then what no directory leads to any more.
//!
//! ```text
//! directory ─► entries ─► files, links, …   each inode once, each directory once, so that no cycle goes on for ever
//! lost blocks? ─► inodes that no entry has led to ─► the path that their own references name, or lost+found
//! ```
//!
//! Invariants: (1) nothing is read but through [`Tree`] and [`Reader`], which trust nothing; (2) an error of the sink
//! ends the run unless errors are ignored; damage of the source never does; (3) everything that was restored is told
//! with its grade.

mod bits;
mod lost;
mod selection;

pub use selection::Selection;

use crate::data::{Content, Grade, Outcome, Reader};
use crate::roots::Roots;
use crate::sink::{Attributes, Incoming, Made, Moment, Path, Sink, safe_name, shown};
use crate::subvolume::{self, DIRECTORY, Entry, Inode, REGULAR, SYMLINK, TYPE_MASK, Target};
use crate::tree::{Losses, Tree};
use crate::wreck::Wreck;
use bits::Bits;
use butterfs_fs::inode::attr::device_numbers;
use butterfs_ondisk::items::{InodeItem, Timespec, dir_type};
use butterfs_ondisk::{Key, KeyType, TreeId};
use rustc_hash::FxHashMap;
use std::io;

/// Which parts of the files are restored, and how.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    /// Owner, mode and times.
    pub metadata: bool,
    /// Extended attributes, ACLs among them.
    pub xattrs: bool,
    /// Symbolic links.
    pub symlinks: bool,
    /// Snapshots inside of what is restored; other subvolumes always are.
    pub snapshots: bool,
    /// Devices, FIFOs, sockets.
    pub special: bool,
    /// Other names of one file are links; else they are copies.
    pub hard_links: bool,
    /// Inodes that no directory leads to any more are restored too.
    pub orphans: bool,
    /// Errors of the target end nothing.
    pub ignore_errors: bool,
    /// Files of which some content is damaged or missing are left out.
    pub whole_files_only: bool,
    /// Nothing is restored, only told; contents are not read.
    pub dry_run: bool,
    /// So many bytes of content are restored at most.
    pub most_bytes: Option<u64>,
}

/// Something that a run has come to.
#[derive(Debug)]
pub enum Event<'a> {
    /// It is being restored.
    Restoring(&'a Path),
    /// A directory has been looked through.
    Searched(&'a Path),
    /// Something has its name already, and stays.
    Kept(&'a Path),
    /// A snapshot is left out.
    SkippedSnapshot(&'a [u8]),
    /// A file has been restored, or left out because only whole ones are wanted.
    File(&'a Path, &'a Outcome, bool),
    /// A name that leads elsewhere was replaced.
    Renamed(&'a Path, &'a [u8]),
    /// Something could not be made.
    Failed(&'a Path, &'a io::Error),
    /// A sentence about something that went wrong beside the content.
    Complaint(&'a str),
}

/// The counters of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Summary {
    /// Regular files.
    pub files: u64,
    /// Bytes of their contents.
    pub bytes: u64,
    /// Of the files, those whose content fits its checksums.
    pub verified: u64,
    /// Those for whose content there are no checksums, or not for all of it.
    pub unverified: u64,
    /// Those of whose content something is damaged or missing.
    pub partial: u64,
    /// Those of whose content nothing is left.
    pub lost: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Devices, FIFOs, sockets.
    pub special: u64,
    /// Other names of files.
    pub links: u64,
    /// Things whose name something had already.
    pub kept: u64,
    /// Things that no directory led to.
    pub orphans: u64,
    /// Things that could not be made.
    pub failed: u64,
    /// Tree blocks that could not be read.
    pub lost_blocks: u64,
}

impl Summary {
    /// Takes in what another run has restored.
    pub fn add(&mut self, other: &Summary) {
        let pairs = [
            (&mut self.files, other.files),
            (&mut self.bytes, other.bytes),
            (&mut self.verified, other.verified),
            (&mut self.unverified, other.unverified),
            (&mut self.partial, other.partial),
            (&mut self.lost, other.lost),
            (&mut self.directories, other.directories),
            (&mut self.symlinks, other.symlinks),
            (&mut self.special, other.special),
            (&mut self.links, other.links),
            (&mut self.kept, other.kept),
            (&mut self.orphans, other.orphans),
            (&mut self.failed, other.failed),
            (&mut self.lost_blocks, other.lost_blocks),
        ];
        pairs.into_iter().for_each(|(own, more)| *own += more);
    }
}

/// Restores from one state of a filesystem into one sink.
pub struct Restorer<'a> {
    wreck: &'a Wreck,
    roots: &'a Roots,
    wanted: Wanted,
    selection: Selection,
    sink: &'a mut dyn Sink,
    tell: &'a mut dyn FnMut(Event<'_>),
    reader: Option<(TreeId, Reader<'a>)>,
    visited: FxHashMap<TreeId, Bits>,
    links: FxHashMap<(TreeId, u64), Vec<Vec<u8>>>,
    losses: FxHashMap<TreeId, Losses>,
    /// Paths of the subvolumes that were gone into.
    places: Vec<(TreeId, Vec<Vec<u8>>)>,
    /// Directories that were made for orphans.
    made: std::collections::HashSet<Vec<Vec<u8>>>,
    summary: Summary,
}

/// A directory whose entries are being restored.
struct Frame {
    tree: TreeId,
    ino: u64,
    path_len: usize,
    entries: std::vec::IntoIter<Entry>,
    attributes: Attributes,
    /// It is restored itself, not only passed.
    is_made: bool,
}

impl<'a> Restorer<'a> {
    /// A run that has not begun.
    pub fn new(
        wreck: &'a Wreck,
        roots: &'a Roots,
        wanted: Wanted,
        selection: Selection,
        sink: &'a mut dyn Sink,
        tell: &'a mut dyn FnMut(Event<'_>),
    ) -> Restorer<'a> {
        let (reader, visited, links, losses, places, made, summary) = Default::default();
        Restorer { wreck, roots, wanted, selection, sink, tell, reader, visited, links, losses, places, made, summary }
    }

    /// Restores what lies below a directory of a subvolume.
    pub fn run(mut self, tree: TreeId, top: u64) -> io::Result<Summary> {
        let mut path = Vec::new();
        self.walk(tree, top, &mut path, true)?;
        if self.wanted.orphans && top == ROOT_DIRECTORY {
            self.restore_orphans()?;
        }
        self.finish()
    }

    /// Restores single inodes of a subvolume, each at the path that its references name.
    pub fn run_inodes(mut self, tree: TreeId, inodes: &[u64]) -> io::Result<Summary> {
        self.places.push((tree, Vec::new()));
        self.restore_inodes(tree, inodes)?;
        self.finish()
    }

    fn finish(mut self) -> io::Result<Summary> {
        self.summary.lost_blocks = self.losses.values().map(|losses| losses.blocks).sum();
        self.pass_complaints();
        self.sink.finish()?;
        self.pass_complaints();
        Ok(self.summary)
    }

    fn pass_complaints(&mut self) {
        for sentence in self.sink.complaints() {
            (self.tell)(Event::Complaint(&sentence));
        }
    }

    fn tree(&self, id: TreeId) -> Option<Tree<'a>> {
        self.roots.trees.get(&id).map(|root| Tree::new(self.wreck, root.root))
    }

    fn reader(&mut self, id: TreeId) -> Option<&mut Reader<'a>> {
        if self.reader.as_ref().is_none_or(|(known, _)| *known != id) {
            let checksums = self.roots.checksums().map(|root| Tree::new(self.wreck, root));
            self.reader = Some((id, Reader::new(self.tree(id)?, checksums)));
        }
        self.reader.as_mut().map(|(_, reader)| reader)
    }

    fn visit(&mut self, tree: TreeId, ino: u64) -> bool {
        self.visited.entry(tree).or_default().insert(ino)
    }

    fn lose(&mut self, tree: TreeId, losses: Losses) {
        if !losses.is_none() {
            self.losses.entry(tree).or_default().add(losses);
        }
    }

    /// Restores a directory and everything below it. `is_top`: it is there already, and only its attributes may be
    /// wanted.
    fn walk(&mut self, tree: TreeId, ino: u64, path: &mut Vec<Vec<u8>>, is_top: bool) -> io::Result<()> {
        let mut stack = Vec::new();
        self.open(tree, ino, path, is_top, &mut stack)?;
        while let Some(frame) = stack.last_mut() {
            path.truncate(frame.path_len);
            let (parent, entry) = ((frame.tree, frame.ino), frame.entries.next());
            match entry {
                Some(entry) => self.entry(parent, entry, path, &mut stack)?,
                None => {
                    let frame = stack.pop().expect("it was looked at");
                    (self.tell)(Event::Searched(path));
                    if frame.is_made && !self.wanted.dry_run {
                        let left = self.sink.leave(path, &frame.attributes);
                        self.note(path, left.map(|()| Made::Yes))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Goes into a directory, unless it was visited before.
    fn open(&mut self, id: TreeId, ino: u64, path: &[Vec<u8>], is_top: bool, stack: &mut Vec<Frame>) -> io::Result<()> {
        let Some(tree) = self.tree(id) else { return Ok(()) };
        if !self.visit(id, ino) {
            return Ok(());
        }
        if ino == ROOT_DIRECTORY {
            self.places.push((id, path.to_vec()));
        }
        let inode = subvolume::inode(&tree, ino);
        let (entries, losses) = subvolume::entries(&tree, ino);
        self.lose(id, losses);
        self.lose_inode(id, &inode);
        let attributes = self.attributes(&inode, DIRECTORY | 0o700);
        let is_made = self.selection.takes_inside(path);
        if is_made && !self.wanted.dry_run {
            let made = self.sink.directory(path, &attributes);
            if self.note(path, made.map(|()| Made::Yes))?.is_none() {
                return Ok(());
            }
        }
        self.summary.directories += u64::from(is_made && !is_top);
        stack.push(Frame { tree: id, ino, path_len: path.len(), entries: entries.into_iter(), attributes, is_made });
        Ok(())
    }

    fn lose_inode(&mut self, tree: TreeId, inode: &Inode) {
        let worst = inode.quality;
        self.lose(tree, Losses { blocks: inode.lost_blocks, ranges: Vec::new(), worst });
    }

    fn entry(
        &mut self,
        parent: (TreeId, u64),
        entry: Entry,
        path: &mut Vec<Vec<u8>>,
        stack: &mut Vec<Frame>,
    ) -> io::Result<()> {
        let tree = parent.0;
        let name = safe_name(&entry.name);
        let is_renamed = name != entry.name;
        path.push(name);
        if !self.selection.takes(path) {
            // Nothing of it is wanted, nor lost.
            return self.pass_over(tree, &entry);
        }
        if is_renamed {
            (self.tell)(Event::Renamed(path, &entry.name));
        }
        match entry.target {
            Target::Subvolume(id) if !self.is_home(id, parent, &entry.name) => self.stub(path),
            Target::Subvolume(id) => {
                let Some(root) = self.roots.trees.get(&id) else { return Ok(()) };
                if root.key_offset != 0 && !self.wanted.snapshots {
                    (self.tell)(Event::SkippedSnapshot(&entry.name));
                    return Ok(());
                }
                (self.tell)(Event::Restoring(path));
                self.open(id, ROOT_DIRECTORY, path, false, stack)
            }
            Target::Inode(ino) if entry.kind == dir_type::DIR => {
                (self.tell)(Event::Restoring(path));
                self.open(tree, ino, path, false, stack)
            }
            Target::Inode(ino) => self.inode(tree, ino, entry.kind, path).map(drop),
        }
    }

    /// Whether a subvolume is here. In a snapshot, entries of subvolumes are empty directories.
    fn is_home(&self, id: TreeId, parent: (TreeId, u64), name: &[u8]) -> bool {
        let home = self.roots.names.get(&id);
        home.is_none_or(|(tree, directory, known)| (*tree, *directory) == parent && known == name)
    }

    fn stub(&mut self, path: &Path) -> io::Result<()> {
        let attributes = Attributes { mode: DIRECTORY | 0o755, ..Attributes::default() };
        if !self.wanted.dry_run {
            let made = self.sink.directory(path, &attributes).and_then(|()| self.sink.leave(path, &attributes));
            self.note(path, made.map(|()| Made::Yes))?;
        }
        self.summary.directories += 1;
        Ok(())
    }

    fn pass_over(&mut self, tree: TreeId, entry: &Entry) -> io::Result<()> {
        if let Target::Inode(ino) = entry.target {
            self.visit(tree, ino);
        }
        Ok(())
    }

    /// Restores what is no directory.
    fn inode(&mut self, id: TreeId, ino: u64, kind: u8, path: &Path) -> io::Result<Option<Made>> {
        let Some(tree) = self.tree(id) else { return Ok(None) };
        self.visit(id, ino);
        if self.wanted.hard_links
            && let Some(first) = self.links.get(&(id, ino)).cloned()
        {
            (self.tell)(Event::Restoring(path));
            let made = if self.wanted.dry_run { Ok(Made::Yes) } else { self.sink.link(path, &first) };
            let made = self.note(path, made)?;
            self.summary.links += u64::from(made == Some(Made::Yes));
            return Ok(made);
        }
        let inode = subvolume::inode(&tree, ino);
        self.lose_inode(id, &inode);
        if inode.item.is_none() && !has_content(&tree, ino) {
            // A name is all that is left.
            self.summary.lost += 1;
            return Ok(None);
        }
        let attributes = self.attributes(&inode, subvolume::mode_of(kind));
        let has_links = inode.item.is_some_and(|item| item.nlink.get() > 1) || inode.names.len() > 1;
        let made = match attributes.mode & TYPE_MASK {
            REGULAR => self.file(id, ino, &inode, &attributes, path)?,
            SYMLINK => self.symlink(&tree, ino, &attributes, path)?,
            _ => self.special(&attributes, path)?,
        };
        if has_links && made == Some(Made::Yes) {
            self.links.insert((id, ino), path.to_vec());
        }
        Ok(made)
    }

    fn file(
        &mut self,
        id: TreeId,
        ino: u64,
        inode: &Inode,
        attributes: &Attributes,
        path: &Path,
    ) -> io::Result<Option<Made>> {
        let (wanted, most) = (self.wanted, self.wanted.most_bytes);
        (self.tell)(Event::Restoring(path));
        let Some(reader) = self.reader(id) else { return Ok(None) };
        let content = reader.content(ino, inode);
        if wanted.dry_run {
            self.summary.files += 1;
            self.summary.bytes = self.summary.bytes.saturating_add(content.size);
            return Ok(Some(Made::Yes));
        }
        let data: u64 = content.ranges.iter().map(|range| range.end - range.start).sum();
        if most.is_some_and(|most| self.summary.bytes.saturating_add(data) > most) {
            return Err(io::Error::other(format!("{}: more would be restored than was allowed", shown(path))));
        }
        if wanted.whole_files_only {
            let outcome = self.judge(id, &content)?;
            if outcome.grade() > Grade::Unverified {
                self.count(&outcome);
                (self.tell)(Event::File(path, &outcome, false));
                return Ok(None);
            }
        }
        let mut outcome = Outcome::default();
        let (_, reader) = self.reader.as_mut().expect("it was just used");
        let mut fill = |take: &mut crate::sink::Take<'_>| {
            outcome = reader.read(&content, take)?;
            Ok(())
        };
        let incoming = Incoming { size: content.size, ranges: &content.ranges, fill: &mut fill };
        let made = self.sink.file(path, attributes, incoming);
        let made = self.note(path, made)?;
        if made == Some(Made::Yes) {
            self.summary.files += 1;
            self.summary.bytes = self.summary.bytes.saturating_add(data);
            self.count(&outcome);
            (self.tell)(Event::File(path, &outcome, true));
            if content.reaches_beyond {
                (self.tell)(Event::Complaint(&format!("{}: data lies behind the end of the file", shown(path))));
            }
        }
        Ok(made)
    }

    /// Reads a file for what it is worth.
    fn judge(&mut self, id: TreeId, content: &Content) -> io::Result<Outcome> {
        match self.reader(id) {
            Some(reader) => reader.read(content, &mut |_, _| Ok(())),
            None => Ok(Outcome::default()),
        }
    }

    fn count(&mut self, outcome: &Outcome) {
        let counter = match outcome.grade() {
            Grade::Verified => &mut self.summary.verified,
            Grade::Unverified => &mut self.summary.unverified,
            Grade::Partial => &mut self.summary.partial,
            Grade::Lost => &mut self.summary.lost,
        };
        *counter += 1;
    }

    fn symlink(&mut self, tree: &Tree<'a>, ino: u64, attributes: &Attributes, path: &Path) -> io::Result<Option<Made>> {
        if !self.wanted.symlinks {
            return Ok(None);
        }
        (self.tell)(Event::Restoring(path));
        let Some(target) = subvolume::link_target(tree, ino) else {
            let error = io::Error::other("nothing says where this symbolic link leads");
            return self.note(path, Err(error));
        };
        let made = if self.wanted.dry_run { Ok(Made::Yes) } else { self.sink.symlink(path, attributes, &target) };
        let made = self.note(path, made)?;
        self.summary.symlinks += u64::from(made == Some(Made::Yes));
        Ok(made)
    }

    fn special(&mut self, attributes: &Attributes, path: &Path) -> io::Result<Option<Made>> {
        if !self.wanted.special {
            return Ok(None);
        }
        (self.tell)(Event::Restoring(path));
        let made = if self.wanted.dry_run { Ok(Made::Yes) } else { self.sink.node(path, attributes) };
        let made = self.note(path, made)?;
        self.summary.special += u64::from(made == Some(Made::Yes));
        Ok(made)
    }

    /// Tells what became of something; `None`: it could not be made, and errors are ignored.
    fn note(&mut self, path: &Path, made: io::Result<Made>) -> io::Result<Option<Made>> {
        match made {
            Ok(Made::Yes) => Ok(Some(Made::Yes)),
            Ok(Made::Kept) => {
                self.summary.kept += 1;
                (self.tell)(Event::Kept(path));
                Ok(Some(Made::Kept))
            }
            Err(error) if is_final(&error) || !self.wanted.ignore_errors => {
                Err(io::Error::new(error.kind(), format!("{}: {error}", shown(path))))
            }
            Err(error) => {
                self.summary.failed += 1;
                (self.tell)(Event::Failed(path, &error));
                Ok(None)
            }
        }
    }

    fn attributes(&self, inode: &Inode, fallback: u32) -> Attributes {
        let xattrs = if self.wanted.xattrs { inode.xattrs.clone() } else { Default::default() };
        let is_wanted = self.wanted.metadata;
        // An item whose type is none says nothing.
        let item = inode.item.filter(|item| (1..=14).contains(&((item.mode.get() & TYPE_MASK) >> 12)));
        let Some(item) = item else {
            return Attributes { mode: fallback, xattrs, is_wanted, ..Attributes::default() };
        };
        Attributes { xattrs, is_wanted, ..of_item(&item) }
    }
}

/// The number of the top directory of every subvolume.
pub const ROOT_DIRECTORY: u64 = 256;

/// Whether any extent of an inode is known.
fn has_content(tree: &Tree<'_>, ino: u64) -> bool {
    let key = |offset| Key::new(ino, KeyType::EXTENT_DATA, offset);
    tree.first(key(0), key(u64::MAX)).is_some()
}

/// Nothing can be made any more, whatever is ignored.
fn is_final(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::BrokenPipe)
}

fn of_item(item: &InodeItem) -> Attributes {
    let moment = |time: Timespec| -> Moment { (time.sec.get(), time.nsec.get()) };
    Attributes {
        mode: item.mode.get(),
        uid: item.uid.get(),
        gid: item.gid.get(),
        device: device_numbers(item.rdev.get()),
        atime: moment(item.atime),
        mtime: moment(item.mtime),
        ctime: moment(item.ctime),
        ..Attributes::default()
    }
}
