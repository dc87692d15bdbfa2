//! `butterfs inspect-internal rootid`, `subvolid-resolve`, `inode-resolve` and `logical-resolve`: from numbers to paths.

use super::number;
use crate::commands::Run;
use crate::error::CliError;
use crate::target::{ImageArgument, Intent, Question, Target, nonsense};
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
        let mut target = self.image.target(&self.path, Intent::Look)?;
        let question = Question::new("rootid").about(&target.object(&self.path)?);
        writeln!(out, "{}", target.ask_number("cannot find the subvolume", &question)?)?;
        target.close()
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
        let mut target = self.image.target(&self.path, Intent::Look)?;
        let what = format!("cannot resolve subvolid {}", self.subvolid);
        out.write_all(&[subvolume_path(&mut target, &what, self.subvolid)?.as_slice(), b"\n"].concat())?;
        target.close()
    }
}

fn subvolume_path(target: &mut Target, what: &str, id: u64) -> Result<Vec<u8>, CliError> {
    let records = target.ask(what, &Question::new("subvolume-path").number(id))?;
    records.into_iter().flatten().next().ok_or_else(nonsense)
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
        let mut target = self.image.target(&self.path, Intent::Look)?;
        let question = Question::new("paths").about(&target.object(&self.path)?).number(self.inode);
        let what = format!("cannot resolve inode {}", self.inode);
        target.each(&what, &question, &mut |record| {
            record.iter().try_for_each(|path| write_path(out, &self.path, &[path]))
        })?;
        target.close()
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
        let mut target = self.image.target(&self.path, Intent::Look)?;
        target.write_back(&self.path)?;
        let what = format!("cannot resolve address {}", self.logical);
        let which = if self.ignore_offsets { "whole" } else { "exact" };
        let question = Question::new("users").number(self.logical).word(which);
        if self.no_paths {
            target.each(&what, &question, &mut |user| {
                let [tree, ino, offset] = numbers(&user)?;
                Ok(writeln!(out, "inode {ino} offset {offset} root {tree}")?)
            })?;
            return target.close();
        }
        for user in target.ask(&what, &question)? {
            let [tree, ino, _] = numbers(&user)?;
            let subvolume = subvolume_path(&mut target, &what, tree)?;
            let question = Question::new("paths-in").number(tree).number(ino);
            target.each(&what, &question, &mut |record| {
                record.iter().try_for_each(|path| write_path(out, &self.path, &[&subvolume, path]))
            })?;
        }
        target.close()
    }
}

/// The subvolume, the inode and the offset of a user of an address.
fn numbers(user: &[Vec<u8>]) -> Result<[u64; 3], CliError> {
    let numbers = user.iter().map(|word| std::str::from_utf8(word).ok()?.parse::<u64>().ok());
    numbers.collect::<Option<Vec<u64>>>().and_then(|numbers| numbers.try_into().ok()).ok_or_else(nonsense)
}
