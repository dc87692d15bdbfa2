//! `butterfs property`: the grammar of btrfs-progs 6.2. One property so far, a subvolume's `ro`.

use super::{Run, subcommands};
use crate::error::CliError;
use crate::target::{ImageArgument, Intent, Target};
use clap::{Subcommand, ValueEnum};
use std::io::Write;
use std::path::{Path, PathBuf};

subcommands! {
    /// Read and change properties of subvolumes
    Group {
        Get(GetArgs),
        Set(SetArgs),
        List(ListArgs),
    }
}

/// What kind of object a path is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ObjectType {
    #[value(alias = "i")]
    Inode,
    #[value(alias = "s")]
    Subvol,
    #[value(alias = "f")]
    Filesystem,
    #[value(alias = "d")]
    Device,
}

/// An object and how to take it.
#[derive(clap::Args, Clone, Debug)]
struct Object {
    /// What the object is
    #[arg(short = 't', value_name = "TYPE", value_enum)]
    kind: Option<ObjectType>,
    #[command(flatten)]
    image: ImageArgument,
    /// The path of the object
    object: PathBuf,
}

const READ_ONLY: &str = "ro";

fn known(name: &str) -> Result<(), CliError> {
    if name == READ_ONLY { Ok(()) } else { Err(CliError::failed(format!("property '{name}' is not supported"))) }
}

impl Object {
    fn is_subvolume(&self, target: &mut Target) -> Result<bool, CliError> {
        if self.kind.is_some_and(|kind| kind != ObjectType::Subvol) {
            return Ok(false);
        }
        let inode = target.inode(&self.object)?;
        Ok(target.try_ask(&[b"get-readonly", &inode])?.is_ok())
    }
}

/// Show the value of a property; without a name, of all
#[derive(clap::Args, Clone, Debug)]
pub struct GetArgs {
    #[command(flatten)]
    object: Object,
    /// The property
    name: Option<String>,
}

impl Run for GetArgs {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let mut target = self.object.image.target(&self.object.object, Intent::Look)?;
        match &self.name {
            Some(name) => known(name)?,
            None if !self.object.is_subvolume(&mut target)? => return target.close(),
            None => {}
        }
        let inode = target.inode(&self.object.object)?;
        let records = target.ask(&cannot("read", &self.object.object), &[b"get-readonly", &inode])?;
        for value in records.iter().flatten() {
            writeln!(out, "{READ_ONLY}={}", String::from_utf8_lossy(value))?;
        }
        target.close()
    }
}

fn cannot(verb: &str, object: &Path) -> String {
    format!("cannot {verb} property '{READ_ONLY}' of '{}'", object.display())
}

/// Change the value of a property
#[derive(clap::Args, Clone, Debug)]
pub struct SetArgs {
    /// Change it although that breaks something: a received subvolume that becomes writable is no longer a received one
    #[arg(short)]
    force: bool,
    #[command(flatten)]
    object: Object,
    /// The property
    name: String,
    /// Its value, for ro true or false
    value: String,
}

impl Run for SetArgs {
    fn run(self, _: &mut dyn Write) -> Result<(), CliError> {
        known(&self.name)?;
        if !["true", "false"].contains(&self.value.as_str()) {
            return Err(CliError::failed(format!("invalid value for property: {}", self.value)));
        }
        let mut target = self.object.image.target(&self.object.object, Intent::Change)?;
        let inode = target.inode(&self.object.object)?;
        if self.value == "false" && !self.force {
            refuse_received(&mut target, &inode)?;
        }
        target.write_back(&self.object.object)?;
        target.ask(&cannot("change", &self.object.object), &[b"set-readonly", &inode, self.value.as_bytes()])?;
        target.close()
    }
}

fn refuse_received(target: &mut Target, inode: &[u8]) -> Result<(), CliError> {
    let Ok(records) = target.try_ask(&[b"info", inode])? else { return Ok(()) };
    let record = records.first().and_then(|words| butterfs_fuse::subvolumes::SubvolumeRecord::from_words(words));
    let received = record.is_some_and(|record| record.flags & 1 != 0 && record.received_uuid != [0; 16]);
    if !received {
        return Ok(());
    }
    let sentence = "cannot make a received subvolume writable: it would lose the UUID that later streams look for";
    Err(CliError::failed(sentence).hint("'-f' does it; a writable snapshot of it may be what is wanted"))
}

/// List the properties that an object has
#[derive(clap::Args, Clone, Debug)]
pub struct ListArgs {
    #[command(flatten)]
    object: Object,
}

impl Run for ListArgs {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let mut target = self.object.image.target(&self.object.object, Intent::Look)?;
        if self.object.is_subvolume(&mut target)? {
            writeln!(out, "{READ_ONLY:<20}read-only status of a subvolume")?;
        }
        target.close()
    }
}
