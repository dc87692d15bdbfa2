//! The message of a failed command: one sentence, perhaps hints, and an exit code. Every library's errors become
//! [`CliError`]s here and nowhere else.

use butterfs_device::OpenError;
use std::io;

/// Exit code: the command failed.
pub const FAILED: u8 = 1;
/// Exit code: the command line makes no sense.
pub const USAGE: u8 = 2;
/// Exit codes of a helper that mount(8) calls: the mount failed, and the command line makes no sense.
const MOUNT_FAILED: u8 = 32;
const MOUNT_USAGE: u8 = 1;

/// A failure on its way to the user.
#[derive(Debug, PartialEq, Eq)]
pub enum CliError {
    /// Printed as `ERROR: sentence`, then one `hint:` line each.
    Failed {
        /// The failure, with the names and values that matter; no newline, no full stop.
        sentence: String,
        /// Advice to the user.
        hints: Vec<String>,
        /// [`FAILED`] or [`USAGE`].
        code: u8,
    },
    /// Another process has told the user already.
    Reported {
        /// The code that it ended with.
        code: u8,
    },
    /// Not an error: text that was asked for, such as `--help`.
    Text(String),
    /// Nobody reads our output any more.
    BrokenPipe,
}

impl CliError {
    /// A failure with exit code 1.
    pub fn failed(sentence: impl Into<String>) -> CliError {
        CliError::Failed { sentence: without_error_numbers(&sentence.into()), hints: Vec::new(), code: FAILED }
    }

    /// A command line that makes no sense, exit code 2.
    pub fn usage(sentence: impl Into<String>) -> CliError {
        CliError::Failed { sentence: sentence.into(), hints: Vec::new(), code: USAGE }
    }

    /// The same failure with the exit code that mount(8) passes on.
    pub fn of_mount_helper(mut self) -> CliError {
        if let CliError::Failed { code, .. } | CliError::Reported { code } = &mut self {
            *code = if *code == USAGE { MOUNT_USAGE } else { MOUNT_FAILED };
        }
        self
    }

    /// Adds a hint.
    pub fn hint(mut self, hint: impl Into<String>) -> CliError {
        if let CliError::Failed { hints, .. } = &mut self {
            hints.push(hint.into());
        }
        self
    }
}

/// Writing to standard output failed. Errors of files and devices name them and use [`CliError::failed`] instead.
impl From<io::Error> for CliError {
    fn from(error: io::Error) -> CliError {
        match error.kind() {
            io::ErrorKind::BrokenPipe => CliError::BrokenPipe,
            _ => CliError::failed(format!("cannot write to standard output: {}", os_message(&error))),
        }
    }
}

/// The system's words for an error, without the number that Rust appends.
pub fn os_message(error: &io::Error) -> String {
    without_error_numbers(&error.to_string())
}

/// Takes out the numbers that Rust appends to the system's words, also where another crate made a sentence of them.
pub fn without_error_numbers(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |sentence, part| sentence + part.split_once(')').map_or("", |(_, rest)| rest))
}

/// A device or file that cannot be opened.
impl From<OpenError> for CliError {
    fn from(error: OpenError) -> CliError {
        let hint = error.hint();
        hint.into_iter().fold(CliError::failed(error.to_string()), |error, hint| error.hint(hint))
    }
}

/// Messages of the engine are sentences already.
impl From<butterfs_fs::Error> for CliError {
    fn from(error: butterfs_fs::Error) -> CliError {
        CliError::failed(error.to_string())
    }
}

/// The parser's message is a sentence, a list of what it talks about, tips, and the usage, in paragraphs; the first two
/// become the sentence, the tips become hints.
impl From<clap::Error> for CliError {
    fn from(error: clap::Error) -> CliError {
        use clap::error::ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
        let text = error.render().to_string();
        match error.kind() {
            DisplayHelp | DisplayVersion => CliError::Text(text),
            DisplayHelpOnMissingArgumentOrSubcommand => missing_subcommand(&text),
            _ => from_paragraphs(&text),
        }
    }
}

fn from_paragraphs(text: &str) -> CliError {
    let (first, rest) = text.split_once("\n\n").unwrap_or((text, ""));
    let sentence: Vec<&str> = first.trim_start_matches("error: ").split_whitespace().collect();
    let tips = rest.lines().filter_map(|line| line.trim().strip_prefix("tip: ")).map(str::to_owned);
    // The parser suggests this for every option that it does not know, but hardly anybody means a file of that name.
    let tips = tips.filter(|tip| !tip.contains("as a value, use '-- "));
    let hints = tips.chain(usage_hint(text)).collect();
    CliError::Failed { sentence: sentence.join(" "), hints, code: USAGE }
}

fn missing_subcommand(help: &str) -> CliError {
    let error = CliError::usage("a command is missing");
    match usage_hint(help) {
        Some(hint) => error.hint(hint),
        None => error,
    }
}

/// Points at the help of the command that the usage line in `text` is about.
fn usage_hint(text: &str) -> Option<String> {
    let usage = text.lines().find_map(|line| line.strip_prefix("Usage: "))?;
    let command: Vec<&str> = usage.split_whitespace().take_while(|word| !word.starts_with(['[', '<', '-'])).collect();
    Some(format!("see '{} --help'", command.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::Butterfs;
    use clap::Parser;

    fn refusal(line: &str) -> (String, Vec<String>, u8) {
        match Butterfs::try_parse_from(line.split_whitespace()).map(|_| ()).map_err(CliError::from) {
            Err(CliError::Failed { sentence, hints, code }) => (sentence, hints, code),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn usage_errors_are_one_sentence_with_hints() {
        let (sentence, hints, code) = refusal("butterfs mkfs --labl x disk.img");
        assert_eq!(sentence, "unexpected argument '--labl' found");
        assert_eq!(hints, ["a similar argument exists: '--label'", "see 'butterfs mkfs --help'"]);
        assert_eq!(code, USAGE);
        assert_eq!(refusal("butterfs mount --json a b").1, ["see 'butterfs mount --help'"]);
        assert_eq!(
            refusal("butterfs mkfs --label").0,
            "a value is required for '--label <LABEL>' but none was supplied"
        );
        assert_eq!(refusal("butterfs").0, "a command is missing");
        assert_eq!(refusal("butterfs").1, ["see 'butterfs --help'"]);
        assert_eq!(refusal("butterfs frob").0, "unrecognized subcommand 'frob'");
    }

    #[test]
    fn help_is_not_an_error() {
        let asked = Butterfs::try_parse_from(["butterfs", "--help"]).map(|_| ()).map_err(CliError::from);
        assert!(matches!(asked, Err(CliError::Text(text)) if text.contains("Usage: butterfs")));
    }

    #[test]
    fn system_messages_lose_their_number() {
        let error = io::Error::from_raw_os_error(2);
        assert_eq!(os_message(&error), "No such file or directory");
        let CliError::Failed { sentence, .. } = CliError::failed(format!("a: {error}; b: {error}, c")) else {
            panic!()
        };
        assert_eq!(sentence, "a: No such file or directory; b: No such file or directory, c");
    }
}
