//! Deleted files and subvolumes, which older trees still have.
//!
//! Older trees are those of older root trees (the superblock's backup roots, and what a scan has found); where no root
//! of a time is left, the leaves of that time stand for it. Of what both trees share, found by address and generation,
//! nothing is read.
//!
//! Invariants: (1) a file is listed once, from the newest tree that has it; (2) how complete it is was found by reading
//! all of it, compared with the checksums of its own time; a place that another file has got since is told apart.

use crate::data::{Grade, Reader};
use crate::live::{LiveExtents, Since};
use crate::roots::{Roots, Source, TreeRoot, root_trees, tops};
use crate::subvolume::{self, Inode, REGULAR, TYPE_MASK};
use crate::tree::{Root, Tree};
use crate::wreck::Wreck;
use crate::{Error, Result, error};
use butterfs_ondisk::items::InodeItem;
use butterfs_ondisk::{Key, KeyType, TreeId};
use regex::bytes::Regex;
use rustc_hash::FxHashSet;
use std::sync::Arc;
use zerocopy::FromBytes;

/// Older trees that are looked at for each subvolume.
const MOST_OLDER: usize = 256;
/// Files that are listed.
const MOST_FOUND: usize = 1 << 20;
/// Directories on a path.
const DEEPEST: usize = 128;

/// Which files are wanted.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// A pattern of the name, with `*`, `?` and `[…]`.
    pub name: Option<String>,
    /// A kind of content, one of [`content_kind`].
    pub content: Option<String>,
    /// Only of this subvolume.
    pub subvolume: Option<TreeId>,
}

/// A deleted file.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Deleted {
    /// Its subvolume.
    #[serde(serialize_with = "as_number")]
    pub tree: TreeId,
    /// Its number.
    pub ino: u64,
    /// The newest generation that has it.
    pub generation: u64,
    /// Bytes.
    pub size: u64,
    /// Where it was, in its subvolume.
    pub path: String,
    /// How much of it is left.
    pub grade: Grade,
    /// The kind of its content.
    pub content: &'static str,
    /// The subvolume is deleted too.
    pub is_subvolume_deleted: bool,
    #[serde(skip)]
    moment: Moment,
    #[serde(skip)]
    since: Since,
}

fn as_number<S: serde::Serializer>(tree: &TreeId, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_u64(tree.0)
}

/// The trees that a file is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Moment {
    root: Root,
    checksums: Option<Root>,
}

/// Files that are read from the same trees.
pub fn groups(found: &[Deleted]) -> Vec<Vec<&Deleted>> {
    let mut groups: Vec<Vec<&Deleted>> = Vec::new();
    for one in found {
        match groups.iter_mut().find(|group| group[0].tree == one.tree && group[0].moment == one.moment) {
            Some(group) => group.push(one),
            None => groups.push(vec![one]),
        }
    }
    groups.iter_mut().for_each(|group| group.sort_by_key(|one| one.ino));
    groups
}

/// The trees of the time of a deleted file, for a restorer.
pub fn moment(roots: &Roots, one: &Deleted) -> Roots {
    let mut own = Roots { names: roots.names.clone(), ..Roots::default() };
    let of = |root: Root| TreeRoot { root, item: None, key_offset: 0, source: Source::Found };
    own.since = Some(one.since.clone());
    own.trees.insert(one.tree, of(one.moment.root));
    own.trees.extend(one.moment.checksums.map(|root| (TreeId::CSUM, of(root))));
    own
}

/// The deleted files that are left, the newest first.
pub fn find(wreck: &Wreck, roots: &Roots, wanted: &Wanted) -> Result<Vec<Deleted>> {
    let name = wanted.name.as_deref().map(glob).transpose()?;
    if let Some(kind) =
        wanted.content.as_ref().filter(|kind| !content_kinds().iter().any(|own| own.eq_ignore_ascii_case(kind)))
    {
        return error(format!("no kind of content is called '{kind}'; there are {}", content_kinds().join(", ")));
    }
    let mut found = Vec::new();
    let older = older_trees(wreck, roots);
    let mut trees: Vec<TreeId> = older.iter().map(|(tree, ..)| *tree).collect();
    trees.sort_unstable();
    trees.dedup();
    trees.retain(|tree| wanted.subvolume.is_none_or(|wanted| wanted == *tree));
    let extents = roots.trees.get(&TreeId::EXTENT).map(|root| Tree::new(wreck, root.root));
    let oldest = older.iter().filter_map(|(_, root, _)| root.generation).min().unwrap_or(u64::MAX);
    let live = Arc::new(LiveExtents::newer_than(oldest, wreck, extents));
    for tree in trees {
        let mut search = Search::of(wreck, roots, tree, live.clone());
        for (_, root, checksums) in older.iter().filter(|(own, ..)| *own == tree).take(MOST_OLDER) {
            search.look(*root, *checksums, &name, wanted, &mut found);
        }
    }
    found.sort_by_key(|one| (std::cmp::Reverse(one.generation), one.tree, one.ino));
    Ok(found)
}

/// Older roots of subvolumes, each with the checksum tree of its time, the newest first.
fn older_trees(wreck: &Wreck, roots: &Roots) -> Vec<(TreeId, Root, Option<Root>)> {
    let mut older = Vec::new();
    let known = |tree: TreeId, root: &Root| {
        roots
            .trees
            .get(&tree)
            .filter(|current| !current.is_deleted())
            .is_some_and(|current| current.root.at == root.at && current.root.generation == root.generation)
    };
    // Subvolumes that have just been deleted, and not dropped yet.
    let deleted = roots.subvolumes().filter(|(_, root)| root.is_deleted());
    older.extend(deleted.map(|(tree, own)| (*tree, own.root, roots.checksums())));
    for (root, source) in root_trees(wreck) {
        let then = Roots::of(wreck, root, source);
        let checksums = then.checksums().or(roots.checksums());
        for (tree, own) in then.subvolumes().filter(|(tree, own)| !known(**tree, &own.root)) {
            older.push((*tree, own.root, checksums));
        }
    }
    let sb = wreck.superblock();
    for slot in sb.super_roots.iter().filter(|slot| slot.fs_root.get() != 0) {
        let root =
            |tree, at: u64, level, generation: u64| Root { tree, at, level: Some(level), generation: Some(generation) };
        let own = root(TreeId::FS, slot.fs_root.get(), slot.fs_root_level, slot.fs_root_gen.get());
        let sums = root(TreeId::CSUM, slot.csum_root.get(), slot.csum_root_level, slot.csum_root_gen.get());
        if !known(TreeId::FS, &own) {
            older.push((TreeId::FS, own, Some(sums)));
        }
    }
    if let Some(index) = wreck.index() {
        for tree in index.trees().into_iter().filter(|tree| tree.is_subvolume()) {
            for top in tops(wreck, tree) {
                let sums = tops(wreck, TreeId::CSUM).into_iter().find(|sums| sums.generation <= top.generation);
                let of =
                    |tree, at, level, generation| Root { tree, at, level: Some(level), generation: Some(generation) };
                let sums = sums.map(|sums| of(TreeId::CSUM, sums.logical, sums.level, sums.generation));
                let own = of(tree, top.logical, top.level, top.generation);
                if !known(tree, &own) && index.of_tree(tree).iter().any(|found| found.level > 0) == (top.level > 0) {
                    older.push((tree, own, sums));
                }
                // What lost its root: all leaves of that time and before.
                older.push((tree, Root::of_found(tree, Some(top.generation)), sums));
            }
        }
    }
    older.sort_by_key(|(tree, root, _)| (*tree, std::cmp::Reverse(root.generation), root.at == 0));
    let mut seen = FxHashSet::default();
    older.retain(|(tree, root, _)| seen.insert((*tree, root.at, root.generation)));
    older
}

/// The search through the older trees of one subvolume.
struct Search<'a> {
    wreck: &'a Wreck,
    current: Option<Tree<'a>>,
    tree: TreeId,
    /// Blocks whose items are known: those of the last tree, and of older ones that were looked at.
    known: FxHashSet<(u64, u64)>,
    /// Inodes that were looked at, with the generation in which they were made.
    judged: FxHashSet<(u64, u64)>,
    live: Arc<LiveExtents>,
    /// The checksums of the last commit.
    last_checksums: Option<Root>,
}

impl<'a> Search<'a> {
    fn of(wreck: &'a Wreck, roots: &Roots, tree: TreeId, live: Arc<LiveExtents>) -> Search<'a> {
        let current = roots.trees.get(&tree).filter(|root| !root.is_deleted());
        let current = current.map(|root| Tree::new(wreck, root.root));
        let mut known = FxHashSet::default();
        if let Some(current) = current {
            current.blocks(&mut |block, _| known.insert((block.node.at().0, block.node.generation().0)));
        }
        let last_checksums = roots.checksums();
        Search { wreck, current, tree, known, judged: FxHashSet::default(), live, last_checksums }
    }

    fn look(
        &mut self,
        root: Root,
        checksums: Option<Root>,
        name: &Option<Regex>,
        wanted: &Wanted,
        found: &mut Vec<Deleted>,
    ) {
        let moment = Moment { root, checksums };
        let tree = Tree::new(self.wreck, root);
        let mut inodes = Vec::new();
        let collect = |key: Key, data: &[u8], inodes: &mut Vec<(u64, InodeItem)>| {
            let item = InodeItem::read_from_prefix(data).ok().map(|(item, _)| item);
            let regular = |item: &InodeItem| item.mode.get() & TYPE_MASK == REGULAR && item.nlink.get() > 0;
            inodes.extend(
                item.filter(|item| key.kind == KeyType::INODE_ITEM && regular(item)).map(|item| (key.objectid, item)),
            );
        };
        if root.at != 0 {
            tree.blocks(&mut |block, _| {
                let is_new = self.known.insert((block.node.at().0, block.node.generation().0));
                if is_new && block.node.is_leaf() {
                    block.node.items().for_each(|(key, data)| collect(key, data, &mut inodes));
                }
                is_new
            });
        } else if let Some(index) = self.wreck.index() {
            for leaf in index.of(self.tree, 0).iter().filter(|leaf| Some(leaf.generation) == root.generation) {
                if self.known.insert((leaf.logical, leaf.generation))
                    && let Some(block) = self.wreck.found_block(leaf)
                {
                    block.node.items().for_each(|(key, data)| collect(key, data, &mut inodes));
                }
            }
        }
        for (ino, item) in inodes {
            if found.len() < MOST_FOUND && self.judged.insert((ino, item.generation.get())) && !self.exists(ino, &item)
            {
                found.extend(self.judge(&tree, moment, ino, name, wanted));
            }
        }
    }

    /// Whether the last tree has this inode.
    fn exists(&self, ino: u64, item: &InodeItem) -> bool {
        let current = self.current.and_then(|tree| tree.item(Key::new(ino, KeyType::INODE_ITEM, 0)));
        let known = current.and_then(|data| InodeItem::read_from_prefix(&data).ok().map(|(item, _)| item));
        known.is_some_and(|known| known.generation == item.generation && known.nlink.get() > 0)
    }

    fn judge(
        &self,
        tree: &Tree<'a>,
        moment: Moment,
        ino: u64,
        name: &Option<Regex>,
        wanted: &Wanted,
    ) -> Option<Deleted> {
        let inode = subvolume::inode(tree, ino);
        let path = path_of(tree, ino, &inode);
        let last = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        if name.as_ref().is_some_and(|name| !name.is_match(last)) {
            return None;
        }
        let checksums = moment.checksums.map(|root| Tree::new(self.wreck, root));
        let since = self.since(moment);
        let mut reader = Reader::new(*tree, checksums).with_since(Some(since.clone()));
        let content = reader.content(ino, &inode);
        let mut head = Vec::new();
        let outcome = reader.read(&content, &mut |offset, bytes| {
            if offset < HEAD && head.len() as u64 == offset {
                head.extend_from_slice(&bytes[..bytes.len().min((HEAD - offset) as usize)]);
            }
            Ok(())
        });
        let mut outcome = outcome.unwrap_or_default();
        outcome.doubts = outcome.doubts.expecting_older();
        let kind = content_kind(&head);
        if wanted.content.as_ref().is_some_and(|wanted| !wanted.eq_ignore_ascii_case(kind)) {
            return None;
        }
        Some(Deleted {
            tree: self.tree,
            ino,
            generation: moment.root.generation.unwrap_or_default(),
            size: content.size,
            path: String::from_utf8_lossy(&path).into_owned(),
            grade: outcome.grade(),
            content: kind,
            is_subvolume_deleted: self.current.is_none(),
            moment,
            since,
        })
    }

    /// A tree without a known generation is as old as the last commit.
    fn since(&self, moment: Moment) -> Since {
        let has_own_checksums = moment.checksums != self.last_checksums;
        Since { live: self.live.clone(), generation: moment.root.generation.unwrap_or(u64::MAX), has_own_checksums }
    }
}

/// The path that references lead to, from the top of the subvolume.
pub(crate) fn path_of(tree: &Tree<'_>, ino: u64, inode: &Inode) -> Vec<u8> {
    let (mut parts, mut names): (Vec<Vec<u8>>, _) = (Vec::new(), inode.names.clone());
    let mut at = ino;
    while parts.len() < DEEPEST {
        let Some((parent, name)) = names.into_iter().next() else {
            parts.push(format!("<{at}>").into_bytes());
            break;
        };
        parts.push(name);
        if parent == crate::restore::ROOT_DIRECTORY || parent == at {
            break;
        }
        at = parent;
        names = subvolume::inode(tree, at).names;
    }
    parts.reverse();
    parts.join(&b'/')
}

/// A pattern with `*`, `?` and `[…]` as a regular expression of the whole name.
fn glob(pattern: &str) -> Result<Regex> {
    let mut text = String::from("(?s-u)^");
    let mut rest = pattern;
    while let Some(letter) = rest.chars().next() {
        rest = &rest[letter.len_utf8()..];
        match (letter == '[').then(|| set(rest)).flatten() {
            Some((class, after)) => {
                text.push_str(&class);
                rest = after;
            }
            None if letter == '*' => text.push_str(".*"),
            None if letter == '?' => text.push('.'),
            None => text.push_str(&regex::escape(&letter.to_string())),
        }
    }
    text.push('$');
    Regex::new(&text).map_err(|error| Error(format!("the pattern {pattern:?} cannot be used: {error}")))
}

/// The class of a set like `a-z]` or `!x]`, and what comes after it; `None` where no bracket closes it.
fn set(rest: &str) -> Option<(String, &str)> {
    let (is_negated, inside) = match rest.strip_prefix(['!', '^']) {
        Some(inside) => (true, inside),
        None => (false, rest),
    };
    // A bracket that comes first is one of the letters.
    let end = inside.char_indices().skip(1).find(|(_, letter)| *letter == ']')?.0;
    let mut class = String::from(if is_negated { "[^" } else { "[" });
    for letter in inside[..end].chars() {
        match letter {
            '-' => class.push('-'),
            letter => class.push_str(&regex::escape(&letter.to_string())),
        }
    }
    class.push(']');
    Some((class, &inside[end + 1..]))
}

/// Bytes by which contents are told apart.
const HEAD: u64 = 512;

/// Kinds of content, where their mark is, and what it is.
const KINDS: &[(&str, usize, &[u8])] = &[
    ("jpeg", 0, b"\xff\xd8\xff"),
    ("png", 0, b"\x89PNG\r\n\x1a\n"),
    ("gif", 0, b"GIF8"),
    ("webp", 8, b"WEBP"),
    ("tiff", 0, b"II*\0"),
    ("tiff", 0, b"MM\0*"),
    ("bmp", 0, b"BM"),
    ("heic", 4, b"ftyphei"),
    ("mp4", 4, b"ftyp"),
    ("matroska", 0, b"\x1a\x45\xdf\xa3"),
    ("avi", 8, b"AVI "),
    ("wav", 8, b"WAVE"),
    ("mp3", 0, b"ID3"),
    ("ogg", 0, b"OggS"),
    ("flac", 0, b"fLaC"),
    ("pdf", 0, b"%PDF-"),
    ("zip", 0, b"PK\x03\x04"),
    ("gzip", 0, b"\x1f\x8b"),
    ("xz", 0, b"\xfd7zXZ\0"),
    ("zstd", 0, b"\x28\xb5\x2f\xfd"),
    ("bzip2", 0, b"BZh"),
    ("7z", 0, b"7z\xbc\xaf\x27\x1c"),
    ("tar", 257, b"ustar"),
    ("sqlite", 0, b"SQLite format 3\0"),
    ("elf", 0, b"\x7fELF"),
    ("ole", 0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"),
    ("rtf", 0, b"{\\rtf"),
    ("xml", 0, b"<?xml"),
    ("html", 0, b"<!DOCTYPE html"),
];

/// The kind of a content, by its first bytes.
pub fn content_kind(head: &[u8]) -> &'static str {
    let marked = KINDS.iter().find(|(_, at, mark)| head.get(*at..*at + mark.len()) == Some(mark));
    match marked {
        Some((kind, ..)) => kind,
        None if !head.is_empty() && is_text(head) => TEXT,
        None => DATA,
    }
}

const TEXT: &str = "text";
const DATA: &str = "data";

/// All kinds that [`content_kind`] knows.
pub fn content_kinds() -> Vec<&'static str> {
    let mut kinds: Vec<&str> = KINDS.iter().map(|(kind, ..)| *kind).chain([TEXT, DATA]).collect();
    kinds.dedup();
    kinds
}

/// UTF-8, the last letter of which may be cut off, or an encoding of one byte a letter; without control characters.
fn is_text(head: &[u8]) -> bool {
    let is_control = |byte: &u8| byte.is_ascii_control() && !b"\t\n\x0c\r\x1b".contains(byte);
    let is_utf8 = std::str::from_utf8(head).map_or_else(|error| error.error_len().is_none(), |_| true);
    !head.iter().any(is_control) && (is_utf8 || !head.iter().any(|byte| (0x80..0xa0).contains(byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_and_names_are_recognised() {
        assert_eq!(content_kind(b"\xff\xd8\xff\xe0"), "jpeg");
        for text in ["hello\n".as_bytes(), &"xПривет".repeat(40).as_bytes()[..302], b"caf\xe9 au lait\n"] {
            assert_eq!(content_kind(text), "text", "{text:?}");
        }
        assert_eq!(content_kind(b"\x01\x02binary"), "data");
        assert!(content_kinds().contains(&"jpeg") && content_kinds().contains(&"text"));
        assert_eq!(content_kind(b""), "data");
        assert_eq!(content_kind(&[[0; 257].as_slice(), b"ustar"].concat()), "tar");
        let name = glob("*.j?g").unwrap();
        assert!(name.is_match(b"a\xffb.jpg") && !name.is_match(b"a.jpeg") && !name.is_match(b"x.jxgx"));
        let (set, others) = (glob("[a-c]x[]]").unwrap(), glob("[!a-c]?").unwrap());
        assert!(set.is_match(b"bx]") && !set.is_match(b"dx]") && others.is_match(b"dx") && !others.is_match(b"ax"));
        assert!(glob("[x").unwrap().is_match(b"[x") && glob("a^[^b]").unwrap().is_match(b"a^c"));
    }
}
