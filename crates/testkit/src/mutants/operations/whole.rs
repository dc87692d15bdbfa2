//! The filesystem as a whole.

use super::Operation;

pub const OPERATIONS: &[Operation] = &[
    ("sync", |w| w.filesystem.sync()),
    ("commit_recorded", |w| w.filesystem.commit_recorded()),
    ("set_read_only", |w| {
        w.filesystem.set_read_only(true)?;
        w.filesystem.set_read_only(false)
    }),
    ("set_label", |w| w.filesystem.set_label(b"a label")),
    ("resync", |w| w.filesystem.resync().map(drop)),
    ("age_caches", |w| {
        w.filesystem.age_caches();
        Ok(())
    }),
    ("root", |w| w.filesystem.getattr(w.filesystem.root()).map(drop)),
    ("notes", |w| quiet(w.filesystem.notes())),
    ("options", |w| quiet(w.filesystem.options())),
    ("chunks", |w| quiet(w.filesystem.chunks())),
    ("superblock", |w| quiet(w.filesystem.superblock())),
    ("is_read_only", |w| quiet(w.filesystem.is_read_only())),
    ("log_stats", |w| quiet(w.filesystem.log_stats())),
    ("memory_held", |w| quiet(w.filesystem.memory_held())),
    ("take_messages", |w| quiet(w.filesystem.take_messages())),
    ("booking_cost", |w| quiet(w.filesystem.booking_cost())),
    ("work", |w| quiet(w.filesystem.work())),
    ("take_longest_stop", |w| quiet(w.filesystem.take_longest_stop())),
    ("block_groups", |w| quiet(w.filesystem.block_groups())),
    ("device_stats", |w| quiet(w.filesystem.device_stats())),
    ("statfs", |w| quiet(w.filesystem.statfs())),
];

/// Cannot fail.
fn quiet<T>(_answer: T) -> butterfs_fs::Result<()> {
    Ok(())
}
