//! The licences of all dependencies, checked: each must be permissive.
//!
//! It reads the text of `cargo metadata`. cargo-deny does this too, and more; but to build it takes longer than all
//! other checks together, and its advisories need a network. cargo-semver-checks needs a published version to compare
//! with: none exists yet.

use crate::workspace;
use std::process::Command;

/// Licences that ask for no more than their own text.
const PERMISSIVE: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-1-Clause",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Packages with another licence, and why they may be used.
const EXCEPTIONS: &[(&str, &str)] =
    &[("cbindgen", "MPL-2.0; a development tool that tests run, in no program that users get")];

/// One sentence for each package whose licence does not fit.
pub fn violations() -> Result<Vec<String>, String> {
    let mut command = Command::new("cargo");
    command.args(["metadata", "--format-version", "1", "--locked"]).current_dir(workspace::root());
    let output = command.output().map_err(|error| format!("cannot start cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(violations_in(&String::from_utf8_lossy(&output.stdout)))
}

fn violations_in(metadata: &str) -> Vec<String> {
    let mut found = Vec::new();
    // The first fields of a package are its name, version, id and licence; its dependencies have no licence.
    for package in metadata.split("{\"name\":\"").skip(1) {
        let Some((head, rest)) = package.split_once("\"license\":") else { continue };
        let name = head.split('"').next().unwrap_or_default();
        let license = rest.strip_prefix('"').and_then(|rest| rest.split('"').next()).unwrap_or("none");
        let is_excepted = EXCEPTIONS.iter().any(|(known, _)| *known == name);
        if !is_excepted && !is_permissive(license) {
            found.push(format!("the licence of {name} is {license}"));
        }
    }
    found
}

/// Whether the expression can be met with permissive licences alone.
fn is_permissive(expression: &str) -> bool {
    let expression = expression.replace('/', " OR ").replace(['(', ')'], "");
    let is_known = |license: &str| PERMISSIVE.contains(&license.trim());
    // Brackets are dropped: if each part between ANDs has a permissive alternative, so has the expression, however it
    // is read.
    expression.split(" AND ").all(|part| part.split(" OR ").any(is_known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licences_are_told_apart() {
        for (license, permissive) in [
            ("MIT", true),
            ("MIT/Apache-2.0", true),
            ("GPL-2.0-only", false),
            ("GPL-3.0-or-later OR MIT", true),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("MIT AND GPL-2.0-only", false),
            ("none", false),
        ] {
            assert_eq!(is_permissive(license), permissive, "{license}");
        }
    }

    #[test]
    fn a_package_without_a_permissive_licence_is_found() {
        let metadata = r#"{"packages":[{"name":"a","version":"1","id":"x","license":"MIT",
            "dependencies":[{"name":"b","source":null}]},
            {"name":"evil","version":"1","id":"y","license":"GPL-2.0","dependencies":[]},
            {"name":"bare","version":"1","id":"z","license":null,"dependencies":[]}]}"#;
        assert_eq!(violations_in(metadata), ["the licence of evil is GPL-2.0", "the licence of bare is none"]);
    }
}
