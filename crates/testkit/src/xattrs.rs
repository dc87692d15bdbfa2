//! Extended attributes of a path as the system shows them; symbolic links are not followed.

use rustix::fs::{lgetxattr, llistxattr};
use rustix::io::Errno;
use std::path::Path;

/// The names, in the order of the system.
pub(crate) fn names(path: &Path) -> Result<Vec<Vec<u8>>, Errno> {
    let list = answer(|list| llistxattr(path, list))?;
    Ok(list.split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect())
}

/// The value of one.
pub(crate) fn value(path: &Path, name: &[u8]) -> Result<Vec<u8>, Errno> {
    answer(|value| lgetxattr(path, name, value))
}

/// The bytes that a call puts into a buffer: a small one first, for most answers are short and there are many.
fn answer(ask: impl Fn(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    let mut buffer = vec![0; 256];
    let len = match ask(&mut buffer) {
        Err(Errno::RANGE) => {
            buffer = vec![0; 65536];
            ask(&mut buffer)?
        }
        other => other?,
    };
    buffer.truncate(len);
    Ok(buffer)
}
