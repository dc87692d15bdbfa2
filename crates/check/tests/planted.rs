//! One planted corruption per finding: each must be found, under its own id, and the sound image must be clean.
//!
//! A plant changes fields, items or blocks of an image that the kernel made, and stamps the checksums anew.

mod support;

use butterfs_check::TABLE;
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_ondisk::superblock::OFFSETS;
use butterfs_ondisk::{Generation, Key, KeyType, Logical, TreeId};
use butterfs_tree::Node;
use std::collections::BTreeSet;
use std::sync::Arc;
use support::{Editor, filled, is, judge, judge_with};

const SUBVOLUME: TreeId = TreeId(256);

/// A change of an image, and the finding that it must cause.
type Plant = (&'static str, fn(&Editor));

fn patch(editor: &Editor, tree: TreeId, wanted: &dyn Fn(&Node, usize) -> bool, offset: usize, delta: u64) {
    let (at, slot) = editor.find(tree, wanted);
    editor.edit(at, |leaf| {
        let field = &mut leaf.item_mut(slot)[offset..offset + 8];
        let value = u64::from_le_bytes(field.try_into().expect("8 bytes")).wrapping_add(delta);
        field.copy_from_slice(&value.to_le_bytes());
    });
}

fn remove(editor: &Editor, tree: TreeId, wanted: &dyn Fn(&Node, usize) -> bool) {
    let (at, slot) = editor.find(tree, wanted);
    editor.edit(at, |leaf| leaf.remove_items(slot..slot + 1));
}

/// Inserts an item in the first leaf that has room and a smaller key; `key` must belong there.
fn insert(editor: &Editor, tree: TreeId, key: Key, data: &[u8]) {
    let mut place = None;
    editor.each_leaf(tree, &mut |leaf| {
        if leaf.first_key().is_none_or(|first| first < key) {
            place = Some((leaf.at(), leaf.free_space()));
        }
        false
    });
    let (at, free) = place.expect("there is a leaf before the key");
    assert!(free >= data.len() + 25, "no room for {key}: {free}");
    editor.edit(at, |leaf| {
        let slot = leaf.find(key).expect_err("the key is new");
        leaf.insert_item(slot, key, data);
    });
}

fn kind(kind: KeyType) -> impl Fn(&Node, usize) -> bool {
    move |leaf, slot| is(leaf, slot, kind)
}

fn u64_at(data: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(data[at..at + 8].try_into().expect("8 bytes"))
}

/// A regular file's item: mode and link count 1.
fn is_file(leaf: &Node, slot: usize) -> bool {
    is(leaf, slot, KeyType::INODE_ITEM) && leaf.item(slot)[53] & 0xf0 == 0x80
}

fn is_data_extent(leaf: &Node, slot: usize) -> bool {
    is(leaf, slot, KeyType::EXTENT_ITEM) && leaf.item(slot)[16] & 1 != 0
}

/// An extent with one inline reference of a tree that is a subvolume.
fn is_shared_block(leaf: &Node, slot: usize) -> bool {
    is(leaf, slot, KeyType::METADATA_ITEM) && u64_at(leaf.item(slot), 0) > 1
}

fn is_regular(leaf: &Node, slot: usize) -> bool {
    is(leaf, slot, KeyType::EXTENT_DATA) && leaf.item(slot)[20] == 1 && u64_at(leaf.item(slot), 21) != 0
}

fn is_subvolume_entry(leaf: &Node, slot: usize, kind: KeyType) -> bool {
    is(leaf, slot, kind) && leaf.item(slot)[8] == KeyType::ROOT_ITEM.0
}

fn is_root_of(leaf: &Node, slot: usize, tree: TreeId) -> bool {
    is(leaf, slot, KeyType::ROOT_ITEM) && leaf.key(slot).objectid == tree.get()
}

fn fs_leaf(editor: &Editor) -> Logical {
    editor.find(SUBVOLUME, &kind(KeyType::DIR_INDEX)).0
}

/// The last item of a leaf that is not the last leaf.
fn is_last(leaf: &Node, slot: usize) -> bool {
    slot > 0 && slot + 1 == leaf.nritems()
}

const PLANTS: &[Plant] = &[
    ("cannot-open", |e| OFFSETS[..2].iter().for_each(|at| e.device.write_at(at.get(), &[0; 4096]).unwrap())),
    ("superblock-primary", |e| e.device.write_at(OFFSETS[0].get(), &[0; 4096]).unwrap()),
    ("superblock-copy", |e| e.device.write_at(OFFSETS[1].get(), &[0; 4096]).unwrap()),
    ("superblock-bytes-used", |e| e.superblock(|sb| sb.bytes_used = (sb.bytes_used.get() + 4096).into())),
    ("superblock-total-bytes", |e| e.superblock(|sb| sb.total_bytes = (sb.total_bytes.get() - 4096).into())),
    ("tree-block", |e| e.volume.write(fs_leaf(e), &[7; 512]).unwrap()),
    ("tree-block-copy", |e| e.device.write_at(e.second_copy(fs_leaf(e)) + 200, &[7; 64]).unwrap()),
    ("key-order-across-blocks", |e| {
        let (at, slot) = e.find(SUBVOLUME, &|leaf, slot| is_last(leaf, slot) && is(leaf, slot, KeyType::DIR_INDEX));
        e.edit(at, |leaf| leaf.set_key(slot, Key { offset: u64::MAX, ..leaf.key(slot) }));
    }),
    ("root-missing", |e| remove(e, TreeId::ROOT, &|leaf, slot| is_root_of(leaf, slot, TreeId::CSUM))),
    ("root-doubled", |e| {
        let (at, slot) =
            e.find(TreeId::ROOT, &|leaf, slot| is(leaf, slot, KeyType::ROOT_ITEM) && leaf.free_space() > 470);
        e.edit(at, |leaf| {
            let (key, data) = (leaf.key(slot), leaf.item(slot).to_vec());
            leaf.insert_item(slot + 1, Key { offset: key.offset + 1, ..key }, &data);
        });
    }),
    ("system-chunk", |e| {
        remove(e, TreeId::CHUNK, &|leaf, slot| is(leaf, slot, KeyType::CHUNK_ITEM) && leaf.item(slot)[24] & 2 != 0)
    }),
    ("chunk", |e| {
        patch(
            e,
            TreeId::CHUNK,
            &|leaf, slot| is(leaf, slot, KeyType::CHUNK_ITEM) && leaf.item(slot)[24] & 1 != 0,
            56,
            1 << 40,
        )
    }),
    ("stripe-overlap", |e| {
        let wanted = |leaf: &Node, slot: usize| is(leaf, slot, KeyType::CHUNK_ITEM) && leaf.item(slot)[24] & 2 != 0;
        let (at, slot) = e.find(TreeId::CHUNK, &wanted);
        let stripe = u64_at(e.node(at).item(slot), 56);
        let (at, slot) =
            e.find(TreeId::CHUNK, &|leaf, slot| is(leaf, slot, KeyType::CHUNK_ITEM) && leaf.item(slot)[24] & 1 != 0);
        e.edit(at, |leaf| leaf.item_mut(slot)[56..64].copy_from_slice(&stripe.to_le_bytes()));
    }),
    ("device-extent-missing", |e| remove(e, TreeId::DEV, &kind(KeyType::DEV_EXTENT))),
    ("device-extent-extra", |e| patch(e, TreeId::DEV, &kind(KeyType::DEV_EXTENT), 16, 4096)),
    ("device-identity", |e| patch(e, TreeId::CHUNK, &|leaf, slot| leaf.key(slot).kind == KeyType::DEV_ITEM, 66, 1)),
    ("file-extent-generation", |e| patch(e, SUBVOLUME, &is_regular, 0, 1000)),
    ("device-bytes-used", |e| {
        let (at, slot) = e.find(TreeId::CHUNK, &|leaf, slot| leaf.key(slot).kind == KeyType::DEV_ITEM);
        e.edit(at, |leaf| leaf.item_mut(slot)[17] ^= 1);
    }),
    ("block-group-missing", |e| remove(e, TreeId::EXTENT, &kind(KeyType::BLOCK_GROUP_ITEM))),
    ("block-group-extra", |e| {
        let (at, slot) = e.find(TreeId::EXTENT, &kind(KeyType::BLOCK_GROUP_ITEM));
        e.edit(at, |leaf| leaf.set_key(slot, Key { offset: leaf.key(slot).offset + 4096, ..leaf.key(slot) }));
    }),
    ("block-group-type", |e| {
        patch(
            e,
            TreeId::EXTENT,
            &|leaf, slot| leaf.key(slot).kind == KeyType::BLOCK_GROUP_ITEM && leaf.item(slot)[16] & 4 != 0,
            16,
            1u64.wrapping_sub(4),
        )
    }),
    ("block-group-used", |e| patch(e, TreeId::EXTENT, &kind(KeyType::BLOCK_GROUP_ITEM), 0, 4096)),
    ("extent-overlap", |e| {
        let (at, slot) = e.find(TreeId::EXTENT, &|leaf, slot| is_last(leaf, slot) && is_data_extent(leaf, slot));
        e.edit(at, |leaf| leaf.set_key(slot, Key { offset: leaf.key(slot).offset + (1 << 20), ..leaf.key(slot) }));
    }),
    ("extent-outside-chunk", |e| {
        insert(e, TreeId::EXTENT, Key::new(1 << 50, KeyType::EXTENT_ITEM, 4096), &extent(1, 1))
    }),
    ("extent-in-wrong-group", |e| {
        let (at, slot) = e.find(TreeId::EXTENT, &is_data_extent);
        e.edit(at, |leaf| leaf.replace_item(slot, &[&extent(1, 2)[..], &[0; 18]].concat()));
        e.edit(at, |leaf| leaf.set_key(slot, Key { offset: 4096, ..leaf.key(slot) }));
    }),
    ("extent-missing", |e| remove(e, TreeId::EXTENT, &is_data_extent)),
    ("extent-unused", |e| {
        let end = e.volume.chunk_map().iter().find(|chunk| chunk.kind & 1 != 0).expect("there is data").end();
        let mut last = 0;
        e.each_leaf(TreeId::EXTENT, &mut |leaf| {
            let below =
                leaf.items().filter(|(key, _)| key.objectid < end.get() && key.kind != KeyType::BLOCK_GROUP_ITEM);
            last = below.map(|(key, _)| key.objectid).fold(last, u64::max);
            false
        });
        let key = Key::new(end.get() - 4096, KeyType::EXTENT_ITEM, 4096);
        assert!(last < key.objectid);
        insert(e, TreeId::EXTENT, key, &extent(0, 1));
    }),
    ("extent-refs", |e| patch(e, TreeId::EXTENT, &is_data_extent, 0, 1)),
    ("reference-missing", |e| {
        patch(e, TreeId::EXTENT, &|leaf, slot| is_data_extent(leaf, slot) && leaf.item(slot)[24] == 178, 33, 1)
    }),
    ("reference-extra", |e| {
        patch(e, TreeId::EXTENT, &|leaf, slot| is_data_extent(leaf, slot) && leaf.item(slot)[24] == 178, 33, 1)
    }),
    ("reference-count", |e| {
        let (at, slot) = e.find(TreeId::EXTENT, &|leaf, slot| is_data_extent(leaf, slot) && leaf.item(slot)[24] == 178);
        e.edit(at, |leaf| {
            leaf.item_mut(slot)[49] += 1;
            leaf.item_mut(slot)[0] += 1;
        });
    }),
    ("reference-without-extent", |e| insert(e, TreeId::EXTENT, Key::new(1 << 50, KeyType::TREE_BLOCK_REF, 5), &[])),
    ("extent-level", |e| {
        let (at, slot) =
            e.find(TreeId::EXTENT, &|leaf, slot| is(leaf, slot, KeyType::METADATA_ITEM) && leaf.key(slot).offset == 0);
        e.edit(at, |leaf| leaf.set_key(slot, Key { offset: 5, ..leaf.key(slot) }));
    }),
    ("extent-generation", |e| patch(e, TreeId::EXTENT, &kind(KeyType::METADATA_ITEM), 8, u64::MAX)),
    ("extent-length", |e| {
        let (at, slot) = e.find(TreeId::EXTENT, &is_data_extent);
        e.edit(at, |leaf| leaf.set_key(slot, Key { offset: leaf.key(slot).offset - 4096, ..leaf.key(slot) }));
    }),
    ("full-backref-missing", |e| {
        let (at, slot) =
            e.find(TreeId::EXTENT, &|leaf, slot| is(leaf, slot, KeyType::METADATA_ITEM) && leaf.item(slot)[17] == 1);
        e.edit(at, |leaf| leaf.item_mut(slot)[17] = 0);
    }),
    ("free-space-info-missing", |e| {
        remove(e, TreeId::FREE_SPACE, &|leaf, slot| {
            is(leaf, slot, KeyType::FREE_SPACE_INFO) && leaf.key(slot).objectid > 20 << 20
        })
    }),
    ("free-space-stray", |e| insert(e, TreeId::FREE_SPACE, Key::new(1 << 50, KeyType::FREE_SPACE_EXTENT, 4096), &[])),
    ("free-space-count", |e| {
        let (at, slot) = e.find(TreeId::FREE_SPACE, &|leaf, slot| {
            is(leaf, slot, KeyType::FREE_SPACE_INFO) && leaf.key(slot).objectid > 20 << 20
        });
        e.edit(at, |leaf| leaf.item_mut(slot)[0] ^= 64);
    }),
    ("free-space-wrong", |e| {
        remove(e, TreeId::FREE_SPACE, &|leaf, slot| {
            is(leaf, slot, KeyType::FREE_SPACE_EXTENT) && leaf.key(slot).objectid > 20 << 20
        })
    }),
    ("root-unreferenced", |e| {
        remove(e, TreeId::ROOT, &|leaf, slot| is(leaf, slot, KeyType::ROOT_REF) && leaf.key(slot).offset == 256);
        remove(e, TreeId::ROOT, &|leaf, slot| is(leaf, slot, KeyType::ROOT_BACKREF) && leaf.key(slot).objectid == 256);
    }),
    ("root-ref-unpaired", |e| remove(e, TreeId::ROOT, &kind(KeyType::ROOT_BACKREF))),
    ("root-ref-without-entry", |e| {
        remove(e, TreeId::FS, &|leaf, slot| is_subvolume_entry(leaf, slot, KeyType::DIR_INDEX))
    }),
    ("root-dead-without-orphan", |e| {
        let (at, slot) = e.find(TreeId::ROOT, &|leaf, slot| {
            (leaf.key(slot).objectid, leaf.key(slot).kind) == (SUBVOLUME.get(), KeyType::ROOT_ITEM)
        });
        e.edit(at, |leaf| leaf.item_mut(slot)[216] = 0);
    }),
    ("inode-missing", |e| {
        let (at, slot) = e.find(SUBVOLUME, &|leaf, slot| is_last(leaf, slot) && is_file(leaf, slot));
        e.edit(at, |leaf| leaf.remove_items(slot..slot + 1));
    }),
    ("inode-link-count", |e| patch(e, SUBVOLUME, &is_file, 40, 3)),
    ("inode-without-name", |e| {
        let (at, slot) = e.find(SUBVOLUME, &|leaf, slot| {
            is_file(leaf, slot)
                && slot + 2 < leaf.nritems()
                && leaf.key(slot + 1).kind == KeyType::INODE_REF
                && leaf.key(slot + 2).objectid != leaf.key(slot + 1).objectid - 1
                && leaf.key(slot + 2).kind != KeyType::INODE_EXTREF
        });
        e.edit(at, |leaf| {
            leaf.item_mut(slot)[40..44].fill(0);
            leaf.remove_items(slot + 1..slot + 2);
        });
    }),
    ("directory-size", |e| {
        patch(e, TreeId::FS, &|leaf, slot| leaf.key(slot) == Key::new(256, KeyType::INODE_ITEM, 0), 16, 2)
    }),
    ("directory-item-index", |e| remove(e, SUBVOLUME, &kind(KeyType::DIR_ITEM))),
    ("entries-in-no-directory", |e| {
        let (at, slot) = e.find(TreeId::FS, &|leaf, slot| leaf.key(slot) == Key::new(256, KeyType::INODE_ITEM, 0));
        e.edit(at, |leaf| leaf.item_mut(slot)[53] = 0x81);
    }),
    ("entry-without-reference", |e| {
        remove(e, SUBVOLUME, &|leaf, slot| is(leaf, slot, KeyType::INODE_REF) && leaf.key(slot).objectid > 256)
    }),
    ("reference-without-entry", |e| remove(e, SUBVOLUME, &kind(KeyType::DIR_INDEX))),
    ("extref-hash", |e| {
        let (at, slot) =
            e.find(SUBVOLUME, &|leaf, slot| is(leaf, slot, KeyType::INODE_EXTREF) && slot + 1 < leaf.nritems());
        e.edit(at, |leaf| leaf.set_key(slot, Key { offset: leaf.key(slot).offset + 1, ..leaf.key(slot) }));
    }),
    ("file-extent-overlap", |e| {
        patch(
            e,
            SUBVOLUME,
            &|leaf, slot| is_last(leaf, slot) && is(leaf, slot, KeyType::EXTENT_DATA) && leaf.key(slot).offset > 0,
            45,
            1 << 20,
        )
    }),
    ("file-extent-bounds", |e| patch(e, SUBVOLUME, &is_regular, 37, 1 << 20)),
    ("file-extent-gap", |e| {
        remove(e, SUBVOLUME, &|leaf, slot| {
            is(leaf, slot, KeyType::EXTENT_DATA) && leaf.item(slot)[20] == 1 && u64_at(leaf.item(slot), 21) == 0
        })
    }),
    ("inode-nbytes", |e| patch(e, SUBVOLUME, &is_file, 24, 4096)),
    ("checksum-missing", |e| {
        let (at, slot) = e.find(TreeId::CSUM, &|leaf, slot| leaf.item_len(slot) > 4);
        e.edit(at, |leaf| leaf.resize_item(slot, leaf.item_len(slot) - 4));
    }),
    ("checksum-odd", |e| {
        let (at, slot) = e.find(SUBVOLUME, &|leaf, slot| {
            is_file(leaf, slot)
                && slot + 2 < leaf.nritems()
                && leaf.key(slot + 2).kind == KeyType::EXTENT_DATA
                && is_regular(leaf, slot + 2)
        });
        e.edit(at, |leaf| leaf.item_mut(slot)[64] |= 1);
    }),
    ("checksum-stray", |e| {
        remove(e, TreeId::EXTENT, &|leaf, slot| is_data_extent(leaf, slot) && leaf.key(slot).offset == 8192)
    }),
    ("checksum-overlap", |e| {
        let mut place = None;
        let mut before: Option<(Logical, u64)> = None;
        e.each_leaf(TreeId::CSUM, &mut |leaf| {
            let first = leaf.key(0).offset;
            if let Some((at, start)) = before {
                place = Some((at, ((first - start) / 4096 + 1) as usize * 4));
            }
            before = leaf.last_key().map(|last| (leaf.at(), last.offset));
            place.is_some_and(|(at, len)| e.node(at).free_space() >= len)
        });
        let (at, len) = place.expect("there are several leaves of checksums");
        e.edit(at, |leaf| {
            let slot = leaf.nritems() - 1;
            let len = len.max(leaf.item_len(slot));
            leaf.resize_item(slot, len);
        });
    }),
    ("data-checksum", |e| {
        let (at, slot) = e.find(TreeId::CSUM, &|leaf, slot| leaf.key(slot).kind == KeyType::EXTENT_CSUM);
        let data = e.node(at).key(slot).offset;
        e.volume.write(Logical(data), &[0x5a; 512]).unwrap();
    }),
    ("uuid-entry-missing", |e| remove(e, TreeId::UUID, &kind(KeyType::UUID_KEY_SUBVOL))),
    ("uuid-entry-stale", |e| patch(e, TreeId::UUID, &kind(KeyType::UUID_KEY_SUBVOL), 0, 4000)),
    ("uuid-tree-lags", |e| {
        remove(e, TreeId::UUID, &kind(KeyType::UUID_KEY_SUBVOL));
        e.superblock(|sb| sb.uuid_tree_generation = 1.into());
    }),
];

/// An extent item without references.
fn extent(refs: u64, flags: u64) -> Vec<u8> {
    [refs, Generation(1).get(), flags].iter().flat_map(|field| field.to_le_bytes()).collect()
}

fn base(test: &str) -> Option<Arc<MemoryDevice>> {
    filled(test, 160 << 20, &["-n", "4096", "-O", "^no-holes"])
}

#[test]
fn every_finding_is_found_where_it_was_planted() {
    let Some(image) = base("planted") else { return };
    let sound = judge(&image);
    assert!(sound.is_clean(), "{:#?}", sound.findings);
    let mut missed = Vec::new();
    for (id, plant) in PLANTS {
        let editor = Editor::new(&image);
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| plant(&editor))).is_err() {
            missed.push(format!("{id}: could not be planted"));
            continue;
        }
        let report = judge(&editor.device);
        if !report.findings.iter().any(|finding| finding.id() == *id) {
            let found: BTreeSet<String> =
                report.findings.iter().map(|finding| format!("{}: {finding}", finding.id())).collect();
            missed.push(format!("{id}: found {:#?}", found.iter().take(6).collect::<Vec<_>>()));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn every_finding_of_the_table_is_planted() {
    let planted: BTreeSet<&str> = PLANTS.iter().map(|(id, _)| *id).collect();
    let table: BTreeSet<&str> = TABLE.iter().map(|info| info.id).collect();
    assert_eq!(planted, table);
}

#[test]
fn windows_and_threads_do_not_change_the_verdict() {
    let Some(image) = base("windows") else { return };
    let editor = Editor::new(&image);
    patch(&editor, TreeId::EXTENT, &is_data_extent, 0, 1);
    remove(&editor, TreeId::EXTENT, &|leaf, slot| is_shared_block(leaf, slot));
    let sorted = |options: &butterfs_check::Options| {
        let mut lines: Vec<String> =
            judge_with(&editor.device, options).findings.iter().map(|finding| finding.to_string()).collect();
        lines.sort();
        lines
    };
    let small =
        butterfs_check::Options { reference_budget: 100, cache_bytes: 1 << 16, threads: 1, ..Default::default() };
    let (one, many) = (sorted(&butterfs_check::Options::default()), sorted(&small));
    assert!(!one.is_empty());
    assert_eq!(one, many);
}
