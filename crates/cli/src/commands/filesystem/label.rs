//! `butterfs filesystem label`.

use crate::commands::Run;
use crate::error::CliError;
use crate::open_filesystem::{self, about, cannot_access, plain};
use crate::output::{self, Format};
use butterfs_control::{Label, question};
use butterfs_device::{FileDevice, FileOptions, OpenErrorKind};
use butterfs_fs::{Env, Filesystem, Options, Subvolume, TreeId};
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The longest label.
const MOST_BYTES: usize = 255;
/// The exit code of btrfs where the device is mounted.
const MOUNTED: u8 = 255;

/// Show or change the label of a filesystem
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// A directory of the mount, or a device or image that is not mounted
    #[arg(value_name = "DEVICE|MOUNT")]
    path: PathBuf,
    /// The new label
    #[arg(value_name = "LABEL")]
    new: Option<OsString>,
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        self.run_as(Format::Text, out)
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        let is_mount = std::fs::metadata(&self.path).map_err(|error| cannot_access(&self.path, error))?.is_dir();
        let Some(new) = self.new else {
            let label = if is_mount { of_mount(&self.path)? } else { of_device(&self.path)? };
            return match format {
                Format::Text => Ok(out.write_all(&[label.as_slice(), b"\n"].concat())?),
                Format::Json => output::json(out, "filesystem-label", &String::from_utf8_lossy(&label)),
            };
        };
        output::must_be_text(format)?;
        if new.len() > MOST_BYTES {
            return Err(CliError::failed(format!("label {} is too long (max {MOST_BYTES})", new.display())));
        }
        if is_mount { change_mount(&self.path, new.as_bytes()) } else { change_device(&self.path, new.as_bytes()) }
    }
}

fn of_mount(path: &Path) -> Result<Vec<u8>, CliError> {
    let mut opened = open_filesystem::mounted(path)?;
    let Label(label) = opened.ask_one("cannot get the label", plain(question::GetLabel {}))?;
    Ok(label)
}

fn of_device(path: &Path) -> Result<Vec<u8>, CliError> {
    super::show::label_on(path)
}

fn change_mount(path: &Path, label: &[u8]) -> Result<(), CliError> {
    let mut opened = open_filesystem::mounted(path)?;
    let root = opened.root();
    let asking = about([&root], |[through]| question::SetLabel { through, label: label.to_vec() });
    opened.ask("cannot set the label", asking).map(drop)
}

fn change_device(path: &Path, label: &[u8]) -> Result<(), CliError> {
    let device = FileDevice::open(path, &FileOptions::read_write()).map_err(|error| match &error.kind {
        OpenErrorKind::UsedByKernel { .. } => CliError::Failed {
            sentence: format!("device {} is mounted, use mount point", path.display()),
            hints: Vec::new(),
            code: MOUNTED,
        },
        _ => CliError::from(error),
    })?;
    let options = Options { subvolume: Subvolume::Id(TreeId::FS), ..Options::default() };
    let filesystem = Filesystem::open(vec![Arc::new(device)], options, Env::system())
        .map_err(|error| CliError::failed(format!("{}: {error}", path.display())))?;
    filesystem.set_label(label)?;
    Ok(filesystem.shutdown()?)
}
