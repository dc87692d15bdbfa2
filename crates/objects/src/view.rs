//! One snapshot of a repository, read without being restored.

use crate::archive::Archive;
use crate::items::{self, DIRECTORY, ENTRY, EXTENT, Extent, INODE, Inode, LINK_TEXT, NAME, REGULAR, XATTR, key, parts};
use crate::manifest::Manifest;
use crate::tree::{self, Nodes as _, Root, Scan};
use butterfs_store::{Error, Kind, Result};
use std::ops::ControlFlow;

/// The deepest path.
const MAX_DEPTH: usize = 40_000;

/// See the [module](self).
#[derive(Clone, Copy)]
pub struct View<'a> {
    archive: &'a Archive,
    root: Option<Root>,
}

/// A name in a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The name.
    pub name: Vec<u8>,
    /// The inode.
    pub ino: u64,
    /// The type bits of its mode.
    pub kind: u32,
}

impl<'a> View<'a> {
    /// The view of a snapshot.
    pub fn new(archive: &'a Archive, manifest: &Manifest) -> Result<View<'a>> {
        let root = manifest.root(archive.repository())?;
        root.map_or(Ok(()), |root| tree::check_height(archive, root))?;
        Ok(View { archive, root })
    }

    /// The archive.
    pub fn archive(&self) -> &'a Archive {
        self.archive
    }

    /// The root of the index.
    pub fn root(&self) -> Option<Root> {
        self.root
    }

    fn wrong(&self, rule: &str) -> Error {
        match self.root {
            Some(root) => self.archive.damaged(&root.at, rule),
            None => Error::new(Kind::Damaged, format!("an empty index is damaged: {rule}")),
        }
    }

    fn missing(&self, path: &[u8], rule: &str) -> Error {
        let path = String::from_utf8_lossy(path);
        Error::new(Kind::NotFound, format!("{} has no '{path}': {rule}", self.archive.repository().store().shown("")))
    }

    /// The inode, if there is one of this number.
    pub fn inode_if_any(&self, ino: u64) -> Result<Option<Inode>> {
        let value = tree::get(self.archive, self.root, &key(ino, INODE, b""))?;
        let parsed =
            |value: Vec<u8>| Inode::from_bytes(&value).ok_or_else(|| self.wrong("it has an inode that is none"));
        value.map(parsed).transpose()
    }

    /// The inode of this number.
    pub fn inode(&self, ino: u64) -> Result<Inode> {
        self.inode_if_any(ino)?.ok_or_else(|| self.wrong(&format!("it has no inode {ino}, to which a name leads")))
    }

    /// The entry of a directory.
    pub fn entry(&self, directory: u64, name: &[u8]) -> Result<Option<Entry>> {
        let value = tree::get(self.archive, self.root, &key(directory, ENTRY, name))?;
        value.map(|value| self.parsed(name, &value)).transpose()
    }

    fn parsed(&self, name: &[u8], value: &[u8]) -> Result<Entry> {
        let (ino, kind) = items::entry_from(value).ok_or_else(|| self.wrong("it has an entry that is none"))?;
        let is_name = !name.is_empty() && name.len() <= 255 && name != b"." && name != b"..";
        if !is_name || name.contains(&b'/') || name.contains(&0) {
            return Err(self.wrong("it has an entry with an impossible name"));
        }
        Ok(Entry { name: name.to_vec(), ino, kind })
    }

    /// The inode of a path, in which links are not followed.
    pub fn find(&self, path: &[u8]) -> Result<u64> {
        let mut ino = items::ROOT;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && name != b".") {
            if name == b".." {
                return Err(self.missing(path, "'..' is not looked up"));
            }
            let entry = self.entry(ino, name)?;
            ino = entry.ok_or_else(|| self.missing(path, "there is no such file or directory"))?.ino;
        }
        Ok(ino)
    }

    /// Shows the items of an inode of one kind from `from` on: the rest of the key, and the value.
    fn scan(
        &self,
        ino: u64,
        kind: u8,
        from: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let Some(root) = self.root else { return Ok(()) };
        let mut scan = Scan::new(self.archive, root, &key(ino, kind, from));
        while let Some((key, value)) = scan.next()? {
            match parts(&key) {
                Some((other, of, rest)) if (other, of) == (ino, kind) => {
                    if visit(rest, &value)?.is_break() {
                        break;
                    }
                }
                _ => break,
            }
        }
        Ok(())
    }

    /// Names of a directory behind `after`, at most so many.
    pub fn entries(&self, directory: u64, after: &[u8], most: usize) -> Result<Vec<Entry>> {
        let mut found = Vec::new();
        let from = [after, if after.is_empty() { &[][..] } else { &[0] }].concat();
        self.scan(directory, ENTRY, &from, &mut |name, value| {
            found.push(self.parsed(name, value)?);
            Ok(if found.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })?;
        Ok(found)
    }

    /// The extended attributes of an inode.
    pub fn xattrs(&self, ino: u64) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut found = Vec::new();
        self.scan(ino, XATTR, b"", &mut |name, value| {
            found.push((name.to_vec(), value.to_vec()));
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(found)
    }

    /// The text of a symbolic link.
    pub fn link_text(&self, ino: u64) -> Result<Vec<u8>> {
        let text = tree::get(self.archive, self.root, &key(ino, LINK_TEXT, b""))?;
        text.ok_or_else(|| self.wrong("it has a symbolic link without a text"))
    }

    /// The directory and the name by which an inode is made; its other names are links.
    pub fn first_name(&self, ino: u64) -> Result<Option<(u64, Vec<u8>)>> {
        let mut found = None;
        self.scan(ino, NAME, b"", &mut |rest, _| {
            let (directory, name) =
                rest.split_first_chunk::<8>().ok_or_else(|| self.wrong("it has a name that is none"))?;
            found = Some((u64::from_be_bytes(*directory), name.to_vec()));
            Ok(ControlFlow::Break(()))
        })?;
        Ok(found)
    }

    /// Checks a directory before it is walked into: it has one name, the one that leads there. So directories are never
    /// walked in a circle.
    pub fn enter(&self, directory: u64, entry: &Entry) -> Result<()> {
        match self.first_name(entry.ino)? {
            Some((parent, name)) if (parent, &name) == (directory, &entry.name) => Ok(()),
            _ => Err(self.wrong("it has a directory that its own name does not lead to")),
        }
    }

    /// A path of an inode; `None` where no name leads to it.
    pub fn path_of(&self, ino: u64) -> Result<Option<Vec<u8>>> {
        let (mut names, mut at) = (Vec::new(), ino);
        while at != items::ROOT {
            let Some((directory, name)) = self.first_name(at)? else { return Ok(None) };
            names.push(name);
            at = directory;
            if names.len() > MAX_DEPTH {
                return Err(self.wrong("it has directories in a circle"));
            }
        }
        names.reverse();
        Ok(Some(names.join(&b'/')))
    }

    /// Shows the extents of a file that have bytes from `from` up to `until`, cut to that.
    pub fn extents(
        &self,
        ino: u64,
        from: u64,
        until: u64,
        mut visit: impl FnMut(u64, Extent) -> Result<()>,
    ) -> Result<()> {
        let mut end = 0;
        let mut show = |offset: u64, extent: Extent| {
            let own_end = offset.checked_add(extent.len).filter(|_| offset >= end && extent.len > 0);
            end = own_end.ok_or_else(|| self.wrong("it has extents that overlap"))?;
            let (begin, stop) = (offset.max(from), end.min(until));
            if begin < stop { visit(begin, extent.part(begin - offset, stop - begin)) } else { Ok(()) }
        };
        let first = key(ino, EXTENT, &from.to_be_bytes());
        if let Some((key, value)) = tree::before(self.archive, self.root, &first)?
            && let Some((other, EXTENT, rest)) = parts(&key)
            && other == ino
        {
            show(self.offset(rest)?, self.extent(&value)?)?;
        }
        self.scan(ino, EXTENT, &from.to_be_bytes(), &mut |rest, value| {
            let offset = self.offset(rest)?;
            if offset >= until {
                return Ok(ControlFlow::Break(()));
            }
            show(offset, self.extent(value)?)?;
            Ok(ControlFlow::Continue(()))
        })
    }

    fn offset(&self, rest: &[u8]) -> Result<u64> {
        let offset = rest.try_into().map(u64::from_be_bytes).ok().filter(|offset| *offset <= i64::MAX as u64);
        offset.ok_or_else(|| self.wrong("it has an extent at an impossible place"))
    }

    fn extent(&self, value: &[u8]) -> Result<Extent> {
        Extent::from_bytes(value).ok_or_else(|| self.wrong("it has an extent that is none"))
    }

    /// Hands over the content of a file from `from` up to `until`, in order; holes are left out.
    pub fn content(
        &self,
        ino: u64,
        from: u64,
        until: u64,
        take: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let until = until.min(self.inode(ino)?.size);
        let mut batch: Vec<(u64, Extent)> = Vec::new();
        let mut bytes = 0;
        let mut give = |batch: &mut Vec<(u64, Extent)>| -> Result<()> {
            let found = self.archive.pieces(batch.iter().filter_map(|(_, extent)| extent.data).map(|(_, at)| at))?;
            for (offset, extent) in batch.drain(..) {
                if let Some((skip, at)) = extent.data {
                    take(offset, &found[&at][skip as usize..skip as usize + extent.len as usize])?;
                }
            }
            Ok(())
        };
        self.extents(ino, from, until, |offset, extent| {
            bytes += extent.data.map_or(0, |(_, at)| u64::from(at.raw));
            batch.push((offset, extent));
            if bytes < BATCH_BYTES && batch.len() < BATCH_EXTENTS {
                return Ok(());
            }
            bytes = 0;
            give(&mut batch)
        })?;
        give(&mut batch)
    }

    /// The ranges of a file that have data.
    pub fn data_ranges(&self, ino: u64) -> Result<Vec<std::ops::Range<u64>>> {
        let size = self.inode(ino)?.size;
        let mut ranges: Vec<std::ops::Range<u64>> = Vec::new();
        self.extents(ino, 0, size, |offset, extent| {
            match ranges.last_mut() {
                _ if extent.data.is_none() => {}
                Some(last) if last.end == offset => last.end = offset + extent.len,
                _ => ranges.push(offset..offset + extent.len),
            }
            Ok(())
        })?;
        Ok(ranges)
    }

    /// An inode that must be a directory.
    pub fn directory(&self, path: &[u8]) -> Result<u64> {
        let ino = self.find(path)?;
        let is_directory = self.inode(ino)?.is(DIRECTORY);
        if is_directory { Ok(ino) } else { Err(self.missing(path, "it is not a directory")) }
    }

    /// An inode that must be a regular file.
    pub fn file(&self, path: &[u8]) -> Result<u64> {
        let ino = self.find(path)?;
        let is_file = self.inode(ino)?.is(REGULAR);
        if is_file { Ok(ino) } else { Err(self.missing(path, "it is not a regular file")) }
    }
}

/// Content that is fetched together.
const BATCH_BYTES: u64 = 16 << 20;
/// Extents that are fetched together.
const BATCH_EXTENTS: usize = 4096;
