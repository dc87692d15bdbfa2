//! The files of the packages, the Debian package and the RPM.

use super::{Dist, Failure, create, read, shown, write};
use crate::{process, workspace};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names under which other programs look for the command.
const HELPERS: [&str; 5] =
    ["mount.butterfs", "mount.fuseblk.butterfs", "umount.butterfs", "mkfs.butterfs", "fsck.butterfs"];

/// The paths at which the shells look for completions.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/butterfs"),
    ("zsh", "usr/share/zsh/vendor-completions/_butterfs"),
    ("fish", "usr/share/fish/vendor_completions.d/butterfs.fish"),
];

/// The folder for documents.
const DOCUMENTS: &str = "usr/share/doc/butterfs";

fn built(dist: &Dist) -> Result<PathBuf, String> {
    if let Some(program) = &dist.program {
        return Ok(program.clone());
    }
    let mut build = Command::new("cargo");
    build.args(["build", "--release", "-p", "butterfs-cli"]).current_dir(workspace::root());
    dist.run_as_is("build", &mut build)?;
    Ok(workspace::target().join("release/butterfs"))
}

/// Lays out everything that a package installs.
pub fn lay_out(dist: &Dist) -> Result<(), Failure> {
    let root = dist.root();
    let program = root.join("usr/bin/butterfs");
    install(&built(dist)?, &program, 0o755)?;
    dist.run("strip", Command::new("strip").arg("--strip-unneeded").arg(&program))?;
    create(&root.join("usr/sbin"))?;
    for name in HELPERS {
        let link = root.join("usr/sbin").join(name);
        symlink("../bin/butterfs", &link).map_err(|error| format!("cannot make {}: {error}", link.display()))?;
    }
    manual(dist, &program)?;
    for (shell, place) in COMPLETIONS {
        let script = dist.run("completions", Command::new(&program).args(["completions", shell]))?;
        install_text(&script, &root.join(place))?;
    }
    let unit = "usr/lib/systemd/system/butterfs@.service";
    install(&workspace::root().join("packaging/butterfs@.service"), &root.join(unit), 0o644)?;
    for name in ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE", "packaging/copyright"] {
        let to = root.join(DOCUMENTS).join(Path::new(name).file_name().unwrap_or_default());
        install(&workspace::root().join(name), &to, 0o644)?;
    }
    Ok(())
}

fn manual(dist: &Dist, program: &Path) -> Result<(), String> {
    let folder = dist.root().join("usr/share/man/man8");
    create(&folder)?;
    dist.run("manual", Command::new(program).arg("manual").arg(&folder))?;
    let pages = workspace::files_below(&folder, ".8");
    dist.run("gzip", Command::new("gzip").arg("-9n").args(pages)).map(drop)
}

/// Makes the Debian package.
pub fn deb(dist: &Dist) -> Result<(), Failure> {
    if !process::exists("dpkg-deb") {
        return Err(Failure::Unavailable("dpkg-deb is missing".to_owned()));
    }
    let architecture = dist.run("architecture", Command::new("dpkg").arg("--print-architecture"))?;
    let architecture = architecture.trim();
    let staged = dist.folder.join("deb");
    dist.run("copy", Command::new("cp").arg("-a").arg(dist.root()).arg(&staged))?;
    let size = dist.run("du", Command::new("du").args(["-sk", "--apparent-size"]).arg(&staged))?;
    let control = read(&workspace::root().join("packaging/control"))?
        .replace("@VERSION@", &dist.version)
        .replace("@ARCHITECTURE@", architecture)
        .replace("@GLIBC@", &needed_glibc(dist)?)
        .replace("@INSTALLED_KIB@", size.split_whitespace().next().unwrap_or("0"));
    install_text(&control, &staged.join("DEBIAN/control"))?;
    let package = dist.out(&format!("butterfs_{}_{architecture}.deb", dist.version));
    let mut build = Command::new("dpkg-deb");
    dist.run("dpkg-deb", build.args(["--root-owner-group", "--build"]).arg(&staged).arg(package))?;
    Ok(())
}

/// The newest version of the C library that the program has symbols of.
fn needed_glibc(dist: &Dist) -> Result<String, String> {
    let symbols = dist.run("objdump", Command::new("objdump").arg("-T").arg(dist.root().join("usr/bin/butterfs")))?;
    let versions = symbols.split("GLIBC_").skip(1).filter_map(|rest| {
        let version = rest.split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
        version.split('.').map(|part| part.parse::<u32>().ok()).collect::<Option<Vec<u32>>>()
    });
    let newest = versions.max().ok_or("the program has no symbols of the C library")?;
    Ok(newest.iter().map(u32::to_string).collect::<Vec<_>>().join("."))
}

/// Makes the RPM.
pub fn rpm(dist: &Dist) -> Result<(), Failure> {
    if !process::exists("rpmbuild") {
        return Err(Failure::Unavailable("rpmbuild is missing (package rpm)".to_owned()));
    }
    let top = dist.folder.join("rpm");
    let spec = read(&workspace::root().join("packaging/butterfs.spec"))?
        .replace("@VERSION@", &dist.version)
        .replace("@ROOT@", &shown(&dist.root()));
    let path = top.join("butterfs.spec");
    install_text(&spec, &path)?;
    let mut build = Command::new("rpmbuild");
    build.args(["-bb", "--define", &format!("_topdir {}", top.display())]);
    build.args(["--define", "use_source_date_epoch_as_buildtime 1", "--define", "_buildhost localhost"]);
    build.args(["--define", "clamp_mtime_to_source_date_epoch 1"]).arg(&path);
    dist.run("rpmbuild", &mut build)?;
    let made =
        workspace::files_below(&top.join("RPMS"), ".rpm").pop().ok_or_else(|| "rpmbuild made no package".to_owned())?;
    install(&made, &dist.out(&made.file_name().unwrap_or_default().to_string_lossy()), 0o644)?;
    Ok(())
}

fn install(from: &Path, to: &Path, mode: u32) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("cannot install {} as {}: {error}", from.display(), to.display());
    create(to.parent().unwrap_or(to))?;
    std::fs::copy(from, to).map_err(failed)?;
    std::fs::set_permissions(to, std::fs::Permissions::from_mode(mode)).map_err(failed)
}

fn install_text(text: &str, to: &Path) -> Result<(), String> {
    create(to.parent().unwrap_or(to))?;
    write(to, text)
}
