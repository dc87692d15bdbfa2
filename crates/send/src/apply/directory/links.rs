//! Hard links of a tree that is being copied: where the first name of each inode is in the copy.
//!
//! No descriptor is kept. Folders are numbered when a first name in them is noted, and each knows the one above it, so
//! that deep trees take as much memory as they have names. An inode is forgotten when all its names have been seen.

use super::super::paths;
use super::object::Identity;
use std::collections::HashMap;

/// The first name of an inode that has several.
struct First {
    folder: u32,
    name: Box<[u8]>,
    /// Names that have not been seen.
    left: u64,
}

/// See the [module](self).
pub(super) struct Links {
    firsts: HashMap<Identity, First>,
    /// Of each numbered folder the number of the one above, and its name there; the root has number 0.
    folders: Vec<(u32, Box<[u8]>)>,
    /// The numbers of the folders that lead to where the walk is, as far as they have one.
    here: Vec<Option<u32>>,
}

impl Links {
    pub fn new() -> Links {
        Links { firsts: HashMap::new(), folders: vec![(0, Box::default())], here: vec![Some(0)] }
    }

    /// The walk goes into a folder.
    pub fn down(&mut self) {
        self.here.push(None);
    }

    /// The walk leaves a folder.
    pub fn up(&mut self) {
        self.here.pop();
    }

    /// The path of the first name of an inode, if one was noted.
    pub fn path(&mut self, inode: Identity) -> Option<Vec<u8>> {
        let first = self.firsts.get_mut(&inode)?;
        first.left = first.left.saturating_sub(1);
        let (mut at, mut names) = (first.folder, vec![first.name.clone()]);
        if first.left == 0 {
            self.firsts.remove(&inode);
        }
        while at != 0 {
            let (above, name) = &self.folders[at as usize];
            names.push(name.clone());
            at = *above;
        }
        let mut path = Vec::new();
        names.iter().rev().for_each(|name| paths::push(&mut path, name));
        Some(path)
    }

    /// Notes the first of `count` names, a number whose size depends on the processor; `way` are the names that lead to
    /// the folder that it is in.
    pub fn note<'w>(
        &mut self,
        inode: Identity,
        count: impl Into<u64>,
        name: &[u8],
        way: impl ExactSizeIterator<Item = &'w [u8]>,
    ) {
        let known = self.here.iter().rposition(Option::is_some).unwrap_or(0);
        let mut number = self.here[known].unwrap_or(0);
        for (depth, folder) in way.enumerate().skip(known) {
            self.folders.push((number, folder.into()));
            number = self.folders.len() as u32 - 1;
            self.here[depth + 1] = Some(number);
        }
        let left = count.into().saturating_sub(1);
        self.firsts.insert(inode, First { folder: number, name: name.into(), left });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_names_are_found_again() {
        let mut links = Links::new();
        let way = |names: &'static [&'static [u8]]| names.iter().copied();
        links.note((1, 1), 3u64, b"top", way(&[]));
        links.down();
        links.down();
        links.note((1, 2), 2u64, b"deep", way(&[b"a", b"b"]));
        assert_eq!(links.path((1, 2)), Some(b"a/b/deep".to_vec()));
        assert_eq!(links.path((1, 2)), None, "all its names were seen");
        links.up();
        links.note((1, 3), 2u64, b"middle", way(&[b"a"]));
        links.up();
        links.down();
        links.note((1, 4), 2u64, b"other", way(&[b"c"]));
        assert_eq!(links.path((1, 3)), Some(b"a/middle".to_vec()));
        assert_eq!(links.path((1, 4)), Some(b"c/other".to_vec()));
        assert_eq!((links.path((1, 1)), links.path((1, 1))), (Some(b"top".to_vec()), Some(b"top".to_vec())));
        assert_eq!((links.path((1, 1)), links.path((9, 9))), (None, None));
    }
}
