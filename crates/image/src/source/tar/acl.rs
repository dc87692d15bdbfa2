//! ACLs as archives write them in text, in the form in which the kernel stores them.

use crate::error::{Error, Result};

const VERSION: u32 = 2;
/// Bytes of an ACL that says no more than a mode.
pub const MINIMAL_LEN: usize = 4 + 3 * 8;
/// The number of entries that are not about a user or a group by number.
const NOBODY: u32 = u32::MAX;

/// The value of `system.posix_acl_access` (or `_default`): entries are separated by commas or line ends, and name users
/// by numbers, or with a number at the end as star writes it.
pub fn from_text(text: &[u8]) -> Result<Vec<u8>> {
    let wrong = |entry: &str| {
        let advice = "tar writes numbers too with --xattrs --xattrs-include='*'";
        Error::content(format!("'{entry}' is no entry of an ACL with numbers for users and groups; {advice}"))
    };
    let text = std::str::from_utf8(text).map_err(|_| wrong("…"))?;
    let lines = text.split([',', '\n']).map(|line| line.split('#').next().unwrap_or_default().trim());
    let mut entries: Vec<(u16, u16, u32)> = Vec::new();
    for line in lines.filter(|line| !line.is_empty()) {
        entries.push(entry(line).ok_or_else(|| wrong(line))?);
    }
    entries.sort_by_key(|(tag, _, id)| (*tag, *id));
    let mut out = VERSION.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        out.extend_from_slice(&tag.to_le_bytes());
        out.extend_from_slice(&permissions.to_le_bytes());
        out.extend_from_slice(&id.to_le_bytes());
    }
    Ok(out)
}

/// Tag, permissions and number of an entry.
fn entry(line: &str) -> Option<(u16, u16, u32)> {
    let parts: Vec<&str> = line.split(':').collect();
    let (kind, who, permissions) = (*parts.first()?, *parts.get(1)?, *parts.get(2)?);
    let id = match (who, parts.get(3)) {
        ("", _) => NOBODY,
        (_, Some(number)) => number.parse().ok()?,
        (who, None) => who.parse().ok()?,
    };
    let tag = match (kind, who.is_empty()) {
        ("user" | "u", true) => 0x01,
        ("user" | "u", false) => 0x02,
        ("group" | "g", true) => 0x04,
        ("group" | "g", false) => 0x08,
        ("mask" | "m", true) => 0x10,
        ("other" | "o", true) => 0x20,
        _ => return None,
    };
    let bit = |letter: char, value: u16| if permissions.contains(letter) { value } else { 0 };
    let is_known = permissions.chars().all(|letter| "rwx-".contains(letter));
    is_known.then_some((tag, bit('r', 4) | bit('w', 2) | bit('x', 1), id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_become_what_the_kernel_stores() {
        let text = b"user::rw-,user:1000:r--,group::r-x,group:staff:rwx:50,mask::rwx,other::---";
        let value = from_text(text).unwrap();
        let entries: Vec<(u8, u8, u32)> =
            value[4..].chunks(8).map(|it| (it[0], it[2], u32::from_le_bytes(it[4..8].try_into().unwrap()))).collect();
        assert_eq!(entries, [(1, 6, !0), (2, 4, 1000), (4, 5, !0), (8, 7, 50), (16, 7, !0), (32, 0, !0)]);
        for bad in ["user:lisa:rw-", "user", "x::rwx", "user::rwz"] {
            assert!(from_text(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
