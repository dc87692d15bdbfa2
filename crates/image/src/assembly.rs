//! The places for what sources have: the trait [`Target`], and the tree of an image that is being built.
//!
//! # Invariants
//! 1. Paths stay inside: no link of the tree is followed, and `..` is refused.
//! 2. What comes later replaces what was there, except a folder, which keeps what is inside and takes the attributes.
//! 3. Owners are mapped and times are cut off here, so that no source can forget it.

use crate::data::Data;
use crate::entry::{Attributes, Content, Sent, Special, Time};
use crate::error::{Error, Result, shown};
use crate::owners::Owners;
use crate::path::{components, joined};
use crate::rules::Rules;
use crate::tree::{Body, Folder, Id, Inode, Replace, Tree, Xattr, file_type};
use butterfs_ondisk::items::inode_flags;

/// The rules that hold for all sources.
pub struct Policy {
    /// The latest time that anything may have.
    pub epoch: Option<Time>,
    /// Whether access, change and birth are those of the source, and not the time of the last change of the content.
    pub keep_times: bool,
    /// By path.
    pub rules: Rules,
    /// Most bytes of an extended attribute with its name.
    pub max_xattr: usize,
    /// Most bytes of a symbolic link's target.
    pub max_target: usize,
}

/// The tree of an image, over which sources are laid.
pub struct Assembly<'a> {
    pub(crate) tree: &'a mut Tree,
    pub(crate) data: &'a mut Data,
    pub(crate) policy: &'a Policy,
    pub(crate) owners: &'a Owners,
    /// The components below which everything of this source goes.
    pub(crate) base: &'a [u8],
    pub(crate) replace: Replace,
    pub(crate) layer: u32,
    /// The read-only subvolumes that the source has asked for.
    pub(crate) snapshots: &'a mut Vec<Snapshot>,
}

/// A read-only subvolume of a source.
pub(crate) struct Snapshot {
    pub path: Vec<u8>,
    /// The one before it.
    pub parent: Option<Vec<u8>>,
    /// The one that it is a copy of.
    pub sent: Option<Sent>,
}

/// A place for what a source has: an image that is being built, a filesystem, an archive, or whatever a program makes.
///
/// Paths are relative to the place, `/` separates their components, and a leading `/` or `./` means nothing.
pub trait Target {
    /// Adds a folder, and the folders above it that do not exist yet. One that exists takes these attributes.
    fn folder(&mut self, path: &[u8], attributes: Attributes) -> Result<()>;

    /// Adds a regular file. Its content is read before this returns.
    fn file(&mut self, path: &[u8], attributes: Attributes, content: Content<'_>) -> Result<()>;

    /// Adds a symbolic link, a device, a FIFO or a socket.
    fn special(&mut self, path: &[u8], attributes: Attributes, special: Special) -> Result<()>;

    /// Gives something that is there and no folder another name.
    fn hard_link(&mut self, path: &[u8], original: &[u8]) -> Result<()>;

    /// Takes away what earlier layers have at a path; what this layer has put there stays.
    fn white_out(&mut self, path: &[u8]) -> Result<()> {
        Err(Error::content(format!("{} cannot be deleted by a layer here", shown(path))))
    }

    /// Takes away what earlier layers have in a folder.
    fn make_opaque(&mut self, path: &[u8]) -> Result<()> {
        Err(Error::content(format!("{} cannot be emptied by a layer here", shown(path))))
    }

    /// Adds a file with the content of one that is there; `false`, and nothing has happened, where that cannot be.
    fn same_file(&mut self, _path: &[u8], _attributes: &Attributes, _original: &[u8]) -> Result<bool> {
        Ok(false)
    }

    /// Makes a folder that is there a read-only subvolume: a snapshot of the one at `parent`, if there is one, and the
    /// copy of the one that was `sent`.
    fn subvolume(&mut self, path: &[u8], _parent: Option<&[u8]>, _sent: Option<Sent>) -> Result<()> {
        Err(Error::content(format!("a subvolume cannot be made at {} here", shown(path))))
    }

    /// Begins another layer: what follows replaces whatever is there.
    fn next_layer(&mut self) {}

    /// Makes a read-only snapshot of a folder as it is now.
    fn snapshot(&mut self, _from: &[u8], to: &[u8]) -> Result<()> {
        Err(Error::content(format!("a snapshot cannot be made at {} here", shown(to))))
    }
}

impl Target for Assembly<'_> {
    fn folder(&mut self, path: &[u8], attributes: Attributes) -> Result<()> {
        self.put(path, file_type::FOLDER, attributes, Body::Folder(Folder::default())).map(drop)
    }

    fn file(&mut self, path: &[u8], attributes: Attributes, content: Content<'_>) -> Result<()> {
        let size = content.size;
        let storage = self.policy.rules.storage(&self.full(path)?);
        let named = |error: Error| error.of(&shown(path));
        let id = self.data.add(content, storage).map_err(named)?;
        self.put(path, file_type::FILE, attributes, Body::File(size, id)).map(drop)
    }

    fn special(&mut self, path: &[u8], mut attributes: Attributes, special: Special) -> Result<()> {
        let (kind, body) = match special {
            Special::Symlink(target) => {
                self.check_target(path, &target)?;
                // Linux knows no others.
                attributes.mode = 0o777;
                (file_type::SYMLINK, Body::Symlink(target.into()))
            }
            Special::CharacterDevice(major, minor) => (file_type::CHARACTER, device(path, major, minor)?),
            Special::BlockDevice(major, minor) => (file_type::BLOCK, device(path, major, minor)?),
            Special::Fifo => (file_type::FIFO, Body::Empty),
            Special::Socket => (file_type::SOCKET, Body::Empty),
        };
        self.put(path, kind, attributes, body).map(drop)
    }

    fn hard_link(&mut self, path: &[u8], original: &[u8]) -> Result<()> {
        let (path, original) = (self.full(path)?, self.full(original)?);
        let found = self.tree.find(&components(&original)?);
        let missing =
            || Error::content(format!("{} is a link to {}, which does not exist", shown(&path), shown(&original)));
        let id = found.ok_or_else(missing)?;
        self.tree.link(&components(&path)?, id, self.layer, self.replace)
    }

    fn white_out(&mut self, path: &[u8]) -> Result<()> {
        let path = self.full(path)?;
        let names = components(&path)?;
        let Some((name, parents)) = names.split_last() else {
            return Err(Error::content("the root cannot be deleted"));
        };
        let Some((parent, id)) = self.tree.find(parents).zip(self.tree.find(&names)) else { return Ok(()) };
        let is_folder = self.tree.get(id).folder().is_some();
        if is_folder {
            self.tree.prune(id, self.layer);
        }
        let is_old = self.tree.is_old(parent, name, id, self.layer);
        let is_empty = self.tree.get(id).folder().is_none_or(|folder| folder.children.is_empty());
        if is_old && is_empty {
            self.tree.unlink(parent, name);
        }
        Ok(())
    }

    fn make_opaque(&mut self, path: &[u8]) -> Result<()> {
        let path = self.full(path)?;
        if let Some(id) = self.tree.find(&components(&path)?).filter(|id| self.tree.get(*id).folder().is_some()) {
            self.tree.prune(id, self.layer);
        }
        Ok(())
    }

    fn next_layer(&mut self) {
        self.layer += 1;
        self.replace = Replace::Anything;
    }

    fn snapshot(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        let (from, to) = (self.full(from)?, self.full(to)?);
        let missing = || Error::content(format!("{} does not exist", shown(&from)));
        let top = self.tree.find(&components(&from)?).ok_or_else(missing)?;
        self.tree.copy(top, &components(&to)?)?;
        let parent = self.snapshots.last().map(|last| last.path.clone());
        self.snapshots.push(Snapshot { path: to, parent, sent: None });
        Ok(())
    }

    fn same_file(&mut self, path: &[u8], attributes: &Attributes, original: &[u8]) -> Result<bool> {
        let (full, other) = (self.full(path)?, self.full(original)?);
        let Some(id) = self.tree.find(&components(&other)?) else { return Ok(false) };
        let Body::File(size, content) = self.tree.get(id).body else { return Ok(false) };
        if self.policy.rules.storage(&full) != self.policy.rules.storage(&other) {
            return Ok(false);
        }
        self.put(path, file_type::FILE, attributes.clone(), Body::File(size, content))?;
        Ok(true)
    }

    fn subvolume(&mut self, path: &[u8], parent: Option<&[u8]>, sent: Option<Sent>) -> Result<()> {
        let parent = parent.map(|parent| self.full(parent)).transpose()?;
        self.snapshots.push(Snapshot { path: self.full(path)?, parent, sent });
        Ok(())
    }
}

impl Assembly<'_> {
    fn full(&self, path: &[u8]) -> Result<Vec<u8>> {
        let own = joined(&components(path)?);
        Ok(match (self.base, own.as_slice()) {
            (base, b"") => base.to_vec(),
            (b"", own) => own.to_vec(),
            (base, own) => [base, b"/", own].concat(),
        })
    }

    fn put(&mut self, path: &[u8], kind: u32, mut attributes: Attributes, body: Body) -> Result<Id> {
        let named = |error: Error| error.of(&shown(path));
        self.owners.apply(&mut attributes).map_err(named)?;
        let full = self.full(path)?;
        let flags = match kind {
            file_type::FILE => self.policy.rules.flags(&full),
            // Folders have no content that could lack checksums.
            file_type::FOLDER => self.policy.rules.flags(&full) & inode_flags::NODATACOW,
            _ => 0,
        };
        let inode = Inode { flags: flags as u32, body, ..self.inode(kind, attributes).map_err(named)? };
        self.tree.put(&components(&full)?, inode, self.replace)
    }

    fn inode(&self, kind: u32, attributes: Attributes) -> Result<Inode> {
        let Attributes { mode, uid, gid, mtime, atime, ctime, btime, xattrs } = attributes;
        let mtime = self.cut(mtime);
        let others = [atime, ctime, btime]
            .map(|time| time.filter(|_| self.policy.keep_times).map_or(mtime, |time| self.cut(time)));
        Ok(Inode {
            mode: kind | mode & 0o7777,
            uid,
            gid,
            flags: 0,
            names: 1,
            layer: self.layer,
            mtime,
            other_times: others.iter().any(|time| *time != mtime).then(|| Box::new(others)),
            xattrs: self.xattrs(xattrs)?,
            body: Body::Empty,
        })
    }

    /// A time, or the epoch where that is earlier.
    fn cut(&self, time: Time) -> Time {
        let time = Time { nsec: time.nsec.min(999_999_999), ..time };
        self.policy.epoch.map_or(time, |epoch| epoch.min(time))
    }

    fn xattrs(&self, mut given: Vec<(Vec<u8>, Vec<u8>)>) -> Result<Box<[Xattr]>> {
        given.retain(|(name, _)| !OF_OVERLAYS.iter().any(|prefix| name.starts_with(prefix)));
        given.sort();
        // Of two with one name the later counts, and sorting has made it impossible to say which that is.
        given.dedup_by(|later, earlier| later.0 == earlier.0);
        for (name, value) in &given {
            check_attribute(name, value)?;
            let (len, most) = (name.len() + value.len(), self.policy.max_xattr);
            if name.is_empty() || name.len() > 255 || name.contains(&0) || len > most {
                let what = name.escape_ascii();
                return Err(Error::content(format!(
                    "the attribute '{what}' has {len} bytes with its name; {most} are possible, 255 for the name"
                )));
            }
        }
        Ok(given.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }

    fn check_target(&self, path: &[u8], target: &[u8]) -> Result<()> {
        let most = self.policy.max_target;
        if target.is_empty() || target.len() > most || target.contains(&0) {
            let len = target.len();
            let path = shown(path);
            return Err(Error::content(format!(
                "the link {path} has a target of {len} bytes; 1 to {most} are possible"
            )));
        }
        Ok(())
    }
}

/// Notes of overlayfs about a folder that it stores, which would change what an image shows below another overlay.
const OF_OVERLAYS: [&[u8]; 2] = [b"trusted.overlay.", b"user.overlay."];

/// Refuses attributes with which the kernel could not use a file.
fn check_attribute(name: &[u8], value: &[u8]) -> Result<()> {
    const KINDS: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"system."];
    let shown = name.escape_ascii();
    if name == b"btrfs.compression" {
        return match butterfs_fs::options::Method::parse(&String::from_utf8_lossy(value)) {
            None if !matches!(value, b"" | b"no" | b"none") => {
                Err(Error::content(format!("the attribute '{shown}' is '{}'", value.escape_ascii())))
            }
            _ => Ok(()),
        };
    }
    if !KINDS.iter().any(|kind| name.len() > kind.len() && name.starts_with(kind)) {
        return Err(Error::content(format!("the attribute '{shown}' is of no kind that Linux has")));
    }
    if name.starts_with(b"system.posix_acl_") && !value.is_empty() && !is_acl(value) {
        return Err(Error::content(format!("the attribute '{shown}' is no ACL")));
    }
    Ok(())
}

/// Whether these are entries in the order of their tags, with one each for owner, group and others, and a mask where
/// there are more. An ACL that was taken away can be empty.
fn is_acl(value: &[u8]) -> bool {
    const NAMED: [u16; 2] = [0x02, 0x08];
    let Some((version, entries)) = value.split_at_checked(4).filter(|(_, rest)| rest.len().is_multiple_of(8)) else {
        return false;
    };
    let entry = |it: &[u8]| {
        let short = |at: usize| u16::from_le_bytes([it[at], it[at + 1]]);
        (short(0), short(2))
    };
    let entries: Vec<(u16, u16)> = entries.chunks_exact(8).map(entry).collect();
    let count = |tag: u16| entries.iter().filter(|(other, _)| *other == tag).count();
    let is_sorted = entries.windows(2).all(|pair| pair[0].0 <= pair[1].0);
    let has_mask = count(0x10) == 1 || NAMED.iter().all(|tag| count(*tag) == 0) && count(0x10) == 0;
    let known = |(tag, permissions): &(u16, u16)| [1, 2, 4, 8, 0x10, 0x20].contains(tag) && *permissions <= 7;
    version == [2, 0, 0, 0]
        && (entries.is_empty() || count(1) == 1 && count(4) == 1 && count(0x20) == 1 && has_mask)
        && is_sorted
        && entries.iter().all(known)
}

/// A device by its number in the format's form, which has 12 bits for the major and 20 for the minor number.
fn device(path: &[u8], major: u32, minor: u32) -> Result<Body> {
    if major >= 1 << 12 || minor >= 1 << 20 {
        return Err(Error::content(format!(
            "the device {} has the number {major}:{minor}, which is too large",
            shown(path)
        )));
    }
    Ok(Body::Device(u64::from(major) << 20 | u64::from(minor)))
}
