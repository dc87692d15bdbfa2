//! What commands ask about subvolumes, and the answers: one vocabulary for a mount, where the serving process answers
//! over its [control](crate::control) socket, and for an image that the command has opened itself.
//!
//! # Why a socket
//! The kernel's own way are ioctls on a directory. FUSE passes on those whose number says how much they carry; the ones
//! that return lists (tree search, inode paths, logical addresses) do not, and the descriptor of a snapshot's source
//! means nothing in another process. A socket carries all of it, knows its peer's credentials, and passes descriptors on.
//!
//! What the kernel would check is checked here. A [`Place`] is a descriptor of the peer's: it shows that the peer could get
//! there, that it is on this filesystem, and whether the mount that it was reached through may be written to. Whether
//! the peer may write in a directory, or owns a subvolume, [`Access`] says. Root with CAP_SYS_ADMIN, and the
//! user whose process serves the mount (who could open the image as well), may do everything that the mount allows. Other
//! capabilities count as in the kernel: CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER, CAP_FSETID.
//!
//! # Words
//! A question is a list of words, an answer a list of records of words; each word is bytes.
//!
//! | question | records |
//! |---|---|
//! | `create DIR UMASK NAME` | id |
//! | `snapshot SUBVOLUME DIR NAME ro\|rw` | id |
//! | `delete DIR NAME`, `delete-id INODE ID` | id |
//! | `list INODE` | the id of the inode's subvolume; then one for each subvolume, see [`SubvolumeRecord`] |
//! | `deleted` | id, generation |
//! | `info INODE`, `info-id ID`, `info-uuid UUID` | one, see [`SubvolumeRecord`] |
//! | `rootid INODE` | id |
//! | `get-default`, `set-default INODE ID` | id |
//! | `get-readonly INODE` | `true` or `false` |
//! | `set-readonly INODE true\|false` | none |
//! | `new INODE GENERATION` | the newest generation; then see [`ExtentRecord`] |
//! | `subvolume-path ID` | path from the top level |
//! | `paths INODE INO`, `paths-in ID INO` | path each, in the subvolume of INODE, or with this id |
//! | `users ADDRESS exact\|whole` | subvolume, inode number, offset |
//! | `extents INODE` | one for each extent of a file, see [`FileExtentRecord`] |
//! | `may-clone INODE INODE` | `true` where extents of the first file may be shared with the second, or `false` |
//! | `dedupe INODE POSITION INODE POSITION LENGTH` | `same`: the second range shares the extents of the first; or `differs` |
//! | `defragment INODE POSITION LENGTH THRESHOLD METHOD\|-` | bytes that were written anew |
//! | `get-label`, `set-label INODE LABEL` | the label; none |
//! | `store-data OPTION...` | none; mount options that say how new data is stored |
//! | `device-stats` | of each device its number, its name, and errors: write, read, flush, corruption, generation |
//! | `sync` | none, when everything is durable |
//! | `work` | counts for tests of the cost: tree blocks asked for, items looked at, tree blocks read; the most of the first two, and of the third, for which everybody waited in one go since the last such question |
//!
//! Questions that come with a descriptor are answered by whoever makes and applies streams:
//!
//! | question | reports | records |
//! |---|---|---|
//! | `receive DIR OPTIONS ERRORS VERBOSITY` | `out`, `err` or `error` and a line; `progress`, bytes, commands | streams, sections, commands, bytes, errors |
//! | `send VERSION OPTIONS PARENT SOURCES CLONE_SOURCE… SUBVOLUME…` | `begun` and a number; `progress`, bytes, commands, thousandths | bytes, commands |
//!
//! INODE, DIR and SUBVOLUME are `@INDEX`, one of the descriptors that come with the question; for an image `TREE:INO`. Where
//! an id says what is changed, INODE says through which mount. Who is not privileged brings at least one place along. Work
//! that can take long is asked for in pieces ([`MOST_DEDUPED`], [`MOST_DEFRAGMENTED`]), so that it ends with who asks.

mod access;
mod files;
mod hold;
mod perform;
mod place;
mod records;
mod words;

pub use access::{Access, Capabilities, Peer};
pub use files::{FileExtentRecord, MOST_DEDUPED, MOST_DEFRAGMENTED};
pub use hold::Holds;
pub use perform::{Stage, changed_inode_of, perform, subvolume_of};
pub use place::{Place, Places};
pub use records::{ExtentRecord, SubvolumeRecord, uuid_from_text, uuid_text};
pub use words::{joined, split};

/// A list of words.
pub type Record = Vec<Vec<u8>>;

/// Why a question was not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The kernel's number for it.
    pub errno: i32,
    /// A sentence.
    pub sentence: String,
}

impl Refusal {
    /// A refusal with a sentence.
    pub fn new(errno: i32, sentence: impl Into<String>) -> Refusal {
        Refusal { errno, sentence: sentence.into() }
    }
}

impl From<butterfs_fs::Error> for Refusal {
    fn from(error: butterfs_fs::Error) -> Refusal {
        Refusal::new(error.errno().0, error.to_string())
    }
}

/// Takes the records of an answer one by one; an error when nobody wants more.
pub type Sink<'a> = &'a mut dyn FnMut(Record) -> Result<(), Refusal>;

/// The records, or why there are none.
pub type Answer = Result<Vec<Record>, Refusal>;
