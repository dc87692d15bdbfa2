//! Settings of a store: credentials and the endpoint by the usual variables, and patience.

use std::time::Duration;

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct Settings {
    /// Environment variables, by which credentials, region and endpoint are found as by other clients: `AWS_*`,
    /// `GOOGLE_*`, `AZURE_*`, and `HOME` for profiles.
    pub variables: Vec<(String, String)>,
    /// The URL of the server, where it is not that of the maker; plain `http` is allowed.
    pub endpoint: Option<String>,
    /// The region of a bucket.
    pub region: Option<String>,
    /// The profile in `~/.aws/credentials` and `~/.aws/config`.
    pub profile: Option<String>,
    /// A call that has failed for so long fails. So does one that has not ended after this time, 5 seconds, and the
    /// time of its bytes at 64 KiB/s.
    pub give_up_after: Duration,
    /// An answer that brings nothing for so long is asked for again.
    pub quiet_timeout: Duration,
    /// A folder that is missing is made.
    pub makes_folder: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            variables: Vec::new(),
            endpoint: None,
            region: None,
            profile: None,
            give_up_after: Duration::from_secs(180),
            quiet_timeout: Duration::from_secs(30),
            makes_folder: false,
        }
    }
}

impl Settings {
    /// Settings by these environment variables.
    pub fn from_vars(variables: impl IntoIterator<Item = (String, String)>) -> Settings {
        Settings { variables: variables.into_iter().collect(), ..Settings::default() }
    }

    /// The value of a variable that is set and not empty.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        let found = self.variables.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }
}
