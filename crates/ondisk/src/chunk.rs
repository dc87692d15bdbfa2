//! Chunks: the items that map the logical space onto devices, and the superblock's array of system chunks.
//!
//! ```text
//! CHUNK_ITEM (256, 228, logical)   [ChunkHead 48][Stripe 32]…
//! sys_chunk_array                  [DiskKey 17][ChunkHead 48][Stripe 32]…   repeated, system chunks only
//! ```
//!
//! # Invariants
//! 1. A [`Chunk`] that [`Chunk::parse`] returned obeys every rule for chunk items; arithmetic on its addresses
//!    does not overflow and it has at least one data stripe.
//! 2. Encoding what was parsed gives the same bytes.
//!
//! Mapping addresses is not done here.

use crate::features::incompat;
use crate::items::{ChunkHead, Stripe, block_group_flags as bits};
use crate::key::{DiskKey, Key, KeyType, objectid};
use crate::profile::Profile;
use crate::superblock::{SYS_CHUNK_ARRAY_LEN, Superblock};
use crate::units::{DeviceId, Logical, Physical};
use zerocopy::{FromBytes, IntoBytes};

/// The only stripe length.
pub const STRIPE_LEN: u64 = 65536;
/// Longest legal chunk, exclusive.
const MAX_CHUNK_LENGTH: u64 = 65536 * (u32::MAX as u64);
/// Bytes of a key in the system chunk array.
const KEY_LEN: usize = size_of::<DiskKey>();

/// A chunk: `length` bytes of the logical space from `start`, laid over `stripes`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// First logical address.
    pub start: Logical,
    /// Logical bytes.
    pub length: u64,
    /// The tree that owns the extents in it; always 2.
    pub owner: u64,
    /// Bytes of one stripe element; always [`STRIPE_LEN`].
    pub stripe_len: u64,
    /// Type and profile, see [`block_group_flags`](crate::items::block_group_flags).
    pub kind: u64,
    /// Unused by readers; 65536.
    pub io_align: u32,
    /// Unused by readers; 65536.
    pub io_width: u32,
    /// The filesystem's sector size.
    pub sector_size: u32,
    /// 2 for RAID10, else 1 (0 from old mkfs).
    pub sub_stripes: u16,
    /// The places of the stripes, in stripe order.
    pub stripes: Vec<ChunkStripe>,
}

/// One stripe of a [`Chunk`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkStripe {
    /// The device.
    pub device: DeviceId,
    /// First byte on it.
    pub physical: Physical,
    /// The device's UUID.
    pub dev_uuid: [u8; 16],
}

impl Chunk {
    /// A new chunk with the values that the kernel writes in the fields nobody reads.
    pub fn new(start: Logical, length: u64, kind: u64, sector_size: u32, stripes: Vec<ChunkStripe>) -> Chunk {
        let sub_stripes = Profile::of(kind).map_or(1, |profile| profile.sub_stripes);
        let (io_align, io_width) = (STRIPE_LEN as u32, STRIPE_LEN as u32);
        Chunk {
            start,
            length,
            owner: 2,
            stripe_len: STRIPE_LEN,
            kind,
            io_align,
            io_width,
            sector_size,
            sub_stripes,
            stripes,
        }
    }

    /// Whether both say the same about where addresses lie. The other fields have no meaning, and those of the
    /// superblock and of the chunk tree may differ.
    pub fn maps_like(&self, other: &Chunk) -> bool {
        let said = |chunk: &Chunk| (chunk.start, chunk.length, chunk.kind);
        said(self) == said(other) && self.stripes == other.stripes
    }

    /// Parses and checks the payload of a chunk item. The error is the broken rule.
    pub fn parse(start: Logical, payload: &[u8], limits: &ChunkLimits) -> Result<Chunk, String> {
        let (head, stripes) = check(start, payload, limits)?;
        Ok(Chunk {
            start,
            length: head.length.get(),
            owner: head.owner.get(),
            stripe_len: head.stripe_len.get(),
            kind: head.kind.get(),
            io_align: head.io_align.get(),
            io_width: head.io_width.get(),
            sector_size: head.sector_size.get(),
            sub_stripes: head.sub_stripes.get(),
            stripes: stripes.iter().map(ChunkStripe::from).collect(),
        })
    }

    /// The payload of the chunk item.
    pub fn encode(&self) -> Vec<u8> {
        let head = ChunkHead {
            length: self.length.into(),
            owner: self.owner.into(),
            stripe_len: self.stripe_len.into(),
            kind: self.kind.into(),
            io_align: self.io_align.into(),
            io_width: self.io_width.into(),
            sector_size: self.sector_size.into(),
            num_stripes: (self.stripes.len() as u16).into(),
            sub_stripes: self.sub_stripes.into(),
        };
        let mut out = head.as_bytes().to_vec();
        for stripe in &self.stripes {
            out.extend_from_slice(Stripe::from(stripe).as_bytes());
        }
        out
    }

    /// The key of the chunk item.
    pub fn key(&self) -> Key {
        chunk_key(self.start)
    }

    /// The logical address behind the last byte.
    pub fn end(&self) -> Logical {
        self.start.plus(self.length)
    }

    /// The chunk's row of the profile table.
    pub fn profile(&self) -> &'static Profile {
        Profile::of(self.kind).expect("a parsed chunk has at most one profile bit")
    }

    /// Data columns of its rows, where it has parity, else 0.
    pub fn parity_columns(&self) -> u64 {
        let profile = self.profile();
        if profile.parity > 0 { profile.data_stripes(self.stripes.len()) as u64 } else { 0 }
    }

    /// Bytes of each of its device extents.
    pub fn stripe_length(&self) -> u64 {
        self.profile().stripe_length(self.length, self.stripes.len())
    }
}

impl From<&Stripe> for ChunkStripe {
    fn from(stripe: &Stripe) -> ChunkStripe {
        ChunkStripe {
            device: DeviceId(stripe.devid.get()),
            physical: Physical(stripe.offset.get()),
            dev_uuid: stripe.dev_uuid,
        }
    }
}

impl From<&ChunkStripe> for Stripe {
    fn from(stripe: &ChunkStripe) -> Stripe {
        Stripe { devid: stripe.device.0.into(), offset: stripe.physical.0.into(), dev_uuid: stripe.dev_uuid }
    }
}

/// The parameters of the rules for chunks.
#[derive(Clone, Copy, Debug)]
pub struct ChunkLimits {
    /// The filesystem's sector size.
    pub sectorsize: u32,
    /// `incompat_flags` of the superblock.
    pub incompat: u64,
}

impl From<&Superblock> for ChunkLimits {
    fn from(sb: &Superblock) -> ChunkLimits {
        ChunkLimits { sectorsize: sb.sectorsize.get(), incompat: sb.incompat_flags.get() }
    }
}

/// The key of the chunk item for the chunk that starts at `start`.
pub fn chunk_key(start: Logical) -> Key {
    Key::new(objectid::FIRST_CHUNK_TREE, KeyType::CHUNK_ITEM, start.0)
}

/// Checks a chunk item's payload against every rule, without allocating.
pub(crate) fn check<'a>(
    start: Logical,
    payload: &'a [u8],
    limits: &ChunkLimits,
) -> Result<(&'a ChunkHead, &'a [Stripe]), String> {
    let Ok((head, rest)) = ChunkHead::ref_from_prefix(payload) else {
        return Err(format!("invalid chunk item size, have {} expect at least {}", payload.len(), ChunkHead::LEN));
    };
    let count = usize::from(head.num_stripes.get());
    ensure!(count != 0, "invalid chunk num_stripes, have 0");
    let expected = ChunkHead::LEN + count * Stripe::LEN;
    ensure!(payload.len() == expected, "invalid chunk item size, have {} expect {expected}", payload.len());
    let Ok(stripes) = <[Stripe]>::ref_from_bytes(rest) else {
        return Err(format!("invalid chunk item size, have {} expect {expected}", payload.len()));
    };
    check_range(start, head, limits.sectorsize)?;
    check_kind(head.kind.get(), limits.incompat)?;
    check_stripes(head, stripes)?;
    Ok((head, stripes))
}

fn check_range(start: Logical, head: &ChunkHead, sectorsize: u32) -> Result<(), String> {
    let (sector, length) = (u64::from(sectorsize), head.length.get());
    ensure!(start.0.is_multiple_of(sector), "invalid chunk logical, have {start} should be aligned to {sector}");
    ensure!(length != 0 && length.is_multiple_of(sector), "invalid chunk length, have {length}");
    ensure!(
        start.0.checked_add(length).is_some(),
        "invalid chunk length, logical start {start} length {length} overflow"
    );
    ensure!(length < MAX_CHUNK_LENGTH, "chunk length too large, have {length} limit {MAX_CHUNK_LENGTH}");
    ensure!(head.stripe_len.get() == STRIPE_LEN, "invalid chunk stripe length, have {}", head.stripe_len);
    let size = head.sector_size.get();
    ensure!(size == sectorsize, "invalid chunk sectorsize, have {size} expect {sectorsize}");
    Ok(())
}

/// The rules for the type and profile bits of a chunk.
fn check_kind(kind: u64, incompat_flags: u64) -> Result<(), String> {
    let unknown = kind & !(bits::TYPE_MASK | bits::PROFILE_MASK);
    ensure!(unknown == 0, "unrecognized chunk type bits {unknown:#x}");
    ensure!(Profile::of(kind).is_some(), "invalid chunk profile, {kind:#x} has more than one profile bit");
    ensure!(kind & bits::TYPE_MASK != 0, "missing chunk type bits, have {kind:#x}");
    let mixed = bits::DATA | bits::METADATA;
    ensure!(kind & bits::SYSTEM == 0 || kind & mixed == 0, "conflicting chunk type, {kind:#x} is SYSTEM and another");
    let allowed = incompat_flags & incompat::MIXED_GROUPS != 0;
    ensure!(allowed || kind & mixed != mixed, "mixed chunk type {kind:#x} without the MIXED_GROUPS feature");
    Ok(())
}

fn check_stripes(head: &ChunkHead, stripes: &[Stripe]) -> Result<(), String> {
    let profile = Profile::of(head.kind.get()).ok_or("invalid chunk profile")?;
    let (count, name, sub_stripes) = (stripes.len(), profile.name, head.sub_stripes.get());
    let legal = match profile.bit {
        bits::RAID0 => count >= 1,
        bits::RAID10 => count >= 2 && count.is_multiple_of(2) && sub_stripes == 2,
        bits::RAID5 => count >= 2,
        bits::RAID6 => count >= 3,
        _ => count == profile.min_devices * profile.stripes_per_device,
    };
    ensure!(legal, "invalid num_stripes:sub_stripes {count}:{sub_stripes} for profile {name}");
    let length = profile.stripe_length(head.length.get(), count);
    for stripe in stripes {
        let fits = stripe.offset.get().checked_add(length).is_some();
        ensure!(fits, "chunk stripe at {} of device {} overflows", stripe.offset, stripe.devid);
    }
    Ok(())
}

/// The chunks in a superblock's system chunk array, in its order. The error names the rule that the array breaks.
pub fn parse_sys_chunk_array(sb: &Superblock) -> Result<Vec<Chunk>, String> {
    let size = sb.sys_chunk_array_size.get() as usize;
    let smallest = KEY_LEN + ChunkHead::LEN + Stripe::LEN;
    ensure!(size <= SYS_CHUNK_ARRAY_LEN, "system chunk array too big {size} > {SYS_CHUNK_ARRAY_LEN}");
    ensure!(size >= smallest, "system chunk array too small {size} < {smallest}");
    let limits = ChunkLimits::from(sb);
    let mut chunks = Vec::new();
    for entry in SysChunkEntries::new(&sb.sys_chunk_array[..size]) {
        let (key, payload) = entry?;
        let at = Logical(key.offset);
        ensure!(key.kind == KeyType::CHUNK_ITEM, "unexpected key {key} in the system chunk array");
        let chunk = Chunk::parse(at, payload, &limits).map_err(|rule| format!("system chunk {at}: {rule}"))?;
        ensure!(chunk.kind & bits::SYSTEM != 0, "system chunk {at}: invalid chunk type {:#x}, not SYSTEM", chunk.kind);
        chunks.push(chunk);
    }
    Ok(chunks)
}

/// The entries of a system chunk array, undecoded: key and chunk item payload. Ends after the first error.
pub struct SysChunkEntries<'a> {
    rest: &'a [u8],
}

impl<'a> SysChunkEntries<'a> {
    /// The entries in `array`, the used part of the array.
    pub fn new(array: &'a [u8]) -> SysChunkEntries<'a> {
        SysChunkEntries { rest: array }
    }

    fn split(&mut self) -> Option<(Key, &'a [u8])> {
        let (key, after) = DiskKey::read_from_prefix(self.rest).ok()?;
        let (head, _) = ChunkHead::ref_from_prefix(after).ok()?;
        let len = ChunkHead::LEN + usize::from(head.num_stripes.get()) * Stripe::LEN;
        let (payload, rest) = after.split_at_checked(len)?;
        self.rest = rest;
        Some((key.into(), payload))
    }
}

impl<'a> Iterator for SysChunkEntries<'a> {
    type Item = Result<(Key, &'a [u8]), String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let left = self.rest.len();
        Some(self.split().ok_or_else(|| {
            self.rest = &[];
            format!("short system chunk array, {left} bytes left over")
        }))
    }
}

/// Appends a system chunk to the array; `false`, and nothing changed, when there is no room (`EFBIG`).
#[must_use]
pub fn append_sys_chunk(sb: &mut Superblock, chunk: &Chunk) -> bool {
    let used = sb.sys_chunk_array_size.get() as usize;
    let payload = chunk.encode();
    let end = used + KEY_LEN + payload.len();
    if end > SYS_CHUNK_ARRAY_LEN {
        return false;
    }
    sb.sys_chunk_array[used..used + KEY_LEN].copy_from_slice(DiskKey::from(chunk.key()).as_bytes());
    sb.sys_chunk_array[used + KEY_LEN..end].copy_from_slice(&payload);
    sb.sys_chunk_array_size = (end as u32).into();
    true
}

/// Removes the system chunk that starts at `start` and closes the gap; `false` when the array has no such chunk.
pub fn remove_sys_chunk(sb: &mut Superblock, start: Logical) -> bool {
    let used = (sb.sys_chunk_array_size.get() as usize).min(SYS_CHUNK_ARRAY_LEN);
    let mut at = 0;
    for (key, payload) in SysChunkEntries::new(&sb.sys_chunk_array[..used]).map_while(Result::ok) {
        let len = KEY_LEN + payload.len();
        if key == chunk_key(start) {
            sb.sys_chunk_array.copy_within(at + len..used, at);
            sb.sys_chunk_array[used - len..used].fill(0);
            sb.sys_chunk_array_size = ((used - len) as u32).into();
            return true;
        }
        at += len;
    }
    false
}

#[cfg(test)]
mod tests;
