//! The numbers of quota groups, counted from the trees, beside those that are stored.
//!
//! Memory: 24 bytes for each extent and each tree block of subvolumes, and one set of subvolumes for each combination
//! that shares something.

use crate::action::Pass;
use crate::forest::Forest;
use crate::plan::entered;
use crate::start::Start;
use crate::store::Store;
use crate::trouble::Result;
use crate::walk::{DropPoint, walk};
use butterfs_device::{BlockDevice, ReadOnlyDevice};
use butterfs_ondisk::items::{FileExtent, QgroupInfo, QgroupStatus, file_extent_type};
use butterfs_ondisk::{Generation, Key, KeyType, TreeId};
use butterfs_volume::Volume;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// One quota group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaGroup {
    /// Level in the upper 16 bits, number in the others.
    pub id: u64,
    /// Bytes that are referenced, as they were counted.
    pub referenced: u64,
    /// Bytes that no other group references, as they were counted.
    pub exclusive: u64,
    /// The stored numbers: referenced and exclusive.
    pub stored: (u64, u64),
}

impl QuotaGroup {
    /// Whether the stored numbers are the right ones.
    pub fn is_right(&self) -> bool {
        (self.referenced, self.exclusive) == self.stored
    }
}

/// All quota groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuotaReport {
    /// Ascending by id.
    pub groups: Vec<QuotaGroup>,
    /// The filesystem says itself that the numbers are not right.
    pub is_inconsistent: bool,
    /// The filesystem's UUID.
    pub fsid: [u8; 16],
}

/// Counts the quota groups of the filesystem on `devices`; `None` where it has none.
pub fn quota_report(devices: Vec<Arc<dyn BlockDevice>>, start: &Start) -> Result<Option<QuotaReport>> {
    let devices = entered(devices, start)?;
    let read_only = |device| Arc::new(ReadOnlyDevice::new(device)) as Arc<dyn BlockDevice>;
    let (volume, sb, _) = Volume::open(devices.into_iter().map(read_only).collect())?;
    let store = Store::new(volume, &sb, Generation(sb.generation.get() + 1));
    crate::chunks::read(&store, &sb);
    let mut forest = Forest::open(store, sb, 0);
    forest.read_roots();
    if !forest.trees.contains_key(&TreeId::QUOTA) {
        return Ok(None);
    }
    report(&forest).map(Some)
}

/// Makes the numbers those that are counted: who mounts the filesystem finds them right.
pub(crate) fn write(forest: &mut Forest) -> Result<()> {
    if !forest.trees.contains_key(&TreeId::QUOTA) || !crate::extents::is_readable(forest, TreeId::QUOTA) {
        return Ok(());
    }
    let generation = forest.store.generation.get();
    let key = Key::new(0, KeyType::QGROUP_STATUS, 0);
    let Some(data) = forest.get(TreeId::QUOTA, key)? else { return Ok(()) };
    let Ok((mut status, rest)) = QgroupStatus::read_from_prefix(&data) else { return Ok(()) };
    let mut changed = 0;
    for group in report(forest)?.groups {
        let info = QgroupInfo {
            generation: generation.into(),
            referenced: group.referenced.into(),
            referenced_compressed: group.referenced.into(),
            exclusive: group.exclusive.into(),
            exclusive_compressed: group.exclusive.into(),
        };
        if !group.is_right() {
            let key = Key::new(0, KeyType::QGROUP_INFO, group.id);
            changed += u64::from(forest.put(TreeId::QUOTA, key, info.as_bytes())?);
        }
    }
    // The kernel takes numbers of another generation for wrong.
    status.generation = generation.into();
    status.flags = (status.flags.get() & !(QgroupStatus::INCONSISTENT | QgroupStatus::RESCAN)).into();
    status.rescan = 0.into();
    forest.put(TreeId::QUOTA, key, &[status.as_bytes(), rest].concat())?;
    if changed > 0 {
        forest.did(Pass::Extents, format!("makes the numbers of {changed} quota groups those that are counted"));
    }
    Ok(())
}

fn report(forest: &Forest) -> Result<QuotaReport> {
    let mut report = QuotaReport { fsid: forest.sb.fsid, ..QuotaReport::default() };
    let (mut stored, mut parents) = (BTreeMap::new(), Vec::new());
    crate::walk::items(&forest.store, &forest.ptr(TreeId::QUOTA)?, &mut |key, data| match key.kind {
        KeyType::QGROUP_INFO => {
            let info = QgroupInfo::read_from_bytes(data);
            stored.insert(key.offset, info.map_or((0, 0), |info| (info.referenced.get(), info.exclusive.get())));
        }
        // Each relation is there from both sides.
        KeyType::QGROUP_RELATION if key.objectid < key.offset => parents.push((key.objectid, key.offset)),
        KeyType::QGROUP_STATUS => {
            let flags = QgroupStatus::read_from_prefix(data).map_or(0, |(status, _)| status.flags.get());
            report.is_inconsistent = flags & (QgroupStatus::INCONSISTENT | QgroupStatus::RESCAN) != 0;
        }
        _ => {}
    });
    let shares = count(forest);
    for (id, stored) in stored {
        let below = members(id, &parents);
        let sum = |wanted: &dyn Fn(&BTreeSet<u64>) -> bool| {
            shares.iter().filter(|(owners, _)| wanted(owners)).map(|(_, bytes)| bytes).sum()
        };
        let referenced = sum(&|owners| !owners.is_disjoint(&below));
        let exclusive = sum(&|owners| owners.is_subset(&below));
        report.groups.push(QuotaGroup { id, referenced, exclusive, stored });
    }
    Ok(report)
}

/// The subvolumes of a group: itself, or those of the groups below it.
fn members(id: u64, parents: &[(u64, u64)]) -> BTreeSet<u64> {
    let (mut groups, mut next) = (BTreeSet::from([id]), vec![id]);
    while let Some(group) = next.pop() {
        let below = parents.iter().filter(|(_, parent)| *parent == group).map(|(child, _)| *child);
        next.extend(below.filter(|child| groups.insert(*child)).collect::<Vec<_>>());
    }
    groups.into_iter().filter(|group| group >> 48 == 0).collect()
}

/// Sets of subvolumes, each as the one before and one more.
#[derive(Default)]
struct Sets {
    sets: Vec<BTreeSet<u64>>,
    larger: FxHashMap<(usize, u64), usize>,
}

impl Sets {
    fn with(&mut self, set: usize, tree: u64) -> usize {
        if self.sets[set].contains(&tree) {
            return set;
        }
        let sets = &mut self.sets;
        *self.larger.entry((set, tree)).or_insert_with(|| {
            let mut larger = sets[set].clone();
            larger.insert(tree);
            sets.push(larger);
            sets.len() - 1
        })
    }
}

/// Bytes by the subvolumes that lead to them.
fn count(forest: &Forest) -> Vec<(BTreeSet<u64>, u64)> {
    let mut sets = Sets { sets: vec![BTreeSet::new()], ..Sets::default() };
    let mut extents: FxHashMap<u64, (u64, usize)> = FxHashMap::default();
    for root in forest.trees.values().filter(|root| root.id().is_subvolume()) {
        let tree = root.id().get();
        let mut note = |at: u64, length: u64| {
            let extent = extents.entry(at).or_insert((length, 0));
            extent.1 = sets.with(extent.1, tree);
        };
        walk(&forest.store, &root.ptr, DropPoint::of(&root.item), &mut |node, _| {
            note(node.at().get(), forest.store.nodesize());
            if node.is_leaf() {
                for (_, data) in node.items().filter(|(key, _)| key.kind == KeyType::EXTENT_DATA) {
                    let Ok((extent, _)) = FileExtent::ref_from_prefix(data) else { continue };
                    let at = extent.body.disk_bytenr.get();
                    if extent.head.kind != file_extent_type::INLINE && at != 0 {
                        note(at, extent.body.disk_num_bytes.get());
                    }
                }
            }
            true
        });
    }
    let mut sums: BTreeMap<usize, u64> = BTreeMap::new();
    for (length, set) in extents.into_values() {
        *sums.entry(set).or_default() += length;
    }
    sums.into_iter().map(|(set, bytes)| (sets.sets[set].clone(), bytes)).collect()
}
