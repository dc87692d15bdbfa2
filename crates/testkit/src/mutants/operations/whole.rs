//! The filesystem as a whole.

use super::Operation;
use butterfs_fs::filesystem::{NewSize, Storage};
use butterfs_fs::{BalanceArgs, BalanceItem, Caller};
use butterfs_ondisk::balance::{args_flags, balance_flags};

pub const OPERATIONS: &[Operation] = &[
    ("sync", |w| w.filesystem.sync()),
    ("commit_recorded", |w| w.filesystem.commit_recorded()),
    ("set_read_only", |w| {
        w.filesystem.set_read_only(true)?;
        w.filesystem.set_read_only(false)
    }),
    ("scrub", |w| {
        let scrub = w.filesystem.scrub(Default::default(), Vec::new())?;
        w.filesystem.scrub_progress();
        w.filesystem.last_scrub();
        drop(scrub.findings(0));
        Ok(())
    }),
    ("start_scrub", |w| {
        w.filesystem.start_scrub(Default::default(), Vec::new())?;
        let _ = w.filesystem.cancel_scrub();
        Ok(())
    }),
    ("cancel_scrub", |w| w.filesystem.cancel_scrub().or(Ok(()))),
    ("last_scrub", |w| quiet(w.filesystem.last_scrub().map(|scrub| scrub.is_over()))),
    ("scrub_progress", |w| quiet(w.filesystem.scrub_progress())),
    ("scrub_limits", |w| quiet(w.filesystem.scrub_limits())),
    ("scrub_totals", |w| quiet(w.filesystem.scrub_totals())),
    ("limit_scrub", |w| w.filesystem.limit_scrub(butterfs_fs::DeviceId(1), 0)),
    ("scrub_selection", |w| w.filesystem.scrub_selection(&[w.filesystem.root()]).map(drop)),
    ("reset_device_stats", |w| w.filesystem.reset_device_stats(None).map(drop)),
    ("device_conditions", |w| quiet(w.filesystem.device_conditions())),
    ("missing_devices", |w| quiet(w.filesystem.missing_devices())),
    ("stopped", |w| quiet(w.filesystem.stopped())),
    ("space_usage", |w| quiet(w.filesystem.space_usage())),
    ("chunk_usage", |w| quiet(w.filesystem.chunk_usage())),
    ("device_usage", |w| quiet(w.filesystem.device_usage())),
    ("global_reserve", |w| quiet(w.filesystem.global_reserve())),
    ("replace_status", |w| quiet(w.filesystem.replace_status())),
    ("balance_status", |w| quiet(w.filesystem.balance_status())),
    ("exclusive_operation", |w| quiet(w.filesystem.exclusive_operation())),
    ("discard_mode", |w| quiet(w.filesystem.discard_mode())),
    ("freed_waiting", |w| quiet(w.filesystem.freed_waiting())),
    ("find_subvolume", |w| w.filesystem.find_subvolume(&butterfs_fs::Subvolume::Default).map(drop)),
    // These are many commits, so not each time.
    ("balance_start", |w| {
        if !w.rng.chance(20) {
            return Ok(());
        }
        let kind = *w.rng.pick(&[balance_flags::DATA, balance_flags::METADATA, balance_flags::SYSTEM]);
        let content = if w.rng.chance(50) { args_flags::USAGE } else { 0 };
        let flags = (args_flags::LIMIT | content).into();
        let one = BalanceArgs { flags, limit_min: 1.into(), usage_min: 100.into(), ..BalanceArgs::default() };
        let flags = (kind | balance_flags::FORCE).into();
        let control = BalanceItem { flags, data: one, metadata: one, system: one, ..BalanceItem::default() };
        w.filesystem.balance_start(control).map(drop)
    }),
    ("resize_device", |w| {
        if !w.rng.chance(20) {
            return Ok(());
        }
        let less = NewSize::Less(w.rng.below(64) << 20);
        let id = butterfs_fs::DeviceId(1);
        w.filesystem.resize_device(id, less, Storage::Stays)?;
        w.filesystem.resize_device(id, NewSize::Max, Storage::Stays).map(drop)
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
    ("has_room_to_start", |w| quiet(w.filesystem.has_room_to_start())),
    ("take_longest_stop", |w| quiet(w.filesystem.take_longest_stop())),
    ("block_groups", |w| quiet(w.filesystem.block_groups())),
    ("device_stats", |w| quiet(w.filesystem.device_stats())),
    ("statfs", |w| quiet(w.filesystem.statfs())),
];

/// The error of a transaction that fails on purpose.
fn on_purpose() -> butterfs_fs::Error {
    butterfs_fs::Error::refused(butterfs_fs::Errno::EINTR, "on purpose")
}

/// Cannot fail.
fn quiet<T>(_answer: T) -> butterfs_fs::Result<()> {
    Ok(())
}
