//! The pass `uuids`: the UUID tree is made to say what the root items say.

use crate::action::Pass;
use crate::extents::is_readable;
use crate::forest::Forest;
use crate::trouble::Result;
use crate::walk;
use butterfs_ondisk::header::max_item_size;
use butterfs_ondisk::{Key, KeyType, TreeId};
use std::collections::BTreeMap;

/// Writes it; with a tree that cannot be read, anew.
pub(crate) fn write(forest: &mut Forest) -> Result<()> {
    if !forest.trees.contains_key(&TreeId::UUID) || !is_readable(forest, TreeId::UUID) {
        forest.start_anew(TreeId::UUID)?;
    }
    let mut wanted: BTreeMap<Key, Vec<u8>> = BTreeMap::new();
    let limit = max_item_size(forest.store.identity.nodesize);
    for root in forest.trees.values().filter(|root| root.is_live_subvolume()) {
        let uuids =
            [(KeyType::UUID_KEY_SUBVOL, root.item.uuid), (KeyType::UUID_KEY_RECEIVED_SUBVOL, root.item.received_uuid)];
        for (kind, uuid) in uuids.into_iter().filter(|(_, uuid)| *uuid != [0; 16]) {
            let ids = wanted.entry(uuid_key(kind, &uuid)).or_default();
            if ids.len() + 8 <= limit {
                ids.extend(root.id().get().to_le_bytes());
            }
        }
    }
    let mut stored = BTreeMap::new();
    walk::items(&forest.store, &forest.ptr(TreeId::UUID)?, &mut |key, data| {
        if [KeyType::UUID_KEY_SUBVOL, KeyType::UUID_KEY_RECEIVED_SUBVOL].contains(&key.kind) {
            stored.insert(key, data.to_vec());
        }
    });
    let mut changed = 0;
    for key in stored.keys().filter(|key| !wanted.contains_key(key)) {
        changed += u64::from(forest.remove(TreeId::UUID, *key)?);
    }
    for (key, ids) in &wanted {
        let same = stored.get(key).is_some_and(|stored| sorted(stored) == sorted(ids));
        if !same {
            changed += u64::from(forest.put(TreeId::UUID, *key, ids)?);
        }
    }
    forest.sb.uuid_tree_generation = forest.store.generation.get().into();
    forest.did(Pass::Uuids, format!("makes {changed} items of the UUID tree those of the subvolumes"));
    Ok(())
}

/// Removes the tree: of what it had nothing is read.
pub(crate) fn clear(forest: &mut Forest) -> Result<()> {
    if let Some(root) = forest.trees.remove(&TreeId::UUID) {
        forest.remove(TreeId::ROOT, root.key)?;
        forest.did(Pass::Uuids, "removes the UUID tree, which the next mount for writing makes anew");
    }
    forest.sb.uuid_tree_generation = 0.into();
    Ok(())
}

fn sorted(ids: &[u8]) -> Vec<&[u8]> {
    let mut ids: Vec<&[u8]> = ids.chunks(8).collect();
    ids.sort_unstable();
    ids
}

fn uuid_key(kind: KeyType, uuid: &[u8; 16]) -> Key {
    let half = |at: usize| u64::from_le_bytes(uuid[at..at + 8].try_into().expect("8 bytes"));
    Key::new(half(0), kind, half(8))
}
