//! Recognises tree blocks in a piece of a device.
//!
//! Invariant: what is found has a right checksum and a layout that can be read. Filesystems that no superblock names
//! are recognised by a first block that some checksum and some size fits.

use crate::block::Family;
use crate::index::Found;
use crate::key::KeyRange;
use crate::roots::files_in;
use crate::wreck::Identity;
use butterfs_ondisk::ChecksumKind;
use butterfs_ondisk::header::{HEADER_LEN, Header};
use butterfs_ondisk::tree_checker::check_layout;
use butterfs_tree::Node;
use zerocopy::FromBytes;

/// Where a block can begin.
const STEP: usize = 4096;
/// Filesystems that are told apart.
const MOST_FAMILIES: usize = 32;
/// Sizes that are tried, the usual ones first.
const SIZES: [usize; 5] = [16384, 4096, 8192, 32768, 65536];
/// Checksums that are tried.
const KINDS: [ChecksumKind; 4] =
    [ChecksumKind::Crc32c, ChecksumKind::Xxhash64, ChecksumKind::Sha256, ChecksumKind::Blake2b];

/// See the [module](self).
#[derive(Debug)]
pub struct Finder {
    identities: Vec<Identity>,
    families: Vec<Family>,
}

impl Finder {
    /// A finder that knows these filesystems.
    pub fn new(identities: Vec<Identity>) -> Finder {
        let families = identities.iter().map(Family::of_identity).collect();
        Finder { identities, families }
    }

    /// Adds a filesystem.
    pub fn know(&mut self, identity: Identity) {
        if !self.identities.contains(&identity) && self.identities.len() < MOST_FAMILIES {
            self.identities.push(identity);
            self.families.push(Family::of_identity(&identity));
        }
    }

    /// The filesystems, in the order of their numbers.
    pub fn identities(&self) -> &[Identity] {
        &self.identities
    }

    /// The blocks that begin in the first `own` bytes of a piece that lies at `base`.
    pub fn look(&mut self, piece: &[u8], own: usize, base: u64, device: u16) -> Vec<Found> {
        let (mut found, mut at) = (Vec::new(), 0);
        while at < own {
            let len = self.block(&piece[at..], base + at as u64, device, &mut found);
            at += len.next_multiple_of(STEP).max(STEP);
        }
        found
    }

    /// Bytes of the block that begins here; 0 if there is none.
    fn block(&mut self, bytes: &[u8], physical: u64, device: u16, found: &mut Vec<Found>) -> usize {
        let Ok((header, _)) = Header::ref_from_prefix(bytes) else { return 0 };
        if !is_plausible(header) {
            return 0;
        }
        let known = (0..self.families.len()).filter(|number| self.families[*number].fsid == header.fsid);
        let fitting = known.clone().find(|number| self.fits(*number, bytes));
        let number = match fitting {
            Some(number) => number,
            None if known.count() > 0 => return 0,
            None => match self.recognise(bytes, header.fsid) {
                Some(number) => number,
                None => return 0,
            },
        };
        let (family, nodesize) = (&self.families[number], self.identities[number].nodesize as usize);
        let block = &bytes[..nodesize];
        if check_layout(block, &family.context).is_err() {
            return 0;
        }
        found.push(describe(Node::from_checked(block.into()), physical, device, number as u8));
        nodesize
    }

    fn fits(&self, number: usize, bytes: &[u8]) -> bool {
        let block = bytes.get(..self.identities[number].nodesize as usize);
        block.is_some_and(|block| self.families[number].has_checksum(block))
    }

    fn recognise(&mut self, bytes: &[u8], fsid: [u8; 16]) -> Option<usize> {
        if self.identities.len() == MOST_FAMILIES {
            return None;
        }
        for checksum in KINDS {
            for size in SIZES {
                let block = bytes.get(..size).filter(|block| checksum.matches(&block[32..], &block[..32]));
                if block.is_some() {
                    self.know(Identity { fsid, nodesize: size as u32, checksum });
                    return Some(self.identities.len() - 1);
                }
            }
        }
        None
    }
}

/// Whether a header could be one: cheap, for every place of a device.
fn is_plausible(header: &Header) -> bool {
    let at = header.bytenr.get();
    header.level < 8
        && header.flags.get() & (Header::WRITTEN | Header::BACKREF_REV) == Header::WRITTEN | Header::BACKREF_REV
        && at != 0
        && at.is_multiple_of(STEP as u64)
        && header.generation.get() != 0
        && header.nritems.get() as usize <= (65536 - HEADER_LEN) / 25
}

fn describe(node: Node, physical: u64, device: u16, family: u8) -> Found {
    let (files, bytes) = if node.is_leaf() { files_in(&node, &KeyRange::ALL) } else { (0, 0) };
    Found {
        owner: node.owner().0,
        logical: node.at().0,
        generation: node.generation().0,
        physical,
        first: node.first_key().unwrap_or_default(),
        last: node.last_key().unwrap_or_default(),
        bytes,
        files: files as u32,
        items: node.nritems() as u32,
        device,
        level: node.level().get(),
        family,
    }
}
