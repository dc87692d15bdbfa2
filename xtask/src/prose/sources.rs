//! The rules for source files: the width of every line, the words of comments, and doc comments with a subject.
//!
//! rustfmt wraps code only; comments and strings are checked here. Rows of tables and lines without a place to break
//! are exempt.

use super::{WIDTH, words};
use crate::{process, workspace};
use std::path::{Path, PathBuf};

/// Endings of the names of source files.
const ENDINGS: [&str; 8] = ["rs", "toml", "c", "h", "py", "pyi", "service", "spec"];
/// The file that lists the rejected words.
const LIST: &str = "xtask/src/prose/words.rs";

/// One line for each violation.
pub fn violations(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources(root) {
        let shown = source.strip_prefix(root).unwrap_or(&source).display().to_string();
        match std::fs::read_to_string(&source) {
            Ok(text) => found.extend(violations_in(&text, shown != LIST).map(|line| format!("{shown}:{line}"))),
            Err(_) => found.push(format!("{shown} cannot be read")),
        }
    }
    found
}

/// Source files that git knows, or would add.
fn sources(root: &Path) -> Vec<PathBuf> {
    let folder = root.display().to_string();
    let arguments = ["-C", &folder, "ls-files", "--cached", "--others", "--exclude-standard"];
    let names = process::capture("git", &arguments).unwrap_or_default();
    let paths = names.lines().map(|name| root.join(name));
    let is_source = |path: &PathBuf| path.extension().is_some_and(|end| ENDINGS.iter().any(|known| end == *known));
    let mut sources: Vec<PathBuf> = paths.filter(is_source).filter(|path| path.is_file()).collect();
    if sources.is_empty() {
        sources = workspace::files_below(&root.join("crates"), ".rs");
    }
    sources
}

fn violations_in(text: &str, has_words: bool) -> impl Iterator<Item = String> {
    let mut found = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        if is_too_long(line) {
            found.push((number, format!("more than {WIDTH} columns")));
        }
    }
    for comment in comments(text).into_iter().filter(|_| has_words) {
        found.extend(words::complaints(&comment.text).into_iter().map(|complaint| (comment.line, complaint)));
        if comment.is_doc && words::is_headless(&comment.text) {
            found.push((comment.line, "the doc comment does not begin with its subject".to_owned()));
        }
    }
    found.into_iter().map(|(number, complaint)| format!("{number}: {complaint}"))
}

fn is_too_long(line: &str) -> bool {
    let text = line.trim().trim_start_matches(['/', '!', '#']).trim();
    line.chars().count() > WIDTH && !text.starts_with('|') && text.contains(' ')
}

/// Consecutive lines of comment.
struct Comment {
    line: usize,
    is_doc: bool,
    text: String,
}

fn comments(text: &str) -> Vec<Comment> {
    let mut found: Vec<Comment> = Vec::new();
    let mut last = None;
    for (line, number) in text.lines().zip(1..) {
        let mark = marker(line);
        if let Some(mark) = mark {
            let words = &line.trim_start()[mark.len()..];
            match found.last_mut().filter(|_| last == Some(mark)) {
                Some(comment) => {
                    comment.text.push('\n');
                    comment.text.push_str(words);
                }
                None => found.push(Comment { line: number, is_doc: mark.len() == 3, text: words.to_owned() }),
            }
        }
        last = mark;
    }
    found
}

/// The characters that begin a line of comment.
fn marker(line: &str) -> Option<&'static str> {
    let line = line.trim_start();
    ["///", "//!", "//"].into_iter().find(|mark| line.starts_with(mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn violations_name_their_line() {
        let long = "word ".repeat(30);
        let text = format!(
            "//! Whole.\n//! | {long}\n// {long}\nlet a = \"{long}\";\n/// What no log\n/// can say.\nfn f() {{}}\n"
        );
        let found: Vec<String> = violations_in(&text, true).collect();
        let starts: Vec<&str> = found.iter().filter_map(|line| line.split(':').next()).collect();
        assert_eq!(starts, ["3", "4", "5", "5"], "{found:?}");
    }
}
