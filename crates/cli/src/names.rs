//! The names under which the program can be called. `mount -t butterfs` looks for `mount.butterfs`, `mkfs -t butterfs`
//! for `mkfs.butterfs`, programs that make images for `mkfs.btrfs`, fsck(8) for `fsck.butterfs`, umount(8) for
//! `umount.butterfs`: links to this program by those names run one subcommand directly. To remount a mount of type
//! `fuseblk.butterfs` without naming a type, mount(8) looks for `mount.fuseblk.butterfs`; without that link the kernel
//! alone is asked, which knows no option of ours.
//!
//! When a mount of type `fuse.butterfs` is remounted, mount(8) calls `mount.fuse`, which calls what stands after the
//! dot with a mount helper's arguments: `butterfs SOURCE DIR -o remount,...`.
//!
//! The process that serves a mount starts this program as [`PROXY`], see [`butterfs_fuse::control::proxy`].

use crate::commands::{Butterfs, Command, Run, check, mkfs, mount, umount};
use crate::error::CliError;
use crate::output::Format;
use butterfs_fuse::control::proxy;
use clap::Parser;
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

/// The names by which mount(8) calls.
const MOUNT_HELPERS: [&str; 3] = ["mount.butterfs", "mount.fuseblk.butterfs", "mount.fuse.butterfs"];

/// The name of the process between ordinary users and the one that serves a mount.
pub const PROXY: &str = "butterfs-control-proxy";

/// The kind of invocation.
#[derive(Debug)]
pub enum Invocation {
    /// A subcommand, and how its result is shown.
    Command(Command, Format),
    /// A call by mount(8).
    MountHelper(mount::Helper),
    /// A call by umount(8).
    UmountHelper(umount::Helper),
    /// A call by fsck(8).
    FsckHelper(check::Helper),
    /// The proxy, with its arguments; the process that serves a mount starts it.
    Proxy(Vec<OsString>),
}

impl Run for Invocation {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        match self {
            Invocation::Command(command, format) => command.run_as(format, out),
            Invocation::MountHelper(helper) => helper.run(out),
            Invocation::UmountHelper(helper) => helper.run(out),
            Invocation::FsckHelper(helper) => helper.run(out),
            Invocation::Proxy(arguments) => Ok(proxy::run(&arguments)?),
        }
    }
}

/// Takes a command line apart.
pub fn parse(arguments: &[OsString]) -> Result<Invocation, CliError> {
    Ok(match program_name(arguments) {
        PROXY => Invocation::Proxy(arguments[1..].to_vec()),
        "mkfs.butterfs" | "mkfs.btrfs" => Invocation::Command(
            Command::Mkfs(Box::new(mkfs::Standalone::try_parse_from(arguments)?.args)),
            Format::Text,
        ),
        "umount.butterfs" => Invocation::UmountHelper(
            umount::Helper::try_parse_from(arguments).map_err(|error| CliError::from(error).of_mount_helper())?,
        ),
        "fsck.butterfs" => Invocation::FsckHelper(check::Helper::try_parse_from(arguments)?),
        name if MOUNT_HELPERS.contains(&name) || is_remount(arguments) => Invocation::MountHelper(
            mount::Helper::try_parse_from(arguments).map_err(|error| CliError::from(error).of_mount_helper())?,
        ),
        _ => {
            let Butterfs { command, format } = Butterfs::try_parse_from(arguments)?;
            Invocation::Command(command, format)
        }
    })
}

/// Whether these are the arguments that `mount.fuse` makes.
fn is_remount(arguments: &[OsString]) -> bool {
    match arguments {
        [_, _, _, flag, options, ..] if flag == "-o" => {
            options.to_str().is_some_and(|list| list.split(',').any(|option| option == "remount"))
        }
        _ => false,
    }
}

/// The last component of the path that the program was called by.
fn program_name(arguments: &[OsString]) -> &str {
    arguments.first().and_then(|path| Path::new(path).file_name()).and_then(|name| name.to_str()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Invocation, CliError> {
        parse(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn the_name_picks_the_subcommand() {
        assert!(matches!(parsed("butterfs mkfs disk.img"), Ok(Invocation::Command(Command::Mkfs(_), _))));
        assert!(matches!(parsed("/usr/sbin/mkfs.butterfs disk.img"), Ok(Invocation::Command(Command::Mkfs(_), _))));
        assert!(matches!(
            parsed("/usr/sbin/mkfs.btrfs -q -L x disk.img"),
            Ok(Invocation::Command(Command::Mkfs(_), _))
        ));
        assert!(matches!(parsed("./renamed mkfs disk.img"), Ok(Invocation::Command(Command::Mkfs(_), _))));
        assert!(parsed("butterfs disk.img").is_err());
        for name in MOUNT_HELPERS {
            let line = format!("/sbin/{name} disk.img /mnt -o rw,nosuid -n -v");
            assert!(matches!(parsed(&line), Ok(Invocation::MountHelper(_))), "{name}");
        }
        assert!(matches!(parsed("butterfs disk.img /mnt -o rw,remount,nosuid"), Ok(Invocation::MountHelper(_))));
        assert!(parsed("butterfs disk.img /mnt -o rw,nosuid").is_err());
        assert!(matches!(parsed("/sbin/umount.butterfs /mnt -l -v"), Ok(Invocation::UmountHelper(_))));
        assert!(matches!(parsed("fsck.butterfs -a disk.img"), Ok(Invocation::FsckHelper(_))));
    }
}
