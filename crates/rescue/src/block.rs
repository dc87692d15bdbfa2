//! A tree block as it was found, and how well it fits what its parent says.
//!
//! Invariant: whatever the bytes are, a [`Block`] has a layout that [`Node`] can be read by. Payloads are not promised
//! to obey any rule: whoever reads items parses them without trust.

use crate::key::KeyRange;
use crate::trust::Trust;
use crate::wreck::Identity;
use butterfs_ondisk::header::{HEADER_LEN, Header, ITEM_LEN, KEY_POINTER_LEN, pointers_per_node};
use butterfs_ondisk::key::DiskKey;
use butterfs_ondisk::tree_checker::{CheckContext, check, check_layout, check_owner};
use butterfs_ondisk::units::MAX_LEVELS;
use butterfs_ondisk::{ChecksumKind, Generation, Key, KeyType, Level, Logical, Superblock, TreeId};
use butterfs_tree::{BlockIdentity, MOST_SEEDS, Node};
use std::ops::Range;
use zerocopy::FromBytes;

/// How sure a tree block is, best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Quality {
    /// Everything fits.
    Good,
    /// The block above it is lost; a scan has found this one, and the extent tree of the last commit has it.
    Confirmed,
    /// A sound root, but of a lower level than the one that names it says, and no witness tells which one is right.
    OtherLevel,
    /// The checksum is right, and one field of the header is wrong, as bad memory makes it; all else fits.
    OtherHeader,
    /// The checksum is wrong, and no other rule is broken.
    BadChecksum,
    /// Sound, but of another generation than the parent says: usually a write was lost.
    OtherGeneration,
    /// Some of its items could be read.
    Pieces,
    /// The block is lost; an older one of the same tree that a scan has found stands in for it.
    StandIn,
}

impl Quality {
    /// How far the items of such a block can be believed.
    pub fn trust(self) -> Trust {
        match self {
            Quality::Good | Quality::Confirmed => Trust::Proved,
            Quality::OtherGeneration | Quality::StandIn => Trust::Older,
            Quality::OtherLevel | Quality::OtherHeader | Quality::BadChecksum | Quality::Pieces => Trust::Doubtful,
        }
    }
}

/// The things known about a block before it is read.
#[derive(Clone, Copy, Debug)]
pub struct Expect {
    /// Its address.
    pub at: Logical,
    /// Its level.
    pub level: Option<u8>,
    /// Its generation.
    pub generation: Option<u64>,
    /// The tree that is read; 0 for any.
    pub tree: TreeId,
    /// Whether it is the root.
    pub is_root: bool,
    /// The keys that belong to it.
    pub window: KeyRange,
}

impl Expect {
    /// The root of a tree.
    pub fn root(tree: TreeId, at: Logical, level: Option<u8>, generation: Option<u64>) -> Expect {
        Expect { at, level, generation, tree, is_root: true, window: KeyRange::ALL }
    }
}

/// A block that can be read.
#[derive(Clone, Debug)]
pub struct Block {
    /// Its content.
    pub node: Node,
    /// How sure it is.
    pub quality: Quality,
}

impl Block {
    /// Whether its first key is one that belongs to it.
    pub fn fits(&self, window: &KeyRange) -> bool {
        self.node.first_key().is_none_or(|first| window.contains(first))
    }

    /// Whether all of its keys belong to it.
    fn lies_within(&self, window: &KeyRange) -> bool {
        self.fits(window) && self.node.last_key().is_none_or(|last| window.contains(last))
    }
}

/// The things that all blocks of the filesystem have in common.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// The UUID in every block.
    pub fsid: [u8; 16],
    /// The UUIDs in blocks of the seeds that it has sprouted from; the rest is zero.
    seeds: [[u8; 16]; MOST_SEEDS],
    /// The checksum.
    pub checksum: ChecksumKind,
    /// The values that the rules depend on.
    pub context: CheckContext,
}

/// Bytes of a key.
const KEY_LEN: usize = size_of::<DiskKey>();

impl Family {
    /// Of the filesystem of this superblock.
    pub fn of(sb: &Superblock) -> Family {
        Family {
            fsid: sb.block_fsid(),
            seeds: Default::default(),
            checksum: sb.checksum_kind().unwrap_or_default(),
            // Blocks of an unfinished commit may be newer.
            context: CheckContext { super_generation: Generation(u64::MAX - 1), ..CheckContext::of(sb, false) },
        }
    }

    /// Of blocks that a scan has recognised.
    pub fn of_identity(identity: &Identity) -> Family {
        let Identity { fsid, nodesize, checksum } = *identity;
        let context = CheckContext {
            nodesize,
            sectorsize: 4096,
            super_generation: Generation(u64::MAX - 1),
            incompat: 0,
            csum_len: checksum.len(),
            writable: false,
        };
        Family { fsid, seeds: Default::default(), checksum, context }
    }

    /// The same with these seeds, at most [`MOST_SEEDS`].
    pub fn with_seeds(self, fsids: &[[u8; 16]]) -> Family {
        let mut seeds = [[0; 16]; MOST_SEEDS];
        seeds.iter_mut().zip(fsids).for_each(|(slot, fsid)| *slot = *fsid);
        Family { seeds, ..self }
    }

    fn has_blocks_of(&self, fsid: &[u8; 16]) -> bool {
        *fsid == self.fsid || (*fsid != [0; 16] && self.seeds.contains(fsid))
    }

    pub(crate) fn identity(&self) -> BlockIdentity {
        BlockIdentity {
            fsid: self.fsid,
            seeds: self.seeds,
            chunk_tree_uuid: [0; 16],
            checksum: self.checksum,
            nodesize: self.context.nodesize,
            sectorsize: self.context.sectorsize,
            incompat: self.context.incompat,
            super_generation: self.context.super_generation,
            ignores_checksums: true,
            writable: false,
        }
    }

    /// Whether the checksum of a block is right.
    pub fn has_checksum(&self, bytes: &[u8]) -> bool {
        self.checksum.matches(&bytes[32..], &bytes[..32])
    }

    /// Makes a block of bytes that were read at `want.at`, if they are worth anything.
    pub fn grade(&self, bytes: &[u8], want: &Expect) -> Option<Block> {
        self.grade_as_it_is(bytes, want).or_else(|| self.with_header_corrected(bytes, want))
    }

    /// A block with the right checksum of which just one field of the header is wrong: it was written so. A block of
    /// another place, tree or state differs in more of them, or in its keys.
    pub(crate) fn with_header_corrected(&self, bytes: &[u8], want: &Expect) -> Option<Block> {
        let (level, generation) = (want.level?, want.generation?);
        if bytes.len() != self.context.nodesize as usize || want.tree.0 == 0 || !self.has_checksum(bytes) {
            return None;
        }
        let mut bytes = bytes.to_vec();
        let (header, _) = Header::mut_from_prefix(&mut bytes).ok()?;
        let is_elsewhere = header.bytenr.get() != want.at.0;
        let is_foreign = !self.has_blocks_of(&header.fsid);
        let is_of_other_tree = check_owner(TreeId(header.owner.get()), want.tree, want.is_root).is_err();
        let wrong = [is_elsewhere, is_foreign, is_of_other_tree, header.level != level];
        if header.generation.get() != generation || wrong.iter().filter(|is_wrong| **is_wrong).count() != 1 {
            return None;
        }
        (header.bytenr, header.level) = (want.at.0.into(), level);
        if is_foreign {
            header.fsid = self.fsid;
        }
        if is_of_other_tree {
            header.owner = want.tree.0.into();
        }
        check_layout(&bytes, &self.context).ok()?;
        let block = Block { node: Node::from_checked(bytes.into()), quality: Quality::OtherHeader };
        // The address in its header is all that tells a block from others of the same tree and time but its keys.
        let begins = !is_elsewhere || want.is_root || block.node.first_key() == Some(want.window.from);
        let has_kinds =
            !is_of_other_tree || (0..block.node.nritems()).all(|slot| fits_tree(want.tree, block.node.key(slot)));
        (begins && has_kinds && block.lies_within(&want.window)).then_some(block)
    }

    fn grade_as_it_is(&self, bytes: &[u8], want: &Expect) -> Option<Block> {
        let (header, _) = Header::read_from_prefix(bytes).ok()?;
        let is_right_place = header.bytenr.get() == want.at.0 && self.has_blocks_of(&header.fsid);
        let has_level = usize::from(header.level) < MAX_LEVELS;
        if bytes.len() != self.context.nodesize as usize || !is_right_place || !has_level {
            return None;
        }
        let Some(said) = want.level.filter(|level| *level != header.level) else {
            return self.grade_of_level(bytes, &header, want);
        };
        // Only a sound root counts more than the level that its item names.
        let is_own_root = want.is_root && want.tree.0 == header.owner.get() && want.generation.is_some();
        let sound = |block: &Block| block.quality == Quality::Good;
        let block = is_own_root.then(|| self.grade_of_level(bytes, &header, want)).flatten().filter(sound)?;
        let quality = if header.level > said { Quality::Good } else { Quality::OtherLevel };
        Some(Block { quality, ..block })
    }

    /// The same for a block of the right level.
    fn grade_of_level(&self, bytes: &[u8], header: &Header, want: &Expect) -> Option<Block> {
        let is_sealed = self.has_checksum(bytes);
        let is_timely = want.generation.is_none_or(|generation| generation == header.generation.get());
        let is_own = check_owner(TreeId(header.owner.get()), want.tree, want.is_root).is_ok();
        let is_laid_out = check_layout(bytes, &self.context).is_ok();
        let quality = match (is_sealed, is_timely) {
            _ if !is_own => return None,
            (true, true) if is_laid_out => Quality::Good,
            (false, true) if check(bytes, &self.context).is_ok() => Quality::BadChecksum,
            (true, false) if is_laid_out => Quality::OtherGeneration,
            (_, true) => Quality::Pieces,
            (_, false) => return None,
        };
        let pieces = || self.pieces(bytes, header, &want.window);
        let node = if is_laid_out { Some(Node::from_checked(bytes.into())) } else { pieces() }?;
        let block = Block { node, quality };
        // An older state may have had other keys here.
        if quality == Quality::OtherGeneration || !block.node.is_leaf() || block.lies_within(&want.window) {
            return Some(block);
        }
        let inside = pieces().filter(|node| Block { node: node.clone(), quality }.lies_within(&want.window));
        Some(inside.map_or(block, |node| Block { node, quality: Quality::Pieces }))
    }

    /// A block of what is left of another one: items that lie inside, or pointers that could be some, in the order of
    /// keys. Of a leaf, keys outside of the window are wrong, unless most are.
    fn pieces(&self, bytes: &[u8], header: &Header, window: &KeyRange) -> Option<Node> {
        let (level, owner) = (Level(header.level), TreeId(header.owner.get()));
        let (at, generation) = (Logical(header.bytenr.get()), Generation(header.generation.get()));
        let mut node = Node::new_empty(&self.identity(), at, level, generation, owner);
        if level.get() == 0 {
            self.collect_items(bytes, window, &mut node)
        } else {
            self.collect_pointers(bytes, &mut node)
        }
        (!node.is_empty()).then_some(node)
    }

    fn collect_items(&self, bytes: &[u8], window: &KeyRange, node: &mut Node) {
        let heads = bytes[HEADER_LEN..].chunks_exact(ITEM_LEN).zip(places_of(bytes));
        let items = heads.filter_map(|(head, place)| {
            let (disk_key, _) = DiskKey::read_from_prefix(head).ok()?;
            Some((Key::from(disk_key), bytes.get(place)?))
        });
        let items: Vec<(Key, &[u8])> = items.collect();
        let keys: Vec<Key> = items.iter().map(|(key, _)| *key).collect();
        for (slot, key) in repaired_keys(&keys, window) {
            let data = items[slot].1;
            if node.free_space() < data.len() + ITEM_LEN {
                return;
            }
            node.insert_item(node.nritems(), key, data);
        }
    }

    fn collect_pointers(&self, bytes: &[u8], node: &mut Node) {
        let mut last = None;
        let most = count_of(bytes).min(pointers_per_node(self.context.nodesize));
        for pointer in bytes[HEADER_LEN..].chunks_exact(KEY_POINTER_LEN).take(most) {
            let Ok((disk_key, rest)) = DiskKey::read_from_prefix(pointer) else { return };
            let (key, number) =
                (Key::from(disk_key), |at: usize| u64::from_le_bytes(rest[at..at + 8].try_into().expect("8 bytes")));
            let (child, generation) = (number(0), number(8));
            let plausible = child != 0 && child.is_multiple_of(u64::from(self.context.sectorsize)) && generation != 0;
            if plausible && last.is_none_or(|last| last < key) {
                node.insert_pointer(node.nritems(), key, Logical(child), Generation(generation));
                last = Some(key);
            }
        }
    }
}

/// Whether a tree may have a key, as far as the key alone tells.
fn fits_tree(tree: TreeId, key: Key) -> bool {
    match tree {
        tree if tree.is_subvolume() => key.kind <= KeyType::EXTENT_DATA,
        TreeId::CSUM => key.kind == KeyType::EXTENT_CSUM,
        TreeId::CHUNK => matches!(key.kind, KeyType::CHUNK_ITEM | KeyType::DEV_ITEM),
        _ => true,
    }
}

/// The slots of a leaf whose keys keep the order, as many as can be, and their keys; of the others those for which one
/// bit makes a key that fits between its neighbours, and only one such key is there.
fn repaired_keys(keys: &[Key], window: &KeyRange) -> Vec<(usize, Key)> {
    let (within, all) = (longest_ascent(keys, window), longest_ascent(keys, &KeyRange::ALL));
    let (window, kept) = if within.len() * 2 > all.len() { (*window, within) } else { (KeyRange::ALL, all) };
    let mut found: Vec<(usize, Key)> = Vec::with_capacity(keys.len());
    let mut rest = kept.into_iter().peekable();
    for (slot, key) in keys.iter().enumerate() {
        if rest.next_if_eq(&slot).is_some() {
            found.push((slot, *key));
            continue;
        }
        let from = found.last().map_or(window.from, |(_, last)| last.successor());
        let end = rest.peek().map(|next| keys[*next]).or(window.end);
        let between = KeyRange { from, end };
        let mut candidates = neighbours(*key).filter(|key| between.contains(*key));
        if let (Some(only), None) = (candidates.next(), candidates.next()) {
            found.push((slot, only));
        }
    }
    found
}

/// The keys that differ from this one in one bit.
fn neighbours(key: Key) -> impl Iterator<Item = Key> {
    (0..136u32).map(move |bit| match bit {
        0..64 => Key { objectid: key.objectid ^ 1 << bit, ..key },
        64..72 => Key { kind: KeyType(key.kind.0 ^ 1 << (bit - 64)), ..key },
        _ => Key { offset: key.offset ^ 1 << (bit - 72), ..key },
    })
}

/// The slots of a longest sequence of ascending keys inside of a window.
fn longest_ascent(keys: &[Key], window: &KeyRange) -> Vec<usize> {
    // The slot with the least last key of a sequence of each length, and the slot before each one.
    let (mut ends, mut before): (Vec<usize>, Vec<Option<usize>>) = (Vec::new(), vec![None; keys.len()]);
    for (slot, key) in keys.iter().enumerate().filter(|(_, key)| window.contains(**key)) {
        let len = ends.partition_point(|end| keys[*end] < *key);
        before[slot] = len.checked_sub(1).map(|last| ends[last]);
        if len == ends.len() { ends.push(slot) } else { ends[len] = slot }
    }
    let mut slots: Vec<usize> = std::iter::successors(ends.last().copied(), |slot| before[*slot]).collect();
    slots.reverse();
    slots
}

/// Where the data of each item of a leaf lies. Data is packed from the end of the block without a gap: an offset or a
/// size that does not fit follows from the neighbours, where those fit each other.
fn places_of(bytes: &[u8]) -> Vec<Range<usize>> {
    let number = |head: &[u8], at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("4 bytes")) as usize;
    let heads = bytes[HEADER_LEN..].chunks_exact(ITEM_LEN).take(count_of(bytes));
    let stored: Vec<(usize, usize)> = heads.map(|head| (number(head, KEY_LEN), number(head, KEY_LEN + 4))).collect();
    let mut places = Vec::with_capacity(stored.len());
    // Where the item before begins, if its place is sure.
    let mut before = Some(bytes.len() - HEADER_LEN);
    for (slot, (start, len)) in stored.iter().copied().enumerate() {
        let own = start..start.saturating_add(len);
        let next_end = stored.get(slot + 1).map(|(start, len)| start.saturating_add(*len));
        let place = before.filter(|end| own.end != *end).and_then(|end| match (next_end, end.checked_sub(len)) {
            (Some(next), _) if next == start && start <= end => Some(start..end),
            (Some(next), by_len) if Some(next) == by_len => Some(next..end),
            // Of the last item only the neighbour before it is known.
            (None, Some(by_len)) => Some(by_len..end),
            _ => None,
        });
        let is_sure = place.is_some() || before == Some(own.end) || next_end == Some(start);
        let place = place.unwrap_or(own);
        before = is_sure.then_some(place.start);
        places.push(HEADER_LEN.saturating_add(place.start)..HEADER_LEN.saturating_add(place.end));
    }
    places
}

/// How many items or pointers a block may have: what its header says, or as many as there is room for where that lies.
fn count_of(bytes: &[u8]) -> usize {
    let said = u32::from_le_bytes([bytes[96], bytes[97], bytes[98], bytes[99]]) as usize;
    if said == 0 { usize::MAX } else { said }
}
