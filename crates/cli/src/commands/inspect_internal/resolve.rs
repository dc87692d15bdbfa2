//! `butterfs inspect-internal rootid`, `subvolid-resolve`, `inode-resolve` and `logical-resolve`: from numbers to
//! paths.

use super::number;
use crate::commands::Run;
use crate::error::CliError;
use crate::open_filesystem::{Asking, ImageArgument, Intent, OpenFilesystem, about, plain};
use crate::output::{self, Format};
use butterfs_control::question::{FindPaths, FindPathsById, FindSubvolume, FindSubvolumePath, FindUsers, UserScope};
use butterfs_control::{ExtentUser, InodePath, SubvolumeId};
use serde_json::{Value, json};
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
        self.run_as(Format::Text, out)
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        let mut opened = self.image.open(&self.path, Intent::Look)?;
        let asking = about([&opened.object(&self.path)?], |[inode]| FindSubvolume { inode });
        let SubvolumeId(id) = opened.ask_one("cannot find the subvolume", asking)?;
        match format {
            Format::Text => writeln!(out, "{id}")?,
            Format::Json => output::json(out, "inspect-internal-rootid", &id)?,
        }
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
        self.run_as(Format::Text, out)
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        let mut opened = self.image.open(&self.path, Intent::Look)?;
        let what = format!("cannot resolve subvolid {}", self.subvolid);
        let path = subvolume_path(&mut opened, &what, self.subvolid)?;
        match format {
            Format::Text => out.write_all(&[path.as_slice(), b"\n"].concat())?,
            Format::Json => output::json(out, "inspect-internal-subvolid-resolve", &String::from_utf8_lossy(&path))?,
        }
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
        self.run_as(Format::Text, out)
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        let mut opened = self.image.open(&self.path, Intent::Look)?;
        let asking = about([&opened.object(&self.path)?], |[within]| FindPaths { within, ino: self.inode });
        let what = format!("cannot resolve inode {}", self.inode);
        let mut paths = Vec::new();
        opened.each(&what, asking, &mut |InodePath(path)| {
            let path = path_below(&self.path, &[&path]);
            match format {
                Format::Text => Ok(out.write_all(&[path.as_slice(), b"\n"].concat())?),
                Format::Json => {
                    paths.push(String::from_utf8_lossy(&path).into_owned());
                    Ok(())
                }
            }
        })?;
        if format == Format::Json {
            output::json(out, "inspect-internal-inode-resolve", &paths)?;
        }
        opened.close()
    }
}

/// A path that was given, and parts below it.
fn path_below(given: &Path, parts: &[&[u8]]) -> Vec<u8> {
    let mut path = given.as_os_str().as_bytes().to_vec();
    for part in parts.iter().filter(|part| !part.is_empty()) {
        if !path.ends_with(b"/") {
            path.push(b'/');
        }
        path.extend_from_slice(part);
    }
    path
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
        self.run_as(Format::Text, out)
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        let mut opened = self.image.open(&self.path, Intent::Look)?;
        opened.write_back(&self.path)?;
        let what = format!("cannot resolve address {}", self.logical);
        let scope = if self.ignore_offsets { UserScope::WholeExtent } else { UserScope::Address };
        let asking = plain(FindUsers { address: self.logical, scope });
        if format == Format::Json {
            let users = self.users_as_json(&mut opened, &what, asking)?;
            output::json(out, "inspect-internal-logical-resolve", &users)?;
            return opened.close();
        }
        if self.no_paths {
            opened.each(&what, asking, &mut |ExtentUser { subvolume, ino, offset }| {
                Ok(writeln!(out, "inode {ino} offset {offset} root {subvolume}")?)
            })?;
            return opened.close();
        }
        for ExtentUser { subvolume, ino, .. } in opened.ask(&what, asking)? {
            let path_of_subvolume = subvolume_path(&mut opened, &what, subvolume)?;
            opened.each(&what, plain(FindPathsById { subvolume, ino }), &mut |InodePath(path)| {
                let path = path_below(&self.path, &[&path_of_subvolume, &path]);
                Ok(out.write_all(&[path.as_slice(), b"\n"].concat())?)
            })?;
        }
        opened.close()
    }
}

impl LogicalArgs {
    fn users_as_json(
        &self,
        opened: &mut OpenFilesystem,
        what: &str,
        asking: Asking<FindUsers>,
    ) -> Result<Vec<Value>, CliError> {
        let mut users = Vec::new();
        for ExtentUser { subvolume, ino, offset } in opened.ask(what, asking)? {
            let mut paths = Vec::new();
            if !self.no_paths {
                let path_of_subvolume = subvolume_path(opened, what, subvolume)?;
                opened.each(what, plain(FindPathsById { subvolume, ino }), &mut |InodePath(path)| {
                    let path = path_below(&self.path, &[&path_of_subvolume, &path]);
                    paths.push(String::from_utf8_lossy(&path).into_owned());
                    Ok(())
                })?;
            }
            users.push(json!({ "subvolume": subvolume, "inode": ino, "offset": offset, "paths": paths }));
        }
        Ok(users)
    }
}
