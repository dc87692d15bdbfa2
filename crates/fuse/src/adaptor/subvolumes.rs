//! Questions about subvolumes that come over the control socket, on a thread that serves no requests.
//!
//! # Invariants
//! 1. What the kernel has cached of files being written is written back before a question whose answer depends on
//!    contents is answered.
//! 2. The kernel is told of entries that came and went without its doing, after they did and with no lock held.

use super::Adaptor;
use crate::control::descriptors::is_pipe;
use crate::control::{Asked, Tell};
use crate::subvolumes::{Access, Inodes, ReachedInode, Sink, Stage, perform};
use butterfs_control::{Question, Record, Refusal, StreamQuestion};
use butterfs_fs::InodeId;
use parking_lot::RwLock;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Whether an answer depends on what is in files. A new question has to be put on one side.
fn is_about_contents(question: &Question) -> bool {
    match question {
        Question::Snapshot(_)
        | Question::SetReadOnly(_)
        | Question::FindNew(_)
        | Question::FindUsers(_)
        | Question::ListExtents(_)
        | Question::Dedupe(_)
        | Question::Defragment(_)
        | Question::StartScrub(_)
        | Question::SyncAll(_) => true,
        Question::CreateSubvolume(_)
        | Question::DeleteSubvolume(_)
        | Question::DeleteSubvolumeById(_)
        | Question::ListSubvolumes(_)
        | Question::ListDeleted(_)
        | Question::DescribeSubvolume(_)
        | Question::DescribeSubvolumeById(_)
        | Question::DescribeSubvolumeByUuid(_)
        | Question::ListSnapshots(_)
        | Question::FindSubvolume(_)
        | Question::GetDefault(_)
        | Question::SetDefault(_)
        | Question::GetReadOnly(_)
        | Question::FindSubvolumePath(_)
        | Question::FindPaths(_)
        | Question::FindPathsById(_)
        | Question::AskToShare(_)
        | Question::GetLabel(_)
        | Question::SetLabel(_)
        | Question::StoreData(_)
        | Question::CountDeviceErrors(_)
        | Question::DescribeFilesystem(_)
        | Question::ListChunks(_)
        | Question::ListMembers(_)
        | Question::MeasureFile(_)
        | Question::ListDevices(_)
        | Question::ResizeDevice(_)
        | Question::AddDevice(_)
        | Question::RemoveDevice(_)
        | Question::CancelDeviceWork(_)
        | Question::StartReplace(_)
        | Question::DescribeReplace(_)
        | Question::CountWork(_)
        | Question::GetScrub(_)
        | Question::CancelScrub(_)
        | Question::LimitScrub(_)
        | Question::ResetDeviceErrors(_)
        | Question::GetHealth(_)
        | Question::StartBalance(_)
        | Question::ResumeBalance(_)
        | Question::StopBalance(_)
        | Question::GetBalance(_) => false,
    }
}

/// Answers questions that come with a descriptor: it makes or applies a stream.
pub type Carrier = Arc<dyn Fn(&Stage<'_>, &StreamQuestion, OwnedFd, Tell<'_>) -> Result<Record, Refusal> + Send + Sync>;

impl Adaptor {
    /// Answers a question.
    pub fn perform(&self, asked: Asked<'_, Question>, sink: Sink<'_>) -> Result<(), Refusal> {
        let question = asked.question;
        self.on_stage(asked, |stage| {
            if is_about_contents(question) {
                self.0.write_back_all();
            }
            perform(stage, question, sink)
        })
    }

    /// Answers a question about the stream of a descriptor.
    pub fn carry(
        &self,
        carrier: &Carrier,
        asked: Asked<'_, StreamQuestion>,
        stream: OwnedFd,
        tell: Tell<'_>,
    ) -> Result<Record, Refusal> {
        let question = asked.question;
        self.on_stage(asked, |stage| {
            Access { filesystem: stage.filesystem, peer: stage.peer }.must_be_privileged()?;
            if !is_pipe(&stream) {
                return Err(Refusal::new(libc::EINVAL, "the stream does not go through a pipe"));
            }
            carrier(stage, question, stream, tell)
        })
    }

    fn on_stage<Q, T>(
        &self,
        Asked { peer, descriptors, .. }: Asked<'_, Q>,
        act: impl FnOnce(&Stage<'_>) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let shared = &self.0;
        // Before inodes are found: what they are is true in this state, which a newer one may replace.
        let filesystem = shared.filesystem();
        let device = shared.engine.device().ok_or_else(|| Refusal::new(libc::ENODEV, "nothing is mounted yet"))?;
        let reached =
            |descriptor| ReachedInode::of(descriptor, (device, &shared.holds), |shown| shared.nodes.inode(shown));
        let reached: Vec<ReachedInode> = descriptors.into_iter().map(reached).collect::<Result<_, _>>()?;
        let changed = |parent: InodeId, name: &[u8]| {
            // A kernel that knows nothing of the directory has nothing to forget.
            let _ = shared.device.forget_entry(shared.nodes.node(parent), name);
        };
        let closed = |parent: InodeId, name: &[u8], is_closed| shared.closed_entries.set(parent, name, is_closed);
        let inodes = Inodes::Reached(&reached);
        act(&Stage { filesystem: &filesystem, peer, inodes, changed: &changed, closed: &closed })
    }
}

/// Entries of subvolumes that are being filled without the kernel's doing. Nobody follows them meanwhile: what the
/// kernel would keep of what is behind them would be wrong at once.
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
