//! `butterfs subvolume snapshot`.

use super::refuse_qgroups;
use crate::commands::Run;
use crate::error::CliError;
use crate::open_filesystem::{ImageArgument, Intent, about, parent_and_name};
use butterfs_control::question::Snapshot;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Create a snapshot of a subvolume
///
/// It shows everything that was written before, and is on the disk when the command returns. The owner of a
/// subvolume may make snapshots of it in every directory that the owner may write.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Make the new snapshot readonly
    #[arg(short)]
    readonly: bool,
    /// Add the new snapshot to a quota group (not supported)
    #[arg(short = 'i', value_name = "QGROUPID")]
    qgroups: Vec<String>,
    /// Print only errors
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    image: ImageArgument,
    /// The subvolume
    subvolume: PathBuf,
    /// Directory and name of the snapshot; in a directory that exists it gets the subvolume's name
    #[arg(value_name = "SUBDIR[/NAME]")]
    dest: PathBuf,
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        refuse_qgroups(&self.qgroups)?;
        let mut opened = self.image.open(&self.subvolume, Intent::Change)?;
        let source = opened.object(&self.subvolume)?;
        let (parent, name) = match opened.is_directory(&self.dest)? {
            Some(true) => (self.dest.clone(), self.own_name()?),
            Some(false) => {
                let sentence = format!("'{}' exists and it is not a directory", self.dest.display());
                return Err(CliError::failed(sentence));
            }
            None => parent_and_name(&self.dest)?,
        };
        let directory = opened.object(&parent)?;
        let what = format!("cannot snapshot '{}'", self.subvolume.display());
        let asking = about([&source, &directory], |[source, directory]| Snapshot {
            source,
            directory,
            name: name.clone(),
            read_only: self.readonly,
        });
        opened.ask(&what, asking)?;
        opened.close()?;
        if !self.quiet {
            let kind = if self.readonly { "readonly snapshot" } else { "snapshot" };
            let name = String::from_utf8_lossy(&name);
            writeln!(out, "Create a {kind} of '{}' in '{}/{name}'", self.subvolume.display(), parent.display())?;
        }
        Ok(())
    }
}

impl Args {
    /// The name of the subvolume, also if it is given as `.` or through links.
    fn own_name(&self) -> Result<Vec<u8>, CliError> {
        if let Some(name) = self.subvolume.file_name() {
            return Ok(name.as_bytes().to_vec());
        }
        let real = self.subvolume.canonicalize().ok().filter(|_| self.image.image.is_none());
        parent_and_name(real.as_deref().unwrap_or(&self.subvolume)).map(|(_, name)| name)
    }
}
