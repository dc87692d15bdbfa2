//! The minimum Rust version: `rust-version` is the version that CI compiles with, and the README names it.
//!
//! Older releases cannot be installed where CI runs, so an older promise would be untested.

use crate::{process, workspace};

/// The outcome: sentences about violations, and the reason if nothing could be compared.
pub struct Compared {
    pub violations: Vec<String>,
    pub skip: Option<String>,
}

/// Compares the manifest with the compiler and with the README.
pub fn compare() -> Compared {
    let read = |name: &str| std::fs::read_to_string(workspace::root().join(name)).unwrap_or_default();
    let compiler = process::capture("rustc", &["--version"]).unwrap_or_default();
    compare_texts(&read("Cargo.toml"), &read("README.md"), &compiler)
}

fn compare_texts(manifest: &str, readme: &str, compiler: &str) -> Compared {
    let mut compared = Compared { violations: Vec::new(), skip: None };
    let named = manifest.lines().find_map(|line| line.strip_prefix("rust-version = \"")?.strip_suffix('"'));
    let Some(named) = named else {
        compared.violations.push("Cargo.toml names no rust-version".to_owned());
        return compared;
    };
    if !readme.contains(&format!("({named} or newer)")) {
        compared
            .violations
            .push(format!("README.md does not say '({named} or newer)', the rust-version of Cargo.toml"));
    }
    let version = compiler.split_whitespace().nth(1).unwrap_or("unknown");
    if !version.starts_with(&format!("{named}.")) {
        compared.skip = Some(format!("the compiler is {version}, and rust-version promises {named}"));
    }
    compared
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_differ_are_found() {
        let compare = |readme: &str, compiler: &str| {
            let Compared { violations, skip } = compare_texts("rust-version = \"1.95\"\n", readme, compiler);
            (violations.len(), skip.is_some())
        };
        assert_eq!(compare("a toolchain (1.95 or newer)", "rustc 1.95.0 (abc 2026-04-14)"), (0, false));
        assert_eq!(compare("a toolchain (1.90 or newer)", "rustc 1.95.0 (abc 2026-04-14)"), (1, false));
        assert_eq!(compare("a toolchain (1.95 or newer)", "rustc 1.9.5 (abc 2026-04-14)"), (0, true));
        assert_eq!(compare_texts("", "", "").violations.len(), 1);
    }
}
