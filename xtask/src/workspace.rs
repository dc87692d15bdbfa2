//! Paths: the checkout, the build output, and what the tests keep there.

use std::path::{Path, PathBuf};

/// The checkout's top folder.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies inside the workspace").to_owned()
}

/// The build output, as cargo itself finds it.
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => root().join(folder),
        None => root().join("target"),
    }
}

/// Programs and packages that `test` fetched for itself.
pub fn tools() -> PathBuf {
    target().join("tools")
}

/// Scratch space of the tests; may be deleted at any time.
pub fn scratch() -> PathBuf {
    target().join("tmp")
}

/// All files below `folder` whose name ends in `suffix`, in order of their path.
pub fn files_below(folder: &Path, suffix: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.to_string_lossy().ends_with(suffix) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}
