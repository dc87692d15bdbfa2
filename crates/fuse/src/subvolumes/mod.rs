//! Answers to what commands ask: for a mount, where the serving process answers over its [control](crate::control)
//! socket, and for an image that the command has opened itself. The questions are those of
//! [`butterfs_control::question`].
//!
//! # Why a socket
//! The kernel's own way are ioctls on a directory. FUSE passes on those whose number says how much they carry; the ones
//! that return lists (tree search, inode paths, logical addresses) do not, and the descriptor of a snapshot's source
//! means nothing in another process. A socket carries all of it, knows its peer's credentials, and passes descriptors
//! on.
//!
//! Permissions that the kernel would check are checked here. A [`ReachedInode`] is a descriptor of the peer's: it shows
//! that the peer could get there, that it is on this filesystem, and whether the mount that it was reached through may
//! be written to. Whether the peer may write in a directory, or owns a subvolume, [`Access`] says. Root with
//! CAP_SYS_ADMIN, and the user whose process serves the mount (who could open the image as well), may do everything
//! that the mount allows. Other capabilities count as in the kernel: CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER,
//! CAP_FSETID.
//!
//! Questions about streams are answered by whoever makes and applies streams.

mod access;
mod balance;
mod devices;
mod files;
mod hold;
mod inodes;
mod perform;
mod records;
mod scrub;
mod usage;

pub use access::{Access, Capabilities, Peer};
pub use hold::Holds;
pub use inodes::{Inodes, ReachedInode};
pub use perform::{Stage, changed_inode_of, perform, subvolume_of};
pub use scrub::{IN_PROGRESS, NOT_RUNNING};

use butterfs_control::{Record, Refusal};

/// A refusal; errors of the engine become one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(pub Refusal);

impl Refused {
    /// With the kernel's number and a sentence.
    pub fn new(errno: i32, sentence: impl Into<String>) -> Refused {
        Refused(Refusal::new(errno, sentence))
    }
}

impl From<butterfs_fs::Error> for Refused {
    fn from(error: butterfs_fs::Error) -> Refused {
        Refused::new(error.errno().0, error.to_string())
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Refused {
        Refused(refusal)
    }
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Refusal {
        refused.0
    }
}

/// Takes the records of an answer one by one; an error when nobody wants more.
pub type Sink<'a> = &'a mut dyn FnMut(Record) -> Result<(), Refusal>;
