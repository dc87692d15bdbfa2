//! A raw image as one object, or a file of an HTTP server that knows ranges: a device that is only read.

use crate::ahead::{Ahead, Source};
use crate::failures::Failures;
use crate::local::{Kept, LocalFile, cache};
use crate::room::{FOR_READERS, Room};
use butterfs_device::BlockDevice;
use butterfs_store::{Error, Kind, Result, Seen, Store};
use bytes::Bytes;
use quick_cache::Weighter;
use quick_cache::sync::{Cache, GuardResult};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Bytes of the parts that are asked for and kept.
const PART: u64 = 256 << 10;

#[derive(Clone)]
struct ByBytes;

impl Weighter<u64, Kept> for ByBytes {
    fn weight(&self, _: &u64, kept: &Kept) -> u64 {
        kept.room()
    }
}

struct Image {
    store: Store,
    room: Room,
    key: String,
    seen: Seen,
    /// The error since another image was found in its place.
    changed: OnceLock<Error>,
    cache: Cache<u64, Kept, ByBytes>,
    /// The file of the cache, if it is not in memory.
    file: Option<Arc<LocalFile>>,
    failed: Failures<u64>,
    requests: AtomicU64,
}

/// See the [module](self).
pub struct RangedImage {
    image: Arc<Image>,
    ahead: Ahead,
}

impl std::fmt::Debug for RangedImage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RangedImage({})", self.name())
    }
}

impl RangedImage {
    /// The object `key` of a store, as it is now, with a cache of so many bytes, in `file` or in memory. When its
    /// length, its tag or the time of its last change becomes another one, reads fail.
    pub fn open(store: &Store, key: &str, cache_bytes: u64, file: Option<Arc<LocalFile>>) -> Result<RangedImage> {
        let seen = store.look(key)?;
        let parts = (cache_bytes / PART).max(16);
        let cache = cache(parts, parts * PART, ByBytes);
        let requests = AtomicU64::new(0);
        let (own, key, failed) = (store.clone(), key.to_owned(), Failures::default());
        let (room, changed) = (Room::new(FOR_READERS), OnceLock::new());
        let image = Arc::new(Image { store: own, room, key, seen, changed, cache, file, failed, requests });
        let ahead = {
            let image = image.clone();
            // A reader of the part will be told of the failure.
            Ahead::start(parts * PART, store, move |source, offset, len| {
                drop(image.bring(source, offset / PART..(offset + len).div_ceil(PART)));
            })
        };
        Ok(RangedImage { image, ahead })
    }

    /// Ranges that were asked for so far.
    pub fn requests(&self) -> u64 {
        self.image.requests.load(Ordering::Relaxed)
    }
}

impl Image {
    fn part(&self, part: u64) -> Result<Bytes> {
        let begun = Instant::now();
        match self.cache.get_value_or_guard(&part, None) {
            GuardResult::Value(kept) => kept.read().or_else(|_| self.fetch(part)),
            GuardResult::Guard(guard) => {
                if let Some(error) = self.failed.since(begun, [part]) {
                    return Err(error);
                }
                let bytes = self.fetch(part)?;
                // A cache that gave it up meanwhile needs none.
                let _ = Kept::new(&bytes, self.file.as_ref()).map(|kept| guard.insert(kept));
                Ok(bytes)
            }
            GuardResult::Timeout => self.fetch(part),
        }
    }

    fn fetch(&self, part: u64) -> Result<Bytes> {
        let fetched = self.fetch_all(&self.store, &self.room, part..part + 1);
        Ok(fetched?.pop().expect("one part was asked for"))
    }

    /// Parts that follow each other, with one request.
    fn fetch_all(&self, store: &Store, room: &Room, parts: Range<u64>) -> Result<Vec<Bytes>> {
        if let Some(error) = self.changed.get() {
            return Err(error.clone());
        }
        let len = |part: u64| (self.seen.len - part * PART).min(PART) as usize;
        let lens: Vec<usize> = parts.clone().map(len).collect();
        let _room = room.take(lens.iter().map(|len| *len as u64).sum())?;
        self.requests.fetch_add(1, Ordering::Relaxed);
        let runs = store.get_runs_of(&self.key, parts.start * PART, &lens, &self.seen);
        runs.map_err(|error| match error.kind() {
            Kind::Conflict | Kind::NotFound => self.changed.get_or_init(|| self.changed_by(&error)).clone(),
            Kind::Cancelled => error,
            _ => {
                self.failed.note(parts, &error);
                error
            }
        })
    }

    fn changed_by(&self, error: &Error) -> Error {
        let shown = self.store.shown(&self.key);
        let sentence = format!("the image {shown} has changed since it was opened, open or mount it again: {error}");
        Error::new(Kind::Conflict, sentence)
    }

    /// Brings those of the parts into the cache that are not there and not on their way.
    fn bring(&self, source: &Source, parts: Range<u64>) -> Result<()> {
        let mut run = Vec::new();
        for part in parts.start..parts.end + 1 {
            let wanted = (part < parts.end).then(|| self.cache.get_value_or_guard(&part, Some(Duration::ZERO)));
            if let Some(GuardResult::Guard(guard)) = wanted {
                run.push(guard);
            } else if !run.is_empty() {
                let fetched = self.fetch_all(&source.store, &source.room, part - run.len() as u64..part)?;
                for (guard, bytes) in run.drain(..).zip(fetched) {
                    let _ = Kept::new(&bytes, self.file.as_ref()).map(|kept| guard.insert(kept));
                }
            }
        }
        Ok(())
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut at = 0;
        while at < buf.len() {
            let from = offset + at as u64;
            let part = self.part(from / PART)?;
            let skip = (from % PART) as usize;
            let len = (buf.len() - at).min(part.len() - skip);
            buf[at..at + len].copy_from_slice(&part[skip..skip + len]);
            at += len;
        }
        Ok(())
    }
}

impl BlockDevice for RangedImage {
    fn len(&self) -> u64 {
        self.image.seen.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let len = buf.len() as u64;
        if offset.checked_add(len).is_none_or(|end| end > self.len()) {
            let message =
                format!("read of {len} bytes at {offset} is outside of {} ({} bytes)", self.name(), self.len());
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
        }
        self.ahead.note(offset, len, self.len());
        self.image.read(offset, buf).map_err(|error: Error| {
            io::Error::new(io::Error::from_raw_os_error(error.errno()).kind(), error.to_string())
        })
    }

    fn write_at(&self, _offset: u64, _data: &[u8]) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, format!("{} can only be read", self.name())))
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn begin_read(&self, offset: u64, len: u64) {
        self.ahead.ask(offset, len.min(self.len().saturating_sub(offset)));
    }

    fn name(&self) -> String {
        self.image.store.shown(&self.image.key)
    }

    fn is_read_only(&self) -> bool {
        true
    }
}
