//! `butterfs inspect-internal rootid`, `subvolid-resolve`, `inode-resolve` and `logical-resolve`: from numbers to
//! paths.

use super::number;
use crate::commands::Run;
use crate::error::CliError;
use crate::open_filesystem::{ImageArgument, Intent, OpenFilesystem, about, plain};
use butterfs_control::question::{FindPaths, FindPathsById, FindSubvolume, FindSubvolumePath, FindUsers, UserScope};
use butterfs_control::{ExtentUser, InodePath, SubvolumeId};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Show the id of the subvolume that a path lies in
#[derive(clap::Args, Clone, Debug)]
pub struct RootidArgs {
    #[command(flatten)]
    image: ImageArgument,
    /// The path
    path: PathBuf,
}

impl Run for RootidArgs {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let mut opened = self.image.open(&self.path, Intent::Look)?;
        let asking = about([&opened.object(&self.path)?], |[inode]| FindSubvolume { inode });
        let SubvolumeId(id) = opened.ask_one("cannot find the subvolume", asking)?;
        writeln!(out, "{id}")?;
        opened.close()
    }
}

/// Show the path of a subvolume from the top level
#[derive(clap::Args, Clone, Debug)]
pub struct SubvolidArgs {
    #[command(flatten)]
    image: ImageArgument,
    /// The id of the subvolume
    #[arg(value_parser = number)]
    subvolid: u64,
    /// Something on the filesystem
    path: PathBuf,
}

impl Run for SubvolidArgs {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let mut opened = self.image.open(&self.path, Intent::Look)?;
        let what = format!("cannot resolve subvolid {}", self.subvolid);
        out.write_all(&[subvolume_path(&mut opened, &what, self.subvolid)?.as_slice(), b"\n"].concat())?;
        opened.close()
    }
}

fn subvolume_path(opened: &mut OpenFilesystem, what: &str, id: u64) -> Result<Vec<u8>, CliError> {
    let InodePath(path) = opened.ask_one(what, plain(FindSubvolumePath { id }))?;
    Ok(path)
}

/// Show the paths of an inode of the subvolume that a path lies in
#[derive(clap::Args, Clone, Debug)]
pub struct InodeArgs {
    /// Say more
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    image: ImageArgument,
    /// The inode's number
    #[arg(value_parser = number)]
    inode: u64,
    /// Something in the subvolume
    path: PathBuf,
}

impl Run for InodeArgs {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let mut opened = self.image.open(&self.path, Intent::Look)?;
        let asking = about([&opened.object(&self.path)?], |[within]| FindPaths { within, ino: self.inode });
        let what = format!("cannot resolve inode {}", self.inode);
        opened.each(&what, asking, &mut |InodePath(path)| write_path(out, &self.path, &[&path]))?;
        opened.close()
    }
}

/// A path that was given, and parts below it.
fn write_path(out: &mut dyn Write, given: &Path, parts: &[&[u8]]) -> Result<(), CliError> {
    let mut path = given.as_os_str().as_bytes().to_vec();
    for part in parts.iter().filter(|part| !part.is_empty()) {
        if !path.ends_with(b"/") {
            path.push(b'/');
        }
        path.extend_from_slice(part);
    }
    path.push(b'\n');
    Ok(out.write_all(&path)?)
}

/// Show the files that use a logical address
///
/// Paths begin with the given one and go on from the top level.
#[derive(clap::Args, Clone, Debug)]
pub struct LogicalArgs {
    /// Print inode numbers instead of paths
    #[arg(short = 'P')]
    no_paths: bool,
    /// Also files that use another part of the same extent
    #[arg(short = 'o')]
    ignore_offsets: bool,
    /// Has no meaning here: every answer has room
    #[arg(short = 's', value_name = "BUFSIZE")]
    bufsize: Option<u64>,
    /// Say more
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    image: ImageArgument,
    /// The address
    #[arg(value_parser = number)]
    logical: u64,
    /// Something on the filesystem
    path: PathBuf,
}

impl Run for LogicalArgs {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let mut opened = self.image.open(&self.path, Intent::Look)?;
        opened.write_back(&self.path)?;
        let what = format!("cannot resolve address {}", self.logical);
        let scope = if self.ignore_offsets { UserScope::WholeExtent } else { UserScope::Address };
        let asking = plain(FindUsers { address: self.logical, scope });
        if self.no_paths {
            opened.each(&what, asking, &mut |ExtentUser { subvolume, ino, offset }| {
                Ok(writeln!(out, "inode {ino} offset {offset} root {subvolume}")?)
            })?;
            return opened.close();
        }
        for ExtentUser { subvolume, ino, .. } in opened.ask(&what, asking)? {
            let path_of_subvolume = subvolume_path(&mut opened, &what, subvolume)?;
            opened.each(&what, plain(FindPathsById { subvolume, ino }), &mut |InodePath(path)| {
                write_path(out, &self.path, &[&path_of_subvolume, &path])
            })?;
        }
        opened.close()
    }
}
