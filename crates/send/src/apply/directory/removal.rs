//! Deleting what an interrupted receive has left: nothing is followed, whatever permissions and flags a stream has
//! given.

use super::super::{Failure, Outcome};
use super::descent::Descent;
use super::object::Object;
use super::tree::PathAt;
use super::{flags, system};
use rustix::fs::{AtFlags, FileType, OFlags, unlinkat};
use rustix::io::Errno as Number;
use std::os::fd::OwnedFd;

enum Task {
    /// Delete what is in a directory that was not empty; again, if something was left.
    Enter(Vec<u8>, bool),
    /// Delete the directory that was entered.
    Leave(bool),
}

/// Deletes everything in a directory; `last`, by which it is known for what it is, when nothing else is there any more.
pub(super) fn remove_content(directory: OwnedFd, last: &[u8]) -> Outcome {
    let mut descent = Descent::new(directory);
    let mut todo = Vec::new();
    remove_entries(&descent, last, &mut todo)?;
    while let Some(task) = todo.pop() {
        match task {
            Task::Enter(name, again) => {
                descent.down(&name)?;
                let _ = flags::unfix(descent.at());
                todo.push(Task::Leave(again));
                remove_entries(&descent, last, &mut todo)?;
            }
            Task::Leave(again) => {
                let name = descent.up()?;
                if !remove_entry(&descent.resolve(&name))? {
                    if again {
                        return Err(system(Number::NOTEMPTY));
                    }
                    todo.push(Task::Enter(name, true));
                }
            }
        }
    }
    match unlinkat(&**descent.at(), last, AtFlags::empty()) {
        Ok(()) | Err(Number::NOENT) => Ok(()),
        Err(error) => Err(system(error)),
    }
}

/// Deletes the entries of one directory, and notes those that are directories with something in them.
fn remove_entries(descent: &Descent, last: &[u8], todo: &mut Vec<Task>) -> Outcome {
    descent.each_name(&mut |name| {
        if descent.is_at_root() && name == last {
            return Ok(());
        }
        if !remove_entry(&descent.resolve(name))? {
            todo.push(Task::Enter(name.to_vec(), false));
        }
        Ok(())
    })
}

/// Deletes an entry; false where it is a directory that is not empty.
fn remove_entry(path_at: &PathAt<'_>) -> Result<bool, Failure> {
    let kind = path_at.kind()?;
    let flags = if kind == FileType::Directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    let remove = || match path_at.within(|| unlinkat(&*path_at.directory, path_at.name, flags)) {
        Ok(()) => Ok(true),
        Err(Number::NOTEMPTY | Number::EXIST) => Ok(false),
        Err(error) => Err(error),
    };
    match remove() {
        Err(Number::PERM) if matches!(kind, FileType::RegularFile | FileType::Directory) => {
            flags::unfix(&Object::at(path_at)?.open(OFlags::RDONLY)?)?;
            remove().map_err(system)
        }
        other => other.map_err(system),
    }
}
