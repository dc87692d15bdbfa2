//! An encoded write, in terms of the codecs.

use super::Failure;
use crate::wire::Command;
use butterfs_fs::Errno;
use butterfs_fs::file::Encoded;
use butterfs_fs::file::codec::Algorithm;

/// The extent of an encoded write; `sectorsize` is the target's, which compressors but LZO do not care about.
pub(super) fn of<'a>(command: &Command<'a>, sectorsize: u32) -> Result<Encoded<'a>, Failure> {
    let Command::EncodedWrite {
        unencoded_file_len,
        unencoded_len,
        unencoded_offset,
        compression,
        encryption,
        data,
        ..
    } = *command
    else {
        return Err(Failure::new(Errno::EINVAL, "not an encoded write"));
    };
    if encryption != 0 {
        return Err(Failure::new(Errno::EOPNOTSUPP, "encrypted data is not supported"));
    }
    let (algorithm, sectorsize) = match compression {
        1 => (Algorithm::Zlib, sectorsize),
        2 => (Algorithm::Zstd, sectorsize),
        3..=7 => (Algorithm::Lzo, 4096 << (compression - 3)),
        other => return Err(Failure::new(Errno::EOPNOTSUPP, format!("unknown compression: {other}"))),
    };
    Ok(Encoded { algorithm, sectorsize, data, unencoded_len, unencoded_offset, file_len: unencoded_file_len })
}

/// The bytes that a file gets by an encoded write. Those of a target with other sectors than 4096 bytes are the same.
pub fn decoded(command: &Command<'_>) -> Result<Vec<u8>, Failure> {
    let encoded = of(command, 4096)?;
    let content = encoded.decode()?;
    Ok(encoded.window(&content).to_vec())
}

/// Major and minor of a device number in the kernel's encoding of 32 bits.
pub(super) fn device_numbers(rdev: u64) -> Result<(u32, u32), Failure> {
    let dev =
        u32::try_from(rdev).map_err(|_| Failure::new(Errno::EINVAL, "the device number has more than 32 bits"))?;
    Ok(((dev >> 8) & 0xfff, (dev & 0xff) | ((dev >> 12) & 0xf_ff00)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_are_those_of_the_kernel() {
        assert_eq!(device_numbers(0x501), Ok((5, 1)));
        assert_eq!(device_numbers(0x4931_03e0), Ok((259, 300_000)));
        assert!(device_numbers(1 << 32).is_err());
    }
}
