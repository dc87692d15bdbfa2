//! Names as they lie in items: directory entries and references, parsed and written.

use crate::forest::Forest;
use crate::trouble::Result;
use butterfs_ondisk::checksum::{extref_hash, name_hash};
use butterfs_ondisk::features::incompat;
use butterfs_ondisk::header::max_item_size;
use butterfs_ondisk::items::{DirItem, InodeExtref, InodeRef};
use butterfs_ondisk::key::DiskKey;
use butterfs_ondisk::{Key, KeyType, TreeId};
use zerocopy::{FromBytes, IntoBytes};

/// A directory entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub location: Key,
    pub transid: u64,
    pub kind: u8,
    pub name: Vec<u8>,
}

/// A name as its inode has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub directory: u64,
    pub index: u64,
    pub name: Vec<u8>,
}

impl Entry {
    fn encode(&self) -> Vec<u8> {
        let head = DirItem {
            location: DiskKey::from(self.location),
            transid: self.transid.into(),
            data_len: 0.into(),
            name_len: (self.name.len() as u16).into(),
            kind: self.kind,
        };
        [head.as_bytes(), &self.name].concat()
    }

    pub fn is_subvolume(&self) -> bool {
        self.location.kind == KeyType::ROOT_ITEM
    }

    /// Whether it is a name of this inode.
    pub fn leads_to(&self, inode: u64) -> bool {
        self.location == Key::new(inode, KeyType::INODE_ITEM, 0)
    }
}

/// The entries of a DIR_ITEM or DIR_INDEX.
pub(crate) fn entries(mut data: &[u8]) -> Vec<Entry> {
    let mut found = Vec::new();
    while let Ok((head, rest)) = DirItem::read_from_prefix(data) {
        let Some((name, rest)) = rest.split_at_checked(head.name_len.get().into()) else { break };
        let (location, transid, kind) = (Key::from(head.location), head.transid.get(), head.kind);
        found.push(Entry { location, transid, kind, name: name.to_vec() });
        data = rest.get(usize::from(head.data_len.get())..).unwrap_or_default();
    }
    found
}

/// The links of an INODE_REF or INODE_EXTREF.
pub(crate) fn links(key: Key, mut data: &[u8]) -> Vec<Link> {
    let mut found = Vec::new();
    if key.kind == KeyType::INODE_REF {
        while let Ok((head, rest)) = InodeRef::read_from_prefix(data) {
            let Some((name, rest)) = rest.split_at_checked(head.name_len.get().into()) else { break };
            found.push(Link { directory: key.offset, index: head.index.get(), name: name.to_vec() });
            data = rest;
        }
    } else if key.kind == KeyType::INODE_EXTREF {
        while let Ok((head, rest)) = InodeExtref::read_from_prefix(data) {
            let Some((name, rest)) = rest.split_at_checked(head.name_len.get().into()) else { break };
            found.push(Link { directory: head.parent.get(), index: head.index.get(), name: name.to_vec() });
            data = rest;
        }
    }
    found
}

fn encode_links(kind: KeyType, links: &[Link]) -> Vec<u8> {
    let mut data = Vec::new();
    for link in links {
        let name_len = (link.name.len() as u16).into();
        if kind == KeyType::INODE_REF {
            data.extend(InodeRef { index: link.index.into(), name_len }.as_bytes());
        } else {
            let (parent, index) = (link.directory.into(), link.index.into());
            data.extend(InodeExtref { parent, index, name_len }.as_bytes());
        }
        data.extend(&link.name);
    }
    data
}

/// All links of an inode, each with the key of its item.
pub(crate) fn links_of(forest: &Forest, tree: TreeId, inode: u64) -> Result<Vec<(Key, Link)>> {
    let mut found = Vec::new();
    for kind in [KeyType::INODE_REF, KeyType::INODE_EXTREF] {
        for (key, data) in forest.of_kind(tree, inode, kind)? {
            found.extend(links(key, &data).into_iter().map(|link| (key, link)));
        }
    }
    Ok(found)
}

/// Gives an inode this link; another index for the same name in the same directory is replaced.
pub(crate) fn put_link(forest: &mut Forest, tree: TreeId, inode: u64, link: &Link) -> Result<bool> {
    let own = links_of(forest, tree, inode)?;
    let mut same = own.iter().filter(|(_, other)| (other.directory, &other.name) == (link.directory, &link.name));
    if same.clone().any(|(_, other)| other.index == link.index) && same.clone().count() == 1 {
        return Ok(false);
    }
    if same.next().is_some() {
        remove_link(forest, tree, inode, link.directory, &link.name)?;
    }
    add_link(forest, tree, inode, link)?;
    Ok(true)
}

fn add_link(forest: &mut Forest, tree: TreeId, inode: u64, link: &Link) -> Result<()> {
    let limit = max_item_size(forest.store.identity.nodesize);
    let near = Key::new(inode, KeyType::INODE_REF, link.directory);
    let mut data = forest.get(tree, near)?.unwrap_or_default();
    data.extend(encode_links(KeyType::INODE_REF, std::slice::from_ref(link)));
    if data.len() <= limit || forest.store.identity.incompat & incompat::EXTENDED_IREF == 0 {
        forest.put(tree, near, &data)?;
        return Ok(());
    }
    let far = Key::new(inode, KeyType::INODE_EXTREF, extref_hash(link.directory, &link.name));
    let mut data = forest.get(tree, far)?.unwrap_or_default();
    data.extend(encode_links(KeyType::INODE_EXTREF, std::slice::from_ref(link)));
    forest.put(tree, far, &data)?;
    Ok(())
}

/// Takes every link with this name in this directory from an inode.
pub(crate) fn remove_link(forest: &mut Forest, tree: TreeId, inode: u64, directory: u64, name: &[u8]) -> Result<bool> {
    remove_links(forest, tree, inode, |link| (link.directory, &link.name[..]) == (directory, name))
}

/// Takes the links that `unwanted` accepts from an inode.
pub(crate) fn remove_links(
    forest: &mut Forest,
    tree: TreeId,
    inode: u64,
    unwanted: impl Fn(&Link) -> bool,
) -> Result<bool> {
    let mut removed = false;
    for kind in [KeyType::INODE_REF, KeyType::INODE_EXTREF] {
        for (key, data) in forest.of_kind(tree, inode, kind)? {
            let all = links(key, &data);
            let kept: Vec<Link> = all.iter().filter(|link| !unwanted(link)).cloned().collect();
            if kept.len() == all.len() {
                continue;
            }
            removed = true;
            match kept.is_empty() {
                true => drop(forest.remove(tree, key)?),
                false => drop(forest.put(tree, key, &encode_links(kind, &kept))?),
            }
        }
    }
    Ok(removed)
}

/// The entry of a directory with this name, found by its hash.
pub(crate) fn by_hash(forest: &Forest, tree: TreeId, directory: u64, name: &[u8]) -> Result<Option<Entry>> {
    let data = forest.get(tree, hash_key(directory, name))?.unwrap_or_default();
    Ok(entries(&data).into_iter().find(|entry| entry.name == name))
}

fn hash_key(directory: u64, name: &[u8]) -> Key {
    Key::new(directory, KeyType::DIR_ITEM, name_hash(name))
}

/// Sets the entry that is found by the name's hash; `None` removes it.
pub(crate) fn put_by_hash(
    forest: &mut Forest,
    tree: TreeId,
    directory: u64,
    name: &[u8],
    entry: Option<&Entry>,
) -> Result<bool> {
    let key = hash_key(directory, name);
    let old = forest.get(tree, key)?.unwrap_or_default();
    let mut all = entries(&old);
    all.retain(|other| other.name != name);
    all.extend(entry.cloned());
    let data: Vec<u8> = all.iter().flat_map(Entry::encode).collect();
    if data == old {
        return Ok(false);
    }
    if data.is_empty() { forest.remove(tree, key) } else { forest.put(tree, key, &data) }
}

/// Sets the entry under an index; `None` removes it.
pub(crate) fn put_by_index(
    forest: &mut Forest,
    tree: TreeId,
    directory: u64,
    index: u64,
    entry: Option<&Entry>,
) -> Result<bool> {
    let key = Key::new(directory, KeyType::DIR_INDEX, index);
    match entry {
        Some(entry) => forest.put(tree, key, &entry.encode()),
        None => forest.remove(tree, key),
    }
}

/// All entries of a directory by their indexes.
pub(crate) fn by_index(forest: &Forest, tree: TreeId, directory: u64) -> Result<Vec<(u64, Entry)>> {
    let items = forest.of_kind(tree, directory, KeyType::DIR_INDEX)?;
    let first = |(key, data): (Key, Vec<u8>)| Some((key.offset, entries(&data).into_iter().next()?));
    Ok(items.into_iter().filter_map(first).collect())
}

/// An index that no entry of the directory has.
pub(crate) fn next_index(forest: &Forest, tree: TreeId, directory: u64) -> Result<u64> {
    let behind = Key::new(directory, KeyType(KeyType::DIR_INDEX.0 + 1), 0);
    let last = forest.before(tree, behind)?;
    let last = last.filter(|key| (key.objectid, key.kind) == (directory, KeyType::DIR_INDEX));
    // The largest indexes are not used: a damaged one must not leave the directory without the next.
    Ok(match last.map(|key| key.offset) {
        Some(offset) if offset < 1 << 62 => (offset + 1).max(2),
        None => 2,
        Some(_) => {
            let used: Vec<u64> = by_index(forest, tree, directory)?.into_iter().map(|(index, _)| index).collect();
            used.into_iter().filter(|index| *index < 1 << 62).max().map_or(2, |index| index + 1)
        }
    })
}

/// A name for messages.
pub(crate) fn shown(name: &[u8]) -> String {
    name.escape_ascii().to_string()
}
