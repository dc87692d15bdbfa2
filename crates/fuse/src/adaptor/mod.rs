//! FUSE in terms of the engine: each operation is one call of [`Filesystem`], with numbers and structures translated.
//!
//! # Invariants
//! 1. References: every entry in a reply that the kernel took is one reference at the engine, given back by FORGET;
//!    a reply that the kernel did not take is given back at once. One function makes entries.
//! 2. No descriptor and no memory per inode here. A file's handle is empty: what keeps an unlinked open file alive is
//!    its reference, which the kernel holds while it is open.
//! 3. Nobody else changes the filesystem, so names and attributes are cached for as long as the kernel likes; what
//!    changes without the kernel's doing, it has to be told. A mount that follows another host's changes lets names be
//!    cached for as long as it waits between two looks, and tells of every inode with each new state.
//! 4. `sync` in any form first gets the kernel to write back what it has cached.
//!
//! # What the kernel does itself
//! Permissions, sticky bits, set-id bits on chmod and creation (`default_permissions`), the umask where there is no
//! default ACL to ask (told by DONT_MASK), advisory locks, O_APPEND.
//!
//! # What the kernel does not do
//! Keep what is written: a write(2) is a WRITE. Under its writeback cache each file that was written costs a SETATTR
//! for its times, each one that is closed a FLUSH and a GETATTR later, each one that is removed a SETATTR before it
//! goes. Only what is written through a mapping stays in its cache, until it is unmapped at the latest. Open
//! directories: see [`directory`].

mod administrator;
mod attributes;
mod directory;
mod entries;
mod ioctl;
mod nodes;
mod operations;
mod replacement;
mod subvolumes;
mod witness;
mod writers;

use crate::protocol::Request;
use crate::protocol::directory::nodes_of_plus;
use crate::protocol::request::{Operation, opcode};
use crate::protocol::wire::EntryOut;
use crate::session::{Reply, Server};
use crate::subvolumes::Holds;
use crate::transport::DevFuse;
use arc_swap::Guard;
use butterfs_fs::inode::attr::Caller;
use butterfs_fs::{Filesystem, InodeId, Options, Subvolume, TreeId};
use nodes::Nodes;
pub use replacement::Reopen;
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
pub use subvolumes::Carrier;
use writers::Writers;
use zerocopy::FromBytes;

/// Seconds for which the kernel may keep names and attributes: as good as for ever.
const VALID_SECS: u64 = 1 << 30;

/// The engine behind a mount, served over FUSE.
pub struct Adaptor(Arc<Shared>);

/// The state that operations share.
struct Shared {
    engine: replacement::Engine,
    /// Seconds for which the kernel may keep names and attributes.
    valid_secs: u64,
    nodes: Nodes,
    writers: Writers,
    being_read: directory::BeingRead,
    closed_entries: subvolumes::ClosedEntries,
    holds: Arc<Holds>,
    witness: witness::Witness,
    device: DevFuse,
    /// Somebody had the filesystem stop writing.
    is_down: AtomicBool,
    /// How the filesystem was closed, once it is.
    closed: OnceLock<Result<(), String>>,
}

/// How an operation ends: the answer is in the payload, or there is an error number.
type Outcome = Result<(), Errno>;

impl Adaptor {
    /// Serves `filesystem` over the connection of `device`, whose root directory is `root`; inodes of the subvolume
    /// `plain` show their own numbers. A filesystem that was opened read-only is replaced by what `reopen` returns when
    /// a mount becomes writable. One that [`show`](Self::show) replaces, every so often, `follows`.
    pub fn new(
        (filesystem, reopen): (Filesystem, Reopen),
        follows: Option<Duration>,
        device: DevFuse,
        root: InodeId,
        plain: TreeId,
    ) -> Adaptor {
        Adaptor(Arc::new(Shared {
            valid_secs: follows.map_or(VALID_SECS, |every| every.as_secs()),
            nodes: Nodes::new(root, plain),
            engine: replacement::Engine::new(filesystem, reopen),
            writers: Writers::default(),
            being_read: directory::BeingRead::default(),
            closed_entries: subvolumes::ClosedEntries::default(),
            holds: Arc::default(),
            witness: witness::Witness::default(),
            device,
            is_down: AtomicBool::new(false),
            closed: OnceLock::new(),
        }))
    }

    /// Shows a newer state of a filesystem that is only read and that another host changes. Not for threads that serve
    /// requests.
    pub fn show(&self, newer: Filesystem) -> Result<(), String> {
        let known = self.0.engine.show(newer, &self.0.nodes)?;
        known.into_iter().for_each(|node| self.0.write_back(node));
        Ok(())
    }

    /// Whether the filesystem was opened read-only, and no mount has become writable since.
    pub fn is_replaceable(&self) -> bool {
        self.0.engine.is_replaceable()
    }

    /// Makes everything durable, also what the kernel still has in its cache. Needs the session to be served.
    pub fn sync(&self) -> Result<(), String> {
        self.0.write_back_all();
        self.0.filesystem().sync().map_err(|error| error.to_string())
    }

    /// Messages about events on the devices, oldest first.
    pub fn take_messages(&self) -> Vec<String> {
        let mut messages = self.0.engine.take_messages();
        messages.extend(self.0.filesystem().take_messages());
        messages
    }

    /// Bytes that the engine's caches and tables hold, about.
    pub fn memory_held(&self) -> u64 {
        self.0.filesystem().memory_held().bytes()
    }

    /// Gives up what is cached and nobody has asked for since the last call.
    pub fn age_caches(&self) {
        self.0.filesystem().age_caches();
    }

    /// Forbids or allows changes; before they are forbidden, everything is made durable.
    pub fn set_read_only(&self, read_only: bool) -> Result<(), String> {
        if read_only {
            self.0.write_back_all();
        } else {
            self.0.engine.upgrade(&self.0.nodes)?;
        }
        self.0.filesystem().set_read_only(read_only).map_err(|error| error.to_string())
    }

    /// The path from the top level of the subvolume that a mount is to show, and the inode number of its root
    /// directory.
    pub fn find_subvolume(&self, which: &Subvolume) -> butterfs_fs::Result<(Vec<u8>, TreeId, u64)> {
        let found = self.0.filesystem().find_subvolume(which)?;
        let path = self.0.filesystem().subvolume_path(found.tree)?;
        Ok((path, found.tree, self.0.nodes.ino(found)))
    }

    /// Whether a mount leads here. Needs the session to be served, by other threads.
    pub fn is_behind(&self, mount: impl std::os::fd::AsFd) -> bool {
        self.0.witness.is_asked_by(mount)
    }

    /// Whether the last mount is gone; the filesystem may be open still.
    pub fn is_unmounted(&self) -> bool {
        self.0.device.has_ended()
    }

    /// The options in force.
    pub fn options(&self) -> Options {
        let filesystem = self.0.filesystem();
        Options {
            data: filesystem.data_policy(),
            discard: filesystem.discard_mode(),
            read_only: filesystem.is_read_only(),
            ..filesystem.options().clone()
        }
    }

    /// Called with the device number of the mount when it is known. From then on the server notices when the mount
    /// becomes writable without its being told.
    pub fn mounted_as(&self, device: (u32, u32)) {
        self.0.engine.mounted_as(device);
    }

    /// Makes everything durable and stops the engine; later calls repeat the result.
    pub fn close(&self) -> Result<(), String> {
        self.0.close()
    }
}

impl Server for Adaptor {
    fn handle(&self, request: &Request<'_>, payload: &mut Vec<u8>) -> Reply {
        let shared = &self.0;
        let outcome = match request.operation {
            Operation::Lseek { arguments } if shared.writers.contains(request.header.nodeid) => {
                let (shared, node) = (Arc::clone(shared), request.header.nodeid);
                return Reply::Later(Box::new(move |payload| {
                    shared.write_back(node);
                    reply(shared.seek(node, &arguments, payload))
                }));
            }
            Operation::Ioctl { arguments, .. } if arguments.cmd == ioctl::BTRFS_SYNC => {
                let shared = Arc::clone(shared);
                return Reply::Later(Box::new(move |payload| {
                    shared.write_back_all();
                    reply(shared.sync_by_ioctl(payload))
                }));
            }
            Operation::Ioctl { arguments, .. } if arguments.cmd == ioctl::SHUTDOWN => {
                let (shared, header) = (Arc::clone(shared), request.header);
                return Reply::Later(Box::new(move |payload| reply(shared.go_down(&header, &arguments, payload))));
            }
            _ => shared.serve_writably(request, payload),
        };
        reply(outcome)
    }

    fn reply_refused(&self, request: &Request<'_>, payload: &[u8]) {
        let shared = &self.0;
        let node = request.header.nodeid;
        match &request.operation {
            Operation::Open { arguments } => shared.writers.closed(node, arguments.flags),
            Operation::Readdirplus { .. } => nodes_of_plus(payload).for_each(|node| shared.forget(node, 1)),
            operation if makes_entry(operation.opcode()) => {
                let Ok((entry, _)) = EntryOut::read_from_prefix(payload) else { return };
                if let Operation::Create { arguments, .. } | Operation::Tmpfile { arguments } = operation {
                    shared.writers.closed(entry.nodeid, arguments.flags);
                }
                shared.forget(entry.nodeid, 1);
            }
            _ => {}
        }
    }

    fn broke_down(&self, why: &str) {
        self.0.filesystem().abort(&format!("a request panicked: {why}"));
    }
}

fn reply(outcome: Outcome) -> Reply {
    match outcome {
        Ok(()) => Reply::Done,
        Err(errno) => Reply::Failed(errno),
    }
}

/// Whether an operation's answer begins with an entry.
fn makes_entry(number: u32) -> bool {
    use opcode::{Create, Link, Lookup, Mkdir, Mknod, Symlink, Tmpfile};
    [Lookup, Symlink, Mknod, Mkdir, Link, Create, Tmpfile].contains(&number)
}

impl Shared {
    fn filesystem(&self) -> Guard<Arc<Filesystem>> {
        self.engine.filesystem()
    }

    /// Serves a request. A change that is refused because the filesystem was opened read-only means that the mount may
    /// have been made writable since: mount(2) tells the kernel, but the kernel does not tell the server.
    fn serve_writably(&self, request: &Request<'_>, payload: &mut Vec<u8>) -> Outcome {
        let outcome = {
            let _steady = self.engine.steady(matches!(request.operation, Operation::Read { .. }));
            self.serve(request, payload)
        };
        if outcome == Err(Errno::ROFS) && self.engine.follow_remount(&self.nodes) {
            payload.clear();
            return self.serve(request, payload);
        }
        outcome
    }

    fn inode(&self, node: u64) -> Result<InodeId, Errno> {
        self.nodes.inode(node).ok_or(Errno::STALE)
    }

    /// Node 0 is that of an answer that says that there is nothing.
    fn forget(&self, node: u64, count: u64) {
        if let Some(id) = self.nodes.inode(node).filter(|_| node != 0) {
            self.being_read.end(node);
            self.filesystem().forget(id, count);
        }
    }

    /// Has the kernel send what it caches of a file's content. Not for threads that serve requests.
    fn write_back(&self, node: u64) {
        // An error means that there is no connection any more, and then nothing to send.
        let _ = self.device.drop_cached_data(node);
    }

    fn write_back_all(&self) {
        self.writers.all().into_iter().for_each(|node| self.write_back(node));
    }

    fn close(&self) -> Result<(), String> {
        let close = || match self.filesystem().shutdown() {
            // As it was asked for.
            Err(_) if self.is_down.load(Ordering::Acquire) => Ok(()),
            closed => closed.map_err(|error| error.to_string()),
        };
        self.closed.get_or_init(close).clone()
    }
}

/// The error number for an error of the engine.
fn errno(error: butterfs_fs::Error) -> Errno {
    Errno::from_raw_os_error(error.errno().0)
}

/// On whose behalf something is made. The kernel has already decided about set-group-id bits.
fn caller(request: &Request<'_>, umask: u32) -> Caller {
    Caller { uid: request.header.uid, gid: request.header.gid, umask: umask & 0o777, privileged: true }
}
