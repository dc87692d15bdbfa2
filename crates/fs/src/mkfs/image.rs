//! The bytes of a new filesystem and the order in which they reach the device.
//!
//! # Invariants
//! 1. Until the last step the device holds no valid primary superblock: a crash leaves nothing that looks like a
//!    filesystem, neither the old one nor a part of the new one.
//! 2. Every block goes out through [`Node::seal_into`], which checks it as a reader would.

use super::blocks::{PlacedTree, leaves};
use super::superblock::superblock;
use super::trees::{FilesystemSpec, GENERATION};
use crate::error::{Error, Result};
use butterfs_device::{BlockDevice, is_zero};
use butterfs_ondisk::superblock::{OFFSETS, SUPERBLOCK_LEN};
use butterfs_ondisk::{Generation, Level, Logical};
use butterfs_tree::{BlockIdentity, Node};
use butterfs_volume::Volume;
use std::ops::Range;

/// Bytes at both ends of a device in which other filesystems, volume managers and partition tables leave their marks.
const ENDS: u64 = 2 << 20;
/// Bytes that are read and zeroed at once.
const PIECE: u64 = 64 << 10;

/// Takes away what marks the old content of the first `len` bytes: superblock copies first, then what is at both ends,
/// where blocks of an old btrfs may lie that its superblock would still point to.
pub fn wipe(device: &dyn BlockDevice, len: u64) -> Result<()> {
    for at in OFFSETS.map(|at| at.0).into_iter().filter(|at| *at < len) {
        zero(device, at..len.min(at + SUPERBLOCK_LEN as u64))?;
    }
    flush(device)?;
    zero(device, 0..ENDS.min(len))?;
    zero(device, len.saturating_sub(ENDS)..len)?;
    flush(device)
}

/// Makes `range` zero. What is zero already is not written, which keeps a sparse file sparse.
fn zero(device: &dyn BlockDevice, range: Range<u64>) -> Result<()> {
    let mut piece = vec![0; PIECE as usize];
    let mut at = device.next_data(range.start);
    while at < range.end {
        let piece = &mut piece[..PIECE.min(range.end - at) as usize];
        read(device, at, piece)?;
        if !is_zero(piece) {
            piece.fill(0);
            write(device, at, piece)?;
        }
        at = device.next_data(at + piece.len() as u64);
    }
    Ok(())
}

/// Writes the filesystem of `spec` to a wiped volume that has the spec's chunks; when this returns it is durable.
pub fn write_image(volume: &Volume, spec: &FilesystemSpec, placed: &[PlacedTree]) -> Result<()> {
    let identity = identity(spec);
    let mut bytes = vec![0; identity.nodesize as usize];
    for node in placed.iter().flat_map(|tree| nodes(tree, spec, placed, &identity)) {
        node.seal_into(&mut bytes, &identity)?;
        volume.write_new(node.at(), &bytes)?;
    }
    volume.flush()?;
    Ok(volume.write_superblock(&superblock(spec, placed))?)
}

/// The fields that all tree blocks of the filesystem have in common.
pub fn identity(spec: &FilesystemSpec) -> BlockIdentity {
    BlockIdentity {
        fsid: spec.fsid,
        seeds: Default::default(),
        chunk_tree_uuid: spec.chunk_tree_uuid,
        checksum: spec.settings.checksum,
        nodesize: spec.settings.nodesize,
        sectorsize: spec.settings.sectorsize,
        incompat: spec.settings.incompat,
        super_generation: Generation(GENERATION.0 - 1),
        ignores_checksums: false,
        writable: true,
    }
}

/// The nodes of a tree, leaves first.
fn nodes(tree: &PlacedTree, spec: &FilesystemSpec, placed: &[PlacedTree], identity: &BlockIdentity) -> Vec<Node> {
    let items = spec.items(tree.id, placed);
    let mut out = Vec::new();
    for (leaf, &at) in leaves(&items, identity.nodesize).into_iter().zip(&tree.levels[0]) {
        let mut node = Node::new_empty(identity, at, Level(0), GENERATION, tree.id);
        leaf.iter().enumerate().for_each(|(slot, (key, data))| node.insert_item(slot, *key, data));
        out.push(node);
    }
    let mut below = 0;
    for (level, row) in (1..).zip(&tree.levels[1..]) {
        let children = below..out.len();
        below = out.len();
        let parents =
            parents(&out[children], row, |at| Node::new_empty(identity, at, Level(level), GENERATION, tree.id));
        out.extend(parents);
    }
    out
}

/// The nodes above `children`, as full as possible, at the addresses `row`.
fn parents(children: &[Node], row: &[Logical], new: impl Fn(Logical) -> Node) -> Vec<Node> {
    let mut out: Vec<Node> = row.iter().map(|&at| new(at)).collect();
    let most = out[0].max_pointers();
    for (index, child) in children.iter().enumerate() {
        let key = child.first_key().expect("only a tree of one leaf has an empty leaf");
        out[index / most].insert_pointer(index % most, key, child.at(), GENERATION);
    }
    out
}

fn device_error(device: &dyn BlockDevice, doing: &str, error: std::io::Error) -> Error {
    Error::Device(format!("{doing} {}: {error}", device.name()).into())
}

fn read(device: &dyn BlockDevice, at: u64, out: &mut [u8]) -> Result<()> {
    device
        .read_at(at, out)
        .map_err(|error| device_error(device, &format!("cannot read {} bytes at {at} of", out.len()), error))
}

fn write(device: &dyn BlockDevice, at: u64, data: &[u8]) -> Result<()> {
    let doing = || format!("cannot write {} bytes at {at} of", data.len());
    device.write_at(at, data).map_err(|error| device_error(device, &doing(), error))
}

fn flush(device: &dyn BlockDevice) -> Result<()> {
    device.flush().map_err(|error| device_error(device, "cannot flush", error))
}

/// Nothing recognises the device any more. The filesystem does without it already, so failing changes nothing.
pub fn wipe_superblocks(device: &dyn BlockDevice) {
    // Where the magic is in a superblock.
    const MAGIC: u64 = 64;
    for at in OFFSETS.into_iter().filter(|at| at.0 + MAGIC + 8 <= device.len()) {
        let _ = device.write_at(at.0 + MAGIC, &[0; 8]);
    }
    let _ = device.flush();
}
