//! The storage of a mount at a URL: a volume made of objects, or a raw image that is only read.

use super::{Storage, Stored};
use crate::args;
use crate::error::{CliError, os_message};
use crate::report;
use crate::stores;
use butterfs_device::BlockDevice;
use butterfs_fs::Env;
use butterfs_fs::mkfs::{MkfsOptions, mkfs};
use butterfs_remote::{LocalFile, ObjectDevice, RangedImage};
use butterfs_store::{Error, Kind, Settings, Store};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Whether a source is a URL.
pub fn is_url(source: &Path) -> bool {
    url(source).is_some()
}

/// The URL that a source is.
pub fn url(source: &Path) -> Option<&str> {
    let text = source.to_str()?;
    let (scheme, _) = text.split_once("://")?;
    let is_scheme = !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_scheme.then_some(text)
}

/// The wait between two looks of a mount that follows its volume.
const FOLLOW_EVERY: Duration = Duration::from_secs(2);

/// Sizes of the caches where they are on a disk.
const CACHE_ON_DISK: u64 = 4 << 30;
const WRITE_BACK_ON_DISK: u64 = 1 << 30;

/// The mount options of a store and a volume.
#[derive(Clone, Debug, Default)]
pub struct Options {
    volume: butterfs_remote::Options,
    store: Settings,
    follow: Option<Duration>,
    cache_dir: Option<PathBuf>,
    cache_size: Option<u64>,
    write_back: Option<u64>,
}

impl Options {
    /// Takes the options that are of a store out of the lists; returns the others with them.
    pub fn split(lists: &[String]) -> Result<(Options, Vec<String>), CliError> {
        let mut own = Options { store: stores::settings(), ..Options::default() };
        let mut others = Vec::new();
        for option in lists.iter().flat_map(|list| list.split(',')) {
            if !own.take(option)? {
                others.push(option.to_owned());
            }
        }
        let limits = &mut own.volume.limits;
        if own.cache_dir.is_some() {
            (limits.cache, limits.write_back) = (CACHE_ON_DISK, WRITE_BACK_ON_DISK);
        }
        limits.cache = own.cache_size.unwrap_or(limits.cache);
        limits.write_back = own.write_back.unwrap_or(limits.write_back);
        Ok((own, others))
    }

    fn take(&mut self, option: &str) -> Result<bool, CliError> {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let invalid = |rule: &str| CliError::usage(format!("the mount option '{option}' is not possible: {rule}"));
        let bytes = || args::size(value).map_err(|rule| invalid(&rule.to_string()));
        let seconds = || value.parse().map(Duration::from_secs).map_err(|_| invalid("it takes seconds"));
        let text = || if value.is_empty() { Err(invalid("it needs a value")) } else { Ok(value.to_owned()) };
        match name {
            "volume" => {
                butterfs_remote::check_name(value).map_err(|error| invalid(&error.to_string()))?;
                self.volume.volume = value.to_owned();
            }
            "follow" => {
                let every = if value.is_empty() { FOLLOW_EVERY } else { seconds()? };
                if every.is_zero() {
                    return Err(invalid("it takes at least one second"));
                }
                self.follow = Some(every);
            }
            "takeover" if value.is_empty() => self.volume.takeover = true,
            "endpoint" => self.store.endpoint = Some(text()?),
            "region" => self.store.region = Some(text()?),
            "profile" => self.store.profile = Some(text()?),
            "give_up_after" => self.store.give_up_after = seconds()?,
            "cache_size" => self.cache_size = Some(bytes()?),
            "write_back" => self.write_back = Some(bytes()?),
            "cache_dir" => self.cache_dir = Some(text()?.into()),
            "keep" => self.volume.limits.keep = seconds()?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// See the [module](self).
pub struct Remote {
    store: Store,
    options: butterfs_remote::Options,
    follow: Option<Duration>,
    device: Mutex<Device>,
}

#[derive(Clone)]
enum Device {
    Volume(Arc<ObjectDevice>),
    Image(Arc<RangedImage>),
}

impl Remote {
    /// Opens the volume or image at a URL. With `create`, a volume of that size is made first, if there is none.
    pub fn open(url: &str, options: Options, read_only: bool, create: Option<u64>) -> Result<Stored, CliError> {
        let Options { volume: mut options, store: mut settings, follow, cache_dir, .. } = options;
        settings.makes_folder = create.is_some();
        let read_only = read_only || follow.is_some();
        let store = Store::open(url, &settings).map_err(stores::refused)?;
        // Once: later the folder may be somewhere else, or below the mount.
        options.file = cache_dir.as_deref().map(LocalFile::in_folder).transpose().map_err(stores::refused)?;
        let made = create.map_or(Ok(false), |bytes| make(&store, &options, bytes))?;
        let (device, read_only) = match open_volume(&store, &options, read_only) {
            Ok((device, read_only)) => (Device::Volume(Arc::new(device)), read_only),
            Err(error) if may_be_image(url, &error) => {
                let image = open_image(url, &settings, &options);
                let image = image.map_err(|error| match error.kind() {
                    Kind::NotFound => nothing_there(url, &options),
                    _ => stores::refused(error),
                })?;
                if !read_only {
                    report::warn(&format!("{url}: an image in a store can only be read, mounted read-only"));
                }
                if follow.is_some() {
                    return Err(CliError::usage(format!("{url} is an image, which no mount can follow")));
                }
                (Device::Image(Arc::new(image)), true)
            }
            Err(error) if error.to_string().contains("which lives") => {
                return Err(CliError::from(error).hint("with -o takeover this mount becomes its writer instead"));
            }
            Err(error) => return Err(stores::refused(error)),
        };
        let remote = Remote { store, options, follow, device: Mutex::new(device) };
        Ok(Stored { storage: Storage::Remote(Arc::new(remote)), read_only, made })
    }

    fn now(&self) -> Device {
        self.device.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The device as the engine takes it.
    pub fn device(&self) -> Arc<dyn BlockDevice> {
        match self.now() {
            Device::Volume(volume) => volume,
            Device::Image(image) => image,
        }
    }

    /// The wait between two looks at what the writer has done, for a mount that shows it.
    pub fn follow(&self) -> Option<Duration> {
        self.follow
    }

    /// Opens the volume as its writer has left it now; none when that is what was opened last.
    pub fn newer<T>(&self, open: impl FnOnce(Arc<dyn BlockDevice>) -> Result<T, String>) -> Result<Option<T>, String> {
        let Device::Volume(seen) = self.now() else { return Ok(None) };
        let Some(newer) = seen.newer().map_err(|error| error.to_string())? else { return Ok(None) };
        let newer = Arc::new(newer);
        let opened = open(newer.clone())?;
        let mut device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        // It may have become the writer meanwhile.
        if !matches!(&*device, Device::Volume(now) if Arc::ptr_eq(now, &seen)) {
            return Ok(None);
        }
        *device = Device::Volume(newer);
        Ok(Some(opened))
    }

    /// Opens a volume that was only read for writing.
    pub fn become_writer(&self) -> Result<Arc<dyn BlockDevice>, String> {
        if let Device::Image(image) = self.now() {
            return Err(format!("{} is an image in a store, which can only be read", image.name()));
        }
        let device = ObjectDevice::open(&self.store, &self.options).map_err(|error| error.to_string())?;
        let device = Arc::new(device);
        *self.device.lock().unwrap_or_else(PoisonError::into_inner) = Device::Volume(device.clone());
        Ok(device)
    }

    /// Leaves the volume to the next mount; the reason why that failed.
    pub fn close(&self) -> Result<(), String> {
        match self.now() {
            Device::Volume(volume) => volume.close().map_err(|error| error.to_string()),
            Device::Image(_) => Ok(()),
        }
    }
}

/// The volume, and whether it is only read.
fn open_volume(
    store: &Store,
    options: &butterfs_remote::Options,
    read_only: bool,
) -> Result<(ObjectDevice, bool), Error> {
    if !read_only {
        match ObjectDevice::open(store, options) {
            Err(error) if matches!(error.kind(), Kind::Permission | Kind::Unsupported) => {
                let reader = ObjectDevice::open_read_only(store, options).map_err(|_| error.clone())?;
                report::warn(&format!("{error}, mounted read-only"));
                return Ok((reader, true));
            }
            opened => return opened.map(|device| (device, false)),
        }
    }
    ObjectDevice::open_read_only(store, options).map(|device| (device, true))
}

/// Whether what no volume was found in may be an image. Web servers answer for other paths as they please.
fn may_be_image(url: &str, error: &Error) -> bool {
    let is_web = url.starts_with("http://") || url.starts_with("https://");
    error.kind() == Kind::NotFound || (is_web && matches!(error.kind(), Kind::Length | Kind::Damaged))
}

/// The object at a URL as a raw image.
fn open_image(url: &str, settings: &Settings, options: &butterfs_remote::Options) -> Result<RangedImage, Error> {
    let (folder, key) = url.trim_end_matches('/').rsplit_once('/').unwrap_or((url, ""));
    if folder.ends_with(":/") {
        // A bucket or a host is no image.
        return Err(Error::new(Kind::NotFound, format!("{url} names no object")));
    }
    RangedImage::open(&Store::open(folder, settings)?, key, options.limits.cache, options.file.clone())
}

fn nothing_there(url: &str, options: &butterfs_remote::Options) -> CliError {
    CliError::failed(format!("{url} has no volume '{}' and is no image", options.volume))
        .hint("with --create SIZE a volume is made there; 'butterfs volume ls' lists those that are there")
}

/// A folder with other files is no place for volumes, unless there are some already.
fn refuse_other_files(store: &Store) -> Result<(), CliError> {
    let Some(folder) = store.folder() else { return Ok(()) };
    if folder.join("volumes").is_dir() {
        return Ok(());
    }
    let failed = |error: &std::io::Error| CliError::failed(format!("{}: {}", folder.display(), os_message(error)));
    let mut names = std::fs::read_dir(folder).map_err(|error| failed(&error))?.flatten().map(|entry| entry.file_name());
    match names.find(|name| name != "lost+found") {
        None => Ok(()),
        Some(name) => {
            let (folder, name) = (folder.display(), name.display());
            Err(CliError::failed(format!(
                "{folder} has other files, such as '{name}', and no volume is made among them"
            ))
            .hint("give --create an empty folder, or one that does not exist"))
        }
    }
}

/// Makes a volume with a filesystem where there is none. False: there is one already.
fn make(store: &Store, options: &butterfs_remote::Options, bytes: u64) -> Result<bool, CliError> {
    refuse_other_files(store)?;
    match butterfs_remote::make(store, &options.volume, bytes) {
        Err(error) if error.kind() == Kind::Exists => return Ok(false),
        outcome => outcome.map_err(stores::refused)?,
    }
    let fill = || -> Result<(), CliError> {
        let device = Arc::new(ObjectDevice::open(store, options)?);
        mkfs(&[device.clone() as Arc<dyn BlockDevice>], &MkfsOptions::default(), &Env::system())?;
        device.close().map_err(|error| CliError::failed(error.to_string()))
    };
    fill().map(|()| true).inspect_err(|_| {
        // A volume without a filesystem would stand in the way of the next attempt.
        let _ = butterfs_remote::manage::remove(store, &butterfs_remote::Options { takeover: true, ..options.clone() });
    })
}
