//! The one way in and the one way out for a block's bytes.
//!
//! The order of the checks is the kernel's: identity first, because a misdirected block is answered by reading
//! another copy; then the checksum; then what the parent promises; then the owner; then the content.
//!
//! # Not here
//! Which copy to read next, and the cache.

use super::{Node, at};
use crate::NodePtr;
use butterfs_ondisk::checksum::ChecksumKind;
use butterfs_ondisk::header::{HEADER_LEN, Header};
use butterfs_ondisk::key::DiskKey;
use butterfs_ondisk::tree_checker::{self, CheckContext, Violation};
use butterfs_ondisk::units::MAX_LEVELS;
use butterfs_ondisk::{Generation, Key, Level, Logical, Superblock, TreeId};
use std::fmt;
use zerocopy::FromBytes;

/// Seed filesystems that one can have sprouted from, one from the other.
pub const MOST_SEEDS: usize = 4;

/// The properties that all blocks of one filesystem share, and the parameters of the tree checker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockIdentity {
    /// The metadata UUID.
    pub fsid: [u8; 16],
    /// The metadata UUIDs of the seed filesystems that it has sprouted from; the rest is zero. Their blocks are read.
    pub seeds: [[u8; 16]; MOST_SEEDS],
    /// The chunk tree's UUID; copied into new blocks, never checked.
    pub chunk_tree_uuid: [u8; 16],
    /// The filesystem's checksum.
    pub checksum: ChecksumKind,
    /// Bytes of a block.
    pub nodesize: u32,
    /// Bytes of a sector.
    pub sectorsize: u32,
    /// `incompat_flags` of the superblock.
    pub incompat: u64,
    /// Generation of the last committed superblock.
    pub super_generation: Generation,
    /// Whether blocks that do not match their checksum are read too.
    pub ignores_checksums: bool,
    /// Whether the filesystem is going to be written.
    pub writable: bool,
}

impl BlockIdentity {
    /// The identity of blocks of the filesystem with this superblock, up to its generation. The UUID of the chunk tree
    /// is in no superblock, and stays zero.
    pub fn of(sb: &Superblock, writable: bool) -> BlockIdentity {
        BlockIdentity {
            fsid: sb.block_fsid(),
            seeds: [[0; 16]; MOST_SEEDS],
            chunk_tree_uuid: [0; 16],
            checksum: sb.checksum_kind().unwrap_or_default(),
            nodesize: sb.nodesize.get(),
            sectorsize: sb.sectorsize.get(),
            incompat: sb.incompat_flags.get(),
            super_generation: sb.generation(),
            ignores_checksums: false,
            writable,
        }
    }

    /// The same for a filesystem that has sprouted from seeds with these metadata UUIDs, at most [`MOST_SEEDS`].
    pub fn with_seeds(mut self, seeds: &[[u8; 16]]) -> BlockIdentity {
        self.seeds.iter_mut().zip(seeds).for_each(|(slot, seed)| *slot = *seed);
        self
    }

    /// Whether blocks with this UUID belong to the filesystem.
    pub fn has_blocks_of(&self, fsid: &[u8; 16]) -> bool {
        *fsid == self.fsid || *fsid != [0; 16] && self.seeds.contains(fsid)
    }

    /// The parameters of the rules for blocks and items.
    pub fn check_context(&self) -> CheckContext {
        CheckContext {
            nodesize: self.nodesize,
            sectorsize: self.sectorsize,
            super_generation: self.super_generation,
            incompat: self.incompat,
            csum_len: self.checksum.len(),
            writable: self.writable,
        }
    }
}

/// A block, or a tree, that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corrupt {
    /// The block's address.
    pub at: Logical,
    /// The tree that was being read or written; 0 when unknown.
    pub tree: TreeId,
    /// The level that the block should have.
    pub level: Level,
    /// The item or pointer, when it is one.
    pub slot: Option<usize>,
    /// Its key.
    pub key: Option<Key>,
    /// The rule, with the values that break it.
    pub rule: String,
}

impl Corrupt {
    pub(crate) fn new(expect: &NodePtr, rule: String) -> Corrupt {
        Corrupt { at: expect.at, tree: expect.tree, level: expect.level, slot: None, key: None, rule }
    }

    fn violation(expect: &NodePtr, violation: Violation) -> Corrupt {
        Corrupt { slot: violation.slot, key: violation.key, ..Corrupt::new(expect, violation.rule) }
    }
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.level.get() == 0 { "leaf" } else { "node" };
        write!(f, "corrupt {kind}: root={} block={}", self.tree.get() as i64, self.at)?;
        if let Some(slot) = self.slot {
            write!(f, " slot={slot}")?;
        }
        if let Some(key) = self.key {
            write!(f, " key={key}")?;
        }
        write!(f, ", {}", self.rule)
    }
}

impl std::error::Error for Corrupt {}

/// Checks bytes read at `expect.at` against everything that is known about them, and makes them a node.
pub fn verify(bytes: Box<[u8]>, expect: &NodePtr, identity: &BlockIdentity) -> Result<Node, Corrupt> {
    check_block(&bytes, expect, identity)?;
    Ok(Node::from_checked(bytes))
}

/// The checks of [`verify`] alone, for a reader that tries one copy after the other.
pub fn check_block(bytes: &[u8], expect: &NodePtr, identity: &BlockIdentity) -> Result<(), Corrupt> {
    let fail = |rule| Err(Corrupt::new(expect, rule));
    if bytes.len() != identity.nodesize as usize || bytes.len() < HEADER_LEN {
        return fail(format!("invalid block size, have {} expect {}", bytes.len(), identity.nodesize));
    }
    let header = header_of(bytes);
    if header.bytenr.get() != expect.at.get() {
        return fail(format!("bad tree block start, have {} expect {}", header.bytenr, expect.at));
    }
    if !identity.has_blocks_of(&header.fsid) {
        return fail(format!("bad fsid, have {:02x?} expect {:02x?}", header.fsid, identity.fsid));
    }
    if usize::from(header.level) >= MAX_LEVELS {
        return fail(format!("bad tree block level, have {} expect less than {MAX_LEVELS}", header.level));
    }
    if !identity.ignores_checksums && !identity.checksum.matches(&bytes[header.csum.len()..], &header.csum) {
        return fail(format!("checksum mismatch ({})", identity.checksum.name()));
    }
    confirm(bytes, expect)?;
    tree_checker::check(bytes, &identity.check_context()).map_err(|violation| Corrupt::violation(expect, violation))
}

/// Compares a block with the expectation of its parent: level, generation, first key, owner. The block is at least a
/// header and a key long, and a node or leaf with items has a first key there.
pub(super) fn confirm(bytes: &[u8], expect: &NodePtr) -> Result<(), Corrupt> {
    let fail = |rule| Err(Corrupt::new(expect, rule));
    let header = header_of(bytes);
    if header.level != expect.level.get() {
        return fail(format!("level verify failed, have {} expect {}", header.level, expect.level));
    }
    if header.generation.get() != expect.generation.get() {
        return fail(format!("parent transid verify failed, have {} expect {}", header.generation, expect.generation));
    }
    if let Some(promised) = expect.first_key {
        let first = first_key(bytes, header);
        if first != Some(promised) {
            return fail(format!("first key mismatch, have {first:?} expect {promised}"));
        }
    }
    tree_checker::check_owner(TreeId(header.owner.get()), expect.tree, expect.first_key.is_none())
        .map_err(|rule| Corrupt::new(expect, rule))
}

fn header_of(bytes: &[u8]) -> &Header {
    Header::ref_from_prefix(bytes).expect("the length was checked").0
}

fn first_key(bytes: &[u8], header: &Header) -> Option<Key> {
    let (key, _) = DiskKey::ref_from_prefix(&bytes[HEADER_LEN..]).ok()?;
    (header.nritems.get() > 0).then(|| Key::from(*key))
}

impl Node {
    /// Copies the block into `out` as it goes to disk: WRITTEN, checked by the same rules as on reading, with its
    /// checksum. After an error `out` must not be written.
    pub fn seal_into(&self, out: &mut [u8], identity: &BlockIdentity) -> Result<(), Corrupt> {
        out.copy_from_slice(&self.bytes);
        let flags = self.flags() | Header::WRITTEN;
        out[at::FLAGS..at::FLAGS + 8].copy_from_slice(&flags.to_le_bytes());
        // A copy of a seed's block has the seed's.
        out[at::FSID..at::FSID + 16].copy_from_slice(&identity.fsid);
        let ptr = NodePtr {
            at: self.at(),
            generation: self.generation(),
            level: self.level(),
            tree: self.owner(),
            first_key: None,
        };
        tree_checker::check(out, &identity.check_context()).map_err(|violation| Corrupt::violation(&ptr, violation))?;
        let digest = identity.checksum.digest(&out[32..]);
        out[..32].copy_from_slice(&digest);
        Ok(())
    }
}
