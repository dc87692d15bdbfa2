//! The real tree that is unpacked: Debian's Linux source package, fetched by `cargo xtask test`.

use crate::kernel::run_ok;
use crate::{requirement, scratch};
use std::path::{Path, PathBuf};

/// The tarball; `None`, said, where it is missing.
pub fn tarball(test: &str) -> Option<PathBuf> {
    let folder = scratch::tools().join("linux-source/usr/src");
    let files = std::fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let found = files.filter(|path| path.to_string_lossy().ends_with(".tar.xz")).max();
    if found.is_none() {
        requirement::skip(test, "needs Debian's Linux source package (cargo xtask test fetches it)");
    }
    found
}

/// The folder that everything in the tarball lies in.
pub fn top_folder(tarball: &Path) -> String {
    // `head` ends the pipe early; only its own status counts.
    let script = format!("tar -tJf '{}' 2>/dev/null | head -n 1", tarball.display());
    run_ok(60, "sh", &["-c", &script]).trim().trim_end_matches('/').to_owned()
}
