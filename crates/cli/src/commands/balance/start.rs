//! `butterfs balance start`.

use super::filters;
use super::state::{self, Target};
use crate::commands::Run;
use crate::error::CliError;
use crate::open_filesystem::{Intent, about};
use butterfs_control::question::StartBalance;
use butterfs_fs::{BalanceArgs, BalanceItem};
use butterfs_ondisk::balance::{args_flags, balance_flags};
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Balance chunks: start [-d[FILTERS]] [-m[FILTERS]] [-s[FILTERS]] [-f] [-v] [--full-balance] [--background]
/// [--enqueue] PATH.
///
/// -d, -m and -s choose chunks of data, metadata and the chunk tree; -m alone takes those of the chunk tree too, and
/// none of the three takes all. Filters follow at once, separated by commas: profiles=A|B, usage=N or A..B (percent),
/// devid=N, drange=A..B, vrange=A..B, limit=N or A..B, stripes=A..B, convert=PROFILE, soft.
///
/// -f allows less redundancy, -v shows the filters, --full-balance skips the warning where there are no filters,
/// --background (--bg) returns at once, and --enqueue waits for other exclusive operations. With --image IMAGE in place
/// of PATH the filesystem on an image or device that nobody has mounted is balanced; of several devices name each.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Options and the path, as above
    #[arg(value_name = "OPTIONS PATH", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// The parsed arguments.
#[derive(Default)]
struct Wanted {
    data: Option<BalanceArgs>,
    metadata: Option<BalanceArgs>,
    system: Option<BalanceArgs>,
    force: bool,
    verbose: bool,
    full: bool,
    background: bool,
    enqueue: bool,
    target: Target,
}

fn parse(words: &[OsString]) -> Result<Wanted, CliError> {
    let mut wanted = Wanted::default();
    let mut words = words.iter();
    let mut only_paths = false;
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        match &*text {
            _ if only_paths || !text.starts_with('-') || text == "-" => wanted.target.set_path(word)?,
            "--" => only_paths = true,
            "-f" | "--force" => wanted.force = true,
            "-v" | "--verbose" => wanted.verbose = true,
            "-q" | "--quiet" => {}
            "--full-balance" => wanted.full = true,
            "--background" | "--bg" => wanted.background = true,
            "--enqueue" => wanted.enqueue = true,
            "--image" => {
                let image = words.next().ok_or_else(|| CliError::usage("a value is required for '--image <IMAGE>'"))?;
                wanted.target.set_image(image);
            }
            option if option.starts_with("--image=") => wanted.target.set_image(&OsString::from(&option[8..])),
            option if option.starts_with("-d") => wanted.data = Some(parse_filters(&option[2..])?),
            option if option.starts_with("-m") => wanted.metadata = Some(parse_filters(&option[2..])?),
            option if option.starts_with("-s") => wanted.system = Some(parse_filters(&option[2..])?),
            option => return Err(CliError::usage(format!("unexpected argument '{option}' found"))),
        }
    }
    wanted.target.must_be_named()?;
    Ok(wanted)
}

fn parse_filters(text: &str) -> Result<BalanceArgs, CliError> {
    filters::parse(text.strip_prefix('=').unwrap_or(text)).map_err(sentences)
}

/// The first sentence is the error, the others follow as errors too.
fn sentences(all: Vec<String>) -> CliError {
    CliError::failed(all.join("\nERROR: "))
}

impl Wanted {
    fn control(&self) -> Result<BalanceItem, CliError> {
        if self.system.is_some() && !self.force {
            return Err(CliError::failed(
                "Refusing to explicitly operate on system chunks.\nPass --force if you really want to do that.",
            ));
        }
        let chosen = self.data.is_some() || self.metadata.is_some() || self.system.is_some();
        let all = (!chosen).then(BalanceArgs::default);
        let (data, metadata) = (self.data.or(all), self.metadata.or(all));
        let system = self.system.or(metadata);
        let bit = |args: &Option<BalanceArgs>, bit: u64| if args.is_some() { bit } else { 0 };
        let flags = bit(&data, balance_flags::DATA)
            | bit(&metadata, balance_flags::METADATA)
            | bit(&system, balance_flags::SYSTEM)
            | if self.force { balance_flags::FORCE } else { 0 };
        Ok(BalanceItem {
            flags: flags.into(),
            data: data.unwrap_or_default(),
            metadata: metadata.unwrap_or_default(),
            system: system.unwrap_or_default(),
            ..BalanceItem::default()
        })
    }

    /// Whether nothing limits what is taken.
    fn is_full(&self, control: &BalanceItem) -> bool {
        let args = [&control.data, &control.metadata, &control.system];
        control.flags.get() & balance_flags::TYPES == balance_flags::TYPES
            && args.iter().all(|args| args.flags.get() & !args_flags::SOFT == 0)
    }
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let wanted = parse(&self.words)?;
        let control = wanted.control()?;
        if wanted.is_full(&control) && !wanted.full {
            warn_and_wait(out)?;
        }
        if wanted.background {
            return in_background(&self.words);
        }
        if wanted.verbose {
            write!(out, "{}", filters::dump(&control, 0))?;
        }
        loop {
            let mut opened = wanted.target.open(Intent::Change)?;
            let root = opened.root();
            let start = |[through]: [_; 1]| StartBalance { through, control: control.to_bytes() };
            let ended = state::follow(&mut opened, about([&root], start))?;
            opened.close()?;
            match ended {
                Err(refusal) if wanted.enqueue && refusal.errno == libc::EINPROGRESS => {
                    std::thread::sleep(Duration::from_secs(1));
                }
                ended => return state::say_how_it_ended(&wanted.target, ended, out),
            }
        }
    }
}

const WARNING: &str = "WARNING:

\tFull balance without filters requested. This operation is very
\tintense and takes potentially very long. It is recommended to
\tuse the balance filters to narrow down the scope of balance.
\tUse 'btrfs balance start --full-balance' option to skip this
\twarning. The operation will start in 10 seconds.
\tUse Ctrl-C to stop it.
";

fn warn_and_wait(out: &mut dyn Write) -> Result<(), CliError> {
    write!(out, "{WARNING}")?;
    for second in (1..=10).rev() {
        write!(out, "{}{second}", if second == 10 { "" } else { " " })?;
        out.flush()?;
        std::thread::sleep(Duration::from_secs(1));
    }
    Ok(writeln!(out, "\nStarting balance without any filters.")?)
}

/// Runs the same command again, without a terminal, and does not wait for it.
fn in_background(words: &[OsString]) -> Result<(), CliError> {
    let left = words.iter().filter(|word| *word != "--background" && *word != "--bg");
    let program = std::env::current_exe().map_err(|error| CliError::failed(error.to_string()))?;
    Command::new(program)
        .args(["balance", "start", "--full-balance"])
        .args(left)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .map(drop)
        .map_err(|error| CliError::failed(format!("cannot start a process in the background: {error}")))
}

impl Target {
    fn set_path(&mut self, path: &OsString) -> Result<(), CliError> {
        match self.path.replace(PathBuf::from(path)) {
            None => Ok(()),
            Some(_) => Err(CliError::usage(format!("unexpected argument '{}' found", path.to_string_lossy()))),
        }
    }

    fn set_image(&mut self, image: &OsString) {
        self.images.images.push(PathBuf::from(image));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(words: &[&str]) -> (u64, u64, u64) {
        let words: Vec<OsString> = words.iter().chain(&["/mnt"]).map(OsString::from).collect();
        let control = parse(&words).unwrap().control().unwrap();
        (control.flags.get(), control.data.flags.get(), control.system.flags.get())
    }

    #[test]
    fn types_follow_the_options() {
        assert_eq!(control(&[]), (7, 0, 0));
        assert_eq!(control(&["-dusage=5"]), (1, 2, 0));
        assert_eq!(control(&["-mconvert=dup"]), (6, 0, 0x100));
        assert_eq!(control(&["-f", "-s"]), (10, 0, 0));
        assert_eq!(control(&["-d", "-musage=0"]), (7, 0, 2));
        assert!(parse(&["a".into(), "b".into()]).is_err() && parse(&["-x".into(), "b".into()]).is_err());
        assert!(parse(&["-s".into(), "b".into()]).unwrap().control().is_err());
    }
}
