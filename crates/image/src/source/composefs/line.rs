//! A line of a composefs dump: eleven fields that blanks separate, then extended attributes; `\` begins an escape.

use crate::entry::{Attributes, Special, Time};
use crate::error::{Error, Result};
use std::str::FromStr;

/// The fields, in their order.
const FIELDS: [&str; 11] =
    ["PATH", "SIZE", "MODE", "NLINK", "UID", "GID", "RDEV", "MTIME", "PAYLOAD", "CONTENT", "DIGEST"];

/// A path and what is there.
#[derive(Debug, PartialEq, Eq)]
pub struct Line {
    /// Begins with a slash.
    pub path: Vec<u8>,
    /// Owner, mode, times and extended attributes.
    pub attributes: Attributes,
    /// The thing itself.
    pub kind: Kind,
}

/// The thing that has the path.
#[derive(Debug, PartialEq, Eq)]
pub enum Kind {
    /// A folder.
    Folder,
    /// A file of so many bytes.
    File {
        /// Its bytes.
        size: u64,
        /// Where they are.
        stored: Stored,
    },
    /// Another name of an earlier path.
    HardLink(Vec<u8>),
    /// Anything else.
    Special(Special),
}

/// The place of a content.
#[derive(Debug, PartialEq, Eq)]
pub enum Stored {
    /// In the line.
    Inline(Vec<u8>),
    /// In an object, with its fs-verity digest.
    Object(Vec<u8>, Option<Vec<u8>>),
}

impl Line {
    /// Reads a line without its end.
    pub fn parse(text: &[u8]) -> Result<Line> {
        let mut words = text.split(|byte| *byte == b' ');
        let mut fields: [&[u8]; FIELDS.len()] = [b""; FIELDS.len()];
        for (field, name) in fields.iter_mut().zip(FIELDS) {
            let missing = || Error::content(format!("the field {name} is missing"));
            *field = words.next().filter(|word| !word.is_empty()).ok_or_else(missing)?;
        }
        let [path, size, mode, _, uid, gid, rdev, mtime, payload, content, digest] = fields;
        let path = unescaped(path)?;
        if path.first() != Some(&b'/') {
            return Err(Error::content(format!("the path '{}' does not begin with a slash", path.escape_ascii())));
        }
        let payload = optional(payload)?;
        let (mode, is_link) = mode.strip_prefix(b"@").map_or((mode, false), |mode| (mode, true));
        if is_link {
            let target = payload.ok_or_else(|| Error::content("a hard link has no payload"))?;
            return Ok(Line { path, attributes: Attributes::default(), kind: Kind::HardLink(target) });
        }
        let mode = octal(mode)?;
        let attributes = Attributes {
            mode: mode & 0o7777,
            uid: number("UID", uid)?,
            gid: number("GID", gid)?,
            mtime: time(mtime)?,
            xattrs: words.map(attribute).collect::<Result<_>>()?,
            ..Attributes::default()
        };
        let size = number("SIZE", size)?;
        let rdev: u64 = number("RDEV", rdev)?;
        let device = || (rustix::fs::major(rdev), rustix::fs::minor(rdev));
        let kind = match mode & 0o170000 {
            0o040000 => Kind::Folder,
            0o100000 => Kind::File { size, stored: stored(size, payload, optional(content)?, optional(digest)?)? },
            0o120000 => Kind::Special(Special::Symlink(payload.unwrap_or_default())),
            0o020000 => Kind::Special(Special::CharacterDevice(device().0, device().1)),
            0o060000 => Kind::Special(Special::BlockDevice(device().0, device().1)),
            0o010000 => Kind::Special(Special::Fifo),
            0o140000 => Kind::Special(Special::Socket),
            _ => return Err(Error::content(format!("the mode {mode:o} has no type that is known"))),
        };
        Ok(Line { path, attributes, kind })
    }
}

fn stored(size: u64, payload: Option<Vec<u8>>, content: Option<Vec<u8>>, digest: Option<Vec<u8>>) -> Result<Stored> {
    let stored = match (content, payload) {
        (Some(content), _) => Stored::Inline(content),
        (None, Some(payload)) => Stored::Object(payload, digest.map(|text| hex(&text)).transpose()?),
        (None, None) => Stored::Inline(Vec::new()),
    };
    if let Stored::Inline(content) = &stored
        && content.len() as u64 != size
    {
        let len = content.len();
        return Err(Error::content(format!("the file should have {size} bytes, but its content has {len}")));
    }
    Ok(stored)
}

/// A field that is `-` where there is none.
fn optional(field: &[u8]) -> Result<Option<Vec<u8>>> {
    if field == b"-" { Ok(None) } else { unescaped(field).map(Some) }
}

fn attribute(word: &[u8]) -> Result<(Vec<u8>, Vec<u8>)> {
    let equals = word.iter().position(|byte| *byte == b'=');
    let equals = equals.ok_or_else(|| Error::content("an extended attribute has no '='"))?;
    Ok((unescaped(&word[..equals])?, unescaped(&word[equals + 1..])?))
}

fn unescaped(field: &[u8]) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field.iter().copied();
    while let Some(byte) = rest.next() {
        out.push(match byte {
            b'\\' => escape(&mut rest)?,
            byte => byte,
        });
    }
    Ok(out)
}

fn escape(rest: &mut impl Iterator<Item = u8>) -> Result<u8> {
    let wrong = || Error::content("an escape is not one of \\\\, \\n, \\r, \\t, \\= and \\xNN");
    Ok(match rest.next().ok_or_else(wrong)? {
        b'\\' => b'\\',
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        // Written by early versions.
        b'=' => b'=',
        b'x' => {
            let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16)).ok_or_else(wrong);
            (digit()? << 4 | digit()?) as u8
        }
        _ => return Err(wrong()),
    })
}

fn hex(text: &[u8]) -> Result<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let pair = |pair: &[u8]| Some((digit(pair.first()?)? << 4 | digit(pair.get(1)?)?) as u8);
    let bytes: Option<Vec<u8>> = text.chunks(2).map(pair).collect();
    bytes.ok_or_else(|| Error::content("the field DIGEST has other characters than pairs of hexadecimal digits"))
}

fn number<N: FromStr>(name: &str, field: &[u8]) -> Result<N> {
    let parsed = std::str::from_utf8(field).ok().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| Error::content(format!("the field {name} is '{}', which is no number", field.escape_ascii())))
}

fn octal(field: &[u8]) -> Result<u32> {
    let parsed = std::str::from_utf8(field).ok().and_then(|text| u32::from_str_radix(text, 8).ok());
    parsed.ok_or_else(|| Error::content(format!("the field MODE is '{}', which is no mode", field.escape_ascii())))
}

/// Seconds, and behind the point nanoseconds: no fraction.
fn time(field: &[u8]) -> Result<Time> {
    let mut parts = field.splitn(2, |byte| *byte == b'.');
    let sec = number("MTIME", parts.next().unwrap_or_default())?;
    let nsec = parts.next().map_or(Ok(0), |part| number("MTIME", part))?;
    if nsec >= 1_000_000_000 {
        return Err(Error::content(format!("the field MTIME has {nsec} nanoseconds")));
    }
    Ok(Time { sec, nsec })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Line> {
        Line::parse(text.as_bytes())
    }

    #[test]
    fn fields_and_escapes_are_read() {
        let line = parse("/a\\x20dir\\\\ 45 40750 4 1000 7 0 1674041780.5 - - - user.a\\x3db=\\n= user.e=").unwrap();
        assert_eq!((line.path.as_slice(), line.kind), (&b"/a dir\\"[..], Kind::Folder));
        let Attributes { mode, uid, gid, mtime, xattrs, .. } = line.attributes;
        assert_eq!((mode, uid, gid), (0o750, 1000, 7));
        assert_eq!(mtime, Time { sec: 1_674_041_780, nsec: 5 }, "the point is no decimal point");
        assert_eq!(xattrs, [(b"user.a=b".to_vec(), b"\n=".to_vec()), (b"user.e".to_vec(), Vec::new())]);
        let of = |text| parse(text).unwrap().kind;
        let inline = Kind::File { size: 10, stored: Stored::Inline(b"some-text\n".to_vec()) };
        assert_eq!(of("/f 10 100644 1 0 0 0 -5.0 - some-text\\n -"), inline);
        let object = Stored::Object(b"ab/cd".to_vec(), Some(vec![0xab, 0xcd]));
        assert_eq!(of("/f 9 100644 1 0 0 0 0.0 ab/cd - abcd"), Kind::File { size: 9, stored: object });
        assert_eq!(of("/f 9 @100644 2 0 0 0 0.0 /g - abcd"), Kind::HardLink(b"/g".to_vec()));
        assert_eq!(of("/f 0 100644 1 0 0 0 0.0 - - -"), Kind::File { size: 0, stored: Stored::Inline(Vec::new()) });
        assert_eq!(of("/l 1 120777 1 0 0 0 0.0 \\x2d - -"), Kind::Special(Special::Symlink(b"-".to_vec())));
        assert_eq!(of("/d 0 20600 1 0 0 1281 0.0 - - -"), Kind::Special(Special::CharacterDevice(5, 1)));
    }

    #[test]
    fn lines_that_break_a_rule_are_refused() {
        for (text, part) in [
            ("", "PATH is missing"),
            ("/f 1 100644 1 0 0 0 0.0 - a", "DIGEST is missing"),
            ("f 1 40755 1 0 0 0 0.0 - - -", "begin with a slash"),
            ("/f 2 100644 1 0 0 0 0.0 - a -", "should have 2 bytes"),
            ("/f 1 100644 1 0 0 0 0.0 - - -", "should have 1 bytes"),
            ("/f 1 100644 1 0 0 0 0.1000000000 - a -", "nanoseconds"),
            ("/f -1 40755 1 0 0 0 0.0 - - -", "SIZE is '-1'"),
            ("/f 1 0755 1 0 0 0 0.0 - - -", "no type"),
            ("/f 1 999 1 0 0 0 0.0 - - -", "no mode"),
            ("/f 1 40755 1 4294967296 0 0 0.0 - - -", "UID"),
            ("/f\\x2 1 40755 1 0 0 0 0.0 - - -", "escape"),
            ("/f\\q 1 40755 1 0 0 0 0.0 - - -", "escape"),
            ("/f 1 @100644 1 0 0 0 0.0 - - -", "no payload"),
            ("/f 1 100644 1 0 0 0 0.0 ab - xyz", "DIGEST"),
            ("/f 1 40755 1 0 0 0 0.0 - - - user.x", "no '='"),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
