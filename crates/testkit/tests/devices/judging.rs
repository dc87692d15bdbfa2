//! The checker on several devices: what is wrong on one of them is found and said of that one, in whatever order they
//! are given.

use crate::rig::{Work, in_memory, open, shared};
use butterfs_check::Finding;
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::{Options, TreeId};
use butterfs_ondisk::items::DevItem;
use butterfs_ondisk::{DeviceId, KeyType};
use butterfs_testkit::editor::{Editor, Item};
use butterfs_testkit::judge::{judge, text};
use std::sync::Arc;

type Damage = fn(&Editor, &[Arc<MemoryDevice>]);

/// The planted faults, each with a test whether a finding is about it.
const TABLE: &[(&str, Damage, fn(&Finding) -> bool)] = &[
    (
        "the device extent of a stripe is missing",
        |editor, _| {
            editor.remove(TreeId::DEV, |item: Item<'_>| item.is_inner(KeyType::DEV_EXTENT) && item.key().objectid == 2)
        },
        |finding| matches!(finding, Finding::DeviceExtentMissing { device: DeviceId(2), .. }),
    ),
    (
        "a device has less in use than its item says",
        |editor, _| {
            let third = |item: Item<'_>| item.is(KeyType::DEV_ITEM) && item.key().offset == 3;
            editor.change(TreeId::CHUNK, third, |item: &mut DevItem| {
                item.bytes_used = (item.bytes_used.get() + 65536).into();
            });
        },
        |finding| matches!(finding, Finding::DeviceUsed { device: DeviceId(3), .. }),
    ),
    (
        "a superblock is damaged",
        |_, disks| disks[1].write_at(65536 + 300, b"damage").unwrap(),
        |finding| matches!(finding, Finding::SuperblockPrimary { device, .. } if device == "disk2"),
    ),
    (
        "a copy of a tree block is damaged",
        |editor, disks| {
            let (device, at) = editor.copies(editor.root(TreeId::EXTENT))[1];
            disks[device as usize - 1].write_at(at + 5000, b"damage").unwrap();
        },
        |finding| matches!(finding, Finding::BlockCopyBad { tree, copy: 1, .. } if tree.0 == TreeId::EXTENT),
    ),
];

#[test]
fn faults_of_one_device_are_found() {
    let disks = in_memory(("raid1", "raid1", 3));
    let mut work = Work::new(9600);
    let filesystem = open(&shared(&disks), Options::default());
    work.go_on(&filesystem, 100);
    filesystem.shutdown().unwrap();
    drop(filesystem);
    for (what, damage, is_about_it) in TABLE {
        let copies: Vec<Arc<MemoryDevice>> = disks.iter().map(|disk| Arc::new(disk.snapshot())).collect();
        damage(&Editor::open(shared(&copies)), &copies);
        let mut given = shared(&copies);
        for _ in 0..given.len() {
            let report = judge(given.clone());
            assert!(report.findings.iter().any(is_about_it), "{what}: {}", text(&report));
            given.rotate_left(1);
        }
    }
    let report = judge(shared(&disks[1..]));
    assert!(matches!(&report.findings[..], [Finding::CannotOpen { reason }] if reason.contains("only 2 were given")));
}
