//! The pass `subvolumes`: ROOT_REF, ROOT_BACKREF and the entry of each subvolume are made to agree; two of three
//! decide.

use crate::action::Pass;
use crate::entries::{self, Entry, by_hash, by_index, next_index, shown};
use crate::forest::Forest;
use crate::inodes;
use crate::misnamed;
use crate::trouble::Result;
use crate::walk;
use butterfs_check::is_possible_name;
use butterfs_ondisk::items::{RootItem, RootRef, dir_type};
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::{Key, KeyType, TreeId};
use std::collections::BTreeSet;
use zerocopy::{FromBytes, IntoBytes};

/// Where a subvolume is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    parent: TreeId,
    directory: u64,
    index: u64,
    name: Vec<u8>,
}

impl Place {
    fn encode(&self) -> Vec<u8> {
        let head = RootRef {
            dirid: self.directory.into(),
            sequence: self.index.into(),
            name_len: (self.name.len() as u16).into(),
        };
        [head.as_bytes(), &self.name].concat()
    }
}

fn place(parent: u64, data: &[u8]) -> Option<Place> {
    let (head, rest) = RootRef::read_from_prefix(data).ok()?;
    let name = rest.get(..head.name_len.get().into())?.to_vec();
    Some(Place { parent: TreeId(parent), directory: head.dirid.get(), index: head.sequence.get(), name })
}

/// Gives each of these subvolumes one place.
pub(crate) fn place_all(forest: &mut Forest, subvolumes: &BTreeSet<TreeId>) -> Result<()> {
    for &child in subvolumes {
        if !forest.trees.get(&child).is_some_and(|root| root.is_live_subvolume()) {
            remove_names(forest, child)?;
            continue;
        }
        let mut places = stored_places(forest, child)?;
        places.retain(|place| is_possible_name(&place.name));
        if places.is_empty() {
            places = entries_of(forest, child)?;
            places.sort_by_key(|place| !is_possible_name(&place.name));
        }
        // The place that an entry confirms, else the first one whose directory is there.
        let mut chosen = None;
        for place in &places {
            if has_entry(forest, child, place)? {
                chosen = Some(place.clone());
                break;
            }
        }
        let chosen = match chosen.or_else(|| places.first().cloned()) {
            Some(place) => place,
            None => in_lost_and_found(forest, child)?,
        };
        write_place(forest, child, chosen)?;
    }
    Ok(())
}

fn stored_places(forest: &Forest, child: TreeId) -> Result<Vec<Place>> {
    let mut places: Vec<Place> = Vec::new();
    let parents: Vec<TreeId> = forest.trees.keys().copied().filter(|id| id.is_subvolume()).collect();
    for parent in parents {
        let own = forest.get(TreeId::ROOT, Key::new(parent.get(), KeyType::ROOT_REF, child.get()))?;
        let back = forest.get(TreeId::ROOT, Key::new(child.get(), KeyType::ROOT_BACKREF, parent.get()))?;
        places.extend(own.and_then(|data| place(parent.get(), &data)));
        places.extend(back.and_then(|data| place(parent.get(), &data)));
    }
    places.dedup();
    Ok(places)
}

/// Entries that lead to a subvolume, in all directories.
fn entries_of(forest: &Forest, child: TreeId) -> Result<Vec<Place>> {
    let mut places = Vec::new();
    for parent in forest.subvolumes() {
        walk::items(&forest.store, &forest.ptr(parent)?, &mut |key, data| {
            if key.kind != KeyType::DIR_INDEX {
                return;
            }
            let leads = |entry: &Entry| entry.is_subvolume() && entry.location.objectid == child.get();
            for entry in entries::entries(data).into_iter().filter(leads) {
                places.push(Place { parent, directory: key.objectid, index: key.offset, name: entry.name });
            }
        });
    }
    Ok(places)
}

fn has_entry(forest: &Forest, child: TreeId, place: &Place) -> Result<bool> {
    let key = Key::new(place.directory, KeyType::DIR_INDEX, place.index);
    let Some(data) = forest.ptr(place.parent).ok().map(|_| forest.get(place.parent, key)).transpose()?.flatten() else {
        return Ok(false);
    };
    let fits =
        |entry: &Entry| entry.is_subvolume() && entry.location.objectid == child.get() && entry.name == place.name;
    Ok(entries::entries(&data).iter().any(fits))
}

fn in_lost_and_found(forest: &mut Forest, child: TreeId) -> Result<Place> {
    let parent = TreeId::FS;
    let directory = inodes::lost_and_found(forest, parent)?;
    let name = inodes::free_name(forest, parent, directory, &format!("subvolume-{}", child.get()))?;
    let index = next_index(forest, parent, directory)?;
    Ok(Place { parent, directory, index, name })
}

fn write_place(forest: &mut Forest, child: TreeId, mut place: Place) -> Result<()> {
    let location = Key::new(child.get(), KeyType::ROOT_ITEM, u64::MAX);
    let is_directory = inodes::is_directory(forest, place.parent, place.directory)?;
    let taken = by_hash(forest, place.parent, place.directory, &place.name)?
        .is_some_and(|entry| entry.location.objectid != child.get() || !entry.is_subvolume());
    if !is_directory || taken {
        remove_names(forest, child)?;
        place = in_lost_and_found(forest, child)?;
    }
    let mut changed = correct_entries(forest, child, &place)?;
    let at_index = by_index(forest, place.parent, place.directory)?;
    let is_other = |entry: &Entry| entry.name != place.name;
    if at_index.iter().any(|(index, entry)| *index == place.index && is_other(entry)) {
        place.index = next_index(forest, place.parent, place.directory)?;
    }
    let transid = forest.store.generation.get();
    let fresh = Entry { location, transid, kind: dir_type::DIR, name: place.name.clone() };
    let hashed = by_hash(forest, place.parent, place.directory, &place.name)?;
    let indexed = at_index.iter().find(|(_, entry)| !is_other(entry)).map(|(_, entry)| entry.clone());
    let is_new = hashed.is_none();
    // Both kinds of entries are alike, whatever their keys end in.
    let entry = hashed.or(indexed).unwrap_or(fresh);
    if is_new {
        changed |= entries::put_by_hash(forest, place.parent, place.directory, &place.name, Some(&entry))?;
    }
    let own: Vec<u64> =
        at_index.iter().filter(|(_, entry)| entry.name == place.name).map(|(index, _)| *index).collect();
    for index in own.iter().filter(|index| **index != place.index) {
        changed |= entries::put_by_index(forest, place.parent, place.directory, *index, None)?;
    }
    if !own.contains(&place.index) {
        changed |= entries::put_by_index(forest, place.parent, place.directory, place.index, Some(&entry))?;
    }
    let data = place.encode();
    let ref_key = Key::new(place.parent.get(), KeyType::ROOT_REF, child.get());
    let back_key = Key::new(child.get(), KeyType::ROOT_BACKREF, place.parent.get());
    changed |= remove_references_but(forest, child, place.parent)?;
    changed |= forest.put(TreeId::ROOT, ref_key, &data)?;
    changed |= forest.put(TreeId::ROOT, back_key, &data)?;
    if changed {
        inodes::write(forest, place.parent, place.directory)?;
        let (name, parent) = (shown(&place.name), place.parent);
        let what = format!("names subvolume {} {name} in directory {} of tree {parent}", child.get(), place.directory);
        forest.did(Pass::Subvolumes, what);
    }
    Ok(())
}

/// Gives entries that lead to the subvolume, and have another name, the name of its place.
fn correct_entries(forest: &mut Forest, child: TreeId, place: &Place) -> Result<bool> {
    let mut changed = false;
    let (parent, directory) = (place.parent, place.directory);
    let is_odd = |entry: &Entry| leads_to(entry, child) && entry.name != place.name;
    for (index, entry) in by_index(forest, parent, directory)?.into_iter().filter(|(_, entry)| is_odd(entry)) {
        if by_hash(forest, parent, directory, &entry.name)?.is_some_and(|hashed| leads_to(&hashed, child)) {
            entries::put_by_hash(forest, parent, directory, &entry.name, None)?;
        }
        let renamed = (index == place.index).then(|| Entry { name: place.name.clone(), ..entry });
        changed |= entries::put_by_index(forest, parent, directory, index, renamed.as_ref())?;
    }
    Ok(changed)
}

fn leads_to(entry: &Entry, child: TreeId) -> bool {
    entry.is_subvolume() && entry.location.objectid == child.get()
}

/// Gives a subvolume one name in a directory whose entries have several, or one that no program can use. A snapshot of
/// that directory has such entries too, and is no place of the subvolume.
pub(crate) fn rename(forest: &mut Forest, parent: TreeId, directory: u64, child: TreeId) -> Result<()> {
    let indexed = by_index(forest, parent, directory)?.into_iter().filter(|(_, entry)| leads_to(entry, child));
    let indexed: Vec<(u64, Entry)> = indexed.collect();
    let items = forest.of_kind(parent, directory, KeyType::DIR_ITEM)?;
    let hashed: Vec<Entry> =
        items.iter().flat_map(|(_, data)| entries::entries(data)).filter(|entry| leads_to(entry, child)).collect();
    let stored = stored_places(forest, child)?;
    let Some(entry) = indexed.iter().map(|(_, entry)| entry).chain(&hashed).next().cloned() else { return Ok(()) };
    let is_here = |place: &&Place| (place.parent, place.directory) == (parent, directory);
    let here = stored.iter().find(is_here);
    // The entry by hash has a name that fits its hash.
    let known = here.iter().map(|place| &place.name).chain(hashed.iter().map(|entry| &entry.name));
    let known = known.chain(indexed.iter().map(|(_, entry)| &entry.name));
    let known = known.chain(stored.iter().map(|place| &place.name)).find(|name| is_possible_name(name)).cloned();
    for other in &hashed {
        entries::put_by_hash(forest, parent, directory, &other.name, None)?;
    }
    for (index, _) in &indexed {
        entries::put_by_index(forest, parent, directory, *index, None)?;
    }
    let known = match known {
        Some(name) if by_hash(forest, parent, directory, &name)?.is_none() => Some(name),
        _ => None,
    };
    let is_known = known.is_some();
    let other = format!("subvolume-{}", child.get());
    let name = known.map_or_else(|| misnamed::made_up(forest, parent, directory, &other, &entry.name), Ok)?;
    let index = here.map(|place| place.index).or(indexed.first().map(|(index, _)| *index));
    let index = match index {
        Some(index) if forest.get(parent, Key::new(directory, KeyType::DIR_INDEX, index))?.is_none() => index,
        _ => next_index(forest, parent, directory)?,
    };
    let old = shown(&entry.name);
    let entry = Entry { name: name.clone(), ..entry };
    entries::put_by_hash(forest, parent, directory, &name, Some(&entry))?;
    entries::put_by_index(forest, parent, directory, index, Some(&entry))?;
    let what =
        format!("gives subvolume {} the name {} in directory {directory} of tree {parent}", child.get(), shown(&name));
    match is_known {
        true => forest.did(Pass::Subvolumes, what),
        false => forest.lose(Pass::Subvolumes, what, format!("its name {old}, which no program can use")),
    }
    match here {
        Some(_) => write_place(forest, child, Place { parent, directory, index, name }),
        None => Ok(()),
    }
}

/// Removes the references of a subvolume in other parents.
fn remove_references_but(forest: &mut Forest, child: TreeId, kept: TreeId) -> Result<bool> {
    let mut changed = false;
    let parents: Vec<TreeId> = forest.trees.keys().copied().filter(|id| id.is_subvolume() && *id != kept).collect();
    for parent in parents {
        changed |= forest.remove(TreeId::ROOT, Key::new(parent.get(), KeyType::ROOT_REF, child.get()))?;
        changed |= forest.remove(TreeId::ROOT, Key::new(child.get(), KeyType::ROOT_BACKREF, parent.get()))?;
    }
    Ok(changed)
}

/// Removes the references of a subvolume that does not exist or is deleted.
fn remove_names(forest: &mut Forest, child: TreeId) -> Result<()> {
    if remove_references_but(forest, child, TreeId(0))? {
        forest.did(Pass::Subvolumes, format!("removes the references of the subvolume {}", child.get()));
    }
    Ok(())
}

/// A deleted subvolume that has its name still, or that nothing would clean away. Deleting takes the names, marks the
/// root item and adds the orphan item in one commit. So the subvolume is alive where a directory has it and nothing of
/// it is dropped; else its names go, and it gets its orphan item.
pub(crate) fn settle_dead(forest: &mut Forest, child: TreeId) -> Result<()> {
    let Some(root) = forest.trees.get(&child).copied().filter(|root| root.is_dead()) else { return Ok(()) };
    let is_whole = Key::from(root.item.drop_progress).objectid == 0;
    let orphan = Key::new(objectid::ORPHAN, KeyType::ORPHAN_ITEM, child.get());
    let mut entries = Vec::new();
    for place in stored_places(forest, child)? {
        if has_entry(forest, child, &place)? {
            entries.push(place);
        }
    }
    if is_whole && !entries.is_empty() {
        if let Some(root) = forest.trees.get_mut(&child) {
            root.item.refs = 1.into();
            root.item.flags = (root.item.flags.get() & !RootItem::DEAD).into();
            root.changed = true;
        }
        forest.remove(TreeId::ROOT, orphan)?;
        let what = format!("makes subvolume {} alive again, because a directory still has it", child.get());
        forest.did(Pass::Subvolumes, what);
        return Ok(());
    }
    for Place { parent, directory, index, name } in entries {
        entries::put_by_hash(forest, parent, directory, &name, None)?;
        entries::put_by_index(forest, parent, directory, index, None)?;
        inodes::write(forest, parent, directory)?;
        let what = format!("removes the entry {} of the deleted subvolume {}", shown(&name), child.get());
        forest.did(Pass::Subvolumes, what);
    }
    remove_names(forest, child)?;
    if forest.put(TreeId::ROOT, orphan, &[])? {
        forest.did(Pass::Subvolumes, format!("gives the deleted subvolume {} its orphan item", child.get()));
    }
    Ok(())
}

/// Removes the orphan item of a tree that is not deleted.
pub(crate) fn remove_orphan(forest: &mut Forest, tree: TreeId) -> Result<()> {
    let is_dead = forest.trees.get(&tree).is_some_and(|root| root.is_dead());
    let key = Key::new(objectid::ORPHAN, KeyType::ORPHAN_ITEM, tree.get());
    if !is_dead && forest.remove(TreeId::ROOT, key)? {
        let what = format!("removes the orphan item of tree {}, which is not deleted", tree.get() as i64);
        forest.did(Pass::Subvolumes, what);
    }
    Ok(())
}
