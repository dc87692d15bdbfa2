//! Copying snapshots from one repository to another: the segments that the other one lacks, then the manifest.

use crate::archive::Archive;
use crate::digest::Digest;
use crate::manifest::{Listing, Manifest, damaged};

use crate::repository::Repository;
use crate::segment::{self, MAX_SEGMENT, Sent};
use crate::session::Session;
use crate::verify::Needed;
use butterfs_store::{Error, Kind, Result, each};
use std::sync::Mutex;

/// Segments that are on their way at once.
const COPIERS: usize = 4;

/// Copies snapshots. Both repositories must have the same key, or none.
pub fn copy(
    from: &Repository,
    to: &Repository,
    manifests: &[Manifest],
    progress: &mut (dyn FnMut(u64, u64) + Send),
) -> Result<Sent> {
    if from.digest(b"") != to.digest(b"") {
        let rule = format!(
            "{} and {} are not encrypted with the same key; put the snapshots there instead",
            from.store().shown(""),
            to.store().shown("")
        );
        return Err(Error::new(Kind::Unsupported, rule));
    }
    let mut session = Session::put(to)?;
    let archive = Archive::sequential(from);
    let mut needed = Needed::default();
    for manifest in manifests {
        needed.add(&archive, manifest, &mut |_, _| Ok(()))?;
    }
    let existing = segment::all(to.store())?;
    let missing: Vec<Digest> =
        needed.segments().iter().map(|(name, ..)| *name).filter(|name| !existing.contains(name)).collect();
    let found = (needed.segments().len() - missing.len()) as u64;
    let state = Mutex::new((Sent { found, ..Sent::default() }, &mut session, progress));
    each(&missing, COPIERS, |name| {
        let key = segment::key(name);
        let object = from.store().get(&key, MAX_SEGMENT)?;
        if Digest::of(&object.bytes) != *name {
            return Err(damaged(from.store(), &key, "its digest is not the one that it is named by"));
        }
        let len = object.bytes.len() as u64;
        to.store().create(&key, object.bytes)?;
        let mut state = state.lock().expect("no thread panics with the lock");
        state.0.segments += 1;
        state.0.bytes += len;
        let (done, total) = (state.0.segments, missing.len() as u64);
        (state.2)(done, total);
        state.1.refresh()
    })?;
    let sent = state.into_inner().expect("no thread panics with the lock").0;
    let there = Listing::new(to)?;
    for manifest in manifests {
        if there.by_id(&manifest.id())?.is_none() {
            session.publish(manifest)?;
        }
    }
    session.end()?;
    Ok(sent)
}
