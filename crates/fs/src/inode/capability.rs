//! The value of `security.capability`, checked as the kernel checks it in `setxattr(2)`: what it refuses there it would
//! not understand when the file is executed.

use crate::error::{Errno, Error, Result};

/// `VFS_CAP_REVISION_2` and `VFS_CAP_REVISION_3`, with the size of a value: the latter ends in a user id.
const REVISIONS: [(u32, usize); 2] = [(0x0200_0000, 20), (0x0300_0000, 24)];
/// `VFS_CAP_FLAGS_EFFECTIVE`, the only flag beside the revision.
const EFFECTIVE: u32 = 1;

/// Refuses a value that is no set of capabilities. The empty value passes, as it does in the kernel.
pub fn check(value: &[u8]) -> Result<()> {
    if value.is_empty() {
        return Ok(());
    }
    let magic = value.first_chunk().map(|bytes| u32::from_le_bytes(*bytes) & !EFFECTIVE);
    let is_known = REVISIONS.iter().any(|(revision, len)| magic == Some(*revision) && value.len() == *len);
    if !is_known || value.get(20..).is_some_and(|user| user == [0xff; 4]) {
        return Err(Error::refused(Errno::EINVAL, "the value is no set of file capabilities"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values that Linux 6.18 accepted and refused.
    #[test]
    fn values_are_taken_as_the_kernel_takes_them() {
        let value = |magic: u32, len: usize| [&magic.to_le_bytes()[..], &vec![0; len - 4]].concat();
        for (magic, len) in [(0x0200_0000, 20), (0x0200_0001, 20), (0x0300_0000, 24), (0x0300_0001, 24)] {
            assert!(check(&value(magic, len)).is_ok(), "{magic:x} {len}");
        }
        let refused = [
            (0x0200_0000, 12),
            (0x0200_0000, 24),
            (0x0200_0002, 20),
            (0x0201_0000, 20),
            (0x0300_0000, 20),
            (0x0300_0001, 28),
            (0x0100_0000, 12),
            (0x0400_0000, 20),
            (0, 20),
        ];
        for (magic, len) in refused {
            assert!(check(&value(magic, len)).is_err(), "{magic:x} {len}");
        }
        assert!(check(b"").is_ok() && check(b"abc").is_err());
        let of_user = |user: [u8; 4]| [&value(0x0300_0001, 20)[..], &user].concat();
        assert!(check(&of_user([5, 0, 0, 0])).is_ok() && check(&of_user([0xff; 4])).is_err());
    }
}
