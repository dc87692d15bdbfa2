//! UUIDs that follow from a seed, each from what it is for.

use sha2::{Digest, Sha256};

/// See the [module](self).
#[derive(Clone)]
pub struct Seed([u8; 32]);

impl Seed {
    /// The seed that these bytes are.
    pub fn of(bytes: &[u8]) -> Seed {
        Seed(Sha256::digest(bytes).into())
    }

    /// One that nobody had before.
    pub fn random() -> Seed {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).expect("the system has a source of randomness");
        Seed(bytes)
    }

    /// A hasher for [`from_hasher`](Self::from_hasher).
    pub fn hasher() -> Sha256 {
        Sha256::new()
    }

    /// The seed that follows from what was hashed.
    pub fn from_hasher(hasher: Sha256) -> Seed {
        Seed(hasher.finalize().into())
    }

    /// A UUID of version 8: its bits follow from the seed, from what it is for, and from which of these it is for.
    pub fn uuid(&self, purpose: &[u8], name: &[u8]) -> [u8; 16] {
        let mut hasher = Sha256::new();
        hasher.update(self.0);
        for part in [purpose, name] {
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        let digest = hasher.finalize();
        let bytes = digest[..16].try_into().expect("16 bytes");
        *uuid::Builder::from_custom_bytes(bytes).as_uuid().as_bytes()
    }
}
