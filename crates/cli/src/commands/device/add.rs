//! `butterfs device add`.

use super::show;
use crate::commands::Run;
use crate::error::CliError;
use crate::open_filesystem::{WritableImagesArgument, about};
use crate::progress::{Progress, Unit};
use butterfs_control::question::AddDevice;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Add devices or image files to a filesystem.
///
/// Their content is lost. Refused: a device that something is recognised on, unless forced, one that is mounted or in
/// use, and one that belongs to the filesystem already.
///
/// A device that is added to a seed filesystem (flag SEEDING) gets a new filesystem, which begins with the content of
/// the seed and reads it from there. 'mount -o remount,rw' makes the mount one of the new filesystem.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Also where something is recognised on a device
    #[arg(short, long)]
    force: bool,
    /// Do not discard the whole device before
    #[arg(short = 'K', long)]
    nodiscard: bool,
    #[command(flatten)]
    images: WritableImagesArgument,
    /// The devices to add, then a directory of the mount (not with --image)
    #[arg(value_name = "DEVICE", required = true)]
    paths: Vec<PathBuf>,
}

impl Run for Args {
    fn run(mut self, _: &mut dyn Write) -> Result<(), CliError> {
        let mount = if self.images.images().is_empty() { self.paths.pop() } else { None };
        if self.paths.is_empty() {
            return Err(CliError::usage("give the devices to add, then a directory of the mount"));
        }
        let mut opened = self.images.open_to_add(mount.as_deref())?;
        for path in &self.paths {
            let shown = path.display();
            let absolute = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            let name = absolute.as_os_str().as_bytes().to_vec();
            let (force, discard) = (self.force, !self.nodiscard);
            let asking = about([&opened.root()], |[through]| AddDevice { through, path: name, force, discard });
            let mut progress = Progress::new("adding", Unit::Bytes);
            let added =
                opened.each(&format!("error adding device '{shown}'"), asking, &mut |work| show(&mut progress, work));
            drop(progress);
            added.map_err(explained)?;
        }
        opened.close()
    }
}

/// Something on the device: a hint how to go on.
fn explained(error: CliError) -> CliError {
    match &error {
        CliError::Failed { sentence, .. } if sentence.contains("appears to contain") => {
            error.hint("use the -f option to force overwriting what is there")
        }
        _ => error,
    }
}
