//! The job of one `butterfs send`: several subvolumes one after the other, each with its parent and clone sources.

use super::error::{Error, Result};
use super::output::{Progress, Sink, Watch};
use super::{Options, Section, streams};
use crate::wire::Version;
use butterfs_fs::subvolume::SubvolumeInfo;
use butterfs_fs::{Errno, Filesystem, SnapshotReader, TreeId};

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub struct Job {
    /// The subvolumes to send, in this order.
    pub subvolumes: Vec<TreeId>,
    /// The parent of all of them. Without it, and with clone sources, each one's is chosen among those.
    pub parent: Option<TreeId>,
    /// Snapshots that the receiver has.
    pub clone_sources: Vec<TreeId>,
    /// One header and one end for all subvolumes, instead of one for each.
    pub one_stream: bool,
    /// Version of the stream.
    pub version: Version,
    /// How content travels.
    pub options: Options,
}

/// Sends into `sink`. `begun` is told of each subvolume, by its number in the job.
pub fn run(
    filesystem: &Filesystem,
    job: &Job,
    sink: Sink<'_>,
    watch: Watch<'_>,
    begun: &mut dyn FnMut(usize),
) -> Result<Progress> {
    let mut sources: Vec<TreeId> = Vec::new();
    job.clone_sources.iter().chain(&job.parent).for_each(|id| add(&mut sources, *id));
    let chooses = job.parent.is_none() && !sources.is_empty();
    streams(job.version, sink, watch, |out| {
        for (number, &id) in job.subvolumes.iter().enumerate() {
            begun(number);
            let subvolume = open(filesystem, id, "subvolume")?;
            let parent =
                if chooses { Some(choose_parent(filesystem, subvolume.info(), &sources)?) } else { job.parent };
            let parent = parent.map(|id| open(filesystem, id, "parent subvolume")).transpose()?;
            let readers = sources.iter().map(|id| open(filesystem, *id, "cloned subvolume"));
            let readers: Vec<SnapshotReader> = readers.collect::<Result<_>>()?;
            if number == 0 || !job.one_stream {
                out.begin();
            }
            let clone_sources = readers.iter().filter(|reader| reader.info().id != id).collect();
            out.section(&Section { subvolume: &subvolume, parent: parent.as_ref(), clone_sources }, &job.options)?;
            if number + 1 == job.subvolumes.len() || !job.one_stream {
                out.end()?;
            }
            if chooses {
                add(&mut sources, id);
            }
        }
        Ok(())
    })
}

fn add(to: &mut Vec<TreeId>, id: TreeId) {
    if !to.contains(&id) {
        to.push(id);
    }
}

fn open(filesystem: &Filesystem, id: TreeId, what: &str) -> Result<SnapshotReader> {
    filesystem.read_snapshot(id).map_err(|error| {
        if error.is(Errno::EPERM) {
            let sentence = format!("{what} {id} is not read-only");
            return Error::Filesystem(butterfs_fs::Error::refused_at(Errno::EPERM, sentence));
        }
        Error::Filesystem(error)
    })
}

/// The parent that makes the smallest stream, as far as that can be told: what the subvolume is a snapshot of, or the
/// snapshot of the same subvolume that was made at about the same time.
pub fn choose_parent(filesystem: &Filesystem, of: &SubvolumeInfo, among: &[TreeId]) -> Result<TreeId> {
    let none = || {
        let sentence = format!("parent determination failed for {}", of.id);
        Error::Filesystem(butterfs_fs::Error::refused_at(Errno::EINVAL, sentence))
    };
    let infos = among.iter().filter(|id| **id != of.id).map(|id| filesystem.subvolume_info(*id));
    let infos: Vec<SubvolumeInfo> = infos.collect::<Result<_, _>>()?;
    if of.parent_uuid == [0; 16] {
        return Err(none());
    }
    if let Some(origin) = infos.iter().find(|info| info.uuid == of.parent_uuid) {
        return Ok(origin.id);
    }
    let kind = butterfs_fs::subvolume::uuid_tree::UuidKind::Subvolume;
    let origin = filesystem.subvolumes_by_uuid(kind, &of.parent_uuid)?;
    let origin = filesystem.subvolume_info(*origin.first().ok_or_else(none)?)?;
    let siblings = infos.iter().filter(|info| info.parent_uuid == of.parent_uuid);
    let nearest = siblings.min_by_key(|info| info.transids[0].abs_diff(origin.transids[0]));
    nearest.map(|info| info.id).ok_or_else(none)
}
