//! Whose files are whose: the owners that a source names, and the owners in the image. Owners are data; nothing here
//! asks for a privilege.
//!
//! The numbers inside of ACLs and of capabilities (`security.capability` version 3) are mapped too.

use crate::entry::Attributes;
use crate::error::{Error, ErrorKind, Result};
use std::str::FromStr;

/// A range of numbers, as in a line of `/proc/PID/uid_map`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IdRange {
    /// The first number in the image.
    pub inside: u32,
    /// The first number in the source.
    pub outside: u32,
    /// How many.
    pub count: u32,
}

impl FromStr for IdRange {
    type Err = String;

    /// Reads three numbers, with colons or blanks between them.
    fn from_str(text: &str) -> Result<IdRange, String> {
        let wrong = || format!("'{text}' is not INSIDE:OUTSIDE:COUNT");
        let numbers: Vec<u32> = text
            .split(|c: char| c == ':' || c.is_whitespace())
            .filter(|word| !word.is_empty())
            .map(|word| word.parse().map_err(|_| wrong()))
            .collect::<Result<_, String>>()?;
        match numbers[..] {
            [inside, outside, count] if count > 0 => Ok(IdRange { inside, outside, count }),
            _ => Err(wrong()),
        }
    }
}

/// How owners are mapped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owners {
    /// For users; empty: as they are.
    pub users: Vec<IdRange>,
    /// For groups; empty: as they are.
    pub groups: Vec<IdRange>,
    /// The user that everything belongs to.
    pub only_user: Option<u32>,
    /// The group that everything belongs to.
    pub only_group: Option<u32>,
}

/// The attribute of an ACL.
pub(crate) const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
/// The attribute of the ACL that what is made in a folder inherits.
pub(crate) const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";
const CAPABILITY: &[u8] = b"security.capability";

impl Owners {
    /// Everything belongs to user 0 and group 0.
    pub fn all_root() -> Owners {
        Owners { only_user: Some(0), only_group: Some(0), ..Owners::default() }
    }

    /// Gives `attributes` the owners that they have in the image.
    pub fn apply(&self, attributes: &mut Attributes) -> Result<()> {
        attributes.uid = match self.only_user {
            Some(user) => user,
            None => map(&self.users, attributes.uid, "user")?,
        };
        attributes.gid = match self.only_group {
            Some(group) => group,
            None => map(&self.groups, attributes.gid, "group")?,
        };
        if !self.users.is_empty() || !self.groups.is_empty() {
            for (name, value) in &mut attributes.xattrs {
                match name.as_slice() {
                    ACCESS_ACL | DEFAULT_ACL => self.map_acl(value)?,
                    CAPABILITY => self.map_capability(value)?,
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Entries of 8 bytes behind a head of 4: tag, permissions, number.
    fn map_acl(&self, value: &mut [u8]) -> Result<()> {
        const USER: u16 = 0x02;
        const GROUP: u16 = 0x08;
        for entry in value.get_mut(4..).unwrap_or_default().chunks_exact_mut(8) {
            let tag = u16::from_le_bytes([entry[0], entry[1]]);
            let (ranges, what) = match tag {
                USER => (&self.users, "user of an ACL"),
                GROUP => (&self.groups, "group of an ACL"),
                _ => continue,
            };
            let id = u32::from_le_bytes(entry[4..8].try_into().expect("4 bytes"));
            entry[4..8].copy_from_slice(&map(ranges, id, what)?.to_le_bytes());
        }
        Ok(())
    }

    /// Version 3 ends with the number of the root user for whom the capabilities count.
    fn map_capability(&self, value: &mut [u8]) -> Result<()> {
        const VERSION_3: u8 = 3;
        if value.len() == 24 && value[3] == VERSION_3 {
            let id = u32::from_le_bytes(value[20..24].try_into().expect("4 bytes"));
            value[20..24].copy_from_slice(&map(&self.users, id, "root user of a capability")?.to_le_bytes());
        }
        Ok(())
    }
}

fn map(ranges: &[IdRange], id: u32, what: &str) -> Result<u32> {
    if ranges.is_empty() {
        return Ok(id);
    }
    let hit = ranges.iter().find(|range| id.checked_sub(range.outside).is_some_and(|depth| depth < range.count));
    match hit.and_then(|range| range.inside.checked_add(id - range.outside)) {
        Some(inside) => Ok(inside),
        None => Err(Error::content(format!("{what} {id} is in no range of the owner map"))),
    }
}

impl FromStr for Owners {
    type Err = Error;

    /// Reads lines `INSIDE OUTSIDE COUNT` for users and groups, or with `u` or `g` before them for one of both; `#`
    /// begins a comment. Commas separate like line ends.
    fn from_str(text: &str) -> Result<Owners> {
        let mut owners = Owners::default();
        for line in text.split(['\n', ',']).map(|line| line.split('#').next().unwrap_or_default().trim()) {
            let (users, groups, rest) = match line.split_at_checked(1) {
                Some(("u", rest)) => (true, false, rest),
                Some(("g", rest)) => (false, true, rest),
                Some(_) => (true, true, line),
                None => continue,
            };
            let range: IdRange = rest.parse().map_err(|what: String| Error::new(ErrorKind::Options, what))?;
            owners.users.extend(users.then_some(range));
            owners.groups.extend(groups.then_some(range));
        }
        Ok(owners)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_range_counts_and_what_is_in_none_is_refused() {
        let owners: Owners = "0:1000:1,1:100000:65535 # rootless\ng 5 5 1".parse().unwrap();
        let mapped = |uid, gid| {
            let mut attributes = Attributes { uid, gid, ..Attributes::default() };
            owners.apply(&mut attributes).map(|()| (attributes.uid, attributes.gid)).map_err(|error| error.to_string())
        };
        assert_eq!(mapped(1000, 100041), Ok((0, 42)));
        assert_eq!(mapped(100000, 5), Ok((1, 5)));
        assert_eq!(mapped(0, 1000), Err("user 0 is in no range of the owner map".to_owned()));
        assert!("1:2".parse::<Owners>().is_err() && "a:b:c".parse::<Owners>().is_err());
    }

    #[test]
    fn numbers_in_acls_and_capabilities_are_mapped() {
        let owners: Owners = "0:1000:10".parse().unwrap();
        let entry = |tag: u16, id: u32| [&tag.to_le_bytes()[..], &7u16.to_le_bytes(), &id.to_le_bytes()].concat();
        let acl = |user, group| [&2u32.to_le_bytes()[..], &entry(1, !0), &entry(2, user), &entry(8, group)].concat();
        let capability = |root: u32| [&[0, 0, 0, 3][..], &[9; 16], &root.to_le_bytes()].concat();
        let xattrs = |acl, capability| vec![(ACCESS_ACL.to_vec(), acl), (CAPABILITY.to_vec(), capability)];
        let mut attributes = Attributes {
            uid: 1000,
            gid: 1000,
            xattrs: xattrs(acl(1003, 1004), capability(1000)),
            ..Attributes::default()
        };
        owners.apply(&mut attributes).unwrap();
        assert_eq!(attributes.xattrs, xattrs(acl(3, 4), capability(0)));
    }
}
