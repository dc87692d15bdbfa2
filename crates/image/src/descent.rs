//! The way to folders of a tree, one name after the other: no path is longer than a name, however deep the tree is.
//!
//! # Invariants
//! 1. Neighbours share the way: only names that differ from those of the last folder are looked up again.
//! 2. Handles of the first [`STRIDE`] levels are kept, then one for every [`STRIDE`] levels, and the last one.

/// Levels between handles that are kept.
const STRIDE: usize = 64;

/// A handle of a folder.
struct Kept<T> {
    /// Bytes of the path that lead to it.
    len: usize,
    depth: usize,
    handle: T,
}

/// See the [module](self).
pub struct Descent<T> {
    /// The path of the last folder.
    path: Vec<u8>,
    /// From the top, which is always there, to the last folder.
    kept: Vec<Kept<T>>,
}

impl<T> Descent<T> {
    /// A way that begins at `top`.
    pub fn new(top: T) -> Descent<T> {
        Descent { path: Vec::new(), kept: vec![Kept { len: 0, depth: 0, handle: top }] }
    }

    /// The folder at `path`, which has no superfluous components. `open` gets a folder, the path of one in it and that
    /// one's name.
    pub fn enter<E>(&mut self, path: &[u8], mut open: impl FnMut(&T, &[u8], &[u8]) -> Result<T, E>) -> Result<&T, E> {
        self.go_back(path);
        while self.path.len() < path.len() {
            let start = self.path.len() + usize::from(!self.path.is_empty());
            let len = path[start..].iter().position(|byte| *byte == b'/').map_or(path.len(), |at| start + at);
            let last = self.kept.last().expect("the top is always there");
            let kept =
                Kept { len, depth: last.depth + 1, handle: open(&last.handle, &path[..len], &path[start..len])? };
            if last.depth > STRIDE && !last.depth.is_multiple_of(STRIDE) {
                self.kept.pop();
            }
            self.kept.push(kept);
            self.path.extend_from_slice(&path[self.path.len()..len]);
        }
        Ok(&self.kept.last().expect("the top is always there").handle)
    }

    /// Goes back to the deepest folder with a handle that is `path` or lies above it.
    fn go_back(&mut self, path: &[u8]) {
        let common = self.path.iter().zip(path).take_while(|(one, other)| one == other).count();
        let is_above = |len: usize| len == 0 || len <= common && path.get(len).is_none_or(|byte| *byte == b'/');
        while self.kept.last().is_some_and(|kept| !is_above(kept.len)) {
            self.kept.pop();
        }
        self.path.truncate(self.kept.last().map_or(0, |kept| kept.len));
    }

    /// Forgets the folder at `path` and what is below it: something else is going to be there.
    pub fn forget(&mut self, path: &[u8]) {
        while self.kept.last().is_some_and(|kept| kept.len > 0 && crate::path::is_within(&self.path[..kept.len], path))
        {
            self.kept.pop();
        }
        self.path.truncate(self.kept.last().map_or(0, |kept| kept.len));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Handles are paths; counts how often one is opened.
    fn enter(descent: &mut Descent<Vec<u8>>, path: &[u8]) -> usize {
        let mut opened = 0;
        let handle = descent.enter(path, |above, path, name| {
            opened += 1;
            let want = if above.is_empty() { name.to_vec() } else { [above, &b"/"[..], name].concat() };
            assert_eq!(want, path);
            Ok::<_, ()>(want)
        });
        assert_eq!(handle.unwrap(), path);
        opened
    }

    #[test]
    fn neighbours_share_the_way() {
        let mut descent = Descent::new(Vec::new());
        for (path, opened) in [("", 0), ("a", 1), ("a/b", 1), ("a/b", 0), ("ab", 1), ("ab/c/d", 2), ("", 0), ("x", 1)] {
            assert_eq!(enter(&mut descent, path.as_bytes()), opened, "{path}");
        }
        descent.forget(b"x");
        assert_eq!(enter(&mut descent, b"x"), 1);
        descent.forget(b"xy");
        assert_eq!(enter(&mut descent, b"x"), 0);
    }

    #[test]
    fn deep_trees_cost_little() {
        let mut descent = Descent::new(Vec::new());
        let path = vec!["d"; 10_000].join("/").into_bytes();
        let depths = (1..=10_000).chain((1..=10_000).rev());
        let (mut opened, mut most) = (0, 0);
        for depth in depths {
            opened += enter(&mut descent, &path[..2 * depth - 1]);
            most = most.max(descent.kept.len());
        }
        assert!(opened < 10_000 * (STRIDE + 2), "{opened}");
        assert!(most < STRIDE + 10_000 / STRIDE + 3, "{most}");
    }
}
