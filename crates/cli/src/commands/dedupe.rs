//! `butterfs dedupe`.

use super::Run;
use crate::args;
use crate::error::CliError;
use crate::target::{ImageArgument, Intent, Question, Target, nonsense};
use butterfs_fuse::subvolumes::MOST_DEDUPED;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Let files share what is equal in them.
///
/// TARGET gets the extents of SOURCE where both hold the same bytes, which are compared while nobody can write to
/// either; what differs stays as it is. The exit code is 0 whether something differs or not.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ImageArgument,
    /// Where in SOURCE the range begins
    #[arg(short = 's', long, value_name = "BYTES", value_parser = args::size, default_value = "0")]
    source_offset: u64,
    /// Where in TARGET it begins
    #[arg(short = 't', long, value_name = "BYTES", value_parser = args::size, default_value = "0")]
    target_offset: u64,
    /// How long it is; 0 means as long as both files go on
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
        let mut target = self.image.target(&self.source, Intent::Change)?;
        target.write_back(&self.source)?;
        for path in &self.targets {
            let (same, total) = self.one(&mut target, path)?;
            writeln!(out, "{}: {same} of {total} bytes are shared", path.display())?;
        }
        target.close()
    }
}

impl Args {
    fn one(&self, target: &mut Target, path: &Path) -> Result<(u64, u64), CliError> {
        let [source, into] = [target.object(&self.source)?, target.object(path)?];
        let left = [
            target.size(&source)?.saturating_sub(self.source_offset),
            target.size(&into)?.saturating_sub(self.target_offset),
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
            let question = Question::new("dedupe").about(&source).number(self.source_offset + at);
            let question = question.about(&into).number(self.target_offset + at).number(len);
            let records = target.ask(&what, &question)?;
            match records.first().and_then(|record| record.first()).map(Vec::as_slice) {
                Some(b"same") => same += len,
                Some(b"differs") => {}
                _ => return Err(nonsense()),
            }
            at += len;
            if at >= total {
                return Ok((same, total));
            }
        }
    }
}
