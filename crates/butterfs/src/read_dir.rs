//! The entries of a directory, one by one.
//!
//! Entries are read in batches, so that memory stays small and no lock is held while the caller looks at one. An entry
//! that exists all the time is shown exactly once; one that comes or goes meanwhile is shown or not.

use crate::dir::Dir;
use crate::error::Result;
use crate::file::File;
use crate::metadata::{FileType, Metadata};
use crate::node::{Follow, Node};
use crate::types::InodeId;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;

/// Entries that are read at once.
const BATCH: usize = 256;

/// An iterator over a directory, made by [`Dir::read_dir`].
#[derive(Debug)]
#[must_use = "iterators do nothing until they are used"]
pub struct ReadDir {
    directory: Dir,
    /// The start of the next batch; none after the end or an error.
    next: Option<u64>,
    /// Entries that were made after this one do not keep the iteration going.
    last: u64,
    batch: VecDeque<DirEntry>,
}

/// An entry of a directory.
#[derive(Clone, Debug)]
pub struct DirEntry {
    directory: Dir,
    name: OsString,
    file_type: FileType,
    id: InodeId,
}

impl ReadDir {
    pub(crate) fn new(directory: Dir) -> Result<ReadDir> {
        let node = directory.as_node();
        let last = node.engine()?.last_offset(node.id())?;
        // 0 and 1 are "." and "..".
        Ok(ReadDir { directory, next: Some(2), last, batch: VecDeque::new() })
    }

    fn fill(&mut self) -> Result<()> {
        let Some(offset) = self.next.take() else { return Ok(()) };
        let (directory, batch) = (&self.directory, &mut self.batch);
        let mut next = None;
        let node = directory.as_node();
        node.engine()?.readdir_until(node.id(), offset, self.last, &mut |entry| {
            if batch.len() == BATCH {
                return false;
            }
            let name = OsString::from_vec(entry.name.to_vec());
            let (file_type, id) = (FileType::of_entry(entry.kind), entry.id.into());
            batch.push_back(DirEntry { directory: directory.clone(), name, file_type, id });
            next = Some(entry.offset_next);
            true
        })?;
        self.next = next;
        Ok(())
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Result<DirEntry>> {
        if self.batch.is_empty()
            && let Err(error) = self.fill()
        {
            return Some(Err(error));
        }
        self.batch.pop_front().map(Ok)
    }
}

impl std::iter::FusedIterator for ReadDir {}

impl DirEntry {
    /// The name. Bytes from the disk: it need not be UTF-8, and can contain control characters.
    pub fn file_name(&self) -> &OsStr {
        &self.name
    }

    /// The type, as the directory says.
    pub fn file_type(&self) -> FileType {
        self.file_type
    }

    /// Which inode it leads to.
    pub fn id(&self) -> InodeId {
        self.id
    }

    /// Attributes of what it names, of a symbolic link itself.
    pub fn metadata(&self) -> Result<Metadata> {
        self.directory.symlink_metadata(&self.name)
    }

    /// The node that the entry names, for its attributes. A symbolic link is not followed.
    pub fn node(&self) -> Result<Node> {
        self.directory.node(&self.name, Follow::Nothing)
    }

    /// Opens the directory that it names.
    pub fn open_dir(&self) -> Result<Dir> {
        self.directory.open_dir(&self.name)
    }

    /// Opens the file that it names for reading.
    pub fn open_file(&self) -> Result<File> {
        self.directory.open_file(&self.name)
    }
}
