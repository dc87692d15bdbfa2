//! A loop device over an image file, for as long as somebody has it open.

use crate::system::{self, LoopConfig, LoopInfo};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const AUTOCLEAR: u32 = 4;
/// Others may take the free device that was found before it is ours.
const ATTEMPTS: usize = 16;

/// An attached loop device. It is detached when the last user has closed it; the holder of this value is one.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    _open: OwnedFd,
}

impl LoopDevice {
    /// Attaches one to `image`, showing `name` to `losetup`. It is read-only where `image` is not open for writing.
    pub fn attach(image: BorrowedFd<'_>, name: &Path) -> io::Result<LoopDevice> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let control = rustix::fs::open("/dev/loop-control", flags, Mode::empty())?;
        let config = config(image, name);
        let mut last = Errno::BUSY.into();
        for _ in 0..ATTEMPTS {
            let path = PathBuf::from(format!("/dev/loop{}", system::free_loop_device(control.as_fd())?));
            let open = rustix::fs::open(&path, flags, Mode::empty())?;
            match system::configure_loop_device(open.as_fd(), config) {
                Ok(()) => return Ok(LoopDevice { path, _open: open }),
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    /// Its node.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn config(image: BorrowedFd<'_>, name: &Path) -> LoopConfig {
    let mut file_name = [0; 64];
    let shown = name.as_os_str().as_bytes();
    let len = shown.len().min(file_name.len() - 1);
    file_name[..len].copy_from_slice(&shown[..len]);
    let info = LoopInfo {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        sizelimit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: AUTOCLEAR,
        file_name,
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
    LoopConfig { fd: image.as_raw_fd() as u32, block_size: 0, info, reserved: [0; 8] }
}
