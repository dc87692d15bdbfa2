//! btrfs in userspace: open, make, change, maintain, send, receive and check the filesystems that the Linux kernel
//! calls btrfs.
//!
//! No kernel driver, no mount and no root are needed: a program that may read and write an image file may use
//! everything in this crate. The kernel mounts what this crate writes, and this crate opens what the kernel wrote.
//!
//! ```
//! use butterfs::{Device, Filesystem, Mkfs};
//!
//! # fn main() -> butterfs::Result<()> {
//! let disk = Device::memory(256 << 20); // or Device::create("disk.img", 256 << 20)?
//! Mkfs::new().device(disk.clone()).label("example").run()?;
//!
//! let filesystem = Filesystem::open(disk)?;
//! let root = filesystem.root();
//! root.create_dir("etc")?;
//! root.write("etc/motd", "hello\n")?;
//! assert_eq!(root.read("etc/motd")?, b"hello\n");
//! filesystem.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Where to start
//!
//! | task | start at |
//! |---|---|
//! | make a filesystem | [`Mkfs`] |
//! | open one | [`Filesystem::open`], or [`Builder`] for options |
//! | name a disk, an image, a partition, memory, or storage of your own | [`Device`], [`BlockDevice`] |
//! | work with files by path | [`Dir`], beginning at [`Filesystem::root`] |
//! | read and write one file | [`File`] |
//! | attributes, owners, times, extended attributes | [`Node`] |
//! | subvolumes and snapshots | [`Dir::create_subvolume`], [`Dir::snapshot`], [`Filesystem::subvolumes`] |
//! | several changes that a crash cannot separate | [`Filesystem::transaction`] |
//! | send and receive streams | [`Filesystem::send`], [`Dir::receive`] |
//! | verify a filesystem | [`Check`] for one that is not open, [`Filesystem::scrub`] for one that is |
//! | space, label, UUID, the devices | [`Filesystem::usage`], [`Filesystem::info`], [`Filesystem::devices`] |
//! | resize, add, remove or replace a device | [`Filesystem::resize_device`], [`Filesystem::add_device`], [`Filesystem::remove_device`], [`Filesystem::replace_device`] |
//! | move chunks, convert profiles | [`Filesystem::balance`] |
//! | give free space back to the storage | [`Filesystem::discard_free_space`] |
//!
//! # Guarantees
//!
//! * **Durability.** When [`Filesystem::sync`], [`File::sync_all`], [`Filesystem::close`], [`Dir::snapshot`] or a
//!   [transaction](Filesystem::transaction) has returned `Ok`, a crash at any later moment keeps the data. Everything
//!   else is durable after the next commit (by default at most 30 seconds later).
//! * **Crashes.** A crash leaves the filesystem in a committed state. It opens without a repair.
//! * **Integrity.** Data whose checksum does not match is read from another copy. If there is none, the read fails with
//!   [`ErrorKind::Device`] or [`ErrorKind::Corrupt`]. Wrong data is never returned.
//! * **Hostile images.** Bytes from a disk or a stream can cause errors, but no panic, no endless loop and no unbounded
//!   memory.
//! * **Paths stay inside.** A path is resolved inside the filesystem, below the [`Dir`] it was given to. Symbolic links
//!   and `..` never lead to the host. Names are bytes: they need not be UTF-8.
//! * **Threads.** [`Filesystem`], [`Dir`], [`Node`] and [`File`] are `Send + Sync`. Clones of a [`Filesystem`] share
//!   one open filesystem.
//!
//! # Permissions
//!
//! The library acts as the superuser of the image: it does not check modes or ACLs. New files belong to the
//! [`Owner`] that [`Builder::owner`] sets, by default to user 0 and group 0 of the image.
//!
//! # Stability
//!
//! This crate follows semantic versioning. The crates below it (`butterfs-fs`, `butterfs-ondisk` and others) are its
//! implementation and can change in every release. The trait [`BlockDevice`] and the type [`MemoryDevice`] are part of
//! this crate's interface although they are defined in `butterfs-device`.

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod balance;
mod builder;
mod check;
mod device;
mod device_set;
mod dir;
mod error;
mod file;
mod filesystem;
mod lease;
mod metadata;
mod mkfs;
mod node;
mod open_options;
mod read_dir;
mod receive;
mod resolve;
mod scrub;
mod send;
mod statistics;
mod subvolume;
mod transaction;
mod types;
mod xattr;

pub use balance::{BalanceFilter, BalanceOutcome, BalanceProgress, BalanceRequest, BalanceState};
pub use builder::{Builder, Compression, Log, MissingDevices, SubvolumeChoice};
pub use check::{Check, CheckProgress, CheckReport, DataCheck, Finding, Severity};
pub use device::Device;
pub use device_set::{
    DeviceInfo, DeviceSize, OldDevice, RemoveRequest, RemovedDevice, ReplaceRequest, ResizeRequest, StorageSize,
    WorkProgress,
};
pub use dir::{Dir, Rename};
pub use error::{Errno, Error, ErrorKind, Place, Result};
pub use file::{Allocate, File};
pub use filesystem::Filesystem;
pub use metadata::{FileType, InodeFlags, Metadata, Times};
pub use mkfs::{Checksum, Existing, Made, Mkfs, Profile};
pub use node::{Follow, Node};
pub use open_options::{Create, OpenOptions};
pub use read_dir::{DirEntry, ReadDir};
pub use receive::{ReceiveError, ReceiveErrorKind, ReceiveProgress, ReceiveRequest, Received, ReceivedSubvolume};
pub use scrub::{Damage, DamagedFile, Repair, ScrubProgress, ScrubReport, ScrubRequest, ScrubbedDevice};
pub use send::{SendError, SendErrorKind, SendProgress, SendRequest, StreamVersion};
pub use statistics::{FilesystemInfo, Usage};
pub use subvolume::SubvolumeInfo;
pub use transaction::Transaction;
pub use types::{Access, DeviceId, InodeId, Mode, Owner, SubvolumeId, Timestamp, Uuid};

pub use butterfs_device::{BlockDevice, MemoryDevice};

/// The documents, whose code is compiled and run.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/library.md")]
    struct Guide;
}
