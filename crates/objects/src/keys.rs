//! Encryption: keys that are derived from one secret, which the object `repository` holds wrapped for its recipients.
//!
//! ```text
//! sealed = nonce:24 ciphertext tag:16        XChaCha20-Poly1305
//! ```
//! # Invariants
//! 1. The nonce is a keyed digest of the sealed bytes: equal bytes give equal objects, and different ones never share a
//!    nonce.
//! 2. Digests of plain bytes, and names of snapshots in keys, are keyed: nothing that the store sees tells whether it
//!    holds a known file.

use crate::digest::Digest;
use chacha20poly1305::aead::Aead as _;
use chacha20poly1305::{KeyInit as _, XChaCha20Poly1305, XNonce};

/// Bytes that sealing adds.
pub const SEAL_BYTES: usize = 24 + 16;

/// See the [module](self).
pub struct Keys {
    cipher: XChaCha20Poly1305,
    nonce: [u8; 32],
    digest: [u8; 32],
    name: [u8; 32],
}

impl Keys {
    /// The keys of a secret.
    pub fn of(secret: &[u8; 32]) -> Keys {
        let derived = |word: &str| Digest::keyed(secret, word.as_bytes()).0;
        Keys {
            cipher: XChaCha20Poly1305::new(&derived("seal").into()),
            nonce: derived("nonce"),
            digest: derived("digest"),
            name: derived("name"),
        }
    }

    /// The key of digests of plain bytes.
    pub fn of_digests(&self) -> &[u8; 32] {
        &self.digest
    }

    /// The part of a key that stands for these bytes.
    pub fn name(&self, bytes: &[u8]) -> String {
        Digest::keyed(&self.name, bytes).to_string()[..32].to_owned()
    }

    /// Appends bytes, sealed.
    pub fn seal(&self, bytes: &[u8], out: &mut Vec<u8>) {
        let nonce = Digest::keyed(&self.nonce, bytes).0;
        let nonce = XNonce::from_slice(&nonce[..24]);
        let sealed = self.cipher.encrypt(nonce, bytes).expect("the bytes are far below the cipher's limit");
        out.extend_from_slice(nonce);
        out.extend_from_slice(&sealed);
    }

    /// The bytes that were sealed; `None` where they were changed, or sealed with other keys.
    pub fn open(&self, sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, sealed) = sealed.split_at_checked(24)?;
        self.cipher.decrypt(XNonce::from_slice(nonce), sealed).ok()
    }
}
