//! Object stores as commands reach them: settings of the environment, and errors with hints.

use crate::error::CliError;
use butterfs_store::{Error, Kind, Settings};

/// The settings that the environment variables make.
pub fn settings() -> Settings {
    let text = |(key, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((key.into_string().ok()?, value.into_string().ok()?))
    };
    Settings::from_vars(std::env::vars_os().filter_map(text))
}

/// The error of a store that was just opened.
pub fn refused(error: Error) -> CliError {
    let is_refused = error.kind() == Kind::Permission;
    let failed = CliError::from(error);
    if is_refused {
        failed.hint("credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or from a profile")
    } else {
        failed
    }
}

/// The message of an error of a store is a sentence already.
impl From<Error> for CliError {
    fn from(error: Error) -> CliError {
        let sentence = error.to_string();
        if error.kind() == Kind::Broken && sentence.contains("Broken pipe") {
            return CliError::BrokenPipe;
        }
        // The client asks the host of a virtual machine at Amazon where nothing else names credentials.
        let has_none = sentence.contains("http://169.254.169.254/");
        let is_too_slow = sentence.contains("did not finish its answer");
        let failed = CliError::failed(sentence);
        if is_too_slow {
            failed.hint("a slower store needs more time: -o give_up_after=SECONDS, or --give-up-after SECONDS")
        } else if has_none {
            failed.hint("no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give --profile")
        } else {
            failed
        }
    }
}
