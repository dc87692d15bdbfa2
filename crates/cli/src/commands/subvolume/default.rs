//! `butterfs subvolume get-default` and `set-default`.

use super::forest::{Forest, TOP_LEVEL};
use super::json::SubvolumeJson;
use crate::commands::Run;
use crate::error::CliError;
use crate::open_filesystem::{ImageArgument, Intent, about, plain};
use crate::output::{self, Format};
use butterfs_control::question::{
    DescribeSubvolumeById, FindSubvolume, FindSubvolumePath, GetDefault, GetReadOnly, SetDefault,
};
use butterfs_control::{InodePath, SubvolumeId};
use std::io::Write;
use std::path::PathBuf;

/// Show the subvolume that is mounted when none is named
#[derive(clap::Args, Clone, Debug)]
pub struct GetArgs {
    #[command(flatten)]
    image: ImageArgument,
    /// Something on the filesystem
    #[arg(default_value = ".")]
    path: PathBuf,
}

impl Run for GetArgs {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        self.run_as(Format::Text, out)
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        let mut opened = self.image.open(&self.path, Intent::Look)?;
        let what = "cannot find the default subvolume";
        let SubvolumeId(id) = opened.ask_one(what, plain(GetDefault {}))?;
        if format == Format::Json {
            let record = opened.ask_one(what, plain(DescribeSubvolumeById { id }))?;
            let InodePath(path) = opened.ask_one(what, plain(FindSubvolumePath { id }))?;
            let path: &[u8] = if id == TOP_LEVEL { b"/" } else { &path };
            output::json(out, "subvolume-get-default", &SubvolumeJson::of(&record, path))?;
            return opened.close();
        }
        if id == TOP_LEVEL {
            writeln!(out, "ID 5 (FS_TREE)")?;
            return opened.close();
        }
        let forest = Forest::ask(&mut opened)?;
        let found = forest.all.get(&id);
        let found = found.ok_or_else(|| CliError::failed(format!("the default subvolume {id} does not exist")))?;
        write!(out, "ID {id} gen {} top level {} path ", found.generation, found.parent)?;
        out.write_all(&forest.path_from_top(id))?;
        writeln!(out)?;
        opened.close()
    }
}

/// Choose the subvolume that is mounted when none is named
#[derive(clap::Args, Clone, Debug)]
pub struct SetArgs {
    #[command(flatten)]
    image: ImageArgument,
    /// The subvolume; or its id, before the path of something on the filesystem
    #[arg(value_name = "SUBVOLUME|SUBVOLID")]
    first: PathBuf,
    /// Something on the filesystem
    path: Option<PathBuf>,
}

impl Run for SetArgs {
    fn run(self, _: &mut dyn Write) -> Result<(), CliError> {
        let what = "cannot set the default subvolume";
        let mut opened = self.image.open(self.path.as_ref().unwrap_or(&self.first), Intent::Change)?;
        let mut through = opened.root();
        let id: u64 = match &self.path {
            Some(_) => {
                let text = self.first.to_string_lossy();
                text.parse().map_err(|_| CliError::failed(format!("{text} is not a valid numeric value")))?
            }
            None => {
                through = opened.object(&self.first)?;
                opened.ask(what, about([&through], |[subvolume]| GetReadOnly { subvolume }))?;
                opened.ask_one(what, about([&through], |[inode]| FindSubvolume { inode }))?.0
            }
        };
        opened.ask(what, about([&through], |[through]| SetDefault { through, id }))?;
        opened.close()
    }
}
