//! Commands to a mount that another process serves: unmount it and wait for the process, remount it, sync it.
//!
//! Errors are sentences for the user.

use crate::control::{self, ControlClient, Waiter};
use crate::mount::mountinfo::{self, Mount};
use crate::mount::{self, Flags, MountOptions};
use crate::system;
use butterfs_control::{MountAnswer, MountQuestion, Order, question};
use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a process may take to notice that its mount is gone, before the mount counts as visible elsewhere.
const NOTICE: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(100);

/// How an unmount went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmounted {
    /// Everything is durable and the process has ended.
    Ended,
    /// Everything is durable, and the filesystem has other mounts.
    OthersRemain,
    /// Everything is durable, but the filesystem is still mounted in a place that cannot be seen.
    MountedElsewhere,
}

/// Unmounts, and returns when everything is durable and the serving process has ended.
pub fn unmount(path: &Path) -> Result<Unmounted, String> {
    let mount = our_mount(path)?;
    let shown = mount.mountpoint.display();
    let asking = |error: io::Error| format!("cannot ask the process that serves {shown}: {error}");
    let waiter = match find(&mount)? {
        Some(client) => client.wait().map_err(asking)?,
        None => None,
    };
    mount::unmount(&mount.mountpoint, false).map_err(|error| match error.kind() {
        io::ErrorKind::ResourceBusy => format!("{shown} is in use"),
        _ => format!("cannot unmount {shown}: {error}"),
    })?;
    if has_others(&mount) && order(&mount, Order::Sync).is_ok() {
        return Ok(Unmounted::OthersRemain);
    }
    match waiter {
        Some(waiter) => wait_for_end(&mount, waiter),
        // Who may unmount in a namespace of her own, and no more.
        None if is_serving(&mount) => Ok(Unmounted::MountedElsewhere),
        None => Err(format!("{shown} is unmounted, but nobody could be asked whether everything is durable")),
    }
}

/// Whether the filesystem of a mount that is gone can still be seen.
fn has_others(mount: &Mount) -> bool {
    mountinfo::all().is_ok_and(|all| all.iter().any(|other| other.device == mount.device && other.is_ours()))
}

fn wait_for_end(mount: &Mount, mut waiter: Waiter) -> Result<Unmounted, String> {
    let shown = mount.mountpoint.display();
    let mut waited = Duration::ZERO;
    loop {
        match waiter.end_within(POLL) {
            Ok(Some(Ok(()))) => return Ok(Unmounted::Ended),
            Ok(Some(Err(why))) => return Err(format!("{shown} is unmounted, but not everything is durable: {why}")),
            Ok(None) => waited += POLL,
            Err(error) => return Err(format!("the process that served {shown} cannot be waited for: {error}")),
        }
        if waited == NOTICE && is_serving(mount) {
            return order(mount, Order::Sync).map(|()| Unmounted::MountedElsewhere);
        }
    }
}

fn is_serving(mount: &Mount) -> bool {
    let Ok(Some(mut client)) = find(mount) else { return false };
    matches!(client.is_ending(), Ok(false))
}

/// Gives an existing mount these flags, and has its new data stored as `data` says, where that says anything.
pub fn remount(path: &Path, flags: &Flags, data: &[String]) -> Result<(), String> {
    let mount = our_mount(path)?;
    if flags.read_only {
        order(&mount, Order::Sync)?;
        change(&mount, flags)?;
        // The server refuses while it works on the devices; then the mount becomes writable again.
        order(&mount, Order::MakeReadOnly).inspect_err(|_| change_back(&mount))?;
    } else {
        order(&mount, Order::MakeWritable)?;
        change(&mount, flags)?;
    }
    if data.is_empty() { Ok(()) } else { store_data(&mount, data) }
}

/// The options of a mount, comma-separated: its own flags, then those of the filesystem.
pub fn options(path: &Path) -> Result<String, String> {
    let mount = our_mount(path)?;
    let shown = mount.mountpoint.display();
    let asked = find_server(&mount)?.ask_about_mounts(MountQuestion::ShowOptions);
    let (answer, _) = asked.map_err(|error| format!("cannot ask the process that serves {shown}: {error}"))?;
    let options = match answer {
        MountAnswer::Options(options) => options,
        MountAnswer::Refused(refusal) => return Err(format!("{shown}: {}", refusal.sentence)),
        _ => return Err(format!("{shown}: the answer makes no sense")),
    };
    // The superblock may be read-only where the mount is not.
    let access = if mount.is_read_only() { "ro" } else { "rw" };
    let own = mount.options.to_string_lossy();
    let own = own.split(',').filter(|option| !["ro", "rw"].contains(option)).map(str::to_owned);
    let theirs = options.split(',').filter(|option| !option.is_empty()).map(str::to_owned);
    Ok([access.to_owned()].into_iter().chain(own).chain(theirs).collect::<Vec<_>>().join(","))
}

fn store_data(mount: &Mount, options: &[String]) -> Result<(), String> {
    let shown = mount.mountpoint.display();
    let asking = |error: io::Error| format!("cannot ask the process that serves {shown}: {error}");
    let mut client = find_server(mount)?;
    let answer = client.ask(question::StoreData { options: options.to_vec() }, &[]).map_err(asking)?;
    answer.map(drop).map_err(|refusal| format!("{shown}: {}", refusal.sentence))
}

/// Gives a mount the flags again that it had.
fn change_back(mount: &Mount) {
    if mount.is_read_only() {
        return;
    }
    let had = format!("{},{}", mount.options.to_string_lossy(), mount.super_options.to_string_lossy());
    let known = had.split(',').filter(|item| MountOptions::parse([*item]).is_ok());
    if let Ok(had) = MountOptions::parse(known) {
        // The caller returns the refusal; an error of this adds nothing to it.
        let _ = change(mount, &had.flags);
    }
}

fn change(mount: &Mount, flags: &Flags) -> Result<(), String> {
    let shown = mount.mountpoint.display();
    mount::remount(&mount.mountpoint, flags).map_err(|error| match error.kind() {
        io::ErrorKind::ResourceBusy => format!("{shown} is in use"),
        _ => format!("cannot remount {shown}: {error}"),
    })
}

fn order(mount: &Mount, order: Order) -> Result<(), String> {
    let shown = mount.mountpoint.display();
    let mut client = find_server(mount)?;
    let answer = client.order(order).map_err(|error| format!("cannot ask the process that serves {shown}: {error}"))?;
    answer.map_err(|why| format!("{shown}: {why}"))
}

/// Makes everything durable on the filesystem that `path` is on, ours or the kernel's btrfs.
pub fn sync(path: &Path) -> Result<(), String> {
    let shown = path.display();
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| cannot_open(path, error.into()))?;
    rustix::fs::syncfs(&file).map_err(|error| format!("cannot sync {shown}: {}", io::Error::from(error)))?;
    system::sync_btrfs(file.as_fd()).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOTTY) => format!("{shown} is not on a btrfs filesystem"),
        _ => format!("cannot sync {shown}: {error}"),
    })
}

/// A connection for questions to the process that serves the mount on which something with this device number lies.
pub fn ask_about(device: (u32, u32)) -> Result<ControlClient, String> {
    let mounts = mountinfo::all().map_err(|error| cannot_open(&PathBuf::from("/proc/self/mountinfo"), error))?;
    let mount = mounts.into_iter().find(|mount| mount.device == device && mount.is_ours());
    find_server(&mount.ok_or("not on a butterfs mount")?)
}

fn find_server(mount: &Mount) -> Result<ControlClient, String> {
    find(mount)?.ok_or_else(|| {
        format!(
            "nobody answers for {}: no server listens at {}; it has died, or it was started where this mount namespace \
             does not see",
            mount.mountpoint.display(),
            control::shown_address(mount.device, mount.user().unwrap_or(0))
        )
    })
}

fn cannot_open(path: &Path, error: io::Error) -> String {
    match left_alone(&error) {
        true => format!("{}: {LEFT_ALONE}", path.display()),
        false => format!("cannot open {}: {error}", path.display()),
    }
}

/// Why nothing can be done on a mount without a server, and what helps.
pub const LEFT_ALONE: &str = "the process that served this mount has ended; 'butterfs umount' takes the mount away";

/// Whether a path could not be used because the server of its mount is gone.
pub fn left_alone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED))
}

/// The mount at `path`, if it is one of ours.
fn our_mount(path: &Path) -> Result<Mount, String> {
    let mountpoint = mountinfo::absolute_mountpoint(path).map_err(|error| cannot_open(path, error))?;
    let found =
        mountinfo::at(&mountpoint).map_err(|error| cannot_open(&PathBuf::from("/proc/self/mountinfo"), error))?;
    let mount = found.ok_or_else(|| format!("{} is not a mount point", path.display()))?;
    if !mount.is_ours() {
        return Err(format!("{} is not a butterfs mount but {}", path.display(), mount.kind.display()));
    }
    Ok(mount)
}

fn find(mount: &Mount) -> Result<Option<ControlClient>, String> {
    let user = mount.user().unwrap_or(0);
    let asking = |error| format!("cannot ask the process that serves {}: {error}", mount.mountpoint.display());
    ControlClient::find(mount.device, user).map_err(asking)
}
