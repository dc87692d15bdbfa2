//! The property `btrfs.compression`: which values it has, what they do to the inode's flags, what is inherited.
//!
//! Pure functions; the attribute itself is an ordinary one.

use crate::error::{Errno, Error, Result};
use crate::inode::InodeState;
use crate::inode::attr::mode;
use crate::options::Method;
use butterfs_ondisk::items::inode_flags;

/// Prefix of the names of properties.
pub const PREFIX: &[u8] = b"btrfs.";
/// The one property there is.
pub const COMPRESSION: &[u8] = b"btrfs.compression";

/// The compression that a value of the property asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// As the mount and the heuristics say; the attribute is removed.
    Unset,
    /// Never.
    Never,
    /// By this method.
    Method(Method),
}

impl Compression {
    /// Reads a value: an algorithm, with or without `:level`, or `no` or `none`, or nothing.
    pub fn parse(value: &[u8]) -> Result<Compression> {
        if let b"no" | b"none" = value {
            return Ok(Compression::Never);
        }
        if value.is_empty() {
            return Ok(Compression::Unset);
        }
        let text = std::str::from_utf8(value).unwrap_or_default();
        let (name, level) = text.split_once(':').unwrap_or((text, ""));
        // A level that makes no sense here is taken for the default one, so long as it is a number.
        let method = Method::parse(text).or_else(|| Method::parse(name));
        match method {
            Some(method) if level.bytes().all(|byte| byte.is_ascii_digit()) => Ok(Compression::Method(method)),
            _ => Err(Error::refused(Errno::EINVAL, "btrfs.compression is one of zlib, lzo, zstd, none")),
        }
    }

    /// The method, if there is one.
    pub fn method(self) -> Option<Method> {
        if let Compression::Method(method) = self { Some(method) } else { None }
    }

    /// The value that new entries of a directory inherit.
    pub fn inherited_value(self) -> Option<&'static [u8]> {
        self.method().map(|method| method.algorithm.name().as_bytes())
    }

    /// The incompat feature that data written under this property needs.
    pub fn incompat(self) -> u64 {
        self.method().map_or(0, |method| method.algorithm.incompat())
    }

    /// Sets the inode's flags accordingly.
    pub fn apply(self, state: &mut InodeState) {
        state.clear_flags(inode_flags::COMPRESS | inode_flags::NOCOMPRESS);
        match self {
            Compression::Unset => {}
            Compression::Never => state.set_flags(inode_flags::NOCOMPRESS),
            Compression::Method(_) => state.set_flags(inode_flags::COMPRESS),
        }
    }
}

/// Whether the property means anything for the inode. As in the kernel, setting it on others does nothing.
pub fn concerns(state: &InodeState) -> bool {
    matches!(state.mode() & mode::S_IFMT, mode::S_IFREG | mode::S_IFDIR)
}

/// Refuses the property on an inode that cannot have it.
pub fn check_inode(state: &InodeState, value: Compression) -> Result<()> {
    if value != Compression::Unset && state.has(inode_flags::NODATACOW | inode_flags::NODATASUM) {
        return Err(Error::refused(Errno::EINVAL, "an inode without copy-on-write or checksums is not compressed"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values() {
        let method = |text| Method::parse(text).map(Compression::Method);
        for (value, want) in [
            (&b"zlib"[..], method("zlib")),
            (b"zstd:3", method("zstd")),
            (b"zstd:9", method("zstd:9")),
            (b"zstd:", method("zstd")),
            (b"zstd:99999999999", method("zstd")),
            (b"lzo", method("lzo")),
            (b"no", Some(Compression::Never)),
            (b"none", Some(Compression::Never)),
            (b"", Some(Compression::Unset)),
            (b"zstdx", None),
            (b"zstd:x", None),
            (b"zstd:-1", None),
            (b"lz4", None),
        ] {
            assert_eq!(Compression::parse(value).ok(), want, "{value:?}");
        }
        assert_eq!(Compression::parse(b"zstd:3").unwrap().inherited_value(), Some(&b"zstd"[..]));
        assert_eq!(Compression::Never.inherited_value(), None);
    }
}
