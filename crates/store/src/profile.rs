//! Profiles of AWS: the files `credentials` and `config`, of which object stores need the keys, the region and the
//! endpoint.
//!
//! Not here: profiles that get their credentials by other means (`sso_session`, `credential_process`, `role_arn`).

use crate::settings::Settings;
use std::path::PathBuf;

/// The settings of a profile, by their names in the variables of the environment.
const NAMES: &[(&str, &str)] = &[
    ("aws_access_key_id", "aws_access_key_id"),
    ("aws_secret_access_key", "aws_secret_access_key"),
    ("aws_session_token", "aws_session_token"),
    ("region", "aws_default_region"),
    ("endpoint_url", "aws_endpoint"),
];

/// The settings of the profile that is asked for, or of `default`; and whether there is such a profile.
pub fn of(settings: &Settings) -> (Vec<(&'static str, String)>, bool) {
    let named = settings.profile.as_deref().or(settings.variable("AWS_PROFILE"));
    let profile = named.unwrap_or("default");
    let home = settings.variable("HOME").map(PathBuf::from);
    let file = |variable: &str, name: &str| {
        let usual = || home.as_ref().map(|home| home.join(".aws").join(name));
        let path = settings.variable(variable).map(PathBuf::from).or_else(usual);
        path.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default()
    };
    let config = file("AWS_CONFIG_FILE", "config");
    let credentials = file("AWS_SHARED_CREDENTIALS_FILE", "credentials");
    let in_config = if profile == "default" { profile.to_owned() } else { format!("profile {profile}") };
    let mut found = section(&config, &in_config);
    let in_credentials = section(&credentials, profile);
    let exists = found.is_some() || in_credentials.is_some() || named.is_none();
    let found = found.get_or_insert_default();
    found.extend(in_credentials.unwrap_or_default());
    let known = |(key, value): (String, String)| {
        NAMES.iter().find(|(name, _)| *name == key).map(|(_, variable)| (*variable, value))
    };
    (found.drain(..).filter_map(known).collect(), exists)
}

/// The settings of one section of such a file; `None` where it is not there.
fn section(text: &str, wanted: &str) -> Option<Vec<(String, String)>> {
    let mut found: Option<Vec<(String, String)>> = None;
    let mut is_in = false;
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            is_in = name.split_whitespace().collect::<Vec<_>>().join(" ") == wanted;
            if is_in {
                found.get_or_insert_default();
            }
        } else if let (true, Some((key, value))) = (is_in && !line.starts_with(['#', ';']), line.split_once('=')) {
            found.get_or_insert_default().push((key.trim().to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_found_with_comments_and_spaces() {
        let text = "[default]\nregion = a\n# region = b\n[profile  x]\n aws_access_key_id=K\n";
        assert_eq!(section(text, "default"), Some(vec![("region".to_owned(), "a".to_owned())]));
        assert_eq!(section(text, "profile x"), Some(vec![("aws_access_key_id".to_owned(), "K".to_owned())]));
        assert_eq!(section(text, "y"), None);
    }
}
