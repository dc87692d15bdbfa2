//! The property `btrfs.compression`: which values it has, what they do to the inode's flags, what is inherited.
//!
//! Pure functions; the attribute itself is an ordinary one.

use crate::error::{Errno, Error, Result};
use crate::inode::InodeState;
use crate::inode::attr::mode;
use butterfs_ondisk::features::incompat;
use butterfs_ondisk::items::inode_flags;

/// Prefix of the names of properties.
pub const PREFIX: &[u8] = b"btrfs.";
/// The one property there is.
pub const COMPRESSION: &[u8] = b"btrfs.compression";

/// What a value of the property asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// As the mount and the heuristics say; the attribute is removed.
    Unset,
    /// Never.
    Never,
    /// zlib.
    Zlib,
    /// LZO.
    Lzo,
    /// zstd.
    Zstd,
}

const ALGORITHMS: [(&[u8], Compression); 3] =
    [(b"zlib", Compression::Zlib), (b"lzo", Compression::Lzo), (b"zstd", Compression::Zstd)];

impl Compression {
    /// Reads a value: an algorithm, with or without `:level`, or `no` or `none`, or nothing.
    pub fn parse(value: &[u8]) -> Result<Compression> {
        if let b"no" | b"none" = value {
            return Ok(Compression::Never);
        }
        if value.is_empty() {
            return Ok(Compression::Unset);
        }
        let (name, level) = match value.iter().position(|byte| *byte == b':') {
            Some(colon) => (&value[..colon], &value[colon + 1..]),
            None => (value, &[][..]),
        };
        let known = ALGORITHMS.iter().find(|(text, _)| *text == name);
        match known {
            Some((_, algorithm)) if level.iter().all(u8::is_ascii_digit) => Ok(*algorithm),
            _ => Err(Error::refused(Errno::EINVAL, "btrfs.compression is one of zlib, lzo, zstd, none")),
        }
    }

    /// The value that new entries of a directory inherit.
    pub fn inherited_value(self) -> Option<&'static [u8]> {
        ALGORITHMS.iter().find(|(_, algorithm)| *algorithm == self).map(|(text, _)| *text)
    }

    /// The incompat feature that data written under this property needs.
    pub fn incompat(self) -> u64 {
        match self {
            Compression::Lzo => incompat::COMPRESS_LZO,
            Compression::Zstd => incompat::COMPRESS_ZSTD,
            _ => 0,
        }
    }

    /// What it does to the inode's flags.
    pub fn apply(self, state: &mut InodeState) {
        state.clear_flags(inode_flags::COMPRESS | inode_flags::NOCOMPRESS);
        match self {
            Compression::Unset => {}
            Compression::Never => state.set_flags(inode_flags::NOCOMPRESS),
            Compression::Zlib | Compression::Lzo | Compression::Zstd => state.set_flags(inode_flags::COMPRESS),
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
        for (value, want) in [
            (&b"zlib"[..], Some(Compression::Zlib)),
            (b"zstd:3", Some(Compression::Zstd)),
            (b"lzo", Some(Compression::Lzo)),
            (b"no", Some(Compression::Never)),
            (b"none", Some(Compression::Never)),
            (b"", Some(Compression::Unset)),
            (b"zstdx", None),
            (b"zstd:x", None),
            (b"lz4", None),
        ] {
            assert_eq!(Compression::parse(value).ok(), want, "{value:?}");
        }
        assert_eq!(Compression::Zstd.inherited_value(), Some(&b"zstd"[..]));
        assert_eq!(Compression::Never.inherited_value(), None);
    }
}
