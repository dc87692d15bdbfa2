//! Replacing a device: another one gets everything that it has, then its number and its UUID.
//!
//! ```text
//! begin: item "started", writes go to both
//!   └► run: used ranges, chunk by chunk
//!        ├► finished: item "finished", the new device has the number
//!        ├► cancelled: item "canceled", the new device is wiped
//!        └► closed: item "suspended"; the next mount, or the kernel, continues
//! ```
//! The items are those of the kernel. Chunks stay as they are, because devices are named by their numbers.
//!
//! # Invariants
//! 1. Until the commit that finishes it is durable, the old device (or what stands in for it where it is missing) has
//!    everything: the new one counts for nothing.
//! 2. Everything that can be read on the old device below `cursor_left` of the item is on the new one.

use super::courtesy::Courtesy;
use super::devices::OldContent;
use super::{Exclusive, ExclusiveOperation, Filesystem, OperationProgress};
use crate::env::Point;
use crate::error::{Errno, Error, Result};
use crate::extent::rows;
use crate::migration::{PIECE, copy_pieces, occupied, pieces_together};
use crate::mkfs::wipe_superblocks;
use crate::transaction::DeviceChange;
use butterfs_device::BlockDevice;
use butterfs_ondisk::chunk::STRIPE_LEN;
use butterfs_ondisk::items::{DevItem, DevReplaceItem};
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::{DeviceId, Key, KeyType, Logical};
use butterfs_volume::{Chunk, CopyTo, SourceReads};
use std::path::Path;
use std::sync::Arc;
use zerocopy::FromBytes;

/// A request to replace a device.
#[derive(Clone, Debug)]
pub struct ReplaceRequest {
    /// The device.
    pub source: DeviceId,
    /// Whether it is read where another copy is good.
    pub reads: SourceReads,
    /// Also where something is recognised on the new device.
    pub force: bool,
    /// The treatment of its content.
    pub old: OldContent,
}

/// The last replacement.
#[derive(Clone, Copy, Debug)]
pub struct ReplaceStatus {
    /// As the device tree has it, or will. It has not ended before the commit that ends it is durable.
    pub item: DevReplaceItem,
    /// Bytes of the device that is replaced; 0 where none is.
    pub total_bytes: u64,
}

/// A replacement that has begun. Dropping it leaves it for the next mount.
pub struct Replacement {
    filesystem: Filesystem,
    running: Exclusive,
    source: DeviceId,
}

impl Filesystem {
    /// The last replacement.
    pub fn replace_status(&self) -> ReplaceStatus {
        let _alarm = self.0.engine.alarm();
        let is_running = self.while_none_is_replaced(|| Ok(())).is_err();
        let mut item = *self.0.engine.devices.replacement.lock();
        let space = self.0.engine.devices.space.lock();
        let source = space.devices.get(&DeviceId(item.src_devid.get()));
        let mut total_bytes = source.map_or(0, |device| device.total_bytes);
        // The end is noted before the commit that makes it durable, and the old device belongs to the filesystem until
        // then.
        if is_running && !item.is_active() {
            item.state = DevReplaceItem::STARTED.into();
            total_bytes = item.cursor_left.get();
        }
        ReplaceStatus { item, total_bytes }
    }

    /// Begins to replace a device with the one at a path, which is opened and claimed.
    pub fn begin_replace_at(&self, path: &Path, request: &ReplaceRequest) -> Result<Replacement> {
        let _alarm = self.0.engine.alarm();
        self.begin_replace(self.open_new_device(path)?, request)
    }

    /// Begins to replace a device. Refused: a target that is too small, or that something is recognised on, unless
    /// forced.
    pub fn begin_replace(&self, target: Arc<dyn BlockDevice>, request: &ReplaceRequest) -> Result<Replacement> {
        let _alarm = self.0.engine.alarm();
        let engine = &self.0.engine;
        engine.must_not_be_read_only()?;
        self.must_not_be_seed(request.source)?;
        let running = self.begin_exclusive(ExclusiveOperation::DeviceReplace)?;
        if engine.devices.replacement.lock().is_active() {
            return Err(Error::refused(Errno::EINPROGRESS, "a replacement that was interrupted waits to go on"));
        }
        let source = self.stored_item(request.source)?;
        let needed = source.total_bytes.get();
        if target.len() < needed {
            let what = format!("target device smaller than source device (required {needed} bytes)");
            return Err(Error::refused_at(Errno::EINVAL, what));
        }
        let is_missing = engine.volume.device_item(request.source).is_none();
        self.must_not_be_ours(&*target, is_missing.then_some(request.source))?;
        self.prepare_device(&target, target.len(), request.force, request.old)?;
        let item = DevItem { devid: 0.into(), uuid: engine.env().uuid(), ..source };
        let started = DevReplaceItem {
            src_devid: request.source.0.into(),
            read_mode: u64::from(request.reads == SourceReads::Avoided).into(),
            state: DevReplaceItem::STARTED.into(),
            time_started: (engine.env().now().sec as u64).into(),
            ..DevReplaceItem::default()
        };
        engine.volume.begin_twin(request.source, item, Arc::clone(&target));
        engine.volume.introduce_twin(request.source, &engine.superblock()).inspect_err(|_| {
            drop(engine.volume.cancel_twin(request.source));
            wipe_superblocks(&*target);
        })?;
        let before = std::mem::replace(&mut *engine.devices.replacement.lock(), started);
        self.change_device(DeviceChange::Replace(started), 1).inspect_err(|_| {
            // Nothing says on disk that it has begun.
            *engine.devices.replacement.lock() = before;
            drop(engine.volume.cancel_twin(request.source));
        })?;
        Ok(Replacement { filesystem: self.clone(), running, source: request.source })
    }

    /// The replacement that the last mount left, to go on with. `None` where there is none, or the new device is not
    /// there.
    pub fn continue_replace(&self) -> Result<Option<Replacement>> {
        let _alarm = self.0.engine.alarm();
        let item = *self.0.engine.devices.replacement.lock();
        let source = DeviceId(item.src_devid.get());
        if !item.is_active() || self.is_read_only() || !self.0.engine.volume.has_twin(source) {
            return Ok(None);
        }
        let running = match self.begin_exclusive(ExclusiveOperation::DeviceReplace) {
            // A balance, for example, that was begun while the new device was away.
            Err(error) if error.is(Errno::EINPROGRESS) => {
                self.0.engine.volume.tell(format!("the replacement of a device waits: {error}"));
                return Ok(None);
            }
            running => running?,
        };
        let started = DevReplaceItem { state: DevReplaceItem::STARTED.into(), ..item };
        *self.0.engine.devices.replacement.lock() = started;
        let begun = self.change_device(DeviceChange::Replace(started), 1);
        begun.inspect_err(|_| *self.0.engine.devices.replacement.lock() = item)?;
        Ok(Some(Replacement { filesystem: self.clone(), running, source }))
    }

    /// Gives a replacement up: one that runs ends at its next step; one whose new device is missing is forgotten. False
    /// where there is none.
    pub fn cancel_replace(&self) -> Result<bool> {
        let _alarm = self.0.engine.alarm();
        // One that has ended may still be leaving.
        if !self.0.engine.devices.replacement.lock().is_active() {
            return Ok(false);
        }
        if self.cancel_exclusive(ExclusiveOperation::DeviceReplace) {
            return Ok(true);
        }
        let _running = self.begin_exclusive(ExclusiveOperation::DeviceReplace)?;
        self.forget_replacement(DevReplaceItem::CANCELED)?;
        Ok(true)
    }

    /// The item of a device, also of one that is missing.
    fn stored_item(&self, id: DeviceId) -> Result<DevItem> {
        let key = Key::new(objectid::DEV_ITEMS, KeyType::DEV_ITEM, id.0);
        let _operation = self.begin();
        let engine = &self.0.engine;
        let data = engine.globals().chunk.get(engine.core(), key)?;
        let data =
            data.ok_or_else(|| Error::refused_at(Errno::ENOENT, format!("there is no device with devid {id}")))?;
        let (item, _) = DevItem::read_from_prefix(&data).map_err(|_| Error::corrupt("a device item is too short"))?;
        Ok(engine.volume.device_item(id).unwrap_or(item))
    }

    /// Ends a replacement without a result.
    fn forget_replacement(&self, state: u64) -> Result<()> {
        let engine = &self.0.engine;
        let item = *engine.devices.replacement.lock();
        let source = DeviceId(item.src_devid.get());
        let ended = DevReplaceItem {
            src_devid: DevReplaceItem::NO_DEVICE.into(),
            state: state.into(),
            time_stopped: (engine.env().now().sec as u64).into(),
            ..item
        };
        *engine.devices.replacement.lock() = ended;
        self.change_device(DeviceChange::Replace(ended), 1)?;
        if let Some(target) = engine.volume.cancel_twin(source) {
            wipe_superblocks(&*target);
        }
        Ok(())
    }
}

impl Replacement {
    /// The progress, and whether it is to stop.
    pub fn progress(&self) -> &Arc<OperationProgress> {
        self.running.progress()
    }

    /// The same on a thread of its own, where the filesystem may have threads. What goes wrong is told.
    pub fn run_in_background(self) -> Result<()> {
        if !self.filesystem.0.engine.env().background() {
            return self.run();
        }
        let filesystem = self.filesystem.clone();
        let work = move || {
            let _alarm = filesystem.0.engine.alarm();
            if let Err(error) = self.run() {
                filesystem.0.engine.volume.tell(format!("the replacement of a device has ended: {error}"));
            }
        };
        let spawned = std::thread::Builder::new().name("replace".to_owned()).spawn(work);
        spawned.map(drop).map_err(|error| Error::Device(format!("no thread for the replacement: {error}").into()))
    }

    /// Copies what is left, and returns when the new device has taken over. After an error it is given up, unless the
    /// filesystem is being closed: then it waits for the next mount.
    pub fn run(self) -> Result<()> {
        let outcome = self.copy_all().and_then(|()| self.finish());
        let Err(error) = outcome else { return Ok(()) };
        let filesystem = &self.filesystem;
        if filesystem.0.engine.aborted().is_some() {
            return Err(error);
        }
        if filesystem.is_stopping() && !self.progress().is_cancelled() {
            self.suspend()?;
        } else {
            filesystem.forget_replacement(DevReplaceItem::CANCELED)?;
        }
        Err(error)
    }

    fn copy_all(&self) -> Result<()> {
        let filesystem = &self.filesystem;
        self.progress().set_total(filesystem.replace_status().total_bytes);
        let mut from = filesystem.replace_status().item.cursor_left.get();
        let mut copied = Vec::new();
        self.progress().add_done(from);
        while let Some((at, chunk)) = self.next_chunk(from) {
            let end = at + chunk.stripe_length();
            self.set_cursor(at, end);
            if chunk.profile().parity > 0 {
                self.copy_rows(&chunk)?;
                copied.push((chunk.start, at));
            } else {
                self.copy_used(&chunk)?;
            }
            self.set_cursor(end, end);
            self.progress().add_done(end - from);
            from = end;
        }
        // The chunks with parity in front of the cursor that were not copied above: they are new, or another
        // implementation copied them without their free space.
        while let Some((at, chunk)) = self.chunk_with_parity(&copied) {
            self.copy_rows(&chunk)?;
            copied.push((chunk.start, at));
        }
        Ok(())
    }

    /// A chunk with parity that has something on the device and is not one of these; and where.
    fn chunk_with_parity(&self, copied: &[(Logical, u64)]) -> Option<(u64, Chunk)> {
        let map = self.filesystem.chunks();
        map.iter().filter(|chunk| chunk.profile().parity > 0).find_map(|chunk| {
            let own = chunk.stripes.iter().find(|stripe| stripe.device == self.source)?;
            let at = own.physical.0;
            (!copied.contains(&(chunk.start, at))).then(|| (at, chunk.clone()))
        })
    }

    /// The first chunk that has something on the device behind an address, and where.
    fn next_chunk(&self, from: u64) -> Option<(u64, Chunk)> {
        let map = self.filesystem.chunks();
        let places = map.iter().flat_map(|chunk| {
            let own = chunk.stripes.iter().filter(|stripe| stripe.device == self.source);
            own.map(move |stripe| (stripe.physical.0, chunk))
        });
        let next = places.filter(|(at, _)| *at >= from).min_by_key(|(at, _)| *at);
        next.map(|(at, chunk)| (at, chunk.clone()))
    }

    /// Copies what is in use of a chunk without parity.
    fn copy_used(&self, chunk: &Chunk) -> Result<()> {
        let engine = &self.filesystem.0.engine;
        let ranges = {
            let _operation = self.filesystem.begin();
            occupied(engine, chunk.start)?
        };
        let to = CopyTo::Twin(self.source, self.source_reads());
        let mut pieces = ranges.into_iter().flat_map(|range| pieces_of(chunk, range));
        let mut courtesy = Courtesy::new(&self.filesystem);
        loop {
            engine.env().reached(Point::PieceMoved);
            courtesy.before_next_step(&self.filesystem, self.progress())?;
            // Of a striped chunk the device has only some elements.
            let own = pieces.by_ref().filter(|(at, _)| engine.volume.lies_on(*at, self.source));
            let some: Vec<(Logical, u64)> = own.take(pieces_together(engine.core())).collect();
            if some.is_empty() {
                return Ok(());
            }
            let _operation = self.filesystem.begin();
            for lost in copy_pieces(engine.core(), to, chunk.kind, &some) {
                self.count(lost?, 0);
            }
            self.must_not_have_failed()?;
        }
    }

    /// Copies what the device has of the rows of a chunk with parity, of all of them: what is written into a row later
    /// leaves everything else in it as it is, free or not, and the parity covers that too.
    fn copy_rows(&self, chunk: &Chunk) -> Result<()> {
        let engine = &self.filesystem.0.engine;
        let (mut at, end) = (chunk.start, chunk.end());
        {
            // So that it is known what is free.
            let _operation = self.filesystem.begin();
            occupied(engine, chunk.start)?;
        }
        let mut courtesy = Courtesy::new(&self.filesystem);
        while at < end {
            engine.env().reached(Point::PieceMoved);
            courtesy.before_next_step(&self.filesystem, self.progress())?;
            let _operation = self.filesystem.begin();
            let lost = rows::copy_to_twin(engine.core(), self.source, at, self.source_reads())?;
            self.count(lost, 0);
            self.must_not_have_failed()?;
            // A chunk that nobody needs any more may be deleted meanwhile.
            let Some((row, len)) = engine.volume.row_of(at) else { return Ok(()) };
            at = row.plus(len);
        }
        Ok(())
    }

    /// The next commit writes down what went wrong.
    fn count(&self, unreadable_sectors: u64, failed_writes: u64) {
        let mut item = self.filesystem.0.engine.devices.replacement.lock();
        item.uncorrectable_read_errors += unreadable_sectors;
        item.write_errors += failed_writes;
    }

    /// As it was begun, here or in the kernel.
    fn source_reads(&self) -> SourceReads {
        match self.filesystem.replace_status().item.read_mode.get() {
            0 => SourceReads::Allowed,
            _ => SourceReads::Avoided,
        }
    }

    fn must_not_have_failed(&self) -> Result<()> {
        match self.filesystem.0.engine.volume.move_failure() {
            Some(sentence) => {
                self.count(0, 1);
                Err(Error::refused_at(Errno::EIO, format!("the new device fails: {sentence}")))
            }
            None => Ok(()),
        }
    }

    /// The next commit says how far it is; there is none for its sake.
    fn set_cursor(&self, left: u64, right: u64) {
        let engine = &self.filesystem.0.engine;
        let item = {
            let mut item = engine.devices.replacement.lock();
            (item.cursor_left, item.cursor_right) = (left.into(), right.into());
            *item
        };
        engine.gate.with_books(|books| {
            books.device_changes.retain(|change| !matches!(change, DeviceChange::Replace(_)));
            books.device_changes.push(DeviceChange::Replace(item));
        });
    }

    fn finish(&self) -> Result<()> {
        let (filesystem, engine) = (&self.filesystem, &self.filesystem.0.engine);
        engine.volume.flush()?;
        self.must_not_have_failed()?;
        let device = filesystem.stored_item(self.source)?;
        let old = engine.volume.present_devices().into_iter().find(|(item, _)| item.devid.get() == self.source.0);
        let item = DevReplaceItem {
            src_devid: DevReplaceItem::NO_DEVICE.into(),
            state: DevReplaceItem::FINISHED.into(),
            time_stopped: (engine.env().now().sec as u64).into(),
            ..*engine.devices.replacement.lock()
        };
        *engine.devices.replacement.lock() = item;
        filesystem.change_device(DeviceChange::Replaced { item, device }, 1)?;
        if let Some((_, old)) = old {
            wipe_superblocks(&*old);
        }
        Ok(())
    }

    fn suspend(&self) -> Result<()> {
        let engine = &self.filesystem.0.engine;
        engine.volume.flush()?;
        let item = DevReplaceItem {
            state: DevReplaceItem::SUSPENDED.into(),
            time_stopped: (engine.env().now().sec as u64).into(),
            ..*engine.devices.replacement.lock()
        };
        *engine.devices.replacement.lock() = item;
        self.filesystem.change_device(DeviceChange::Replace(item), 1)
    }
}

/// The pieces in which a range of a chunk is copied: of a striped one, elements.
fn pieces_of(chunk: &Chunk, (start, len): (Logical, u64)) -> impl Iterator<Item = (Logical, u64)> + use<> {
    let is_striped = chunk.stripe_length() != chunk.length;
    let (first, end) = (chunk.start, start.plus(len));
    let next = move |at: Logical| match is_striped {
        true => first.plus(((at.0 - first.0) / STRIPE_LEN + 1) * STRIPE_LEN).min(end),
        false => at.plus(PIECE).min(end),
    };
    let starts = std::iter::successors(Some(start), move |at| Some(next(*at)));
    starts.take_while(move |at| *at < end).map(move |at| (at, next(at).0 - at.0))
}
