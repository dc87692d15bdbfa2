//! The pass `names`: the two entries of a name and its inode's reference are made to agree.
//!
//! There are three witnesses: DIR_ITEM, DIR_INDEX, and INODE_REF or INODE_EXTREF. The inode that most of them mean gets
//! all three; a name of which no inode is there goes. Before that, a witness that only has another name than the others
//! gets their name ([`misnamed`]).

use crate::action::Pass;
use crate::entries::{self, Entry, Link, by_hash, by_index, next_index, put_by_hash, put_by_index, put_link, shown};
use crate::forest::Forest;
use crate::inodes;
use crate::misnamed;
use crate::trouble::Result;
use crate::walk;
use butterfs_check::is_possible_name;
use butterfs_ondisk::checksum::extref_hash;
use butterfs_ondisk::{Ino, Key, KeyType, TreeId};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// The names in doubt of one tree.
#[derive(Clone, Debug, Default)]
pub(crate) struct Doubts {
    /// Names by directory, index and inode, as one of the witnesses has them.
    pub names: BTreeSet<(u64, u64, u64)>,
    /// Directories whose two kinds of entries differ.
    pub directories: BTreeSet<u64>,
    /// Inodes with links under a wrong hash.
    pub hashes: BTreeSet<u64>,
    /// Inodes without links: their names are those of the entries that lead to them.
    pub nameless: BTreeSet<u64>,
    /// Inodes with fewer links than their items say: the names of the others are those of entries, too.
    pub short: BTreeSet<u64>,
    /// Inodes and directories that have names which no program can use.
    pub impossible: BTreeSet<u64>,
}

/// Makes the names in doubt agree; returns the inodes and directories that have to be brought up to date.
pub(crate) fn settle(forest: &mut Forest, tree: TreeId, doubts: &Doubts) -> Result<BTreeSet<u64>> {
    let mut touched = BTreeSet::new();
    for &inode in &doubts.hashes {
        rehash(forest, tree, inode)?;
        touched.insert(inode);
    }
    let mut names: BTreeMap<(u64, Vec<u8>), BTreeSet<u64>> = BTreeMap::new();
    for (directory, index, inode) in misnamed::correct(forest, tree, doubts)? {
        touched.insert(directory);
        for name in names_at(forest, tree, directory, index, inode)? {
            names.entry((directory, name)).or_default().insert(inode);
        }
    }
    for &directory in &doubts.directories {
        for (name, inode) in differing(forest, tree, directory)? {
            names.entry((directory, name)).or_default().insert(inode);
        }
        touched.insert(directory);
    }
    let incomplete = doubts.nameless.union(&doubts.short).copied().collect();
    for (directory, name, inode) in leading_to(forest, tree, &incomplete)? {
        touched.insert(directory);
        names.entry((directory, name)).or_default().insert(inode);
    }
    // Names that entries have come first: what only a link says may be one of them, damaged.
    let mut ordered: Vec<_> = names.into_iter().collect();
    let (mut alone, mut indexed) = (BTreeMap::new(), (0, HashSet::new()));
    for ((directory, name), inodes) in &ordered {
        if indexed.0 != *directory {
            let all = by_index(forest, tree, *directory)?.into_iter();
            indexed = (*directory, all.map(|(_, entry)| entry.name).collect());
        }
        let has_entry = inodes.contains(directory)
            || indexed.1.contains(name)
            || by_hash(forest, tree, *directory, name)?.is_some();
        // No entry of the directory has the name.
        alone.insert((*directory, name.clone()), !has_entry);
    }
    ordered.sort_by_key(|((directory, name), _)| alone[&(*directory, name.clone())]);
    let mut entries_of = (0, Indexed::new());
    for ((directory, name), inodes) in ordered {
        if alone[&(directory, name.clone())] && forget_wrong_links(forest, tree, directory, &name, &inodes, &touched)? {
            touched.extend(&inodes);
            continue;
        }
        if entries_of.0 != directory {
            entries_of = (directory, all_by_name(forest, tree, directory)?);
        }
        if inodes.contains(&directory) && directory == Ino::ROOT_DIR.get() {
            settle_root(forest, tree, directory)?;
            touched.insert(directory);
            continue;
        }
        touched.insert(directory);
        touched.extend(&inodes);
        let indexed = entries_of.1.remove(&name).unwrap_or_default();
        if let Some(inode) = settle_name(forest, tree, directory, &name, &inodes, indexed)? {
            touched.insert(inode);
        }
    }
    touched.extend(&doubts.impossible);
    Ok(touched)
}

/// The entries of a tree that lead to one of the inodes and lack one of their witnesses: directory, name and inode.
/// The check does not compare entries with links in a tree that it cannot read whole; there only the entries tell of a
/// link that is lost.
fn leading_to(forest: &Forest, tree: TreeId, inodes: &BTreeSet<u64>) -> Result<BTreeSet<(u64, Vec<u8>, u64)>> {
    let mut found: BTreeMap<_, BTreeSet<KeyType>> = BTreeMap::new();
    if inodes.is_empty() {
        return Ok(BTreeSet::new());
    }
    walk::items(&forest.store, &forest.ptr(tree)?, &mut |key, data| {
        if matches!(key.kind, KeyType::DIR_ITEM | KeyType::DIR_INDEX) {
            let leads = |entry: &Entry| !entry.is_subvolume() && inodes.contains(&entry.location.objectid);
            let leading = entries::entries(data).into_iter().filter(leads);
            for entry in leading {
                found.entry((key.objectid, entry.name, entry.location.objectid)).or_default().insert(key.kind);
            }
        }
    });
    for &inode in inodes {
        for (_, link) in entries::links_of(forest, tree, inode)? {
            let name = (link.directory, link.name, inode);
            if found.get(&name).is_some_and(|kinds| kinds.len() == 2) {
                found.remove(&name);
            }
        }
    }
    Ok(found.into_keys().collect())
}

/// Removes links that are damaged versions of a name that has just been given back to their inode, and links to what is
/// no directory; true when none is left. `settled` are the inodes whose other names have been settled.
fn forget_wrong_links(
    forest: &mut Forest,
    tree: TreeId,
    directory: u64,
    name: &[u8],
    inodes: &BTreeSet<u64>,
    settled: &BTreeSet<u64>,
) -> Result<bool> {
    let is_wrong_place = !is_possible_name(name) || inodes::is_something_else(forest, tree, directory)?;
    let mut left = false;
    for &inode in inodes {
        let links = entries::links_of(forest, tree, inode)?.len() as u64;
        let has_too_many = settled.contains(&inode) && inodes::links_said(forest, tree, inode)? < links;
        if !(is_wrong_place || has_too_many) {
            left = true;
            continue;
        }
        if entries::remove_link(forest, tree, inode, directory, name)? {
            let what =
                format!("removes the name {} in directory {directory} from inode {inode} of tree {tree}", shown(name));
            forest.did(Pass::Names, what);
        }
    }
    Ok(!left)
}

/// The names that the entry at an index, and the links of an inode to it, have.
fn names_at(forest: &Forest, tree: TreeId, directory: u64, index: u64, inode: u64) -> Result<BTreeSet<Vec<u8>>> {
    let entry = forest.get(tree, Key::new(directory, KeyType::DIR_INDEX, index))?.unwrap_or_default();
    let mut names: BTreeSet<Vec<u8>> = entries::entries(&entry).into_iter().map(|entry| entry.name).collect();
    let links = entries::links_of(forest, tree, inode)?.into_iter().map(|(_, link)| link);
    names.extend(links.filter(|link| (link.directory, link.index) == (directory, index)).map(|link| link.name));
    Ok(names)
}

/// The root directory of a tree names itself, at index 0, and has no other name.
fn settle_root(forest: &mut Forest, tree: TreeId, directory: u64) -> Result<()> {
    let wanted = Link { directory, index: 0, name: b"..".to_vec() };
    for (_, link) in entries::links_of(forest, tree, directory)? {
        if (link.directory, &link.name) != (directory, &wanted.name) {
            entries::remove_link(forest, tree, directory, link.directory, &link.name)?;
            forest.did(Pass::Names, format!("removes a name of the root directory of tree {tree}"));
        }
    }
    if put_link(forest, tree, directory, &wanted)? {
        forest.did(Pass::Names, format!("gives the root directory of tree {tree} its index"));
    }
    Ok(())
}

/// Names that one kind of entry has and the other does not, or has otherwise, each with the inode.
fn differing(forest: &Forest, tree: TreeId, directory: u64) -> Result<Vec<(Vec<u8>, u64)>> {
    let same = |entry: &Entry| (entry.name.clone(), entry.location, entry.kind);
    let (mut hashed, mut indexed) = (BTreeMap::new(), BTreeMap::<_, u64>::new());
    for (_, data) in forest.of_kind(tree, directory, KeyType::DIR_ITEM)? {
        for entry in entries::entries(&data) {
            *hashed.entry(same(&entry)).or_insert(0u64) += 1;
        }
    }
    for (_, entry) in by_index(forest, tree, directory)? {
        *indexed.entry(same(&entry)).or_default() += 1;
    }
    let all: BTreeSet<_> = hashed.keys().chain(indexed.keys()).cloned().collect();
    let odd = all.into_iter().filter(|key| hashed.get(key) != indexed.get(key));
    Ok(odd.map(|(name, location, _)| (name, location.objectid)).collect())
}

/// The entries of a directory by name, each with its indexes.
type Indexed = HashMap<Vec<u8>, Vec<(u64, Entry)>>;

fn all_by_name(forest: &Forest, tree: TreeId, directory: u64) -> Result<Indexed> {
    let mut all = Indexed::new();
    for (index, entry) in by_index(forest, tree, directory)? {
        all.entry(entry.name.clone()).or_default().push((index, entry));
    }
    Ok(all)
}

/// Makes one name agree; returns the inode that has it.
fn settle_name(
    forest: &mut Forest,
    tree: TreeId,
    directory: u64,
    name: &[u8],
    suspects: &BTreeSet<u64>,
    indexed: Vec<(u64, Entry)>,
) -> Result<Option<u64>> {
    let hashed = by_hash(forest, tree, directory, name)?;
    if let Some(subvolume) = hashed.iter().chain(indexed.iter().map(|(_, entry)| entry)).find(|e| e.is_subvolume()) {
        return settle_subvolume(forest, tree, directory, &subvolume.clone(), &indexed).map(|()| None);
    }
    let mut candidates = suspects.clone();
    candidates.extend(hashed.iter().chain(indexed.iter().map(|(_, entry)| entry)).map(|entry| entry.location.objectid));
    let (mut best, mut has_inode): (Option<(usize, u64, Option<Link>)>, bool) = (None, false);
    for inode in candidates.iter().copied() {
        let links = entries::links_of(forest, tree, inode)?;
        let links: Vec<Link> = links.into_iter().map(|(_, link)| link).collect();
        // All of its names are known, and this is none of them.
        let is_elsewhere = !links.is_empty() && inodes::links_said(forest, tree, inode)? <= links.len() as u64;
        let link = links.iter().find(|link| link.directory == directory && link.name == name).cloned();
        let means = |entry: &Entry| entry.location.objectid == inode;
        let exists = inode != Ino::ROOT_DIR.get() && !forest.object(tree, inode)?.is_empty();
        has_inode |= exists;
        let votes = usize::from(hashed.as_ref().is_some_and(means))
            + usize::from(indexed.iter().any(|(_, entry)| means(entry)))
            + usize::from(link.is_some());
        let votes = match exists && is_possible_name(name) {
            false => 0,
            // One entry alone against the inode, which knows all of its names.
            true if link.is_none() && is_elsewhere && votes < 2 => 0,
            // A directory has one name. If no entry confirms its own one, both entries here are right.
            true if link.is_none()
                && is_elsewhere
                && inodes::is_directory(forest, tree, inode)?
                && is_confirmed(forest, tree, inode, &links)? =>
            {
                0
            }
            true if link.is_none() && is_elsewhere => 2,
            true => votes * 2 + 1,
        };
        if votes > 1 && best.as_ref().is_none_or(|(most, _, _)| votes > *most) {
            best = Some((votes, inode, link));
        }
    }
    // Nobody else keeps the name.
    let winner = best.as_ref().map(|(_, inode, _)| *inode);
    for inode in candidates.into_iter().filter(|inode| Some(*inode) != winner) {
        entries::remove_link(forest, tree, inode, directory, name)?;
    }
    let Some((_, inode, link)) = best else {
        put_by_hash(forest, tree, directory, name, None)?;
        for (index, _) in &indexed {
            put_by_index(forest, tree, directory, *index, None)?;
        }
        let what = format!("removes {} from directory {directory} of tree {tree}", shown(name));
        let why = if has_inode { "which is no name of its inode" } else { "of which no inode is there" };
        forest.lose(Pass::Names, what, format!("the name {}, {why}", shown(name)));
        return Ok(None);
    };
    write_name(forest, tree, directory, name, inode, link, &indexed)?;
    Ok(Some(inode))
}

/// Whether an entry confirms one of the names that an inode says it has.
fn is_confirmed(forest: &Forest, tree: TreeId, inode: u64, links: &[Link]) -> Result<bool> {
    for link in links {
        let at_index = forest.get(tree, Key::new(link.directory, KeyType::DIR_INDEX, link.index))?.unwrap_or_default();
        let indexed = entries::entries(&at_index).iter().any(|one| one.leads_to(inode) && one.name == link.name);
        let hashed = by_hash(forest, tree, link.directory, &link.name)?.is_some_and(|entry| entry.leads_to(inode));
        if indexed || hashed {
            return Ok(true);
        }
    }
    Ok(false)
}

fn write_name(
    forest: &mut Forest,
    tree: TreeId,
    directory: u64,
    name: &[u8],
    inode: u64,
    link: Option<Link>,
    indexed: &[(u64, Entry)],
) -> Result<()> {
    let own = indexed.iter().filter(|(_, entry)| entry.location.objectid == inode).map(|(index, _)| *index);
    let own: Vec<u64> = own.collect();
    let linked = link.map(|link| link.index).filter(|index| (2..1 << 62).contains(index));
    let agreed = linked.filter(|index| own.contains(index));
    let index = match agreed.or_else(|| own.iter().copied().find(|index| (2..1 << 62).contains(index))) {
        Some(index) => index,
        None => {
            let key = |index| Key::new(directory, KeyType::DIR_INDEX, index);
            let free = match linked {
                Some(index) => forest.get(tree, key(index))?.is_none().then_some(index),
                None => None,
            };
            free.map_or_else(|| next_index(forest, tree, directory), Ok)?
        }
    };
    let known = indexed.iter().find(|(other, _)| *other == index).map(|(_, entry)| entry);
    let hashed = by_hash(forest, tree, directory, name)?;
    let transid = known.or(hashed.as_ref()).map_or(forest.store.generation.get(), |entry| entry.transid);
    let guessed = known.or(hashed.as_ref()).map(|entry| entry.kind);
    if let (Some(one), Some(other)) = (known, hashed.as_ref())
        && one.kind == other.kind
        && one.location == other.location
        && one.location.objectid == inode
    {
        inodes::believe_kind(forest, tree, inode, one.kind)?;
    }
    let kind = inodes::entry_kind(forest, tree, inode)?.or(guessed).unwrap_or(1);
    let entry = Entry { location: Key::new(inode, KeyType::INODE_ITEM, 0), transid, kind, name: name.to_vec() };
    let mut changed = put_by_hash(forest, tree, directory, name, Some(&entry))?;
    for (other, _) in indexed.iter().filter(|(other, _)| *other != index) {
        changed |= put_by_index(forest, tree, directory, *other, None)?;
    }
    changed |= put_by_index(forest, tree, directory, index, Some(&entry))?;
    changed |= put_link(forest, tree, inode, &Link { directory, index, name: name.to_vec() })?;
    if changed {
        let what = format!("makes {} in directory {directory} of tree {tree} a name of inode {inode}", shown(name));
        forest.did(Pass::Names, what);
    }
    Ok(())
}

/// An entry of a subvolume that one kind of item lacks.
fn settle_subvolume(
    forest: &mut Forest,
    tree: TreeId,
    directory: u64,
    entry: &Entry,
    indexed: &[(u64, Entry)],
) -> Result<()> {
    if by_hash(forest, tree, directory, &entry.name)?.is_none() {
        put_by_hash(forest, tree, directory, &entry.name, Some(entry))?;
    }
    for (index, other) in
        indexed.iter().filter(|(_, other)| other.location != entry.location || other.kind != entry.kind)
    {
        put_by_index(forest, tree, directory, *index, Some(&Entry { transid: other.transid, ..entry.clone() }))?;
    }
    if indexed.is_empty() {
        let stored = forest.get(TreeId::ROOT, Key::new(tree.get(), KeyType::ROOT_REF, entry.location.objectid))?;
        let index = stored.and_then(|data| Some(u64::from_le_bytes(data.get(8..16)?.try_into().ok()?)));
        let index = index.map_or_else(|| next_index(forest, tree, directory), Ok)?;
        put_by_index(forest, tree, directory, index, Some(entry))?;
    }
    forest.did(
        Pass::Names,
        format!("completes the entry {} of directory {directory} of tree {tree}", shown(&entry.name)),
    );
    Ok(())
}

/// Puts links that stand under a wrong hash where they belong.
fn rehash(forest: &mut Forest, tree: TreeId, inode: u64) -> Result<()> {
    for (key, data) in forest.of_kind(tree, inode, KeyType::INODE_EXTREF)? {
        let all = entries::links(key, &data);
        if all.iter().all(|link| extref_hash(link.directory, &link.name) == key.offset) {
            continue;
        }
        forest.remove(tree, key)?;
        for link in &all {
            put_link(forest, tree, inode, link)?;
        }
        forest.did(Pass::Names, format!("puts names of inode {inode} of tree {tree} under their hashes"));
    }
    Ok(())
}

/// Whether this is the number of an inode that people see.
pub(crate) fn is_inode(number: u64) -> bool {
    (Ino::FIRST_FREE.get()..=Ino::LAST_FREE.get()).contains(&number)
}
