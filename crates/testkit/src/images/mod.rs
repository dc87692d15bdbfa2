//! Images made by the real mkfs.btrfs and filled through the kernel's mount.
//!
//! Invariant: every content that one of these images has, all have, except where the format's features forbid it; the
//! variants differ in how it is stored.

mod contents;

use crate::kernel::{KernelMount, mkfs};
use crate::scratch::Scratch;
use std::path::PathBuf;

/// One way of storing.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// Short, for messages and file names.
    pub name: &'static str,
    /// Options of mkfs.btrfs.
    pub mkfs: &'static [&'static str],
    /// Mount options while it is filled.
    pub mount: &'static str,
    /// A feature that mkfs.btrfs must know.
    pub feature: Option<&'static str>,
}

const fn variant(name: &'static str, mkfs: &'static [&'static str]) -> Variant {
    Variant { name, mkfs, mount: "noatime", feature: None }
}

/// Checksums, node sizes and features, each at least once, and in combinations that meet in the code.
pub const VARIANTS: &[Variant] = &[
    variant("default", &[]),
    variant("xxhash-4k", &["--csum", "xxhash", "-n", "4096"]),
    variant("sha256-16k", &["--csum", "sha256"]),
    variant("blake2-64k", &["--csum", "blake2", "-n", "65536"]),
    variant("crc32c-64k-holes", &["-n", "65536", "-O", "^no-holes"]),
    variant("crc32c-4k-full", &["-n", "4096", "-O", "^skinny-metadata,^no-holes"]),
    variant("no-extref", &["-O", "^extref"]),
    variant("mixed", &["-M"]),
    variant("metadata-single", &["-m", "single", "-n", "32768"]),
    variant("data-dup", &["-d", "dup"]),
    Variant { mount: "noatime,space_cache=v1", ..variant("cache-v1", &["-O", "^free-space-tree"]) },
    Variant { mount: "noatime,nospace_cache", ..variant("no-cache-4k", &["-O", "^free-space-tree", "-n", "4096"]) },
    Variant { feature: Some("block-group-tree"), ..variant("bgt", &["-O", "block-group-tree"]) },
    Variant {
        feature: Some("block-group-tree"),
        ..variant("bgt-4k-sha256", &["-O", "block-group-tree", "-n", "4096", "--csum", "sha256"])
    },
];

/// The size of every image; sparse.
pub const IMAGE_BYTES: u64 = 768 << 20;

/// Makes an image of this variant, filled, in `scratch`. Panics when the kernel complained.
pub fn make(variant: &Variant, scratch: &Scratch) -> PathBuf {
    let image = scratch.sparse_file(&format!("{}.img", variant.name), IMAGE_BYTES);
    mkfs(&image, variant.mkfs);
    let mount = KernelMount::new(&image, variant.mount);
    contents::fill(mount.path());
    let complaints = mount.finish();
    assert!(complaints.is_empty(), "{}: {complaints:#?}", variant.name);
    image
}
