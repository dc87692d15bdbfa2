//! The fs-verity digest of a file: a tree of hashes over its blocks, and the hash of a description with the tree's
//! root.

use crate::error::{Error, Result};
use sha2::digest::Digest;
use sha2::{Sha256, Sha512};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes of a block, of the file and of the tree.
const BLOCK: usize = 4096;

/// Compares the digest of a file of `size` bytes. Its length says which hash it is.
pub fn check(file: &File, size: u64, digest: &[u8]) -> Result<()> {
    let found = match digest.len() {
        32 => measure::<Sha256>(file, size, 1),
        64 => measure::<Sha512>(file, size, 2),
        len => return Err(Error::content(format!("a digest has 32 or 64 bytes, not {len}"))),
    };
    let found = found.map_err(|error| Error::source(format!("cannot read the object: {error}")))?;
    if found == digest {
        return Ok(());
    }
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    Err(Error::content(format!("the fs-verity digest is {}, but should be {}", hex(&found), hex(digest))))
}

/// The digest with the hash that has this number.
fn measure<H: Digest>(file: &File, size: u64, number: u8) -> io::Result<Vec<u8>> {
    let mut tree = Tree::<H>::default();
    let mut block = [0; BLOCK];
    for at in (0..size).step_by(BLOCK) {
        let len = BLOCK.min((size - at) as usize);
        file.read_exact_at(&mut block[..len], at)?;
        block[len..].fill(0);
        tree.add(0, &H::digest(block));
    }
    let root = tree.root();
    let mut description = [0; 256];
    // Version, hash, block size as a power of two; no salt.
    description[..3].copy_from_slice(&[1, number, BLOCK.trailing_zeros() as u8]);
    description[8..16].copy_from_slice(&size.to_le_bytes());
    description[16..16 + root.len()].copy_from_slice(&root);
    Ok(H::digest(description).to_vec())
}

/// The blocks of the tree that are not full yet, the leaves first.
struct Tree<H> {
    levels: Vec<Vec<u8>>,
    hash: std::marker::PhantomData<H>,
}

impl<H> Default for Tree<H> {
    fn default() -> Tree<H> {
        Tree { levels: Vec::new(), hash: std::marker::PhantomData }
    }
}

impl<H: Digest> Tree<H> {
    /// Adds a hash to a level. A full block is hashed when the level goes on, because the last one may be the root.
    fn add(&mut self, level: usize, hash: &[u8]) {
        if self.levels.len() == level {
            self.levels.push(Vec::with_capacity(BLOCK));
        }
        if self.levels[level].len() == BLOCK {
            self.close(level);
        }
        self.levels[level].extend_from_slice(hash);
    }

    fn close(&mut self, level: usize) {
        let mut block = std::mem::take(&mut self.levels[level]);
        block.resize(BLOCK, 0);
        self.add(level + 1, &H::digest(block));
    }

    /// The only hash of the highest level; zeros for an empty file.
    fn root(mut self) -> Vec<u8> {
        let len = <H as Digest>::output_size();
        let mut level = 0;
        while level < self.levels.len() {
            if level + 1 == self.levels.len() && self.levels[level].len() == len {
                return self.levels.remove(level);
            }
            self.close(level);
            level += 1;
        }
        vec![0; len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: &[u8]) -> File {
        let path = std::env::temp_dir().join(format!("butterfs-verity-{}-{}", std::process::id(), bytes.len()));
        std::fs::write(&path, bytes).unwrap();
        let file = File::open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file
    }

    fn digest(bytes: &[u8]) -> String {
        let found = measure::<Sha256>(&file(bytes), bytes.len() as u64, 1).unwrap();
        found.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Digests that `fsverity digest` of fsverity-utils prints.
    #[test]
    fn digests_are_those_of_fsverity() {
        for (len, want) in KNOWN {
            let bytes: Vec<u8> = (0..*len).map(|at: usize| (at % 251) as u8).collect();
            assert_eq!(digest(&bytes), *want, "{len}");
        }
        let long = "7bf994782b368ecc4e20ce9144701b1a30524d5bbc90987625de22eebc8cf370\
            ec846c1b5e77f9099c6f6cfc0b590359b9ac8083a43e5f7fa5ec05a25dab6e03";
        let digest: Vec<u8> = (0..64).map(|at| u8::from_str_radix(&long[at * 2..at * 2 + 2], 16).unwrap()).collect();
        let bytes: Vec<u8> = (0..4096).map(|at: usize| (at % 251) as u8).collect();
        check(&file(&bytes), 4096, &digest).unwrap();
        assert!(check(&file(&bytes[1..]), 4095, &digest).unwrap_err().to_string().contains("but should be 7bf9"));
        assert!(check(&file(&bytes), 4096, &digest[1..]).is_err());
    }

    const KNOWN: &[(usize, &str)] = &[
        (0, "3d248ca542a24fc62d1c43b916eae5016878e2533c88238480b26128a1f1af95"),
        (1, "b803429503d95915829b29fdbc8bbad142f3abfd11b1cadf5526582e685c0551"),
        (4096, "13e9b8848ae484a36acb3f3cac0ceb2f7601e96633d15c92f9bd3dd44e492157"),
        (4097, "b0d074abef4d544404facfab6ba242f6a8ccbde90f1325cd286f3c8aa8d0f8aa"),
        (524_288, "d82861203d50ae9b60948504a704f35f5118bd229aeb1a22d6dae47b1767c4c4"),
        (524_289, "4dc6905041c9c4ee73e13b53f63f5d289c46da359b664a965ead7f8cc4d799d4"),
        (600_000, "06d5be5c1f84f55006b5826aec720b80e5d95f30e170be7e1d6aae61755f1ae4"),
    ];
}
