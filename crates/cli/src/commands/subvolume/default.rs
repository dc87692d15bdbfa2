//! `butterfs subvolume get-default` and `set-default`.

use super::forest::{Forest, TOP_LEVEL};
use crate::commands::Run;
use crate::error::CliError;
use crate::target::{ImageArgument, Intent, Question};
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
        let mut target = self.image.target(&self.path, Intent::Look)?;
        let id = target.ask_number("cannot find the default subvolume", &Question::new("get-default"))?;
        if id == TOP_LEVEL {
            writeln!(out, "ID 5 (FS_TREE)")?;
            return target.close();
        }
        let place = target.place();
        let forest = Forest::ask(&mut target, &place)?;
        let found = forest.all.get(&id);
        let found = found.ok_or_else(|| CliError::failed(format!("the default subvolume {id} does not exist")))?;
        write!(out, "ID {id} gen {} top level {} path ", found.generation, found.parent)?;
        out.write_all(&forest.path_from_top(id))?;
        writeln!(out)?;
        target.close()
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
        let mut target = self.image.target(self.path.as_ref().unwrap_or(&self.first), Intent::Change)?;
        let mut place = target.place();
        let id = match &self.path {
            Some(_) => {
                let text = self.first.to_string_lossy();
                text.parse().map_err(|_| CliError::failed(format!("{text} is not a valid numeric value")))?
            }
            None => {
                place = target.object(&self.first)?;
                target.ask(what, &Question::new("get-readonly").about(&place))?;
                target.ask_number(what, &Question::new("rootid").about(&place))?
            }
        };
        let id: u64 = id;
        target.ask(what, &Question::new("set-default").about(&place).number(id))?;
        target.close()
    }
}
