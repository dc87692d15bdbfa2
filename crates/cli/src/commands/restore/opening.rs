//! Opening a wreck as options say, for `restore` and `rescue`.

use crate::error::CliError;
use butterfs_device::{BlockDevice, FileDevice, FileOptions};
use butterfs_rescue::index::Limit;
use butterfs_rescue::scan::{Ddrescue, Map};
use butterfs_rescue::superblocks;
use butterfs_rescue::wreck::{Opening, feature_bit};
use butterfs_rescue::{Wreck, overlay};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The superblock, roots and map from which a damaged filesystem is read.
#[derive(clap::Args, Debug, Default)]
pub struct Source {
    /// The map that 'rescue scan' has written of these devices
    #[arg(long, value_name = "FILE")]
    map: Option<PathBuf>,
    /// A ddrescue map for each device, in their order: ranges that it marks as bad are not read
    #[arg(long, value_name = "FILE")]
    ddrescue: Vec<PathBuf>,
    /// The chunk tree begins at this address
    #[arg(long, value_name = "BYTENR", value_parser = super::super::inspect_internal::number)]
    chunk_root: Option<u64>,
    /// Read a filesystem that has this feature although it is not known here; a name, or a bit as 0x20000
    #[arg(long, value_name = "FEATURE")]
    ignore_feature: Vec<String>,
    /// Replay the log first, in memory: nothing is written. A log that cannot be replayed is read as far as it goes
    #[arg(long)]
    with_log: bool,
}

impl Source {
    /// Whether a scan stands behind it.
    pub fn has_map(&self) -> bool {
        self.map.is_some()
    }

    /// The files of maps.
    pub fn maps(&self) -> impl Iterator<Item = &Path> {
        self.map.iter().chain(&self.ddrescue).map(PathBuf::as_path)
    }

    /// Whether the filesystem has a log that is not restored.
    pub fn leaves_log(&self, wreck: &Wreck) -> bool {
        !self.with_log && wreck.superblock().log_root.get() != 0
    }

    /// Opens the devices for reading.
    pub fn devices(&self, paths: &[PathBuf]) -> Result<Vec<Arc<dyn BlockDevice>>, CliError> {
        let mut devices = Vec::new();
        for (number, path) in paths.iter().enumerate() {
            let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(path, &FileOptions::inspect())?);
            let known = self.ddrescue.get(number).map(|path| ddrescue(path)).transpose()?;
            devices.push(match known {
                Some(known) => Arc::new(butterfs_rescue::mapped::MappedDevice::new(device, known)),
                None => device,
            });
        }
        Ok(devices)
    }

    /// Opens the filesystem on them.
    pub fn open(&self, paths: &[PathBuf], super_copy: Option<u64>) -> Result<Wreck, CliError> {
        let mut devices = self.devices(paths)?;
        let failed = |error: butterfs_rescue::Error| CliError::failed(error.to_string());
        let mut why_not = None;
        if self.with_log {
            match overlay::with_log_replayed(devices.clone()) {
                Ok(replayed) => devices = replayed,
                Err(error) => why_not = Some(error),
            }
        }
        let copy = super_copy.map(|copy| usize::try_from(copy).ok().filter(|copy| *copy < 3));
        if copy == Some(None) {
            return Err(CliError::failed(format!("super mirror {} not valid", super_copy.unwrap_or_default())));
        }
        let mut opening = Opening {
            super_copy: copy.flatten(),
            ignored_features: self.ignored()?,
            chunk_root: self.chunk_root,
            ..Opening::default()
        };
        if let Some(path) = &self.map {
            let map = Map::load(path, Limit::default()).map_err(failed)?;
            map.check_origin(path, &devices).map_err(failed)?;
            let copies = superblocks::copies(&devices);
            let fsids = superblocks::block_fsids(&copies, devices.len());
            let (index, identity) = map.into_index(fsids).map_err(failed)?;
            opening.index = Some(index);
            opening.identity = Some(identity);
        }
        let mut wreck = Wreck::open(devices, opening).map_err(failed)?;
        if let Some(error) = why_not {
            let second = "as much of the log as can be read is laid over the last commit";
            wreck.cautions.extend([error.to_string(), second.to_owned()]);
            wreck.lay_log_over();
        }
        Ok(wreck)
    }

    fn ignored(&self) -> Result<u64, CliError> {
        let bit =
            |name: &String| feature_bit(name).ok_or_else(|| CliError::usage(format!("no feature is called {name}")));
        self.ignore_feature.iter().map(bit).try_fold(0, |all, bit| Ok(all | bit?))
    }
}

/// Reads a map file of ddrescue.
pub fn ddrescue(path: &Path) -> Result<Ddrescue, CliError> {
    let wrap = |error: String| CliError::failed(format!("{}: {error}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| wrap(error.to_string()))?;
    Ddrescue::parse(&text).map_err(|error| wrap(error.to_string()))
}
