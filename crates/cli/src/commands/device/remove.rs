//! `butterfs device remove`, also called `delete`.

use super::show;
use crate::commands::Run;
use crate::error::CliError;
use crate::open_filesystem::{WritableImagesArgument, about};
use crate::progress::{Progress, Unit};
use butterfs_control::question::{CancelDeviceWork, DeviceName, DeviceWork, RemoveDevice};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Remove devices from a filesystem.
///
/// Data on a device moves to the others first. 'missing' stands for the first device that is not there: what it had
/// is made again from the other copies. 'cancel' stops a removal that runs; what has moved stays where it is then.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[command(flatten)]
    images: WritableImagesArgument,
    /// The devices, by path, by number, or 'missing'; or 'cancel'; then a directory of the mount (not with --image)
    #[arg(value_name = "DEVICE|DEVID|missing|cancel", required = true)]
    paths: Vec<PathBuf>,
}

impl Run for Args {
    fn run(mut self, _: &mut dyn Write) -> Result<(), CliError> {
        let mount = if self.images.images().is_empty() { self.paths.pop() } else { None };
        if self.paths.is_empty() {
            return Err(CliError::usage("give the devices to remove, then a directory of the mount"));
        }
        let mut opened = self.images.open(mount.as_deref())?;
        for path in &self.paths {
            if path.as_os_str() == "cancel" {
                let asking =
                    about([&opened.root()], |[through]| CancelDeviceWork { through, work: DeviceWork::Remove });
                opened.ask("cancelling device remove", asking)?;
                continue;
            }
            let device = device_name(path);
            let shown = match &device {
                DeviceName::Id(id) => format!("error removing devid {id}"),
                DeviceName::Path(_) | DeviceName::Missing => format!("error removing device '{}'", path.display()),
            };
            let asking = about([&opened.root()], |[through]| RemoveDevice { through, device });
            let mut progress = Progress::new("moving", Unit::Bytes);
            let removed = opened.each(&shown, asking, &mut |work| show(&mut progress, work));
            drop(progress);
            removed?;
        }
        opened.close()
    }
}

/// A number, a path, or the word for one that is not there.
pub fn device_name(path: &std::path::Path) -> DeviceName {
    let text = path.as_os_str().as_bytes();
    if text == b"missing" {
        return DeviceName::Missing;
    }
    match std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()) {
        Some(id) => DeviceName::Id(id),
        None => {
            let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
            DeviceName::Path(absolute.as_os_str().as_bytes().to_vec())
        }
    }
}
