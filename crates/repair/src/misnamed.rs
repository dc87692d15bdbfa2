//! Names that one of their witnesses has otherwise, and names that no program can use.
//!
//! DIR_INDEX and INODE_REF have the index in common: where index and inode agree, both mean the same name, and if their
//! names differ, DIR_ITEM decides. A name that no program can use never wins. Where no witness has another name, the
//! inode gets a similar one in the same directory.

use crate::action::Pass;
use crate::entries::{self, Entry, Link, by_hash, by_index, links_of, put_by_hash, put_by_index, put_link, shown};
use crate::forest::Forest;
use crate::inodes;
use crate::names::Doubts;
use crate::subvolumes;
use crate::trouble::Result;
use butterfs_check::is_possible_name;
use butterfs_ondisk::{Ino, Key, KeyType, TreeId};
use std::collections::{BTreeMap, BTreeSet};

/// The place of a name: directory, index and inode.
type Place = (u64, u64, u64);

/// Gives each witness the name that the others have; returns the places of all names in doubt.
pub(crate) fn correct(forest: &mut Forest, tree: TreeId, doubts: &Doubts) -> Result<BTreeSet<Place>> {
    for &directory in &doubts.directories {
        for child in misnamed_subvolumes(forest, tree, directory)? {
            subvolumes::rename(forest, tree, directory, child)?;
        }
    }
    let mut places = doubts.names.clone();
    for &number in &doubts.impossible {
        places.extend(impossible_at(forest, tree, number)?);
    }
    for &place in &places {
        correct_at(forest, tree, place)?;
    }
    Ok(places)
}

/// The places of the names of an inode, and of its entries, that no program can use.
fn impossible_at(forest: &mut Forest, tree: TreeId, number: u64) -> Result<BTreeSet<Place>> {
    let (mut places, mut subvolumes) = (BTreeSet::new(), BTreeSet::new());
    let links = links_of(forest, tree, number)?.into_iter().map(|(_, link)| link);
    places.extend(links.filter(|link| !is_possible_name(&link.name)).map(|link| (link.directory, link.index, number)));
    for (index, entry) in by_index(forest, tree, number)?.into_iter().filter(|(_, one)| !is_possible_name(&one.name)) {
        match entry.is_subvolume() {
            true => drop(subvolumes.insert(TreeId(entry.location.objectid))),
            false => drop(places.insert((number, index, entry.location.objectid))),
        }
    }
    for entry in hashed(forest, tree, number)?.into_iter().filter(|entry| !is_possible_name(&entry.name)) {
        if entry.is_subvolume() {
            subvolumes.insert(TreeId(entry.location.objectid));
            continue;
        }
        let inode = entry.location.objectid;
        let links = links_of(forest, tree, inode)?.into_iter().map(|(_, link)| link);
        let same = links.filter(|link| link.directory == number && link.name == entry.name);
        places.extend(same.map(|link| (number, link.index, inode)));
        // It says nothing that the other witnesses do not say.
        put_by_hash(forest, tree, number, &entry.name, None)?;
        let what = format!("removes the entry {} from directory {number} of tree {tree}", shown(&entry.name));
        forest.did(Pass::Names, what);
    }
    for child in subvolumes {
        subvolumes::rename(forest, tree, number, child)?;
    }
    Ok(places)
}

/// Subvolumes whose entries by hash and by index have different names.
fn misnamed_subvolumes(forest: &Forest, tree: TreeId, directory: u64) -> Result<Vec<TreeId>> {
    let mut names: BTreeMap<u64, [BTreeSet<Vec<u8>>; 2]> = BTreeMap::new();
    let hashed = hashed(forest, tree, directory)?.into_iter().map(|entry| (0, entry));
    let indexed = by_index(forest, tree, directory)?.into_iter().map(|(_, entry)| (1, entry));
    for (kind, entry) in hashed.chain(indexed).filter(|(_, entry)| entry.is_subvolume()) {
        names.entry(entry.location.objectid).or_default()[kind].insert(entry.name);
    }
    let differ =
        |[hashed, indexed]: &[BTreeSet<Vec<u8>>; 2]| !hashed.is_empty() && !indexed.is_empty() && hashed != indexed;
    Ok(names.into_iter().filter(|(_, names)| differ(names)).map(|(child, _)| TreeId(child)).collect())
}

/// All entries of a directory by their hashes.
fn hashed(forest: &Forest, tree: TreeId, directory: u64) -> Result<Vec<Entry>> {
    let items = forest.of_kind(tree, directory, KeyType::DIR_ITEM)?;
    Ok(items.iter().flat_map(|(_, data)| entries::entries(data)).collect())
}

/// Gives the entry at an index, and the link to it, the same name.
fn correct_at(forest: &mut Forest, tree: TreeId, place: Place) -> Result<()> {
    let (directory, index, inode) = place;
    // The root directory names itself, and has no entry.
    if inode == directory && inode == Ino::ROOT_DIR.get() {
        return Ok(());
    }
    let stored = forest.get(tree, Key::new(directory, KeyType::DIR_INDEX, index))?.unwrap_or_default();
    let entry = entries::entries(&stored).into_iter().next().filter(|entry| entry.leads_to(inode));
    let links = links_of(forest, tree, inode)?.into_iter().map(|(_, link)| link);
    let links: Vec<Link> = links.filter(|link| (link.directory, link.index) == (directory, index)).collect();
    let Some(entry) = entry else {
        for link in links.iter().filter(|link| !is_possible_name(&link.name)) {
            forget(forest, tree, inode, link)?;
        }
        return Ok(());
    };
    let agrees = links.is_empty() || links.iter().any(|link| link.name == entry.name);
    if agrees && is_possible_name(&entry.name) {
        return Ok(());
    }
    let mut names: Vec<Vec<u8>> = links.iter().map(|link| link.name.clone()).collect();
    names.push(entry.name.clone());
    names.retain(|name| is_possible_name(name));
    let choice = choose(forest, tree, place, names)?;
    if let Choice::MadeUp = choice {
        let known = links_of(forest, tree, inode)?.len() as u64;
        let is_elsewhere = links.is_empty() && known > 0 && inodes::links_said(forest, tree, inode)? <= known;
        if is_elsewhere || forest.object(tree, inode)?.is_empty() {
            return Ok(());
        }
        let name = made_up(forest, tree, directory, &format!("inode-{inode}"), &entry.name)?;
        let lost = format!("its name {}, which no program can use", shown(&entry.name));
        forest.lose(Pass::Names, renames(tree, place, &entry, &links, &name), lost);
        return rename(forest, tree, place, entry, &links, &name);
    }
    let Choice::Name(name) = choice else { return Ok(()) };
    forest.did(Pass::Names, renames(tree, place, &entry, &links, &name));
    rename(forest, tree, place, entry, &links, &name)
}

fn renames(tree: TreeId, (directory, _, inode): Place, entry: &Entry, links: &[Link], name: &[u8]) -> String {
    let old: BTreeSet<&Vec<u8>> = links.iter().map(|link| &link.name).chain([&entry.name]).collect();
    let old: Vec<String> = old.into_iter().filter(|old| **old != name).map(|old| shown(old)).collect();
    let (name, old) = (shown(name), old.join(" and "));
    format!("gives inode {inode} of tree {tree} the name {name} in directory {directory} for {old}")
}

/// The result of a vote about a name.
enum Choice {
    Name(Vec<u8>),
    /// The witnesses do not decide; both names may be right.
    Undecided,
    /// No witness has a name that a program can use.
    MadeUp,
}

/// Chooses from the names of the entry and the links; without any, the name that only DIR_ITEM has.
fn choose(forest: &Forest, tree: TreeId, (directory, index, inode): Place, mut names: Vec<Vec<u8>>) -> Result<Choice> {
    names.dedup();
    let indexed: BTreeSet<Vec<u8>> = by_index(forest, tree, directory)?
        .into_iter()
        .filter(|(at, _)| *at != index)
        .map(|(_, one)| one.name)
        .collect();
    if names.is_empty() {
        let hashed = hashed(forest, tree, directory)?.into_iter();
        let mut alone = hashed.filter(|entry| entry.leads_to(inode) && !indexed.contains(&entry.name));
        let found = alone.find(|entry| is_possible_name(&entry.name));
        return Ok(found.map_or(Choice::MadeUp, |entry| Choice::Name(entry.name)));
    }
    // A name that belongs to another index says nothing here.
    if names.iter().any(|name| !indexed.contains(name)) {
        names.retain(|name| !indexed.contains(name));
    }
    let mut confirmed = Vec::new();
    for name in &names {
        if by_hash(forest, tree, directory, name)?.is_some_and(|entry| entry.leads_to(inode)) {
            confirmed.push(name.clone());
        }
    }
    if confirmed.len() > 1 {
        return Ok(Choice::Undecided);
    }
    // One against one: one of them is damaged, so two names would be wrong in any case.
    let name = confirmed.pop().or_else(|| names.into_iter().next());
    Ok(name.map_or(Choice::Undecided, Choice::Name))
}

/// Writes the name at its index and in the inode; [`crate::names`] writes the rest.
fn rename(
    forest: &mut Forest,
    tree: TreeId,
    (directory, index, inode): Place,
    entry: Entry,
    links: &[Link],
    name: &[u8],
) -> Result<()> {
    let is_old = |link: &Link| (link.directory, link.index) == (directory, index) && link.name != name;
    entries::remove_links(forest, tree, inode, is_old)?;
    if !links.is_empty() {
        let same = links_of(forest, tree, inode)?.into_iter().map(|(_, link)| link);
        // Another link may have the same name at another index, which the entries decide.
        if same.clone().all(|link| (link.directory, &link.name[..]) != (directory, name)) {
            put_link(forest, tree, inode, &Link { directory, index, name: name.to_vec() })?;
        }
    }
    put_by_index(forest, tree, directory, index, Some(&Entry { name: name.to_vec(), ..entry }))?;
    Ok(())
}

/// Takes a name that no entry has from an inode.
fn forget(forest: &mut Forest, tree: TreeId, inode: u64, link: &Link) -> Result<()> {
    entries::remove_links(forest, tree, inode, |other| other == link)?;
    let (directory, name) = (link.directory, shown(&link.name));
    let what = format!("removes the name {name} in directory {directory} from inode {inode} of tree {tree}");
    forest.did(Pass::Names, what);
    Ok(())
}

/// A name that a program can use: like the damaged one, or like `other` where the directory has that already.
pub(crate) fn made_up(forest: &Forest, tree: TreeId, directory: u64, other: &str, damaged: &[u8]) -> Result<Vec<u8>> {
    let is_dots = damaged == b"." || damaged == b"..";
    let readable = |byte: &u8| if is_dots || [0, b'/'].contains(byte) { b'_' } else { *byte };
    let name: Vec<u8> = damaged.iter().map(readable).collect();
    let is_taken = by_hash(forest, tree, directory, &name)?.is_some()
        || by_index(forest, tree, directory)?.iter().any(|(_, entry)| entry.name == name);
    if is_taken || name.is_empty() { inodes::free_name(forest, tree, directory, other) } else { Ok(name) }
}
