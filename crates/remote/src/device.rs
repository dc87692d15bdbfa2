//! A volume as a block device.

use crate::ahead::Ahead;
use crate::checkpoint::Care;
use crate::open::{self, Options, alive_key};
use crate::root::Root;
use crate::state::Failure;
use crate::table::{BLOCK, PIECE_BLOCKS};
use crate::volume::{ALIVE_EVERY, PUTTERS, Volume, Writing};
use butterfs_device::BlockDevice;
use butterfs_store::{Cancel, Error, Result, Store};
use bytes::Bytes;
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

/// Bytes of the longest write that is taken over at once: a piece, so that the cache keeps it where it is.
const MOST_WRITTEN: usize = (PIECE_BLOCKS * BLOCK) as usize;

/// A volume as a block device. It is dropped as by a power cut: only flushed writes stay. [`close`](Self::close) makes
/// everything durable and leaves the volume to the next mount without a wait.
pub struct ObjectDevice {
    volume: Arc<Volume>,
    /// The root of a volume that is only read.
    root: Option<Root>,
    ahead: Ahead,
    /// Ends the signs of life.
    ended: Cancel,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Writes of parts of blocks take turns.
    parts: Mutex<()>,
}

impl std::fmt::Debug for ObjectDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ObjectDevice({})", self.volume.shown())
    }
}

impl ObjectDevice {
    /// Becomes the writer of a volume.
    pub fn open(store: &Store, options: &Options) -> Result<ObjectDevice> {
        let device = ObjectDevice::around(open::writer(store, options)?, None);
        let mut threads = device.threads.lock();
        let mut start = |work: fn(&Volume, &Writing)| {
            let volume = device.volume.clone();
            threads.push(std::thread::spawn(move || work(&volume, volume.writing.as_ref().expect("it is the writer"))));
        };
        (0..PUTTERS).for_each(|_| start(Volume::put_segments));
        start(make_tables);
        let (volume, alive) = (device.volume.clone(), store.until(&device.ended));
        threads.push(std::thread::spawn(move || say_alive(&volume, &alive)));
        drop(threads);
        Ok(device)
    }

    /// Shows a volume as it is now. Nothing can be written.
    pub fn open_read_only(store: &Store, options: &Options) -> Result<ObjectDevice> {
        let (volume, root, _) = open::reader(store, options)?;
        Ok(ObjectDevice::around(volume, Some(root)))
    }

    /// The same volume as it is now; none when nothing was flushed since this one was opened, or when this one is the
    /// writer's. The two share the cache of what was read.
    pub fn newer(&self) -> Result<Option<ObjectDevice>> {
        let Some(root) = &self.root else { return Ok(None) };
        let newer = open::newer(&self.volume, root)?;
        Ok(newer.map(|(volume, root)| ObjectDevice::around(volume, Some(root))))
    }

    fn around(volume: Volume, root: Option<Root>) -> ObjectDevice {
        let volume = Arc::new(volume);
        let read = volume.clone();
        let ahead = Ahead::start(volume.limits.cache, volume.store(), move |source, offset, len| {
            let (start, end) = (offset / BLOCK, (offset + len).div_ceil(BLOCK));
            read.prefetch(source, start, end - start);
        });
        let (ended, threads, parts) = Default::default();
        ObjectDevice { volume, root, ahead, ended, threads, parts }
    }

    /// Puts of segments and records so far, and ranges that were asked for.
    pub fn requests(&self) -> (u64, u64) {
        self.volume.requests()
    }

    /// The most bytes that were on their way from the store at one time.
    pub fn most_on_the_way(&self) -> u64 {
        self.volume.pieces.most_on_the_way() + self.ahead.most_on_the_way()
    }

    /// Makes everything durable and gives the volume up.
    pub fn close(&self) -> io::Result<()> {
        let Some(writing) = &self.volume.writing else { return Ok(()) };
        self.volume.flush(writing).map_err(io_error)?;
        self.await_table();
        let leave = |root: &mut Root| root.writer = None;
        let done = self.volume.checkpoint(writing, &self.volume.moment(), Care::Move, leave);
        done.map_err(|error| self.failed(&error))?;
        // Nothing may follow.
        let closed = format!("{} is closed", self.volume.shown());
        self.volume.fail(closed, rustix::io::Errno::SHUTDOWN.raw_os_error());
        self.stop();
        let _ = self.volume.store().delete(&alive_key(&self.volume.name));
        Ok(())
    }

    /// Waits for a table that is being made.
    fn await_table(&self) {
        let mut state = self.volume.state.lock();
        while state.checkpointing && state.failed.is_none() {
            self.volume.changed.wait(&mut state);
        }
    }

    fn failed(&self, error: &Error) -> io::Error {
        io_error(self.volume.failed(error))
    }

    fn stop(&self) {
        self.volume.state.lock().closing = true;
        self.volume.changed.notify_all();
        self.ended.cancel();
        self.threads.lock().drain(..).for_each(|thread| drop(thread.join()));
    }

    /// Fills `buf`, which may begin and end within blocks.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let (start, end) = (offset / BLOCK, (offset + buf.len() as u64).div_ceil(BLOCK));
        if is_whole(offset, buf.len()) {
            return self.volume.read(start, buf);
        }
        let mut whole = vec![0; ((end - start) * BLOCK) as usize];
        self.volume.read(start, &mut whole)?;
        let skip = (offset - start * BLOCK) as usize;
        buf.copy_from_slice(&whole[skip..skip + buf.len()]);
        Ok(())
    }

    fn refuse_outside(&self, what: &str, offset: u64, len: u64, kind: io::ErrorKind) -> io::Result<()> {
        if offset.checked_add(len).is_some_and(|end| end <= self.len()) {
            return Ok(());
        }
        let message = format!("{what} of {len} bytes at {offset} is outside of {} ({} bytes)", self.name(), self.len());
        Err(io::Error::new(kind, message))
    }

    fn writing(&self) -> io::Result<&Writing> {
        let refused =
            || io::Error::new(io::ErrorKind::ReadOnlyFilesystem, format!("{} is open read-only", self.name()));
        self.volume.writing.as_ref().ok_or_else(refused)
    }
}

impl BlockDevice for ObjectDevice {
    fn len(&self) -> u64 {
        self.volume.state.lock().table.length
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.refuse_outside("read", offset, buf.len() as u64, io::ErrorKind::UnexpectedEof)?;
        self.ahead.note(offset, buf.len() as u64, self.len());
        self.read(offset, buf).map_err(|error| io_error(Failure { sentence: error.to_string(), errno: error.errno() }))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.writing()?;
        self.refuse_outside("write", offset, data.len() as u64, io::ErrorKind::InvalidInput)?;
        if data.is_empty() {
            return Ok(());
        }
        if is_whole(offset, data.len()) {
            for (part, at) in data.chunks(MOST_WRITTEN).zip((offset / BLOCK..).step_by(MOST_WRITTEN / BLOCK as usize)) {
                self.volume.write(at, Bytes::copy_from_slice(part)).map_err(io_error)?;
            }
            return Ok(());
        }
        let _turn = self.parts.lock();
        let (start, end) = (offset / BLOCK, (offset + data.len() as u64).div_ceil(BLOCK));
        let mut whole = vec![0; ((end - start) * BLOCK) as usize];
        self.volume.read(start, &mut whole).map_err(|error| self.failed(&error))?;
        let skip = (offset - start * BLOCK) as usize;
        whole[skip..skip + data.len()].copy_from_slice(data);
        self.volume.write(start, whole.into()).map_err(io_error)
    }

    fn flush(&self) -> io::Result<()> {
        match &self.volume.writing {
            None => Ok(()),
            Some(writing) => self.volume.flush(writing).map_err(io_error),
        }
    }

    fn order(&self) -> io::Result<()> {
        // A flush makes everything durable that was written before it, or nothing of it.
        self.volume.healthy().map(drop).map_err(io_error)
    }

    fn begin_read(&self, offset: u64, len: u64) {
        self.ahead.ask(offset, len);
    }

    /// A part of the map that cannot be read counts as data: the read that follows reports the error.
    fn next_data(&self, offset: u64) -> u64 {
        match self.volume.next_content(offset / BLOCK) {
            Ok(found) => found.map_or(self.len(), |block| block * BLOCK).max(offset),
            Err(_) => offset,
        }
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.writing()?;
        self.refuse_outside("discard", offset, len, io::ErrorKind::InvalidInput)?;
        let (start, end) = (offset.div_ceil(BLOCK), (offset + len) / BLOCK);
        if start < end { self.volume.clear(start, end - start).map_err(io_error) } else { Ok(()) }
    }

    fn name(&self) -> String {
        self.volume.shown()
    }

    fn is_read_only(&self) -> bool {
        self.volume.writing.is_none()
    }
}

impl Drop for ObjectDevice {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Makes tables when they are due; the work of a thread.
fn make_tables(volume: &Volume, writing: &Writing) {
    loop {
        let mut state = volume.state.lock();
        let snapshot = loop {
            if state.closing || state.failed.is_some() {
                return;
            }
            match state.due.take() {
                Some(snapshot) => break snapshot,
                None => volume.changed.wait(&mut state),
            }
        };
        drop(state);
        let made = volume.checkpoint(writing, &snapshot, Care::Move, |_| {});
        volume.state.lock().checkpointing = false;
        volume.changed.notify_all();
        if let Err(error) = made {
            volume.failed(&error);
            return;
        }
    }
}

/// Says again and again that the writer lives; the work of a thread.
fn say_alive(volume: &Volume, store: &Store) {
    let id = volume.writing.as_ref().expect("it is the writer").id;
    for count in 0u64.. {
        // Another host hears of it only when it succeeds; a failure tells itself at the next flush.
        let _ = store.put(&alive_key(&volume.name), format!("{id:016x} {count}\n"));
        let until = Instant::now() + ALIVE_EVERY;
        let mut state = volume.state.lock();
        while Instant::now() < until {
            if state.closing || state.failed.is_some() {
                return;
            }
            volume.changed.wait_until(&mut state, until);
        }
    }
}

/// Whether a range begins and ends at blocks.
fn is_whole(offset: u64, len: usize) -> bool {
    offset.is_multiple_of(BLOCK) && (len as u64).is_multiple_of(BLOCK)
}

/// The sentence with its errno's kind.
fn io_error(failure: Failure) -> io::Error {
    io::Error::new(io::Error::from_raw_os_error(failure.errno).kind(), failure.sentence)
}
