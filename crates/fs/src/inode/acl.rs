//! POSIX ACLs: their bytes, which of them are valid, and how they and the mode follow each other.
//!
//! ```text
//! 0 version u32 = 2 | entries of { tag u16, permissions u16, id u32 }
//! ```
//! The form on disk is the form in which users give and get them. Pure functions.

use crate::error::{Errno, Error, Result};

/// Name of the attribute that holds the access ACL.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// Name of the attribute that holds a directory's default ACL.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const HEAD: usize = 4;
const ENTRY: usize = 8;
/// The id of entries that need none.
const NO_ID: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tag {
    UserObj,
    User,
    GroupObj,
    Group,
    Mask,
    Other,
}

const TAGS: [(u16, Tag); 6] = [
    (0x01, Tag::UserObj),
    (0x02, Tag::User),
    (0x04, Tag::GroupObj),
    (0x08, Tag::Group),
    (0x10, Tag::Mask),
    (0x20, Tag::Other),
];

impl Tag {
    fn has_id(self) -> bool {
        matches!(self, Tag::User | Tag::Group)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AclEntry {
    tag: Tag,
    permissions: u32,
    id: u32,
}

/// Somebody who wants access to an inode.
pub struct Asker<'a> {
    /// The user.
    pub uid: u32,
    /// Whether the user is in a group.
    pub in_group: &'a dyn Fn(u32) -> bool,
    /// The owner of the inode.
    pub owner: u32,
    /// The group of the inode.
    pub group: u32,
}

/// A valid ACL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl(Vec<AclEntry>);

fn invalid() -> Error {
    Error::refused(Errno::EINVAL, "the ACL is not valid")
}

impl Acl {
    /// Reads an attribute's value. `None` for one without entries, which stands for no ACL.
    pub fn parse(value: &[u8]) -> Result<Option<Acl>> {
        if value.is_empty() {
            return Ok(None);
        }
        let (head, rest) = value.split_first_chunk::<HEAD>().ok_or_else(invalid)?;
        if u32::from_le_bytes(*head) != VERSION {
            return Err(Error::refused(Errno::EOPNOTSUPP, "the ACL has an unknown version"));
        }
        let (entries, []) = rest.as_chunks::<ENTRY>() else { return Err(invalid()) };
        if entries.is_empty() {
            return Ok(None);
        }
        let acl = Acl(entries.iter().map(parse_entry).collect::<Result<_>>()?);
        if acl.is_valid() { Ok(Some(acl)) } else { Err(invalid()) }
    }

    /// The attribute's value.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            let tag = TAGS.iter().find(|tag| tag.1 == entry.tag).map_or(0, |tag| tag.0);
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&(entry.permissions as u16).to_le_bytes());
            bytes.extend_from_slice(&entry.id.to_le_bytes());
        }
        bytes
    }

    /// One owner, group and other entry each, in this order, named ones between; a mask when there are named ones.
    fn is_valid(&self) -> bool {
        let count = |tag| self.0.iter().filter(|entry| entry.tag == tag).count();
        let ordered = self.0.is_sorted_by_key(|entry| entry.tag as u8);
        let named = count(Tag::User) + count(Tag::Group) > 0;
        let single = [Tag::UserObj, Tag::GroupObj, Tag::Other].into_iter().all(|tag| count(tag) == 1);
        ordered && single && count(Tag::Mask) <= 1 && (!named || count(Tag::Mask) == 1)
    }

    fn get(&mut self, tag: Tag) -> Option<&mut u32> {
        self.0.iter_mut().find(|entry| entry.tag == tag).map(|entry| &mut entry.permissions)
    }

    /// The entry that the mode's group bits stand for.
    fn group_class(&mut self) -> Option<&mut u32> {
        let tag = if self.0.iter().any(|entry| entry.tag == Tag::Mask) { Tag::Mask } else { Tag::GroupObj };
        self.get(tag)
    }

    /// Whether the mode says the same, so that the ACL need not be kept.
    pub fn is_mode_only(&self) -> bool {
        self.0.iter().all(|entry| matches!(entry.tag, Tag::UserObj | Tag::GroupObj | Tag::Other))
    }

    /// `mode` with the permissions that this access ACL means.
    pub fn mode(&self, mode: u32) -> u32 {
        let mut acl = self.clone();
        let bits = |permissions: Option<&mut u32>| permissions.map_or(0, |permissions| *permissions);
        let (user, other) = (bits(acl.get(Tag::UserObj)), bits(acl.get(Tag::Other)));
        let group = bits(acl.group_class());
        mode & !0o777 | user << 6 | group << 3 | other
    }

    /// Whether it gives all of `want` (read 4, write 2, execute 1): the owner by the owner's entry, named users by
    /// theirs, members of groups if one of their groups' entries does, and only others by the entry for others.
    pub fn allows(&self, asker: &Asker<'_>, want: u32) -> bool {
        let has = |permissions: u32| permissions & want == want;
        let of = |tag| self.0.iter().find(|entry| entry.tag == tag).map(|entry| entry.permissions);
        let mask = of(Tag::Mask).unwrap_or(7);
        if asker.uid == asker.owner {
            return has(of(Tag::UserObj).unwrap_or(0));
        }
        if let Some(named) = self.0.iter().find(|entry| entry.tag == Tag::User && entry.id == asker.uid) {
            return has(named.permissions & mask);
        }
        let mine = |entry: &&AclEntry| match entry.tag {
            Tag::GroupObj => (asker.in_group)(asker.group),
            Tag::Group => (asker.in_group)(entry.id),
            _ => false,
        };
        let mut groups = self.0.iter().filter(mine).peekable();
        if groups.peek().is_some() {
            return groups.any(|entry| has(entry.permissions & mask));
        }
        has(of(Tag::Other).unwrap_or(0))
    }

    /// The access ACL after `chmod` to `mode`.
    pub fn after_chmod(mut self, mode: u32) -> Acl {
        self.set_classes(mode, |_, wanted| wanted);
        self
    }

    /// The access ACL and the mode of a new inode whose directory has this default ACL: each class gets what both
    /// the ACL and `mode` allow.
    pub fn for_new(mut self, mode: u32) -> (Acl, u32) {
        self.set_classes(mode, |has, wanted| has & wanted);
        let mode = self.mode(mode);
        (self, mode)
    }

    fn set_classes(&mut self, mode: u32, combine: impl Fn(u32, u32) -> u32) {
        if let Some(permissions) = self.get(Tag::UserObj) {
            *permissions = combine(*permissions, mode >> 6 & 7);
        }
        if let Some(permissions) = self.group_class() {
            *permissions = combine(*permissions, mode >> 3 & 7);
        }
        if let Some(permissions) = self.get(Tag::Other) {
            *permissions = combine(*permissions, mode & 7);
        }
    }
}

fn parse_entry(bytes: &[u8; ENTRY]) -> Result<AclEntry> {
    let tag = u16::from_le_bytes([bytes[0], bytes[1]]);
    let tag = TAGS.iter().find(|known| known.0 == tag).ok_or_else(invalid)?.1;
    let permissions = u32::from(u16::from_le_bytes([bytes[2], bytes[3]]));
    let id = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
    if permissions > 7 || (tag.has_id() && id == NO_ID) {
        return Err(invalid());
    }
    Ok(AclEntry { tag, permissions, id: if tag.has_id() { id } else { NO_ID } })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&permissions.to_le_bytes());
            bytes.extend_from_slice(&id.to_le_bytes());
        }
        bytes
    }

    const MINIMAL: [(u16, u16, u32); 3] = [(1, 7, NO_ID), (4, 5, NO_ID), (0x20, 1, NO_ID)];
    const NAMED: [(u16, u16, u32); 5] =
        [(1, 7, NO_ID), (2, 6, 1000), (4, 5, NO_ID), (0x10, 4, NO_ID), (0x20, 1, NO_ID)];

    #[test]
    fn valid_and_invalid_acls() {
        let without = |tag: u16| NAMED.iter().copied().filter(|entry| entry.0 != tag).collect::<Vec<_>>();
        let swapped = [NAMED[1], NAMED[0], NAMED[2], NAMED[3], NAMED[4]];
        for (entries, valid) in [
            (MINIMAL.to_vec(), true),
            (NAMED.to_vec(), true),
            (without(1), false),
            (without(2), true),
            (without(4), false),
            (without(0x10), false),
            (without(0x20), false),
            (swapped.to_vec(), false),
            (vec![(1, 8, NO_ID), MINIMAL[1], MINIMAL[2]], false),
            (vec![(3, 7, NO_ID), MINIMAL[1], MINIMAL[2]], false),
        ] {
            assert_eq!(Acl::parse(&value(&entries)).is_ok(), valid, "{entries:?}");
        }
        assert_eq!(Acl::parse(&value(&[])).unwrap(), None);
        assert_eq!(Acl::parse(&[]).unwrap(), None);
        assert_eq!(Acl::parse(&[3, 0, 0, 0]).unwrap_err().errno(), Errno::EOPNOTSUPP);
        assert_eq!(Acl::parse(&value(&NAMED)[..7]).unwrap_err().errno(), Errno::EINVAL);
    }

    #[test]
    fn bytes_are_kept_and_needless_ids_are_not() {
        let bytes = value(&NAMED);
        assert_eq!(Acl::parse(&bytes).unwrap().unwrap().to_bytes(), bytes);
        let with_id = value(&[(1, 7, 5), MINIMAL[1], MINIMAL[2]]);
        assert_eq!(Acl::parse(&with_id).unwrap().unwrap().to_bytes(), value(&MINIMAL));
    }

    #[test]
    fn the_mode_follows_the_acl() {
        let minimal = Acl::parse(&value(&MINIMAL)).unwrap().unwrap();
        assert_eq!((minimal.is_mode_only(), minimal.mode(0o102000)), (true, 0o102751));
        let named = Acl::parse(&value(&NAMED)).unwrap().unwrap();
        assert_eq!((named.is_mode_only(), named.mode(0o100000)), (false, 0o100741));
    }

    #[test]
    fn access_by_acl_entry() {
        // Owner rwx, user 1000 rw-, owning group r-x, group 77 -w-, mask rw-, others --x.
        let entries = [(1, 7, NO_ID), (2, 6, 1000), (4, 5, NO_ID), (8, 2, 77), (0x10, 6, NO_ID), (0x20, 1, NO_ID)];
        let acl = Acl::parse(&value(&entries)).unwrap().unwrap();
        let table: [(u32, &[u32], u32, bool); 9] = [
            (1, &[], 7, true),
            (1000, &[], 6, true),
            (1000, &[], 1, false),
            (2000, &[50], 4, true),
            (2000, &[50], 1, false),
            (2000, &[77], 2, true),
            (2000, &[50, 77], 6, false),
            (2000, &[], 1, true),
            (2000, &[], 2, false),
        ];
        for (uid, groups, want, allowed) in table {
            let in_group = |gid: u32| groups.contains(&gid);
            let asker = Asker { uid, in_group: &in_group, owner: 1, group: 50 };
            assert_eq!(acl.allows(&asker, want), allowed, "user {uid} in {groups:?} wants {want}");
        }
    }

    #[test]
    fn the_acl_follows_the_mode() {
        let named = Acl::parse(&value(&NAMED)).unwrap().unwrap();
        let changed = named.after_chmod(0o652);
        let want = [(1, 6, NO_ID), (2, 6, 1000), (4, 5, NO_ID), (0x10, 5, NO_ID), (0x20, 2, NO_ID)];
        assert_eq!(changed.to_bytes(), value(&want));
    }

    #[test]
    fn a_new_inode_gets_what_both_allow() {
        let named = Acl::parse(&value(&NAMED)).unwrap().unwrap();
        let (acl, mode) = named.for_new(0o100660);
        assert_eq!(mode, 0o100640);
        let want = [(1, 6, NO_ID), (2, 6, 1000), (4, 5, NO_ID), (0x10, 4, NO_ID), (0x20, 0, NO_ID)];
        assert_eq!(acl.to_bytes(), value(&want));
        let minimal = Acl::parse(&value(&MINIMAL)).unwrap().unwrap();
        assert_eq!(minimal.for_new(0o040777).1, 0o040751);
    }
}
