//! The layering, checked: which crate may use which, which module of `fs` may use which, where `unsafe` may stand, that
//! each lock of the engine has a place in the order of locks, and that every source file says at its head what it is.
//!
//! Invariants: (1) a crate or a module that is not in these tables is a failure, so that a new one is a decision made
//! here; (2) the tables equal the drawing in `ARCHITECTURE.md`. It reads the text of manifests and sources; it does not
//! resolve names. So `fs` modules refer to each other by `crate::module` and not by `super::`; no module hands out a
//! name of a later one; and a type's own `impl` blocks are in the module that defines it, so that a method is where its
//! receiver is.

use crate::workspace;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A crate's folder and the crates of this workspace that it may use.
const CRATES: &[(&str, &[&str])] = &[
    ("ondisk", &[]),
    ("device", &[]),
    ("sync", &[]),
    ("control", &[]),
    ("store", &[]),
    ("codec", &["ondisk"]),
    ("tree", &["ondisk"]),
    ("volume", &["ondisk", "device", "sync"]),
    ("fs", &["tree", "volume", "ondisk", "codec", "device", "sync"]),
    ("check", &["tree", "volume", "ondisk", "device"]),
    ("repair", &["tree", "volume", "ondisk", "codec", "device", "check"]),
    ("send", &["fs", "ondisk"]),
    ("objects", &["store", "send", "fs"]),
    ("remote", &["store", "device"]),
    ("rescue", &["fs", "tree", "volume", "ondisk", "device"]),
    ("fuse", &["fs", "control"]),
    ("butterfs", &["ondisk", "device", "fs", "check", "send"]),
    ("image", &["ondisk", "device", "tree", "volume", "fs", "butterfs"]),
    ("capi", &["butterfs"]),
    ("python", &["butterfs"]),
    (
        "cli",
        &[
            "ondisk", "device", "volume", "tree", "fs", "fuse", "control", "check", "repair", "rescue", "send",
            "image", "butterfs", "store", "objects", "remote",
        ],
    ),
    ("testkit", &["ondisk", "device", "sync", "volume", "tree", "fs", "check", "send"]),
    ("sim", &["ondisk", "device", "sync", "volume", "tree", "fs", "check", "send", "store", "remote", "testkit"]),
    ("bench", &["ondisk", "device", "volume", "tree", "fs", "check", "send", "store", "testkit"]),
];

/// Crates that tests may use beyond that: the checker still shares no code with the engine.
const FOR_TESTS: &[&str] = &["ondisk", "device", "testkit"];

/// The modules of `fs`, lowest first; those of one rank do not know each other.
const FS_MODULES: &[&[&str]] = &[
    &["error", "env", "options", "sync_primitives"],
    &["node_io", "mkfs", "parallel", "superblock_order"],
    &["space"],
    &["transaction"],
    &["file_extent", "extent"],
    &["backref"],
    &["commit"],
    &["migration", "relocation"],
    &["tree_log"],
    &["file_buffer"],
    &["inode"],
    &["file"],
    &["namespace"],
    &["subvolume"],
    &["scrub"],
    &["replay"],
    &["mount"],
    &["filesystem"],
];

/// Crates in which `unsafe` may stand.
const MAY_BE_UNSAFE: &[&str] = &["device", "fuse", "capi", "python"];

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
        let exports = exports(&std::fs::read_to_string(folder.join("src/lib.rs")).unwrap_or_default());
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
                let src = folder.join("src");
                let depth = depth_of(&src, &file);
                found.extend(module_edges((&module_of(&src, &file), depth), &shown, &text, &exports));
            }
        }
    }
    found.extend(foreign_impls(&crates.join("fs/src"))?);
    found.extend(gone(&crates));
    found.extend(drawings());
    found.sort();
    Ok(found)
}

/// `impl` blocks of a type of `fs` in another module than the one that defines it.
fn foreign_impls(src: &Path) -> Result<Vec<String>, String> {
    let read =
        |file: &Path| std::fs::read_to_string(file).map_err(|error| format!("cannot read {}: {error}", file.display()));
    let sources: Vec<(String, String, String)> = workspace::files_below(src, ".rs")
        .into_iter()
        .map(|file| Ok((module_of(src, &file), file.display().to_string(), read(&file)?)))
        .collect::<Result<_, String>>()?;
    let mut homes: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (module, _, text) in &sources {
        for name in text.lines().filter_map(defined_type) {
            homes.entry(name).or_default().insert(module);
        }
    }
    let is_foreign = |module: &str, name: &str| homes.get(name).is_some_and(|homes| !homes.contains(module));
    let mut found = Vec::new();
    for (module, file, text) in &sources {
        let shown = Path::new(file).strip_prefix(workspace::root()).unwrap_or(Path::new(file)).display().to_string();
        for (number, name) in text.lines().enumerate().filter_map(|(number, line)| Some((number, impl_of(line)?))) {
            if is_foreign(module, name) {
                found.push(format!(
                    "fs::{module} has an impl block of {name}, which is another module's ({shown}:{})",
                    number + 1
                ));
            }
        }
    }
    Ok(found)
}

/// The type that a line defines.
fn defined_type(line: &str) -> Option<&str> {
    let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
    words
        .by_ref()
        .take_while(|word| ["pub", "crate", "super", "struct", "enum"].contains(word))
        .find(|word| ["struct", "enum"].contains(word))?;
    words.next()
}

/// The type of whose own `impl` block this is the first line.
fn impl_of(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("impl")?.split(" where ").next().filter(|rest| !rest.contains(" for "))?;
    let mut depth = 0;
    let generics = |c: char| {
        depth += match c {
            '<' => 1,
            '>' => -1,
            _ => 0,
        };
        depth > 0 || c == '>' || c == ' '
    };
    let rest = rest.trim_start_matches(generics);
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    Some(&rest[..end]).filter(|name| !name.is_empty())
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
        // A drawing may have several lines.
        let words: Vec<&str> =
            text.split_whitespace().filter(|word| *word != "//!").map(|word| word.trim_matches('`')).collect();
        words.join(" ").contains(&drawing)
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
        // The facade is called as the project.
        let Some(used) = line.strip_prefix("butterfs") else { continue };
        let used = used.split(['.', ' ', '=']).next().unwrap_or(used);
        let used = if used.is_empty() { "butterfs" } else { used.trim_start_matches('-') };
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

/// How many `super::` lead from a file out of the crate's modules: 1 for `src/inode.rs` and `src/inode/mod.rs`, 2 for
/// `src/inode/link.rs`.
fn depth_of(src: &Path, file: &Path) -> usize {
    let inside = file.strip_prefix(src).unwrap_or(file);
    let is_folder = inside.file_name().is_some_and(|name| name == "mod.rs");
    inside.components().count() - usize::from(is_folder)
}

/// The names that a crate's root hands out, each with its module.
fn exports(lib: &str) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    for line in lib.lines().filter_map(|line| line.strip_prefix("pub use ")) {
        let Some((module, _)) = line.split_once("::") else { continue };
        let listed = line.rsplit("::").next().unwrap_or(line).trim_matches(['{', '}', ';']);
        for name in listed.split(',').map(|name| name.trim().trim_matches(['{', '}', ';'])) {
            names.insert(name.to_owned(), module.to_owned());
        }
    }
    names
}

fn rank(module: &str) -> Option<usize> {
    FS_MODULES.iter().position(|modules| modules.contains(&module))
}

fn module_edges(
    (module, depth): (&str, usize),
    shown: &str,
    text: &str,
    exports: &BTreeMap<String, String>,
) -> Vec<String> {
    if module == "lib" {
        return Vec::new();
    }
    let Some(own) = rank(module) else {
        return vec![format!("module fs::{module} ({shown}) is not in the table of xtask/src/layering.rs")];
    };
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        // The way out of the modules by `super::` is a way from the crate's root.
        let line = line.replace(&"super::".repeat(depth), "crate::");
        for name in names_from_root(&line) {
            let used = exports.get(name).map_or(name, String::as_str);
            let allowed = used == module || rank(used).is_none_or(|other| other < own);
            if !allowed {
                found.push(format!("fs::{module} uses fs::{used} ({shown}:{})", number + 1));
            }
        }
    }
    found
}

/// The `x` of every `crate::x` and `crate::{x, y::Z}` that stands on the line outside a comment.
fn names_from_root(line: &str) -> Vec<&str> {
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
    names.retain(|name| !name.is_empty());
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edge_that_is_not_drawn_is_found() {
        assert_eq!(
            crate_edges("fs", "[dependencies]\nbutterfs.workspace = true\n"),
            ["crate fs uses butterfs ([dependencies])"]
        );
        assert_eq!(crate_edges("capi", "[dependencies]\nbutterfs.workspace = true\n"), [""; 0]);
        let manifest = "[dependencies]\nbutterfs-fs.workspace = true\nbutterfs-tree.workspace = true\n";
        assert_eq!(crate_edges("check", manifest), ["crate check uses fs ([dependencies])"]);
        assert_eq!(crate_edges("tree", "[dev-dependencies]\nbutterfs-testkit.workspace = true\n"), [""; 0]);
        assert_eq!(crate_edges("nobody", "").len(), 1);
    }

    #[test]
    fn a_lock_without_a_rank_is_found() {
        let text = "struct A {\n    pub(crate) one: Mutex<u32>,\n    two: RwLock<u32, { order::TREE }>,\n}\nstruct \
                    B(Mutex<()>);\n\
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
            ("use crate::{error::{Errno, Result}, space, Core};", vec!["error", "space", "Core"]),
            ("let x = crate::file::read(crate::mount::y());", vec!["file", "mount"]),
            ("// use crate::file;", vec![]),
            ("other_crate::file::x();", vec![]),
        ] {
            assert_eq!(names_from_root(line), names, "{line}");
        }
    }

    #[test]
    fn a_module_does_not_use_a_later_one() {
        let exports =
            exports("pub use env::Env;\npub use inode::attr::{Attr, Caller};\npub use butterfs_ondisk::Ino;\n");
        let edges = |module: &str, depth: usize, text: &str| module_edges((module, depth), "x.rs", text, &exports);
        let found = edges("space", 1, "use crate::error::Result;\nuse crate::inode::Inode;\n");
        assert_eq!(found, ["fs::space uses fs::inode (x.rs:2)"]);
        assert_eq!(edges("error", 1, "use crate::env::Env;").len(), 1);
        assert_eq!(edges("unheard", 1, "").len(), 1);
        assert_eq!(edges("space", 1, "use crate::{Attr, Ino};"), ["fs::space uses fs::inode (x.rs:1)"]);
        assert_eq!(edges("space", 2, "use super::super::file::Files;"), ["fs::space uses fs::file (x.rs:1)"]);
        assert_eq!(edges("space", 2, "use super::holds::Holds;\nuse super::*;").len(), 0);
    }

    #[test]
    fn an_impl_elsewhere_is_found() {
        for (line, name) in [
            ("impl Inode {", Some("Inode")),
            ("impl<'a, T: Into<u64>> Walk<'a, T> {", Some("Walk")),
            ("impl Drop for Inode {", None),
            ("    impl Inode {", None),
        ] {
            assert_eq!(impl_of(line), name, "{line}");
        }
        for (line, name) in [
            ("pub(crate) struct Inode {", Some("Inode")),
            ("enum Color {", Some("Color")),
            ("fn f(structure: u8) {", None),
        ] {
            assert_eq!(defined_type(line), name, "{line}");
        }
    }
}
