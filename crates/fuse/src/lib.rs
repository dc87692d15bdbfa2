//! Internal to butterfs: this crate promises no stability. Depend on the crate `butterfs` instead.
//!
//! FUSE in front of the engine: requests of the kernel become calls of `butterfs_fs::Filesystem`, and nothing else.
//!
//! ```text
//! client      what commands do to a mount that another process serves
//! service     one filesystem, from its first mount to the last commit
//! mounts      further mounts of a filesystem that is served, and the options in force
//! mount       makes, changes and ends mounts: types fuse and fuseblk, fusermount3
//! control     finds the process that serves a mount, asks it to commit, waits for its end
//! subvolumes  answers to questions about subvolumes, over the control socket or on an image
//! credentials capabilities of the process that asks
//! adaptor     FUSE operation <-> engine: node ids, attributes, directories
//! session     INIT by whitelist, one request -> one reply, what a panic means
//! transport   where requests come from: /dev/fuse with a descriptor per thread, or io_uring with a ring per thread
//! protocol    structures, and requests taken apart
//! ```
//!
//! Each module uses only those below it.
//!
//! # Why a transport of our own
//! The published crates do not carry what the engine has and the kernel offers: `fuser` 0.18 knows no SYNCFS (without
//! which `sync` on a `fuseblk` mount is a lie), no TMPFILE and no STATX (birth times), and does not let its caller make
//! the mount or choose another transport. The protocol is two dozen structures and a read/write loop. For io_uring the
//! crate of that name makes the rings; what goes over them is three structures more.
//!
//! # Not here
//! Permission checks (the kernel's: `default_permissions` is always on), locks of files (the kernel's), printing (the
//! caller passes a [`Log`]).

pub mod adaptor;
pub mod client;
pub mod control;
mod credentials;
mod memory;
pub mod mount;
mod mounts;
pub mod protocol;
pub mod service;
pub mod session;
pub mod subvolumes;
mod system;
pub mod transport;

use std::sync::Arc;

/// The sink for messages to the administrator.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;
