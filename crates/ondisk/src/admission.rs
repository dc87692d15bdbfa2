//! Whether a filesystem may be used, decided from its features and flags alone: one place, so that nothing we do
//! not understand is ever silently ignored.
//!
//! Not here: a dirty log tree, missing devices, and the superblock's own validity.

use crate::features::{compat_ro, describe, incompat};
use crate::superblock::{Superblock, super_flags};

/// The permitted access to a filesystem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Admission {
    /// Read and write.
    ReadWrite,
    /// Read only; a sentence says why.
    ReadOnly(String),
    /// Nothing; a sentence says why.
    Refused(String),
}

/// The permitted access to the filesystem that `sb` describes.
pub fn admission(sb: &Superblock) -> Admission {
    if let Some(reason) = refusal(sb) {
        return Admission::Refused(reason);
    }
    match read_only_reason(sb) {
        Some(reason) => Admission::ReadOnly(reason),
        None => Admission::ReadWrite,
    }
}

const KNOWN_FLAGS: u64 = super_flags::WRITTEN
    | super_flags::RELOC
    | super_flags::ERROR
    | super_flags::SEEDING
    | super_flags::METADUMP
    | super_flags::METADUMP_V2
    | super_flags::CHANGING_MASK;

/// Features that say where things lie, so that without them nothing can be read.
const BEYOND: [(u64, &str); 3] = [
    (incompat::RAID_STRIPE_TREE, "a RAID stripe tree says where data lies (feature RAID_STRIPE_TREE)"),
    (incompat::EXTENT_TREE_V2, "the extent tree is of version 2 (feature EXTENT_TREE_V2)"),
    (incompat::REMAP_TREE, "a remap tree says where block groups have moved (feature REMAP_TREE)"),
];

fn refusal(sb: &Superblock) -> Option<String> {
    let (flags, features) = (sb.flags.get(), sb.incompat_flags.get());
    if flags & super_flags::CHANGING_MASK != 0 {
        let bits = flags & super_flags::CHANGING_MASK;
        return Some(format!(
            "a conversion of the filesystem is half done (superblock flags {bits:#x}); finish it first"
        ));
    }
    if flags & !KNOWN_FLAGS != 0 {
        return Some(format!("unknown superblock flags {:#x}", flags & !KNOWN_FLAGS));
    }
    if let Some((_, what)) = BEYOND.iter().find(|(bit, _)| features & bit != 0) {
        return Some(format!("{what}; such a filesystem is neither read nor written here"));
    }
    let unsupported = features & !(incompat::SUPPORTED | incompat::READ_ONLY);
    if unsupported != 0 {
        return Some(format!("unsupported incompat features: {}", describe(unsupported, incompat::NAMES)));
    }
    if features & incompat::MIXED_BACKREF == 0 {
        return Some("the filesystem has the old back references of before 2009 (no MIXED_BACKREF)".to_owned());
    }
    block_group_tree_refusal(sb)
}

/// The block group tree cannot be used without a free space tree that is valid, not even for reading.
fn block_group_tree_refusal(sb: &Superblock) -> Option<String> {
    let readable = sb.compat_ro_flags.get();
    if readable & compat_ro::BLOCK_GROUP_TREE == 0 {
        return None;
    }
    if readable & compat_ro::FREE_SPACE_TREE_VALID == 0 || readable & compat_ro::FREE_SPACE_TREE == 0 {
        return Some("BLOCK_GROUP_TREE needs a valid free space tree (FREE_SPACE_TREE_VALID)".to_owned());
    }
    if sb.incompat_flags.get() & incompat::NO_HOLES == 0 {
        return Some("BLOCK_GROUP_TREE needs the NO_HOLES feature".to_owned());
    }
    None
}

fn read_only_reason(sb: &Superblock) -> Option<String> {
    let flags = sb.flags.get();
    let by_flag = [
        (super_flags::ERROR, "the last writer met an error (superblock flag ERROR)"),
        (super_flags::SEEDING, "it is a seed device (superblock flag SEEDING)"),
        (
            super_flags::METADUMP | super_flags::METADUMP_V2,
            "it is a metadata image without data (superblock flag METADUMP)",
        ),
    ];
    if let Some((_, reason)) = by_flag.iter().find(|(bits, _)| flags & bits != 0) {
        return Some((*reason).to_owned());
    }
    let unknown = sb.compat_ro_flags.get() & !compat_ro::SUPPORTED;
    if unknown != 0 {
        return Some(format!("unsupported compat_ro features: {}", describe(unknown, compat_ro::NAMES)));
    }
    let features = sb.incompat_flags.get() & incompat::READ_ONLY;
    if features != 0 {
        return Some(format!("features that can be read but not written: {}", describe(features, incompat::NAMES)));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock(flags: u64, compat_ro: u64, incompat: u64) -> Superblock {
        let mut sb: Superblock = zerocopy::FromZeros::new_zeroed();
        sb.flags = flags.into();
        sb.compat_ro_flags = compat_ro.into();
        sb.incompat_flags = incompat.into();
        sb
    }

    #[test]
    fn each_state_gets_its_admission() {
        let base = 0x361;
        // flags, compat_ro, incompat, admission: W(rite), R(ead), or - for refused, and a word of the reason
        let cases = [
            (1, 0xb, base, 'W', ""),
            (1, 0, base, 'W', ""),
            (1, 7, base, 'W', ""),
            (5, 0xb, base, 'R', "ERROR"),
            (1 | 1 << 32, 0xb, base, 'R', "SEEDING"),
            (1 | 1 << 33, 0xb, base, 'R', "METADUMP"),
            (1 | 1 << 34, 0xb, base, 'R', "METADUMP"),
            (1 | 1 << 36, 0xb, base, '-', "half done"),
            (1 | 1 << 50, 0xb, base, '-', "unknown superblock flags"),
            (1, 1 << 4, base, 'R', "0x10"),
            (1, 9, base, '-', "FREE_SPACE_TREE_VALID"),
            (1, 0xb, base & !(1 << 9), '-', "NO_HOLES"),
            (1, 3, base & !1, '-', "MIXED_BACKREF"),
            (1, 3, base | 1 << 12, 'R', "ZONED"),
            (1, 3, base | 1 << 13, '-', "EXTENT_TREE_V2"),
            (1, 3, base | 1 << 14, '-', "a RAID stripe tree says where data lies"),
            (1, 3, base | 1 << 17, '-', "REMAP_TREE"),
            (1, 3, base | 1 << 15, '-', "0x8000"),
            (1, 3, base | 1 << 16, 'R', "SIMPLE_QUOTA"),
            (1, 3, base | 1 << 40, '-', "0x10000000000"),
        ];
        for (flags, compat_ro, incompat, expected, word) in cases {
            let got = admission(&superblock(flags, compat_ro, incompat));
            let (letter, reason) = match &got {
                Admission::ReadWrite => ('W', ""),
                Admission::ReadOnly(reason) => ('R', reason.as_str()),
                Admission::Refused(reason) => ('-', reason.as_str()),
            };
            assert!(letter == expected && reason.contains(word), "{flags:#x} {compat_ro:#x} {incompat:#x}: {got:?}");
        }
    }
}
