//! The data relocation tree: it has a root directory and nothing else while no balance is at work.

use crate::kernel::{judged, shown, write_image};
use crate::{actions, devices, options, support, text};
use butterfs_device::MemoryDevice;
use butterfs_ondisk::items::{InodeItem, InodeRef};
use butterfs_ondisk::{Key, KeyType, TreeId};
use butterfs_repair::{apply, plan, undo};
use butterfs_testkit::editor::{Editor, Item};
use std::sync::Arc;

const TREE: TreeId = TreeId::DATA_RELOC;

fn is_inode(item: Item<'_>) -> bool {
    item.is(KeyType::INODE_ITEM)
}

fn is_link(item: Item<'_>) -> bool {
    item.is(KeyType::INODE_REF)
}

/// The damage, and the finding that there must be.
const CASES: &[(&str, fn(&Editor), &str)] = &[
    ("no link to itself", |editor| editor.remove(TREE, is_link), "inode-link-count"),
    (
        "another index",
        |editor| editor.change(TREE, is_link, |link: &mut InodeRef| link.index = 5.into()),
        "reference-without-entry",
    ),
    (
        "a link to another directory",
        |editor| editor.set_key(editor.find(TREE, is_link), |key| Key { offset: 257, ..key }),
        "reference-without-entry",
    ),
    (
        "another link count",
        |editor| editor.change(TREE, is_inode, |inode: &mut InodeItem| inode.nlink = 7.into()),
        "tree-block",
    ),
    (
        "another size",
        |editor| editor.change(TREE, is_inode, |inode: &mut InodeItem| inode.size = 4096.into()),
        "directory-size",
    ),
    ("no inode", |editor| editor.remove(TREE, is_inode), "inode-missing"),
    (
        "a second inode",
        |editor| {
            let position = editor.find(TREE, is_inode);
            let data = editor.node(position.leaf).item(position.slot).to_vec();
            editor.insert(TREE, Key::new(300, KeyType::INODE_ITEM, 0), &data);
        },
        "inode-link-count",
    ),
    ("no block", |editor| editor.write_raw(editor.root(TREE), &[0x5a; 4096]), "tree-block"),
];

fn settle(base: &Arc<MemoryDevice>, damage: fn(&Editor), id: &str) -> Result<Arc<MemoryDevice>, String> {
    let (editor, damaged) = Editor::of_copy(base);
    damage(&editor);
    let device = Arc::new(damaged.snapshot());
    let made = plan(&devices(&device), &options(id), &|_, _| {}).map_err(|trouble| trouble.to_string())?;
    let said = || format!("before:{}\n  steps:{}\n  after:{}", text(&made.before), actions(&made), text(&made.after));
    if !made.before.findings.iter().any(|finding| finding.id() == id) {
        return Err(format!("{id} is not found\n  {}", said()));
    }
    if !made.is_clean() || made.actions.iter().any(|action| action.lost.is_some()) {
        return Err(format!("trouble {:?}\n  {}", made.trouble, said()));
    }
    let file = MemoryDevice::new(made.undo_len());
    apply(&made, &devices(&device), &file).map_err(|trouble| trouble.to_string())?;
    let repaired = Arc::new(device.snapshot());
    undo(&devices(&device), &file).map_err(|trouble| trouble.to_string())?;
    if support::same(&device, &damaged) { Ok(repaired) } else { Err("undo does not bring it back".to_owned()) }
}

#[test]
fn the_data_relocation_tree_is_made_anew() {
    let Some(base) = support::made("relocation-tree", "echo x > f; sync") else { return };
    let scratch = support::Scratch::new("relocation-tree-images");
    let image = scratch.0.join("image");
    let sound = support::judge_with(&base, &butterfs_check::Options::default());
    assert!(sound.is_clean(), "{}", text(&sound));
    let failed = |(name, damage, id): &(&str, fn(&Editor), &str)| {
        let kernel = |repaired: Arc<MemoryDevice>| {
            write_image(&repaired, &image);
            judged(&image, "after the repair").and_then(|()| shown(&image)).map(drop)
        };
        settle(&base, *damage, id).and_then(kernel).err().map(|failed| format!("{name}: {failed}"))
    };
    let failures: Vec<String> = CASES.iter().filter_map(failed).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
