//! Serves one filesystem, from its first mount to the last commit.
//!
//! # Invariants
//! 1. Threads that answer exist before anybody waits for an answer; INIT is answered before the mount is announced.
//! 2. The paths that are looked up after mounting are none of the mount's own: that would be waiting for oneself.
//! 3. Orders are taken before the first request is served: whoever sees the mount answer can give one.
//! 4. When the kernel has let go, everything is committed before the process ends, unless the server's state is not to
//!    be trusted.

use crate::Log;
use crate::adaptor::{Adaptor, Carrier, Reopen};
use crate::control::{Carry, ControlServer, Powers, Proxy, Respond};
use crate::memory::Tide;
use crate::mount::{self, Place, mountinfo};
use crate::mounts::{self, Asked, Mounts};
use crate::session::{End, Refusal, Session, connect};
use crate::system;
pub use crate::system::{hold_termination, keep_descriptors, wait_for_termination};
use crate::transport::Transport;
use crate::transport::rings::Registered;
use butterfs_control::{Order, Storage};
use butterfs_fs::{Filesystem, Ino, InodeId, TreeId};
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Read-ahead of a mount that root makes; what the kernel gives its own btrfs.
const READ_AHEAD_KIB: u32 = 4096;
/// Most threads to begin with.
const MOST_THREADS: usize = 16;
/// The root directory of the top level.
const TOP_LEVEL: InodeId = InodeId { tree: TreeId::FS, ino: Ino::ROOT_DIR };
/// Polling interval for device messages, and how many are passed on at once.
const LOOK: Duration = Duration::from_secs(1);
const MOST_TOLD: usize = 16;

/// Makes this process ready to serve: it must not wait for its own filesystem to get memory, and is told of signals
/// that ask it to end; a limit on the size of files is an error of a device. Before the first thread is started, so
/// before a filesystem is opened.
pub fn prepare() {
    // Only with CAP_SYS_RESOURCE; without it there is no other way.
    let _ = rustix::process::configure_io_flusher_behavior(true);
    system::hold_termination();
    system::ignore_file_size_signal();
}

/// The parts that serving commands needs.
pub struct Commands {
    /// Answers questions about streams.
    pub carrier: Carrier,
    /// Takes the connections of ordinary users.
    pub proxy: Proxy,
}

/// A look at a filesystem that is only read here and that another host changes.
pub struct Follow {
    /// The wait between two looks.
    pub every: Duration,
    /// The filesystem as it is now; none when it has not changed since the last look. The error is a sentence.
    pub newer: Box<dyn Fn() -> Result<Option<Filesystem>, String> + Send>,
}

/// The content that is served.
pub struct Content {
    /// The filesystem.
    pub filesystem: Filesystem,
    /// Opens it once more, for writing, where it was opened read-only.
    pub reopen: Reopen,
    /// Another host changes it, and the mount shows that.
    pub follow: Option<Follow>,
    /// The root directory of the subvolume that the first mount shows.
    pub shown: InodeId,
    /// Its storage.
    pub storage: Vec<Storage>,
}

/// A mounted filesystem that answers.
pub struct Service {
    session: Session,
    adaptor: Arc<Adaptor>,
    control: Option<ControlServer>,
    kind: mount::Kind,
    log: Log,
}

impl Service {
    /// Mounts a filesystem and starts answering over `transport`. The error is a sentence.
    pub fn start(
        content: Content,
        commands: Commands,
        (request, transport): (&mount::Request, Transport),
        log: Log,
    ) -> Result<Service, String> {
        let shown_root = content.filesystem.getattr(content.shown);
        shown_root.map_err(|error| format!("the root directory cannot be read: {error}"))?;
        let shown = request.mountpoint.display();
        let (mounted, rings) = match mount_and_connect(request, transport)? {
            Ok(connected) => connected,
            Err(why) => {
                log(&format!("{shown} is served over /dev/fuse: {why}"));
                mount_and_connect(request, Transport::Classic)??
            }
        };
        let is_visible = matches!(mounted.place, Place::Mountpoint);
        let asked = Asked { flags: request.flags, transport };
        Service::answer(content, commands, (mounted, rings), (request, asked), log)
            .map_err(|error| cannot_serve(request, is_visible, &error.to_string()))
    }

    fn answer(
        content: Content,
        commands: Commands,
        (mounted, rings): Connection,
        (request, asked): (&mount::Request, Asked),
        log: Log,
    ) -> io::Result<Service> {
        let mount::Mounted { device: connection, kind, place } = mounted;
        let Content { filesystem, reopen, follow, shown, storage } = content;
        let threads = std::thread::available_parallelism().map_or(2, usize::from).clamp(2, MOST_THREADS);
        let (device, top) = match &place {
            Place::Detached(root, _) => (Some(mount::device_number(root)?), TOP_LEVEL),
            Place::Mountpoint => (mountinfo::at(&request.mountpoint)?.map(|mount| mount.device), shown),
        };
        let path = filesystem.subvolume_path(shown.tree).map_err(io::Error::other)?;
        let follows = follow.as_ref().map(|follow| follow.every);
        let adaptor = Arc::new(Adaptor::new((filesystem, reopen), follows, connection.another()?, top, shown.tree));
        if let Some(device) = device {
            adaptor.mounted_as(device);
            raise_read_ahead(device, kind);
        }
        let (root, superblock) = match place {
            Place::Detached(root, superblock) => (Some(root), Some(superblock)),
            Place::Mountpoint => (None, None),
        };
        let mounts = Mounts::new(Arc::clone(&adaptor), superblock, asked, storage);
        let control =
            device.and_then(|device| open_control(device, request.allow_other, &adaptor, (commands, mounts), &log));
        let session = Session::over(connection, rings, adaptor.clone(), threads, log.clone())?;
        root.map_or(Ok(()), |root| mounts::show_first(root, &path, request))?;
        if let Some(device) = device {
            unmount_on_termination(device, log.clone())?;
        }
        watch_devices(Arc::downgrade(&adaptor), log.clone())?;
        follow.map_or(Ok(()), |follow| keep_up(Arc::downgrade(&adaptor), follow, log.clone()))?;
        Ok(Service { session, adaptor, control, kind, log })
    }

    /// The kind of the mount.
    pub fn kind(&self) -> mount::Kind {
        self.kind
    }

    /// Waits for the unmount, makes everything durable, has `close` give the storage up, and tells those who wait for
    /// it. The error is a sentence.
    pub fn finish(self, close: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
        let end = self.session.wait();
        if let Some(control) = &self.control {
            control.ending();
        }
        let outcome = match end {
            End::Unmounted => self.adaptor.close().and_then(|()| close()),
            End::Broken => Err("the server failed; changes since the last commit are lost".to_owned()),
        };
        tell(&self.adaptor, &self.log);
        if let Some(control) = &self.control {
            control.end(outcome.clone());
        }
        outcome
    }
}

/// A mount on which INIT is answered, with the queues of io_uring where it has them.
type Connection = (mount::Mounted, Option<Registered>);

/// Mounts and answers INIT. The inner error: why io_uring, which was asked for where possible, does not do; nothing is
/// mounted then.
fn mount_and_connect(request: &mount::Request, transport: Transport) -> Result<Result<Connection, String>, String> {
    let shown = request.mountpoint.display();
    let mounted = mount::mount(request).map_err(|error| format!("cannot mount on {shown}: {error}"))?;
    match connect(&mounted.device, transport) {
        Ok(connected) => Ok(Ok((mounted, connected.rings))),
        Err(refusal) => {
            let is_visible = matches!(mounted.place, Place::Mountpoint);
            drop(mounted);
            let why = match refusal {
                Refusal::Rings(why) if transport == Transport::Auto => {
                    let _ = cannot_serve(request, is_visible, &why);
                    return Ok(Err(why));
                }
                refusal => io::Error::from(refusal).to_string(),
            };
            Err(cannot_serve(request, is_visible, &why))
        }
    }
}

/// Takes a mount away that nobody answers: it only makes others wait.
fn cannot_serve(request: &mount::Request, is_visible: bool, why: &str) -> String {
    if is_visible {
        let _ = mount::unmount(&request.mountpoint, true);
    }
    format!("cannot serve {}: {why}", request.mountpoint.display())
}

/// Without a control server the mount works, and `umount` cannot wait for its end.
fn open_control(
    device: (u32, u32),
    for_all: bool,
    adaptor: &Arc<Adaptor>,
    (Commands { carrier, proxy }, mounts): (Commands, Mounts),
    log: &Log,
) -> Option<ControlServer> {
    let for_questions = Arc::clone(adaptor);
    let answer: Respond = Arc::new(move |asked, sink| for_questions.perform(asked, sink));
    let for_streams = Arc::clone(adaptor);
    let carry: Carry = Arc::new(move |asked, stream, tell| for_streams.carry(&carrier, asked, stream, tell));
    let adaptor = Arc::clone(adaptor);
    let obey = move |order| match order {
        Order::Sync => adaptor.sync(),
        Order::MakeWritable => adaptor.set_read_only(false),
        Order::MakeReadOnly => adaptor.set_read_only(true),
    };
    let mounts = Arc::new(move |question: &_| mounts.answer(question));
    let powers = Powers { obey: Arc::new(obey), respond: answer, carry, mounts, for_all, proxy };
    ControlServer::open(device, powers, log.clone())
        .inspect_err(|error| log(&format!("orders cannot be taken: {error}")))
        .ok()
}

/// Tells of bad copies and failing devices, and gives memory back, as long as the mount is served.
fn watch_devices(adaptor: Weak<Adaptor>, log: Log) -> io::Result<()> {
    let mut tide = Tide::default();
    let watch = move || {
        while let Some(adaptor) = adaptor.upgrade() {
            tell(&adaptor, &log);
            if tide.ages() {
                adaptor.age_caches();
            }
            if tide.ebbs(adaptor.memory_held()) {
                system::give_memory_back();
            }
            drop(adaptor);
            std::thread::sleep(LOOK);
        }
    };
    std::thread::Builder::new().name("devices".into()).spawn(watch).map(drop)
}

/// Shows what another host does to the filesystem, until a mount of this one becomes writable.
fn keep_up(adaptor: Weak<Adaptor>, follow: Follow, log: Log) -> io::Result<()> {
    let watch = move || {
        let mut behind = false;
        loop {
            std::thread::sleep(follow.every);
            if !adaptor.upgrade().is_some_and(|adaptor| adaptor.is_replaceable()) {
                return;
            }
            let shown = (follow.newer)().and_then(|newer| match (newer, adaptor.upgrade()) {
                (Some(newer), Some(adaptor)) => adaptor.show(newer),
                _ => Ok(()),
            });
            match &shown {
                Err(why) if !behind => log(&format!("the mount shows an older state, and tries to follow: {why}")),
                Ok(_) if behind => log("the mount follows again"),
                _ => {}
            }
            behind = shown.is_err();
        }
    };
    std::thread::Builder::new().name("follow".into()).spawn(watch).map(drop)
}

fn tell(adaptor: &Adaptor, log: &Log) {
    let messages = adaptor.take_messages();
    messages.iter().take(MOST_TOLD).for_each(|message| log(message));
    if messages.len() > MOST_TOLD {
        log(&format!("and {} more of the devices", messages.len() - MOST_TOLD));
    }
}

/// The kernel's default for FUSE is 128 KiB, which only root can raise.
fn raise_read_ahead(device: (u32, u32), kind: mount::Kind) {
    let suffix = if kind == mount::Kind::FuseBlock { "-fuseblk" } else { "" };
    let path = format!("/sys/class/bdi/{}:{}{suffix}/read_ahead_kb", device.0, device.1);
    // Slower without.
    let _ = std::fs::write(path, READ_AHEAD_KIB.to_string());
}

/// A signal that asks the process to end unmounts every mount that this process can see, and the rest follows from
/// that. When a mount is in use it goes out of sight, and the process serves on until the last user is gone.
fn unmount_on_termination(device: (u32, u32), log: Log) -> io::Result<()> {
    let watch = move || {
        loop {
            system::wait_for_termination();
            if let Err(error) = leave(device) {
                log(&format!("cannot unmount: {error}"));
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(watch).map(drop)
}

fn leave(device: (u32, u32)) -> io::Result<()> {
    let ours = mountinfo::all()?.into_iter().filter(|mount| mount.device == device).rev();
    ours.map(|mount| mount.mountpoint).try_for_each(|mountpoint| {
        let left = mount::unmount(&mountpoint, false).or_else(|_| mount::unmount(&mountpoint, true));
        left.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", mountpoint.display())))
    })
}
