//! Paths inside an image: bytes, relative to its root, without `.`, `..` or empty components.

use crate::error::{Error, Result, shown};

/// Longest name.
pub const MAX_NAME_LEN: usize = 255;
/// Longest path that a source may give: four times what the kernel takes in a call.
const MAX_PATH_LEN: usize = 16 << 10;

/// The components of a path as a source writes it: a leading `/` and `./` are left out; a path that would lead out, or
/// that has a name which cannot be, is refused.
pub fn components(path: &[u8]) -> Result<Vec<&[u8]>> {
    check_len(path)?;
    let mut out = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => return Err(Error::content(format!("the path {} leads out with '..'", shown(path)))),
            name if name.len() > MAX_NAME_LEN => {
                let len = name.len();
                return Err(Error::content(format!(
                    "a name in {} has {len} bytes, at most 255 are possible",
                    shown(path)
                )));
            }
            name if name.contains(&0) => {
                return Err(Error::content(format!("a name in {} has a NUL", shown(path))));
            }
            name => out.push(name),
        }
    }
    Ok(out)
}

/// Refuses a path that is too long.
pub fn check_len(path: &[u8]) -> Result<()> {
    match path.len() {
        len if len > MAX_PATH_LEN => {
            Err(Error::content(format!("a path has {len} bytes, at most {MAX_PATH_LEN} are possible")))
        }
        _ => Ok(()),
    }
}

/// The path of these components.
pub fn joined(components: &[&[u8]]) -> Vec<u8> {
    components.join(&b'/')
}

/// Whether `path` is `top` or lies below it; both without superfluous components.
pub fn is_within(path: &[u8], top: &[u8]) -> bool {
    top.is_empty() || path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_taken_apart_and_do_not_lead_out() {
        for (path, want) in [("./a/b", "a/b"), ("/a//b/", "a/b"), (".", ""), ("", ""), ("a/./b", "a/b")] {
            assert_eq!(joined(&components(path.as_bytes()).unwrap()), want.as_bytes(), "{path}");
        }
        for bad in ["../a", "a/../../b", "a/..", "..", "a\0b"] {
            assert!(components(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(components(&[b'x'; 256]).is_err());
        assert!(components(&b"x/".repeat(40 << 10)).is_err());
    }

    #[test]
    fn within_means_whole_components() {
        for (path, top, want) in
            [("a/b", "a", true), ("a", "a", true), ("ab", "a", false), ("x", "", true), ("a", "a/b", false)]
        {
            assert_eq!(is_within(path.as_bytes(), top.as_bytes()), want, "{path} {top}");
        }
    }
}
