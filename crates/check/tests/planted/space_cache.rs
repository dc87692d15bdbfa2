//! Planted errors in a version 1 space cache.

use super::Plant;
use butterfs_ondisk::items::{FileExtent, FreeSpaceHeader};
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::{ChecksumKind, Key, KeyType, Logical, TreeId};
use butterfs_testkit::editor::{Editor, Item};

const PAGE: usize = 4096;

/// The address of the file of the last cache, which has a bitmap, and its first page.
fn file(e: &Editor) -> (Logical, Vec<u8>) {
    let mut inode = 0;
    e.each_leaf(TreeId::ROOT, &mut |leaf| {
        for (_, data) in leaf.items().filter(|(key, _)| key.objectid == objectid::FREE_SPACE) {
            let header: FreeSpaceHeader = zerocopy::FromBytes::read_from_bytes(data).expect("it has this length");
            assert!(header.num_entries.get() > 0);
            inode = Key::from(header.location).objectid;
        }
        false
    });
    let is_content = |item: Item<'_>| item.is(KeyType::EXTENT_DATA) && item.key().objectid == inode;
    let position = e.find(TreeId::ROOT, is_content);
    let leaf = e.node(position.leaf);
    let extent: &FileExtent = Item { leaf: &leaf, slot: position.slot }.head().expect("a whole item");
    let at = Logical(extent.body.disk_bytenr.get());
    let mut page = vec![0; PAGE];
    e.volume.read_copy(at, 0, &mut page).expect("it can be read");
    (at, page)
}

/// Caches have 16 pages, the size of which the kernel makes them for groups of up to 1 GiB.
const FIRST_ENTRY: usize = 16 * 4 + 8;
/// Bytes of an entry: where it begins, its length, what it is.
const ENTRY: usize = 17;
/// An entry that is a range, and not a bitmap.
const RANGE: u8 = 1;

pub const PLANTS: &[Plant] = &[
    ("space-cache-unusable", |e| {
        let (at, mut page) = file(e);
        page[FIRST_ENTRY] ^= 1;
        e.write_raw(at, &page);
    }),
    ("space-cache-wrong", |e| {
        let (at, mut page) = file(e);
        // The length of the first range; a bitmap can come before it.
        let is_range = |entry: &usize| page[entry + ENTRY - 1] == RANGE;
        let range = (FIRST_ENTRY..PAGE - ENTRY).step_by(ENTRY).find(is_range).expect("the first page has a range");
        page[range + 9] ^= 16;
        let digest = ChecksumKind::Crc32c.digest(&page[16 * 4..]);
        page[..4].copy_from_slice(&digest[..4]);
        e.write_raw(at, &page);
    }),
];
