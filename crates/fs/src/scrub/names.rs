//! The files that damage is in, for many addresses at once: each subvolume, directory and inode is looked up once.
//!
//! Answers are those of the last commit; what is renamed meanwhile has one of its names. Memory: [`MOST_KNOWN`] paths.

use super::damage::{Cause, Content, Damage, FileRange, Finding};
use crate::backref::{self, ExtentAt, Referrer, Referrers};
use crate::error::Result;
use crate::file_extent::{ExtentKind, FileExtent};
use crate::subvolume::paths;
use crate::transaction::Core;
use butterfs_ondisk::items::compression;
use butterfs_ondisk::{Generation, Ino, Logical, TreeId};
use rustc_hash::FxHashMap;
use std::ops::Range;
use std::rc::Rc;

/// File ranges that a scrub names in all.
pub const MOST_NAMED: usize = 256 << 10;
/// Paths that are remembered.
const MOST_KNOWN: usize = 64 << 10;
/// Referrers that are looked up at a time.
const AT_ONCE: usize = 4096;
/// More directories above each other are a loop.
const DEEPEST: usize = 65_536;

/// See the [module](self).
#[derive(Default)]
pub struct Namer {
    /// The commit that the rest is of.
    commit: Generation,
    subvolumes: FxHashMap<TreeId, Option<Rc<[u8]>>>,
    directories: FxHashMap<(TreeId, Ino), Option<Rc<[u8]>>>,
    inodes: FxHashMap<(TreeId, Ino), Rc<[Vec<u8>]>>,
    /// The extent that was asked about last: damage comes in the order of addresses.
    extent: Option<(ExtentAt, Rc<[Referrer]>)>,
    named: usize,
}

impl Namer {
    /// The damage with its files.
    pub fn name(&mut self, core: &Core, damage: Damage) -> Finding {
        self.refresh(core);
        let mut finding = Finding { damage, files: Vec::new(), trees: Vec::new(), is_cut: false };
        let Some(at) = finding.damage.at.filter(|_| finding.damage.content != Content::Parity) else { return finding };
        match self.referrers(core, at) {
            Ok((extent, referrers)) => self.fill(core, &extent, &referrers, &mut finding),
            // Freed since, or the trees that lead there are damaged: then nobody can tell.
            Err(_) => finding.is_cut = true,
        }
        finding
    }

    fn refresh(&mut self, core: &Core) {
        let commit = core.superblock().generation();
        if self.commit != commit || self.directories.len() + self.inodes.len() > MOST_KNOWN {
            let named = self.named;
            *self = Namer { commit, named, ..Namer::default() };
        }
    }

    fn referrers(&mut self, core: &Core, at: Logical) -> Result<(ExtentAt, Rc<[Referrer]>)> {
        if let Some((extent, referrers)) = &self.extent
            && (extent.start..extent.start.plus(extent.len)).contains(&at)
        {
            return Ok((*extent, Rc::clone(referrers)));
        }
        let extent = backref::extent_at(core, at)?;
        let (mut looking, mut found) = (Referrers::new(extent), Vec::new());
        loop {
            let more = looking.next(core, AT_ONCE)?;
            if more.is_empty() || found.len() > MOST_NAMED {
                break;
            }
            found.extend(more);
        }
        let referrers: Rc<[Referrer]> = found.into();
        self.extent = Some((extent, Rc::clone(&referrers)));
        Ok((extent, referrers))
    }

    fn fill(&mut self, core: &Core, extent: &ExtentAt, referrers: &[Referrer], finding: &mut Finding) {
        let Some(at) = finding.damage.at else { return };
        let bad = at.0 - extent.start.0..at.0 - extent.start.0 + finding.damage.len;
        for referrer in referrers {
            if self.named >= MOST_NAMED {
                finding.is_cut = true;
                return;
            }
            match &referrer.extent {
                None if finding.damage.content != Content::Data => {
                    self.named += 1;
                    finding.trees.push(referrer.tree);
                }
                Some(item) => {
                    // Nobody reads what was only allocated, so copies of it may differ.
                    let is_nothing = item.kind == ExtentKind::Prealloc && finding.damage.cause == Cause::CopiesDiffer;
                    if let Some(range) = shown(item, &bad).filter(|_| !is_nothing) {
                        let ino = Ino(referrer.key.objectid);
                        finding.files.extend(self.ranges(core, (referrer.tree, ino), &range));
                    }
                }
                None => {}
            }
        }
        self.named += finding.files.len();
    }

    /// The range with each path of the file.
    fn ranges(&mut self, core: &Core, (tree, ino): (TreeId, Ino), range: &Range<u64>) -> Vec<FileRange> {
        let (offset, len) = (range.start, range.end - range.start);
        let with = |path| FileRange { tree, ino, offset, len, path };
        let Some(subvolume) = self.subvolume(core, tree) else {
            // A subvolume that is deleted, and not dropped yet, shows nobody its files.
            let is_deleted = core.tree(tree).is_err();
            return if is_deleted { Vec::new() } else { vec![with(None)] };
        };
        let paths = self.paths(core, tree, ino);
        if paths.is_empty() {
            return vec![with(None)];
        }
        paths.iter().map(|path| with(Some(paths::joined(subvolume.to_vec(), path)))).collect()
    }

    fn subvolume(&mut self, core: &Core, tree: TreeId) -> Option<Rc<[u8]>> {
        let find = || paths::of_subvolume(core, tree).ok().map(Rc::from);
        self.subvolumes.entry(tree).or_insert_with(find).clone()
    }

    /// The paths of an inode inside its subvolume.
    fn paths(&mut self, core: &Core, tree: TreeId, ino: Ino) -> Rc<[Vec<u8>]> {
        if let Some(known) = self.inodes.get(&(tree, ino)) {
            return Rc::clone(known);
        }
        let names = paths::names_of(core, tree, ino).unwrap_or_default();
        let found = names.into_iter().filter_map(|(directory, name)| {
            Some(paths::joined(self.directory(core, tree, directory)?.to_vec(), &name))
        });
        let found: Rc<[Vec<u8>]> = found.collect();
        self.inodes.insert((tree, ino), Rc::clone(&found));
        found
    }

    /// The path of a directory inside its subvolume. Directories that are known end the way up.
    fn directory(&mut self, core: &Core, tree: TreeId, directory: Ino) -> Option<Rc<[u8]>> {
        let (mut above, mut at) = (Vec::new(), directory);
        let mut path: Option<Rc<[u8]>> = loop {
            if at == Ino::ROOT_DIR {
                break Some(Rc::from([]));
            }
            if let Some(known) = self.directories.get(&(tree, at)) {
                break known.clone();
            }
            let first = paths::names_of(core, tree, at).ok().and_then(|names| names.into_iter().next());
            let Some((parent, name)) = first.filter(|_| above.len() < DEEPEST) else { break None };
            above.push((at, name));
            at = parent;
        };
        for (ino, name) in above.into_iter().rev() {
            path = path.map(|path| paths::joined(path.to_vec(), &name).into());
            self.directories.insert((tree, ino), path.clone());
        }
        path
    }
}

/// The bytes of the file that show bad bytes of the extent.
fn shown(item: &FileExtent, bad: &Range<u64>) -> Option<Range<u64>> {
    if item.compression != compression::NONE {
        return Some(item.start..item.start + item.len);
    }
    let (from, to) = (bad.start.max(item.offset), bad.end.min(item.offset + item.len));
    (from < to).then(|| item.start + (from - item.offset)..item.start + (to - item.offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_file_shows_is_named() {
        let mut item = FileExtent::new(ExtentKind::Regular, 1 << 20, Logical(0), 8192, 1);
        (item.offset, item.disk_len, item.ram_bytes) = (4096, 16384, 16384);
        assert_eq!(shown(&item, &(0..4096)), None);
        assert_eq!(shown(&item, &(0..8192)), Some(1 << 20..(1 << 20) + 4096));
        assert_eq!(shown(&item, &(8192..16384)), Some((1 << 20) + 4096..(1 << 20) + 8192));
        item.compression = compression::ZSTD;
        assert_eq!(shown(&item, &(0..4096)), Some(1 << 20..(1 << 20) + 8192));
    }
}
