//! The states that may be shown after a crash when `fsync` writes a log: the last commit, and on top of it what was
//! logged.
//!
//! The disk without its log (the base) is one state, as after any crash. With the log replayed, relative to the states
//! from that one to the last:
//! 1. Every entry of a folder is one that the folder had in one of these states.
//! 2. Attributes, and extended attributes, of an inode are those of one of these states; not before its last `fsync`.
//!    Contents are as [`History`] allows.
//! 3. What an inode's `fsync` promised and nobody changed since is there: its names, the absence of those it had lost,
//!    and of a folder the entries, with those of folders that are new in it when it is logged for the first time, be it
//!    because something that was in it is synced.
//! 4. What had a name in every state has one; and the names of an inode are among those of one state, so that nothing
//!    that was moved has two names that it never had together.
//!
//! Inodes are told apart by their numbers, which [`Numbers`] learns as they are made.

use super::{History, ModelState, Read};
use crate::fingerprint::{Compare, Fingerprint, PathFingerprint, differences};
use crate::model::{Body, ModelFs, Node, NodeId, ROOT};
use crate::operation::{Kind, RelPath};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The numbers of a filesystem's inodes.
#[derive(Clone, Debug, Default)]
pub struct Numbers(BTreeMap<NodeId, u64>);

impl Numbers {
    /// Asks for the numbers of inodes that have a path and are not known yet.
    pub fn learn(&mut self, model: &ModelFs, find: &mut dyn FnMut(&RelPath) -> Option<u64>) {
        let mut waiting = vec![(RelPath::default(), ROOT)];
        while let Some((path, id)) = waiting.pop() {
            if !self.0.contains_key(&id)
                && let Some(number) = find(&path)
            {
                self.0.insert(id, number);
            }
            if let Body::Folder(folder) = &model.node(id).body {
                waiting.extend(folder.entries.iter().map(|(name, child)| (path.join(name), *child)));
            }
        }
    }
}

/// A name in a folder.
type ParentAndName = (NodeId, Vec<u8>);
type DirEntries = BTreeMap<ParentAndName, NodeId>;

fn dir_entries_of(model: &ModelFs) -> DirEntries {
    let folders = model.nodes().filter_map(|(id, node)| match &node.body {
        Body::Folder(folder) => Some((id, folder)),
        _ => None,
    });
    folders
        .flat_map(|(id, folder)| folder.entries.iter().map(move |(name, child)| ((id, name.clone()), *child)))
        .collect()
}

/// The states from the base to the last, and what is shown.
struct Window<'a> {
    history: &'a History,
    /// The number of the base.
    base: usize,
    states: &'a [Arc<ModelState>],
    dir_entries: Vec<DirEntries>,
    shown: DirEntries,
    /// The inode at each shown path.
    nodes: BTreeMap<Vec<u8>, NodeId>,
}

impl History {
    /// Whether `shown`, with the log replayed, is allowed on top of `base`, which is what the disk shows without it.
    pub fn explain_logged(
        &self,
        base: &Fingerprint,
        shown: &Fingerprint,
        numbers: &Numbers,
        read: &Read<'_>,
    ) -> Result<(), String> {
        let bare = super::bare(base.clone());
        let candidates = self.from(self.names_from).iter().enumerate();
        let equal = |state: &Arc<ModelState>| differences(state.bare(), &bare, Compare::MODEL);
        let found = candidates.map(|(index, state)| (self.names_from + index, equal(state)));
        let nearest = found.min_by_key(|(_, differences)| differences.len());
        let (base, wrong) = nearest.ok_or("there is no state")?;
        if !wrong.is_empty() {
            return Err(format!("without its log the disk is of no state; state {base} differs by {wrong:#?}"));
        }
        let states = self.from(base);
        let dir_entries: Vec<DirEntries> = states.iter().map(|state| dir_entries_of(&state.model)).collect();
        let mut window = Window {
            history: self,
            base,
            states,
            dir_entries,
            shown: DirEntries::new(),
            nodes: BTreeMap::from([(vec![], ROOT)]),
        };
        window.identify(shown, numbers)?;
        let mut found = window.wrong_inodes(shown, read);
        found.extend(window.broken_promises());
        found.extend(window.lost_or_doubled());
        if found.is_empty() {
            Ok(())
        } else {
            Err(format!("on top of state {base}: {:#?}", &found[..found.len().min(20)]))
        }
    }
}

impl Window<'_> {
    /// Finds out which inode each shown path leads to (rule 1).
    fn identify(&mut self, shown: &Fingerprint, numbers: &Numbers) -> Result<(), String> {
        // Folders sort before what is in them.
        for path in shown.entries.keys().filter(|path| !path.is_empty()) {
            let path = RelPath(path.clone());
            let (folder, name) = path.split().expect("not the root");
            let key = (self.nodes[&folder.0], name.to_vec());
            let number = shown.numbers.get(&path.0);
            let once: BTreeSet<NodeId> =
                self.dir_entries.iter().filter_map(|dir_entries| dir_entries.get(&key).copied()).collect();
            let same = |id: &&NodeId| {
                let unnumbered = self.node(**id).is_some_and(|node| node.placeholder);
                unnumbered || numbers.0.get(*id).is_none_or(|known| Some(known) == number)
            };
            // All subvolumes' root folders have one number; what is in them tells them apart.
            let has_what_is_shown = |id: &&NodeId| {
                let inside =
                    shown.entries.keys().filter_map(|other| other.strip_prefix(&[&path.0[..], b"/"].concat()[..]));
                let mut names = inside.filter(|rest| !rest.contains(&b'/'));
                names.all(|name| {
                    self.dir_entries.iter().any(|dir_entries| dir_entries.contains_key(&(**id, name.to_vec())))
                })
            };
            // Known numbers first; of what has none, the newest.
            let is_known = |id: &&NodeId| numbers.0.contains_key(*id);
            let candidates = || once.iter().filter(same).filter(is_known).chain(once.iter().rev().filter(same));
            let Some(id) = candidates().find(has_what_is_shown).or_else(|| candidates().next()).copied() else {
                return Err(format!("{path:?}: inode {number:?} never had this name; the name was of nodes {once:?}"));
            };
            self.nodes.insert(path.0.clone(), id);
            self.shown.insert(key, id);
        }
        Ok(())
    }

    /// Some version of a node.
    fn node(&self, id: NodeId) -> Option<&Node> {
        self.states.iter().rev().find_map(|state| state.model.get(id))
    }

    /// All versions of a node since its last `fsync`.
    fn versions(&self, id: NodeId) -> impl Iterator<Item = (&ModelFs, &Node)> {
        let last = self.history.logged.iter().filter(|(_, logged)| *logged == id).map(|(number, _)| *number).max();
        let skipped = last.unwrap_or(0).saturating_sub(self.base);
        let states = self.states.iter().skip(skipped);
        states.filter_map(move |state| state.model.get(id).map(|node| (&state.model, node)))
    }

    /// Rule 2.
    fn wrong_inodes(&self, shown: &Fingerprint, read: &Read<'_>) -> Vec<String> {
        let mut found = Vec::new();
        for (path, entry) in &shown.entries {
            let (path, id) = (RelPath(path.clone()), self.nodes[path]);
            if !self.versions(id).any(|(model, node)| has_attributes(model, node, entry)) {
                let versions: Vec<_> = self.versions(id).map(|(model, _)| model.attributes(id)).collect();
                found.push(format!("{path:?}: attributes are of no state: {entry:?}; they were {versions:?}"));
            }
            if !self.versions(id).any(|(_, node)| has_xattrs(node, entry)) {
                found.push(format!("{path:?}: extended attributes are of no state: {:?}", entry.xattrs.keys()));
            }
            if entry.kind == Kind::File {
                found.extend(self.history.wrong_file(&path, id, entry, read));
            }
        }
        found
    }

    /// Whether a name referred to `id` (or, for none, anything else) in every state from one on.
    fn persists(&self, key: &ParentAndName, id: Option<NodeId>, from: usize) -> bool {
        let since = &self.dir_entries[from - self.base..];
        match id {
            Some(id) => since.iter().all(|dir_entries| dir_entries.get(key) == Some(&id)),
            None => since.iter().all(|dir_entries| !dir_entries.contains_key(key)),
        }
    }

    /// Rule 3.
    fn broken_promises(&self) -> Vec<String> {
        let mut found = BTreeSet::new();
        let mut brought = BTreeSet::new();
        for (number, id) in self.history.logged.iter().filter(|(number, _)| *number > self.base) {
            self.broken_names(*number, *id, &mut found);
            self.brings_old_folders(*number, *id, &mut brought);
            self.broken_entries(*number, *id, &mut brought, &mut found);
        }
        found.into_iter().collect()
    }

    fn broken_names(&self, number: usize, id: NodeId, found: &mut BTreeSet<String>) {
        let at = &self.dir_entries[number - self.base];
        for (key, _) in at.iter().filter(|(_, child)| **child == id) {
            if self.persists(key, Some(id), number) && self.shown.get(key) != Some(&id) {
                found.insert(format!("node {id}, fsynced at state {number}, is not at {}", self.told(key)));
            }
        }
        let before = self.dir_entries[..=number - self.base].iter().flatten();
        for (key, _) in before.filter(|(_, child)| **child == id) {
            let gone =
                self.dir_entries[number - self.base..].iter().all(|dir_entries| dir_entries.get(key) != Some(&id));
            if gone && self.shown.get(key) == Some(&id) {
                found.insert(format!("node {id}, fsynced at state {number}, is still at {}", self.told(key)));
            }
        }
    }

    /// The fsync of what has lost a name logs the folder that it was in, with the new folders there.
    fn brings_old_folders(&self, number: usize, id: NodeId, brought: &mut BTreeSet<NodeId>) {
        let at = &self.dir_entries[number - self.base];
        let old = self.dir_entries[0].iter().filter(|(_, child)| **child == id).map(|(key, _)| key.0);
        let mut folders: Vec<NodeId> = old.collect();
        while let Some(folder) = folders.pop() {
            for (_, child) in at.iter().filter(|(key, _)| key.0 == folder) {
                let is_new_folder = self.states[0].model.get(*child).is_none()
                    && self.node(*child).is_some_and(|node| node.kind == Kind::Folder);
                if is_new_folder && brought.insert(*child) {
                    folders.push(*child);
                }
            }
        }
    }

    /// `brought`: new folders whose entry an earlier fsync brought, with all that was in them. A later one of the
    /// folder above brings only its own new entries, as the kernel's does.
    fn broken_entries(&self, number: usize, id: NodeId, brought: &mut BTreeSet<NodeId>, found: &mut BTreeSet<String>) {
        let at = &self.dir_entries[number - self.base];
        let inside = |key: &ParentAndName| key.0 == id;
        for (key, child) in at.iter().filter(|(key, _)| inside(key)) {
            let is_new = self.states[0].model.get(*child).is_none();
            let is_folder = self.node(*child).is_some_and(|node| node.kind == Kind::Folder);
            let comes_along = is_new && is_folder && brought.insert(*child);
            if !self.persists(key, Some(*child), number) {
                continue;
            }
            if self.shown.get(key) != Some(child) {
                found.insert(format!("folder {id}, fsynced at state {number}, does not have {}", self.told(key)));
            }
            if comes_along {
                self.broken_entries(number, *child, brought, found);
            }
        }
        for key in self.shown.keys().filter(|key| inside(key)) {
            if self.persists(key, None, number) {
                found.insert(format!("folder {id}, fsynced at state {number}, still has {}", self.told(key)));
            }
        }
    }

    /// Rule 4.
    fn lost_or_doubled(&self) -> Vec<String> {
        let mut found = Vec::new();
        let names = |dir_entries: &DirEntries, id| -> BTreeSet<ParentAndName> {
            dir_entries.iter().filter(|(_, child)| **child == id).map(|(key, _)| key.clone()).collect()
        };
        let at_first: BTreeSet<NodeId> = self.dir_entries[0].values().copied().collect();
        for id in at_first {
            let always = self.dir_entries.iter().all(|dir_entries| dir_entries.values().any(|child| *child == id));
            if always && !self.shown.values().any(|child| *child == id) {
                found.push(format!("node {id} always had a name, and has none"));
            }
        }
        for id in self.shown.values().copied().collect::<BTreeSet<NodeId>>() {
            let now = names(&self.shown, id);
            if !self.dir_entries.iter().any(|dir_entries| now.is_subset(&names(dir_entries, id))) {
                let told: Vec<String> = now.iter().map(|key| self.told(key)).collect();
                found.push(format!("node {id} has names that it never had together: {told:?}"));
            }
        }
        found
    }

    fn told(&self, key: &ParentAndName) -> String {
        format!("{:?} in node {}", RelPath(key.1.clone()), key.0)
    }
}

fn has_attributes(model: &ModelFs, node: &Node, entry: &PathFingerprint) -> bool {
    let owner = match &node.body {
        Body::Folder(folder) if node.placeholder => model.get(folder.parent).unwrap_or(node),
        _ => node,
    };
    let target = match &node.body {
        Body::Symlink(target) => Some(target),
        _ => None,
    };
    (node.kind, node.mode, node.device) == (entry.kind, entry.mode, entry.device)
        && (owner.uid, owner.gid) == (entry.uid, entry.gid)
        && entry.target.as_ref() == target
}

fn has_xattrs(node: &Node, entry: &PathFingerprint) -> bool {
    let known = node.xattrs.iter().map(|(name, value)| (name.as_bytes(), value));
    known.eq(entry.xattrs.iter().map(|(name, value)| (&name[..], value)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{Content, Object, Op, OperationTarget};
    use crate::promise::{Promise, through};

    struct Scene {
        model: ModelFs,
        history: History,
        numbers: Numbers,
    }

    impl Scene {
        fn new() -> Scene {
            let model = ModelFs::default();
            let history = History::new(&model);
            Scene { model, history, numbers: Numbers::default() }
        }

        fn run(&mut self, op: Op) {
            self.model.apply(&op).expect("a valid operation");
            self.history.push(&self.model);
            let model = self.model.clone();
            self.numbers.learn(&self.model, &mut |path| model.resolve(path).ok());
        }

        fn fsync(&mut self, path: &str) {
            let id = self.model.resolve(&RelPath::from(path)).expect("it is there");
            self.history.promise(Promise::Logged(id));
        }

        fn explain(&self, base: &ModelFs, shown: &ModelFs) -> Result<(), String> {
            let print = |model: &ModelFs| {
                let mut print = Fingerprint::of_model(model);
                let paths: Vec<Vec<u8>> = print.entries.keys().cloned().collect();
                let number = |path: Vec<u8>| (path.clone(), model.resolve(&RelPath(path)).expect("it is there"));
                print.numbers = paths.into_iter().map(number).collect();
                print
            };
            self.history.explain_logged(&print(base), &print(shown), &self.numbers, &through(shown.clone()))
        }
    }

    fn path(text: &str) -> RelPath {
        RelPath::from(text)
    }

    fn create(text: &str) -> Op {
        Op::Create { path: path(text), mode: 0o644 }
    }

    fn renamed(from: &str, to: &str) -> Op {
        Op::Rename { from: path(from), to: path(to), how: crate::operation::RenameHow::Replace }
    }

    #[test]
    fn a_log_shows_what_was_fsynced_and_perhaps_more() {
        let mut scene = Scene::new();
        scene.run(create("a"));
        scene.history.promise(Promise::All);
        let base = scene.model.clone();
        scene.run(create("b"));
        let object = Object::Path(path("b"));
        scene.run(Op::Write { object, offset: 0, content: Content { seed: 6, len: 5000 } });
        scene.fsync("b");
        scene.run(create("c"));
        assert_eq!(scene.explain(&base, &scene.model), Ok(()));
        let mut without_c = scene.model.clone();
        without_c.apply(&Op::Unlink { path: path("c") }).expect("it is there");
        assert_eq!(scene.explain(&base, &without_c), Ok(()));
        let missing = scene.explain(&base, &base).expect_err("b was promised");
        assert!(missing.contains("fsynced"), "{missing}");
        let mut short = without_c.clone();
        short.apply(&Op::Truncate { object: Object::Path(path("b")), size: 0 }).expect("it is there");
        assert!(scene.explain(&base, &short).is_err());
    }

    #[test]
    fn a_moved_file_is_in_one_place() {
        let mut scene = Scene::new();
        scene.run(create("a"));
        scene.run(Op::Mkdir { path: path("d"), mode: 0o755 });
        scene.history.promise(Promise::All);
        let base = scene.model.clone();
        scene.run(renamed("a", "d/a"));
        let moved = scene.model.clone();
        scene.run(create("other"));
        scene.fsync("other");
        let with_other = scene.model.clone();
        let mut not_moved = with_other.clone();
        not_moved.apply(&renamed("d/a", "a")).expect("it is there");
        assert_eq!(scene.explain(&base, &with_other), Ok(()));
        assert_eq!(scene.explain(&base, &not_moved), Ok(()));
        assert!(scene.explain(&base, &moved).is_err(), "the other is missing");
        let mut both = with_other.clone();
        both.apply(&Op::Link { from: path("d/a"), to: path("a") }).expect("no such name");
        assert!(scene.explain(&base, &both).expect_err("two places").contains("never had together"));
        let mut none = with_other.clone();
        none.apply(&Op::Unlink { path: path("d/a") }).expect("it is there");
        assert!(scene.explain(&base, &none).expect_err("no place").contains("has none"));
    }

    #[test]
    fn a_folder_has_its_entries() {
        let mut scene = Scene::new();
        scene.run(create("old"));
        scene.history.promise(Promise::All);
        let base = scene.model.clone();
        scene.run(Op::Mkdir { path: path("d"), mode: 0o755 });
        scene.run(create("d/x"));
        scene.run(Op::Unlink { path: path("old") });
        scene.fsync("");
        assert_eq!(scene.explain(&base, &scene.model), Ok(()));
        let mut empty = scene.model.clone();
        empty.apply(&Op::Unlink { path: path("d/x") }).expect("it is there");
        assert!(scene.explain(&base, &empty).is_err());
        let mut kept = base.clone();
        kept.apply(&Op::Mkdir { path: path("d"), mode: 0o755 }).expect("no such name");
        assert!(scene.explain(&base, &kept).is_err());
        let without = scene.model.clone();
        scene.run(create("d/y"));
        scene.fsync("");
        assert_eq!(scene.explain(&base, &without), Ok(()), "an earlier fsync brought the folder");
        scene.fsync("d");
        assert!(scene.explain(&base, &without).is_err());
    }

    #[test]
    fn a_moved_file_brings_the_new_folders_beside_it() {
        let scene = |syncs_the_file: bool| {
            let mut scene = Scene::new();
            scene.run(Op::Mkdir { path: path("d"), mode: 0o755 });
            scene.run(create("d/f"));
            scene.history.promise(Promise::All);
            let base = scene.model.clone();
            scene.run(Op::Mkdir { path: path("d/new"), mode: 0o755 });
            scene.run(renamed("d/f", "f"));
            if syncs_the_file {
                scene.fsync("f");
            }
            let without = scene.model.clone();
            scene.run(create("d/new/x"));
            scene.fsync("d");
            assert_eq!(scene.explain(&base, &scene.model), Ok(()));
            scene.explain(&base, &without)
        };
        assert!(scene(false).is_err(), "the first log of a folder has its new folders");
        assert_eq!(scene(true), Ok(()), "the file's log had the folder already");
    }
}
