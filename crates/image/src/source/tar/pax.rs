//! The records of extended headers (PAX), and what they mean.

use super::acl;
use crate::entry::Time;
use crate::error::{Error, Result};
use std::collections::BTreeMap;

/// Most bytes of the records before an entry, and of memory that they take.
pub const MAX_LEN: u64 = 16 << 20;
/// Most bytes of the records that hold for all entries, and are copied for each.
pub const MAX_GLOBAL_LEN: u64 = 256 << 10;
/// Bytes of memory that a record takes apart from its key and value.
pub const RECORD_COST: u64 = 64;

/// The keys that mean something here. Others take no memory.
const KNOWN: [&str; 18] = [
    "path",
    "linkpath",
    "size",
    "uid",
    "gid",
    "mtime",
    "atime",
    "ctime",
    "LIBARCHIVE.creationtime",
    "SCHILY.acl.access",
    "SCHILY.acl.default",
    "RHT.security.selinux",
    "GNU.sparse.major",
    "GNU.sparse.name",
    "GNU.sparse.map",
    "GNU.sparse.size",
    "GNU.sparse.realsize",
    "GNU.sparse.minor",
];
/// The beginnings of keys that have the name of an attribute behind them.
const ATTRIBUTES: [&[u8]; 2] = [b"SCHILY.xattr.", b"LIBARCHIVE.xattr."];

fn is_known(key: &[u8]) -> bool {
    KNOWN.iter().any(|known| known.as_bytes() == key) || ATTRIBUTES.iter().any(|prefix| key.starts_with(prefix))
}

/// Values by key. An empty value takes the key away, unless the key is an attribute: those can be empty.
#[derive(Clone, Debug, Default)]
pub struct Records {
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The map of a sparse file in version 0.0, whose keys repeat.
    pub sparse_map: Vec<u64>,
    /// Bytes of memory, about.
    memory: u64,
}

impl Records {
    /// Takes in the records of an extended header; all that are here may take `most` bytes of memory.
    pub fn add(&mut self, mut bytes: &[u8], most: u64) -> Result<()> {
        while !bytes.is_empty() && bytes[0] != 0 {
            let (key, value, rest) =
                record(bytes).ok_or_else(|| Error::content("a record of an extended header is damaged"))?;
            bytes = rest;
            match key {
                b"GNU.sparse.offset" | b"GNU.sparse.numbytes" => {
                    self.sparse_map.push(decimal(value)?);
                    self.memory += size_of::<u64>() as u64;
                }
                _ if value.is_empty() && !key.starts_with(b"SCHILY.xattr.") => {
                    let old = self.values.remove(key);
                    self.memory -= old.map_or(0, |old| cost(key, &old));
                }
                _ if !is_known(key) => {}
                _ => {
                    let old = self.values.insert(key.to_vec(), value.to_vec());
                    self.memory += cost(key, value);
                    self.memory -= old.map_or(0, |old| cost(key, &old));
                }
            }
            if self.memory > most {
                return Err(Error::content(format!("extended headers have more than {most} bytes for one entry")));
            }
        }
        Ok(())
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        self.values.get(key.as_bytes()).map(Vec::as_slice)
    }

    /// The number that a key has.
    pub fn number(&self, key: &str) -> Result<Option<u64>> {
        self.get(key).map(decimal).transpose()
    }

    /// The time that a key has.
    pub fn time(&self, key: &str) -> Result<Option<Time>> {
        let parse =
            |text: &[u8]| time(text).ok_or_else(|| Error::content(format!("'{}' is no time", text.escape_ascii())));
        self.get(key).map(parse).transpose()
    }

    /// The extended attributes.
    pub fn xattrs(&self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut found = BTreeMap::new();
        // What is an attribute counts for more than the texts that say the same.
        for (key, name) in
            [("SCHILY.acl.access", "system.posix_acl_access"), ("SCHILY.acl.default", "system.posix_acl_default")]
        {
            let has_numbers = self.get(&format!("SCHILY.xattr.{name}")).is_some();
            if let Some(text) = self.get(key).filter(|_| !has_numbers) {
                let value = acl::from_text(text)?;
                // The mode says what an ACL of three entries says.
                if key != "SCHILY.acl.access" || value.len() > acl::MINIMAL_LEN {
                    found.insert(name.as_bytes().to_vec(), value);
                }
            }
        }
        if let Some(label) = self.get("RHT.security.selinux") {
            found.insert(b"security.selinux".to_vec(), [label, b"\0"].concat());
        }
        for (key, value) in &self.values {
            if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                found.insert(plain_name(name), value.clone());
            } else if let Some(name) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
                let wrong = || Error::content(format!("'{}' is not encoded as it should be", key.escape_ascii()));
                found.entry(unescaped(name).ok_or_else(wrong)?).or_insert(base64(value).ok_or_else(wrong)?);
            }
        }
        Ok(found.into_iter().collect())
    }
}

fn cost(key: &[u8], value: &[u8]) -> u64 {
    (key.len() + value.len()) as u64 + RECORD_COST
}

/// The bytes that GNU tar writes otherwise in the names of attributes, because a key ends with `=`.
const ENCODED: [(u8, &[u8]); 2] = [(b'%', b"%25"), (b'=', b"%3D")];

/// The name of an attribute as a key has it.
pub fn encoded_name(name: &[u8]) -> Vec<u8> {
    let encoded = |byte: u8| ENCODED.iter().find(|(plain, _)| *plain == byte).map(|(_, text)| text.to_vec());
    name.iter().flat_map(|byte| encoded(*byte).unwrap_or_else(|| vec![*byte])).collect()
}

/// The name of an attribute that a key has. Other programs write `%` as it is.
fn plain_name(key: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), key);
    while let Some((first, after)) = rest.split_first() {
        let found = ENCODED.iter().find(|(_, text)| rest.starts_with(text));
        out.push(found.map_or(*first, |(plain, _)| *plain));
        rest = found.map_or(after, |(_, text)| &rest[text.len()..]);
    }
    out
}

/// The first of some records, `LENGTH KEY=VALUE\n`, and what follows.
fn record(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let blank = bytes.iter().take(20).position(|byte| *byte == b' ')?;
    let len: usize = std::str::from_utf8(&bytes[..blank]).ok()?.parse().ok()?;
    let own = bytes.get(blank + 1..len)?.strip_suffix(b"\n")?;
    let equals = own.iter().position(|byte| *byte == b'=')?;
    Some((&own[..equals], &own[equals + 1..], &bytes[len..]))
}

/// A number in decimal digits.
pub fn decimal(text: &[u8]) -> Result<u64> {
    let parsed = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| Error::content(format!("'{}' in an extended header is no number", text.escape_ascii())))
}

/// Seconds since 1970, perhaps negative, perhaps with a fraction.
fn time(text: &[u8]) -> Option<Time> {
    let text = std::str::from_utf8(text).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_negative = whole.starts_with('-');
    let sec: i64 = whole.parse().ok()?;
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nsec: u32 = digits.parse().ok()?;
    match (is_negative, nsec) {
        (true, 1..) => Some(Time { sec: sec.checked_sub(1)?, nsec: 1_000_000_000 - nsec }),
        _ => Some(Time { sec, nsec }),
    }
}

/// A text in which `%` and two hexadecimal digits stand for a byte.
fn unescaped(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some((byte, after)) = rest.split_first() {
        (rest, _) = match byte {
            b'%' => {
                let digits = std::str::from_utf8(after.get(..2)?).ok()?;
                (&after[2..], out.push(u8::from_str_radix(digits, 16).ok()?))
            }
            byte => (after, out.push(*byte)),
        };
    }
    Some(out)
}

fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let mut out = Vec::new();
    let (mut bits, mut count) = (0u32, 0);
    for byte in text.iter().take_while(|byte| **byte != b'=') {
        bits = bits << 6 | u32::from(digit(*byte)?);
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records with their lengths.
    fn records(pairs: &[(&str, &[u8])]) -> Records {
        let mut records = Records::default();
        for (key, value) in pairs {
            let rest = [b" ", key.as_bytes(), b"=", value, b"\n"].concat();
            let mut len = rest.len();
            while len != rest.len() + len.to_string().len() {
                len = rest.len() + len.to_string().len();
            }
            records.add(&[len.to_string().as_bytes(), &rest].concat(), MAX_LEN).unwrap();
        }
        records
    }

    #[test]
    fn records_are_taken_apart() {
        let it = records(&[
            ("mtime", b"-315619199.500000000"),
            ("path", b"a\nb=\xff"),
            ("uid", b"1"),
            ("uid", b""),
            ("x", b"1"),
        ]);
        assert_eq!(it.time("mtime").unwrap(), Some(Time { sec: -315619200, nsec: 500_000_000 }));
        assert_eq!((it.get("path"), it.get("uid"), it.get("x")), (Some(&b"a\nb=\xff"[..]), None, None));
        for bad in [&b"30 a=b\n"[..], b"x", b"5 ab\n", b"99999999999999999999 a=b\n", b"1 a=b\n", b"0 a=b\n"] {
            assert!(Records::default().add(bad, MAX_LEN).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn attributes_of_both_kinds_are_decoded() {
        let it = records(&[("SCHILY.xattr.user.a", &[0, 1, 10, 4]), ("LIBARCHIVE.xattr.user.%c3%b6", b"aGVsbG8")]);
        let want = vec![(b"user.a".to_vec(), vec![0, 1, 10, 4]), ("user.ö".as_bytes().to_vec(), b"hello".to_vec())];
        assert_eq!(it.xattrs().unwrap(), want);
    }

    #[test]
    fn an_acl_in_numbers_counts_for_more_than_its_text() {
        let text = ("SCHILY.acl.access", &b"user::rw-,user:daemon:rwx,group::r--,mask::rwx,other::r--"[..]);
        let numbers = ("SCHILY.xattr.system.posix_acl_access", &b"\x02\0\0\0"[..]);
        let want = vec![(b"system.posix_acl_access".to_vec(), numbers.1.to_vec())];
        assert_eq!(records(&[text, numbers]).xattrs().unwrap(), want);
        assert!(records(&[text]).xattrs().unwrap_err().to_string().contains("--xattrs"));
        let minimal = &b"user::rw-,group::r--,other::r--"[..];
        let found = records(&[("SCHILY.acl.access", minimal), ("SCHILY.acl.default", minimal)]).xattrs().unwrap();
        assert_eq!(found.iter().map(|(name, _)| name.as_slice()).collect::<Vec<_>>(), [b"system.posix_acl_default"]);
    }

    #[test]
    fn names_of_attributes_go_into_keys_and_back() {
        for (name, key) in [(&b"user.a=b"[..], &b"user.a%3Db"[..]), (b"user.100%", b"user.100%25"), (b"%3D", b"%253D")]
        {
            assert_eq!(encoded_name(name), key);
            assert_eq!(plain_name(key), name);
        }
        assert_eq!(plain_name(b"user.%c3%3"), b"user.%c3%3");
    }

    #[test]
    fn times_have_fractions() {
        for (text, want) in
            [("1.5", Some((1, 500_000_000))), ("-1.25", Some((-2, 750_000_000))), ("7", Some((7, 0))), ("x", None)]
        {
            assert_eq!(time(text.as_bytes()).map(|time| (time.sec, time.nsec)), want, "{text}");
        }
    }
}
