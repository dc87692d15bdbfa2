//! The mounts of one filesystem: the first, and those that join it later, each of a subvolume.
//!
//! # Invariants
//! 1. All mounts show one superblock, so the kernel has one cache of it and nothing has to be told between them.
//! 2. A further mount is made by whoever asked, in the mount namespace of whoever asked: this process only makes it,
//!    and passes the descriptor on.
//! 3. What belongs to the filesystem stays as the first mount, or a remount since, has it: a further mount has flags of
//!    its own, and the subvolume. One that is writable makes a filesystem writable that was not; mounts that are
//!    read-only themselves stay so.

use crate::adaptor::Adaptor;
use crate::mount::{self, MountOptions, Superblock};
use crate::transport::Transport;
use butterfs_control::{MountAnswer, MountQuestion, Refusal, Storage};
use butterfs_fs::{Commit, Rescue, TreeId};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// The number of times that others may rename what leads to a subvolume before a mount of it gives up.
const RENAMES: usize = 100;

const ONLY_ONE: &str = "the filesystem is served already, and an ordinary user's filesystem has one mount; unmount it, \
                        mount its top level (-o subvolid=5), and use its subvolumes there";

/// How the first mount was asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    /// Flags of the superblock count.
    pub flags: mount::Flags,
    /// How requests come.
    pub transport: Transport,
}

/// See the [module](self).
pub struct Mounts {
    adaptor: Arc<Adaptor>,
    /// None where the kernel lets this user make no mounts.
    superblock: Option<Superblock>,
    asked: Asked,
    storage: Vec<Storage>,
}

impl Mounts {
    /// Those of the filesystem that `adaptor` serves.
    pub fn new(adaptor: Arc<Adaptor>, superblock: Option<Superblock>, asked: Asked, storage: Vec<Storage>) -> Mounts {
        Mounts { adaptor, superblock, asked, storage }
    }

    /// Answers a question.
    pub fn answer(&self, question: &MountQuestion) -> (MountAnswer, Option<OwnedFd>) {
        match question {
            // Nobody joins what is about to be closed.
            MountQuestion::Locate if self.adaptor.is_unmounted() => (MountAnswer::Located(Vec::new()), None),
            MountQuestion::Locate => (MountAnswer::Located(self.storage.clone()), None),
            MountQuestion::ShowOptions => (MountAnswer::Options(self.options().in_force()), None),
            MountQuestion::Join { options } => match self.join(options) {
                Ok((unheeded, mount)) => (MountAnswer::Joined(unheeded), Some(mount)),
                Err(refusal) => (MountAnswer::Refused(refusal), None),
            },
        }
    }

    fn options(&self) -> MountOptions {
        let Asked { flags, transport } = self.asked;
        MountOptions { engine: self.adaptor.options(), flags, transport, ..MountOptions::default() }
    }

    /// A mount for these options, and those among them that have no effect.
    fn join(&self, options: &[String]) -> Result<(Vec<String>, OwnedFd), Refusal> {
        let items = || options.iter().map(String::as_str);
        let asked = MountOptions::parse(items()).map_err(|why| Refusal::new(libc::EINVAL, why))?;
        let superblock = match &self.superblock {
            Some(superblock) => superblock,
            None if self.adaptor.is_unmounted() => return Err(last_is_gone()),
            None => return Err(Refusal::new(libc::EOPNOTSUPP, ONLY_ONE)),
        };
        must_show_the_same(self.options().engine.rescue.commit, asked.engine.rescue.commit)?;
        let unheeded = self.options().unheeded(items());
        self.find(&asked)?;
        let writable = !asked.flags.read_only;
        if writable {
            self.adaptor.set_read_only(false).map_err(|why| Refusal::new(libc::EROFS, why))?;
        }
        for _ in 0..RENAMES {
            let (path, ino) = self.find(&asked)?;
            match self.show(superblock, writable, &path) {
                // Nobody renames the top level.
                Ok(mount) if path.is_empty() => return Ok((unheeded, mount)),
                Ok(mount) if mount::inode_number(&mount).is_ok_and(|shown| shown == ino) => {
                    return Ok((unheeded, mount));
                }
                // It is elsewhere by now, and something else may be in its place.
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(error) => return Err(refused(&error)),
            }
        }
        Err(Refusal::new(libc::EBUSY, "the subvolume is renamed all the time"))
    }

    fn show(&self, superblock: &Superblock, writable: bool, path: &[u8]) -> io::Result<OwnedFd> {
        let mount = superblock.another_mount()?;
        if !self.adaptor.is_behind(&mount) {
            // The device belongs to somebody else by now.
            return Err(Errno::NOTCONN.into());
        }
        if writable {
            mount::make_writable(&mount)?;
        }
        mount::subtree(mount, Path::new(OsStr::from_bytes(path)))
    }

    /// The path of the subvolume that is asked for, and the number of its root directory.
    fn find(&self, asked: &MountOptions) -> Result<(Vec<u8>, u64), Refusal> {
        let found = self.adaptor.find_subvolume(&asked.engine.subvolume);
        let (path, id, ino) = found.map_err(|error| Refusal::new(error.errno().0, error.to_string()))?;
        asked.must_agree_on(id, &path).map_err(|why| Refusal::new(libc::EINVAL, why))?;
        Ok((path, ino))
    }
}

/// Shows the first mount, whose root is `root`, at its mount point: the subvolume at `path`.
pub fn show_first(root: OwnedFd, path: &[u8], request: &mount::Request) -> io::Result<()> {
    let mount = mount::subtree(root, Path::new(OsStr::from_bytes(path)))?;
    mount::place(mount, &request.flags, &request.mountpoint)
}

/// Refuses to show another commit than the one that is asked for.
fn must_show_the_same(shown: Commit, asked: Commit) -> Result<(), Refusal> {
    // `LastReadable` stands for the last commit: a server that fell back to an older one names its generation.
    let shown = if shown == Commit::LastReadable { Commit::Last } else { shown };
    if shown == asked || asked == Commit::LastReadable {
        return Ok(());
    }
    let of = |commit| match commit {
        Commit::Last | Commit::LastReadable => "the last commit".to_owned(),
        older => format!("an older commit ({})", Rescue { commit: older, ..Rescue::default() }.shown().join(",")),
    };
    let sentence = format!("the filesystem is served already and shows {}; unmount it to see {}", of(shown), of(asked));
    Err(Refusal::new(libc::EBUSY, sentence))
}

/// The asker waits until the image is free, and serves it.
fn last_is_gone() -> Refusal {
    Refusal::new(libc::ESHUTDOWN, "the last mount is gone")
}

fn refused(error: &io::Error) -> Refusal {
    match error.raw_os_error() {
        // What the kernel says to the only descriptors that we pass when there is no superblock for them.
        Some(libc::EINVAL | libc::ENOTCONN) => last_is_gone(),
        number => Refusal::new(number.unwrap_or(libc::EIO), format!("the kernel makes no further mount: {error}")),
    }
}

impl MountOptions {
    /// Whether the subvolume that was found is the one whose id was given beside its path. The error is a sentence, the
    /// kernel's.
    pub fn must_agree_on(&self, found: TreeId, path: &[u8]) -> Result<(), String> {
        match self.subvolume_id {
            Some(id) if id != found => {
                Err(format!("subvol '/{}' does not match subvolid {id}", String::from_utf8_lossy(path)))
            }
            _ => Ok(()),
        }
    }
}
