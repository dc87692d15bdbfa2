//! The root tree: which trees there are, what names the subvolumes, and what is to be deleted.

use crate::finding::{Finding, Tree};
use crate::inodes::Inodes;
use crate::session::Session;
use crate::walk::{DropPoint, items};
use butterfs_ondisk::header::{ITEM_LEN, leaf_data_size};
use butterfs_ondisk::items::{RootItem, RootRef};
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::{Generation, Ino, Key, KeyType, Level, Logical, TreeId};
use butterfs_tree::NodePtr;
use std::collections::{BTreeMap, BTreeSet};
use zerocopy::FromBytes;

/// A root item.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Root {
    pub id: TreeId,
    pub item: RootItem,
}

impl Root {
    pub fn ptr(&self) -> NodePtr {
        let (at, generation) = (Logical(self.item.bytenr.get()), Generation(self.item.generation.get()));
        NodePtr { at, generation, level: Level(self.item.level), tree: self.id, first_key: None }
    }

    pub fn is_dead(&self) -> bool {
        self.item.refs.get() == 0
    }

    /// The progress of its deletion, if it has begun.
    pub fn drop_point(&self) -> Option<DropPoint> {
        let key = Key::from(self.item.drop_progress);
        (self.is_dead() && key.objectid != 0).then_some(DropPoint { key, level: self.item.drop_level })
    }

    /// Nobody can open files without a name in a read-only subvolume. One that was open when a snapshot was made, or
    /// when the subvolume became read-only, is there until the next transaction, and after a crash until the next use;
    /// a `btrfs check` of one mode complains of some that several snapshots share.
    pub fn check_orphans(&self, session: &Session<'_>, count: usize) {
        if count > 0 && !self.is_dead() && self.item.flags.get() & RootItem::RDONLY != 0 {
            session.report(Finding::SnapshotOrphans { tree: Tree(self.id), count: count as u64 });
        }
    }

    /// Orphan items of inodes that are not deleted; `inodes` are all of this subvolume. Those of a read-only one are
    /// counted above.
    pub fn check_stale_orphans(&self, session: &Session<'_>, inodes: &Inodes) {
        if self.is_dead() || self.item.flags.get() & RootItem::RDONLY != 0 {
            return;
        }
        let deleted: BTreeSet<u64> = inodes.nameless.iter().copied().collect();
        for inode in inodes.orphans.iter().filter(|inode| !deleted.contains(inode)) {
            session.report(Finding::OrphanStale { tree: Tree(self.id), inode: Ino(*inode) });
        }
    }

    fn is_live_subvolume(&self) -> bool {
        self.id.is_subvolume() && !self.is_dead()
    }
}

/// A subvolume's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    pub child: u64,
    pub directory: u64,
    pub index: u64,
    pub name: Vec<u8>,
}

/// The contents of the root tree.
#[derive(Default)]
pub(crate) struct Roots {
    pub trees: Vec<Root>,
    /// ROOT_REFs by the parent subvolume.
    pub names: BTreeMap<u64, BTreeSet<Name>>,
    backrefs: BTreeSet<(u64, Name)>,
    orphans: BTreeSet<u64>,
    /// Inodes of the root tree itself: the version 1 space caches.
    inodes: BTreeSet<u64>,
    pub complete: bool,
}

impl Roots {
    pub fn get(&self, id: TreeId) -> Option<&Root> {
        self.trees.iter().find(|root| root.id == id)
    }
}

/// Address of the root tree.
pub(crate) fn tree_root(session: &Session<'_>) -> NodePtr {
    let (at, level, generation) = session.sb.tree_root();
    NodePtr { at, generation, level, tree: TreeId::ROOT, first_key: None }
}

/// Reads the root tree.
pub(crate) fn read(session: &Session<'_>) -> Roots {
    let mut roots = Roots::default();
    let mut seen = BTreeSet::new();
    let complete = items(session, tree_root(session), &mut |key, data| match key.kind {
        KeyType::ROOT_ITEM => {
            let Some(item) = RootItem::parse(data) else { return };
            let id = TreeId(key.objectid);
            let is_snapshot = id.is_subvolume() && id != TreeId::FS;
            if key.offset != 0 && !is_snapshot && id != TreeId::TREE_RELOC {
                // Nobody finds it there.
                return session.report(Finding::RootOffset { tree: Tree(id), stored: key.offset });
            }
            if id != TreeId::TREE_RELOC && !seen.insert(id) {
                return session.report(Finding::RootDoubled { tree: Tree(id) });
            }
            if id.is_subvolume() && item.root_dirid.get() != Ino::ROOT_DIR.get() {
                session.report(Finding::RootDirectory { tree: Tree(id), stored: item.root_dirid.get() });
            }
            roots.trees.push(Root { id, item });
        }
        KeyType::ROOT_REF => {
            if let Some(name) = parse_name(key.offset, data) {
                roots.names.entry(key.objectid).or_default().insert(name);
            }
        }
        KeyType::ROOT_BACKREF => {
            if let Some(name) = parse_name(key.objectid, data) {
                roots.backrefs.insert((key.offset, name));
            }
        }
        KeyType::INODE_ITEM => drop(roots.inodes.insert(key.objectid)),
        KeyType::ORPHAN_ITEM if key.objectid == objectid::ORPHAN => {
            roots.orphans.insert(key.offset);
        }
        kind if kind.is_unknown() => session.report(Finding::ItemUnknown { tree: Tree(TreeId::ROOT), key }),
        _ => {}
    });
    roots.complete = complete;
    roots
}

fn parse_name(child: u64, data: &[u8]) -> Option<Name> {
    let (head, rest) = RootRef::read_from_prefix(data).ok()?;
    let name = rest.get(..head.name_len.get().into())?.to_vec();
    Some(Name { child, directory: head.dirid.get(), index: head.sequence.get(), name })
}

/// The trees that must be there.
pub(crate) fn check_present(session: &Session<'_>, roots: &Roots, needed: &[TreeId]) {
    for id in needed.iter().filter(|id| roots.complete && roots.get(**id).is_none()) {
        session.report(Finding::RootMissing { tree: Tree(*id) });
    }
}

/// Names of subvolumes, from both sides, and deleted subvolumes. `nameless` are the ROOT_REFs that no directory has.
pub(crate) fn check_references(session: &Session<'_>, roots: &Roots, nameless: &[(u64, Name)]) {
    if !roots.complete {
        return;
    }
    let refs = roots.names.iter().flat_map(|(parent, names)| names.iter().map(|name| (*parent, name.clone())));
    let refs: BTreeSet<(u64, Name)> = refs.collect();
    for (parent, name) in refs.symmetric_difference(&roots.backrefs) {
        let (parent, child) = (Tree(TreeId(*parent)), Tree(TreeId(name.child)));
        session.report(Finding::RootRefUnpaired { parent, child });
    }
    for (parent, name) in nameless {
        let (parent, child, directory) = (Tree(TreeId(*parent)), Tree(TreeId(name.child)), Ino(name.directory));
        session.report(Finding::RootRefNameless { parent, child, directory });
    }
    let named: BTreeSet<u64> = refs.iter().map(|(_, name)| name.child).collect();
    for root in roots.trees.iter().filter(|root| root.id.is_subvolume() && root.id != TreeId::FS) {
        let id = root.id.get();
        if root.is_live_subvolume() && !named.contains(&id) {
            session.report(Finding::RootUnreferenced { tree: Tree(root.id) });
        } else if root.is_dead() && !roots.orphans.contains(&id) {
            session.report(Finding::RootDeadWithoutOrphan { tree: Tree(root.id) });
        }
        if root.is_dead() && named.contains(&id) {
            session.report(Finding::RootDeadNamed { tree: Tree(root.id) });
        }
    }
    for &id in &roots.orphans {
        let is_deleted = roots.get(TreeId(id)).map_or(roots.inodes.contains(&id), Root::is_dead);
        if !is_deleted {
            session.report(Finding::RootOrphanStale { tree: Tree(TreeId(id)) });
        }
    }
}

/// The UUID tree against the root items.
pub(crate) fn check_uuids(session: &Session<'_>, root: NodePtr, roots: &Roots) {
    let mut expected: BTreeSet<(Key, u64)> = BTreeSet::new();
    for root in roots.trees.iter().filter(|root| root.is_live_subvolume()) {
        let uuids =
            [(KeyType::UUID_KEY_SUBVOL, root.item.uuid), (KeyType::UUID_KEY_RECEIVED_SUBVOL, root.item.received_uuid)];
        expected.extend(
            uuids
                .iter()
                .filter(|(_, uuid)| *uuid != [0; 16])
                .map(|(kind, uuid)| (uuid_key(*kind, uuid), root.id.get())),
        );
    }
    let (mut stale, mut full) = (Vec::new(), BTreeSet::new());
    let room = leaf_data_size(session.sb.nodesize.get()) - ITEM_LEN;
    let complete = items(session, root, &mut |key, data| {
        // Linux leaves out what was received when its UUID's item cannot grow.
        if key.kind == KeyType::UUID_KEY_RECEIVED_SUBVOL && data.len() + 8 > room {
            full.insert(key);
        }
        if ![KeyType::UUID_KEY_SUBVOL, KeyType::UUID_KEY_RECEIVED_SUBVOL].contains(&key.kind) {
            return;
        }
        for id in data.chunks_exact(8).map(|id| u64::from_le_bytes(id.try_into().expect("8 bytes"))) {
            if !expected.remove(&(key, id)) {
                stale.push((key, id));
            }
        }
    });
    if !complete || !roots.complete {
        return;
    }
    expected.retain(|(key, _)| !full.contains(key));
    if session.sb.uuid_tree_generation.get() != session.sb.generation.get() {
        if expected.len() + stale.len() > 0 {
            session.report(Finding::UuidLags { missing: expected.len() as u64, stale: stale.len() as u64 });
        }
        return;
    }
    for (key, id) in expected {
        session.report(Finding::UuidMissing { tree: Tree(TreeId(id)), uuid: key.to_string() });
    }
    for (key, id) in stale {
        session.report(Finding::UuidStale { tree: Tree(TreeId(id)), key });
    }
}

fn uuid_key(kind: KeyType, uuid: &[u8; 16]) -> Key {
    let half = |at: usize| u64::from_le_bytes(uuid[at..at + 8].try_into().expect("8 bytes"));
    Key::new(half(0), kind, half(8))
}
