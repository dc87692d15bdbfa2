//! The suites of other projects, for long runs: fetched as source packages of Debian and built beside the build output.

use crate::tools::{self, Apt};
use crate::workspace;
use std::path::Path;
use std::process::Command;

/// The word of `soak`, the source package, and how it is built in its folder.
const SUITES: [(&str, &str, &str); 2] = [
    (
        "git-suite",
        "git",
        "make -j2 CFLAGS='-O1 -w' NO_CURL=1 NO_EXPAT=1 NO_GETTEXT=1 NO_TCLTK=1 NO_OPENSSL=1 NO_PYTHON=1 all",
    ),
    (
        "sqlite-suite",
        "sqlite3",
        "./configure --with-tcl=$(echo /usr/lib/*/tcl8.6 /usr/lib/tcl8.6 | tr ' ' '\\n' | grep -v '\\*' | tail -n 1) \
         CFLAGS=-O1 && make -j2 testfixture mptester",
    ),
];

/// Gets and builds the suite that a word of `soak` is about, if it is about one.
pub fn ensure(word: &str) -> Result<(), String> {
    let Some((_, package, build)) = SUITES.iter().find(|(name, ..)| *name == word) else { return Ok(()) };
    let all = workspace::tools().join("suites");
    let folder = all.join(package.trim_end_matches('3'));
    if folder.is_dir() {
        return Ok(());
    }
    println!("fetching and building the suite of {package}");
    let apt = Apt::new(&all.join("apt"), "deb-src", release()?.trim())?;
    let download = apt.download();
    let words = ["source", "--download-only", package];
    tools::limited(apt.get().args(words).current_dir(&download), "suite-download", 300)?;
    let unpacked = all.join(format!("{package}.new"));
    build_in(&download, &unpacked, package, build)?;
    std::fs::rename(&unpacked, &folder).map_err(|error| format!("cannot rename {}: {error}", unpacked.display()))
}

fn release() -> Result<String, String> {
    let text = std::fs::read_to_string("/etc/os-release").map_err(|error| format!("/etc/os-release: {error}"))?;
    let name = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    name.map(str::to_owned).ok_or_else(|| "/etc/os-release names no release".to_owned())
}

fn build_in(download: &Path, folder: &Path, package: &str, build: &str) -> Result<(), String> {
    let (from, to) = (download.display(), folder.display());
    let script = format!(
        "set -e; rm -rf '{to}'; mkdir -p '{to}'; tar -C '{to}' --strip-components=1 -xf \
         '{from}'/{package}_*.orig.tar.*; cd '{to}'; {build}"
    );
    tools::limited(Command::new("bash").args(["-c", &script]), "suite-build", 1800)
}
