//! The fingerprint of a folder as the system shows it, whichever filesystem is mounted there.

use super::{ContentHash, Fingerprint, PathFingerprint};
use crate::operation::{Kind, Moment};
use crate::xattrs;
use rustix::fs::{AtFlags, Dir, Mode, OFlags, SeekFrom, Statx, StatxFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// The inode number of the folder that stands for a subvolume inside a snapshot; its times are those of the mount.
const STAND_IN_INODE: u64 = 2;

type Inodes = Vec<(Vec<u8>, (u32, u32, u64))>;

impl Fingerprint {
    /// Looks at everything below `root`.
    pub fn of_tree(root: &Path) -> Fingerprint {
        let mut print = Fingerprint::default();
        let mut inodes = Inodes::new();
        let mut folders = vec![Vec::new()];
        while let Some(folder) = folders.pop() {
            let path = below(root, &folder);
            let entry =
                entry(&path, &folder, &mut inodes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            if entry.kind == Kind::Folder {
                let inside = names(&path).unwrap_or_else(|error| panic!("{}: cannot list: {error}", path.display()));
                folders.extend(inside.into_iter().map(|name| joined(&folder, &name)));
            }
            print.entries.insert(folder, entry);
        }
        print.numbers = inodes.iter().map(|(path, (_, _, number))| (path.clone(), *number)).collect();
        print.group_links(inodes);
        print
    }
}

fn joined(folder: &[u8], name: &[u8]) -> Vec<u8> {
    if folder.is_empty() { name.to_vec() } else { [folder, b"/", name].concat() }
}

fn below(root: &Path, path: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    if path.is_empty() { root.to_owned() } else { root.join(std::ffi::OsStr::from_bytes(path)) }
}

fn names(folder: &Path) -> Result<Vec<Vec<u8>>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = Dir::new(rustix::fs::open(folder, flags, Mode::empty())?)?;
    let mut names = Vec::new();
    for entry in dir {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    Ok(names)
}

fn moment(time: rustix::fs::StatxTimestamp) -> Moment {
    Moment { sec: time.tv_sec, nsec: time.tv_nsec }
}

fn entry(path: &Path, relative: &[u8], inodes: &mut Inodes) -> Result<PathFingerprint, String> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let at = |what: &'static str| move |error: Errno| format!("{what}: {error}");
    let stat = rustix::fs::statx(rustix::fs::CWD, path, AtFlags::SYMLINK_NOFOLLOW, wanted).map_err(at("statx"))?;
    let kind = Kind::of_mode(u32::from(stat.stx_mode));
    inodes.push((relative.to_vec(), (stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino)));
    let mut entry = of_statx(&stat, kind);
    entry.xattrs = xattrs(path).map_err(at("xattrs"))?;
    match kind {
        Kind::Symlink => {
            let target = rustix::fs::readlink(path, Vec::new()).map_err(at("readlink"))?;
            entry.target = Some(target.into_bytes());
        }
        Kind::File => {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::open(path, flags, Mode::empty()).map_err(at("open"))?;
            let data = data_ranges(&file, stat.stx_size).map_err(at("lseek"))?;
            entry.content = Some(content(&file, stat.stx_size, &data).map_err(at("read"))?);
            entry.data = Some(data);
        }
        _ => {}
    }
    Ok(entry)
}

fn of_statx(stat: &Statx, kind: Kind) -> PathFingerprint {
    let stands_in = kind == Kind::Folder && stat.stx_ino == STAND_IN_INODE;
    let time = |time| (!stands_in).then(|| moment(time));
    let has_btime = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
    PathFingerprint {
        kind,
        mode: u32::from(stat.stx_mode) & 0o7777,
        links: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        size: stat.stx_size,
        device: (stat.stx_rdev_major, stat.stx_rdev_minor),
        atime: time(stat.stx_atime),
        mtime: time(stat.stx_mtime),
        ctime: time(stat.stx_ctime),
        btime: time(stat.stx_btime).filter(|_| has_btime),
        blocks: Some(stat.stx_blocks),
        xattrs: BTreeMap::new(),
        first_path: None,
        target: None,
        content: None,
        data: None,
    }
}

fn xattrs(path: &Path) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Errno> {
    let names = xattrs::names(path)?.into_iter();
    names.map(|name| xattrs::value(path, &name).map(|value| (name, value))).collect()
}

/// The data ranges according to SEEK_DATA and SEEK_HOLE.
pub(super) fn data_ranges(file: &OwnedFd, size: u64) -> Result<Vec<(u64, u64)>, Errno> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error),
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(start))?;
        assert!(end > start && start >= at, "SEEK_HOLE({start}) = {end} after SEEK_DATA({at})");
        ranges.push((start, end));
        at = end;
    }
    Ok(ranges)
}

/// Files up to this size are read whole, so that holes are read too.
pub(super) const READ_WHOLE_BYTES: u64 = 16 << 20;

fn content(file: &OwnedFd, size: u64, data: &[(u64, u64)]) -> Result<u64, Errno> {
    let whole = [(0, size)];
    let ranges = if size <= READ_WHOLE_BYTES { &whole } else { data };
    let mut hash = ContentHash::default();
    let mut buffer = vec![0; size.min(1 << 20) as usize];
    for (start, end) in ranges {
        let mut at = *start;
        while at < *end {
            let wanted = buffer.len().min((end - at) as usize);
            let len = read_full(file, &mut buffer[..wanted], at)?;
            if len == 0 {
                break;
            }
            hash.update(at, &buffer[..len]);
            at += len as u64;
        }
    }
    Ok(hash.finish())
}

fn read_full(file: &OwnedFd, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let mut done = 0;
    while done < buffer.len() {
        match rustix::io::pread(file, &mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(len) => done += len,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
