//! The attributes of directories, each directory's once, when nothing in it changes any more: the deepest first, so
//! that whoever lacks the right to look into one afterwards need not.

use super::attributes::{self, Disturbed, change_xattrs, set_xattr};
use super::changes::{Changes, ROOT, living_inode};
use super::error::{Error, Result};
use super::inherited::{Inherited, Xattrs, xattrs};
use super::output::Output;
use super::paths::Paths;
use butterfs_fs::SnapshotReader;
use butterfs_fs::inode::xattr::CAPABILITY;
use butterfs_ondisk::items::InodeItem;

/// Sends the attributes of the directories `inos`, which differ or were disturbed.
pub fn finish(
    mut inos: Vec<u64>,
    (old, new): (Option<&SnapshotReader>, &SnapshotReader),
    changes: &Changes,
    inherited: &Inherited<'_>,
    paths: &mut Paths<'_>,
    out: &mut Output<'_, '_>,
) -> Result<()> {
    inos.extend(inherited.stripped());
    inos.sort_unstable();
    inos.dedup();
    let mut deepest_first = Vec::with_capacity(inos.len());
    for ino in inos {
        let path = paths.directory(ino)?;
        let depth = path.iter().filter(|byte| **byte == b'/').count() + usize::from(!path.is_empty());
        deepest_first.push((std::cmp::Reverse(depth as u32), ino));
    }
    deepest_first.sort_unstable();
    for (_, ino) in deepest_first {
        finish_one(ino, (old, new), changes, inherited, paths, out)?;
    }
    Ok(())
}

fn finish_one(
    ino: u64,
    (old, new): (Option<&SnapshotReader>, &SnapshotReader),
    changes: &Changes,
    inherited: &Inherited<'_>,
    paths: &mut Paths<'_>,
    out: &mut Output<'_, '_>,
) -> Result<()> {
    let path = paths.directory(ino)?;
    let now = living_inode(new, ino)?.ok_or_else(|| Error::corrupt(format!("directory {ino} has no inode item")))?;
    let old = old.filter(|_| !changes.new_object(ino).fresh);
    let before = old.map(|old| living_inode(old, ino)).transpose()?.flatten();
    let mut known = old.map_or(Ok(Xattrs::new()), |old| xattrs(old, ino))?;
    inherited.taken_from(ino).iter().for_each(|name| drop(known.remove(name)));
    let wanted = xattrs(new, ino)?;
    let sets_mode = change_xattrs(&path, &known, &wanted, out)?;
    let unknown = inherited.is_marked(ino);
    let disturbed = Disturbed { owner: unknown, mode: unknown || sets_mode, entries: true, content: false };
    // The root directory of a full stream got owner and mode in the beginning.
    let begun = (old.is_none() && ino == ROOT.ino).then_some(InodeItem { flags: 0.into(), ..now });
    let chown = attributes::change(&path, begun.as_ref().or(before.as_ref()), &now, disturbed, out)?;
    if let Some(value) = wanted.get(CAPABILITY).filter(|value| chown || known.get(CAPABILITY) != Some(*value)) {
        set_xattr(&path, CAPABILITY, value, out)?;
    }
    attributes::times(&path, before.as_ref(), &now, disturbed, out)
}
