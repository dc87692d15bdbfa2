//! Beginning and completing a subvolume.

use super::super::{Failure, Outcome, Section, partial_name};
use super::{Engine, FIXED, MARK, Open, ROOT, SETTABLE};
use crate::wire::Timespec;
use butterfs_fs::env::Time;
use butterfs_fs::{Claim, Errno, InodeId, SetAttr, SetTime, TreeId};
use rustc_hash::FxHashMap;
use std::time::Duration;

/// How long to wait for another receive of the same name: one whose connection is lost notices within this time.
const PATIENCE: Duration = Duration::from_secs(3);

fn timespec(time: Time) -> Timespec {
    Timespec { sec: time.sec, nsec: time.nsec }
}

impl Engine<'_> {
    pub(super) fn begin_section(&mut self, section: &Section<'_>) -> Outcome {
        self.close();
        let partial = partial_name(section.name);
        let claim = self.claim(&partial)?;
        if self.exists(section.name)?.is_some() {
            return Err(Failure::new(Errno::EEXIST, "File exists"));
        }
        let parent = section.parent.map(|(uuid, transid)| self.find_parent(&uuid, transid)).transpose()?;
        self.clear_away(&partial, section, parent)?;
        (self.closed)(self.destination, &partial, true);
        let made = match parent {
            Some(parent) => self.filesystem.snapshot(parent, self.destination, &partial, false),
            None => self.filesystem.create_subvolume(&ROOT, self.destination, &partial),
        };
        let id = made.inspect_err(|_| (self.closed)(self.destination, &partial, false))?;
        let root = InodeId::root_of(id);
        let before = self.filesystem.getattr(root);
        let before = before.inspect_err(|_| (self.closed)(self.destination, &partial, false))?;
        (self.changed)(self.destination, &partial);
        self.open = Some(Open {
            name: section.name.to_vec(),
            uuid: section.uuid,
            transid: section.transid,
            root,
            root_times: parent.map(|_| (timespec(before.atime), timespec(before.mtime))),
            flags: FxHashMap::default(),
            _claim: claim,
        });
        self.changing(&[root], |filesystem| filesystem.set_xattr(&ROOT, root, MARK, &section.uuid, 0))
    }

    fn exists(&self, name: &[u8]) -> Result<Option<InodeId>, Failure> {
        match self.filesystem.lookup(self.destination, name) {
            Ok(attr) => {
                self.filesystem.forget(attr.id, 1);
                Ok(Some(attr.id))
            }
            Err(error) if error.is(Errno::ENOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The partial name, for as long as the section is being received.
    fn claim(&self, partial: &[u8]) -> Result<Claim, Failure> {
        let busy = || {
            let name = String::from_utf8_lossy(partial);
            Failure::new(Errno::EBUSY, format!("another receive is at work on {name}: wait for it, or end it"))
        };
        self.filesystem.claim(self.destination, partial, PATIENCE).ok_or_else(busy)
    }

    /// Deletes the leftover of an interrupted receive that has the partial name, and refuses anything else there. The
    /// caller holds the claim on the name, so no running receive works on it.
    fn clear_away(&mut self, partial: &[u8], section: &Section<'_>, parent: Option<TreeId>) -> Outcome {
        let Some(left) = self.exists(partial)? else { return Ok(()) };
        let name = String::from_utf8_lossy(partial);
        if !self.is_left_over(left, section, parent)? {
            return Err(Failure::new(Errno::EEXIST, format!("{name} exists, and no interrupted receive has left it")));
        }
        self.filesystem.delete_expected_subvolume(self.destination, partial, left.tree).map_err(|error| {
            let Failure { errno, reason } = Failure::from(error);
            Failure { errno, reason: format!("{name}, left by an interrupted receive, cannot be deleted: {reason}") }
        })?;
        (self.changed)(self.destination, partial);
        self.notices.push(format!("deleted {name}, which an interrupted receive had left"));
        Ok(())
    }

    /// Whether a receive has marked it; or has completed it, and was interrupted before it got its name; or has only
    /// just made it.
    fn is_left_over(&self, id: InodeId, section: &Section<'_>, parent: Option<TreeId>) -> Result<bool, Failure> {
        if id != InodeId::root_of(id.tree) || id.tree == self.destination.tree {
            return Ok(false);
        }
        let marked = self.filesystem.get_xattr(id, MARK).is_ok();
        let complete = self.filesystem.subvolume_info(id.tree)?.received_uuid == section.uuid;
        Ok(marked || complete || self.holds_nothing(id, parent)?)
    }

    /// Whether it is empty, or a copy of the section's parent that nobody has changed. A receive that was interrupted
    /// before it could mark what it had made leaves this, and with it nothing is lost.
    fn holds_nothing(&self, id: InodeId, parent: Option<TreeId>) -> Result<bool, Failure> {
        let info = self.filesystem.subvolume_info(id.tree)?;
        let [changed, made, ..] = info.transids;
        if let Some(parent) = parent
            && info.parent_uuid == self.filesystem.subvolume_info(parent)?.uuid
        {
            return Ok(changed == made && !info.is_readonly());
        }
        let mut is_empty = true;
        self.filesystem.readdir(id, 2, &mut |_| {
            is_empty = false;
            false
        })?;
        Ok(is_empty)
    }

    /// Forgets the section.
    pub(super) fn close(&mut self) {
        if let Some(open) = self.open.take() {
            (self.closed)(self.destination, &partial_name(&open.name), false);
        }
        self.entries.clear();
        self.gathered = Default::default();
    }

    pub(super) fn finish_section(&mut self) -> Outcome {
        self.settle()?;
        let Some(open) = &mut self.open else { return Ok(()) };
        let (root, uuid, transid, name) = (open.root, open.uuid, open.transid, open.name.clone());
        let (times, flags) = (open.root_times, std::mem::take(&mut open.flags));
        if let Some((atime, mtime)) = times {
            let time = |time: Timespec| Some(SetTime::At(Time { sec: time.sec, nsec: time.nsec }));
            let set = SetAttr { atime: time(atime), mtime: time(mtime), ..SetAttr::default() };
            self.changing(&[root], |filesystem| filesystem.setattr(&ROOT, root, &set))?;
        }
        self.set_all_flags(flags)?;
        // The root may have been among the inodes that lost flags for the sake of its times.
        if let Some(open) = &mut self.open {
            let late = std::mem::take(&mut open.flags);
            self.set_all_flags(late)?;
        }
        self.filesystem.finish_received(root.tree, &uuid, transid, MARK)?;
        let partial = partial_name(&name);
        self.filesystem.rename_expected(self.destination, &partial, &name, root)?;
        (self.changed)(self.destination, &partial);
        (self.changed)(self.destination, &name);
        self.known.insert(uuid, root.tree);
        self.close();
        Ok(())
    }

    /// Gives inodes their flags; those that forbid changes come last. Inodes that are gone have none.
    fn set_all_flags(&self, flags: FxHashMap<InodeId, u64>) -> Outcome {
        for changed in [SETTABLE & !FIXED, FIXED] {
            for (&id, &flags) in &flags {
                match self.filesystem.set_flags(id, flags, changed) {
                    Err(error) if error.is(Errno::ENOENT) || error.is(Errno::ESTALE) => {}
                    other => other?,
                }
            }
        }
        Ok(())
    }
}
