//! The rules for documents and sources: short lines, links with a target, and none of the words that the style rejects.
//!
//! Tables, code blocks and lines that are one long word are exempt from the width. Links to other sites are not
//! followed. [`sources`] has the rules for source files.

mod sources;
mod words;

use crate::workspace;
use std::path::{Path, PathBuf};

/// Columns of a line.
const WIDTH: usize = 120;

/// Prints the violations; true when there is none.
pub fn run() -> Result<bool, String> {
    let found = violations();
    found.iter().for_each(|line| println!("{line}"));
    Ok(found.is_empty())
}

/// One line for each violation.
pub fn violations() -> Vec<String> {
    let root = workspace::root();
    let documents = documents(&root);
    let mut found = sources::violations(&root);
    for document in &documents {
        let shown = document.strip_prefix(&root).unwrap_or(document).display().to_string();
        let Ok(text) = std::fs::read_to_string(document) else {
            found.push(format!("{shown} cannot be read"));
            continue;
        };
        found.extend(long_lines(&text).map(|line| format!("{shown}:{line}: more than {WIDTH} columns")));
        found.extend(broken_links(document, &text).map(|link| format!("{shown}: the link '{link}' leads nowhere")));
        let complaints = words::complaints(&text).into_iter().chain(words::headless_sentences(&text));
        found.extend(complaints.map(|complaint| format!("{shown}: {complaint}")));
    }
    found
}

/// Markdown files at the top, in `docs`, and beside the manifests of crates.
fn documents(root: &Path) -> Vec<PathBuf> {
    let top = std::fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut all: Vec<PathBuf> = top.filter(|path| path.extension().is_some_and(|end| end == "md")).collect();
    all.extend(workspace::files_below(&root.join("docs"), ".md"));
    all.extend(workspace::files_below(&root.join("crates"), "README.md"));
    all
}

fn long_lines(text: &str) -> impl Iterator<Item = usize> + '_ {
    let mut in_code = false;
    text.lines().zip(1..).filter_map(move |(line, number)| {
        in_code ^= line.trim_start().starts_with("```");
        let is_exempt = in_code || line.starts_with('|') || !line.trim().contains(' ');
        (!is_exempt && line.chars().count() > WIDTH).then_some(number)
    })
}

/// Targets of `[text](target)` that are no file and no heading.
fn broken_links<'a>(document: &'a Path, text: &'a str) -> impl Iterator<Item = &'a str> + 'a {
    text.split("](").skip(1).filter_map(|rest| rest.split(')').next()).filter(move |target| {
        let is_elsewhere = target.contains("://") || target.starts_with("mailto:");
        !is_elsewhere && !target.contains(' ') && !leads_somewhere(document, target)
    })
}

fn leads_somewhere(document: &Path, target: &str) -> bool {
    let (file, heading) = target.split_once('#').unwrap_or((target, ""));
    let path = match file {
        "" => document.to_owned(),
        file => document.parent().unwrap_or(document).join(file),
    };
    let has_heading =
        || std::fs::read_to_string(&path).is_ok_and(|text| text.lines().any(|line| anchor(line) == heading));
    path.exists() && (heading.is_empty() || has_heading())
}

/// The anchor that a heading gets: lower case, hyphens for spaces, without punctuation.
fn anchor(line: &str) -> String {
    let Some(heading) = line.strip_prefix('#') else { return String::new() };
    let kept = heading.trim_start_matches('#').trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_and_broken_links_are_found() {
        let long = "word ".repeat(30);
        let text =
            format!("{long}\n```\n{long}\n```\n| {long}\n[a](missing.md) [b](#here) [c](#there)\n## Here\n{long}\n");
        assert_eq!(long_lines(&text).collect::<Vec<_>>(), [1, 8]);
        assert_eq!(anchor("## The superblock, again"), "the-superblock-again");
        let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/prose.rs");
        assert_eq!(broken_links(&document, "[a](missing.md) [b](main.rs)").collect::<Vec<_>>(), ["missing.md"]);
    }
}
