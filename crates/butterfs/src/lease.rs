//! Devices in use: one writer, or any number of readers, until the filesystem is closed.
//!
//! Files and block devices have locks for that; [`Storage`] counts the users of everything that is open already. A
//! filesystem gives its devices back when it is closed, whatever was opened from it.

use butterfs_device::BlockDevice;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// A device that is open, and its users in this process.
#[derive(Clone, Debug)]
pub(crate) struct Storage {
    pub(crate) device: Arc<dyn BlockDevice>,
    users: Arc<Mutex<Users>>,
}

#[derive(Debug, Default)]
struct Users {
    readers: usize,
    is_written: bool,
}

impl Storage {
    pub(crate) fn new(device: Arc<dyn BlockDevice>) -> Storage {
        Storage { device, users: Arc::default() }
    }

    /// The right to read it with others, or to be the only one that writes it. None if that cannot be now.
    pub(crate) fn claim(&self, writes: bool) -> Option<Claim> {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if users.is_written || (writes && users.readers > 0) {
            return None;
        }
        match writes {
            true => users.is_written = true,
            false => users.readers += 1,
        }
        Some(Claim { users: Arc::clone(&self.users), writes })
    }
}

/// See [`Storage::claim`].
#[derive(Debug)]
pub(crate) struct Claim {
    users: Arc<Mutex<Users>>,
    writes: bool,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        match self.writes {
            true => users.is_written = false,
            false => users.readers -= 1,
        }
    }
}

/// A device in use. [`close`](Self::close) gives it back; from then on it has no bytes and refuses everything.
#[derive(Debug)]
pub(crate) struct LeasedDevice {
    name: String,
    open: RwLock<Option<Open>>,
}

#[derive(Debug)]
struct Open {
    device: Arc<dyn BlockDevice>,
    _claim: Option<Claim>,
}

impl LeasedDevice {
    pub(crate) fn new(device: Arc<dyn BlockDevice>, claim: Option<Claim>) -> LeasedDevice {
        LeasedDevice { name: device.name(), open: RwLock::new(Some(Open { device, _claim: claim })) }
    }

    /// Gives the device back, after the requests that are under way.
    pub(crate) fn close(&self) {
        self.open.write().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn with<R>(&self, request: impl FnOnce(&dyn BlockDevice) -> R) -> Option<R> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.as_ref().map(|open| request(&*open.device))
    }

    fn request<R>(&self, request: impl FnOnce(&dyn BlockDevice) -> io::Result<R>) -> io::Result<R> {
        self.with(request).unwrap_or_else(|| Err(io::Error::other("the filesystem is closed")))
    }
}

impl BlockDevice for LeasedDevice {
    fn len(&self) -> u64 {
        self.with(|device| device.len()).unwrap_or(0)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.request(|device| device.read_at(offset, buf))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.request(|device| device.write_at(offset, data))
    }

    fn flush(&self) -> io::Result<()> {
        self.request(|device| device.flush())
    }

    fn write_uncached(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.request(|device| device.write_uncached(offset, data))
    }

    fn begin_write_out(&self, offset: u64, len: u64) {
        self.with(|device| device.begin_write_out(offset, len));
    }

    fn begin_read(&self, offset: u64, len: u64) {
        self.with(|device| device.begin_read(offset, len));
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.request(|device| device.discard(offset, len))
    }

    fn supports_discard(&self) -> bool {
        self.with(|device| device.supports_discard()).unwrap_or(false)
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn is_at(&self, path: &Path) -> bool {
        self.with(|device| device.is_at(path)).unwrap_or(false)
    }

    fn is_read_only(&self) -> bool {
        self.with(|device| device.is_read_only()).unwrap_or(true)
    }

    fn current_len(&self) -> io::Result<u64> {
        self.request(|device| device.current_len())
    }

    fn notice_growth(&self) -> io::Result<u64> {
        self.request(|device| device.notice_growth())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.request(|device| device.set_len(len))
    }

    fn read_fresh(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.request(|device| device.read_fresh(offset, buf))
    }

    fn has_uncached_reads(&self) -> bool {
        self.with(|device| device.has_uncached_reads()).unwrap_or(false)
    }

    fn read_uncached(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.request(|device| device.read_uncached(offset, buf))
    }

    fn kernel_use(&self, fsid: &[u8; 16]) -> Option<String> {
        self.with(|device| device.kernel_use(fsid)).flatten()
    }
}

/// The devices of a filesystem, without keeping them open: one that was removed is given back at once.
#[derive(Debug, Default)]
pub(crate) struct Leases(Mutex<Vec<std::sync::Weak<LeasedDevice>>>);

impl Leases {
    pub(crate) fn add(&self, device: &Arc<LeasedDevice>) {
        let mut leases = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        leases.retain(|lease| lease.strong_count() > 0);
        leases.push(Arc::downgrade(device));
    }

    pub(crate) fn close(&self) {
        let leases = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        leases.iter().filter_map(std::sync::Weak::upgrade).for_each(|device| device.close());
    }
}
