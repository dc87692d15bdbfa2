//! Bringing stale devices up to date in the background: everything in chunks that lie on other devices too is compared
//! with what those hold, and overwritten where it differs. A crash in between begins anew.
//!
//! Tree blocks are confirmed by their headers and checksums, data by the checksum tree. What has no checksum is what a
//! whole device holds.

use super::Filesystem;
use crate::error::Result;
use crate::extent::rows;
use butterfs_ondisk::chunk::STRIPE_LEN;
use butterfs_ondisk::{DeviceId, Logical};
use butterfs_volume::ChunkMap;
use std::sync::Arc;

/// Bytes that are compared in one go, while writes wait.
const STEP: u64 = 256 << 10;
/// The number of times that a device is tried in one mount.
const TRIES: u32 = 3;

/// The progress.
#[derive(Default)]
pub(super) struct Resync {
    device: Option<Progress>,
    /// Devices that were tried, and how often.
    tried: Vec<(DeviceId, u32)>,
}

struct Progress {
    id: DeviceId,
    /// Writes that the device had missed when it began.
    missed: u64,
    map: Arc<ChunkMap>,
    at: Logical,
    written: u64,
    unreadable: u64,
}

impl Filesystem {
    /// Brings all stale devices up to date. Says whether none is left.
    #[doc(hidden)]
    pub fn resync(&self) -> Result<bool> {
        let _operation = self.begin();
        let mut resync = Resync::default();
        while self.resync_step(&mut resync)? {}
        Ok(self.0.engine.volume().stale_devices().is_empty())
    }

    /// Compares the next bytes. False when there is nothing more to do.
    pub(super) fn resync_step(&self, resync: &mut Resync) -> Result<bool> {
        let (core, volume) = (&self.0.engine, self.0.engine.volume());
        if self.is_stopping() || self.is_read_only() || core.aborted().is_some() {
            return Ok(false);
        }
        let Some(progress) = &mut resync.device else { return Ok(self.begin_resync(resync)) };
        if !volume.is_stale(progress.id) {
            resync.device = None;
            return Ok(true);
        }
        let next = progress.map.iter().find(|chunk| chunk.end() > progress.at);
        let Some(chunk) = next else {
            let progress = resync.device.take().expect("it is the one that ends");
            return self.end_resync(&progress).map(|()| true);
        };
        let at = progress.at.max(chunk.start);
        if !volume.can_be_resynced(progress.id, at) {
            progress.at = chunk.end();
            return Ok(true);
        }
        // Rows with parity are compared whole.
        let step = match chunk.parity_columns() * STRIPE_LEN {
            0 => STEP,
            row => (STEP / row).max(1) * row,
        };
        let len = step.min(chunk.end().0 - at.0);
        progress.at = at.plus(len);
        if chunk.parity_columns() > 0
            && !core.space.is_loaded(chunk.start)
            && let Some(group) = core.space.group_of(chunk.start)
        {
            // What nobody uses must fit the rest of its row.
            core.load_group_ahead(&group)?;
        }
        let done = rows::Confirmer::of(core, at, len).and_then(|confirmer| {
            let confirm = |at: Logical, bytes: &[u8]| match chunk.parity_columns() {
                0 => confirmer.confirm(at, bytes),
                _ => confirmer.confirm_used(core, at, bytes),
            };
            Ok(volume.resync(progress.id, at, len as usize, confirmer.unit, &confirm)?)
        });
        match done {
            Ok(done) => {
                (progress.written, progress.unreadable) =
                    (progress.written + done.written, progress.unreadable + done.unreadable)
            }
            Err(error) => {
                volume.tell(format!("devid {} cannot be brought up to date at logical {at}: {error}", progress.id));
                progress.unreadable += len;
            }
        }
        Ok(true)
    }

    fn begin_resync(&self, resync: &mut Resync) -> bool {
        let volume = self.0.engine.volume();
        for id in volume.stale_devices() {
            let tries = match resync.tried.iter_mut().find(|(tried, _)| *tried == id) {
                Some((_, tries)) => tries,
                None => {
                    resync.tried.push((id, 0));
                    &mut resync.tried.last_mut().expect("just added").1
                }
            };
            if *tries < TRIES {
                *tries += 1;
                let (missed, map) = (volume.missed_writes(id), volume.chunk_map());
                resync.device = Some(Progress { id, missed, map, at: Logical(0), written: 0, unreadable: 0 });
                return true;
            }
        }
        false
    }

    fn end_resync(&self, progress: &Progress) -> Result<()> {
        let volume = self.0.engine.volume();
        volume.flush()?;
        let Progress { id, missed, written, unreadable, .. } = *progress;
        if unreadable > 0 {
            let what = format!("{unreadable} bytes without checksums could not be read from the other devices");
            volume.tell(format!("devid {id} is not up to date: {what}"));
            return Ok(());
        }
        // It takes a superblock while the trees still say that it is stale: a power cut before the one that takes that
        // back leaves it no more than a commit behind.
        self.0.engine.commit_anyway()?;
        if volume.recover(id, missed) {
            volume.tell(format!("devid {id} has been brought up to date: {written} bytes differed"));
            self.0.engine.commit()?;
        }
        Ok(())
    }
}
