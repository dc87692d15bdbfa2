//! `butterfs filesystem`: commands on a mounted filesystem as a whole, and on how files lie in it.

mod defragment;
mod df;
mod du;
mod extents;
mod label;
mod mkswapfile;
mod resize;
mod show;
mod sync;
mod usage;

use super::{Run, subcommands};
use crate::error::CliError;
use clap::Subcommand;
use std::io::Write;

subcommands! {
    /// Show and change a filesystem as a whole, and the layout of its files
    Group {
        Defragment(defragment::Args),
        Df(df::Args),
        Du(du::Args),
        Extents(extents::Args),
        Resize(resize::Args),
        Label(label::Args),
        Mkswapfile(mkswapfile::Args),
        Show(show::Args),
        Sync(sync::Args),
        Usage(usage::Args),
    }
}
