//! File names that are hard on a directory: with equal hashes, of the greatest length, and of any byte.
//!
//! Invariant: names of one collision group have the same CRC-32C from every seed, so they collide as directory items
//! (fixed seed) and as extended inode references (the parent's number is the seed) alike.

use std::collections::HashMap;
use std::sync::OnceLock;

/// The greatest length of a name in bytes.
pub const NAME_MAX: usize = 255;

/// CRC-32C without initial or final inversion, bit by bit: slow, and independent of the code under test.
pub fn raw_crc32c(seed: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(seed, |mut crc, byte| {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
        }
        crc
    })
}

/// `count` pairs of seven-byte printable names with equal hashes.
///
/// The checksum is linear: names of equal length that agree from one seed agree from every seed, and joining the
/// members of different pairs gives groups of any size.
fn pairs() -> &'static [[Vec<u8>; 2]] {
    static PAIRS: OnceLock<Vec<[Vec<u8>; 2]>> = OnceLock::new();
    PAIRS.get_or_init(|| {
        let mut seen: HashMap<u32, Vec<u8>> = HashMap::new();
        let mut found = Vec::new();
        for number in 0u32.. {
            let name = format!("{:07x}", number.wrapping_mul(0x9e37_79b1) >> 4).into_bytes();
            match seen.insert(raw_crc32c(1, &name), name.clone()) {
                Some(other) if other != name => found.push([other, name]),
                _ => {}
            }
            if found.len() == 8 {
                break;
            }
        }
        found
    })
}

/// A group of `2^bits` different names (up to 256) with one hash; groups with different `tag`s share no name.
pub fn colliding(tag: &str, bits: usize) -> Vec<Vec<u8>> {
    let pairs = &pairs()[..bits];
    let member = |index: usize| {
        let parts = pairs.iter().enumerate().flat_map(|(bit, pair)| pair[index >> bit & 1].iter().copied());
        parts.chain(tag.bytes()).collect()
    };
    (0..1 << bits).map(member).collect()
}

/// A name of the greatest length, different for each `number`.
pub fn longest(number: u64) -> Vec<u8> {
    let mut name = format!("long-{number}-").into_bytes();
    name.resize(NAME_MAX, b'x');
    name
}

/// A name with bytes that are no text.
pub fn odd(number: u64) -> Vec<u8> {
    [&[0xff, 0xfe, b' ', b'\n', b'\\', b'"', 0x01][..], number.to_string().as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_checksum_is_the_known_one() {
        assert_eq!(!raw_crc32c(!0, b"123456789"), 0xe306_9283);
    }

    #[test]
    fn groups_collide_from_every_seed() {
        for seed in [0xffff_fffe, 256, 0x1234_5678] {
            let group = colliding("-a", 4);
            let hashes: BTreeSet<u32> = group.iter().map(|name| raw_crc32c(seed, name)).collect();
            assert_eq!(hashes.len(), 1);
            assert_eq!(group.iter().collect::<BTreeSet<_>>().len(), 16);
        }
    }
}
