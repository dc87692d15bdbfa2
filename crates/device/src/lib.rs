//! Internal to butterfs: this crate promises no stability. Depend on the crate `butterfs` instead.
//!
//! Bytes at offsets: the block device that everything above stands on, and the devices that tests stand on.
//!
//! - [`FileDevice`]: a regular file or a block device
//! - [`MemoryDevice`]: sparse memory, with snapshots that cost nothing
//! - [`Recorder`] and [`RecordingDevice`]: an ordered log of writes and flushes, and every disk a crash could leave
//! - [`FaultyDevice`]: reads, writes and flushes that go wrong on purpose
//! - [`GateDevice`]: holds chosen writes back until a test lets them through
//! - [`ReadOnlyDevice`]: refuses to be changed
//! - [`WindowDevice`]: a range of another device, such as a partition
//!
//! Wrappers hold an `Arc<dyn BlockDevice>` and are devices themselves, so they stack.
//!
//! # Invariants
//! 1. A read or write is whole: it transfers every byte or is an error.
//! 2. What `write_at` accepted, a later `read_at` of the same device shows, durable or not.
//! 3. What was written before a `flush` began that returned `Ok` survives a power cut. After a `flush` has failed,
//!    nothing is known about earlier writes, and every later write and flush of that device fails.
//!
//! # Not here
//! Caching, alignment rules, asynchronous I/O, anything of the format.

#![deny(unsafe_code)]

mod aligned;
mod block_ioctl;
mod content;
mod direct;
mod faulty;
mod file;
mod file_clone;
mod gate;
mod in_use;
mod memory;
mod open_error;
pub mod priority;
mod random;
mod read_only;
mod recording;
mod window;
mod write_out;

pub use aligned::AlignedBuffer;
pub use content::{copy_content, is_zero};
pub use faulty::{Fault, FaultCounts, FaultRates, FaultRule, FaultyDevice, Operation};
pub use file::{FileDevice, FileOptions};
pub use file_clone::clone_range;
pub use gate::GateDevice;
pub use in_use::{Origin, files_of};
pub use memory::MemoryDevice;
pub use open_error::{OpenError, OpenErrorKind};
pub use read_only::ReadOnlyDevice;
pub use recording::{Event, Kept, Recorder, RecordingDevice};
pub use window::WindowDevice;

use std::fmt::Debug;
use std::io;
use std::path::Path;

/// The unit that storage writes as a whole: a torn write is a whole number of these.
pub const SECTOR: u64 = 512;

/// The longest range of one [`BlockDevice::begin_read`]: kernels read no more for one hint.
pub const READ_AHEAD_UNIT: u64 = 128 << 10;

/// Bytes at offsets, shared by all threads. See the crate's invariants.
pub trait BlockDevice: Send + Sync + Debug {
    /// Bytes of the device.
    fn len(&self) -> u64;

    /// Whether the device has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `buf` from `offset`. A range past the end is an error of kind `UnexpectedEof`.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// Writes `data` at `offset`. A range past the end is an error of kind `InvalidInput`.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Makes everything durable that was written before.
    fn flush(&self) -> io::Result<()>;

    /// Makes sure that nothing written after this is durable before everything that was written before it. The same
    /// as `flush`, except on devices that make writes durable in their order anyway.
    fn order(&self) -> io::Result<()> {
        self.flush()
    }

    /// Like [`write_at`](Self::write_at), for bytes that nobody reads soon: past the page cache where the storage can,
    /// else they are on their way out of it when this returns.
    fn write_uncached(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write_at(offset, data)?;
        self.begin_write_out(offset, data.len() as u64);
        Ok(())
    }

    /// Starts to write these bytes out of the page cache, so that the next `flush` has less to wait for. A hint: it
    /// promises nothing, and what goes wrong is the flush's error.
    fn begin_write_out(&self, _offset: u64, _len: u64) {}

    /// Tells the device that these bytes will be read soon. A hint, for at most [`READ_AHEAD_UNIT`] bytes: nothing
    /// comes of it where they do not exist or cannot be read.
    fn begin_read(&self, _offset: u64, _len: u64) {}

    /// Tells the device that nobody needs these bytes; afterwards they read as anything, until they are written.
    /// Devices without discard support return `Ok(())`, as this default does.
    fn discard(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    /// Whether the device may support discard: `false` once it has said that it does not.
    fn supports_discard(&self) -> bool {
        true
    }

    /// The name of the device in messages: its path.
    fn name(&self) -> String;

    /// Whether this path leads to the device.
    fn is_at(&self, path: &Path) -> bool {
        Path::new(&self.name()) == path
    }

    /// Whether every write would be refused.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Bytes that the storage has now: less than [`len`](Self::len) when somebody has cut it off since it was opened.
    fn current_len(&self) -> io::Result<u64> {
        Ok(self.len())
    }

    /// Takes note that the storage has grown; returns the bytes of the device from now on.
    fn notice_growth(&self) -> io::Result<u64> {
        Ok(self.len())
    }

    /// Gives the storage another length, where that can be: an image file.
    fn set_len(&self, _len: u64) -> io::Result<()> {
        let message = format!("{} is no file that could get another length", self.name());
        Err(io::Error::new(io::ErrorKind::Unsupported, message))
    }

    /// Like [`read_at`](Self::read_at), but from the storage itself where a cache of the device could hide what another
    /// program or machine has written there.
    fn read_fresh(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.read_at(offset, buf)
    }

    /// Whether [`read_uncached`](Self::read_uncached) goes past a cache, so that long reads are fast without
    /// [`begin_read`](Self::begin_read).
    fn has_uncached_reads(&self) -> bool {
        false
    }

    /// Like [`read_at`](Self::read_at), but what the storage holds and not what a cache of this machine does, where it
    /// can. Fastest into an [`AlignedBuffer`].
    fn read_uncached(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.read_at(offset, buf)
    }

    /// The first offset from `offset` on whose byte may be other than zero: the bytes before it are a hole of an image
    /// file. The length of the device where only a hole follows; `offset` itself where nothing is known of holes.
    fn next_data(&self, offset: u64) -> u64 {
        offset
    }

    /// The use that the kernel makes of the filesystem with this UUID on the same storage, or on what may be the same:
    /// a part of a sentence, as in `part of a btrfs that the kernel has mounted from /dev/loop0`.
    fn kernel_use(&self, _fsid: &[u8; 16]) -> Option<String> {
        None
    }
}

/// The error for a read outside of the device, if it is one.
fn check_read(device: &dyn BlockDevice, offset: u64, len: usize) -> io::Result<()> {
    if lies_inside(device, offset, len as u64) {
        return Ok(());
    }
    let message = format!("read of {len} bytes at {offset} is outside of {} ({} bytes)", device.name(), device.len());
    Err(io::Error::new(io::ErrorKind::UnexpectedEof, message))
}

/// The error for a write or discard outside of the device or on one that is read-only, if it is one.
fn check_write(device: &dyn BlockDevice, offset: u64, len: u64) -> io::Result<()> {
    if device.is_read_only() {
        let message = format!("{} is open read-only", device.name());
        return Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, message));
    }
    if lies_inside(device, offset, len) {
        return Ok(());
    }
    let message = format!("write of {len} bytes at {offset} is outside of {} ({} bytes)", device.name(), device.len());
    Err(io::Error::new(io::ErrorKind::InvalidInput, message))
}

fn lies_inside(device: &dyn BlockDevice, offset: u64, len: u64) -> bool {
    offset.checked_add(len).is_some_and(|end| end <= device.len())
}
