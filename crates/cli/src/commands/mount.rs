//! `butterfs mount`, also called as `mount.butterfs` by mount(8).
//!
//! The process that serves the mount is this program once more, called with `--serve`. It says so on its standard
//! output when the mount is usable; until then the one that the user called waits. Starting over instead of forking
//! means that no thread and no lock is there before.

pub(crate) mod background;
mod devices;
mod helper;
mod joining;
mod panics;
mod remote;
mod show;
mod supervisor;
mod system_log;
mod tags;

pub use helper::Helper;

use super::Run;
use crate::args;
use crate::error::{CliError, os_message};
use crate::moments;
use crate::names::PROXY;
use crate::output::{self, Format};
use crate::report;
use butterfs_device::{BlockDevice, FileDevice};
use butterfs_fs::{DiscardMode, Env, Errno, Filesystem, InodeId, Options, SetAttr, Subvolume, TreeId};
use butterfs_fuse::adaptor::Reopen;
use butterfs_fuse::client;
use butterfs_fuse::control::{MountTurn, Proxy};
use butterfs_fuse::mount::{self, Backing, MountOptions};
use butterfs_fuse::service::{self, Commands, Content, Follow, Service};
use butterfs_rescue::overlay;
use std::ffi::OsString;
use std::io::ErrorKind::NotFound;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use supervisor::Supervisor;

/// Mount a filesystem.
///
/// Returns when the mount is usable; a process in the background serves it until it is unmounted. Root's mounts of
/// block devices and image files are of type fuseblk, and sync(1) and umount(8) make everything durable there. Mounts
/// of other users are of type fuse: use 'butterfs filesystem sync' and 'butterfs umount'.
///
/// Of a filesystem on several devices all are given, one after the other or with the option device=.
///
/// DEVICE can be the URL of a volume in an object store (s3://BUCKET/PREFIX, gs://…, az://…, file:///PATH): a
/// filesystem that is made of objects and needs no other server. 'butterfs volume --help' tells more. The URL of an
/// image file (also http://…) is mounted read-only.
///
/// The process keeps at most 256 MiB of tree blocks, 320 MiB of changed ones, 256 MiB of file data that is not written
/// yet, and some 50 bytes for each inode that the kernel remembers; what it does not need any more it gives back.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Mount options, separated by commas
    #[arg(short, long, value_name = "LIST")]
    options: Vec<String>,
    /// Serve the mount in this process and return when it is unmounted
    #[arg(short, long)]
    foreground: bool,
    /// Make a filesystem of this size first, if DEVICE does not exist
    #[arg(long, value_name = "SIZE", value_parser = args::size)]
    create: Option<u64>,
    /// Serve the mount in this process, for a caller that waits for a word on standard output
    #[arg(long, hide = true)]
    serve: bool,
    /// mount(8) has called, which repeats mounts of subvolumes in 'mount -a' unless they are of the kernel's btrfs
    #[arg(skip)]
    for_mount: bool,
    /// Show the options in force of the mount at MOUNTPOINT, and do nothing
    #[arg(long, conflicts_with_all = ["options", "foreground", "create"])]
    show: bool,
    /// Block devices, image files or the URL of the filesystem, then an existing directory
    #[arg(value_names = ["DEVICE", "MOUNTPOINT"], num_args = 1.., required = true)]
    paths: Vec<PathBuf>,
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        self.run_as(Format::Text, out)
    }

    fn run_as(mut self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        self.options.iter_mut().for_each(|list| *list = moments::options_in_utc(list));
        match (self.show, self.paths.len()) {
            (true, 1) => return show::show(&self.paths[0], format, out),
            (true, _) => return Err(CliError::usage("--show takes a mount point and nothing else".to_owned())),
            (false, 1) => return Err(CliError::usage("give a device and a directory to mount it on".to_owned())),
            (false, _) => output::must_be_text(format)?,
        }
        let options = self.parsed()?;
        if options.remount {
            return client::remount(self.mountpoint(), &options.flags, &options.data).map_err(CliError::failed);
        }
        if self.serve {
            return self.serve(&options, out, None);
        }
        let args = self.with_tags_resolved()?;
        let mountpoint = args.absolute_mountpoint()?;
        let turn = joining::turn(args.source());
        if let Some(server) = joining::server(&args, &options) {
            if args.foreground {
                let source = args.source().display();
                return Err(CliError::failed(format!("another process serves {source}"))
                    .hint("without --foreground this is one more mount of it"));
            }
            if joining::join(server, &args, &options, &mountpoint)? {
                return Ok(());
            }
        }
        match args.foreground {
            true => args.serve(&options, out, Some(turn)),
            false => background::start(&args),
        }
    }
}

impl Args {
    fn with_tags_resolved(mut self) -> Result<Args, CliError> {
        let count = self.paths.len() - 1;
        for path in &mut self.paths[..count] {
            *path = tags::resolved(path)?;
        }
        Ok(self)
    }

    /// The arguments that [`Args`] would be parsed from again.
    fn to_command_line(&self) -> Vec<OsString> {
        let options = self.options.iter().flat_map(|list| [OsString::from("-o"), list.into()]);
        let create = self.create.iter().flat_map(|bytes| ["--create".into(), bytes.to_string().into()]);
        let paths = self.paths.iter().map(OsString::from);
        options.chain(create).chain(["--".into()]).chain(paths).collect()
    }

    /// The options without those of a store, which stand for themselves.
    fn parsed(&self) -> Result<MountOptions, CliError> {
        let lists = match remote::is_url(self.source()) {
            true => remote::Options::split(&self.options)?.1,
            false => self.options.clone(),
        };
        MountOptions::parse(lists.iter().map(String::as_str)).map_err(CliError::usage)
    }

    /// The path that names the mount.
    fn source(&self) -> &Path {
        &self.paths[0]
    }

    fn mountpoint(&self) -> &Path {
        &self.paths[self.paths.len() - 1]
    }

    /// All devices, the source first; one that is named twice counts once.
    fn devices(&self, options: &MountOptions) -> Vec<PathBuf> {
        let mut devices: Vec<PathBuf> = Vec::new();
        for path in self.paths[..self.paths.len() - 1].iter().chain(&options.devices) {
            let same = |known: &PathBuf| known == path || same_file(known, path);
            if !devices.iter().any(same) {
                devices.push(path.clone());
            }
        }
        devices
    }

    /// Mounts, serves, and returns when the filesystem is unmounted and everything is durable. In the foreground others
    /// who mount the same filesystem wait for the turn that is given; in the background whoever started this holds it.
    fn serve(
        &self,
        options: &MountOptions,
        out: &mut dyn Write,
        foreground: Option<Option<MountTurn>>,
    ) -> Result<(), CliError> {
        service::prepare();
        let in_background = foreground.is_none();
        let log = if in_background { system_log::open() } else { supervisor::log() };
        let mountpoint = self.absolute_mountpoint()?;
        let Stored { storage, read_only, made } = self.storage(options)?;
        let options = &with_access(options, read_only);
        let halts = panics::Halts::default();
        panics::stop_writing(&halts, &log);
        let places = joining::storage(&self.devices(options));
        let remote = storage.remote();
        let Opened { filesystem, replayed, backing, reopen, follow } = self.open(options, storage, made)?;
        halts.add(&filesystem);
        let shown = self.shown(&filesystem, options)?;
        let reopen = Box::new(move || reopen().inspect(|filesystem| halts.add(filesystem)));
        for note in replayed.iter().chain(filesystem.notes()) {
            report::warn(note);
        }
        let request = mount::Request {
            source: self.shown_source().into(),
            mountpoint: mountpoint.clone(),
            flags: options.flags,
            allow_other: options.allow_other || devices::may_mount(),
            backing,
            sector_bytes: 4096,
        };
        let mount = (&request, options.transport);
        let content = Content { filesystem, reopen, follow, shown, storage: places };
        let service = Service::start(content, commands(), mount, Arc::clone(&log)).map_err(cannot_serve)?;
        drop((request, foreground));
        let _supervisor = match in_background {
            true => background::announce(out).map(|()| None)?,
            false => Some(Supervisor::ready(&mountpoint)),
        };
        let finished = service.finish(|| remote.map_or(Ok(()), |remote| remote.close()));
        finished.map_err(|why| {
            if in_background {
                log(&format!("{}: {why}", self.mountpoint().display()));
            }
            CliError::failed(format!("not everything is durable: {why}"))
        })
    }

    /// Opens what the filesystem is on, after making it where that is asked for.
    fn storage(&self, options: &MountOptions) -> Result<Stored, CliError> {
        if let Some(url) = remote::url(self.source()) {
            let devices = self.devices(options);
            if devices.len() > 1 {
                return Err(CliError::usage(format!(
                    "a filesystem at a URL is on one device, not on {}",
                    devices.len()
                )));
            }
            let (own, _) = remote::Options::split(&self.options)?;
            return remote::Remote::open(url, own, options.engine.read_only, self.create);
        }
        let made = self.create.map_or(Ok(false), |bytes| devices::create(self.source(), bytes))?;
        let devices::Opened { files, read_only } = devices::open(&self.devices(options), options.engine.read_only)?;
        Ok(Stored { storage: Storage::Files(files), read_only, made })
    }

    /// The source as the list of mounts shows it.
    fn shown_source(&self) -> PathBuf {
        match remote::is_url(self.source()) {
            true => self.source().to_owned(),
            false => std::path::absolute(self.source()).unwrap_or_else(|_| self.source().to_owned()),
        }
    }

    fn absolute_mountpoint(&self) -> Result<PathBuf, CliError> {
        let shown = self.mountpoint().display();
        let path = mount::mountinfo::absolute_mountpoint(self.mountpoint()).map_err(|error| match error.kind() {
            NotFound => {
                CliError::failed(format!("{shown} does not exist")).hint("make the directory to mount on first")
            }
            _ => CliError::failed(format!("{shown}: {}", os_message(&error))),
        })?;
        match std::fs::metadata(&path) {
            Ok(found) if found.is_dir() => Ok(path),
            Err(error) if client::left_alone(&error) => {
                Err(CliError::failed(format!("{shown}: {}", client::LEFT_ALONE)))
            }
            _ => Err(CliError::failed(format!("{shown} is not a directory"))),
        }
    }

    /// Why the filesystem cannot be opened; the sentence names the device.
    fn cannot_open(&self, error: &butterfs_fs::Error, options: &Options) -> CliError {
        let device = self.source().display().to_string();
        let sentence = match &options.subvolume {
            Subvolume::Path(path) if error.is(Errno::ENOENT) => {
                format!("{device} has no subvolume '{}'", String::from_utf8_lossy(path))
            }
            Subvolume::Id(id) if error.is(Errno::ENOENT) => format!("{device} has no subvolume with id {id}"),
            _ => error.to_string(),
        };
        let failed =
            CliError::failed(if sentence.contains(&device) { sentence } else { format!("{device}: {sentence}") });
        match error {
            butterfs_fs::Error::Incomplete(_) => {
                failed.hint("give all of its devices, or do without the missing ones with -o degraded")
            }
            _ => failed,
        }
    }

    /// The root directory of the subvolume to show.
    fn shown(&self, filesystem: &Filesystem, options: &MountOptions) -> Result<InodeId, CliError> {
        let found = filesystem.find_subvolume(&options.engine.subvolume);
        let found = found.map_err(|error| self.cannot_open(&error, &options.engine))?;
        let path = filesystem.subvolume_path(found.tree)?;
        options.must_agree_on(found.tree, &path).map_err(CliError::failed)?;
        Ok(found)
    }

    fn open(&self, options: &MountOptions, storage: Storage, made: bool) -> Result<Opened, CliError> {
        // A mount by system call is one of several: the filesystem that it shows a part of has its root at the top
        // level.
        let subvolume = match devices::may_mount() {
            true => Subvolume::Id(TreeId::FS),
            false => options.engine.subvolume.clone(),
        };
        let engine = Options { subvolume, readers_keep: true, ..options.engine.clone() };
        let (backing, replayed) = match &storage {
            Storage::Remote(_) => (Backing::Unclaimed, Vec::new()),
            Storage::Files(files) => {
                let replayed = if engine.read_only { self.replay_log(files, &engine)? } else { Vec::new() };
                (devices::backing(self.source(), &files[0], engine.read_only)?, replayed)
            }
        };
        let devices = storage.devices(engine.read_only && !engine.no_log_replay).map_err(CliError::failed)?;
        let filesystem = Filesystem::open(devices, engine.clone(), Env::system())
            .map_err(|error| self.cannot_open(&error, &engine))?;
        if made {
            give_root_directory(&filesystem)?;
        }
        let follow = storage.remote().and_then(|remote| follow(remote, &engine));
        // Where the engine writes already, a device that is removed must not stay open here.
        let storage = engine.read_only.then_some(storage);
        let first = filesystem.clone();
        let reopen = Box::new(move || {
            let Some(storage) = &storage else { return Err("the filesystem is writable already".to_owned()) };
            let writable = match first.sprouted() {
                // The seed's devices are only read.
                Some(new) => storage.devices(false)?.into_iter().chain([new]).collect(),
                None => storage.writable()?,
            };
            let options = Options { read_only: false, ..engine.clone() };
            Filesystem::open(writable, options, Env::system()).map_err(|error| error.to_string())
        });
        Ok(Opened { filesystem, replayed, backing, reopen, follow })
    }

    /// A read-only mount shows what was fsynced before a crash too, so the log is replayed for it, where the device can
    /// be written. Returns what the user should be told.
    fn replay_log(&self, files: &[Arc<FileDevice>], engine: &Options) -> Result<Vec<String>, CliError> {
        let has_log = !engine.no_log_replay && Filesystem::has_log(devices::shared(files)).unwrap_or(false);
        let Some(writable) = has_log.then(|| devices::writable(files).ok()).flatten() else {
            // Who cannot replay says so when the filesystem is opened.
            return Ok(Vec::new());
        };
        let replayed = Filesystem::open(writable, engine.clone(), Env::system());
        let replayed = replayed.map_err(|error| self.cannot_open(&error, engine))?;
        Ok(replayed.notes().to_vec())
    }
}

/// The options of a mount whose devices were opened like this.
fn with_access(options: &MountOptions, read_only: bool) -> MountOptions {
    let mut options = options.clone();
    if !options.data.iter().any(|option| DiscardMode::parse(option).is_some()) {
        // As in the kernel, where the devices support it.
        options.engine.discard = DiscardMode::Async;
    }
    (options.engine.read_only, options.flags.read_only) = (read_only, read_only);
    options
}

fn same_file(a: &Path, b: &Path) -> bool {
    a.canonicalize().is_ok_and(|a| b.canonicalize().is_ok_and(|b| a == b))
}

/// The devices of a filesystem, opened and locked.
enum Storage {
    /// Block devices or image files, in the order of their paths; the first one is the source of the mount.
    Files(Vec<Arc<FileDevice>>),
    /// A volume or an image in a store.
    Remote(Arc<remote::Remote>),
}

impl Storage {
    /// The devices as the engine takes them. With `with_log`, what a log in a store has is there too, in memory.
    fn devices(&self, with_log: bool) -> Result<Vec<Arc<dyn BlockDevice>>, String> {
        match self {
            Storage::Files(files) => Ok(devices::shared(files)),
            Storage::Remote(remote) => devices_of(remote.device(), with_log),
        }
    }

    /// The same devices for writing; the reason why they cannot be written otherwise.
    fn writable(&self) -> Result<Vec<Arc<dyn BlockDevice>>, String> {
        match self {
            Storage::Files(files) => devices::writable(files).map_err(|error| error.to_string()),
            Storage::Remote(remote) => Ok(vec![remote.become_writer()?]),
        }
    }

    fn remote(&self) -> Option<Arc<remote::Remote>> {
        match self {
            Storage::Files(_) => None,
            Storage::Remote(remote) => Some(remote.clone()),
        }
    }
}

/// The storage of a mount.
struct Stored {
    storage: Storage,
    /// Nothing can be written to it.
    read_only: bool,
    /// A filesystem was just made there.
    made: bool,
}

/// The opened devices of a mount.
struct Opened {
    filesystem: Filesystem,
    /// Messages about the replay of a log.
    replayed: Vec<String>,
    backing: Backing,
    reopen: Reopen,
    follow: Option<Follow>,
}

/// How a mount of a volume follows its writer, if it is to.
fn follow(remote: Arc<remote::Remote>, engine: &Options) -> Option<Follow> {
    let (every, engine) = (remote.follow()?, engine.clone());
    let open = move |device| {
        let devices = devices_of(device, !engine.no_log_replay)?;
        Filesystem::open(devices, engine.clone(), Env::system()).map_err(|error| error.to_string())
    };
    Some(Follow { every, newer: Box::new(move || remote.newer(&open)) })
}

/// A device in a store as the engine takes it. With `with_log`, what its log has is there too, in memory.
fn devices_of(device: Arc<dyn BlockDevice>, with_log: bool) -> Result<Vec<Arc<dyn BlockDevice>>, String> {
    match with_log {
        true => overlay::with_log_replayed(vec![device]).map_err(|error| error.to_string()),
        false => Ok(vec![device]),
    }
}

/// The user who makes a filesystem with the mount is to be able to write there.
fn give_root_directory(filesystem: &Filesystem) -> Result<(), CliError> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    if uid == 0 {
        return Ok(());
    }
    let set = SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
    Ok(filesystem.setattr(&Default::default(), filesystem.root(), &set).map(drop)?)
}

/// Why there is no mount.
fn cannot_serve(sentence: String) -> CliError {
    let hint = sentence.contains("cannot be run").then_some("fusermount3 is in the package fuse3");
    hint.into_iter().fold(CliError::failed(sentence), |error, hint| error.hint(hint))
}

/// How commands are served. The proxy is this very program, also when another one has taken its place.
fn commands() -> Commands {
    let proxy = Proxy::Program { program: "/proc/self/exe".into(), name: PROXY.into() };
    Commands { carrier: crate::streams::carrier(), proxy }
}
