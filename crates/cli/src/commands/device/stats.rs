//! `butterfs device stats`.

use crate::commands::Run;
use crate::error::CliError;
use crate::open_filesystem::{self, Intent, OpenFilesystem, about, plain};
use crate::output::{self, Format};
use butterfs_control::DeviceRecord;
use butterfs_control::question::{CountDeviceErrors, ResetDeviceErrors};
use butterfs_fuse::client;
use serde_json::{Map, Value};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The exit code where something was counted, as of btrfs.
const COUNTED: u8 = 64;

/// The counters of a device and what btrfs calls them.
fn counters(device: &DeviceRecord) -> [(&'static str, u64); 5] {
    [
        ("write_io_errs", device.write_errors),
        ("read_io_errs", device.read_errors),
        ("flush_io_errs", device.flush_errors),
        ("corruption_errs", device.corruption_errors),
        ("generation_errs", device.generation_errors),
    ]
}

/// Show the error counters of the devices of a filesystem.
///
/// The counters are kept from mount to mount: writes, reads and flushes that failed, copies that were wrong, and times
/// that a device had missed commits.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// End with code 64 where a counter is not zero
    #[arg(short, long)]
    check: bool,
    /// Set the counters to zero after they are printed
    #[arg(short = 'z', long)]
    reset: bool,
    /// Print a table
    #[arg(short = 'T')]
    tabular: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "tabular")]
    json: bool,
    /// A directory of a mount, or the devices or images of a filesystem that is not mounted
    #[arg(value_name = "MOUNT|DEVICE", required = true)]
    paths: Vec<PathBuf>,
}

/// Whether a path is on a mount, be it one that nobody serves any more, and not storage.
fn is_mounted(path: &Path) -> bool {
    match std::fs::metadata(path) {
        Ok(found) => found.is_dir(),
        Err(error) => client::left_alone(&error),
    }
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        self.run_as(Format::Text, out)
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        let intent = if self.reset { Intent::Change } else { Intent::Look };
        let mut opened = match &self.paths[..] {
            [mount] if is_mounted(mount) => open_filesystem::mounted(mount)?,
            images => open_filesystem::images_for(images, intent)?,
        };
        let devices = self.ask(&mut opened)?;
        opened.close()?;
        match () {
            () if self.json || format == Format::Json => {
                output::json(out, "device-stats", &devices.iter().map(value).collect::<Vec<_>>())?
            }
            () if self.tabular => table(out, &devices)?,
            () => lines(out, &devices)?,
        }
        let any = devices.iter().flat_map(counters).any(|(_, value)| value != 0);
        if self.check && any { Err(CliError::Reported { code: COUNTED }) } else { Ok(()) }
    }
}

impl Args {
    fn ask(&self, opened: &mut OpenFilesystem) -> Result<Vec<DeviceRecord>, CliError> {
        if !self.reset {
            return opened.ask("cannot ask for the counters", plain(CountDeviceErrors {}));
        }
        let asking = about([&opened.root()], |[through]| ResetDeviceErrors { through, device: None });
        opened.ask("cannot reset the counters", asking)
    }
}

fn lines(out: &mut dyn Write, devices: &[DeviceRecord]) -> std::io::Result<()> {
    for device in devices {
        for (counter, value) in counters(device) {
            writeln!(out, "[{}].{counter:<16} {value}", device.name)?;
        }
    }
    Ok(())
}

/// The columns are those of btrfs-progs: numbers to the right, as wide as their widest cell.
fn table(out: &mut dyn Write, devices: &[DeviceRecord]) -> std::io::Result<()> {
    let titles =
        ["Id", "Path", "Write errors", "Read errors", "Flush errors", "Corruption errors", "Generation errors"];
    let row = |device: &DeviceRecord| {
        let mut cells = vec![device.id.to_string(), device.name.clone()];
        cells.extend(counters(device).map(|(_, value)| value.to_string()));
        cells
    };
    let rows: Vec<Vec<String>> = devices.iter().map(row).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].len()).chain([titles[column].len()]).max();
    let widths: Vec<usize> = (0..titles.len()).map(|column| width(column).unwrap_or(0)).collect();
    let mut line = |cells: Vec<String>| {
        let cells = cells.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
            1 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        writeln!(out, "{}", cells.collect::<Vec<_>>().join(" ").trim_end())
    };
    line(titles.iter().enumerate().map(|(i, title)| format!("{title:<width$}", width = widths[i])).collect())?;
    line(widths.iter().map(|width| "-".repeat(*width)).collect())?;
    rows.into_iter().try_for_each(line)
}

fn value(device: &DeviceRecord) -> Value {
    let mut value = Map::new();
    value.insert("device".into(), device.name.clone().into());
    value.insert("devid".into(), device.id.into());
    value.extend(counters(device).map(|(name, count)| (name.to_owned(), count.into())));
    Value::Object(value)
}
