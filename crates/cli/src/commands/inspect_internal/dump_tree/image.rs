//! A filesystem opened only for looking: as much as can be made of it, without the checks that using it needs.
//!
//! Missing devices, chunks that break rules, features that we do not support: all of that is told or ignored. Only a
//! superblock is needed; of a block, what it needs to be printed is checked: place, identity, checksum and layout.

use super::nodes::{Child, children, items};
use super::scan::missing_members;
use crate::error::CliError;
use crate::report;
use butterfs_device::{BlockDevice, FileDevice, FileOptions};
use butterfs_ondisk::chunk::{Chunk, ChunkLimits, parse_sys_chunk_array};
use butterfs_ondisk::header::Header;
use butterfs_ondisk::superblock::{OFFSETS, SUPERBLOCK_LEN, Superblock, SuperblockError};
use butterfs_ondisk::tree_checker::{CheckContext, check_layout};
use butterfs_ondisk::{ChecksumKind, KeyType, Logical, Physical};
use butterfs_volume::{ChunkMap, Volume};
use std::collections::HashSet;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zerocopy::FromBytes;

/// A filesystem, readable block by block.
pub struct Image {
    volume: Volume,
    sb: Superblock,
    layout: CheckContext,
}

/// A device and the superblock on it.
pub type Member = (Superblock, Arc<dyn BlockDevice>);

impl Image {
    /// Opens the filesystem on these devices. Others of it are looked for among the system's devices if `scan` is set
    /// and one of these is such a device; they may be missing.
    pub fn open(paths: &[PathBuf], scan: bool) -> Result<Image, CliError> {
        let warn = &mut |sentence: &str| report::warn(sentence);
        let opened = paths.iter().map(|path| open_member(path, warn)).collect::<Result<Vec<Member>, CliError>>();
        let mut members = opened?;
        let sb = newest(&members)?;
        if scan && lacks_devices(&members, &sb) && paths.iter().any(|path| is_block_device(path)) {
            members.extend(missing_members(&sb, &members));
        }
        let sb = newest(&members)?;
        if lacks_devices(&members, &sb) {
            let (given, all) = (members.len(), sb.num_devices);
            warn(&format!("{given} of the filesystem's {all} devices are here; blocks on the others cannot be read"));
        }
        let volume = Volume::of_devices(members.into_iter().map(|(sb, device)| (sb.dev_item, device)).collect());
        let image = Image { volume, sb, layout: CheckContext::of(&sb, false) };
        image.load_chunks()?;
        Ok(image)
    }

    /// The newest superblock.
    pub fn superblock(&self) -> &Superblock {
        &self.sb
    }

    /// The filesystem's checksum.
    pub fn checksum(&self) -> ChecksumKind {
        self.sb.checksum_kind().unwrap_or_default()
    }

    /// The block at `at`, from the first copy that is good; `expect` is what its parent says about it. The error is a
    /// sentence with its address.
    pub fn block(&self, at: Logical, expect: Option<Child>) -> Result<Vec<u8>, String> {
        let sector = u64::from(self.sb.sectorsize.get());
        if at.get() == 0 || !at.get().is_multiple_of(sector) {
            return Err(format!("tree block bytenr {at} is not aligned to sectorsize {sector}"));
        }
        let mut block = vec![0; self.sb.nodesize.get() as usize];
        let read = self.volume.read(at, &mut block, &mut |bytes| self.check_block(bytes, at, expect));
        read.map(|()| block).map_err(|error| error.to_string())
    }

    fn check_block(&self, bytes: &[u8], at: Logical, expect: Option<Child>) -> Result<(), String> {
        let Ok((header, _)) = Header::ref_from_prefix(bytes) else {
            return Err("a block is shorter than its header".to_owned());
        };
        if header.bytenr.get() != at.get() {
            return Err(format!("bad tree block start, have {} expect {at}", header.bytenr));
        }
        if header.fsid != self.sb.block_fsid() {
            return Err(format!("bad fsid, have {}", uuid::Uuid::from_bytes(header.fsid)));
        }
        if !self.checksum().matches(&bytes[header.csum.len()..], &header.csum) {
            return Err("checksum mismatch".to_owned());
        }
        check_layout(bytes, &self.layout).map_err(|violation| violation.to_string())?;
        expect.map_or(Ok(()), |child| child.check(header))
    }

    /// Reads the chunk tree with the system chunks, and then knows all chunks.
    fn load_chunks(&self) -> Result<(), CliError> {
        let bad_array = |rule| CliError::failed(format!("corrupt superblock: sys_chunk_array: {rule}"));
        let mut map = ChunkMap::new();
        insert_chunks(&mut map, parse_sys_chunk_array(&self.sb).map_err(bad_array)?);
        self.volume.set_chunk_map(map.clone());
        let root = Logical(self.sb.chunk_root.get());
        let mut chunks = Vec::new();
        if let Err(sentence) = self.collect_chunks(root, None, &mut HashSet::new(), &mut chunks) {
            report::warn(&format!("cannot read the chunk tree: {sentence}"));
        }
        insert_chunks(&mut map, chunks);
        self.volume.set_chunk_map(map);
        Ok(())
    }

    fn collect_chunks(
        &self,
        at: Logical,
        expect: Option<Child>,
        seen: &mut HashSet<Logical>,
        chunks: &mut Vec<Chunk>,
    ) -> Result<(), String> {
        if !seen.insert(at) {
            return Err(format!("tree block {at} is in its tree twice"));
        }
        let block = self.block(at, expect)?;
        let limits = ChunkLimits::from(&self.sb);
        for (key, data) in items(&block, KeyType::CHUNK_ITEM) {
            match Chunk::parse(Logical(key.offset), data, &limits) {
                Ok(chunk) => chunks.push(chunk),
                Err(rule) => report::warn(&format!("chunk {}: {rule}", key.offset)),
            }
        }
        children(&block).try_for_each(|child| self.collect_chunks(child.at, Some(child), seen, chunks))
    }
}

/// Adds chunks that are not there yet; of chunks that overlap the first one stays.
fn insert_chunks(map: &mut ChunkMap, chunks: Vec<Chunk>) {
    for chunk in chunks {
        if map.get(chunk.start).is_some_and(|known| *known == chunk) {
            continue;
        }
        if let Err(error) = map.insert(chunk) {
            report::warn(&error.to_string());
        }
    }
}

/// The superblock that rules: that of the highest generation.
fn newest(members: &[Member]) -> Result<Superblock, CliError> {
    let newest = members.iter().max_by_key(|(sb, _)| (sb.generation.get(), sb.log_root.get() != 0));
    newest.map(|(sb, _)| *sb).ok_or_else(|| CliError::usage("no device was given"))
}

fn lacks_devices(members: &[Member], sb: &Superblock) -> bool {
    (members.len() as u64) < sb.num_devices.get()
}

fn is_block_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device())
}

/// Opens one device; its primary superblock counts, or the newest copy, which `warn` is told.
pub fn open_member(path: &Path, warn: &mut dyn FnMut(&str)) -> Result<Member, CliError> {
    let device = FileDevice::open(path, &FileOptions::inspect())?;
    let error = match read_superblock(&device, OFFSETS[0]) {
        Ok(sb) => return Ok((sb, Arc::new(device))),
        Err(error) => error,
    };
    let copies = OFFSETS[1..].iter().filter_map(|&at| Some((at, read_superblock(&device, at).ok()?)));
    match copies.max_by_key(|(_, sb)| sb.generation.get()) {
        Some((at, sb)) => {
            warn(&format!("{}: {error}; using the copy at {at}", path.display()));
            Ok((sb, Arc::new(device)))
        }
        None => Err(CliError::failed(format!("{}: {error}", path.display()))),
    }
}

fn read_superblock(device: &FileDevice, at: Physical) -> Result<Superblock, SuperblockError> {
    let mut bytes = [0; SUPERBLOCK_LEN];
    if at.get() + SUPERBLOCK_LEN as u64 > device.len() || device.read_at(at.get(), &mut bytes).is_err() {
        return Err(SuperblockError::NotBtrfs);
    }
    Superblock::parse(&bytes, at)
}
