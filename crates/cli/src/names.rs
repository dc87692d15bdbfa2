//! The names under which the program can be called. `mount -t butterfs` looks for `mount.butterfs`, `mkfs -t butterfs`
//! for `mkfs.butterfs`: links to this program by those names run one subcommand directly.
//!
//! When a mount of type `fuse.butterfs` is remounted, mount(8) calls `mount.fuse`, which calls what stands after the dot
//! with a mount helper's arguments: `butterfs SOURCE DIR -o remount,...`.

use crate::commands::{Butterfs, Command, mkfs, mount};
use crate::error::CliError;
use clap::Parser;
use std::ffi::OsString;
use std::path::Path;

/// Turns a command line into the subcommand that it asks for.
pub fn parse(arguments: &[OsString]) -> Result<Command, CliError> {
    Ok(match program_name(arguments) {
        "mkfs.butterfs" => Command::Mkfs(mkfs::Standalone::try_parse_from(arguments)?.args),
        "mount.butterfs" => Command::Mount(mount::Helper::try_parse_from(arguments)?.into_args()),
        _ if is_remount(arguments) => Command::Mount(mount::Helper::try_parse_from(arguments)?.into_args()),
        _ => Butterfs::try_parse_from(arguments)?.command,
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

    fn parsed(line: &str) -> Result<Command, CliError> {
        parse(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn the_name_picks_the_subcommand() {
        assert!(matches!(parsed("butterfs mkfs disk.img"), Ok(Command::Mkfs(_))));
        assert!(matches!(parsed("/usr/sbin/mkfs.butterfs disk.img"), Ok(Command::Mkfs(_))));
        assert!(matches!(parsed("./renamed mkfs disk.img"), Ok(Command::Mkfs(_))));
        assert!(parsed("butterfs disk.img").is_err());
        assert!(matches!(parsed("mount.butterfs disk.img /mnt -o rw,nosuid -n -v"), Ok(Command::Mount(_))));
        assert!(matches!(parsed("butterfs disk.img /mnt -o rw,remount,nosuid"), Ok(Command::Mount(_))));
        assert!(parsed("butterfs disk.img /mnt -o rw,nosuid").is_err());
    }
}
