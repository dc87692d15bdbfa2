//! `butterfs filesystem resize`.

use crate::args::{self, pretty_size};
use crate::commands::Run;
use crate::commands::device::show;
use crate::error::CliError;
use crate::open_filesystem::{OpenFilesystem, WritableImagesArgument, about};
use crate::progress::{Progress, Unit};
use crate::report;
use crate::space::{device_name, members};
use butterfs_control::MemberRecord;
use butterfs_control::question::{CancelDeviceWork, DeviceWork, ResizeDevice, SizeChange};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The kernel makes no device smaller.
const SMALLEST: u64 = 256 << 20;

/// Resize a device of a filesystem, or cancel that.
///
/// Data behind the new end moves first. Without a device number the one with number 1 is meant, or the first one
/// that is there.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// An image file gets the same size: it grows before, and is truncated after
    #[arg(long)]
    with_file: bool,
    #[command(flatten)]
    images: WritableImagesArgument,
    /// The size in bytes or with a suffix k, m, g, t, p or e; with + or - so much more or less; 'max' for all that the
    /// device has; or 'cancel'
    #[arg(value_name = "[DEVID:][+-]SIZE|[DEVID:]max|cancel", allow_hyphen_values = true)]
    size: String,
    /// A directory of the mount (not with --image)
    path: Option<PathBuf>,
}

/// The requested size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    id: Option<u64>,
    size: SizeChange,
}

fn parse(text: &str) -> Result<Wanted, CliError> {
    let bad = |why: String| CliError::usage(format!("invalid resize argument '{text}': {why}"));
    let (id, size) = match text.split_once(':') {
        Some((id, size)) => (Some(id.parse().map_err(|_| bad("the device is given by its number".to_owned()))?), size),
        None => (None, text),
    };
    let bytes = |text: &str| args::size(text).map_err(bad);
    let size = match size.as_bytes().first() {
        _ if size == "max" => SizeChange::Max,
        Some(b'+') => SizeChange::More(bytes(&size[1..])?),
        Some(b'-') => SizeChange::Less(bytes(&size[1..])?),
        _ => SizeChange::Bytes(bytes(size)?),
    };
    Ok(Wanted { id, size })
}

/// The size that comes of it, where that is known.
fn resulting(size: SizeChange, now: u64) -> Option<u64> {
    match size {
        SizeChange::Bytes(bytes) => Some(bytes),
        SizeChange::More(bytes) => now.checked_add(bytes),
        SizeChange::Less(bytes) => now.checked_sub(bytes),
        SizeChange::Max => None,
    }
}

impl Args {
    fn shown(&self) -> &Path {
        self.path.as_deref().or(self.images.images().first().map(PathBuf::as_path)).unwrap_or(Path::new(""))
    }

    fn cancel(&self, opened: &mut OpenFilesystem, out: &mut dyn Write) -> Result<(), CliError> {
        let asking = about([&opened.root()], |[through]| CancelDeviceWork { through, work: DeviceWork::Resize });
        opened.ask(&format!("unable to cancel resizing '{}'", self.shown().display()), asking)?;
        Ok(writeln!(out, "Request to cancel resize")?)
    }

    fn resize(&self, opened: &mut OpenFilesystem, device: &MemberRecord, size: SizeChange) -> Result<(), CliError> {
        let (id, with_file) = (device.id, self.with_file);
        let asking = about([&opened.root()], |[through]| ResizeDevice { through, id, size, with_file });
        let mut failed = None;
        let mut progress = Progress::new("moving", Unit::Bytes);
        let end = opened.try_each(asking, &mut |work| show(&mut progress, work))?;
        drop(progress);
        if let Err(refusal) = end {
            let text = match refusal.errno {
                libc::EFBIG => "no enough free space".to_owned(),
                libc::EINPROGRESS => return Err(CliError::failed(refusal.sentence)),
                errno => crate::error::os_message(&std::io::Error::from_raw_os_error(errno)),
            };
            let sentence = format!("unable to resize '{}': {text}", self.shown().display());
            failed = Some(CliError::failed(sentence).hint(refusal.sentence));
        }
        failed.map_or(Ok(()), Err)
    }
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let wanted = if self.size == "cancel" { None } else { Some(parse(&self.size)?) };
        let mut opened = self.images.open(self.path.as_deref())?;
        let Some(Wanted { id, size }) = wanted else { return self.cancel(&mut opened, out) };
        let devices = members(&mut opened)?;
        let is_it = |device: &&MemberRecord| match id {
            Some(id) => device.id == id,
            None => device.storage.is_some(),
        };
        let Some(device) = devices.iter().find(is_it) else {
            return Err(CliError::failed(format!("cannot find devid: {}", id.unwrap_or(1))));
        };
        let name = device_name(device);
        let (from, to) = (pretty_size(device.total_bytes), resulting(size, device.total_bytes));
        let shown = to.map_or_else(|| "max".to_owned(), pretty_size);
        if let Some(to) = to.filter(|to| *to < SMALLEST) {
            report::warn(&format!(
                "the new size {to} ({}) is < 256MiB, this may be rejected by kernel",
                pretty_size(to)
            ));
        }
        writeln!(out, "Resize device id {} ({name}) from {from} to {shown}", device.id)?;
        out.flush()?;
        self.resize(&mut opened, device, size)?;
        opened.close()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_btrfs_reads_them() {
        let table = [
            ("1g", None, SizeChange::Bytes(1 << 30)),
            ("+512M", None, SizeChange::More(512 << 20)),
            ("2:-1k", Some(2), SizeChange::Less(1024)),
            ("3:max", Some(3), SizeChange::Max),
        ];
        for (text, id, size) in table {
            assert_eq!(parse(text).unwrap(), Wanted { id, size }, "{text}");
        }
        for text in ["", "x", "a:1g", "1:", "+", "-1x", "1:+max", "::", "-"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
