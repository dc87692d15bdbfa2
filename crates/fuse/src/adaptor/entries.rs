//! Answers that hand an inode to the kernel.

use super::attributes::{stat, valid_secs};
use super::{Outcome, Shared, VALID_SECS, errno};
use crate::protocol::flags::open;
use crate::protocol::wire::{AttrOut, AttrWire, EntryOut, OpenOut};
use butterfs_fs::{Attr, InodeId};
use rustix::io::Errno;
use zerocopy::IntoBytes;

impl Shared {
    /// The entry for an inode that the engine has counted a reference to.
    pub(super) fn entry(&self, attr: &Attr) -> EntryOut {
        EntryOut {
            nodeid: self.nodes.node(attr.id),
            generation: attr.generation,
            entry_valid: self.valid_secs,
            attr_valid: valid_secs(attr, self.valid_secs),
            attr: stat(attr, self.nodes.ino(attr.id)),
            ..EntryOut::default()
        }
    }

    /// Answers with an entry.
    pub(super) fn answer_entry(&self, found: butterfs_fs::Result<Attr>, payload: &mut Vec<u8>) -> Outcome {
        let attr = found.map_err(errno)?;
        payload.extend_from_slice(self.entry(&attr).as_bytes());
        Ok(())
    }

    /// Looks a name up. Into a subvolume that is being filled nobody gets.
    pub(super) fn look_up(&self, directory: InodeId, name: &[u8], payload: &mut Vec<u8>) -> Outcome {
        let found = self.filesystem().lookup(directory, name);
        if let Ok(attr) = &found
            && self.closed_entries.bar(directory, name)
        {
            self.filesystem().forget(attr.id, 1);
            return Err(Errno::BUSY);
        }
        self.answer_lookup(found, payload)
    }

    /// Answers a lookup. That there is no such name is an answer too, which the kernel keeps: only it adds names, or it
    /// is told.
    pub(super) fn answer_lookup(&self, found: butterfs_fs::Result<Attr>, payload: &mut Vec<u8>) -> Outcome {
        match found {
            Err(error) if error.is(butterfs_fs::Errno::ENOENT) => {
                let nothing = EntryOut { entry_valid: self.valid_secs, ..EntryOut::default() };
                payload.extend_from_slice(nothing.as_bytes());
                Ok(())
            }
            found => self.answer_entry(found, payload),
        }
    }

    /// Answers with an entry and a handle of a file that a user has opened with these flags of open(2).
    pub(super) fn answer_open_entry(
        &self,
        made: butterfs_fs::Result<Attr>,
        (flags, user): (u32, u32),
        payload: &mut Vec<u8>,
    ) -> Outcome {
        let attr = made.map_err(errno)?;
        let entry = self.entry(&attr);
        self.writers.opened(entry.nodeid, flags, user);
        payload.extend_from_slice(entry.as_bytes());
        answer_open(payload);
        Ok(())
    }

    /// Answers with attributes.
    pub(super) fn answer_attributes(&self, found: butterfs_fs::Result<Attr>, payload: &mut Vec<u8>) -> Outcome {
        let attr = found.map_err(errno)?;
        let answer = AttrOut {
            attr_valid: valid_secs(&attr, self.valid_secs),
            attr: stat(&attr, self.nodes.ino(attr.id)),
            ..AttrOut::default()
        };
        payload.extend_from_slice(answer.as_bytes());
        Ok(())
    }
}

/// Answers with a file that is nothing: whoever opens it holds the mount writable. Its node is unknown to all other
/// requests.
pub(super) fn answer_hold(node: u64, payload: &mut Vec<u8>) {
    let attr = AttrWire { ino: node, mode: libc::S_IFREG, ..AttrWire::default() };
    payload
        .extend_from_slice(EntryOut { nodeid: node, attr_valid: VALID_SECS, attr, ..EntryOut::default() }.as_bytes());
    answer_open(payload);
}

/// Answers with an empty handle of a file. Closing it asks nothing: what was written is here already.
pub(super) fn answer_open(payload: &mut Vec<u8>) {
    let open_flags = open::KEEP_CACHE | open::NOFLUSH;
    payload.extend_from_slice(OpenOut { open_flags, ..OpenOut::default() }.as_bytes());
}
