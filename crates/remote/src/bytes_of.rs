//! Numbers in bytes, the lowest byte first, and digests.

/// Bytes of a digest.
pub const DIGEST: usize = 16;

/// The first 16 bytes of BLAKE3.
pub type Digest = [u8; DIGEST];

/// The digest of these bytes.
pub fn digest(bytes: &[u8]) -> Digest {
    let hash = blake3::hash(bytes);
    *hash.as_bytes().first_chunk().expect("it has 32 bytes")
}

/// The bytes of hexadecimal digits, if they are exactly so many.
pub fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    hex::decode_to_slice(text, &mut bytes).ok().map(|()| bytes)
}

/// Takes numbers from the front of bytes; `None` at their end.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// So many bytes.
    pub fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        self.0.split_off(..len)
    }

    /// An array.
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N).and_then(|bytes| bytes.try_into().ok())
    }

    /// A byte.
    pub fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// A number of 2 bytes.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// A number of 4 bytes.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// A number of 8 bytes.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}
