//! Damage in leaves that many snapshots share: what is written anew takes more room than the trees had.

use crate::kernel::{judged, write_image};
use crate::{actions, devices, options, support, text};
use butterfs_device::MemoryDevice;
use butterfs_ondisk::{KeyType, TreeId};
use butterfs_repair::{apply, plan};
use butterfs_testkit::editor::{Editor, ItemPosition};

const SUBVOLUME: TreeId = TreeId(256);
const NAMES: [KeyType; 3] = [KeyType::DIR_ITEM, KeyType::DIR_INDEX, KeyType::INODE_REF];

/// A subvolume of many leaves, and snapshots of it.
const CROWD: &str = r#"
set -e
btrfs subvolume create sv > /dev/null; cd sv
for i in $(seq 700); do echo "$i" > "$(printf file-%0100d $i)"; done
cd ..; sync; for s in $(seq 60); do btrfs subvolume snapshot sv snap$s > /dev/null; done; sync
"#;

#[test]
fn room_is_made_for_what_many_snapshots_share() {
    let Some(damaged) = support::made("repair-crowded", CROWD) else { return };
    let editor = Editor::open(devices(&damaged));
    let mut names = Vec::new();
    editor.each_leaf(SUBVOLUME, &mut |leaf| {
        let inner = (1..leaf.nritems()).find(|slot| NAMES.contains(&leaf.key(*slot).kind));
        names.extend(inner.map(|slot| ItemPosition { leaf: leaf.at(), slot }));
        false
    });
    assert!(names.len() > 20, "{}", names.len());
    names.into_iter().for_each(|name| editor.remove_at(name));
    let made = plan(&devices(&damaged), &options(""), &|_, _| {}).expect("there is a plan");
    assert!(made.is_clean(), "{:?}{}{}", made.trouble, text(&made.after), actions(&made));
    let chunks = made.actions.iter().filter(|action| action.what.starts_with("makes a chunk")).count();
    assert!(chunks > 0, "the test needs more room than there is");
    let undo = MemoryDevice::new(made.undo_len());
    apply(&made, &devices(&damaged), &undo).expect("it can be written");
    let scratch = support::Scratch::new("repair-crowded-images");
    let image = scratch.0.join("image");
    write_image(&damaged, &image);
    judged(&image, "after the repair").unwrap();
}
