//! The layering, checked: which crate may use which, which module of `fs` may use which, where `unsafe` may stand, that each
//! lock of the engine has a place in the order of locks, and that every source file says at its head what it is.
//!
//! Invariants: (1) a crate or a module that is not in these tables is a failure, so that a new one is a decision made
//! here; (2) the tables equal the drawing in `ARCHITECTURE.md`.
//! It reads the text of manifests and sources; it does not resolve names, so `fs` modules refer to each other by
//! `crate::module`.

use crate::workspace;
use std::path::Path;

/// A crate's folder and the crates of this workspace that it may use.
const CRATES: &[(&str, &[&str])] = &[
    ("ondisk", &[]),
    ("device", &[]),
    ("sync", &[]),
    ("tree", &["ondisk"]),
    ("volume", &["ondisk", "device", "sync"]),
    ("fs", &["tree", "volume", "ondisk", "device", "sync"]),
    ("check", &["tree", "volume", "ondisk", "device"]),
    ("send", &["fs", "ondisk"]),
    ("fuse", &["fs"]),
    ("cli", &["ondisk", "device", "volume", "tree", "fs", "fuse", "check", "send"]),
    ("testkit", &["ondisk", "device", "sync", "volume", "tree", "fs", "check", "send"]),
    ("sim", &["ondisk", "device", "sync", "volume", "tree", "fs", "check", "send", "testkit"]),
    ("bench", &["ondisk", "device", "volume", "tree", "fs", "check", "send", "testkit"]),
];

/// What tests may use beyond that: the judge still shares nothing with the accused.
const FOR_TESTS: &[&str] = &["ondisk", "device", "testkit"];

/// The modules of `fs`, lowest first; those of one rank do not know each other.
const FS_MODULES: &[&[&str]] = &[
    &["error", "env", "options", "sync_primitives"],
    &["node_io", "mkfs", "superblock_order"],
    &["space"],
    &["transaction"],
    &["file_extent", "extent"],
    &["backref"],
    &["commit"],
    &["tree_log"],
    &["file_buffer"],
    &["inode"],
    &["file"],
    &["subvolume"],
    &["replay"],
    &["mount"],
    &["filesystem"],
];

/// Crates in which `unsafe` may stand.
const MAY_BE_UNSAFE: &[&str] = &["device", "fuse"];

/// Crates whose locks have a rank each.
const RANKED_LOCKS: &[&str] = &["volume", "fs"];

/// Prints every violation; true when there is none.
pub fn run() -> Result<bool, String> {
    let found = violations()?;
    found.iter().for_each(|sentence| println!("layering: {sentence}"));
    if found.is_empty() {
        println!("layering: {} crates, {} ranks of modules in fs: as drawn", CRATES.len(), FS_MODULES.len());
    }
    Ok(found.is_empty())
}

/// One sentence for each violation in the checkout.
pub fn violations() -> Result<Vec<String>, String> {
    let crates = workspace::root().join("crates");
    let mut found = Vec::new();
    let folders = std::fs::read_dir(&crates).map_err(|error| format!("cannot read {}: {error}", crates.display()))?;
    for folder in folders.flatten().map(|entry| entry.path()) {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap_or_default();
        found.extend(crate_edges(&name, &manifest));
        found.extend(unsafe_code(&name, &folder));
        for file in workspace::files_below(&folder, ".rs") {
            let text =
                std::fs::read_to_string(&file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
            let shown = file.strip_prefix(workspace::root()).unwrap_or(&file).display().to_string();
            if !text.starts_with("//!") {
                found.push(format!("{shown} does not begin with //!"));
            }
            if RANKED_LOCKS.contains(&name.as_str()) && file.starts_with(folder.join("src")) {
                found.extend(unranked_locks(&shown, &text));
            }
            if name == "fs" && file.starts_with(folder.join("src")) {
                found.extend(module_edges(&module_of(&folder.join("src"), &file), &shown, &text));
            }
        }
    }
    found.extend(gone(&crates));
    found.extend(drawings());
    found.sort();
    Ok(found)
}

/// Crates and modules in the tables that do not exist.
fn gone(crates: &Path) -> Vec<String> {
    let src = crates.join("fs/src");
    let crates_gone = CRATES.iter().map(|(name, _)| name).filter(|name| !crates.join(name).is_dir());
    let is_module = |name: &&&str| src.join(name).is_dir() || src.join(format!("{name}.rs")).is_file();
    let modules_gone = FS_MODULES.iter().copied().flatten().filter(|name| !is_module(name));
    crates_gone
        .chain(modules_gone)
        .map(|name| format!("{name} is in a table of xtask/src/layering.rs and does not exist"))
        .collect()
}

/// The modules of `fs` as ARCHITECTURE.md and the crate's documentation draw them.
fn drawing() -> String {
    FS_MODULES.iter().map(|rank| rank.join(" ")).collect::<Vec<_>>().join(" | ")
}

/// Documents whose drawing is another one.
fn drawings() -> Vec<String> {
    let drawing = drawing();
    let shows = |file: &&&str| {
        let text = std::fs::read_to_string(workspace::root().join(file)).unwrap_or_default();
        text.lines().any(|line| line.trim_start_matches("//! ").trim_matches('`') == drawing)
    };
    let files = ["ARCHITECTURE.md", "crates/fs/src/lib.rs"];
    files
        .iter()
        .filter(|file| !shows(file))
        .map(|file| format!("{file} does not draw the modules of fs so: {drawing}"))
        .collect()
}

fn crate_edges(name: &str, manifest: &str) -> Vec<String> {
    let Some((_, allowed)) = CRATES.iter().find(|(known, _)| *known == name) else {
        return vec![format!("crate {name} is not in the table of xtask/src/layering.rs")];
    };
    let mut found = Vec::new();
    let mut section = "";
    for line in manifest.lines() {
        if let Some(title) = line.trim().strip_prefix('[') {
            section = title.trim_end_matches(']');
        }
        let Some(used) = line.strip_prefix("butterfs-") else { continue };
        let used = used.split(['.', ' ', '=']).next().unwrap_or(used);
        let for_tests = section == "dev-dependencies" && FOR_TESTS.contains(&used);
        if !allowed.contains(&used) && !for_tests {
            found.push(format!("crate {name} uses {used} ([{section}])"));
        }
    }
    found
}

/// Locks in structures without a rank of `butterfs_sync::order`.
fn unranked_locks(shown: &str, text: &str) -> Vec<String> {
    if shown.contains("tests") {
        return Vec::new();
    }
    let is_unranked = |line: &str| {
        let code = line.trim_start().trim_start_matches("pub(crate) ").trim_start_matches("pub ");
        let lock = ["Mutex<", "RwLock<"].iter().filter_map(|lock| code.find(lock)).min();
        let field = code.split(':').next().is_some_and(|name| name.chars().all(|c| c.is_alphanumeric() || c == '_'));
        let declares = (field && line.ends_with(',')) || (code.starts_with("struct ") && line.ends_with(");"));
        lock.is_some() && declares && !code.contains("order::")
    };
    let lines = text.lines().enumerate().filter(|(_, line)| is_unranked(line));
    lines.map(|(number, _)| format!("a lock without a place in the order of locks ({shown}:{})", number + 1)).collect()
}

fn unsafe_code(name: &str, folder: &Path) -> Option<String> {
    if MAY_BE_UNSAFE.contains(&name) {
        return None;
    }
    let root = ["src/lib.rs", "src/main.rs"].iter().find_map(|file| std::fs::read_to_string(folder.join(file)).ok())?;
    (!root.contains("#![forbid(unsafe_code)]")).then(|| format!("crate {name} does not forbid unsafe code"))
}

/// `inode` for `src/inode.rs`, `src/inode/link.rs` and so on.
fn module_of(src: &Path, file: &Path) -> String {
    let inside = file.strip_prefix(src).unwrap_or(file);
    let first = inside.components().next().map(|part| part.as_os_str().to_string_lossy().into_owned());
    first.unwrap_or_default().trim_end_matches(".rs").to_owned()
}

fn rank(module: &str) -> Option<usize> {
    FS_MODULES.iter().position(|modules| modules.contains(&module))
}

fn module_edges(module: &str, shown: &str, text: &str) -> Vec<String> {
    if module == "lib" {
        return Vec::new();
    }
    let Some(own) = rank(module) else {
        return vec![format!("module fs::{module} ({shown}) is not in the table of xtask/src/layering.rs")];
    };
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for used in modules_named(line) {
            let allowed = used == module || rank(used).is_none_or(|other| other < own);
            if !allowed {
                found.push(format!("fs::{module} uses fs::{used} ({shown}:{})", number + 1));
            }
        }
    }
    found
}

/// The `x` of every `crate::x` and `crate::{x, y::Z}` that stands on the line outside a comment.
fn modules_named(line: &str) -> Vec<&str> {
    let code = line.split("//").next().unwrap_or(line);
    let first_name =
        |text: &'_ str| -> usize { text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len()) };
    let mut names = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        // `$crate::` belongs to macros, `my_crate::` to somebody else.
        if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$') {
            continue;
        }
        let rest = &code[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            Some(group) => {
                let mut depth = 0usize;
                for part in group.split_inclusive([',', '{', '}']) {
                    let name = part.trim();
                    if depth == 0 && !name.is_empty() {
                        names.push(&name[..first_name(name)]);
                    }
                    match part.chars().last() {
                        Some('{') => depth += 1,
                        Some('}') => depth = depth.saturating_sub(1),
                        _ => {}
                    }
                }
            }
            None => names.push(&rest[..first_name(rest)]),
        }
    }
    names.retain(|name| name.starts_with(|c: char| c.is_lowercase()));
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edge_that_is_not_drawn_is_found() {
        let manifest = "[dependencies]\nbutterfs-fs.workspace = true\nbutterfs-tree.workspace = true\n";
        assert_eq!(crate_edges("check", manifest), ["crate check uses fs ([dependencies])"]);
        assert_eq!(crate_edges("tree", "[dev-dependencies]\nbutterfs-testkit.workspace = true\n"), [""; 0]);
        assert_eq!(crate_edges("nobody", "").len(), 1);
    }

    #[test]
    fn a_lock_without_a_rank_is_found() {
        let text = "struct A {\n    pub(crate) one: Mutex<u32>,\n    two: RwLock<u32, { order::TREE }>,\n}\nstruct B(Mutex<()>);\n\
                    fn f(lock: &Mutex<u32>) {\n    let held: MutexGuard<'_, u32> = lock.lock();\n}\n";
        let found = unranked_locks("x.rs", text);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].ends_with("(x.rs:2)") && found[1].ends_with("(x.rs:5)"), "{found:?}");
        assert_eq!(unranked_locks("tests.rs", text).len(), 0);
    }

    #[test]
    fn modules_are_read_from_paths() {
        for (line, names) in [
            ("use crate::inode::Inode;", vec!["inode"]),
            ("use crate::{error::{Errno, Result}, space, Core};", vec!["error", "space"]),
            ("let x = crate::file::read(crate::mount::y());", vec!["file", "mount"]),
            ("// use crate::file;", vec![]),
            ("other_crate::file::x();", vec![]),
        ] {
            assert_eq!(modules_named(line), names, "{line}");
        }
    }

    #[test]
    fn a_module_does_not_use_a_later_one() {
        let found = module_edges("space", "space.rs", "use crate::error::Result;\nuse crate::inode::Inode;\n");
        assert_eq!(found, ["fs::space uses fs::inode (space.rs:2)"]);
        assert_eq!(module_edges("error", "error.rs", "use crate::env::Env;").len(), 1);
        assert_eq!(module_edges("unheard", "unheard.rs", "").len(), 1);
    }
}
