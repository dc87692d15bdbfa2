//! Words on a line: separated by spaces, with everything but printable ASCII as `%` and two hexadecimal digits. The
//! empty word is a lone `%`.

use super::Record;

/// A line of words, without its newline.
pub fn joined(words: &[impl AsRef<[u8]>]) -> String {
    let mut line = String::new();
    for (index, word) in words.iter().enumerate() {
        if index > 0 {
            line.push(' ');
        }
        if word.as_ref().is_empty() {
            line.push('%');
        }
        for &byte in word.as_ref() {
            match byte {
                b'!'..=b'~' if byte != b'%' => line.push(byte.into()),
                _ => line.push_str(&format!("%{byte:02x}")),
            }
        }
    }
    line
}

/// The words of a line; none when it is malformed.
pub fn split(line: &str) -> Option<Record> {
    line.split(' ').filter(|word| !word.is_empty()).map(word).collect()
}

fn word(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = if text == "%" { &[] } else { text.as_bytes() };
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte == b'%' {
            let (digits, tail) = rest.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = tail;
        } else {
            bytes.push(byte);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_survives() {
        let all: Vec<u8> = (0..=255).collect();
        let words = [b"".to_vec(), all, b"a b%\n".to_vec(), b"%".to_vec()];
        let line = joined(&words);
        assert!(line.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
        assert_eq!(split(&line).unwrap(), words);
        assert_eq!(split("").unwrap(), Record::new());
        for malformed in ["%1", "%zz", "a %+1", "%1\u{e9}"] {
            assert!(split(malformed).is_none_or(|words| words != split("").unwrap()), "{malformed}");
        }
        assert_eq!(split("%1"), None);
        assert_eq!(split("%zz"), None);
    }
}
