//! The filesystem as a whole.

use super::Operation;
use butterfs_fs::Caller;

pub const OPERATIONS: &[Operation] = &[
    ("sync", |w| w.filesystem.sync()),
    ("commit_recorded", |w| w.filesystem.commit_recorded()),
    ("set_read_only", |w| {
        w.filesystem.set_read_only(true)?;
        w.filesystem.set_read_only(false)
    }),
    ("set_label", |w| w.filesystem.set_label(b"a label")),
    ("transaction", |w| {
        let root = w.filesystem.root();
        let make = |together: &butterfs_fs::Together<'_>| {
            let made = together.mkdir(&Caller::default(), root, b"together", 0o755)?;
            together.forget(made.id, 1);
            together.rmdir(root, b"together")
        };
        let fails = |together: &butterfs_fs::Together<'_>| make(together).and(Err::<(), _>(on_purpose()));
        let taken_back = w.filesystem.transaction(fails).err().filter(|error| error.errno() != on_purpose().errno());
        taken_back.map_or(Ok(()), Err).and_then(|()| w.filesystem.transaction(make))
    }),
    ("resync", |w| w.filesystem.resync().map(drop)),
    ("age_caches", |w| {
        w.filesystem.age_caches();
        Ok(())
    }),
    ("forget_clean_blocks", |w| {
        w.filesystem.forget_clean_blocks();
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

/// What a transaction fails with.
fn on_purpose() -> butterfs_fs::Error {
    butterfs_fs::Error::refused(butterfs_fs::Errno::EINTR, "on purpose")
}

/// Cannot fail.
fn quiet<T>(_answer: T) -> butterfs_fs::Result<()> {
    Ok(())
}
