//! One change of a sound image, under good checksums: a field, bytes beside fields, a key, an item less or more, a
//! block's header or pointer, a superblock's field.

use super::ground::{Ground, Spot, TreeGround};
use crate::editor::Editor;
use crate::rng::Rng;
use butterfs_device::BlockDevice;
use butterfs_ondisk::header::{HEADER_LEN, KEY_POINTER_LEN};
use butterfs_ondisk::layout::{Field, Structure, structure};
use butterfs_ondisk::superblock::{OFFSETS, SUPERBLOCK_LEN};
use butterfs_ondisk::{Key, Logical, TreeId};
use butterfs_tree::Node;
use std::sync::Arc;

/// The changes.
#[derive(Clone, Debug)]
pub struct Change {
    /// The tree; `None` for a superblock.
    pub tree: Option<TreeId>,
    /// The item's key, where an item was changed.
    pub key: Option<Key>,
    /// The structure or the kind of bytes.
    pub structure: String,
    /// In words.
    pub text: String,
}

/// Changes an image.
pub struct Changer<'a> {
    /// The copy that is changed.
    pub editor: &'a Editor,
    /// Of the sound image.
    pub ground: &'a Ground,
    /// The copy's devices.
    pub disks: &'a [Arc<dyn BlockDevice>],
    /// Chooses.
    pub rng: &'a mut Rng,
    /// Blocks whose headers were changed; nothing finds items in them.
    pub spoiled: Vec<Logical>,
}

impl Changer<'_> {
    /// Makes a change; `None` where what was chosen could not be changed.
    pub fn change(&mut self) -> Option<Change> {
        if self.rng.chance(3) {
            return Some(self.superblock());
        }
        let tree = self.rng.index(self.ground.trees.len());
        let tree = &self.ground.trees[tree];
        if self.rng.chance(4) || tree.spots.is_empty() {
            return self.block(tree);
        }
        let (name, spots) = self.rng.pick(&tree.spots);
        let spot = *self.rng.pick(spots);
        let how = self.rng.below(100);
        if self.spoiled.contains(&spot.leaf) {
            return None;
        }
        let leaf = self.editor.node(spot.leaf);
        // An earlier change may have moved the items of the leaf.
        if spot.slot >= leaf.nritems()
            || leaf.key(spot.slot) != spot.key
            || leaf.item(spot.slot).len() < spot.at + spot.len
        {
            return None;
        }
        let text = match how {
            0..10 => self.key(spot)?,
            10..14 => self.remove(spot, &leaf)?,
            14..18 => self.double(spot, &leaf)?,
            _ if spot.len == 0 => self.key(spot)?,
            _ => match spot.structure {
                Some(structure) => self.field(spot, structure),
                None => self.bytes(spot),
            },
        };
        Some(Change { tree: Some(tree.tree), key: Some(spot.key), structure: name.clone(), text })
    }

    fn field(&mut self, spot: Spot, structure: &'static Structure) -> String {
        let fields = (structure.fields)();
        let field = self.rng.pick(&fields).clone();
        let at = spot.at + field.at + field.width * self.rng.index(field.count);
        let donor = *self.rng.pick(&self.ground.alike[structure.name]);
        let donated = self.number_in(donor, donor.at + field.at, field.width).unwrap_or(0);
        self.number(spot, at, field.width, donated, &format!("{}.{}", structure.name, field.name))
    }

    /// A number in an item, unless an earlier change has moved it away.
    fn number_in(&self, spot: Spot, at: usize, width: usize) -> Option<u64> {
        let leaf = (!self.spoiled.contains(&spot.leaf)).then(|| self.editor.node(spot.leaf))?;
        (spot.slot < leaf.nritems()).then(|| number_at(leaf.item(spot.slot), at, width))
    }

    fn bytes(&mut self, spot: Spot) -> String {
        let width = [1, 2, 4, 8][self.rng.index(4)].min(spot.len);
        let at = spot.at + self.rng.index(spot.len - width + 1);
        let donated = self.rng.bits();
        self.number(spot, at, width, donated, &format!("byte {at}"))
    }

    fn number(&mut self, spot: Spot, at: usize, width: usize, donated: u64, what: &str) -> String {
        let old = number_at(self.editor.node(spot.leaf).item(spot.slot), at, width);
        let new = self.value(old, donated);
        self.editor.edit(spot.leaf, |leaf| put(leaf.item_mut(spot.slot), at, width, new));
        format!("{} {what}: {old:#x} becomes {new:#x}", spot.key)
    }

    /// A number that the format might hold in place of `old`.
    fn value(&mut self, old: u64, donated: u64) -> u64 {
        let sb = &self.editor.sb;
        let (sector, node) = (u64::from(sb.sectorsize.get()), u64::from(sb.nodesize.get()));
        match self.rng.below(20) {
            0 => 0,
            1 => old.wrapping_add(1),
            2 => old.wrapping_sub(1),
            3 => old.wrapping_add(sector * (1 + self.rng.below(4))),
            4 => old.wrapping_sub(sector * (1 + self.rng.below(4))),
            5 => old.wrapping_mul(2),
            6 => u64::MAX - self.rng.below(3),
            7 => 1 << self.rng.below(64),
            8 => old ^ 1 << self.rng.below(64),
            9 => old ^ 1 << self.rng.below(8),
            10 => 256 + self.rng.below(64),
            11 => self.rng.below(16),
            12 => sb.generation.get().wrapping_add(self.rng.below(3)).wrapping_sub(1),
            13 => *self.rng.pick(&[
                sector,
                node,
                sb.total_bytes.get(),
                sb.bytes_used.get(),
                sb.root.get(),
                sb.chunk_root.get(),
            ]),
            14 => self.any_block().0,
            _ => donated,
        }
    }

    fn any_block(&mut self) -> Logical {
        let tree = self.rng.pick(&self.ground.trees);
        *self.rng.pick(&tree.blocks)
    }

    /// A key stays in order; as the first of its leaf it changes in the blocks above too.
    fn key(&mut self, spot: Spot) -> Option<String> {
        let leaf = self.editor.node(spot.leaf);
        let key = spot.key;
        let donated = self.rng.index(leaf.nritems());
        let donated = leaf.key(donated);
        let changed = match self.rng.below(4) {
            0 => Key { objectid: self.value(key.objectid, donated.objectid), ..key },
            1 => Key { kind: donated.kind, ..key },
            _ => Key { offset: self.value(key.offset, donated.offset), ..key },
        };
        let fits = (spot.slot == 0 || leaf.key(spot.slot - 1) < changed)
            && (spot.slot + 1 == leaf.nritems() || changed < leaf.key(spot.slot + 1));
        if !fits {
            return None;
        }
        self.editor.edit(spot.leaf, |leaf| leaf.set_key(spot.slot, changed));
        if spot.slot == 0 {
            self.first_key_changed(spot.leaf, changed);
        }
        Some(format!("{key} becomes {changed}"))
    }

    fn first_key_changed(&self, block: Logical, key: Key) {
        let parents = self.ground.parents.get(&block).into_iter().flatten();
        for &(parent, slot) in parents.filter(|(parent, _)| !self.spoiled.contains(parent)) {
            self.editor.edit(parent, |parent| parent.set_key(slot, key));
            if slot == 0 {
                self.first_key_changed(parent, key);
            }
        }
    }

    fn remove(&self, spot: Spot, leaf: &Node) -> Option<String> {
        if leaf.nritems() < 2 {
            return None;
        }
        self.editor.edit(spot.leaf, |leaf| leaf.remove_items(spot.slot..spot.slot + 1));
        if spot.slot == 0 {
            self.first_key_changed(spot.leaf, leaf.key(1));
        }
        Some(format!("{} is removed", spot.key))
    }

    /// The payload once more, under a key that follows.
    fn double(&mut self, spot: Spot, leaf: &Node) -> Option<String> {
        let key = spot.key;
        let more = 1 + self.rng.below(3) * 4095;
        let double = match self.rng.below(2) {
            0 => Key { objectid: key.objectid.checked_add(more)?, ..key },
            _ => Key { offset: key.offset.checked_add(more)?, ..key },
        };
        let last = leaf.last_key()?;
        let slot = leaf.find(double).err()?;
        let payload = leaf.item(spot.slot).to_vec();
        if double > last || leaf.free_space() < payload.len() + 25 {
            return None;
        }
        self.editor.edit(spot.leaf, |leaf| leaf.insert_item(slot, double, &payload));
        Some(format!("{key} is there as {double} too"))
    }

    /// A field of a block's header, or of a pointer in it.
    fn block(&mut self, tree: &TreeGround) -> Option<Change> {
        let at = *self.rng.pick(&tree.blocks);
        if self.spoiled.contains(&at) {
            return None;
        }
        let node = self.editor.node(at);
        let pointers = if node.is_leaf() { 0 } else { node.nritems() };
        let (structure, begin) = if pointers > 0 && self.rng.chance(70) {
            (structure("KeyPointer"), HEADER_LEN + KEY_POINTER_LEN * self.rng.index(pointers))
        } else {
            (structure("Header"), 0)
        };
        let mut bytes = node.bytes().to_vec();
        let text = self.in_bytes(&mut bytes, begin, structure);
        self.editor.stamp(at, bytes);
        self.spoiled.push(at);
        let text = format!("block {at} of level {}: {text}", node.level());
        Some(Change { tree: Some(tree.tree), key: None, structure: structure.name.to_owned(), text })
    }

    fn in_bytes(&mut self, bytes: &mut [u8], begin: usize, structure: &Structure) -> String {
        let fields = (structure.fields)();
        let Field { name, at, width, count } = self.rng.pick(&fields).clone();
        let at = begin + at + width * self.rng.index(count);
        let (old, donated) = (number_at(bytes, at, width), self.any_block().0);
        let new = self.value(old, donated);
        put(bytes, at, width, new);
        format!("{}.{name}: {old:#x} becomes {new:#x}", structure.name)
    }

    /// A field of the superblock or of a root that it remembers, on one device or on all.
    fn superblock(&mut self) -> Change {
        let only = self.rng.chance(30).then(|| self.rng.index(self.disks.len()));
        let seed = self.rng.bits();
        let mut texts = Vec::new();
        for (number, disk) in
            self.disks.iter().enumerate().filter(|(number, _)| only.is_none_or(|only| only == *number))
        {
            let mut bytes = vec![0; SUPERBLOCK_LEN];
            disk.read_at(OFFSETS[0].0, &mut bytes).expect("memory can be read");
            let mut rng = Rng::new(seed);
            let fields = (structure("Superblock").fields)();
            let part = if rng.chance(20) { field_named(&fields, "sys_chunk_array") } else { rng.pick(&fields).clone() };
            let mut here = Changer {
                editor: self.editor,
                ground: self.ground,
                disks: self.disks,
                rng: &mut rng,
                spoiled: Vec::new(),
            };
            let at = part.at + part.width * here.rng.index(part.count.min(260));
            let old = number_at(&bytes, at, part.width);
            let donated = here.any_block().0;
            let new = here.value(old, donated);
            put(&mut bytes, at, part.width, new);
            let digest = self.editor.sb.checksum_kind().expect("known").digest(&bytes[32..]);
            bytes[..32].copy_from_slice(&digest);
            disk.write_at(OFFSETS[0].0, &bytes).expect("memory can be written");
            texts.push(format!("device {number}: {}: {old:#x} becomes {new:#x}", part.name));
        }
        Change { tree: None, key: None, structure: "Superblock".to_owned(), text: texts.join(", ") }
    }
}

fn field_named(fields: &[Field], name: &str) -> Field {
    fields.iter().find(|field| field.name == name).expect("it is declared").clone()
}

/// A little-endian number; what lies behind the end reads as zero.
fn number_at(bytes: &[u8], at: usize, width: usize) -> u64 {
    let mut wide = [0; 8];
    let there = bytes.get(at..).unwrap_or_default();
    let len = there.len().min(width);
    wide[..len].copy_from_slice(&there[..len]);
    u64::from_le_bytes(wide)
}

fn put(bytes: &mut [u8], at: usize, width: usize, number: u64) {
    bytes[at..at + width].copy_from_slice(&number.to_le_bytes()[..width]);
}
