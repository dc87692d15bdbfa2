//! New chunks: how large, and where on the devices.
//!
//! A chunk can be used as soon as it is planned: the chunk map and the block groups know it at once, and its items
//! wait in the books of the running transaction to be booked, as reference changes do. So a tree block in a new
//! chunk and the chunk's items become durable together.
//!
//! Sizes follow the kernel: a tenth of the devices at most, 1 GiB for data, 256 MiB for metadata (1 GiB above 50 GiB
//! of devices), 32 MiB for system chunks.

use super::Core;
use super::unallocated::Trimmed;
use crate::error::{Errno, Error, Result};
use crate::space::{Class, GroupInfo};
use butterfs_ondisk::chunk::{Chunk, ChunkStripe, STRIPE_LEN};
use butterfs_ondisk::features::incompat;
use butterfs_ondisk::items::{ChunkHead, Stripe, block_group_flags as bits};
use butterfs_ondisk::key::DiskKey;
use butterfs_ondisk::profile::Profile;
use butterfs_ondisk::superblock::{OFFSETS, SYS_CHUNK_ARRAY_LEN};
use butterfs_ondisk::{DeviceId, Logical, Physical};
use butterfs_volume::{Volume, is_kept};
use std::collections::BTreeMap;

/// Whether a chunk that moves keeps stripes where they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// Those that may stay there.
    #[default]
    Possible,
    /// None: each gets the place that a new chunk would get.
    Nothing,
}

/// No chunk starts below this address of a device.
pub(super) const FIRST_PHYSICAL: u64 = 1 << 20;

/// Most devices of one chunk; the items of chunks stay small.
const MAX_DEVICES: usize = 32;

/// One device's extents.
#[derive(Debug, Default, Clone)]
pub struct DeviceExtents {
    /// Bytes of the device.
    pub total_bytes: u64,
    /// The device's UUID.
    pub uuid: [u8; 16],
    /// Extents by physical address: their lengths.
    pub extents: BTreeMap<u64, u64>,
    /// It is missing, or not used any more: nothing new is placed there.
    pub is_lost: bool,
    /// It is about to leave: nothing new is placed there.
    pub is_leaving: bool,
    /// It is about to end here: nothing new is placed behind.
    pub limit: Option<u64>,
    /// The part of the rest that is, or was, discarded.
    pub discards: Trimmed,
}

impl DeviceExtents {
    /// Bytes in extents.
    pub fn used(&self) -> u64 {
        self.extents.values().sum()
    }

    /// The end of new extents.
    fn end(&self) -> u64 {
        self.limit.unwrap_or(self.total_bytes).min(self.total_bytes)
    }

    /// The first place for `len` bytes that no superblock copy lies in.
    fn place_beside_superblocks(&self, len: u64) -> Option<u64> {
        let copies = OFFSETS.into_iter().map(|at| (at.0, STRIPE_LEN));
        let in_use = self.taken().into_iter().map(|taken| (taken.start, taken.end - taken.start));
        let mut taken: Vec<(u64, u64)> = in_use.chain(copies).collect();
        taken.push((self.end(), u64::MAX - self.end()));
        taken.sort_unstable();
        let mut from = FIRST_PHYSICAL;
        for (start, taken) in taken {
            let aligned = from.checked_next_multiple_of(STRIPE_LEN)?;
            if start.saturating_sub(aligned) >= len {
                return Some(aligned);
            }
            from = from.max(start.saturating_add(taken));
        }
        None
    }

    /// The first hole of at least `want` bytes, else the largest one: start and length.
    fn hole(&self, want: u64) -> Option<(u64, u64)> {
        let mut from = FIRST_PHYSICAL;
        let mut largest = None;
        let ends = self.taken().into_iter().map(|taken| (taken.start, taken.end));
        for (start, end) in ends.chain([(self.end(), self.end())]) {
            let aligned = from.checked_next_multiple_of(STRIPE_LEN).unwrap_or(u64::MAX);
            let len = start.min(self.end()).saturating_sub(aligned) / STRIPE_LEN * STRIPE_LEN;
            if len >= want {
                return Some((aligned, len));
            }
            if len > largest.map_or(0, |(_, len)| len) {
                largest = Some((aligned, len));
            }
            from = from.max(end);
        }
        largest
    }

    fn unallocated(&self) -> u64 {
        let in_front = self.extents.range(..self.end()).map(|(_, len)| len).sum();
        self.end().saturating_sub(FIRST_PHYSICAL).saturating_sub(in_front)
    }
}

/// All devices' extents, pending ones included.
#[derive(Debug, Default, Clone)]
pub struct DeviceSpace {
    /// By device number.
    pub devices: BTreeMap<DeviceId, DeviceExtents>,
}

impl DeviceSpace {
    /// Which devices are missing, or not used any more.
    pub(crate) fn note_lost(&mut self, volume: &Volume) {
        for (&id, device) in &mut self.devices {
            device.is_lost = !volume.is_usable(id);
        }
    }

    /// Books every stripe of `chunk`.
    pub fn add_chunk(&mut self, chunk: &Chunk) {
        let len = chunk.stripe_length();
        for stripe in &chunk.stripes {
            let device = self.devices.entry(stripe.device).or_default();
            device.extents.insert(stripe.physical.0, len);
            device.discards.trimmed.remove(stripe.physical.0, len);
        }
    }

    /// Gives the place of every stripe of `chunk` back.
    pub(crate) fn remove_chunk(&mut self, chunk: &Chunk) {
        for stripe in &chunk.stripes {
            if let Some(device) = self.devices.get_mut(&stripe.device) {
                device.extents.remove(&stripe.physical.0);
            }
        }
    }

    fn usable(&self) -> impl Iterator<Item = (DeviceId, &DeviceExtents)> {
        self.devices
            .iter()
            .filter(|(_, device)| !device.is_lost && !device.is_leaving)
            .map(|(&id, device)| (id, device))
    }

    /// Gives back the places of `from` that `to` does not have.
    pub(crate) fn remove_stripes(&mut self, from: &Chunk, to: &Chunk) {
        for (_, stripe) in from.stripes.iter().enumerate().filter(|(index, _)| !is_kept(to, from, *index)) {
            if let Some(device) = self.devices.get_mut(&stripe.device) {
                device.extents.remove(&stripe.physical.0);
            }
        }
    }

    /// Whether a stripe may stay where it is.
    pub(crate) fn may_stay(&self, stripe: &ChunkStripe, len: u64) -> bool {
        self.devices
            .get(&stripe.device)
            .is_some_and(|device| !device.is_lost && !device.is_leaving && stripe.physical.0 + len <= device.end())
    }

    /// The chunk with `profile`, as many of its stripes as possible where they are, and none where it may not stay or
    /// on the devices `avoid`. `None` where there is no room.
    pub(crate) fn plan_move(
        &self,
        chunk: &Chunk,
        profile: &'static Profile,
        avoid: &[DeviceId],
        keep: Keep,
    ) -> Option<Chunk> {
        let kind = chunk.kind & !bits::PROFILE_MASK | profile.bit;
        let stays = |stripe: &ChunkStripe| {
            keep == Keep::Possible && self.may_stay(stripe, chunk.stripe_length()) && !avoid.contains(&stripe.device)
        };
        let stripes = if is_plain(profile) && is_plain(chunk.profile()) {
            let kept: Vec<ChunkStripe> = chunk.stripes.iter().copied().filter(stays).collect();
            self.plan_copies(&kept, profile, chunk.length, avoid)?
        } else if profile == chunk.profile() {
            let same = self.plan_same_shape(chunk, &stays, avoid);
            // On fewer devices, each has more of it.
            same.or_else(|| self.plan_other_shape(chunk, profile, avoid))?
        } else {
            self.plan_other_shape(chunk, profile, avoid)?
        };
        Some(Chunk::new(chunk.start, chunk.length, kind, chunk.sector_size, stripes))
    }

    /// `len` bytes once on each of as many devices as the profile has copies; twice on one device for DUP.
    fn plan_copies(
        &self,
        kept: &[ChunkStripe],
        profile: &'static Profile,
        len: u64,
        avoid: &[DeviceId],
    ) -> Option<Vec<ChunkStripe>> {
        if profile.stripes_per_device > 1 {
            return self.plan_duplicate(kept, profile.copies, len, avoid);
        }
        let mut stripes: Vec<ChunkStripe> = Vec::new();
        for stripe in kept {
            if stripes.len() < profile.copies && stripes.iter().all(|other| other.device != stripe.device) {
                stripes.push(*stripe);
            }
        }
        self.on_other_devices(stripes, profile.copies, len, avoid)
    }

    /// As many places on one device, where it has some already if it can.
    fn plan_duplicate(
        &self,
        kept: &[ChunkStripe],
        copies: usize,
        len: u64,
        avoid: &[DeviceId],
    ) -> Option<Vec<ChunkStripe>> {
        let mut devices: Vec<DeviceId> = self.usable().map(|(id, _)| id).filter(|id| !avoid.contains(id)).collect();
        devices.sort_by_key(|id| std::cmp::Reverse(self.devices[id].unallocated()));
        devices.sort_by_key(|id| kept.iter().all(|stripe| stripe.device != *id));
        devices.into_iter().find_map(|id| {
            let others: Vec<DeviceId> = self.devices.keys().copied().filter(|other| *other != id).collect();
            let (mut space, of) = (self.clone(), kept.iter().copied().filter(|stripe| stripe.device == id));
            let mut stripes: Vec<ChunkStripe> = of.take(copies).collect();
            while stripes.len() < copies {
                stripes.push(space.take_place(len, &others)?);
            }
            Some(stripes)
        })
    }

    /// Places for stripes, each on a device of its own.
    fn on_other_devices(
        &self,
        mut stripes: Vec<ChunkStripe>,
        count: usize,
        len: u64,
        avoid: &[DeviceId],
    ) -> Option<Vec<ChunkStripe>> {
        let mut space = self.clone();
        while stripes.len() < count {
            let used = stripes.iter().map(|stripe| stripe.device);
            let not: Vec<DeviceId> = used.chain(avoid.iter().copied()).collect();
            stripes.push(space.take_place(len, &not)?);
        }
        Some(stripes)
    }

    /// Every stripe that may not stay, somewhere else.
    fn plan_same_shape(
        &self,
        chunk: &Chunk,
        stays: &dyn Fn(&ChunkStripe) -> bool,
        avoid: &[DeviceId],
    ) -> Option<Vec<ChunkStripe>> {
        let mut space = self.clone();
        let mut stripes = chunk.stripes.clone();
        for index in 0..stripes.len() {
            if !stays(&stripes[index]) {
                let others = stripes.iter().enumerate().filter(|(other, stripe)| *other != index && stays(stripe));
                let others = others.map(|(_, stripe)| stripe.device);
                let not: Vec<DeviceId> =
                    others.chain(avoid.iter().copied()).chain(stripes[..index].iter().map(|s| s.device)).collect();
                stripes[index] = space.take_place(chunk.stripe_length(), &not)?;
            }
        }
        Some(stripes)
    }

    /// All stripes new, on as many devices as the length can be divided by.
    fn plan_other_shape(
        &self,
        chunk: &Chunk,
        profile: &'static Profile,
        avoid: &[DeviceId],
    ) -> Option<Vec<ChunkStripe>> {
        let most = self.usable().filter(|(id, _)| !avoid.contains(id)).count();
        let fewest = profile.min_devices.max(1);
        (fewest..=device_count(profile, most))
            .rev()
            .filter(|count| count.is_multiple_of(profile.device_multiple))
            .find_map(|count| {
                let stripes = count * profile.stripes_per_device;
                let data = profile.data_stripes(stripes) as u64;
                if is_plain(profile) {
                    return self.plan_copies(&[], profile, chunk.length, avoid);
                }
                if !chunk.length.is_multiple_of(data * STRIPE_LEN) {
                    return None;
                }
                self.on_other_devices(Vec::new(), stripes, chunk.length / data, avoid)
            })
    }

    /// Takes a place for `len` bytes on the device that has most unallocated space, without those in `not`.
    fn take_place(&mut self, len: u64, not: &[DeviceId]) -> Option<ChunkStripe> {
        let mut candidates: Vec<(u64, DeviceId)> =
            self.usable().filter(|(id, _)| !not.contains(id)).map(|(id, device)| (device.unallocated(), id)).collect();
        candidates.sort_unstable_by_key(|&(free, id)| (std::cmp::Reverse(free), id));
        let place = |id: &DeviceId| Some((*id, self.devices[id].place_beside_superblocks(len)?));
        let (device, at) = candidates.iter().find_map(|(_, id)| place(id))?;
        let extents = self.devices.get_mut(&device).expect("just found");
        extents.extents.insert(at, len);
        extents.discards.trimmed.remove(at, len);
        Some(ChunkStripe { device, physical: Physical(at), dev_uuid: extents.uuid })
    }

    /// Bytes of all devices that can be used.
    pub fn total_bytes(&self) -> u64 {
        self.usable().map(|(_, device)| device.total_bytes).sum()
    }

    /// Bytes of the usable devices that are in no chunk.
    pub fn unallocated_bytes(&self) -> u64 {
        self.usable().map(|(_, device)| device.unallocated()).sum()
    }

    /// Bytes that new chunks of `profile` could hold, about: what is in no extent, laid out over the devices.
    pub fn unallocated(&self, profile: &Profile) -> u64 {
        let per_device = profile.stripes_per_device as u64;
        let mut free: Vec<u64> = self.usable().map(|(_, device)| device.unallocated() / per_device).collect();
        let step = (free.iter().max().copied().unwrap_or(0) / 64).max(1 << 30);
        let mut sum = 0;
        loop {
            free.retain(|&bytes| bytes >= STRIPE_LEN || profile.max_devices == Some(1) && bytes > 0);
            free.sort_unstable_by_key(|&bytes| std::cmp::Reverse(bytes));
            let count = device_count(profile, free.len());
            if count < profile.min_devices.max(1) {
                return sum;
            }
            let stripe = free[count - 1].min(step);
            free[..count].iter_mut().for_each(|bytes| *bytes -= stripe);
            sum += stripe * profile.data_stripes(count * profile.stripes_per_device) as u64;
        }
    }

    /// The profile of the next chunk where `wanted` are the ones there are: the strongest that the devices allow. Where
    /// too few are left for it, as many copies as they can hold.
    fn profile(&self, wanted: &[&'static Profile], class: Class) -> &'static Profile {
        let strength =
            |profile: &&&Profile| (profile.tolerated_failures, profile.copies, profile.max_devices.is_none());
        let named = |name| Profile::named(name).expect("the table has this row");
        let Some(&best) = wanted.iter().max_by_key(strength) else { return named("single") };
        let left = self.usable().count();
        // A byte with parity is worth as many copies as survive the same.
        match best.copies + best.parity {
            _ if left >= best.min_devices => best,
            1 => named("single"),
            copies => match left.min(copies) {
                3 => named("RAID1C3"),
                2 => named("RAID1"),
                _ if class == Class::Data => named("single"),
                _ => named("DUP"),
            },
        }
    }

    /// Plans a chunk of `class` and `profile` that starts at `logical`.
    fn plan(&self, class: Class, profile: &Profile, logical: Logical, sectorsize: u32) -> Option<Chunk> {
        let total = self.total_bytes();
        let limit = match class {
            Class::Data | Class::Mixed => 10 << 30,
            Class::Metadata if total > 50 << 30 => 1 << 30,
            Class::Metadata => 256 << 20,
            Class::System => 32 << 20,
        };
        let (max_stripe, max_chunk) = (limit.min(1u64 << 30), limit.min(total / 10));
        let per_device = profile.stripes_per_device as u64;
        let mut holes: Vec<(DeviceId, u64, u64)> = self
            .usable()
            .filter_map(|(id, device)| device.hole(max_stripe * per_device).map(|(at, len)| (id, at, len)))
            .map(|(id, at, len)| (id, at, len.min(max_stripe * per_device)))
            .filter(|&(_, _, len)| len >= STRIPE_LEN * per_device)
            .collect();
        holes.sort_by_key(|&(id, _, len)| (std::cmp::Reverse(len), std::cmp::Reverse(self.devices[&id].unallocated())));
        let count = device_count(profile, holes.len());
        if count < profile.min_devices.max(1) {
            return None;
        }
        holes.truncate(count);
        let stripes = count * profile.stripes_per_device;
        let data = profile.data_stripes(stripes) as u64;
        let mut stripe_len = holes.last()?.2 / per_device;
        if stripe_len * data > max_chunk {
            stripe_len = stripe_len.min((max_chunk / data).next_multiple_of(16 << 20));
        }
        stripe_len = stripe_len.min(1 << 30) / STRIPE_LEN * STRIPE_LEN;
        if stripe_len == 0 {
            return None;
        }
        let mut placed = Vec::with_capacity(stripes);
        for (device, at, _) in holes {
            let dev_uuid = self.devices[&device].uuid;
            for copy in 0..per_device {
                placed.push(ChunkStripe { device, physical: Physical(at + copy * stripe_len), dev_uuid });
            }
        }
        Some(Chunk::new(logical, stripe_len * data, class.type_bits() | profile.bit, sectorsize, placed))
    }
}

impl Core {
    /// Adds a chunk for `class`. `ENOSPC` when the devices have no room for one.
    pub(crate) fn allocate_chunk(&self, class: Class) -> Result<()> {
        let class = match class {
            Class::Data | Class::Metadata if self.space.is_mixed() => Class::Mixed,
            class => class,
        };
        let mut devices = self.devices.space.lock();
        if class != Class::System && self.space.available(Class::System) < 16 * u64::from(self.nodesize()) {
            // The chunk's own item needs room too; what is left serves if there is no room for more.
            let _ = self.allocate_chunk_locked(&mut devices, Class::System);
        }
        self.allocate_chunk_locked(&mut devices, class)
    }

    fn allocate_chunk_locked(&self, devices: &mut DeviceSpace, class: Class) -> Result<()> {
        devices.note_lost(&self.volume);
        let groups = self.space.groups();
        let of_class = groups.iter().filter(|group| Class::of(group.flags) == Some(class));
        let wanted: Vec<&'static Profile> = of_class.filter_map(|group| Profile::of(group.flags)).collect();
        let target = self.space.target(class).and_then(Profile::of);
        let target = target.filter(|target| devices.usable().count() >= target.min_devices);
        let profile = target.unwrap_or_else(|| devices.profile(&wanted, class));
        let map = self.volume.chunk_map();
        let logical = map.iter().map(Chunk::end).max().unwrap_or(Logical(0));
        let chunk = devices
            .plan(class, profile, logical, self.sectorsize())
            .ok_or_else(|| Error::refused(Errno::ENOSPC, "no room on the devices for another chunk"))?;
        if class == Class::System && system_array_len(map.iter().chain([&chunk])) > SYS_CHUNK_ARRAY_LEN {
            return Err(Error::refused(Errno::ENOSPC, "no room in the superblock for another system chunk"));
        }
        let mut map = (*map).clone();
        map.insert(chunk.clone()).map_err(|error| Error::corrupt(error.to_string()))?;
        devices.add_chunk(&chunk);
        if let Some(feature) = feature_of(chunk.kind).filter(|feature| !self.has_incompat(*feature)) {
            self.set_incompat(feature);
        }
        let info = GroupInfo { start: chunk.start, length: chunk.length, flags: chunk.kind, used: 0 };
        let (excluded, columns) = (map.superblock_exclusions(&chunk), chunk.parity_columns());
        // The items wait before anything is allocated in the chunk: a block there must find them when that freezes. Who
        // makes the superblock sees the chunk in the map and here, or in neither.
        self.gate.with_books(|books| {
            self.volume.set_chunk_map(map);
            books.new_chunks.push(chunk);
            books.has_allocated_chunk = true;
        });
        self.space.add_group_in_rows(info, &excluded, true, columns);
        Ok(())
    }

    /// Takes back the features of profiles that no chunk has any more. The next commit records it.
    pub(crate) fn clear_unused_features(&self) {
        // Nobody adds a chunk meanwhile. Chunks that are moving get their feature when they have moved.
        let _devices = self.devices.space.lock();
        let (map, moving) = (self.volume.chunk_map(), self.volume.moving());
        let kinds = map.iter().chain(moving.iter().map(|chunk| &**chunk)).map(|chunk| chunk.kind);
        let needed = kinds.filter_map(feature_of).fold(0, |all, feature| all | feature);
        self.clear_incompat((incompat::RAID56 | incompat::RAID1C34) & !needed);
    }

    /// Makes room for one more tree block.
    pub(super) fn allocate_chunk_for_node(&self, system: bool) -> Result<()> {
        self.allocate_chunk(if system { Class::System } else { Class::Metadata })
    }
}

/// Whether a chunk of the profile is as long as each of its stripes.
fn is_plain(profile: &Profile) -> bool {
    profile.max_devices.is_some()
}

/// The feature that a filesystem with chunks of this kind has.
fn feature_of(kind: u64) -> Option<u64> {
    if kind & (bits::RAID1C3 | bits::RAID1C4) != 0 {
        Some(incompat::RAID1C34)
    } else if kind & (bits::RAID5 | bits::RAID6) != 0 {
        Some(incompat::RAID56)
    } else {
        None
    }
}

/// Of so many devices with room, how many a chunk uses.
fn device_count(profile: &Profile, with_room: usize) -> usize {
    with_room.min(profile.max_devices.unwrap_or(MAX_DEVICES)) / profile.device_multiple * profile.device_multiple
}

/// Bytes of the superblock's array that the system chunks among `chunks` take.
pub(crate) fn system_array_len<'a>(chunks: impl Iterator<Item = &'a Chunk>) -> usize {
    let entry = |chunk: &Chunk| size_of::<DiskKey>() + ChunkHead::LEN + chunk.stripes.len() * Stripe::LEN;
    chunks.filter(|chunk| chunk.kind & bits::SYSTEM != 0).map(entry).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices(total_bytes: u64, used: &[(u64, u64)]) -> DeviceSpace {
        let extents = used.iter().copied().collect();
        let device = DeviceExtents { total_bytes, uuid: [7; 16], extents, ..DeviceExtents::default() };
        DeviceSpace { devices: [(DeviceId(1), device)].into() }
    }

    #[test]
    fn sizes_are_the_kernels() {
        let single = Profile::named("single").unwrap();
        let cases = [(1u64 << 30, 112 << 20), (512 << 20, 64 << 20), (3 << 30, 320 << 20)];
        for (total, length) in cases {
            let chunk = devices(total, &[]).plan(Class::Data, single, Logical(0), 4096).unwrap();
            assert_eq!(chunk.length, length, "{total}");
            assert_eq!(chunk.stripes[0].physical, Physical(1 << 20));
        }
    }

    #[test]
    fn a_duplicated_chunk_lies_twice_in_one_hole() {
        let dup = Profile::named("DUP").unwrap();
        let space = devices(64 << 20, &[(1 << 20, 32 << 20), (40 << 20, 1 << 20)]);
        let chunk = space.plan(Class::Metadata, dup, Logical(1 << 30), 4096).unwrap();
        assert_eq!(chunk.stripes[0].physical, Physical(41 << 20));
        assert_eq!(chunk.stripes[1].physical.0, (41 << 20) + chunk.length);
        assert!(chunk.stripes[1].physical.0 + chunk.length <= 64 << 20);
    }

    #[test]
    fn no_hole_no_chunk() {
        let single = Profile::named("single").unwrap();
        assert!(devices(16 << 20, &[(1 << 20, 15 << 20)]).plan(Class::Data, single, Logical(0), 4096).is_none());
    }

    fn several(sizes: &[u64]) -> DeviceSpace {
        let device = |&total_bytes: &u64| DeviceExtents { total_bytes, ..DeviceExtents::default() };
        DeviceSpace { devices: (1..).map(DeviceId).zip(sizes.iter().map(device)).collect() }
    }

    #[test]
    fn the_devices_with_most_space_are_chosen() {
        let space = several(&[300 << 20, 900 << 20, 500 << 20, 700 << 20]);
        for (profile, chosen, data) in [
            ("RAID1", &[2, 4][..], 1),
            ("RAID1C3", &[2, 4, 3], 1),
            ("RAID0", &[2, 4, 3, 1], 4),
            ("RAID10", &[2, 4, 3, 1], 2),
        ] {
            let profile = Profile::named(profile).unwrap();
            let chunk = space.plan(Class::Data, profile, Logical(0), 4096).unwrap();
            let on: Vec<u64> = chunk.stripes.iter().map(|stripe| stripe.device.0).collect();
            assert_eq!((&on[..], chunk.length), (chosen, chunk.stripe_length() * data), "{}", profile.name);
        }
    }

    #[test]
    fn unallocated_space_is_what_the_profile_can_use() {
        const GIB: u64 = 1 << 30;
        let first = FIRST_PHYSICAL;
        let space = several(&[10 * GIB + first, 4 * GIB + first, 4 * GIB + first]);
        for (profile, expected) in [
            ("single", 18),
            ("DUP", 9),
            ("RAID1", 8),
            ("RAID1C3", 4),
            ("RAID1C4", 0),
            ("RAID0", 18),
            ("RAID5", 8),
            ("RAID6", 4),
        ] {
            assert_eq!(space.unallocated(Profile::named(profile).unwrap()), expected * GIB, "{profile}");
        }
    }

    #[test]
    fn too_few_devices_hold_fewer_copies() {
        let all = |names: &[&str]| names.iter().map(|name| Profile::named(name).unwrap()).collect::<Vec<_>>();
        let table: &[(&[&str], usize, Class, &str)] = &[
            (&["RAID1C4"], 4, Class::Data, "RAID1C4"),
            (&["RAID1C4"], 3, Class::Data, "RAID1C3"),
            (&["RAID1C3", "single"], 2, Class::Metadata, "RAID1"),
            (&["single", "RAID1", "DUP"], 2, Class::Metadata, "RAID1"),
            (&["RAID1"], 1, Class::Metadata, "DUP"),
            (&["RAID10"], 1, Class::Data, "single"),
            (&["RAID5"], 2, Class::Data, "RAID5"),
            (&["RAID5"], 1, Class::Metadata, "DUP"),
            (&["RAID6"], 2, Class::Data, "RAID1"),
            (&["RAID6", "RAID5"], 3, Class::Data, "RAID6"),
            (&["RAID0"], 1, Class::Data, "RAID0"),
            (&["DUP", "single"], 1, Class::Metadata, "DUP"),
        ];
        for (wanted, left, class, expected) in table {
            let space = several(&vec![1 << 30; *left]);
            assert_eq!(space.profile(&all(wanted), *class).name, *expected, "{wanted:?} {left}");
        }
    }
}
