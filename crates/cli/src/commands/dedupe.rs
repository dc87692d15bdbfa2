//! `butterfs dedupe`.

use super::Run;
use crate::args;
use crate::error::CliError;
use crate::open_filesystem::{ImageArgument, Intent, OpenFilesystem, about};
use butterfs_control::Comparison;
use butterfs_control::question::{Dedupe, MOST_DEDUPED};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Let files share equal content.
///
/// TARGET gets the extents of SOURCE where both hold the same bytes, which are compared while nobody can write to
/// either; differing extents stay as they are. The exit code is 0 whether something differs or not.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ImageArgument,
    /// Offset of the range in SOURCE
    #[arg(short = 's', long, value_name = "BYTES", value_parser = args::size, default_value = "0")]
    source_offset: u64,
    /// Offset of the range in TARGET
    #[arg(short = 't', long, value_name = "BYTES", value_parser = args::size, default_value = "0")]
    target_offset: u64,
    /// Its length; 0 means as long as both files go on
    #[arg(short = 'l', long, value_name = "BYTES", value_parser = args::size, default_value = "0")]
    length: u64,
    /// The file whose extents are kept
    source: PathBuf,
    /// The files that get them
    #[arg(required = true)]
    targets: Vec<PathBuf>,
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let mut opened = self.image.open(&self.source, Intent::Change)?;
        opened.write_back(&self.source)?;
        for path in &self.targets {
            let (same, total) = self.one(&mut opened, path)?;
            writeln!(out, "{}: {same} of {total} bytes are shared", path.display())?;
        }
        opened.close()
    }
}

impl Args {
    fn one(&self, opened: &mut OpenFilesystem, path: &Path) -> Result<(u64, u64), CliError> {
        let [source, into] = [opened.object(&self.source)?, opened.object(path)?];
        let left = [
            opened.size(&source)?.saturating_sub(self.source_offset),
            opened.size(&into)?.saturating_sub(self.target_offset),
        ];
        let both = left[0].min(left[1]);
        // A part of a sector counts only where both files end with it.
        let longest = if left[0] == left[1] { both } else { both / 4096 * 4096 };
        let total = if self.length == 0 { longest } else { self.length };
        let what = format!("cannot dedupe '{}' with '{}'", path.display(), self.source.display());
        let (mut at, mut same) = (0, 0);
        // Asked once about nothing too: the answer may be that the target is no file.
        loop {
            let len = (total - at).min(MOST_DEDUPED);
            let (source_start, into_start) = (self.source_offset + at, self.target_offset + at);
            let asking =
                about([&source, &into], |[source, into]| Dedupe { source, source_start, into, into_start, len });
            match opened.ask_one(&what, asking)? {
                Comparison::Same => same += len,
                Comparison::Differs => {}
            }
            at += len;
            if at >= total {
                return Ok((same, total));
            }
        }
    }
}
