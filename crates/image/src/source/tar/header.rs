//! The header block of an entry: fields at fixed places, numbers in octal or, as GNU has it, in base 256.

use crate::error::{Error, Result};

/// Bytes of a block.
pub const BLOCK: usize = 512;

/// A header block.
pub struct Header(pub Box<[u8; BLOCK]>);

/// Which form the fields behind the link's name have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// None: version 7.
    Old,
    /// POSIX.
    Ustar,
    /// GNU.
    Gnu,
}

impl Header {
    /// Whether all bytes are zero: one of the blocks that end an archive.
    pub fn is_zero(&self) -> bool {
        self.0.iter().all(|byte| *byte == 0)
    }

    /// Checks that this is a header at all.
    pub fn check(&self) -> Result<()> {
        let stored = number(&self.0[148..156]);
        let bytes = || self.0.iter().enumerate().map(|(at, byte)| if (148..156).contains(&at) { b' ' } else { *byte });
        let unsigned: i64 = bytes().map(i64::from).sum();
        let signed: i64 = bytes().map(|byte| i64::from(byte as i8)).sum();
        match stored == Some(unsigned) || stored == Some(signed) {
            true => Ok(()),
            false => Err(Error::content("this is no archive of tar, or it is damaged: a header's checksum is wrong")),
        }
    }

    /// The form.
    pub fn form(&self) -> Form {
        match &self.0[257..265] {
            b"ustar  \0" => Form::Gnu,
            magic if magic.starts_with(b"ustar") => Form::Ustar,
            _ => Form::Old,
        }
    }

    /// The type of the entry.
    pub fn kind(&self) -> u8 {
        self.0[156]
    }

    /// A text that ends with a NUL or with its field.
    pub fn text(&self, at: usize, len: usize) -> &[u8] {
        let field = &self.0[at..at + len];
        &field[..field.iter().position(|byte| *byte == 0).unwrap_or(len)]
    }

    /// The name, with its prefix.
    pub fn path(&self) -> Vec<u8> {
        let (name, prefix) = (self.text(0, 100), self.text(345, 155));
        if self.form() == Form::Ustar && !prefix.is_empty() { [prefix, b"/", name].concat() } else { name.to_vec() }
    }

    /// A number.
    pub fn number(&self, at: usize, len: usize, what: &str) -> Result<i64> {
        number(&self.0[at..at + len]).ok_or_else(|| {
            let name = self.text(0, 100).escape_ascii().to_string();
            Error::content(format!("the entry '{name}' has a {what} that is no number, or too large"))
        })
    }

    /// A number that is not negative.
    pub fn size(&self, at: usize, len: usize, what: &str) -> Result<u64> {
        u64::try_from(self.number(at, len, what)?)
            .map_err(|_| Error::content(format!("an entry has a {what} below zero")))
    }
}

/// Octal digits between blanks and NULs, or base 256 where the first bit is set.
pub fn number(field: &[u8]) -> Option<i64> {
    let first = *field.first()?;
    if first & 0x80 != 0 {
        // The rest is a number in two's complement, whose sign is the second bit.
        let start = if first & 0x40 != 0 { -1i64 } else { 0 };
        let low = i64::from(first & 0x3f);
        let head = if start < 0 { low - 0x40 } else { low };
        return field[1..].iter().try_fold(head, |value, byte| value.checked_mul(256)?.checked_add(i64::from(*byte)));
    }
    let is_blank = |byte: &u8| matches!(byte, b' ' | 0);
    let digits = field.iter().skip_while(|byte| is_blank(byte));
    let mut value: i64 = 0;
    let mut ended = false;
    for byte in digits {
        match byte {
            b'0'..=b'7' if !ended => value = value.checked_mul(8)?.checked_add(i64::from(byte - b'0'))?,
            byte if is_blank(byte) => ended = true,
            _ if ended => break,
            _ => return None,
        }
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_binary() {
        for (field, want) in [
            (&b"0000644\0"[..], Some(0o644)),
            (b"  644 \0 ", Some(0o644)),
            (b"\0\0\0\0\0\0\0\0", Some(0)),
            (b"12345670", Some(0o12345670)),
            (b"99", None),
            (&[0x80, 0, 0, 0, 0, 0, 1, 0], Some(256)),
            (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xed, 0x30, 0x08, 0x80], Some(-315619200)),
            (&[0x80, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], None),
        ] {
            assert_eq!(number(field), want, "{field:?}");
        }
    }
}
