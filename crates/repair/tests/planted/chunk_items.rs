//! One wrong field of one chunk item: block group, device extents and devices say what it was.

use crate::kernel::{judged, shown, write_image};
use crate::{actions, devices, options, support, text};
use butterfs_device::MemoryDevice;
use butterfs_ondisk::TreeId;
use butterfs_ondisk::header::{HEADER_LEN, ITEM_LEN};
use butterfs_ondisk::items::block_group_flags as bits;
use butterfs_repair::{Applied, apply, plan, resume, undo};
use butterfs_testkit::editor::Editor;
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use std::path::Path;
use std::sync::Arc;

/// A field of a chunk item: its name, a byte of it, and the bits that are turned.
type Field = (&'static str, Place, u8);

#[derive(Clone, Copy)]
enum Place {
    Payload(usize),
    Key(usize),
}
use Place::{Key, Payload};

const FIELDS: &[Field] = &[
    ("a length that is far too large", Payload(4), 1),
    ("a length that is 16 MiB too large", Payload(3), 1),
    ("the stripe length", Payload(18), 1),
    ("an unknown type", Payload(31), 0x80),
    ("another profile", Payload(24), 0x08),
    ("another type", Payload(24), 4),
    ("the sector size", Payload(41), 0x20),
    ("the number of stripes", Payload(44), 2),
    ("the device", Payload(48), 2),
    ("the place", Payload(58), 1),
    ("the UUID of the device", Payload(64), 1),
    ("the offset of the key", Key(11), 1),
    ("the object of the key", Key(2), 1),
];

const FILL: &str = "for i in $(seq 20); do head -c 40000 /dev/urandom > f$i; done; echo small > small; sync";

/// Changes the item of the first chunk of this kind.
fn damage(editor: &Editor, kind: u64, (_, place, mask): &Field) {
    let map = editor.volume.chunk_map();
    let chunk = map.iter().find(|chunk| chunk.kind & kind != 0).expect("it has each kind");
    let position = editor.find(TreeId::CHUNK, |item| item.key() == chunk.key());
    let mut bytes = editor.node(position.leaf).bytes().to_vec();
    let item = HEADER_LEN + position.slot * ITEM_LEN;
    let offset = u32::from_le_bytes(bytes[item + 17..item + 21].try_into().expect("four bytes")) as usize;
    let at = match place {
        Payload(byte) => HEADER_LEN + offset + byte,
        Key(byte) => item + byte,
    };
    bytes[at] ^= mask;
    editor.stamp(position.leaf, bytes);
}

fn settle(
    base: &Arc<MemoryDevice>,
    (before, image): (&Fingerprint, &Path),
    kind: u64,
    field: &Field,
) -> Result<(), String> {
    let (editor, damaged) = Editor::of_copy(base);
    damage(&editor, kind, field);
    let device = Arc::new(damaged.snapshot());
    let made = plan(&devices(&device), &options("chunk"), &|_, _| {}).map_err(|trouble| trouble.to_string())?;
    let said = || format!("before:{}\n  steps:{}\n  after:{}", text(&made.before), actions(&made), text(&made.after));
    let lost = made.actions.iter().find_map(|action| action.lost.as_ref());
    if !made.is_clean() || made.after.warnings > 0 || lost.is_some() {
        return Err(format!("trouble {:?}, lost {lost:?}\n  {}", made.trouble, said()));
    }
    let file = MemoryDevice::new(made.undo_len());
    apply(&made, &devices(&device), &file).map_err(|trouble| trouble.to_string())?;
    assert_eq!(resume(&devices(&device), &file).unwrap(), Some(Applied::Already));
    write_image(&device, image);
    let after = judged(image, "after the repair").and_then(|()| shown(image));
    let after = after.map_err(|reason| format!("{reason}\n  {}", said()))?;
    let found = differences(before, &after, Compare { blocks: false, ..Compare::ALL });
    if let Some(first) = found.first() {
        return Err(format!("not as before: {first}\n  {}", said()));
    }
    undo(&devices(&device), &file).map_err(|trouble| trouble.to_string())?;
    if support::same(&device, &damaged) { Ok(()) } else { Err("undo does not bring the image back".to_owned()) }
}

fn all_fields(kind: u64, name: &str) {
    let Some(base) = support::made(name, FILL) else { return };
    let scratch = support::Scratch::new(&format!("{name}-images"));
    let image = scratch.0.join("image");
    write_image(&base, &image);
    let before = shown(&image).expect("the sound image can be mounted");
    let only = std::env::var("PLANT").unwrap_or_default();
    let chosen = FIELDS.iter().filter(|(field, ..)| field.contains(&only));
    let failed = |field: &Field| {
        let failed = settle(&base, (&before, &image), kind, field).err()?;
        Some(format!("{}: {failed}", field.0))
    };
    let failures: Vec<String> = chosen.filter_map(failed).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

#[test]
fn a_wrong_field_of_a_chunk_of_data_is_put_right() {
    all_fields(bits::DATA, "chunk-of-data");
}

#[test]
fn a_wrong_field_of_a_chunk_of_trees_is_put_right() {
    all_fields(bits::METADATA, "chunk-of-trees");
}

#[test]
fn a_wrong_field_of_a_system_chunk_is_put_right() {
    all_fields(bits::SYSTEM, "system-chunk");
}
