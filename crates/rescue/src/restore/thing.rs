//! An inode as it is restored: its attributes, from what can be believed most, and the doubts about them.
//!
//! Invariant: set-id bits, device nodes and `security.` attributes come only from tree blocks that fit their checksums.

use super::{Restorer, has_content};
use crate::back_references::Referenced;
use crate::sink::{Attributes, Moment};
use crate::subvolume::{self, DIRECTORY, Entry, Inode, REGULAR, SYMLINK, TYPE_MASK, mode_of};
use crate::tree::Tree;
use crate::trust::{Doubts, Trust};
use butterfs_fs::inode::attr::device_numbers;
use butterfs_ondisk::items::{InodeItem, Timespec, dir_type};
use butterfs_ondisk::{Key, KeyType, TreeId};

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Thing {
    /// Its number.
    pub ino: u64,
    /// Its items.
    pub inode: Inode,
    /// The attributes that it is made with.
    pub attributes: Attributes,
    /// Why they may be wrong.
    pub doubts: Doubts,
    /// Neither its inode nor any content is left.
    pub is_only_a_name: bool,
    /// Extents of the extent tree, where its inode or its list of extents is lost.
    pub references: Vec<Referenced>,
    /// Its entry and its inode name different types.
    is_type_disputed: bool,
}

impl Thing {
    pub(super) fn is_directory(&self) -> bool {
        self.attributes.mode & TYPE_MASK == DIRECTORY
    }

    /// Whether it may have other names.
    pub(super) fn has_links(&self) -> bool {
        self.inode.item.is_some_and(|item| item.nlink.get() > 1) || self.inode.names.len() > 1
    }

    /// Whether a device, FIFO or socket may be made of it.
    pub(super) fn may_be_special(&self) -> bool {
        let is_device = matches!(self.attributes.mode & TYPE_MASK, 0o020000 | 0o060000);
        !is_device || (self.doubts.inode < Trust::Doubtful && !self.is_type_disputed)
    }

    /// Its doubts, and those about its content.
    pub(super) fn doubts_with(&self, content: Doubts) -> Doubts {
        let contradicts = self.doubts.contradicts || content.contradicts;
        Doubts {
            content: content.content,
            contradicts,
            is_by_back_reference: content.is_by_back_reference,
            is_preallocation_written: content.is_preallocation_written,
            is_list_lost: content.is_list_lost,
            is_order_unknown: content.is_order_unknown,
            may_be_unwritten: content.may_be_unwritten,
            ..self.doubts
        }
    }
}

impl Restorer<'_> {
    /// An inode that an entry of a directory leads to, or that none does.
    pub(super) fn thing(&self, id: TreeId, ino: u64, entry: Option<(u64, &Entry)>) -> Option<Thing> {
        let tree = self.tree(id)?;
        let mut inode = subvolume::inode(&tree, ino);
        // An item whose type is none says nothing.
        let is_typed = |item: &InodeItem| (1..=14).contains(&((item.mode.get() & TYPE_MASK) >> 12));
        inode.item = inode.item.filter(is_typed);
        if inode.item.is_none() {
            inode.trust = Trust::Guessed;
        }
        let knows = |(directory, entry): (u64, &Entry)| {
            inode.names.iter().any(|(parent, name)| *parent == directory && *name == entry.name)
        };
        // An entry that leads to the wrong inode; or the right one, which has lost its reference.
        let is_wrong = inode.item.is_some() && entry.is_some_and(|entry| !knows(entry));
        let entry = entry.map(|(_, entry)| entry);
        let (mode, is_type_disputed) = mode(&tree, ino, &inode, entry);
        // An inode of an older state without extents says nothing of those that it has got since.
        let is_doubtful = inode.item.is_none() || inode.trust == Trust::Older;
        let has_own_content = !is_doubtful || has_content(&tree, ino);
        let is_lost_file = is_doubtful && mode & TYPE_MASK == REGULAR && (inode.item.is_none() || !has_own_content);
        let references = if is_lost_file { self.referenced(id, ino) } else { Vec::new() };
        let has_any_content = has_own_content || !references.is_empty();
        let is_only_a_name = inode.item.is_none() && mode & TYPE_MASK != DIRECTORY && !has_any_content;
        let mut doubts = Doubts {
            name: entry.map_or(inode.names_trust, |entry| entry.trust),
            inode: inode.trust,
            contradicts: is_type_disputed || is_wrong || entry.is_some_and(|entry| entry.is_disputed),
            is_incomplete: inode.losses.blocks() > 0,
            ..Doubts::default()
        };
        let mut attributes = inode.item.as_ref().map(of_item).unwrap_or_default();
        (attributes.mode, attributes.is_wanted) = (mode, self.wanted.metadata);
        if self.wanted.xattrs {
            attributes.xattrs = inode.xattrs.clone();
            doubts.xattrs = inode.xattrs_trust;
            if inode.xattrs_trust >= Trust::Doubtful {
                attributes.xattrs.retain(|name, _| !name.starts_with(b"security."));
            }
        }
        if self.expects_older {
            doubts = doubts.expecting_older();
        }
        Some(Thing { ino, inode, attributes, doubts, is_only_a_name, references, is_type_disputed })
    }

    /// A directory that no entry is asked about.
    pub(super) fn directory(&self, id: TreeId, ino: u64) -> Option<Thing> {
        let mut thing = self.thing(id, ino, None)?;
        thing.doubts.name = Trust::Proved;
        thing.is_only_a_name = false;
        if thing.inode.item.is_none() {
            thing.attributes.mode = mode_of(dir_type::DIR);
        }
        thing.attributes.mode = DIRECTORY | thing.attributes.mode & !TYPE_MASK;
        Some(thing)
    }
}

/// The mode of an inode, and whether its item and its entry name different types.
fn mode(tree: &Tree<'_>, ino: u64, inode: &Inode, entry: Option<&Entry>) -> (u32, bool) {
    let said = entry.filter(|entry| (1..=7).contains(&entry.kind)).map(|entry| mode_of(entry.kind));
    let Some(item) = inode.item else {
        return (said.unwrap_or_else(|| guessed(tree, ino)), false);
    };
    let (own, said_type) = (item.mode.get(), said.map(|mode| mode & TYPE_MASK));
    let agrees = said_type.is_none_or(|said| said == own & TYPE_MASK);
    let is_said = entry.is_some_and(|entry| entry.trust < Trust::Doubtful);
    if inode.trust < Trust::Doubtful {
        // A directory has two entries for each name, and both say the type.
        let has_entries = own & TYPE_MASK == DIRECTORY && guessed(tree, ino) & TYPE_MASK == DIRECTORY;
        let said_type = said_type.filter(|_| is_said && !has_entries).unwrap_or(own & TYPE_MASK);
        return (said_type | own & !TYPE_MASK, !agrees && is_said);
    }
    let is_plain = matches!(own & TYPE_MASK, REGULAR | DIRECTORY | SYMLINK);
    if !agrees || (said_type.is_none() && !is_plain) {
        return (said.filter(|_| is_said).unwrap_or_else(|| guessed(tree, ino)), true);
    }
    // No more rights than anybody has anyway: only a directory keeps the bit that takes some away.
    let bits = if own & TYPE_MASK == DIRECTORY { 0o1777 } else { 0o777 };
    (own & (TYPE_MASK | bits), false)
}

/// The mode of an inode of which nothing says the type.
fn guessed(tree: &Tree<'_>, ino: u64) -> u32 {
    let key = |kind, offset| Key::new(ino, kind, offset);
    let is_directory = tree.first(key(KeyType::DIR_ITEM, 0), key(KeyType::DIR_INDEX, u64::MAX)).is_some();
    if is_directory { DIRECTORY | 0o700 } else { REGULAR | 0o600 }
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
