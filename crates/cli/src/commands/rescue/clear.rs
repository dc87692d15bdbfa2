//! One commit that removes a structure of a filesystem and does nothing else, for the commands that clear.

use crate::error::CliError;
use butterfs_device::{BlockDevice, FileDevice, FileOptions, MemoryDevice};
use butterfs_repair::{Options, Plan, Trouble, apply, plan};
use butterfs_rescue::superblocks;
use std::path::PathBuf;
use std::sync::Arc;

/// Does what is demanded on these devices, which are all of the filesystem's. Nothing is written where a check finds
/// more errors afterwards than before.
pub fn run(paths: &[PathBuf], demands: Options) -> Result<Plan, CliError> {
    let open =
        |path: &PathBuf| Ok(Arc::new(FileDevice::open(path, &FileOptions::read_write())?) as Arc<dyn BlockDevice>);
    let devices = paths.iter().map(open).collect::<Result<Vec<_>, CliError>>()?;
    refuse_log(&devices)?;
    let failed = |trouble: Trouble| CliError::failed(trouble.to_string());
    let demands = Options { only_demands: true, ..demands };
    let mut made = plan(&devices, &demands, &|_, _| {}).map_err(failed)?;
    if let Some(trouble) = made.trouble.take() {
        return Err(failed(trouble));
    }
    if made.after.errors > made.before.errors {
        let error = CliError::failed("nothing was written, because a check would find more errors afterwards");
        return Err(error.hint("'butterfs check --repair --plan' says what can be repaired first"));
    }
    apply(&made, &devices, &MemoryDevice::new(made.undo_len())).map_err(failed)?;
    Ok(made)
}

fn refuse_log(devices: &[Arc<dyn BlockDevice>]) -> Result<(), CliError> {
    let copies = superblocks::copies(devices);
    if superblocks::ruling(&copies).is_none_or(|(_, sb)| sb.log_root.get() == 0) {
        return Ok(());
    }
    let error = CliError::failed("there is a log of changes that were fsynced since the last commit");
    Err(error.hint("mount the filesystem, which replays it, or give it up by 'butterfs rescue zero-log'"))
}
