//! Internal to butterfs: this crate promises no stability. Depend on the crate `butterfs` instead.
//!
//! The messages between commands and the process that serves a mount, over the mount's control socket, as types. Both
//! use the same types, so a verb or a field that one of them does not handle does not compile. This crate opens no
//! sockets and knows nothing of filesystems.
//!
//! # On the wire
//! Requests are [lines](mod@line). They are the same in every version, so a command can have a server of any version
//! commit, and wait for its end. A question is a line, too, that says how many bytes and descriptors come with it:
//!
//! | request | answer |
//! |---|---|
//! | `hello VERSION` | `butterfs VERSION`, the server's own; or `refused ERRNO SENTENCE`, and the end |
//! | `state` | `serving`, or `ending` once the mount is gone |
//! | `sync`, `writable`, `readonly` | `ok` when it is done and durable, or `failed REASON` |
//! | `wait` | `waiting`, and when the process is done: `ok` when everything is durable, or `failed REASON` |
//! | `ask DESCRIPTORS BYTES`, and the bytes of a [`Question`] | [replies](Reply): records, then the end |
//! | `carry DESCRIPTORS BYTES`, and the bytes of a [`StreamQuestion`] | replies: reports, one record, the end |
//! | `mounts DESCRIPTORS BYTES`, and the bytes of a [`MountQuestion`] | one [`MountAnswer`], a mount with its descriptor |
//! | `do …`, `with …`: questions of versions 1 and 2 | `refused ERRNO SENTENCE` |
//!
//! The bytes are those of postcard. A reply has its length before it, in four bytes, the lowest first.
//!
//! # Versions
//! The server answers questions only to commands of its own version; others get `refused` and a sentence. A question
//! that comes to the end of a table in [`question`] needs no new version: a server that does not know it refuses it by
//! a sentence, and a command never gets a record or report that it did not ask for. Every other change does:
//! `tests/pinned.rs` fails where bytes change.
//!
//! # Invariants
//! 1. A question has at most [`QUESTION_BYTES`], a line [`LINE_BYTES`], a reply [`REPLY_BYTES`], whoever sends it.
//! 2. Decoding never panics, and takes memory in proportion to the bytes that have come. Bytes after the end of a
//!    message are an error.

#![forbid(unsafe_code)]

mod bytes;
pub mod line;
mod message;
mod mounts;
pub mod question;
mod record;
mod refusal;

pub use line::{Attached, Order, Request, Response};
pub use message::{DecodeError, Message, Reply, TooLong, decode, encode, frame, read_framed, read_reply};
pub use mounts::{MountAnswer, MountQuestion, Storage};
pub use question::{Ask, AskStream, InodeRef, Question, StreamQuestion};
pub use record::{
    BalancePhase, BalanceRecord, ChunkRecord, Comparison, Compression, CompressionMethod, DamagedFile,
    DeletedSubvolume, DeviceHealth, DeviceRecord, DeviceSize, ExtentKind, ExtentUser, FileExtentRecord,
    FilesystemRecord, Health, HealthRecord, InodePath, Label, MayShare, MeasuredExtent, MemberRecord, NewExtent,
    NewSince, Nothing, ReadOnly, ReceiveStatus, ReceiveSummary, Record, ReplaceRecord, Report, Rewritten, ScrubDevice,
    ScrubEarlier, ScrubEnd, ScrubFinding, ScrubNews, ScrubOutcome, ScrubState, SendStatus, SendSummary, SpaceRecord,
    Stamp, SubvolumeId, SubvolumeRecord, WorkCounts, WorkProgress,
};
pub use refusal::Refusal;

/// The version of questions and replies.
pub const VERSION: u32 = 3;

/// The longest line.
pub const LINE_BYTES: usize = 4096;
/// The longest question.
pub const QUESTION_BYTES: usize = 4096;
/// The longest reply: paths can be long.
pub const REPLY_BYTES: usize = 1 << 24;
/// Descriptors that one question may bring along; the kernel passes 253 at once.
pub const MOST_DESCRIPTORS: usize = 250;
