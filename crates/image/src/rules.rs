//! Rules for a path and everything below it: compression, and content that is overwritten in place.

use crate::data::Storage;
use crate::path::{components, is_within, joined};
use butterfs_fs::options::Method;
use butterfs_ondisk::items::inode_flags as flags;

/// The consequence of a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// Compress, or do not.
    Compress(Option<Method>),
    /// No copy on write, no checksums.
    InPlace,
    /// No checksums.
    WithoutChecksums,
}

/// Rules by path, where `*` stands for any bytes of a name and `?` for one; the last one that fits counts.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    rules: Vec<(Pattern, Rule)>,
}

/// The paths for which a rule is.
#[derive(Clone, Debug)]
enum Pattern {
    /// One, as it is.
    Path(Vec<u8>),
    /// Those that fit.
    Fitting(Vec<u8>),
}

impl Rules {
    /// Adds a rule for `path` and everything below it.
    pub fn add(&mut self, path: &[u8], rule: Rule) -> crate::Result<()> {
        self.rules.push((Pattern::Fitting(joined(&components(path)?)), rule));
        Ok(())
    }

    /// Adds a rule for `path`, in which `*` and `?` stand for themselves, and everything below it.
    pub fn add_path(&mut self, path: &[u8], rule: Rule) -> crate::Result<()> {
        self.rules.push((Pattern::Path(joined(&components(path)?)), rule));
        Ok(())
    }

    fn of<'a>(&'a self, path: &'a [u8]) -> impl Iterator<Item = Rule> + 'a {
        let is_covered = |pattern: &Pattern| match pattern {
            Pattern::Path(top) => is_within(path, top),
            Pattern::Fitting(pattern) => covers(pattern, path),
        };
        self.rules.iter().filter(move |(pattern, _)| is_covered(pattern)).map(|(_, rule)| *rule)
    }

    /// How a file's content is stored.
    pub fn storage(&self, path: &[u8]) -> Storage {
        let mut storage = Storage::default();
        for rule in self.of(path) {
            match rule {
                Rule::Compress(method) => storage.method = method,
                Rule::InPlace => storage.in_place = true,
                Rule::WithoutChecksums => storage.without_checksums = true,
            }
        }
        storage
    }

    /// The flags of an inode: files have those of their content, folders pass them on to what is made in them.
    pub fn flags(&self, path: &[u8]) -> u64 {
        self.of(path).fold(0, |all, rule| {
            all | match rule {
                Rule::Compress(_) => 0,
                Rule::InPlace => flags::NODATACOW | flags::NODATASUM,
                Rule::WithoutChecksums => flags::NODATASUM,
            }
        })
    }
}

/// Whether `path` or something above it fits the pattern.
fn covers(pattern: &[u8], path: &[u8]) -> bool {
    if !pattern.iter().any(|byte| matches!(byte, b'*' | b'?')) {
        return is_within(path, pattern);
    }
    let mut names = path.split(|byte| *byte == b'/');
    pattern.split(|byte| *byte == b'/').all(|pattern| names.next().is_some_and(|name| fits(pattern, name)))
}

/// Whether a name fits a pattern. Each `*` is tried again at most once per byte.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n, mut star) = (0, 0, None);
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(byte) if *byte == b'?' || *byte == name[n] => (p, n) = (p + 1, n + 1),
            _ => match star {
                Some((at, tried)) => {
                    (p, n) = (at + 1, tried + 1);
                    star = Some((at, tried + 1));
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_fs::options::Algorithm;

    #[test]
    fn patterns_cover_what_is_below() {
        for (pattern, path, want) in [
            ("usr", "usr/lib/x", true),
            ("usr", "usrx", false),
            ("", "any/thing", true),
            ("var/*/images", "var/lib/images/a", true),
            ("var/*/images", "var/lib/other", false),
            ("*.iso", "a.iso", true),
            ("*.iso", "b/a.iso", false),
            ("a?c*", "abcd", true),
            ("*a*b*c", "xxaxxbxxc", true),
            ("*a*b*c", "xxbxxaxxc", false),
        ] {
            assert_eq!(covers(pattern.as_bytes(), path.as_bytes()), want, "{pattern} {path}");
        }
    }

    #[test]
    fn the_last_rule_counts() {
        let mut rules = Rules::default();
        let zstd = Some(Method::new(Algorithm::Zstd, 15));
        rules.add(b"/", Rule::Compress(Some(Algorithm::Zlib.into()))).unwrap();
        rules.add(b"usr", Rule::Compress(zstd)).unwrap();
        rules.add(b"usr/boot", Rule::Compress(None)).unwrap();
        assert_eq!(rules.storage(b"usr/x").method, zstd);
        assert_eq!(rules.storage(b"usr/boot/x").method, None);
        assert_eq!(rules.storage(b"etc").method, Some(Algorithm::Zlib.into()));
        rules.add_path(b"x*", Rule::InPlace).unwrap();
        assert!(rules.storage(b"x*/below").in_place && !rules.storage(b"xyz").in_place);
    }
}
