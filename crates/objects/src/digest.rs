//! The digest that pieces and segments are known by: BLAKE2b with 32 bytes.

use blake2b_simd::Params;
use blake2b_simd::many::{HashManyJob, hash_many};
use std::fmt;

/// See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The digest of these bytes.
    pub fn of(bytes: &[u8]) -> Digest {
        Digest::from_hash(&params(None).hash(bytes))
    }

    /// The digest with a key.
    pub fn keyed(key: &[u8; 32], bytes: &[u8]) -> Digest {
        Digest::from_hash(&params(Some(key)).hash(bytes))
    }

    /// The digests of several runs of bytes, in their order: a processor computes some of them at once, in a third of
    /// the time.
    pub fn of_each<'b>(key: Option<&[u8; 32]>, inputs: impl IntoIterator<Item = &'b [u8]>) -> Vec<Digest> {
        let params = params(key);
        let mut jobs: Vec<HashManyJob<'_>> = inputs.into_iter().map(|bytes| HashManyJob::new(&params, bytes)).collect();
        hash_many(jobs.iter_mut());
        jobs.iter().map(|job| Digest::from_hash(&job.to_hash())).collect()
    }

    fn from_hash(hash: &blake2b_simd::Hash) -> Digest {
        Digest(hash.as_bytes().try_into().expect("the hash has 32 bytes"))
    }

    /// The digest of 64 hexadecimal digits.
    pub fn from_hex(text: &str) -> Option<Digest> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).ok().map(|()| Digest(bytes))
    }
}

fn params(key: Option<&[u8; 32]>) -> Params {
    let mut params = Params::new();
    params.hash_length(32);
    if let Some(key) = key {
        params.key(key);
    }
    params
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_digests_at_once_are_those_of_one_at_a_time() {
        let bytes: Vec<u8> = (0..100_000_u32).map(|number| (number.wrapping_mul(number) >> 7) as u8).collect();
        let lens = [0, 1, 127, 128, 129, 5000, 65536, 3, 99_999, 4096, 0];
        let inputs = || lens.iter().map(|len| &bytes[..*len]);
        for key in [None, Some(&[7; 32])] {
            let one = |input| key.map_or_else(|| Digest::of(input), |key| Digest::keyed(key, input));
            assert_eq!(Digest::of_each(key, inputs()), inputs().map(one).collect::<Vec<_>>());
        }
    }
}
