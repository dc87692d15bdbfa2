//! The part of a device that is not zero.

use crate::BlockDevice;
use std::io;

/// Bytes that are read, and left out where they are zero, at once.
const PIECE: usize = 64 << 10;

/// Whether all of `bytes` are zero.
///
/// ```
/// assert!(butterfs_device::is_zero(&[0; 10_000]));
/// assert!(!butterfs_device::is_zero(b"\0\0x"));
/// ```
pub fn is_zero(bytes: &[u8]) -> bool {
    // Comparing memory is many times as fast as looking at each byte.
    const ZEROS: [u8; 4096] = [0; 4096];
    bytes.chunks(ZEROS.len()).all(|chunk| *chunk == ZEROS[..chunk.len()])
}

/// Writes what is not zero of `from` onto `to`, at the same places. Holes of `from` are not read.
///
/// # Errors
/// Those of the devices; a write past the end of `to` is one of kind `InvalidInput`.
///
/// ```
/// use butterfs_device::{BlockDevice, MemoryDevice, copy_content};
/// let (from, to) = (MemoryDevice::new(1 << 40), MemoryDevice::new(1 << 40));
/// from.write_at(1 << 35, b"content")?;
/// copy_content(&from, &to)?;
/// let mut read = [0; 7];
/// to.read_at(1 << 35, &mut read)?;
/// assert_eq!(&read, b"content");
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn copy_content(from: &dyn BlockDevice, to: &dyn BlockDevice) -> io::Result<()> {
    let mut buffer = vec![0; PIECE];
    let mut at = from.next_data(0);
    while at < from.len() {
        let piece = &mut buffer[..(from.len() - at).min(PIECE as u64) as usize];
        from.read_at(at, piece)?;
        if !is_zero(piece) {
            to.write_at(at, piece)?;
        }
        at = from.next_data(at + piece.len() as u64);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    #[test]
    fn zeros_are_told_from_one_bit() {
        for len in [0, 1, 4095, 4096, 4097, 10_000] {
            let mut bytes = vec![0; len];
            assert!(is_zero(&bytes), "{len}");
            if let Some(last) = bytes.last_mut() {
                *last = 1;
                assert!(!is_zero(&bytes), "{len}");
            }
        }
    }

    #[test]
    fn everything_is_copied_but_zeros() {
        const LEN: u64 = (20 << 20) + 1000;
        let (from, to) = (MemoryDevice::new(LEN), MemoryDevice::new(LEN));
        // At both ends, across pieces, and written zeros.
        for (at, len) in [(0, 1), (LEN - 1, 1), (65_000, 1000), ((9 << 20) + 5, 200_000)] {
            from.write_at(at, &vec![7; len]).unwrap();
        }
        from.write_at(15 << 20, &[0; 300_000]).unwrap();
        copy_content(&from, &to).unwrap();
        assert!(to.to_bytes() == from.to_bytes());
        assert!(to.next_data(15 << 20) > (15 << 20) + 300_000);
        assert!(copy_content(&from, &MemoryDevice::new(LEN - 1)).is_err());
    }
}
