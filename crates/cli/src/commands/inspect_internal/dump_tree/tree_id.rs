//! Trees by number or name: `5`, `fs`, `FS_TREE`, `BTRFS_FS_TREE_OBJECTID`.

use super::number;
use butterfs_ondisk::TreeId;

/// The names, longer ones before those they begin with.
const NAMES: &[(&str, TreeId)] = &[
    ("ROOT", TreeId::ROOT),
    ("EXTENT", TreeId::EXTENT),
    ("CHUNK", TreeId::CHUNK),
    ("DEVICE", TreeId::DEV),
    ("DEV", TreeId::DEV),
    ("FS_TREE", TreeId::FS),
    ("FS", TreeId::FS),
    ("CSUM", TreeId::CSUM),
    ("CHECKSUM", TreeId::CSUM),
    ("QUOTA", TreeId::QUOTA),
    ("UUID", TreeId::UUID),
    ("FREE_SPACE", TreeId::FREE_SPACE),
    ("TREE_LOG_FIXUP", TreeId((-7i64) as u64)),
    ("TREE_LOG", TreeId::TREE_LOG),
    ("TREE_RELOC", TreeId::TREE_RELOC),
    ("DATA_RELOC", TreeId::DATA_RELOC),
    ("BLOCK_GROUP_TREE", TreeId::BLOCK_GROUP),
    ("BLOCK_GROUP", TreeId::BLOCK_GROUP),
];

/// The tree that `text` names.
pub fn parse(text: &str) -> Result<TreeId, String> {
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        return parse_number(text);
    }
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("BTRFS_").unwrap_or(&upper);
    let found = NAMES.iter().find_map(|(known, id)| Some((*id, name.strip_prefix(known)?)));
    let (id, rest) = found.ok_or_else(|| unrecognized(text))?;
    let rest = rest.strip_prefix("_TREE").unwrap_or(rest);
    let rest = rest.strip_prefix("_OBJECTID").unwrap_or(rest);
    if rest.is_empty() { Ok(id) } else { Err(format!("unexpected tree id suffix of '{text}': {rest}")) }
}

fn parse_number(text: &str) -> Result<TreeId, String> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(unrecognized(text));
    }
    match number(text)? {
        0 => Err(unrecognized(text)),
        id => Ok(TreeId(id)),
    }
}

fn unrecognized(text: &str) -> String {
    format!("unrecognized tree id: {text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_recognized() {
        let good = [
            ("5", 5),
            ("05", 5),
            ("010", 8),
            ("256", 256),
            ("18446744073709551607", (-9i64) as u64),
            ("root", 1),
            ("BTRFS_ROOT_TREE_OBJECTID", 1),
            ("FS_OBJECTID", 5),
            ("fs_tree", 5),
            ("dev", 4),
            ("DEVICE_TREE", 4),
            ("checksum", 7),
            ("free_space", 10),
            ("BLOCK_GROUP_TREE", 11),
            ("tree_log", (-6i64) as u64),
            ("TREE_RELOC_TREE", (-8i64) as u64),
            ("data_reloc", (-9i64) as u64),
        ];
        for (text, id) in good {
            assert_eq!(parse(text), Ok(TreeId(id)), "{text}");
        }
    }

    #[test]
    fn others_are_refused() {
        let bad = ["", "0", "0x5", "5x", "-9", "+5", "foo", "log", "FREE-SPACE", "99999999999999999999", "btrfs"];
        for text in bad {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!(parse("ROOT_TREE_DIR"), Err("unexpected tree id suffix of 'ROOT_TREE_DIR': _DIR".to_owned()));
    }
}
