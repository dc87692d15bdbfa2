//! `butterfs subvolume`: grammar and text are those of btrfs-progs 6.2. Every command works on a mount of butterfs, and
//! with `--image` on an image that is not mounted.

mod create;
mod default;
mod delete;
mod find_new;
mod forest;
mod json;
mod list;
mod local_date;
mod show;
mod snapshot;
mod sync;

use super::{Run, subcommands};
use crate::error::CliError;
use clap::Subcommand;
use std::io::Write;
use uuid::Uuid;

subcommands! {
    /// Make, delete, list and describe subvolumes and snapshots
    Group {
        Create(create::Args),
        Delete(delete::Args),
        List(list::Args),
        Snapshot(snapshot::Args),
        Show(show::Args),
        GetDefault(default::GetArgs),
        SetDefault(default::SetArgs),
        FindNew(find_new::Args),
        Sync(sync::Args),
    }
}

/// Quota groups are not kept yet; what asks for one is refused rather than forgotten.
fn refuse_qgroups(qgroups: &[String]) -> Result<(), CliError> {
    match qgroups.first() {
        Some(qgroup) => Err(CliError::failed(format!("quota groups are not supported, cannot add to {qgroup}"))),
        None => Ok(()),
    }
}

fn uuid_or_dash(uuid: &[u8; 16]) -> String {
    if *uuid == [0; 16] { "-".to_owned() } else { Uuid::from_bytes(*uuid).to_string() }
}
