//! Mounting and unmounting without privileges, through the setuid helper `fusermount3`.
//!
//! The helper opens `/dev/fuse`, mounts, and passes the descriptor back over a socket whose number it finds in its
//! environment. It adds `nosuid` and `nodev`.

use super::{Flags, Kind, Mounted, Place, Request, SUBTYPE};
use crate::transport::DevFuse;
use rustix::cmsg_space;
use rustix::io::FdFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg, socketpair,
};
use std::ffi::{OsStr, OsString};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};

const HELPER: &str = "fusermount3";

/// Mounts, type `fuse`.
pub fn mount(request: &Request) -> io::Result<Mounted> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The helper must inherit its end.
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty())?;
    let mut command = Command::new(HELPER);
    command.env("_FUSE_COMMFD", theirs.as_raw_fd().to_string());
    command.arg("-o").arg(options(request)).arg("--").arg(&request.mountpoint);
    let output = run(&mut command)?;
    drop(theirs);
    if !output.status.success() {
        return Err(said(&output));
    }
    match receive_descriptor(&ours)? {
        Some(fd) => Ok(Mounted { device: DevFuse::from_connected(fd), kind: Kind::Fuse, place: Place::Mountpoint }),
        None => Err(said(&output)),
    }
}

/// Unmounts what this user mounted.
pub fn unmount(mountpoint: &Path, lazily: bool) -> io::Result<()> {
    let mut command = Command::new(HELPER);
    command.arg("-u").args(lazily.then_some("-z")).arg("--").arg(mountpoint);
    let output = run(&mut command)?;
    if output.status.success() { Ok(()) } else { Err(said(&output)) }
}

fn run(command: &mut Command) -> io::Result<Output> {
    command.stdin(Stdio::null()).output().map_err(|error| {
        let what = format!("{HELPER}, which mounts for users who may not, cannot be run: {error}");
        io::Error::new(error.kind(), what)
    })
}

/// The helper's last words, as an error.
fn said(output: &Output) -> io::Error {
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no reason given").trim();
    io::Error::other(format!("{HELPER}: {}", line.strip_prefix(HELPER).unwrap_or(line).trim_start_matches([':', ' '])))
}

fn options(request: &Request) -> OsString {
    let Flags { read_only, noexec, noatime, nodiratime, sync, dirsync, .. } = request.flags;
    let switches = [
        ("allow_other", request.allow_other),
        ("ro", read_only),
        ("noexec", noexec),
        ("noatime", noatime),
        ("nodiratime", nodiratime),
        ("sync", sync),
        ("dirsync", dirsync),
    ];
    let mut options = format!("default_permissions,subtype={SUBTYPE},fsname=").into_bytes();
    options.extend(escaped(&request.source));
    for (name, _) in switches.iter().filter(|(_, on)| *on) {
        options.push(b',');
        options.extend(name.as_bytes());
    }
    OsString::from_vec(options)
}

/// The helper splits its options at commas that no backslash stands before.
fn escaped(value: &OsStr) -> impl Iterator<Item = u8> {
    let escape = |byte: &u8| matches!(byte, b',' | b'\\').then_some(b'\\').into_iter().chain([*byte]);
    value.as_bytes().iter().flat_map(escape)
}

/// The descriptor that comes with one byte; none when the helper closed the socket instead.
fn receive_descriptor(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut byte)];
    rustix::io::retry_on_intr(|| recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC))?;
    Ok(ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    }))
}

#[cfg(test)]
mod tests {
    use super::super::Backing;
    use super::*;

    #[test]
    fn the_helper_gets_one_list() {
        let request = Request {
            source: "/a,b\\c".into(),
            mountpoint: "/mnt".into(),
            flags: Flags { read_only: true, ..Flags::default() },
            allow_other: false,
            backing: Backing::Unclaimed,
            sector_bytes: 4096,
        };
        assert_eq!(options(&request), "default_permissions,subtype=butterfs,fsname=/a\\,b\\\\c,ro");
    }
}
