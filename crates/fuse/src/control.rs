//! How other commands talk to the process that serves a mount: over a socket named after the mount's device number, in
//! a folder that belongs to whoever made the mount; see [`address`].
//!
//! The messages of both sides are in [`butterfs_control`]. Descriptors come with a question: of a question about a
//! stream first the one that the stream is written to or read from, then those of the inodes that the question names,
//! opened with `O_PATH`: whoever has one could get there, and it shows through which mount.
//!
//! Root and the user who made the mount connect to the serving process, everybody else to a [proxy]. What those two
//! send is held here, so a command passes nothing on that could keep this process: paths, and pipes.
//!
//! # Invariants
//! 1. Both sides check whose process the other end is: root, or the user who made the mount. Where other users may
//!    enter the mount, they may ask questions, each of which has its own conditions, but give no orders; so may root
//!    without CAP_SYS_ADMIN, or of another user namespace (see `credentials`).
//! 2. Questions are answered only between equals in version; orders are the same in every version.
//! 3. An answer is never whole in memory, and ends when nobody reads it any more.
//! 4. A user who is not privileged holds at most [`MOST_OF_ONE_GUEST`] connections, all of them [`MOST_GUESTS`], each
//!    of which is given up when it says or takes nothing for [`GUEST_PATIENCE`].

mod address;
mod admission;
mod client;
mod conversation;
pub mod descriptors;
mod parcel;
pub mod proxy;
mod reply_writer;
mod server;

pub use address::{MountTurn, shown as shown_address};
pub use client::{ControlClient, Waiter};
pub use proxy::Proxy;
pub use server::ControlServer;

use crate::subvolumes::{Peer, Sink};
use butterfs_control::{MountAnswer, MountQuestion, Order, Question, Record, Refusal, Report, StreamQuestion};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Connections of users who are not privileged, at a time.
const MOST_GUESTS: usize = 32;
/// Connections of one such user.
const MOST_OF_ONE_GUEST: usize = 4;
/// Connections that wait for ever, or are being served, where ordinary users connect.
const MOST_CONNECTIONS: usize = 128;
/// Descriptors that such a user may bring along with a question.
const MOST_OF_GUESTS_DESCRIPTORS: usize = 4;
/// How long such a user may say or take nothing.
const GUEST_PATIENCE: Duration = Duration::from_secs(10);
/// How long an answer may wait for such a user in total.
const GUEST_DELAY: Duration = Duration::from_secs(60);

/// Carries out orders; the error is a sentence.
pub type Obey = Arc<dyn Fn(Order) -> Result<(), String> + Send + Sync>;

/// A question and the descriptors of the inodes that it names.
pub struct Asked<'a, Q> {
    /// The asker.
    pub peer: &'a Peer,
    /// The question.
    pub question: &'a Q,
    /// The descriptors.
    pub descriptors: Vec<OwnedFd>,
}

/// Answers questions.
pub type Respond = Arc<dyn Fn(Asked<'_, Question>, Sink<'_>) -> Result<(), Refusal> + Send + Sync>;

/// Tells whoever asked how far the work is; false when nobody listens any more.
pub type Tell<'a> = &'a mut dyn FnMut(Report) -> bool;

/// Answers questions about the stream of a descriptor.
pub type Carry = Arc<dyn Fn(Asked<'_, StreamQuestion>, OwnedFd, Tell<'_>) -> Result<Record, Refusal> + Send + Sync>;

/// Answers questions about mounts: with a descriptor where the answer is a mount.
pub type Mounts = Arc<dyn Fn(&MountQuestion) -> (MountAnswer, Option<OwnedFd>) + Send + Sync>;

/// The functions that a control server offers.
#[derive(Clone)]
pub struct Powers {
    /// Carries out orders.
    pub obey: Obey,
    /// Answers questions.
    pub respond: Respond,
    /// Answers questions about streams.
    pub carry: Carry,
    /// Answers questions about mounts.
    pub mounts: Mounts,
    /// Whether other users than root and the one who made the mount may ask.
    pub for_all: bool,
    /// The process that accepts their connections.
    pub proxy: Proxy,
}

fn is_trusted(uid: u32, owner: u32) -> bool {
    uid == 0 || uid == owner
}

#[cfg(test)]
mod tests;
