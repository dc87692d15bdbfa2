//! The licences and the sources of all dependencies, checked: each is permissive, and comes from crates.io.
//!
//! It reads the text of `cargo metadata`. cargo-deny checks the same; but it has 210 dependencies of its own, which a
//! new machine would compile before the first test, so it is a part of [`release`](crate::release).

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

/// The source of packages that may be used.
const CRATES_IO: &str = "\"registry+https://github.com/rust-lang/crates.io-index\"";

/// Packages with another licence, and why they may be used.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("cbindgen", "MPL-2.0; a development tool that tests run, in no program that users get"),
    ("webpki-root-certs", "CDLA-Permissive-2.0; a list of certificates, only in programs for Android"),
];

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
        let source = rest.split_once("\"source\":").map_or("none", |(_, source)| source);
        if !source.starts_with("null") && !source.starts_with(CRATES_IO) {
            found.push(format!("{name} does not come from crates.io"));
        }
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
        let index = CRATES_IO.trim_matches('"');
        let package = |name: &str, license: &str, source: &str| {
            format!(
                "{{\"name\":\"{name}\",\"version\":\"1\",\"id\":\"x\",\"license\":{license},\"source\":{source},\"x\":[]}}"
            )
        };
        let metadata = [
            package("a", "\"MIT\"", CRATES_IO),
            package("evil", "\"GPL-2.0\"", "null"),
            package("bare", "null", "null"),
            package("elsewhere", "\"MIT\"", &format!("\"git+{index}\"")),
        ];
        assert_eq!(
            violations_in(&metadata.concat()),
            ["the licence of evil is GPL-2.0", "the licence of bare is none", "elsewhere does not come from crates.io"]
        );
    }
}
