//! The keys of a leaf, each with one wrong bit.

use butterfs_ondisk::checksum::{ChecksumKind, name_hash};
use butterfs_ondisk::items::{DirItem, FileExtentHead, InodeItem, InodeRef, dir_type};
use butterfs_ondisk::key::DiskKey;
use butterfs_ondisk::leaf_keys::{LeafKeys, right_keys};
use butterfs_ondisk::{CheckContext, Generation, Key, KeyType, TreeId};
use zerocopy::{FromZeros, IntoBytes};

/// The items of some files, each with a name, an attribute and content.
fn files() -> Vec<(Key, Vec<u8>)> {
    let mut items = Vec::new();
    for number in [261, 262, 265] {
        let mut inode = InodeItem::new_zeroed();
        (inode.mode, inode.nlink) = (0o100_644.into(), 1.into());
        items.push((Key::new(number, KeyType::INODE_ITEM, 0), inode.as_bytes().to_vec()));
        let link = InodeRef { index: (number - 250).into(), name_len: 4.into() };
        items.push((Key::new(number, KeyType::INODE_REF, 256), [link.as_bytes(), b"name"].concat()));
        let (data_len, name_len, kind) = (5.into(), 6.into(), dir_type::XATTR);
        let head = DirItem { location: DiskKey::default(), transid: 7.into(), data_len, name_len, kind };
        let attribute = Key::new(number, KeyType::XATTR_ITEM, name_hash(b"user.a"));
        items.push((attribute, [head.as_bytes(), b"user.avalue"].concat()));
        let mut content = FileExtentHead::new_zeroed();
        content.ram_bytes = 7.into();
        items.push((Key::new(number, KeyType::EXTENT_DATA, 0), [content.as_bytes(), b"content"].concat()));
    }
    items
}

fn right(items: &[(Key, Vec<u8>)], first: Key) -> Vec<Option<Key>> {
    let context = &CheckContext {
        nodesize: 4096,
        sectorsize: 4096,
        super_generation: Generation(9),
        incompat: 0,
        csum_len: ChecksumKind::Crc32c.len(),
        writable: true,
    };
    let items: Vec<(Key, Option<&[u8]>)> = items.iter().map(|(key, data)| (*key, Some(&data[..]))).collect();
    // The directory has each file under the index that its link names.
    let witness = &|key: Key, data: &[u8]| {
        (key.kind == KeyType::INODE_REF).then(|| key.offset == 256 && u64::from(data[0]) + 250 == key.objectid)
    };
    let (tree, first, from, end) = (TreeId::FS, Some(first), Key::MIN, None);
    right_keys(&LeafKeys { tree, items: &items, first, from, end, context, witness })
}

#[test]
fn one_wrong_bit_follows_from_the_rest() {
    let items = files();
    let all: Vec<Option<Key>> = items.iter().map(|(key, _)| Some(*key)).collect();
    let first = items[0].0;
    assert_eq!(right(&items, first), all, "a sound leaf keeps its keys");
    for slot in 0..items.len() {
        for bit in 0..136 {
            let mut damaged = items.clone();
            let mut key = DiskKey::from(items[slot].0);
            key.as_mut_bytes()[bit / 8] ^= 1 << (bit % 8);
            damaged[slot].0 = key.into();
            assert_eq!(right(&damaged, first), all, "slot {slot}, bit {bit}: {:?}", damaged[slot].0);
        }
    }
}

#[test]
fn a_lost_inode_item_changes_no_key() {
    let mut items = files();
    items.remove(4);
    let own: Vec<Option<Key>> = items.iter().map(|(key, _)| Some(*key)).collect();
    assert_eq!(right(&items, items[0].0), own);
}
