//! The text of keys and object ids.

use crate::key::{Key, KeyType, objectid};
use std::fmt;

/// A key as `key (OBJECTID TYPE OFFSET)`.
#[derive(Clone, Copy)]
pub struct KeyText(pub Key);

impl fmt::Display for KeyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.0;
        write!(f, "key ({} {} {})", Objectid { id: key.objectid, kind: key.kind }, TypeName(key), Offset(key))
    }
}

/// An object id by its name, if it has one in a key of the given type.
#[derive(Clone, Copy)]
pub struct Objectid {
    /// The number.
    pub id: u64,
    /// The type of the key that it stands in.
    pub kind: KeyType,
}

impl Objectid {
    /// An object id outside a key: that of a tree.
    pub const fn plain(id: u64) -> Objectid {
        Objectid { id, kind: KeyType(0) }
    }
}

impl fmt::Display for Objectid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.id;
        match self.kind {
            KeyType::PERSISTENT_ITEM if id == objectid::DEV_STATS => return f.write_str("DEV_STATS"),
            KeyType::PERSISTENT_ITEM | KeyType::DEV_EXTENT => return write!(f, "{id}"),
            KeyType::QGROUP_RELATION => return write!(f, "{}", Qgroup(id)),
            KeyType::UUID_KEY_SUBVOL | KeyType::UUID_KEY_RECEIVED_SUBVOL => return write!(f, "0x{id:016x}"),
            KeyType::DEV_ITEM if id == objectid::DEV_ITEMS => return f.write_str("DEV_ITEMS"),
            KeyType::CHUNK_ITEM if id == objectid::FIRST_CHUNK_TREE => return f.write_str("FIRST_CHUNK_TREE"),
            _ => {}
        }
        match name(id) {
            Some(name) => f.write_str(name),
            None if id == u64::MAX => f.write_str("-1"),
            None => write!(f, "{id}"),
        }
    }
}

const fn name(id: u64) -> Option<&'static str> {
    Some(match id as i64 {
        1 => "ROOT_TREE",
        2 => "EXTENT_TREE",
        3 => "CHUNK_TREE",
        4 => "DEV_TREE",
        5 => "FS_TREE",
        6 => "ROOT_TREE_DIR",
        7 => "CSUM_TREE",
        8 => "QUOTA_TREE",
        9 => "UUID_TREE",
        10 => "FREE_SPACE_TREE",
        11 => "BLOCK_GROUP_TREE",
        -4 => "BALANCE",
        -5 => "ORPHAN",
        -6 => "TREE_LOG",
        -7 => "LOG_FIXUP",
        -8 => "TREE_RELOC",
        -9 => "DATA_RELOC_TREE",
        -10 => "EXTENT_CSUM",
        -11 => "FREE_SPACE",
        -12 => "FREE_INO",
        -255 => "MULTIPLE",
        _ => return None,
    })
}

/// A quota group: level and number.
struct Qgroup(u64);

impl fmt::Display for Qgroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.0 >> 48, self.0 & ((1 << 48) - 1))
    }
}

/// The type of a key; version 6.2 knows two old ones and does not know two new ones.
struct TypeName(Key);

impl fmt::Display for TypeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Key { objectid: id, kind, .. } = self.0;
        match kind {
            KeyType(0) if id == objectid::FREE_SPACE => f.write_str("UNTYPED"),
            KeyType(120) => f.write_str("CSUM_ITEM"),
            KeyType(180) => f.write_str("EXTENT_REF_V0"),
            KeyType::EXTENT_OWNER_REF | KeyType::RAID_STRIPE => write!(f, "UNKNOWN.{}", kind.0),
            kind => match kind.name() {
                Some(name) => f.write_str(name),
                None => write!(f, "UNKNOWN.{}", kind.0),
            },
        }
    }
}

struct Offset(Key);

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Key { objectid: id, kind, offset } = self.0;
        match kind {
            KeyType::QGROUP_RELATION | KeyType::QGROUP_INFO | KeyType::QGROUP_LIMIT => write!(f, "{}", Qgroup(offset)),
            KeyType::UUID_KEY_SUBVOL | KeyType::UUID_KEY_RECEIVED_SUBVOL => write!(f, "0x{offset:016x}"),
            // A relocation tree's offset is the tree that it relocates; -1 in a directory entry is no number to hide.
            KeyType::ROOT_ITEM if id == crate::TreeId::TREE_RELOC.0 => write!(f, "{}", Objectid { id: offset, kind }),
            KeyType::ROOT_ITEM => write!(f, "{offset}"),
            _ if offset == u64::MAX => f.write_str("-1"),
            _ => write!(f, "{offset}"),
        }
    }
}
