//! `butterfs subvolume delete`.

use super::forest::Forest;
use crate::commands::Run;
use crate::error::CliError;
use crate::open_filesystem::{
    Asking, ImageArgument, Intent, Object, OpenFilesystem, about, cannot_access, parent_and_name, plain,
};
use crate::report;
use butterfs_control::question::{DeleteSubvolume, DeleteSubvolumeById, FindSubvolume, FindSubvolumePath, SyncAll};
use butterfs_control::{Ask, SubvolumeId};
use butterfs_fs::Errno;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Delete subvolumes
///
/// The name is gone at once, the space comes back in the background. Without one of the commit options, a subvolume may
/// be there again after a crash. Only root deletes subvolumes, unless the mount has the option user_subvol_rm_allowed;
/// rmdir(1) deletes an empty one.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Wait at the end until the deletions are on the disk
    #[arg(short, long)]
    commit_after: bool,
    /// Wait after each subvolume until its deletion is on the disk
    #[arg(short = 'C', long)]
    commit_each: bool,
    /// Delete the subvolumes inside it first
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Delete the subvolume with this id, of the filesystem that the path is on
    #[arg(short = 'i', long, value_name = "SUBVOLID")]
    subvolid: Option<u64>,
    /// Say more
    #[arg(short, long)]
    verbose: bool,
    /// Print only errors
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    image: ImageArgument,
    /// The subvolumes
    #[arg(value_name = "SUBVOLUME", required = true)]
    paths: Vec<PathBuf>,
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let mut failures = 0;
        if let Some(id) = self.subvolid {
            let [path] = self.paths.as_slice() else {
                return Err(CliError::usage("with --subvolid there is one path, of the filesystem"));
            };
            return self.delete_id(path, id, out);
        }
        for path in &self.paths {
            if let Err(error) = self.delete(path, out) {
                failures += 1;
                report::report(&error);
            }
        }
        if failures > 0 { Err(CliError::Reported { code: crate::error::FAILED }) } else { Ok(()) }
    }
}

impl Args {
    fn delete(&self, path: &Path, out: &mut dyn Write) -> Result<(), CliError> {
        let path = &self.resolved(path)?;
        let (parent, name) = parent_and_name(path)?;
        let mut opened = self.image.open(&parent, Intent::Change)?;
        let subvolume = opened.object(path)?;
        if self.recursive {
            let asking = about([&subvolume], |[inode]| FindSubvolume { inode });
            let SubvolumeId(id) = opened.ask_one("cannot find the subvolume", asking)?;
            self.delete_below(&mut opened, &subvolume, id, out)?;
        }
        let directory = opened.object(&parent)?;
        self.say(out, &format!("'{}'", path.display()))?;
        let asking = about([&directory], |[directory]| DeleteSubvolume { directory, name });
        self.order(&mut opened, asking, &format!("could not destroy subvolume '{}'", path.display()))?;
        opened.close()
    }

    /// Links and dots are of no use to a name that is to be removed.
    fn resolved(&self, path: &Path) -> Result<PathBuf, CliError> {
        match self.image.image {
            Some(_) => Ok(path.to_owned()),
            None => path.canonicalize().map_err(|error| cannot_access(path, error)),
        }
    }

    fn delete_id(&self, path: &Path, id: u64, out: &mut dyn Write) -> Result<(), CliError> {
        let mut opened = self.image.open(path, Intent::Change)?;
        let root = opened.root();
        let shown = match opened.try_ask(plain(FindSubvolumePath { id }))? {
            Ok(mut paths) => {
                let inside = paths.pop().map(|path| path.0).unwrap_or_default();
                format!("'{}/{}'", path.display(), String::from_utf8_lossy(&inside))
            }
            Err(_) => format!("subvolid={id}"),
        };
        if self.recursive {
            self.delete_below(&mut opened, &root, id, out)?;
        }
        self.say(out, &shown)?;
        self.order(&mut opened, by_id(&root, id), &format!("could not destroy subvolume {id}"))?;
        opened.close()
    }

    /// Deletes everything below the subvolume `id`, innermost first.
    fn delete_below(
        &self,
        opened: &mut OpenFilesystem,
        at: &Object,
        id: u64,
        out: &mut dyn Write,
    ) -> Result<(), CliError> {
        let forest = Forest::ask(opened)?;
        for inner in forest.below(id) {
            self.say(out, &format!("'{}'", String::from_utf8_lossy(&forest.path_from_top(inner))))?;
            self.order(opened, by_id(at, inner), &format!("could not destroy subvolume {inner}"))?;
        }
        Ok(())
    }

    fn order<Q: Ask>(&self, opened: &mut OpenFilesystem, asking: Asking<Q>, what: &str) -> Result<(), CliError> {
        opened.try_ask(asking)?.map_err(|refusal| {
            let error = CliError::failed(format!("{what}: {}", refusal.sentence));
            match Errno(refusal.errno) {
                Errno::ENOTEMPTY => error.hint("'--recursive' deletes the subvolumes inside it, too"),
                _ => error,
            }
        })?;
        if self.commit_each || self.commit_after {
            opened.ask("cannot commit", plain(SyncAll {}))?;
        }
        Ok(())
    }

    fn say(&self, out: &mut dyn Write, shown: &str) -> Result<(), CliError> {
        if !self.quiet {
            let commit = if self.commit_each || self.commit_after { "commit" } else { "no-commit" };
            writeln!(out, "Delete subvolume ({commit}): {shown}")?;
        }
        Ok(())
    }
}

fn by_id(through: &Object, id: u64) -> Asking<DeleteSubvolumeById> {
    about([through], |[through]| DeleteSubvolumeById { through, id })
}
