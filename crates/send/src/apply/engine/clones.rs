//! Finding subvolumes by the UUID that a stream knows them by, and sharing extents with them.

use super::super::{Failure, Outcome, words};
use super::entries::Entries;
use super::{Engine, TreeId};
use crate::wire::{Command, Uuid};
use butterfs_fs::inode::attr::mode;
use butterfs_fs::subvolume::uuid_tree::UuidKind;
use butterfs_fs::{Errno, InodeId};

impl Engine<'_> {
    /// The subvolume that a section is a snapshot of.
    pub(super) fn find_parent(&mut self, uuid: &Uuid, transid: u64) -> Result<TreeId, Failure> {
        self.find_subvolume(uuid, transid, "the parent subvolume")
    }

    /// The read-only subvolume that was received as `uuid` or has it for its own, the one with the sender's transaction
    /// rather than another. One that was made writable may hold anything.
    fn find_subvolume(&mut self, uuid: &Uuid, transid: u64, what: &str) -> Result<TreeId, Failure> {
        if let Some(id) = self.known.get(uuid) {
            return Ok(*id);
        }
        let (mut best, mut writable): (Option<(bool, TreeId)>, bool) = (None, false);
        for (kind, which) in [(UuidKind::Received, 2), (UuidKind::Subvolume, 0)] {
            for id in self.filesystem.subvolumes_by_uuid(kind, uuid)? {
                let info = match self.filesystem.subvolume_info(id) {
                    Err(error) if error.is(Errno::ENOENT) => continue,
                    info => info?,
                };
                if !info.is_readonly() {
                    writable = true;
                    continue;
                }
                let exact = info.transids[which] == transid;
                if best.is_none_or(|(best, _)| exact && !best) {
                    best = Some((exact, id));
                }
            }
        }
        match best {
            Some((_, id)) => {
                self.known.insert(*uuid, id);
                Ok(id)
            }
            None if writable => {
                let reason = format!("{what} {} was made writable, and may have changed", words::uuid_text(uuid));
                Err(Failure::new(Errno::EROFS, reason))
            }
            None => Err(Failure::new(Errno::ENOENT, format!("cannot find {what} {}", words::uuid_text(uuid)))),
        }
    }

    /// Carries out a CLONE.
    pub(super) fn share(&mut self, command: &Command<'_>) -> Outcome {
        let Command::Clone { offset, len, path, source_uuid, source_transid, source, source_offset } = *command else {
            return Err(Failure::new(Errno::EINVAL, "not a clone"));
        };
        let target = self.file(path)?;
        let own = self.open.as_ref().filter(|open| open.uuid == source_uuid).map(|open| open.root);
        let from = match own {
            Some(_) => self.file(source)?,
            None => {
                let id = self.find_subvolume(&source_uuid, source_transid, "the clone source's subvolume")?;
                // Others may delete the subvolume meanwhile: what is known of it is not kept.
                let found = Entries::default().find(&self.filesystem, InodeId::root_of(id), source)?;
                if found.kind != mode::S_IFREG {
                    return Err(Failure::new(Errno::EINVAL, "the source is not a regular file"));
                }
                found.id
            }
        };
        let size = self.filesystem.getattr(from)?.size;
        let len = if len == 0 { size.saturating_sub(source_offset) } else { len };
        if source_offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(Failure::new(Errno::EINVAL, format!("the range ends behind the source's {size} bytes")));
        }
        let copied = self.changing(&[target], |filesystem| {
            filesystem.copy_range_privileged((from, source_offset), (target, offset), len)
        })?;
        if copied < len {
            return Err(Failure::new(Errno::EIO, format!("only {copied} of {len} bytes could be cloned")));
        }
        Ok(())
    }
}
