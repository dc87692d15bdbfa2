//! The directory in which a tree grows.
//!
//! The folder that gets the tree may belong to somebody else, who can exchange every name in it at any moment. So:
//!
//! 1. A staging directory belongs to us alone (0700), and is empty when it is taken into use. It is used by its
//!    descriptor from then on: nobody else gets to what is inside, wherever its name leads.
//! 2. It is locked while a receive is at work. One that is not locked was left by an interrupted receive.
//! 3. What others are to see is made inside, and moved out when it is complete.

use super::super::{Failure, Outcome};
use super::marker::{self, Marker};
use super::object::{Identity, Object, identity};
use super::removal::remove_content;
use super::{DIRECTORY, Directory, Moment, is_empty, of_io, system};
use butterfs_fs::Errno;
use rustix::fs::{
    AtFlags, FlockOperation, Mode, OFlags, RenameFlags, flock, fstat, mkdirat, openat, renameat, renameat_with,
    unlinkat,
};
use rustix::io::Errno as Number;
use std::os::fd::{AsFd, OwnedFd};

/// The name under which a marker is written before it is moved beside the tree.
const NEW_MARKER: &str = "received";

/// The owner of what this process makes in a folder: its user, except where the filesystem decides.
#[derive(Default)]
pub(super) struct Owner {
    measured: Option<u32>,
}

impl Owner {
    /// Whether something with this owner may have been made by us.
    pub fn is_us(&mut self, folder: &OwnedFd, uid: u32) -> Result<bool, Failure> {
        if uid == rustix::process::geteuid().as_raw() {
            return Ok(true);
        }
        let measured = match self.measured {
            Some(known) => known,
            None => measure(folder)?,
        };
        self.measured = Some(measured);
        Ok(uid == measured)
    }
}

/// Makes a file, which is opened in the same step, and looks who owns it.
fn measure(folder: &OwnedFd) -> Result<u32, Failure> {
    let name = format!(".butterfs-owner-{}", std::process::id());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(folder, &name, flags, Mode::empty()).map_err(system)?;
    let owner = fstat(&file).map_err(system).map(|stat| stat.st_uid);
    let _ = unlinkat(folder, &name, AtFlags::empty());
    owner
}

/// Sees to it that no other process works in a directory. Where the filesystem has no locks, nobody is kept out.
fn lock(directory: &OwnedFd, name: &[u8]) -> Outcome {
    match flock(directory, FlockOperation::NonBlockingLockExclusive) {
        Err(Number::AGAIN) => {
            let name = String::from_utf8_lossy(name);
            let reason = format!("another receive is at work on {name}: wait for it, or end it");
            Err(Failure::new(Errno::EBUSY, reason))
        }
        _ => Ok(()),
    }
}

fn leads_to(folder: &OwnedFd, name: &[u8], inode: Identity) -> bool {
    Object::find(folder, name).is_ok_and(|found| found.identity() == inode)
}

/// See the [module](self).
pub(super) struct Staging {
    pub directory: OwnedFd,
    name: Vec<u8>,
}

impl Directory {
    /// Makes a staging directory.
    pub(super) fn make_staging(&mut self, name: &[u8]) -> Result<Staging, Failure> {
        mkdirat(&self.destination, name, Mode::RWXU).map_err(system)?;
        self.reached(Moment::StagingMade);
        let directory = openat(&self.destination, name, DIRECTORY, Mode::empty()).map_err(system)?;
        let stat = fstat(&directory).map_err(system)?;
        let here = fstat(&self.destination).map_err(system)?.st_dev;
        let is_ours = stat.st_dev == here && self.owner.is_us(&self.destination, stat.st_uid)? && is_empty(&directory)?;
        if !is_ours && !self.trusts_names {
            let name = String::from_utf8_lossy(name);
            let reason = format!("{name} was just made, and somebody has put something else in its place");
            return Err(Failure::new(Errno::EPERM, reason));
        }
        lock(&directory, name)?;
        if !leads_to(&self.destination, name, identity(&stat)) {
            let name = String::from_utf8_lossy(name);
            return Err(Failure::new(Errno::EBUSY, format!("another receive has just taken {name} away")));
        }
        super::disinherit(&directory)?;
        Ok(Staging { directory, name: name.to_vec() })
    }

    /// Deletes the leftover of an interrupted receive that has the partial name, and refuses anything else there.
    pub(super) fn clear_away(&mut self, partial: &[u8]) -> Outcome {
        let name = String::from_utf8_lossy(partial);
        let foreign = |why: &str| Err(Failure::new(Errno::EEXIST, format!("{name} exists, and {why}")));
        let left = match openat(&self.destination, partial, DIRECTORY, Mode::empty()) {
            Err(Number::NOENT) => return Ok(()),
            Err(_) => return foreign("no interrupted receive has left it"),
            Ok(left) => left,
        };
        let stat = fstat(&left).map_err(system)?;
        if !self.owner.is_us(&self.destination, stat.st_uid)? {
            return foreign(&format!("belongs to user {}, not to the one who receives", stat.st_uid));
        }
        if self.marker(&marker::name_beside(partial))?.is_some() {
            return foreign("is a tree that was received");
        }
        lock(&left, partial)?;
        if !is_left_over(&left)? {
            return foreign("no interrupted receive has left it");
        }
        remove_content(left, marker::INSIDE.as_bytes())?;
        unlinkat(&self.destination, partial, AtFlags::REMOVEDIR).map_err(system)?;
        self.notices.push(format!("deleted {name}, which an interrupted receive had left"));
        Ok(())
    }

    /// The marker of this name in the destination, if it is one that we have written.
    pub(super) fn marker(&mut self, name: &[u8]) -> Result<Option<Marker>, Failure> {
        let Some((marker, owner)) = Marker::read(self.destination.as_fd(), name) else { return Ok(None) };
        Ok(self.owner.is_us(&self.destination, owner)?.then_some(marker))
    }
}

/// Whether a receive has marked it, or has only just made it.
fn is_left_over(directory: &OwnedFd) -> Result<bool, Failure> {
    let inside = marker::INSIDE.as_bytes();
    if Marker::read(directory.as_fd(), inside).is_some() {
        return Ok(true);
    }
    // Interrupted before the marker was whole: nothing else is there, and nothing is lost.
    super::holds_only(directory, inside)
}

impl Staging {
    /// Moves the tree `from` out, under the name `to`, which is free, with its marker. When this returns, `to` has led
    /// to the tree at least for a moment.
    pub fn publish(
        &self,
        folder: &OwnedFd,
        (from, to): (&str, &[u8]),
        marker: &Marker,
        reached: &mut dyn FnMut(Moment),
    ) -> Outcome {
        let beside = marker::name_beside(to);
        marker.write(self.directory.as_fd(), NEW_MARKER.as_bytes()).map_err(of_io)?;
        let tree = Object::find(&self.directory, from.as_bytes()).map_err(system)?.identity();
        renameat(&self.directory, NEW_MARKER, folder, &beside[..]).map_err(system)?;
        reached(Moment::Complete);
        let moved = match renameat_with(&self.directory, from, folder, to, RenameFlags::NOREPLACE) {
            Err(Number::INVAL | Number::NOSYS) => renameat(&self.directory, from, folder, to),
            other => other,
        };
        reached(Moment::Named);
        if moved.is_ok() && leads_to(folder, to, tree) {
            return Ok(());
        }
        // The marker must not speak of what somebody else has put there.
        let _ = unlinkat(folder, &beside[..], AtFlags::empty());
        moved.map_err(system)?;
        let name = String::from_utf8_lossy(to);
        Err(Failure::new(
            Errno::EBUSY,
            format!("somebody has taken {name} away in the moment in which it got its name"),
        ))
    }

    /// Removes the staging directory. One that somebody has moved away stays where it is, empty.
    pub fn remove(self, folder: &OwnedFd) -> Outcome {
        unlinkat(&self.directory, marker::INSIDE, AtFlags::empty()).map_err(system)?;
        let inode = identity(&fstat(&self.directory).map_err(system)?);
        if !leads_to(folder, &self.name, inode) {
            return Ok(());
        }
        unlinkat(folder, &self.name[..], AtFlags::REMOVEDIR).map_err(system)
    }
}
