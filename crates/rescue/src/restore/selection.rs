//! Which paths are restored.

use crate::sink::Path;
use regex::bytes::{Regex, RegexBuilder};

/// See the [module](self). Both conditions hold; without any, everything is restored.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// The path whose subtree is restored.
    below: Vec<Vec<u8>>,
    /// Every level of the path matches, as for btrfs restore: a pattern names the folders on the way too.
    pattern: Option<Regex>,
}

impl Selection {
    /// Selects a path and everything below it.
    pub fn below(mut self, path: &[u8]) -> Selection {
        let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
        self.below = parts.map(<[u8]>::to_vec).collect();
        self
    }

    /// Paths that match a pattern, which begin with a slash.
    pub fn matching(mut self, pattern: &str, ignores_case: bool) -> Result<Selection, regex::Error> {
        // Names are bytes: they may be in any encoding, and have line breaks.
        let mut builder = RegexBuilder::new(pattern);
        builder.case_insensitive(ignores_case).unicode(false).dot_matches_new_line(true).size_limit(8 << 20);
        self.pattern = Some(builder.build()?);
        Ok(self)
    }

    /// Whether it leaves nothing out.
    pub fn is_everything(&self) -> bool {
        self.below.is_empty() && self.pattern.is_none()
    }

    /// Whether a path is restored, or leads to what is.
    pub fn takes(&self, path: &Path) -> bool {
        let on_the_way = path.iter().zip(&self.below).all(|(name, wanted)| name == wanted);
        on_the_way && self.pattern.as_ref().is_none_or(|pattern| pattern.is_match(&text(path)))
    }

    /// Whether a path is one of those that are wanted, not only on the way to them.
    pub fn reaches(&self, path: &Path) -> bool {
        path.len() >= self.below.len() && self.takes(path)
    }

    /// The sentence for a run in which nothing is like that.
    pub(super) fn unmet(&self) -> &'static str {
        if self.pattern.is_some() { "no path matches the pattern" } else { "there is nothing at this path" }
    }

    /// The path whose subtree is wanted.
    pub(super) fn path(&self) -> &Path {
        &self.below
    }

    /// Whether a directory is made: those on the way are made too, so that what is below has a place.
    pub fn takes_inside(&self, path: &Path) -> bool {
        path.is_empty() || self.takes(path)
    }
}

fn text(path: &Path) -> Vec<u8> {
    let mut text = Vec::new();
    for name in path {
        text.push(b'/');
        text.extend_from_slice(name);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Vec<Vec<u8>> {
        text.split('/').filter(|part| !part.is_empty()).map(|part| part.as_bytes().to_vec()).collect()
    }

    #[test]
    fn patterns_match_every_level_and_paths_what_is_below() {
        let pattern = Selection::default().matching("^/(|dir(|/deep(|/.*)))$", false).unwrap();
        let below = Selection::default().below(b"/dir/deep/");
        for (text, expected) in
            [("dir", true), ("dir/deep", true), ("dir/deep/x/y", true), ("dir/f", false), ("f", false)]
        {
            assert_eq!((pattern.takes(&path(text)), below.takes(&path(text))), (expected, expected), "{text}");
        }
        for name in [&b"/dir/deep/two\nlines"[..], b"/dir/deep/latin-\xe9", "/dir/deep/ünï".as_bytes()] {
            let parts: Vec<Vec<u8>> = name[1..].split(|byte| *byte == b'/').map(<[u8]>::to_vec).collect();
            assert!(pattern.takes(&parts), "{name:?}");
        }
        let case = Selection::default().matching("^/DIR$", true).unwrap();
        assert!(case.takes(&path("dir")) && Selection::default().matching("(", false).is_err());
    }
}
