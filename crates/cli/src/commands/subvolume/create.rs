//! `butterfs subvolume create`.

use super::refuse_qgroups;
use crate::commands::Run;
use crate::error::CliError;
use crate::open_filesystem::{ImageArgument, Intent, about, parent_and_name};
use butterfs_control::question::CreateSubvolume;
use std::io::Write;
use std::path::PathBuf;

/// Create a subvolume
///
/// Everyone who may write in a directory may create subvolumes there.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Add the new subvolume to a quota group (not supported)
    #[arg(short = 'i', value_name = "QGROUPID")]
    qgroups: Vec<String>,
    /// Print only errors
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    image: ImageArgument,
    /// Directory and name of the new subvolume; without a directory it is made in the current one
    #[arg(value_name = "[DEST/]NAME")]
    path: PathBuf,
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        refuse_qgroups(&self.qgroups)?;
        let (parent, name) = parent_and_name(&self.path)?;
        let mut opened = self.image.open(&parent, Intent::Change)?;
        if opened.is_directory(&self.path)?.is_some() {
            return Err(CliError::failed(format!("target path already exists: {}", self.path.display())));
        }
        let directory = opened.object(&parent)?;
        let shown = format!("{}/{}", parent.display(), String::from_utf8_lossy(&name));
        let umask = rustix::process::umask(rustix::fs::Mode::empty());
        rustix::process::umask(umask);
        let what = format!("cannot create subvolume '{shown}'");
        let umask = umask.as_raw_mode();
        opened.ask(&what, about([&directory], |[directory]| CreateSubvolume { directory, umask, name }))?;
        opened.close()?;
        if !self.quiet {
            writeln!(out, "Create subvolume '{shown}'")?;
        }
        Ok(())
    }
}
