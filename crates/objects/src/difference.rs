//! The differences of two snapshots, by path. Parts of the indexes that both share are not read.

use crate::archive::Archive;
use crate::items::{DIRECTORY, ENTRY, INODE, Inode, NAME, entry_from, parts};
use crate::manifest::Manifest;
use crate::tree;
use crate::view::View;
use butterfs_store::Result;

/// A kind of difference.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Change {
    /// Only the second snapshot has the name.
    Added,
    /// Only the first one has it.
    Removed,
    /// Content or attributes differ.
    Modified,
}

/// Shows the differences of two snapshots, of which the second was made from the first or from the same snapshot.
/// Times of access and change alone, and of directories, are no difference.
pub fn differences(
    archive: &Archive,
    (old, new): (&Manifest, &Manifest),
    visit: &mut dyn FnMut(Change, &[u8]) -> Result<()>,
) -> Result<()> {
    let (old, new) = (View::new(archive, old)?, View::new(archive, new)?);
    let mut modified: Option<u64> = None;
    let tell = |ino: u64, visit: &mut dyn FnMut(Change, &[u8]) -> Result<()>| -> Result<()> {
        let both = old.inode_if_any(ino)?.is_some() && new.inode_if_any(ino)?.is_some();
        match new.path_of(ino)?.filter(|_| both) {
            Some(path) => visit(Change::Modified, &path),
            None => Ok(()),
        }
    };
    tree::diff(archive, old.root(), new.root(), &mut |(key, was, is)| {
        let Some((ino, kind, rest)) = parts(key) else { return Ok(()) };
        if modified.is_some_and(|before| before != ino)
            && let Some(before) = modified.take()
        {
            tell(before, visit)?;
        }
        match kind {
            NAME => return Ok(()),
            ENTRY => {
                let inode_of = |value: Option<&[u8]>| value.and_then(entry_from).map(|(ino, _)| ino);
                let (was, is) = (inode_of(was), inode_of(is));
                for (change, view, other, there) in
                    [(Change::Removed, &old, &new, was), (Change::Added, &new, &old, is)]
                {
                    // Names below a directory that only one side has are left out: the directory itself is told.
                    if there.is_some()
                        && was != is
                        && other.inode_if_any(ino)?.is_some()
                        && let Some(directory) = view.path_of(ino)?
                    {
                        let slash: &[u8] = if directory.is_empty() { b"" } else { b"/" };
                        visit(change, &[&directory[..], slash, rest].concat())?;
                    }
                }
                return Ok(());
            }
            INODE => {
                let parsed = |value: Option<&[u8]>| value.and_then(Inode::from_bytes);
                if let (Some(was), Some(is)) = (parsed(was), parsed(is))
                    && plain(was) == plain(is)
                {
                    return Ok(());
                }
            }
            _ => {}
        }
        modified = Some(ino);
        Ok(())
    })?;
    modified.map_or(Ok(()), |ino| tell(ino, visit))
}

/// The inode without the times that are no difference.
fn plain(mut inode: Inode) -> Inode {
    let mtime = if inode.is(DIRECTORY) { Default::default() } else { inode.times[1] };
    inode.times = [Default::default(), mtime, Default::default(), Default::default()];
    inode
}
