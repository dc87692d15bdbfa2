//! The rules for opening a filesystem: features, logs, unfinished work of others, quotas.

use crate::commit::Engine;
use crate::error::{Errno, Error, Result};
use crate::options::{Canary, Options};
use crate::transaction::{Core, Handle, Reserve};
use butterfs_ondisk::items::QgroupStatus;
use butterfs_ondisk::superblock::Superblock;
use butterfs_ondisk::{Admission, Key, KeyType, TreeId, admission};

/// The treatment of the tree log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Log {
    /// There is none, or it is not to be looked at.
    Leave,
    /// Replay it, also for a read-only mount: what was fsynced is to be seen.
    Replay,
}

/// Checks what the superblock says against what was asked for.
pub(super) fn admit(superblock: &Superblock, options: &Options, notes: &mut Vec<String>) -> Result<Log> {
    let replays = superblock.log_root.get() != 0 && !options.no_log_replay;
    match admission(superblock) {
        Admission::ReadWrite => {}
        Admission::ReadOnly(reason) if replays => {
            let what = format!("{LOG}, which would have to be replayed, but {reason}; {WITHOUT_LOG}");
            return Err(refused(Errno::EROFS, what));
        }
        Admission::ReadOnly(reason) if options.read_only => notes.push(reason),
        Admission::ReadOnly(reason) => {
            return Err(refused(Errno::EROFS, format!("{reason}; only reading is possible (mount with -o ro)")));
        }
        Admission::Refused(reason) => return Err(refused(Errno::EINVAL, reason)),
    }
    if replays || !options.read_only {
        refuse_last_generations(superblock, options)?;
    }
    if options.no_log_replay && !options.read_only {
        return Err(refused(Errno::EINVAL, "nologreplay is only possible with ro".to_owned()));
    }
    if superblock.log_root.get() != 0 && options.no_log_replay {
        notes.push("the log tree is not replayed: what was fsynced last before a crash is not shown".to_owned());
    }
    Ok(if replays { Log::Replay } else { Log::Leave })
}

/// Transactions have numbers that only grow. What has no number left, or a number that no transaction has yet, would be
/// lost: nothing older than the superblock is ever read.
fn refuse_last_generations(superblock: &Superblock, options: &Options) -> Result<()> {
    /// A transaction a microsecond for half a million years.
    const LAST: u64 = 1 << 63;
    let generation = superblock.generation.get();
    if generation >= LAST && options.policies.canary != Some(Canary::LastGenerationsAccepted) {
        let what = format!("the generation {generation} leaves no numbers for new transactions");
        return Err(refused(Errno::EROFS, format!("{what}; only reading is possible (mount with -o ro)")));
    }
    if superblock.chunk_root_generation.get() > generation {
        let chunk = superblock.chunk_root_generation.get();
        let what = format!("the chunk tree is of generation {chunk}, the filesystem of {generation}");
        return Err(refused(Errno::EIO, what));
    }
    Ok(())
}

const LOG: &str = "the filesystem has a log tree with changes that were fsynced before a crash";
const WITHOUT_LOG: &str = "it can be read without those changes (-o ro,rescue=nologreplay)";

/// Why a log cannot be replayed.
pub(super) fn not_replayed(error: &Error) -> Error {
    refused(error.errno(), format!("{LOG}, and it cannot be replayed: {error}; nothing was written; {WITHOUT_LOG}"))
}

/// Refuses to replay a log where it could not be written.
pub(super) fn must_be_writable(core: &Core) -> Result<()> {
    if core.volume.is_writable() {
        return Ok(());
    }
    let what = format!("{LOG}, which would have to be replayed, but the device is read-only; {WITHOUT_LOG}");
    Err(refused(Errno::EIO, what))
}

fn refused(errno: Errno, what: String) -> Error {
    Error::refused_at(errno, what)
}

/// Refuses to write where too many devices are missing.
pub(super) fn refuse_unwritable_chunks(core: &Core) -> Result<()> {
    let map = core.volume.chunk_map();
    let survivable = core.volume.check_survivable(&map);
    survivable.map_err(|error| refused(Errno::EINVAL, format!("{error} (mount with -o ro,degraded)")))
}

/// Quotas are not kept here: says so in the first transaction, so that others rescan. True when there are any.
pub(super) fn give_up_quotas(engine: &Engine) -> Result<bool> {
    let Some(flags) = quota_flags(engine)? else { return Ok(false) };
    if marked(flags) != flags {
        mark_quotas(&engine.start(Reserve::items(1))?)?;
    }
    Ok(true)
}

/// The same in a transaction that has begun.
pub(super) fn mark_quotas(handle: &Handle) -> Result<()> {
    let core = handle.core();
    let Some(flags) = quota_flags(core)?.filter(|&flags| marked(flags) != flags) else { return Ok(()) };
    let changed = marked(flags).to_le_bytes();
    core.tree(TreeId::QUOTA)?.update(handle, QUOTA_STATUS, |data| data[16..24].copy_from_slice(&changed))?;
    Ok(())
}

const QUOTA_STATUS: Key = Key::new(0, KeyType::QGROUP_STATUS, 0);

/// Numbers that are wrong. A rescan that somebody began ends here: going on later it would not see what changed behind
/// it, and call the numbers right.
fn marked(flags: u64) -> u64 {
    (flags | QgroupStatus::INCONSISTENT) & !QgroupStatus::RESCAN
}

/// The flags of quotas that are on.
fn quota_flags(core: &Core) -> Result<Option<u64>> {
    let tree = match core.tree(TreeId::QUOTA) {
        Err(error) if error.is(Errno::ENOENT) => return Ok(None),
        other => other?,
    };
    let flags_of = |data: &[u8]| data.get(16..24).map(|f| u64::from_le_bytes(f.try_into().expect("eight")));
    let flags = tree.get(core, QUOTA_STATUS)?.and_then(|item| flags_of(&item));
    Ok(flags.filter(|flags| flags & QgroupStatus::ON != 0))
}
