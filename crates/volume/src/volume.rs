//! The volume: members, the current chunk map, and how a logical request becomes device requests.

use crate::chunk_map::{ChunkMap, ChunkMapError};
use crate::device_set::DeviceSet;
use crate::error::{CopyFailure, FailureReason, VolumeError};
use crate::layout::{Layout, Piece, StripeAddress};
use crate::member::{Caching, DeviceStats, Member};
use crate::ownership::Look;
use crate::parity_write::Old;
use crate::row_locks::RowLocks;
use crate::staleness::Bug;
use crate::stripe_read::Trust;
use crate::windows::Windows;
use butterfs_device::{BlockDevice, READ_AHEAD_UNIT};
use butterfs_ondisk::chunk::{Chunk, ChunkStripe};
use butterfs_ondisk::items::DevItem;
use butterfs_ondisk::{DeviceId, Logical, Physical};
use butterfs_sync::{Mutex, RwLock, order};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Messages that are kept for [`Volume::take_messages`].
const MAX_MESSAGES: usize = 256;
/// Bytes of neighbouring addresses that are read from the same mirror, so that read-ahead works: mirrors take turns at
/// the multiples of it. A read that crosses none of them reads from where [`Volume::begin_read`] has asked for it.
pub const MIRROR_TURN: u64 = 1 << 20;

/// Bytes of a read that gains from going past the caches of devices.
const LONG_READ: usize = 256 << 10;

/// Something that happened which somebody should be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The address of the bytes that it is about, where it is about bytes.
    pub at: Option<Logical>,
    /// One sentence without a full stop.
    pub text: String,
}

/// One logical space over devices. Shared by all threads through `&self`.
#[derive(Debug)]
pub struct Volume {
    devices: RwLock<Arc<DeviceSet>, { order::DEVICE_SET }>,
    map: RwLock<Arc<ChunkMap>, { order::CHUNK_MAP }>,
    /// Held shared by writes on their way, exclusively by whoever compares places on disk before writing them.
    pub(crate) gate: RwLock<(), { order::REPAIR_GATE }>,
    /// Held shared by everything on its way to places on the devices, exclusively by whoever waits for all that began.
    pub(crate) requests: RwLock<(), { order::REQUESTS }>,
    /// Chunks that are getting other stripes.
    pub(crate) moves: Mutex<Vec<Arc<Chunk>>, { order::MOVES }>,
    /// There are some, or a device is being replaced.
    pub(crate) is_moving: AtomicBool,
    /// The ranges that are being copied to another place.
    pub(crate) windows: Windows,
    pub(crate) rows: RowLocks,
    messages: Mutex<VecDeque<Report>, { order::REPORTS }>,
    /// The number of times that a device has got worse or missed a write.
    pub(crate) losses: AtomicU64,
    /// Reading repairs nothing: it is not yet known whether the devices belong together.
    pub(crate) repairs_held: AtomicBool,
    /// A bug on purpose.
    pub(crate) bug: OnceLock<Bug>,
    /// Nothing is written any more.
    halted: Arc<AtomicBool>,
}

impl Volume {
    /// A volume of these devices with an empty chunk map, for a filesystem that is being made.
    pub fn of_devices(devices: Vec<(DevItem, Arc<dyn BlockDevice>)>) -> Volume {
        let set = DeviceSet::new(devices.into_iter().map(|(item, device)| Member::new(item, device)).collect());
        let devices = RwLock::new(Arc::new(set));
        let (map, gate, requests, moves, is_moving, windows, rows) = Default::default();
        let (messages, losses, repairs_held, bug, halted) = Default::default();
        Volume {
            devices,
            map,
            gate,
            requests,
            moves,
            is_moving,
            windows,
            rows,
            messages,
            losses,
            repairs_held,
            bug,
            halted,
        }
    }

    pub(crate) fn with_absent(self, absent: u64) -> Volume {
        self.change_devices(|set| set.with_absent(absent));
        self
    }

    /// The devices of this moment.
    pub(crate) fn members(&self) -> Arc<DeviceSet> {
        self.devices.read().clone()
    }

    /// Swaps the set of devices for what `change` makes of it. Requests that began before go on with the old one.
    pub(crate) fn change_devices(&self, change: impl FnOnce(&DeviceSet) -> DeviceSet) {
        let mut devices = self.devices.write();
        *devices = Arc::new(change(&devices));
    }

    /// The chunk map of this moment.
    pub fn chunk_map(&self) -> Arc<ChunkMap> {
        self.map.read().clone()
    }

    /// Makes `map` the chunk map. Requests that began before go on with the old one.
    pub fn set_chunk_map(&self, map: ChunkMap) {
        *self.map.write() = Arc::new(map);
    }

    /// Whether all chunks of `map` lie on the devices of this volume, whole, or on missing ones where it was opened
    /// without some: for a map that was read from disk.
    pub fn check_chunk_map(&self, map: &ChunkMap) -> Result<(), ChunkMapError> {
        map.iter().try_for_each(|chunk| {
            chunk.stripes.iter().try_for_each(|stripe| {
                self.check_stripe(chunk, stripe)
                    .map_err(|rule| ChunkMapError::new(format!("chunk {}: {rule}", chunk.start)))
            })
        })
    }

    fn check_stripe(&self, chunk: &Chunk, stripe: &ChunkStripe) -> Result<(), String> {
        let id = stripe.device;
        let Some(member) = self.member(id) else {
            return if self.members().absent > 0 { Ok(()) } else { Err(format!("device {id} is missing")) };
        };
        if member.item().uuid != stripe.dev_uuid {
            return Err(format!("the UUID of device {id} is not that of {}", member.device.name()));
        }
        let (end, len) = (stripe.physical.0.saturating_add(chunk.stripe_length()), member.device.len());
        if end > len {
            return Err(format!("it ends at {end} of {}, which has {len} bytes", member.device.name()));
        }
        Ok(())
    }

    /// Whether every device can be written.
    pub fn is_writable(&self) -> bool {
        self.members().iter().all(|member| member.seed().is_some() || !member.device.is_read_only())
    }

    /// The devices' numbers and names, ascending by number.
    pub fn devices(&self) -> Vec<(DeviceId, String)> {
        self.members().iter().map(|member| (member.id, member.device.name())).collect()
    }

    /// The devices that are there, each with what the next superblocks will say about it, ascending by number.
    pub fn present_devices(&self) -> Vec<(DevItem, Arc<dyn BlockDevice>)> {
        self.members().iter().map(|member| (member.item(), member.device.clone())).collect()
    }

    /// The device item of the next superblocks on this device.
    pub fn device_item(&self, id: DeviceId) -> Option<DevItem> {
        Some(self.member(id)?.item())
    }

    /// The device items of the next superblocks, ascending by number.
    pub fn device_items(&self) -> Vec<DevItem> {
        self.members().iter().map(|member| member.item()).collect()
    }

    /// Changes what the next superblocks on the device say about it; `false` if there is no such device.
    pub fn set_device_item(&self, item: DevItem) -> bool {
        let member = self.member(DeviceId(item.devid.get()));
        member.inspect(|member| member.set_item(item)).is_some()
    }

    /// Devices of the filesystem that were not given.
    pub fn missing_devices(&self) -> u64 {
        self.members().absent
    }

    /// The error counters of each device.
    pub fn device_stats(&self) -> Vec<(DeviceId, DeviceStats)> {
        self.members().iter().map(|member| (member.id, member.stats())).collect()
    }

    /// Starts the counters of a device with what the device tree says.
    pub fn set_device_stats(&self, id: DeviceId, stats: DeviceStats) {
        if let Some(member) = self.member(id) {
            member.set_stats(stats);
        }
    }

    /// Reports of events, oldest first: bad copies, and their repair.
    pub fn take_reports(&self) -> Vec<Report> {
        self.messages.lock().drain(..).collect()
    }

    /// A switch that makes every later write fail, superblocks included. Setting it takes no lock, so that a panic hook
    /// may do it.
    pub fn halt_switch(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.halted)
    }

    /// The sentences of [`take_reports`](Self::take_reports).
    pub fn take_messages(&self) -> Vec<String> {
        self.take_reports().into_iter().map(|report| report.text).collect()
    }

    /// Keeps a report for [`take_reports`](Self::take_reports); of very many the oldest ones are dropped, and one that
    /// waits already is not kept twice.
    pub fn report(&self, at: Option<Logical>, text: String) {
        let mut messages = self.messages.lock();
        let report = Report { at, text };
        if messages.contains(&report) {
            return;
        }
        if messages.len() == MAX_MESSAGES {
            messages.pop_front();
        }
        messages.push_back(report);
    }

    /// Keeps a sentence that is about no address.
    pub fn tell(&self, message: String) {
        self.report(None, message);
    }

    pub(crate) fn member(&self, id: DeviceId) -> Option<Arc<Member>> {
        self.devices.read().get(id).cloned()
    }

    /// Runs `with` on the layout of the chunk that holds these bytes.
    pub(crate) fn located<R>(
        &self,
        at: Logical,
        len: usize,
        with: impl FnOnce(Layout<'_>) -> Result<R, VolumeError>,
    ) -> Result<R, VolumeError> {
        let map = self.chunk_map();
        let unmapped = VolumeError::Unmapped { at, len: len as u64 };
        match map.get_range(at, len as u64).map(Layout::of) {
            Some(Ok(layout)) => with(layout),
            Some(Err(_)) | None => Err(unmapped),
        }
    }

    /// Waits for every read and write that has begun. Those that begin afterwards see what was set before.
    pub(crate) fn drain(&self) {
        drop(self.requests.write());
    }

    /// In how many ways the bytes at `at` can be read; 0 where no chunk is.
    pub fn copies(&self, at: Logical) -> usize {
        self.located(at, 1, |layout| Ok(layout.copies())).unwrap_or(0)
    }

    /// How a read of `len` bytes at `at` is fastest: a short one finds in a cache what was read ahead.
    pub fn caching_of_read(&self, at: Logical, len: usize) -> Caching {
        if len < LONG_READ { Caching::Kept } else { self.caching_of_long_reads(at) }
    }

    /// How long reads at `at` are fastest: past the caches where the bytes lie in one piece on devices that can do
    /// that; short pieces of several devices come faster from caches that have read them ahead.
    pub fn caching_of_long_reads(&self, at: Logical) -> Caching {
        let can_avoid = |layout: Layout<'_>| {
            let mut stripes = layout.chunk().stripes.iter();
            let has_direct = |member: Arc<Member>| member.device.has_uncached_reads();
            Ok(!layout.is_striped() && stripes.all(|stripe| self.member(stripe.device).is_none_or(has_direct)))
        };
        if self.located(at, 1, can_avoid).unwrap_or(false) { Caching::Avoided } else { Caching::Kept }
    }

    /// Reads `buf.len()` bytes at `at`, which lie in one chunk. Tries the copies in turn until `verify`, which
    /// returns the rule that the bytes break, accepts one; then overwrites the bad ones with it if the volume is
    /// writable. After an error `buf` is zero.
    pub fn read(
        &self,
        at: Logical,
        buf: &mut [u8],
        verify: &mut dyn FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), VolumeError> {
        self.read_as(at, buf, Caching::Kept, verify)
    }

    /// Like [`read`](Self::read), past the caches of the devices where `caching` says so.
    pub fn read_as(
        &self,
        at: Logical,
        buf: &mut [u8],
        caching: Caching,
        verify: &mut dyn FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), VolumeError> {
        order::check(order::DEVICE);
        let len = buf.len();
        let read = |layout: Layout<'_>| self.read_good(&layout, at, buf, (Trust::Verified, caching), verify);
        let _request = self.requests.read();
        let result = self.located(at, len, read);
        result.inspect_err(|_| buf.fill(0))
    }

    /// Like [`read`](Self::read), but what is bad is neither counted nor repaired: for bytes that need not be there.
    /// Devices that have missed writes are asked last.
    pub fn peek(
        &self,
        at: Logical,
        buf: &mut [u8],
        verify: &mut dyn FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), VolumeError> {
        order::check(order::DEVICE);
        let len = buf.len() as u64;
        let mut copies = self.preferred_copies(at, buf.len()).into_iter();
        let found = copies.any(|copy| self.read_copy(at, copy, buf).is_ok() && verify(buf).is_ok());
        if found { Ok(()) } else { Err(VolumeError::NoGoodCopy { at, len, failures: Vec::new() }) }
    }

    /// Like [`read`](Self::read), for bytes that nothing can be compared with: they come from devices that have missed
    /// nothing, or it is an error.
    pub fn read_unverified(&self, at: Logical, buf: &mut [u8]) -> Result<(), VolumeError> {
        self.read_unverified_as(at, buf, Caching::Kept)
    }

    /// Like [`read_unverified`](Self::read_unverified), past the caches of the devices where `caching` says so.
    pub fn read_unverified_as(&self, at: Logical, buf: &mut [u8], caching: Caching) -> Result<(), VolumeError> {
        order::check(order::DEVICE);
        let len = buf.len();
        let read = |layout: Layout<'_>| {
            // Of several elements each may have its good copy on another device.
            layout.pieces(at, len).try_for_each(|piece| {
                let part = &mut buf[piece.range.clone()];
                let how = (Trust::Blind, caching);
                self.read_good(&layout, at.plus(piece.range.start as u64), part, how, &mut |_| Ok(()))
            })
        };
        let _request = self.requests.read();
        let result = self.located(at, len, read);
        result.inspect_err(|_| buf.fill(0))
    }

    /// Tells the devices that these bytes, as far as they lie in one chunk, will be read soon.
    pub fn begin_read(&self, at: Logical, len: u64) {
        let map = self.chunk_map();
        let Some((chunk, layout)) = map.get(at).and_then(|chunk| Some((chunk, Layout::of(chunk).ok()?))) else {
            return;
        };
        let (mut at, end) = (at, at.0.saturating_add(len).min(chunk.end().0));
        while at.0 < end {
            // Up to where a read may turn to another copy.
            let unit_end = (at.0 / READ_AHEAD_UNIT + 1) * READ_AHEAD_UNIT;
            let unit = unit_end.min(end) - at.0;
            for piece in layout.pieces(at, unit as usize) {
                let copy = self.reading_order(&layout, at, 1, Trust::Verified)[0];
                let address = layout.stripe_address(&piece, copy);
                let member = self.member(chunk.stripes[address.stripe].device);
                member.inspect(|member| member.begin_read(address.physical, piece.range.len() as u64));
            }
            at = at.plus(unit);
        }
    }

    fn read_good(
        &self,
        layout: &Layout<'_>,
        at: Logical,
        buf: &mut [u8],
        how: (Trust, Caching),
        verify: &mut dyn FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), VolumeError> {
        let trust = how.0;
        let mut failures = Vec::new();
        for copy in self.reading_order(layout, at, buf.len(), trust) {
            match self.read_verified(layout, at, copy, buf, how, verify) {
                Ok(()) => {
                    self.repair_all(layout, at, trust, &failures, buf);
                    return Ok(());
                }
                Err(failure) => failures.push(failure),
            }
        }
        Err(VolumeError::NoGoodCopy { at, len: buf.len() as u64, failures })
    }

    /// All copies; the first is another one for other addresses where that spreads reads over devices. What lies on a
    /// stale device comes last. Where nobody checks, mirrors take turns only if none of them has ever counted an error:
    /// a kernel that had been without a device remembers no more than that.
    pub(crate) fn reading_order(&self, layout: &Layout<'_>, at: Logical, len: usize, trust: Trust) -> Vec<usize> {
        let copies = layout.copies();
        let spreads = layout.mirrors() > 1 && layout.chunk().stripes[0].device != layout.chunk().stripes[1].device;
        let first = if spreads { (at.0 / MIRROR_TURN % copies as u64) as usize } else { 0 };
        let mut order: Vec<usize> = (0..copies).map(|turn| (first + turn) % copies).collect();
        if self.has_bug(Bug::MirrorsTakeTurns) {
            return order;
        }
        if trust == Trust::Blind && layout.mirrors() > 1 {
            let doubts: Vec<u64> = (0..copies).map(|copy| self.doubt(layout, at, copy)).collect();
            if doubts.iter().any(|doubt| *doubt > 0) {
                order.sort_by_key(|&copy| (doubts[copy], copy));
            }
        }
        if layout.mirrors() > 1 && self.members().iter().any(|member| member.is_stale()) {
            let is_stale: Vec<bool> = (0..copies).map(|copy| self.touches_stale(layout, at, len, copy)).collect();
            order.sort_by_key(|&copy| is_stale[copy]);
            if trust == Trust::Blind && is_stale.contains(&false) && !self.has_bug(Bug::RepairsFromStale) {
                order.retain(|&copy| !is_stale[copy]);
            }
        }
        order
    }

    /// The errors that the device of a copy has counted.
    pub(crate) fn doubt(&self, layout: &Layout<'_>, at: Logical, copy: usize) -> u64 {
        let address = layout.pieces(at, 1).next().map(|piece| layout.stripe_address(&piece, copy));
        let member = address.and_then(|address| self.member(layout.chunk().stripes[address.stripe].device));
        member.map_or(u64::MAX, |member| member.stats().doubt())
    }

    fn read_verified(
        &self,
        layout: &Layout<'_>,
        at: Logical,
        copy: usize,
        buf: &mut [u8],
        how: (Trust, Caching),
        verify: &mut dyn FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), CopyFailure> {
        self.fetch(layout, at, copy, how, buf)?;
        verify(buf).map_err(|rule| {
            let failure = self.failure(layout, at, copy, FailureReason::Rejected(rule));
            self.member(failure.device).inspect(|member| member.count_corruption());
            failure
        })
    }

    /// The copies of the bytes at `at`, those on devices that have missed writes last.
    pub fn preferred_copies(&self, at: Logical, len: usize) -> Vec<usize> {
        let order = |layout: Layout<'_>| {
            let mut order: Vec<usize> = (0..layout.copies()).collect();
            order.sort_by_key(|copy| self.touches_stale(&layout, at, len, *copy));
            Ok(order)
        };
        self.located(at, len, order).unwrap_or_default()
    }

    /// Reads one copy as it is: the bytes are not verified by anyone. For readers that check parts of a large read
    /// and then try other copies of the bad parts; they tell about those with [`count_bad_copy`](Self::count_bad_copy).
    pub fn read_copy(&self, at: Logical, copy: usize, buf: &mut [u8]) -> Result<(), VolumeError> {
        self.read_copy_as(at, copy, Caching::Kept, buf)
    }

    /// Like [`read_copy`](Self::read_copy), past the caches of the devices where `caching` says so.
    pub fn read_copy_as(&self, at: Logical, copy: usize, caching: Caching, buf: &mut [u8]) -> Result<(), VolumeError> {
        order::check(order::DEVICE);
        let len = buf.len() as u64;
        let _request = self.requests.read();
        self.located(at, buf.len(), |layout| {
            if copy >= layout.copies() {
                return Err(VolumeError::NoGoodCopy { at, len, failures: Vec::new() });
            }
            let fetched = self.fetch(&layout, at, copy, (Trust::Verified, caching), buf);
            fetched.map_err(|failure| VolumeError::NoGoodCopy { at, len, failures: vec![failure] })
        })
    }

    /// Counts and remembers that a copy read with [`read_copy`](Self::read_copy) breaks `rule`, and describes it.
    pub fn count_bad_copy(&self, at: Logical, len: usize, copy: usize, rule: &str) -> Option<CopyFailure> {
        let described = self.located(at, len, |layout| {
            let failure = self.failure(&layout, at, copy, FailureReason::Rejected(rule.to_owned()));
            self.member(failure.device).inspect(|member| member.count_corruption());
            self.report(Some(at), format!("logical {at}: {failure}"));
            Ok(failure)
        });
        described.ok()
    }

    /// Describes what is wrong with a copy of the bytes at `at`.
    pub(crate) fn failure(&self, layout: &Layout<'_>, at: Logical, copy: usize, reason: FailureReason) -> CopyFailure {
        let address = layout.pieces(at, 1).next().map(|piece| layout.stripe_address(&piece, copy % layout.mirrors()));
        let address = address.unwrap_or(StripeAddress { stripe: 0, physical: layout.chunk().stripes[0].physical });
        self.failure_at(layout, copy, address, reason)
    }

    pub(crate) fn failure_at(
        &self,
        layout: &Layout<'_>,
        copy: usize,
        address: StripeAddress,
        reason: FailureReason,
    ) -> CopyFailure {
        let device = layout.chunk().stripes[address.stripe].device;
        let name = self.member(device).map_or_else(|| "a missing device".to_owned(), |member| member.device.name());
        CopyFailure { copy, device, name, physical: address.physical, reason }
    }

    /// Writes `data` at `at`, which lie in one chunk, to every copy. Durable after the next [`flush`](Self::flush).
    /// Reports failed devices; returns an error if the profile cannot tolerate that many.
    ///
    /// [`VolumeError::RowInconsistent`] where a part of a row is written whose parity does not fit its data: nothing of
    /// that row is written. The caller has it repaired by [`check_row`](Self::check_row) and writes
    /// [again](Self::write_again).
    pub fn write(&self, at: Logical, data: &[u8]) -> Result<(), VolumeError> {
        self.write_as(at, data, Caching::Kept, Old::Checked { except: &[] })
    }

    /// Like [`write`](Self::write), after the rows that begin at `checked` have been repaired as far as they can be:
    /// what they hold is taken as it is.
    pub fn write_again(&self, at: Logical, data: &[u8], checked: &[Logical]) -> Result<(), VolumeError> {
        self.write_as(at, data, Caching::Kept, Old::Checked { except: checked })
    }

    /// Like [`write`](Self::write), for bytes that nobody reads soon: past the caches of the devices where they can.
    pub fn write_uncached(&self, at: Logical, data: &[u8]) -> Result<(), VolumeError> {
        self.write_as(at, data, Caching::Avoided, Old::Checked { except: &[] })
    }

    /// Like [`write`](Self::write), for a filesystem that is being made: what rows held before does not matter.
    pub fn write_new(&self, at: Logical, data: &[u8]) -> Result<(), VolumeError> {
        self.write_as(at, data, Caching::Kept, Old::Unused)
    }

    fn write_as(&self, at: Logical, data: &[u8], caching: Caching, old: Old<'_>) -> Result<(), VolumeError> {
        order::check(order::DEVICE);
        self.check_writable()?;
        self.check_still_ours(Look::Cached)?;
        let _request = self.requests.read();
        self.located(at, data.len(), |layout| {
            let _gate = self.enter_gate(&layout, at, data.len());
            if layout.parity() == 0 {
                self.store_mirrors(&layout, at, data, caching)?;
                self.store_moved(&layout, at, data, caching);
                Ok(())
            } else {
                self.store_with_parity(&layout, at, data, caching, old)
            }
        })
    }

    /// The gate, for a write that meets no copier of the same bytes which stores them. Rows with parity have locks.
    fn enter_gate(&self, layout: &Layout<'_>, at: Logical, len: usize) -> impl Sized + '_ {
        loop {
            let gate = self.gate.read();
            let meets_none = layout.parity() > 0 || !self.is_moving.load(Ordering::Acquire);
            if meets_none || self.windows.admits_write(at, len) {
                return gate;
            }
            drop(gate);
            self.windows.wait(at, len);
        }
    }

    /// Makes everything durable that was written. A device that fails is not used any more where every chunk survives
    /// that, because what it has of what was written is not known; else its failure is the error.
    pub fn flush(&self) -> Result<(), VolumeError> {
        order::check(order::DEVICE);
        let flush = |member: &Arc<Member>| match flush_member(member) {
            Err(error) if !self.mark_failed(member, &error) => Err(error),
            _ => Ok(()),
        };
        let members = self.members();
        members.twins().for_each(|twin| self.flush_twin(twin));
        members.iter().filter(|member| member.is_in_use()).map(flush).fold(Ok(()), Result::and)
    }

    /// Makes sure that nothing written after this is durable before everything that was written before it: a
    /// [`flush`](Self::flush), unless the only device keeps the order of writes anyway.
    pub fn order(&self) -> Result<(), VolumeError> {
        let members = self.members();
        let mut in_use = members.iter().filter(|member| member.is_in_use());
        match (in_use.next(), in_use.next(), members.twins().next()) {
            (Some(only), None, None) => {
                order::check(order::DEVICE);
                only.order().map_err(|error| VolumeError::Flush { device: only.device.name(), error })
            }
            _ => self.flush(),
        }
    }

    /// Has the devices begin to make these bytes durable, so that the next [`flush`](Self::flush) has less to wait for.
    pub fn begin_write_out(&self, at: Logical, len: usize) {
        let begin = |layout: Layout<'_>| {
            for piece in layout.pieces(at, len) {
                let parities = (0..layout.parity()).map(|which| layout.parity_address(&piece, which));
                let parities = parities.map(|address| (self.member_at(&layout, address), address));
                for (member, address) in self.mirror_addresses(&layout, &piece).chain(parities) {
                    member.inspect(|member| member.begin_write_out(address.physical, piece.range.len() as u64));
                }
            }
            Ok(())
        };
        // Where no chunk is, nothing is written.
        let _ = self.located(at, len, begin);
    }

    /// Tells the devices that nobody needs these bytes, in all copies. Returns the bytes that the devices took, of all
    /// copies together: none after the volume has stopped writing, and none in chunks with parity, because their rows
    /// hold other data too.
    pub fn discard(&self, at: Logical, len: u64) -> u64 {
        order::check(order::DEVICE);
        if self.check_writable().and_then(|()| self.check_still_ours(Look::Cached)).is_err() {
            return 0;
        }
        let _request = self.requests.read();
        let map = self.chunk_map();
        let (mut at, end, mut done) = (at, at.0.saturating_add(len), 0);
        while let Some(chunk) = map.get(at).filter(|_| at.0 < end) {
            let here = (end.min(chunk.end().0) - at.0).min(1 << 30);
            if let Ok(layout) = Layout::of(chunk) {
                done += self.discard_in(&layout, at, here as usize);
            }
            at = at.plus(here);
        }
        done
    }

    fn discard_in(&self, layout: &Layout<'_>, at: Logical, len: usize) -> u64 {
        if layout.parity() != 0 {
            return 0;
        }
        let _gate = self.gate.read();
        let mut runs: Vec<(Arc<Member>, u64, u64)> = Vec::new();
        let mut done = 0;
        // Neighbouring pieces of a stripe are one range of its device.
        for piece in layout.pieces(at, len) {
            for (member, address) in self.mirror_addresses(layout, &piece) {
                let Some(member) = member else { continue };
                let (start, len) = (address.physical.0, piece.range.len() as u64);
                match runs.iter_mut().find(|(known, from, len)| known.id == member.id && *from + *len == start) {
                    Some((_, _, known_len)) => *known_len += len,
                    None => runs.push((member, start, len)),
                }
            }
            if runs.len() > MOST_DISCARDS {
                done += discard_all(&mut runs);
            }
        }
        done + discard_all(&mut runs)
    }

    /// The same for bytes of one device that are in no chunk.
    pub fn discard_on(&self, id: DeviceId, at: Physical, len: u64) -> u64 {
        order::check(order::DEVICE);
        if self.check_writable().and_then(|()| self.check_still_ours(Look::Cached)).is_err() {
            return 0;
        }
        let _request = self.requests.read();
        let _gate = self.gate.read();
        self.member(id).map_or(0, |member| member.discard(at, len))
    }

    /// Whether some device in use may support discard.
    pub fn supports_discard(&self) -> bool {
        self.members().iter().any(|member| member.is_in_use() && member.device.supports_discard())
    }

    /// The addresses that hold a piece as it is, each with its device.
    pub(crate) fn mirror_addresses<'a>(
        &'a self,
        layout: &Layout<'a>,
        piece: &Piece,
    ) -> impl Iterator<Item = (Option<Arc<Member>>, StripeAddress)> {
        (0..layout.mirrors()).map(move |mirror| {
            let address = layout.stripe_address(piece, mirror);
            (self.member_at(layout, address), address)
        })
    }

    pub(crate) fn member_at(&self, layout: &Layout<'_>, address: StripeAddress) -> Option<Arc<Member>> {
        self.member(layout.chunk().stripes[address.stripe].device)
    }

    /// The error of a write, if some device cannot be written.
    pub(crate) fn check_writable(&self) -> Result<(), VolumeError> {
        if self.halted.load(Ordering::Acquire) {
            return Err(VolumeError::refused("the filesystem stopped writing after an error"));
        }
        match self.members().iter().find(|member| member.seed().is_none() && member.device.is_read_only()) {
            None => Ok(()),
            Some(member) => Err(VolumeError::ReadOnly { device: member.device.name() }),
        }
    }
}

/// Ranges of devices that are collected before they are discarded.
const MOST_DISCARDS: usize = 64;

fn discard_all(runs: &mut Vec<(Arc<Member>, u64, u64)>) -> u64 {
    runs.drain(..).map(|(member, at, len)| member.discard(Physical(at), len)).sum()
}

fn flush_member(member: &Member) -> Result<(), VolumeError> {
    member.flush().map_err(|error| VolumeError::Flush { device: member.device.name(), error })
}

#[cfg(test)]
mod tests;
