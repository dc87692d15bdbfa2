//! `butterfs subvolume sync`.

use crate::commands::Run;
use crate::error::CliError;
use crate::open_filesystem::{ImageArgument, Intent, OpenFilesystem, plain};
use butterfs_control::question::{DescribeSubvolumeById, ListDeleted};
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

/// Wait until deleted subvolumes have given all their space back
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Seconds between looks
    #[arg(short, value_name = "N", default_value_t = 1)]
    seconds: u64,
    #[command(flatten)]
    image: ImageArgument,
    /// Something on the filesystem
    path: PathBuf,
    /// Their ids; without any, all that are deleted now
    #[arg(value_name = "SUBVOLID")]
    ids: Vec<u64>,
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let mut opened = self.image.open(&self.path, Intent::Change)?;
        let mut waiting = if self.ids.is_empty() { deleted(&mut opened)? } else { self.ids.clone() };
        let all = waiting.len();
        if all > 0 {
            writeln!(out, "Waiting for {all} subvolume{}", if all == 1 { "" } else { "s" })?;
        }
        // The first looks are quick, because most subvolumes are.
        let mut pause = Duration::from_millis(10);
        let mut gone = 0;
        loop {
            let left = self.left(&mut opened, &waiting)?;
            for id in waiting.iter().filter(|id| !left.contains(id)) {
                gone += 1;
                writeln!(out, "Subvolume id {id} is gone ({gone}/{all})")?;
            }
            out.flush()?;
            if left.is_empty() {
                return opened.close();
            }
            waiting = left;
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_secs(self.seconds.max(1)));
        }
    }
}

impl Args {
    /// Those that still take space: deleted ones, and, of ids that were given, living ones.
    fn left(&self, opened: &mut OpenFilesystem, waiting: &[u64]) -> Result<Vec<u64>, CliError> {
        let deleted = deleted(opened)?;
        let mut left = Vec::new();
        for &id in waiting {
            let lives = !self.ids.is_empty() && opened.try_ask(plain(DescribeSubvolumeById { id }))?.is_ok();
            if lives || deleted.contains(&id) {
                left.push(id);
            }
        }
        Ok(left)
    }
}

fn deleted(opened: &mut OpenFilesystem) -> Result<Vec<u64>, CliError> {
    let records = opened.ask("cannot list deleted subvolumes", plain(ListDeleted {}))?;
    Ok(records.iter().map(|subvolume| subvolume.id).collect())
}
