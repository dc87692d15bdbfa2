//! The addresses of the sockets of mounts: `MAJOR:MINOR.sock`, after the mount's device number, in a folder of the user
//! whose process serves the mount. Where others may enter the mount, root and that user connect to
//! `MAJOR:MINOR.owner.sock`, and commands that do not know it learn at the other one that they are of another version.
//!
//! | who serves | folder |
//! |---|---|
//! | root | `/run/butterfs` |
//! | a user, for herself | `/run/user/UID/butterfs` |
//! | a user, for others too, or where that is missing | `/tmp/butterfs-UID`, or with any ending where somebody else has taken that |
//!
//! # Invariants
//! 1. Only root and the owner can put something into a folder that is used: nobody else owns it, or may write in it or
//!    exchange it in the one that it lies in. Whoever connects checks the same, and who listens.
//! 2. A name leads to the server that came last; it takes the place of another one's by rename(2). Only a server that
//!    still has its name removes it. Both happen under a lock in the folder.

use super::is_trusted;
use crate::system::peer_credentials;
use rustix::fs::{Access, AtFlags, CWD, FlockOperation, Mode, OFlags, Stat, flock, fstat, statat};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::rand::{GetRandomFlags, getrandom};
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

const NAME: &str = "butterfs";
const SHARED: &str = "/tmp";
const LOCK: &str = "lock";
const KIND: u32 = 0o170_000;
const DIRECTORY: u32 = 0o040_000;
const STICKY: u32 = 0o1000;
const OTHERS_WRITE: u32 = 0o022;

/// The users who can connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whom {
    /// Root, and the user who serves the mount.
    Owners,
    /// The same, where there are no others.
    OwnersAlone,
    /// Everybody, by way of a [proxy](super::proxy).
    Guests,
}

impl Whom {
    fn mode(self) -> u32 {
        match self {
            Whom::Owners | Whom::OwnersAlone => 0o600,
            Whom::Guests => 0o666,
        }
    }
}

/// A name that leads to this process, as long as nobody takes it over.
pub struct Bound {
    folder: PathBuf,
    path: PathBuf,
    inode: (u64, u64),
}

impl Bound {
    /// Listens for the mount with this device number, in a folder that others get through when `for_all`. Nobody can
    /// connect before `hand_over` has the listener: whoever holds the last descriptor of it holds what clients have
    /// sent.
    pub fn bind(
        device: (u32, u32),
        whom: Whom,
        for_all: bool,
        hand_over: impl FnOnce(UnixListener) -> io::Result<()>,
    ) -> io::Result<Bound> {
        let folder = own_folder(rustix::process::geteuid().as_raw(), for_all)?;
        let _turn = turn(&folder)?;
        remove_dead(&folder);
        let path = folder.join(name(device, whom));
        let fresh = folder.join(format!(".{}.{}", name(device, whom), std::process::id()));
        remove(&fresh);
        hand_over(UnixListener::bind(&fresh)?)?;
        std::fs::set_permissions(&fresh, Permissions::from_mode(whom.mode()))?;
        let inode = inode_of(&fresh)?;
        std::fs::rename(&fresh, &path)?;
        Ok(Bound { folder, path, inode })
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // What stays behind is removed by the next server.
        if let Ok(_turn) = turn(&self.folder)
            && inode_of(&self.path).is_ok_and(|inode| inode == self.inode)
        {
            remove(&self.path);
        }
    }
}

/// A connection to whoever serves the mount with this device number, made by `user`. `None`: nobody listens.
pub fn connect(device: (u32, u32), user: u32) -> io::Result<Option<UnixStream>> {
    let is_safe = |folder: &PathBuf| is_owned(folder, user).is_ok_and(|is| is);
    for folder in folders(user).into_iter().chain(shared_folders(user)).filter(is_safe) {
        let connect = |whom| UnixStream::connect(folder.join(name(device, whom)));
        let connected = match connect(Whom::Owners) {
            // The server is dead. Its proxy may not be: a descriptor that it cannot let go of keeps its socket.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Err(error),
            owners => owners.or_else(|_| connect(Whom::Guests)),
        };
        match connected {
            Ok(stream) => {
                let server = peer_credentials(stream.as_fd())?.uid;
                if is_trusted(server, user) || is_outside(server) && folder == system_folder() {
                    return Ok(Some(stream));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(io::Error::new(error.kind(), "only root and the user who mounted it may ask"));
            }
            // Left behind by a dead server, or never there.
            Err(_) => {}
        }
    }
    Ok(None)
}

/// The device numbers of all mounts for which `user`'s processes may listen.
pub fn served(user: u32) -> Vec<(u32, u32)> {
    let is_safe = |folder: &PathBuf| is_owned(folder, user).is_ok_and(|is| is);
    let folders = folders(user).into_iter().chain(shared_folders(user)).filter(is_safe);
    let entries = folders.flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten());
    let mut all: Vec<_> = entries.filter_map(|entry| device_of(entry.file_name().to_str()?)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn device_of(name: &str) -> Option<(u32, u32)> {
    let number = name.strip_suffix(".owner.sock").or_else(|| name.strip_suffix(".sock"))?;
    let (major, minor) = number.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The turn to mount the filesystem with one UUID: of those who mount it at the same moment, all but the first find it
/// served. Mounts by other users, who cannot join, do not wait.
#[derive(Debug)]
pub struct MountTurn {
    path: PathBuf,
    _lock: File,
}

impl MountTurn {
    /// Waits for it.
    pub fn wait(fsid: &[u8; 16]) -> io::Result<MountTurn> {
        let name = format!("mount-{:032x}.lock", u128::from_be_bytes(*fsid));
        let path = own_folder(rustix::process::geteuid().as_raw(), false)?.join(name);
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        loop {
            let lock = File::from(rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600))?);
            rustix::io::retry_on_intr(|| flock(&lock, FlockOperation::LockExclusive))?;
            let stat = fstat(&lock)?;
            // Whoever had it before has removed the name.
            if inode_of(&path).is_ok_and(|inode| inode == (stat.st_dev, stat.st_ino)) {
                return Ok(MountTurn { path, _lock: lock });
            }
        }
    }
}

impl Drop for MountTurn {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// The paths at which a user's sockets are looked for, in words.
pub fn shown(device: (u32, u32), user: u32) -> String {
    let all = folders(user);
    let first = all.first().map_or(Path::new(SHARED), PathBuf::as_path);
    first.join(name(device, Whom::Guests)).display().to_string()
}

#[cfg(test)]
pub fn path_of(device: (u32, u32)) -> io::Result<PathBuf> {
    Ok(own_folder(rustix::process::geteuid().as_raw(), true)?.join(name(device, Whom::Owners)))
}

fn name((major, minor): (u32, u32), whom: Whom) -> String {
    match whom {
        Whom::Owners => format!("{major}:{minor}.owner.sock"),
        Whom::OwnersAlone | Whom::Guests => format!("{major}:{minor}.sock"),
    }
}

/// The folders that nobody else can take away.
fn folders(user: u32) -> Vec<PathBuf> {
    let system = (user == 0).then(system_folder);
    system.into_iter().chain([PathBuf::from(format!("/run/user/{user}/{NAME}"))]).collect()
}

fn system_folder() -> PathBuf {
    Path::new("/run").join(NAME)
}

/// The folders among those of everybody that may be the user's.
fn shared_folders(user: u32) -> Vec<PathBuf> {
    let own = format!("{NAME}-{user}");
    let is_own = |name: &str| name.strip_prefix(&own).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
    let entries = std::fs::read_dir(SHARED).into_iter().flatten().flatten();
    let paths = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_own)).map(|entry| entry.path());
    paths.collect()
}

/// The folder for the sockets of this process, made where it is missing.
fn own_folder(user: u32, for_all: bool) -> io::Result<PathBuf> {
    // Others do not get through a user's folder in /run.
    let of_system = folders(user).into_iter().filter(|_| user == 0 || !for_all);
    if let Some(folder) = of_system.into_iter().find(|folder| make(folder, user).is_ok()) {
        return Ok(folder);
    }
    let plain = Path::new(SHARED).join(format!("{NAME}-{user}"));
    let there = shared_folders(user).into_iter().find(|folder| is_owned(folder, user).is_ok_and(|is| is));
    if let Some(folder) = there.or_else(|| make(&plain, user).is_ok().then_some(plain)) {
        return Ok(folder);
    }
    let mut random = [0; 8];
    getrandom(&mut random, GetRandomFlags::empty())?;
    let folder = Path::new(SHARED).join(format!("{NAME}-{user}-{:016x}", u64::from_ne_bytes(random)));
    make(&folder, user).map(|()| folder)
}

/// Makes a folder that others may pass through, unless it is there; an error when it is not safe.
fn make(path: &Path, user: u32) -> io::Result<()> {
    match rustix::fs::mkdir(path, Mode::from_raw_mode(0o700)) {
        Ok(()) => std::fs::set_permissions(path, Permissions::from_mode(0o755))?,
        Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    match is_owned(path, user)? {
        // In a user namespace the system's folder is no longer root's own.
        true => Ok(rustix::fs::access(path, Access::WRITE_OK)?),
        false => Err(io::Error::other(format!("{} is not this user's folder alone", path.display()))),
    }
}

/// Whether a path is a folder that only `user` and root can put something into, and that nobody else can exchange.
fn is_owned(path: &Path, user: u32) -> io::Result<bool> {
    let parent = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let above = fstat(rustix::fs::open(parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)?;
    let mut stat = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)?;
    // Only the owner of /run could make it.
    if is_outside(stat.st_uid) && stat.st_uid == above.st_uid && path == system_folder() {
        stat.st_uid = 0;
    }
    let above_is_trusted = is_trusted(above.st_uid, user) || is_outside(above.st_uid);
    Ok(above_is_trusted && is_safe(&above, &stat, user))
}

fn is_safe(above: &Stat, stat: &Stat, user: u32) -> bool {
    let is_held = above.st_mode & STICKY != 0 || above.st_mode & OTHERS_WRITE == 0;
    is_held && stat.st_uid == user && stat.st_mode & KIND == DIRECTORY && stat.st_mode & OTHERS_WRITE == 0
}

/// Whether this is how a user namespace shows those who are outside of it, such as the system's root.
fn is_outside(uid: u32) -> bool {
    const OVERFLOW: u32 = 65534;
    let maps_all = |map: String| map.split_whitespace().eq(["0", "0", "4294967295"]);
    uid == OVERFLOW && !std::fs::read_to_string("/proc/self/uid_map").is_ok_and(maps_all)
}

/// Waits for the turn to change names in a folder of one's own. Nobody else can open the lock.
fn turn(folder: &Path) -> io::Result<File> {
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let lock = rustix::fs::open(folder.join(LOCK), flags, Mode::from_raw_mode(0o600))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    Ok(lock.into())
}

fn inode_of(path: &Path) -> io::Result<(u64, u64)> {
    let stat = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Removes the sockets that dead servers have left behind.
fn remove_dead(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_socket = entry.file_name().as_encoded_bytes().ends_with(b".sock");
        if is_socket && is_dead(&entry.path()).is_ok_and(|is| is) {
            remove(&entry.path());
        }
    }
}

/// Whether nobody listens at a socket. Never waits for a server that is alive and takes no connections.
fn is_dead(path: &Path) -> io::Result<bool> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    Ok(rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) == Err(rustix::io::Errno::CONNREFUSED))
}

fn remove(path: &Path) {
    // Another one has done it, or it is in nobody's way.
    let _ = std::fs::remove_file(path);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_that_nobody_else_can_fill_or_exchange_are_used() {
        let shape = |uid, mode| {
            let mut stat = statat(CWD, "/", AtFlags::empty()).unwrap();
            (stat.st_uid, stat.st_mode) = (uid, mode);
            stat
        };
        let cases = [
            ((0, 0o040_755), (0, 0o040_755), 0, true),
            ((0, 0o041_777), (7, 0o040_711), 7, true),
            ((0, 0o041_777), (8, 0o040_711), 7, false),
            ((0, 0o041_777), (7, 0o040_731), 7, false),
            ((0, 0o041_777), (7, 0o040_702), 7, false),
            ((0, 0o041_777), (7, 0o120_700), 7, false),
            ((0, 0o040_777), (7, 0o040_700), 7, false),
            ((7, 0o040_700), (7, 0o040_700), 7, true),
            ((0, 0o040_755), (8, 0o040_755), 0, false),
        ];
        for ((above, above_mode), (own, own_mode), user, safe) in cases {
            let found = is_safe(&shape(above, above_mode), &shape(own, own_mode), user);
            assert_eq!(found, safe, "{above} {above_mode:o} {own} {own_mode:o} for {user}");
        }
    }

    /// Runs `act` on a thread of another user.
    fn as_user<T: Send>(user: u32, act: impl FnOnce() -> T + Send) -> T {
        let uid = rustix::process::Uid::from_raw(user);
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
                act()
            });
            thread.join().unwrap()
        })
    }

    #[test]
    fn a_name_that_somebody_else_has_taken_is_left_alone() {
        if !rustix::process::geteuid().is_root() {
            return butterfs_testkit::requirement::skip(
                "a_name_that_somebody_else_has_taken_is_left_alone",
                "needs root",
            );
        }
        let (user, other, device) = (1_000_000 + std::process::id(), 999_999, (std::process::id(), 9));
        let taken = Path::new(SHARED).join(format!("{NAME}-{user}"));
        let squatter = as_user(other, || {
            std::fs::create_dir(&taken).unwrap();
            UnixListener::bind(taken.join(name(device, Whom::Guests))).unwrap()
        });
        let mut listener = None;
        let keep = |fresh| {
            listener = Some(fresh);
            Ok(())
        };
        let bound = as_user(user, || Bound::bind(device, Whom::Guests, true, keep)).unwrap();
        assert!(bound.path.starts_with(SHARED) && !bound.path.starts_with(&taken), "{}", bound.path.display());
        let connected = connect(device, user).unwrap().expect("root finds it");
        assert_eq!(peer_credentials(connected.as_fd()).unwrap().uid, user);
        assert!(as_user(other, || connect(device, user)).unwrap().is_some(), "others find the same");
        drop((listener, squatter));
        let folder = bound.folder.clone();
        drop(bound);
        assert!(connect(device, user).unwrap().is_none());
        for folder in [folder, taken] {
            std::fs::remove_dir_all(folder).unwrap();
        }
    }
}
