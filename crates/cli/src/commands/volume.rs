//! `butterfs volume`: filesystems in object stores.

use super::stream::StoreArgs;
use super::{Run, subcommands};
use crate::args::pretty_size;
use crate::error::{CliError, os_message};
use crate::moments;
use crate::output::{self, Format};
use crate::progress::{Progress, Unit};
use crate::report;
use butterfs_device::{BlockDevice, is_zero};
use butterfs_remote::manage::{self, Garbage};
use butterfs_remote::{ObjectDevice, Options};
use butterfs_store::{Kind, Store};
use clap::Subcommand;
use serde::Serialize;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

subcommands! {
    /// Keep live filesystems in object stores
    ///
    /// A store can have several volumes; each is the device of one filesystem. 'butterfs mount URL MOUNTPOINT --create
    /// 100G' makes the volume 'main' with a filesystem and mounts it, '-o volume=NAME' another one. A volume has one
    /// writer at a time: while a mount lives, others are refused, unless they say '-o takeover'. Read-only mounts are
    /// not limited.
    Group {
        Ls(LsArgs),
        Clone(CloneArgs),
        Rm(RmArgs),
        Gc(GcArgs),
        Export(ExportArgs),
    }
}

/// List the volumes of a store
#[derive(clap::Args, Clone, Debug)]
pub struct LsArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// The store
    #[arg(value_name = "URL")]
    url: String,
}

#[derive(Serialize)]
struct VolumeJson {
    name: String,
    bytes: u64,
    used_bytes: u64,
    frozen: bool,
    /// Seconds since 1970.
    made: i64,
    writer: Option<WriterJson>,
}

#[derive(Serialize)]
struct WriterJson {
    host: String,
    pid: u32,
}

impl Run for LsArgs {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        self.run_as(Format::Text, out)
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        let (mut volumes, mut damaged) = (Vec::new(), Vec::new());
        for volume in manage::list(&self.store.store(&self.url)?)? {
            match volume {
                Ok(volume) => volumes.push(shown(volume)),
                Err(error) => damaged.push(error),
            }
        }
        // The healthy ones are shown first.
        let last = damaged.pop();
        damaged.iter().for_each(|error| report::error(&error.to_string()));
        let outcome = || last.map_or(Ok(()), |error| Err(CliError::from(error)));
        if format == Format::Json {
            output::json(out, "volume-ls", &volumes)?;
            return outcome();
        }
        writeln!(out, "{:<24} {:>10} {:>10}  {:<16}  WRITER", "NAME", "SIZE", "USED", "MADE")?;
        for volume in volumes {
            let writer = match (volume.writer, volume.frozen) {
                (Some(writer), _) => format!("process {} on {}", writer.pid, writer.host),
                (None, true) => "none, it is a snapshot".to_owned(),
                (None, false) => "-".to_owned(),
            };
            let (size, used) = (pretty_size(volume.bytes), pretty_size(volume.used_bytes));
            writeln!(out, "{:<24} {size:>10} {used:>10}  {:<16}  {writer}", volume.name, moments::shown(volume.made))?;
        }
        outcome()
    }
}

fn shown(volume: manage::Listed) -> VolumeJson {
    let writer = volume.writer.map(|writer| WriterJson { host: writer.host, pid: writer.pid });
    VolumeJson {
        name: volume.name,
        bytes: volume.length,
        used_bytes: volume.used,
        frozen: volume.frozen,
        made: volume.made,
        writer,
    }
}

/// Make a volume that has the content of another one
///
/// Both share every object, so that it takes no time and no room, however large the volume is. The volume can be
/// mounted meanwhile: the clone has the content that was durable at some moment.
#[derive(clap::Args, Clone, Debug)]
pub struct CloneArgs {
    /// Make a snapshot, which nobody can write to
    #[arg(short = 'r', long)]
    read_only: bool,
    #[command(flatten)]
    store: StoreArgs,
    /// The store
    #[arg(value_name = "URL")]
    url: String,
    /// The volume that is there
    #[arg(value_name = "VOLUME")]
    from: String,
    /// The name of the new one
    #[arg(value_name = "NEW")]
    to: String,
}

impl Run for CloneArgs {
    fn run(self, _: &mut dyn Write) -> Result<(), CliError> {
        Ok(manage::clone(&self.store.store(&self.url)?, &self.from, &self.to, self.read_only)?)
    }
}

/// Remove a volume
///
/// Objects that no other volume needs are deleted by 'butterfs volume gc'.
#[derive(clap::Args, Clone, Debug)]
pub struct RmArgs {
    /// Remove it even if a mount writes to it, which ends that
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    store: StoreArgs,
    /// The store
    #[arg(value_name = "URL")]
    url: String,
    /// The volumes
    #[arg(value_name = "VOLUME", required = true)]
    volumes: Vec<String>,
}

impl Run for RmArgs {
    fn run(self, _: &mut dyn Write) -> Result<(), CliError> {
        let store = self.store.store(&self.url)?;
        for volume in self.volumes {
            let options = Options { volume, takeover: self.force, ..Options::default() };
            manage::remove(&store, &options).map_err(|error| match error.kind() {
                Kind::Exists => CliError::from(error).hint("unmount it first, or end its mount with --force"),
                _ => error.into(),
            })?;
        }
        Ok(())
    }
}

/// Delete the objects that no volume needs
///
/// They are left by removed volumes, by mounts that were killed, and by volumes that shared objects. Objects of a mount
/// that lives stay.
#[derive(clap::Args, Clone, Debug)]
pub struct GcArgs {
    /// Only count them
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Keep objects that are younger than so many seconds by the clock of the store: a mount or a clone that is just
    /// beginning may need them
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    older_than: u64,
    #[command(flatten)]
    store: StoreArgs,
    /// The store
    #[arg(value_name = "URL")]
    url: String,
}

#[derive(Serialize)]
struct GarbageJson {
    objects: u64,
    bytes: u64,
    young_objects: u64,
    deleted: bool,
}

impl Run for GcArgs {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        self.run_as(Format::Text, out)
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        let older_than = Duration::from_secs(self.older_than);
        let Garbage { objects, bytes, young } = manage::gc(&self.store.store(&self.url)?, older_than, self.dry_run)?;
        let deleted = !self.dry_run;
        if format == Format::Json {
            return output::json(out, "volume-gc", &GarbageJson { objects, bytes, young_objects: young, deleted });
        }
        let verb = if deleted { "deleted" } else { "would delete" };
        writeln!(out, "{verb} {objects} objects with {}", pretty_size(bytes))?;
        if young > 0 {
            writeln!(out, "{young} more that no volume needs are younger than {} s", self.older_than)?;
        }
        Ok(())
    }
}

/// Write a volume to an image file
///
/// The image has the content that was made durable last; the volume can be mounted. Blocks that are zeros become holes.
#[derive(clap::Args, Clone, Debug)]
pub struct ExportArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// The store
    #[arg(value_name = "URL")]
    url: String,
    /// The volume
    #[arg(value_name = "VOLUME")]
    volume: String,
    /// The image, which must not exist
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
}

/// Bytes that are copied at once.
const COPIED: u64 = 4 << 20;

impl Run for ExportArgs {
    fn run(self, _: &mut dyn Write) -> Result<(), CliError> {
        let store: Store = self.store.store(&self.url)?;
        let options = Options { volume: self.volume.clone(), ..Options::default() };
        let device = ObjectDevice::open_read_only(&store, &options)?;
        let failed =
            |error: &std::io::Error| CliError::failed(format!("{}: {}", self.image.display(), os_message(error)));
        let file = OpenOptions::new().write(true).create_new(true).open(&self.image).map_err(|error| failed(&error))?;
        let copied = copy(&device, &file, &failed);
        if copied.is_err() {
            let _ = std::fs::remove_file(&self.image);
        }
        copied
    }
}

fn copy(
    device: &ObjectDevice,
    file: &std::fs::File,
    failed: &dyn Fn(&std::io::Error) -> CliError,
) -> Result<(), CliError> {
    let len = device.len();
    file.set_len(len).map_err(|error| failed(&error))?;
    let mut progress = Progress::new("exported", Unit::Bytes);
    let mut buf = vec![0; COPIED as usize];
    let mut at = device.next_data(0);
    while at < len {
        let part = &mut buf[..COPIED.min(len - at) as usize];
        device.read_at(at, part).map_err(|error| CliError::failed(error.to_string()))?;
        for (index, block) in part.chunks(64 << 10).enumerate() {
            if !is_zero(block) {
                file.write_all_at(block, at + index as u64 * (64 << 10)).map_err(|error| failed(&error))?;
            }
        }
        at = device.next_data(at + part.len() as u64);
        progress.at(at, Some(len));
    }
    file.sync_all().map_err(|error| failed(&error))
}
