//! `butterfs filesystem df`.

use crate::commands::Run;
use crate::error::CliError;
use crate::open_filesystem::ImagesArgument;
use crate::output::{self, Format, ShortUnits};
use crate::space::{describe, profile_name, type_name};
use butterfs_control::FilesystemRecord;
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;

/// Show how much space each type and profile of block groups has and uses
#[derive(clap::Args, Clone, Debug)]
#[command(disable_help_flag = true)]
pub struct Args {
    #[command(flatten)]
    images: ImagesArgument,
    #[command(flatten)]
    units: ShortUnits,
    /// A directory of the mount
    path: Option<PathBuf>,
}

/// The names are those of btrfs-progs.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Row {
    bg_type: &'static str,
    bg_profile: &'static str,
    total: u64,
    used: u64,
}

fn rows(whole: &FilesystemRecord) -> Vec<Row> {
    let spaces = whole.spaces.iter().map(|space| Row {
        bg_type: type_name(space.flags),
        bg_profile: profile_name(space.flags),
        total: space.total,
        used: space.used,
    });
    let reserve = Row { bg_type: "GlobalReserve", bg_profile: "single", total: whole.global_reserve, used: 0 };
    spaces.chain([reserve]).collect()
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        self.run_as(Format::Text, out)
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        let mut opened = self.images.open_one(self.path.as_ref())?;
        let rows = rows(&describe(&mut opened)?);
        let units = self.units.format();
        match format {
            Format::Json => output::json(out, "filesystem-df", &rows)?,
            Format::Text => {
                for Row { bg_type, bg_profile, total, used } in rows {
                    let (total, used) = (units.size(total), units.size(used));
                    writeln!(out, "{bg_type}, {bg_profile}: total={total}, used={used}")?;
                }
            }
        }
        opened.close()
    }
}
