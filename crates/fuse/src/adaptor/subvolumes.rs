//! Questions about subvolumes that come over the control socket, on a thread that serves no requests.
//!
//! # Invariants
//! 1. What the kernel has cached of files being written is written back before a question whose answer depends on
//!    contents is answered.
//! 2. The kernel is told of entries that came and went without its doing, after they did and with no lock held.

use super::Adaptor;
use crate::control::descriptors::is_pipe;
use crate::control::{Asked, Report};
use crate::subvolumes::{Access, Answer, Place, Places, Refusal, Sink, Stage, perform};
use butterfs_fs::InodeId;
use parking_lot::RwLock;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Questions whose answers depend on what is in files.
const ABOUT_CONTENTS: [&[u8]; 8] =
    [b"snapshot", b"set-readonly", b"new", b"users", b"extents", b"dedupe", b"defragment", b"sync"];

/// Answers questions that come with a descriptor: it makes or applies a stream.
pub type Carrier = Arc<dyn Fn(&Stage<'_>, &[Vec<u8>], OwnedFd, Report<'_>) -> Answer + Send + Sync>;

impl Adaptor {
    /// Answers a question.
    pub fn perform(&self, asked: Asked<'_>, sink: Sink<'_>) -> Result<(), Refusal> {
        let question = asked.words;
        self.on_stage(asked, |stage| perform(stage, question, sink))
    }

    /// Answers a question about the stream of a descriptor.
    pub fn carry(&self, carrier: &Carrier, asked: Asked<'_>, stream: OwnedFd, report: Report<'_>) -> Answer {
        let question = asked.words;
        self.on_stage(asked, |stage| {
            Access { filesystem: stage.filesystem, peer: stage.peer }.must_be_privileged()?;
            if !is_pipe(&stream) {
                return Err(Refusal::new(libc::EINVAL, "the stream does not go through a pipe"));
            }
            carrier(stage, question, stream, report)
        })
    }

    fn on_stage<T>(
        &self,
        Asked { peer, words, places }: Asked<'_>,
        act: impl FnOnce(&Stage<'_>) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let shared = &self.0;
        let device = shared.engine.device().ok_or_else(|| Refusal::new(libc::ENODEV, "nothing is mounted yet"))?;
        let place = |descriptor| Place::of(descriptor, (device, &shared.holds), |shown| shared.nodes.inode(shown));
        let places: Vec<Place> = places.into_iter().map(place).collect::<Result<_, _>>()?;
        if words.first().is_some_and(|verb| ABOUT_CONTENTS.contains(&verb.as_slice())) {
            shared.write_back_all();
        }
        let changed = |parent: InodeId, name: &[u8]| {
            // A kernel that knows nothing of the directory has nothing to forget.
            let _ = shared.device.forget_entry(shared.nodes.node(parent), name);
        };
        let closed = |parent: InodeId, name: &[u8], is_closed| shared.closed_entries.set(parent, name, is_closed);
        let places = Places::Reached(&places);
        act(&Stage { filesystem: shared.filesystem(), peer, places, changed: &changed, closed: &closed })
    }
}

/// Entries of subvolumes that are being filled without the kernel's doing. Nobody follows them meanwhile: what the kernel
/// would keep of what is behind them would be wrong at once.
#[derive(Default)]
pub(super) struct ClosedEntries {
    count: AtomicUsize,
    entries: RwLock<Vec<(InodeId, Vec<u8>)>>,
}

impl ClosedEntries {
    fn set(&self, directory: InodeId, name: &[u8], is_closed: bool) {
        let mut entries = self.entries.write();
        entries.retain(|(other, known)| *other != directory || known != name);
        entries.extend(is_closed.then(|| (directory, name.to_vec())));
        self.count.store(entries.len(), Ordering::Relaxed);
    }

    /// Whether an entry of a directory is one of them.
    pub fn bar(&self, directory: InodeId, name: &[u8]) -> bool {
        let is_closed = |(other, known): &(InodeId, Vec<u8>)| *other == directory && known == name;
        self.count.load(Ordering::Relaxed) != 0 && self.entries.read().iter().any(is_closed)
    }
}
