//! `butterfs filesystem defragment`: the options of btrfs-progs.

use crate::args;
use crate::commands::Run;
use crate::error::CliError;
use crate::target::{ImageArgument, Intent, Question, Target, cannot_access, nonsense};
use butterfs_fs::Method;
use butterfs_fuse::subvolumes::MOST_DEFRAGMENTED;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Write fragments of files anew, as one.
///
/// What snapshots and clones share with the files is not shared afterwards. Folders are skipped without '-r'.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ImageArgument,
    /// Print the names of files
    #[arg(short)]
    verbose: bool,
    /// Also the files in folders, and in those below, on the same filesystem and in the same subvolume
    #[arg(short)]
    recursive: bool,
    /// Compress: zlib, lzo or zstd; without one by zlib
    #[arg(short, value_name = "METHOD", num_args = 0..=1, default_missing_value = "zlib")]
    compress: Option<String>,
    /// Level of the compression
    #[arg(short = 'L', value_name = "LEVEL", allow_hyphen_values = true, requires = "compress")]
    level: Option<i32>,
    /// Make it durable
    #[arg(short)]
    flush: bool,
    /// Where in the files to start
    #[arg(short, value_name = "BYTES", value_parser = args::size, default_value = "0")]
    start: u64,
    /// How much of the files
    #[arg(short, value_name = "BYTES", value_parser = args::size)]
    length: Option<u64>,
    /// Extents of at least so many bytes stay
    #[arg(short, value_name = "BYTES", value_parser = args::size, default_value = "32m")]
    threshold: u64,
    /// Files, and folders
    paths: Vec<PathBuf>,
}

impl Run for Args {
    fn run(mut self, out: &mut dyn Write) -> Result<(), CliError> {
        self.take_path_for_what_it_is();
        if self.paths.is_empty() {
            return Err(CliError::usage("a file or folder is missing"));
        }
        if self.recursive && self.image.image.is_some() {
            return Err(CliError::usage("'-r' works on mounts only"));
        }
        let method = self.method()?;
        for path in &self.paths {
            let mut target = self.image.target(path, Intent::Change)?;
            target.write_back(path)?;
            if target.is_directory(path)? != Some(true) {
                self.file(&mut target, path, &method, out)?;
            } else if self.recursive {
                self.folder(&mut target, path, &method, out)?;
            }
            if self.flush {
                target.ask("cannot make it durable", &Question::new("sync"))?;
            }
            target.close()?;
        }
        Ok(())
    }
}

impl Args {
    /// After a `-c` with no method of its own stands a path.
    fn take_path_for_what_it_is(&mut self) {
        if let Some(path) = self.compress.take_if(|word| Method::parse(word).is_none()) {
            self.paths.insert(0, path.into());
            self.compress = Some("zlib".to_owned());
        }
    }

    /// The word for the method.
    fn method(&self) -> Result<String, CliError> {
        let Some(name) = &self.compress else { return Ok("-".to_owned()) };
        let text = self.level.map_or(name.clone(), |level| format!("{name}:{level}"));
        match Method::parse(&text) {
            Some(_) => Ok(text),
            None => Err(CliError::usage(format!("unknown compression '{text}', known are zlib, lzo and zstd"))),
        }
    }

    fn file(&self, target: &mut Target, path: &Path, method: &str, out: &mut dyn Write) -> Result<(), CliError> {
        if self.verbose {
            writeln!(out, "{}", path.display())?;
        }
        let object = target.object(path)?;
        let what = format!("cannot defragment '{}'", path.display());
        let end = self.start.saturating_add(self.length.unwrap_or(u64::MAX)).min(target.size(&object)?.max(1));
        let mut at = self.start;
        while at < end {
            let len = (end - at).min(MOST_DEFRAGMENTED);
            let question = Question::new("defragment").about(&object).number(at).number(len).number(self.threshold);
            target.ask(&what, &question.word(method))?.first().ok_or_else(nonsense)?;
            at += len;
        }
        Ok(())
    }

    /// Everything below that is a file of the same subvolume.
    fn folder(&self, target: &mut Target, top: &Path, method: &str, out: &mut dyn Write) -> Result<(), CliError> {
        let device = |path: &Path| rustix::fs::lstat(path).map(|stat| stat.st_dev);
        let own = device(top).map_err(|error| cannot_access(top, error.into()))?;
        let mut folders = vec![top.to_owned()];
        while let Some(folder) = folders.pop() {
            let entries = std::fs::read_dir(&folder).map_err(|error| cannot_access(&folder, error))?;
            for entry in entries {
                let entry = entry.map_err(|error| cannot_access(&folder, error))?;
                let kind = entry.file_type().map_err(|error| cannot_access(&entry.path(), error))?;
                if kind.is_dir() && device(&entry.path()) == Ok(own) && !is_subvolume(target, &entry.path())? {
                    folders.push(entry.path());
                } else if kind.is_file() {
                    self.file(target, &entry.path(), method, out)?;
                }
            }
        }
        Ok(())
    }
}

fn is_subvolume(target: &mut Target, path: &Path) -> Result<bool, CliError> {
    let question = Question::new("get-readonly").about(&target.object(path)?);
    Ok(target.try_ask(&question)?.is_ok())
}
