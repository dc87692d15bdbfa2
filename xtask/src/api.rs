//! The public interface of the library as a list in `crates/butterfs/api.txt`: a change of it shows in review.
//!
//! The list is read from the sources: every `pub` item of a file, its signature on one line, below the block it is in.
//! `cargo xtask api --write` writes it. [`release`](crate::release) has cargo-semver-checks compare with the last
//! release.

use crate::workspace;
use std::path::{Path, PathBuf};

const LIST: &str = "crates/butterfs/api.txt";

/// Prints the differences, or writes the list; true when there is none.
pub fn run(words: &[&str]) -> Result<bool, String> {
    match words {
        [] => {
            let found = violations();
            found.iter().for_each(|line| println!("{line}"));
            Ok(found.is_empty())
        }
        ["--write"] => {
            let path = workspace::root().join(LIST);
            std::fs::write(&path, list()).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
            Ok(true)
        }
        _ => Err(format!("unknown option {}", words.join(" "))),
    }
}

/// One line for each difference between the list and the sources.
pub fn violations() -> Vec<String> {
    let kept = std::fs::read_to_string(workspace::root().join(LIST)).unwrap_or_default();
    let now = list();
    let gone = kept.lines().filter(|line| !now.lines().any(|other| other == *line));
    let new = now.lines().filter(|line| !kept.lines().any(|other| other == *line));
    let gone = gone.map(|line| format!("{LIST}: '{line}' is not in the sources; cargo xtask api --write"));
    gone.chain(new.map(|line| format!("{LIST}: lacks '{line}'; cargo xtask api --write"))).collect()
}

fn list() -> String {
    let folder = workspace::root().join("crates/butterfs/src");
    let mut lines: Vec<String> = files(&folder).iter().flat_map(|file| items_of(file)).collect();
    lines.sort();
    lines.dedup();
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    workspace::files_below(folder, ".rs")
}

fn items_of(file: &Path) -> Vec<String> {
    items(&std::fs::read_to_string(file).unwrap_or_default())
}

/// `block :: item` for each public item, public field, variant of a public enumeration, and implemented trait.
fn items(text: &str) -> Vec<String> {
    let (mut found, mut block, mut pending) = (Vec::new(), String::new(), String::new());
    for line in text.lines() {
        let (words, depth) = (line.trim(), line.len() - line.trim_start().len());
        if words.starts_with("#[cfg(test)]") {
            break;
        }
        if words.is_empty() || words.starts_with("//") || words.starts_with('#') {
            continue;
        }
        if pending.is_empty() && depth == 0 && words.starts_with('}') {
            block.clear();
            continue;
        }
        let is_head = depth == 0 && (words.starts_with("pub ") || words.starts_with("impl"));
        let is_variant = depth == 4 && block.starts_with("pub enum") && words.starts_with(char::is_uppercase);
        let is_member = depth == 4 && words.starts_with("pub ");
        let begins = is_head || is_variant || is_member;
        if pending.is_empty() && !begins {
            continue;
        }
        pending = format!("{pending} {words}").trim_start().to_owned();
        let Some(end) = ends(&pending, is_variant || pending.starts_with(char::is_uppercase)) else { continue };
        let item = pending[..end].trim().trim_end_matches(',').to_owned();
        let opens = pending.ends_with('{');
        pending.clear();
        if depth == 0 && (item.starts_with("impl") || opens) {
            block.clone_from(&item);
            if item.starts_with("impl") && !item.contains(" for ") {
                continue;
            }
            found.push(item);
        } else {
            found.push(if block.is_empty() { item } else { format!("{block} :: {item}") });
        }
    }
    found
}

/// Where a declaration ends: before its body, at a semicolon, or behind a field or variant.
fn ends(text: &str, is_variant: bool) -> Option<usize> {
    let is_use = text.starts_with("pub use ");
    match () {
        () if is_use => text.find(';'),
        () if is_variant => text.ends_with([',', '{']).then(|| text.trim_end_matches(['{', ' ']).len()),
        () if text.ends_with('{') => Some(text.len() - 1),
        () if text.ends_with([';', '}']) => text.find(" {").or_else(|| text.find(';')),
        () if text.ends_with(',') && !text.contains('(') => Some(text.len()),
        () if text.ends_with(',') && text.matches('(').count() == text.matches(')').count() => Some(text.len()),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_items_are_listed_with_their_block() {
        let text = concat!(
            "pub use a::{B, C};\n/// Doc.\npub enum Kind {\n    /// One.\n    One,\n",
            "    Two {\n        x: u64,\n    },\n}\n",
            "pub struct S {\n    pub a: u64,\n    b: u8,\n}\n",
            "impl S {\n    /// Doc.\n    pub fn get(\n        &self,\n    ) -> u64 {\n        1\n    }\n",
            "    fn own() {}\n}\n",
            "impl fmt::Debug for S {\n    fn fmt() {}\n}\n#[cfg(test)]\nmod tests { pub fn no() {} }\n",
        );
        assert_eq!(
            items(text),
            [
                "pub use a::{B, C}",
                "pub enum Kind",
                "pub enum Kind :: One",
                "pub enum Kind :: Two",
                "pub struct S",
                "pub struct S :: pub a: u64",
                "impl S :: pub fn get( &self, ) -> u64",
                "impl fmt::Debug for S",
            ]
        );
    }
}
