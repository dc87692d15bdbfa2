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
mod references;
mod selection;
mod subvolumes;
mod summary;
mod thing;

pub use selection::Selection;
pub use summary::{Event, Finding, OlderState, Summary};

use crate::back_references::ExtentTree;
use crate::data::{Content, Grade, Outcome, Reader};
use crate::live::Since;
use crate::roots::{Roots, Source};
use crate::sink::{Attributes, Incoming, Made, Path, Sink, safe_name, shown};
use crate::subvolume::{self, Entry, REGULAR, SYMLINK, TYPE_MASK, Target};
use crate::tree::{Losses, Tree};
use crate::trust::Doubts;
use crate::wreck::Wreck;
use bits::Bits;
use butterfs_ondisk::{Key, KeyType, TreeId};
use rustc_hash::FxHashMap;
use std::cell::OnceCell;
use std::io;
use std::rc::Rc;
use thing::Thing;

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
    /// Only things that are certainly whole are restored, see [`Grade::Unverified`]; directories always are.
    pub whole_files_only: bool,
    /// Nothing is restored, only told; contents are not read.
    pub dry_run: bool,
    /// So many bytes of content are restored at most.
    pub most_bytes: Option<u64>,
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
    /// The extent tree of the last commit.
    extent_tree: OnceCell<Option<Rc<ExtentTree<'a>>>>,
    /// Later allocations, where the trees are those of an earlier time.
    since: Option<Since>,
    visited: FxHashMap<TreeId, Bits>,
    links: FxHashMap<(TreeId, u64), Linked>,
    losses: FxHashMap<TreeId, Losses>,
    /// Paths of the subvolumes that were gone into.
    places: Vec<(TreeId, Vec<Vec<u8>>)>,
    /// Directories that were made for orphans.
    made: std::collections::HashSet<Vec<Vec<u8>>>,
    /// An older state is what is wanted.
    expects_older: bool,
    /// Something was there that is selected.
    is_reached: bool,
    summary: Summary,
}

/// A file that was restored and that has other names.
struct Linked {
    /// The path that it was made with.
    first: Vec<Vec<u8>>,
    /// Names that its inode knows and that nothing was made of yet: directory and name.
    left: Vec<(u64, Vec<u8>)>,
    /// How many names its inode counts.
    count: u64,
    /// How many were made.
    made: u64,
    /// The finding about it, which holds for all of its names.
    finding: Option<Finding>,
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
        Restorer {
            wreck,
            roots,
            wanted,
            selection,
            sink,
            tell,
            reader: None,
            extent_tree: OnceCell::new(),
            since: roots.since.clone().or_else(|| Since::of(wreck, roots)),
            visited: FxHashMap::default(),
            links: FxHashMap::default(),
            losses: FxHashMap::default(),
            places: Vec::new(),
            made: Default::default(),
            expects_older: false,
            is_reached: false,
            summary: Summary::default(),
        }
    }

    /// Restores what lies below a directory of a subvolume.
    pub fn run(mut self, tree: TreeId, top: u64) -> io::Result<Summary> {
        self.is_reached = self.selection.is_everything();
        let mut restored = self.walk(tree, top, &mut Vec::new(), true);
        if self.wanted.orphans && top == ROOT_DIRECTORY {
            restored = restored.and_then(|()| self.restore_unreached(tree));
        }
        if restored.is_ok() && !self.is_reached && self.summary.files == 0 {
            let path = self.selection.path().to_vec();
            self.give_up(&path, self.selection.unmet());
        }
        self.finish(restored)
    }

    /// Restores single inodes of a subvolume's older state, each at the path that its references name.
    pub fn run_inodes(mut self, tree: TreeId, inodes: &[u64]) -> io::Result<Summary> {
        self.expects_older = true;
        self.places.push((tree, Vec::new()));
        let restored = self.restore_inodes(tree, inodes);
        self.finish(restored)
    }

    /// Counts what was restored, also where the target has no room for more.
    fn finish(mut self, restored: io::Result<()>) -> io::Result<Summary> {
        match restored {
            Err(error) if is_full(&error) => self.summary.ended = Some(error.to_string()),
            restored => restored?,
        }
        let mut losses = self.roots.losses.clone();
        self.losses.values().for_each(|of_tree| losses.add(of_tree.clone()));
        if !self.expects_older {
            losses.add(self.wreck.log_losses().clone());
        }
        self.summary.lost_blocks = losses.blocks();
        self.summary.salvaged_blocks = if self.expects_older { 0 } else { losses.salvaged() };
        self.pass_complaints();
        let finished = self.sink.finish();
        if self.summary.ended.is_none() {
            finished?;
        }
        self.pass_complaints();
        self.summary.conclude();
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
            let tree = self.tree(id)?;
            // The extent tree knows nothing of what a log has brought.
            let has_log = self.wreck.layer(&tree.root).is_some();
            let extents = if has_log { None } else { self.extent_tree(id) };
            let reader = Reader::new(tree, checksums).with_extents(extents);
            self.reader = Some((id, reader.with_since(self.since.clone())));
        }
        self.reader.as_mut().map(|(_, reader)| reader)
    }

    fn visit(&mut self, tree: TreeId, ino: u64) -> bool {
        self.visited.entry(tree).or_default().insert(ino)
    }

    fn is_visited(&self, tree: TreeId, ino: u64) -> bool {
        self.visited.get(&tree).is_some_and(|visited| visited.contains(ino))
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
        let Some(thing) = self.directory(tree, ino) else { return Ok(()) };
        self.open(tree, thing, path, is_top, &mut stack)?;
        while let Some(frame) = stack.last_mut() {
            path.truncate(frame.path_len);
            let (parent, entry) = ((frame.tree, frame.ino), frame.entries.next());
            match entry {
                Some(entry) => {
                    if let Err(error) = self.entry(parent, entry, path, &mut stack) {
                        self.leave_all(path, stack);
                        return Err(error);
                    }
                }
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

    /// Gives directories what they should have when nothing more can be made in them.
    fn leave_all(&mut self, path: &mut Vec<Vec<u8>>, stack: Vec<Frame>) {
        for frame in stack.into_iter().rev().filter(|frame| frame.is_made && !self.wanted.dry_run) {
            path.truncate(frame.path_len);
            // The first error is the one that is told.
            let _ = self.sink.leave(path, &frame.attributes);
        }
    }

    /// Goes into a directory, unless it was visited before.
    fn open(
        &mut self,
        id: TreeId,
        thing: Thing,
        path: &[Vec<u8>],
        is_top: bool,
        stack: &mut Vec<Frame>,
    ) -> io::Result<()> {
        let (Some(tree), ino) = (self.tree(id), thing.ino) else { return Ok(()) };
        if !self.visit(id, ino) {
            return Ok(());
        }
        if ino == ROOT_DIRECTORY {
            self.arrive(id, path);
        }
        let (entries, losses) = subvolume::entries(&tree, ino);
        self.lose(id, losses);
        self.lose(id, thing.inode.losses.clone());
        let attributes = thing.attributes;
        let is_made = self.selection.takes_inside(path);
        if is_made && !self.wanted.dry_run {
            let made = self.sink.directory(path, &attributes);
            if self.note(path, made.map(|()| Made::Yes))?.is_none() {
                return Ok(());
            }
        }
        if is_made {
            self.doubt(path, &thing.doubts, true);
        }
        self.summary.directories += u64::from(is_made && !is_top);
        stack.push(Frame { tree: id, ino, path_len: path.len(), entries: entries.into_iter(), attributes, is_made });
        Ok(())
    }

    /// Remembers where a subvolume is, and tells if its state is not that of the last commit.
    fn arrive(&mut self, id: TreeId, path: &[Vec<u8>]) {
        self.places.push((id, path.to_vec()));
        let Some(root) = self.roots.trees.get(&id) else { return };
        if self.expects_older || matches!(root.source, Source::Current | Source::Asked) {
            return;
        }
        let state = OlderState {
            tree: id.0,
            path: shown(path),
            generation: root.root.generation,
            named_by: root.source.to_string(),
        };
        (self.tell)(Event::Older(&state));
        self.summary.older_states.push(state);
    }

    /// Counts and tells that something that is no regular file may not be what it was.
    fn doubt(&mut self, path: &Path, doubts: &Doubts, is_restored: bool) {
        if doubts.is_none() {
            return;
        }
        self.summary.doubtful_others += 1;
        self.summary.find(path, Grade::Doubtful, doubts.reasons(), is_restored);
        (self.tell)(Event::Doubted(path, doubts, is_restored));
    }

    /// Counts and tells that nothing could be restored at a path.
    fn give_up(&mut self, path: &Path, reason: &str) {
        self.summary.lost += 1;
        self.summary.find(path, Grade::Lost, vec![reason.to_owned()], false);
        (self.tell)(Event::Lost(path, reason));
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
        self.is_reached |= self.selection.reaches(path);
        if is_renamed {
            self.summary.find_renamed(path);
            (self.tell)(Event::Renamed(path, &entry.name));
        }
        match entry.target {
            Target::Subvolume(id) => self.subvolume(id, parent, &entry, path, stack),
            Target::Inode(ino) => {
                if self.link(tree, ino, path)? {
                    self.name_made(tree, ino, (parent.1, &entry.name));
                    let doubts = Doubts { contradicts: entry.is_disputed, ..Doubts::default() };
                    self.doubt(path, &doubts, true);
                    return Ok(());
                }
                let Some(thing) = self.thing(tree, ino, Some((parent.1, &entry))) else { return Ok(()) };
                if thing.is_directory() {
                    (self.tell)(Event::Restoring(path));
                    return self.open(tree, thing, path, false, stack);
                }
                self.inode(tree, &thing, path)?;
                self.name_made(tree, ino, (parent.1, &entry.name));
                Ok(())
            }
        }
    }

    fn pass_over(&mut self, tree: TreeId, entry: &Entry) -> io::Result<()> {
        if let Target::Inode(ino) = entry.target {
            self.visit(tree, ino);
        }
        Ok(())
    }

    /// Makes another name of a file that was made before; `false`: it was not.
    fn link(&mut self, id: TreeId, ino: u64, path: &Path) -> io::Result<bool> {
        let linked = self.links.get(&(id, ino)).filter(|_| self.wanted.hard_links);
        let Some((first, finding)) = linked.map(|linked| (linked.first.clone(), linked.finding.clone())) else {
            return Ok(false);
        };
        (self.tell)(Event::Restoring(path));
        let made = self.unless_taken(id, ino, path, &mut |run, path| {
            let made = if run.wanted.dry_run { Ok(Made::Yes) } else { run.sink.link(path, &first) };
            run.note(path, made)
        })?;
        self.summary.links += u64::from(made.is_some_and(Made::is_there));
        if let Some(finding) = finding.filter(|_| made.is_some_and(|made| made != Made::Kept)) {
            (self.tell)(Event::Linked(path, &finding.reasons));
            self.summary.find(path, finding.grade, finding.reasons, finding.restored);
        }
        Ok(true)
    }

    /// Restores what is no directory; beside what this run has made of its name.
    fn inode(&mut self, id: TreeId, thing: &Thing, path: &Path) -> io::Result<Option<Made>> {
        self.unless_taken(id, thing.ino, path, &mut |run, path| run.inode_at(id, thing, path))
    }

    /// Restores what is no directory, if nothing has its name.
    fn inode_at(&mut self, id: TreeId, thing: &Thing, path: &Path) -> io::Result<Option<Made>> {
        let Some(tree) = self.tree(id) else { return Ok(None) };
        self.visit(id, thing.ino);
        self.lose(id, thing.inode.losses.clone());
        if thing.is_only_a_name {
            self.give_up(path, "its name is all that is left");
            return Ok(None);
        }
        let before = self.summary.findings.len();
        let made = match thing.attributes.mode & TYPE_MASK {
            REGULAR => self.file(id, thing, path)?,
            SYMLINK => self.symlink(&tree, thing, path)?,
            _ => self.special(thing, path)?,
        };
        if thing.has_links() && made.is_some_and(Made::is_there) {
            let left = if self.wanted.orphans { thing.inode.names.clone() } else { Vec::new() };
            let known = thing.inode.names.len() as u64;
            let count = thing.inode.item.map_or(known, |item| u64::from(item.nlink.get()));
            let finding = Finding::of_all(&self.summary.findings[before..]);
            let linked = Linked { first: path.to_vec(), left, count, made: 0, finding };
            self.links.entry((id, thing.ino)).or_insert(linked);
        }
        Ok(made)
    }

    fn file(&mut self, id: TreeId, thing: &Thing, path: &Path) -> io::Result<Option<Made>> {
        let (wanted, most, expects_older) = (self.wanted, self.wanted.most_bytes, self.expects_older);
        (self.tell)(Event::Restoring(path));
        let Some(reader) = self.reader(id) else { return Ok(None) };
        let mut content = reader.content(thing.ino, &thing.inode);
        let references = if content.lacks_extents { self.referenced(id, thing.ino) } else { thing.references.clone() };
        if let Some(reader) = self.reader(id) {
            content = reader.with_references(content, &thing.inode, &references);
        }
        if wanted.dry_run {
            self.summary.files += 1;
            self.summary.bytes = self.summary.bytes.saturating_add(content.size);
            return Ok(Some(Made::Yes));
        }
        let data: u64 = content.ranges.iter().map(|range| range.end - range.start).sum();
        if most.is_some_and(|most| self.summary.bytes.saturating_add(data) > most) {
            return Err(io::Error::other(format!("{}: more would be restored than was allowed", shown(path))));
        }
        let sure = |mut outcome: Outcome| {
            outcome.doubts = thing.doubts_with(outcome.doubts);
            if expects_older {
                outcome.doubts = outcome.doubts.expecting_older();
            }
            outcome
        };
        if wanted.whole_files_only {
            let outcome = sure(self.judge(id, &content)?);
            if outcome.grade() > Grade::Unverified {
                self.count(path, &outcome, false);
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
        let made = self.sink.file(path, &thing.attributes, incoming);
        let made = self.note(path, made)?;
        if made.is_some_and(Made::is_there) {
            self.summary.files += 1;
            self.summary.bytes = self.summary.bytes.saturating_add(data);
            self.count(path, &sure(outcome), true);
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

    fn count(&mut self, path: &Path, outcome: &Outcome, is_restored: bool) {
        let grade = outcome.grade();
        let counter = match grade {
            Grade::Verified => &mut self.summary.verified,
            Grade::Unverified => &mut self.summary.unverified,
            Grade::Doubtful => &mut self.summary.doubtful,
            Grade::Partial => &mut self.summary.partial,
            Grade::Lost => &mut self.summary.lost,
        };
        *counter += 1;
        let has_lost_checksums = outcome.checksums_lost > 0 && !self.expects_older;
        self.summary.checksums_lost += u64::from(has_lost_checksums);
        if grade > Grade::Unverified || has_lost_checksums {
            self.summary.find(path, grade, outcome.reasons(), is_restored);
        }
        (self.tell)(Event::File(path, outcome, is_restored));
    }

    fn symlink(&mut self, tree: &Tree<'a>, thing: &Thing, path: &Path) -> io::Result<Option<Made>> {
        if !self.wanted.symlinks {
            return Ok(None);
        }
        (self.tell)(Event::Restoring(path));
        let Some(target) = subvolume::link_target(tree, thing.ino, thing.inode.item.as_ref()) else {
            let error = io::Error::other("nothing says where this symbolic link leads");
            return self.note(path, Err(error));
        };
        let of_target = Doubts { content: target.trust, contradicts: target.contradicts, ..Doubts::default() };
        let doubts = self.expected(thing.doubts_with(of_target));
        self.other(thing, doubts, path, &mut |sink| sink.symlink(path, &thing.attributes, &target.path))
    }

    fn special(&mut self, thing: &Thing, path: &Path) -> io::Result<Option<Made>> {
        if !self.wanted.special {
            return Ok(None);
        }
        if !thing.may_be_special() {
            self.give_up(path, "it may be a device, but the tree block that says so is damaged or lost");
            return Ok(None);
        }
        (self.tell)(Event::Restoring(path));
        let doubts = self.expected(thing.doubts);
        self.other(thing, doubts, path, &mut |sink| sink.node(path, &thing.attributes))
    }

    /// Makes a symbolic link or a special file.
    fn other(
        &mut self,
        thing: &Thing,
        doubts: Doubts,
        path: &Path,
        make: &mut dyn FnMut(&mut dyn Sink) -> io::Result<Made>,
    ) -> io::Result<Option<Made>> {
        if self.wanted.whole_files_only && !doubts.is_none() {
            self.doubt(path, &doubts, false);
            return Ok(None);
        }
        let made = if self.wanted.dry_run { Ok(Made::Yes) } else { make(&mut *self.sink) };
        let made = self.note(path, made)?;
        if made.is_some_and(Made::is_there) {
            match thing.attributes.mode & TYPE_MASK {
                SYMLINK => self.summary.symlinks += 1,
                _ => self.summary.special += 1,
            }
            self.doubt(path, &doubts, true);
        }
        Ok(made)
    }

    /// Without the doubts that are none where an older state is wanted.
    fn expected(&self, doubts: Doubts) -> Doubts {
        if self.expects_older { doubts.expecting_older() } else { doubts }
    }

    /// Tells what became of something; `None`: it could not be made, and errors are ignored. Whoever has it made tells
    /// that its name is taken.
    fn note(&mut self, path: &Path, made: io::Result<Made>) -> io::Result<Option<Made>> {
        let lacking = self.sink.lacking();
        if !lacking.is_empty() && made.as_ref().is_ok_and(|made| made.is_there()) {
            if self.summary.attributes_missing < MOST_TOLD {
                (self.tell)(Event::Lacking(path, &lacking));
            }
            self.summary.find_lacking(path, lacking);
        }
        match made {
            Ok(Made::Yes) => Ok(Some(Made::Yes)),
            Ok(Made::Same) => {
                self.summary.kept += 1;
                (self.tell)(Event::Kept(path));
                Ok(Some(Made::Same))
            }
            Ok(made @ (Made::Kept | Made::Taken | Made::LeftOut)) => Ok(Some(made)),
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
}

/// Things without some of their attributes that are told one by one.
const MOST_TOLD: u64 = 100;

/// The number of the top directory of every subvolume.
pub const ROOT_DIRECTORY: u64 = 256;

/// Whether any extent of an inode is known.
fn has_content(tree: &Tree<'_>, ino: u64) -> bool {
    let key = |offset| Key::new(ino, KeyType::EXTENT_DATA, offset);
    tree.first(key(0), key(u64::MAX)).is_some()
}

/// The target takes nothing more.
fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem)
}

/// Nothing can be made any more, whatever is ignored.
fn is_final(error: &io::Error) -> bool {
    is_full(error) || error.kind() == io::ErrorKind::BrokenPipe
}
