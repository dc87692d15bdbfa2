//! Devices.

use crate::callbacks::{CallbackDevice, butterfs_device_ops};
use crate::error::{Failure, Outcome, free, object, path, pointer};
use butterfs::Device;
use libc::c_char;

/// Storage that holds a filesystem, or one of its devices.
pub struct DeviceHandle(Device);

/// A file or block device; it is opened, and locked, when it is used. Free it with butterfs_device_free.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_device_path(at: *const c_char) -> *mut DeviceHandle {
    pointer(|| Ok(DeviceHandle(Device::path(path(at)?))))
}

/// A new, sparse file of `len` bytes.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_device_create(at: *const c_char, len: u64) -> *mut DeviceHandle {
    pointer(|| Ok(DeviceHandle(Device::create(path(at)?, len)?)))
}

/// `len` bytes of memory, all zero.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_device_memory(len: u64) -> *mut DeviceHandle {
    pointer(|| Ok(DeviceHandle(Device::memory(len))))
}

/// A part of a device, such as a partition of a disk image. The device may be freed afterwards.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_device_window(whole: *const DeviceHandle, start: u64, len: u64) -> *mut DeviceHandle {
    pointer(|| {
        let end = start.checked_add(len).ok_or_else(|| Failure::new(libc::EINVAL, "the window is too long"))?;
        Ok(DeviceHandle(object(whole)?.0.clone().window(start..end)))
    })
}

/// Storage of your own. The functions are used until `release` is called.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_device_custom(ops: *const butterfs_device_ops) -> *mut DeviceHandle {
    pointer(|| {
        let ops = *object(ops)?;
        if ops.read.is_none() {
            return Err(Failure::new(libc::EINVAL, "a device needs a function that reads"));
        }
        Ok(DeviceHandle(Device::custom(CallbackDevice(ops))))
    })
}

/// Frees a device. An open filesystem keeps its storage. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn butterfs_device_free(device: *mut DeviceHandle) {
    free(device);
}

/// The devices of an array.
pub fn all(devices: *const *const DeviceHandle, count: usize) -> Outcome<Vec<Device>> {
    if devices.is_null() {
        return Err(Failure::new(libc::EINVAL, "the array of devices is NULL"));
    }
    // SAFETY: by the header's rules the array has `count` pointers.
    let pointers = unsafe { std::slice::from_raw_parts(devices, count) };
    pointers.iter().map(|device| Ok(object(*device)?.0.clone())).collect()
}
