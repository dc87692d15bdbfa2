//! `butterfs filesystem defragment`: the options of btrfs-progs.

use crate::args;
use crate::commands::Run;
use crate::error::CliError;
use crate::open_filesystem::{ImageArgument, Intent, OpenFilesystem, about, cannot_access, plain};
use butterfs_control::question::{Defragment, GetReadOnly, MOST_DEFRAGMENTED, SyncAll};
use butterfs_control::{Compression, CompressionMethod};
use butterfs_fs::{Algorithm, Method};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Rewrite the fragments of files as one.
///
/// Snapshots and clones do not share the rewritten extents any more. Folders are skipped without '-r'.
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
    /// Offset in the files at which to start
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
        let compress = self.method()?;
        for path in &self.paths {
            let mut opened = self.image.open(path, Intent::Change)?;
            opened.write_back(path)?;
            if opened.is_directory(path)? != Some(true) {
                self.file(&mut opened, path, compress, out)?;
            } else if self.recursive {
                self.folder(&mut opened, path, compress, out)?;
            }
            if self.flush {
                opened.ask("cannot make it durable", plain(SyncAll {}))?;
            }
            opened.close()?;
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

    fn method(&self) -> Result<Option<CompressionMethod>, CliError> {
        let Some(name) = &self.compress else { return Ok(None) };
        let text = self.level.map_or(name.clone(), |level| format!("{name}:{level}"));
        let Some(Method { algorithm, level }) = Method::parse(&text) else {
            return Err(CliError::usage(format!("unknown compression '{text}', known are zlib, lzo and zstd")));
        };
        let algorithm = match algorithm {
            Algorithm::Zlib => Compression::Zlib,
            Algorithm::Lzo => Compression::Lzo,
            Algorithm::Zstd => Compression::Zstd,
        };
        Ok(Some(CompressionMethod { algorithm, level }))
    }

    fn file(
        &self,
        opened: &mut OpenFilesystem,
        path: &Path,
        compress: Option<CompressionMethod>,
        out: &mut dyn Write,
    ) -> Result<(), CliError> {
        if self.verbose {
            writeln!(out, "{}", path.display())?;
        }
        let object = opened.object(path)?;
        let what = format!("cannot defragment '{}'", path.display());
        let end = self.start.saturating_add(self.length.unwrap_or(u64::MAX)).min(opened.size(&object)?.max(1));
        let mut at = self.start;
        while at < end {
            let len = (end - at).min(MOST_DEFRAGMENTED);
            let threshold = self.threshold;
            let asking = about([&object], |[file]| Defragment { file, start: at, len, threshold, compress });
            opened.ask_one(&what, asking)?;
            at += len;
        }
        Ok(())
    }

    /// Everything below that is a file of the same subvolume.
    fn folder(
        &self,
        opened: &mut OpenFilesystem,
        top: &Path,
        compress: Option<CompressionMethod>,
        out: &mut dyn Write,
    ) -> Result<(), CliError> {
        let device = |path: &Path| rustix::fs::lstat(path).map(|stat| stat.st_dev);
        let own = device(top).map_err(|error| cannot_access(top, error.into()))?;
        let mut folders = vec![top.to_owned()];
        while let Some(folder) = folders.pop() {
            let entries = std::fs::read_dir(&folder).map_err(|error| cannot_access(&folder, error))?;
            for entry in entries {
                let entry = entry.map_err(|error| cannot_access(&folder, error))?;
                let kind = entry.file_type().map_err(|error| cannot_access(&entry.path(), error))?;
                if kind.is_dir() && device(&entry.path()) == Ok(own) && !is_subvolume(opened, &entry.path())? {
                    folders.push(entry.path());
                } else if kind.is_file() {
                    self.file(opened, &entry.path(), compress, out)?;
                }
            }
        }
        Ok(())
    }
}

fn is_subvolume(opened: &mut OpenFilesystem, path: &Path) -> Result<bool, CliError> {
    let asking = about([&opened.object(path)?], |[subvolume]| GetReadOnly { subvolume });
    Ok(opened.try_ask(asking)?.is_ok())
}
