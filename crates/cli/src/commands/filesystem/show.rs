//! `butterfs filesystem show`: filesystems by mount, device, image, UUID or label.
//!
//! A mount of ours is asked. Everything else is told by the superblocks of the devices, of which each says what it is
//! and how much of it is used; so that a filesystem with damaged trees is shown too, and one that the kernel has
//! mounted as of its last commit.

mod scan;

use crate::commands::Run;
use crate::error::CliError;
use crate::open_filesystem;
use crate::output::{self, Format, UnitFormat, Units};
use crate::report;
use crate::space::{describe, members, uuid};
use scan::Found;
use serde::Serialize;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Show filesystems, their devices, and how much of each is allocated
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Look at the block devices, and not at mounts
    #[arg(short = 'd', long)]
    all_devices: bool,
    /// Show mounted filesystems only
    #[arg(short = 'm', long, conflicts_with = "all_devices")]
    mounted: bool,
    #[command(flatten)]
    units: Units,
    /// Mount points, devices, images, UUIDs or labels; without any, all that are found. Of an image on several devices
    /// name each
    #[arg(value_name = "PATH|UUID|DEVICE|LABEL")]
    which: Vec<PathBuf>,
}

/// A filesystem as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Shown {
    label: Option<String>,
    uuid: String,
    total_devices: u64,
    used: u64,
    devices: Vec<Device>,
    /// Some devices of an unmounted filesystem were not found.
    incomplete: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Device {
    devid: u64,
    size: u64,
    used: u64,
    /// None where it is missing.
    path: Option<String>,
}

impl Shown {
    fn of_mount(path: &Path) -> Result<Shown, CliError> {
        let mut opened = open_filesystem::mounted(path)?;
        let whole = describe(&mut opened)?;
        let device = |member: butterfs_control::MemberRecord| match member.storage {
            Some((path, _)) => {
                Device { devid: member.id, size: member.total_bytes, used: member.allocated, path: Some(path) }
            }
            None => Device { devid: member.id, size: 0, used: 0, path: None },
        };
        let devices: Vec<Device> = members(&mut opened)?.into_iter().map(device).collect();
        opened.close()?;
        Ok(Shown {
            label: label(&whole.label),
            uuid: uuid(whole.uuid),
            total_devices: whole.devices,
            used: whole.bytes_used,
            devices,
            incomplete: false,
        })
    }

    /// The filesystem on these devices, which all have its UUID.
    fn of_devices(found: &[&Found]) -> Shown {
        // The one that was written last knows best.
        let newest = found.iter().max_by_key(|found| found.superblock.generation()).expect("there is one");
        let mut devices: Vec<Device> = Vec::new();
        for Found { path, superblock } in found.iter().copied() {
            let item = &superblock.dev_item;
            let devid = item.devid.get();
            // The same device by another path is the same device.
            if !devices.iter().any(|known| known.devid == devid) {
                let path = Some(path.display().to_string());
                devices.push(Device { devid, size: item.total_bytes.get(), used: item.bytes_used.get(), path });
            }
        }
        devices.sort_by_key(|device| device.devid);
        let total_devices = newest.superblock.num_devices.get();
        Shown {
            label: label(newest.superblock.label()),
            uuid: uuid(newest.superblock.fsid),
            total_devices,
            used: newest.superblock.bytes_used.get(),
            incomplete: total_devices != devices.len() as u64,
            devices,
        }
    }

    fn print(&self, units: UnitFormat, out: &mut dyn Write) -> Result<(), CliError> {
        match &self.label {
            Some(label) => write!(out, "Label: '{label}' ")?,
            None => write!(out, "Label: none ")?,
        }
        writeln!(out, " uuid: {}", self.uuid)?;
        writeln!(out, "\tTotal devices {} FS bytes used {}", self.total_devices, units.size(self.used))?;
        for Device { devid, size, used, path } in &self.devices {
            match path {
                Some(path) => writeln!(
                    out,
                    "\tdevid {devid:>4} size {} used {} path {path}",
                    units.size(*size),
                    units.size(*used)
                )?,
                None => writeln!(out, "\tdevid {devid:>4} size 0 used 0 path <missing disk> MISSING")?,
            }
        }
        if self.incomplete {
            writeln!(out, "\t*** Some devices missing")?;
        }
        Ok(writeln!(out)?)
    }
}

/// The label of the filesystem on a device.
pub(super) fn label_on(path: &Path) -> Result<Vec<u8>, CliError> {
    Ok(scan::read(path)?.superblock.label().to_vec())
}

fn label(bytes: &[u8]) -> Option<String> {
    (!bytes.is_empty()).then(|| String::from_utf8_lossy(bytes).into_owned())
}

impl Args {
    /// Everything that is found: mounts of ours, then what the devices show.
    fn all(&self) -> Result<Vec<Shown>, CliError> {
        let mut shown: Vec<Shown> = Vec::new();
        if !self.all_devices {
            for mount in scan::our_mounts() {
                match Shown::of_mount(&mount) {
                    Ok(found) if shown.iter().any(|known| known.uuid == found.uuid) => {}
                    Ok(found) => shown.push(found),
                    // Another user's, or one whose server has died; the others are shown.
                    Err(CliError::Failed { sentence, .. }) => report::warn(&format!("{}: {sentence}", mount.display())),
                    Err(error) => return Err(error),
                }
            }
        }
        let found = scan::block_devices();
        let mounted = scan::kernel_mounts();
        let is_mounted = |group: &[&Found]| group.iter().any(|found| mounted.contains(&found.path));
        let mut groups = scan::by_filesystem(&found);
        groups.sort_by_key(|group| !is_mounted(group));
        for group in groups {
            let is_new = !shown.iter().any(|known| known.uuid == uuid(group[0].superblock.fsid));
            if is_new && (!self.mounted || is_mounted(&group)) {
                shown.push(Shown::of_devices(&group));
            }
        }
        Ok(shown)
    }

    /// The filesystems that somebody has named, each once.
    fn named(&self) -> Result<Vec<Shown>, CliError> {
        let mut given: Vec<Found> = Vec::new();
        let mut shown: Vec<Shown> = Vec::new();
        for which in &self.which {
            match std::fs::metadata(which) {
                Ok(metadata) if metadata.is_dir() => shown.extend(of_directory(which)?),
                Ok(_) => given.push(scan::read(which)?),
                Err(_) => shown.extend(self.by_name(which)?),
            }
        }
        if !given.is_empty() {
            let named: Vec<[u8; 16]> = given.iter().map(|found| found.superblock.fsid).collect();
            given.extend(scan::block_devices().into_iter().filter(|found| named.contains(&found.superblock.fsid)));
            for group in scan::by_filesystem(&given) {
                shown.push(Shown::of_devices(&group));
            }
        }
        Ok(shown)
    }

    /// By UUID or label.
    fn by_name(&self, which: &Path) -> Result<Vec<Shown>, CliError> {
        let bytes = which.as_os_str().as_bytes();
        let name = which.to_str().unwrap_or_default();
        let everything = Args { which: Vec::new(), ..self.clone() }.all()?;
        let is_meant =
            |shown: &Shown| shown.uuid == name || shown.label.as_ref().is_some_and(|label| label.as_bytes() == bytes);
        let found: Vec<Shown> = everything.into_iter().filter(is_meant).collect();
        match found.is_empty() {
            true => Err(CliError::failed(format!("not a valid btrfs filesystem: {}", which.display()))),
            false => Ok(found),
        }
    }
}

/// The filesystem that is mounted in a directory.
fn of_directory(path: &Path) -> Result<Vec<Shown>, CliError> {
    if scan::is_ours(path) {
        return Ok(vec![Shown::of_mount(path)?]);
    }
    let not_valid = || CliError::failed(format!("not a valid btrfs filesystem: {}", path.display()));
    let device = scan::kernel_device(path).ok_or_else(not_valid)?;
    let fsid = scan::read(&device)?.superblock.fsid;
    let found = scan::block_devices();
    let groups = scan::by_filesystem(&found);
    let group = groups.into_iter().find(|group| group[0].superblock.fsid == fsid).ok_or_else(not_valid)?;
    Ok(vec![Shown::of_devices(&group)])
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        self.run_as(Format::Text, out)
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        let shown = if self.which.is_empty() { self.all()? } else { self.named()? };
        match format {
            Format::Json => output::json(out, "filesystem-show", &shown),
            Format::Text => shown.iter().try_for_each(|shown| shown.print(self.units.format(), out)),
        }
    }
}
