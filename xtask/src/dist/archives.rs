//! Static programs for machines of any distribution: one archive for each target.
//!
//! rustup installs the standard library for musl. Where it cannot, the library is built from the compiler's sources
//! (`-Z build-std`), which Debian packages for each version. zig's C compiler, which brings a musl for each processor,
//! builds the C libraries and links; it is fetched into the build output. Each program makes an image and checks it,
//! those for other processors under qemu's user mode.

use super::{Dist, Failure, create};
use crate::tools::{self, Apt};
use crate::{process, workspace};
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGETS: [&str; 2] = ["x86_64-unknown-linux-musl", "aarch64-unknown-linux-musl"];
/// Releases of Debian that may have the sources of our compiler, the likeliest first.
const SUITES: [&str; 4] = ["trixie-backports", "sid", "forky", "trixie"];
/// Python packages with programs in them.
const ZIG: [&str; 2] = ["ziglang==0.17.1", "cargo-zigbuild==0.24.1"];

/// The standard library for the targets.
enum Library {
    /// The compiler has it.
    Installed,
    /// It is built from these sources.
    Sources(PathBuf),
}

/// Builds one archive for each target.
pub fn build(dist: &Dist) -> Result<(), Failure> {
    let library = match dist.run("rustup", Command::new("rustup").args(["target", "add"]).args(TARGETS)) {
        Ok(_) => Library::Installed,
        Err(_) => Library::Sources(standard_library(dist).map_err(Failure::Unavailable)?),
    };
    let zig = zig(dist).map_err(Failure::Unavailable)?;
    for target in TARGETS {
        let program = compile(dist, target, &library, &zig)?;
        try_out(dist, target, &program)?;
        archive(dist, target, &program)?;
    }
    Ok(())
}

/// The program makes an image of a folder and checks it.
fn try_out(dist: &Dist, target: &str, program: &Path) -> Result<(), Failure> {
    let processor = target.split('-').next().unwrap_or_default();
    let runner = format!("qemu-{processor}-static");
    if processor != std::env::consts::ARCH && !process::exists(&runner) {
        return Err(Failure::Unavailable(format!(
            "{target}: built, not tried: {runner} is missing (apt-get install qemu-user-static)"
        )));
    }
    let image = dist.folder.join(format!("tried-{target}.img"));
    let command = || match processor == std::env::consts::ARCH {
        true => Command::new(program),
        false => {
            let mut command = Command::new(&runner);
            command.arg(program);
            command
        }
    };
    let sources = workspace::root().join("xtask/src");
    dist.run("try-image", command().args(["image", "build", "--from"]).arg(&sources).arg(&image))?;
    dist.run("try-check", command().args(["check", "--check-data-csum"]).arg(&image))?;
    std::fs::remove_file(&image).map_err(|error| format!("cannot remove {}: {error}", image.display()))?;
    Ok(())
}

/// The sources of the standard library of this compiler.
fn standard_library(dist: &Dist) -> Result<PathBuf, String> {
    let version = compiler_version(dist)?;
    let folder = workspace::tools().join(format!("rust-src-{version}"));
    let library = folder.join(format!("usr/src/rustc-{version}/library"));
    let installed = dist.run("sysroot", Command::new("rustc").args(["--print", "sysroot"]))?;
    let installed = Path::new(installed.trim()).join("lib/rustlib/src/rust/library");
    match [installed, library.clone()].into_iter().find(|place| place.join("std").is_dir()) {
        Some(found) => return Ok(found),
        None => println!("fetching the sources of Rust {version}"),
    }
    let mut reasons = Vec::new();
    for suite in SUITES {
        match fetch_library(&folder.join(suite), suite, &version, &folder) {
            Ok(()) if library.join("std").is_dir() => return Ok(library),
            Ok(()) => reasons.push(format!("{suite} has them in another place")),
            Err(reason) => reasons.push(reason),
        }
    }
    Err(format!("the sources of Rust {version} cannot be had: {}", reasons.join("; ")))
}

fn fetch_library(scratch: &Path, suite: &str, version: &str, folder: &Path) -> Result<(), String> {
    let apt = Apt::new(scratch, "deb", suite)?;
    let known = apt.cache().args(["madison", "rust-src"]).output().map(|output| output.stdout).unwrap_or_default();
    let known = String::from_utf8_lossy(&known).into_owned();
    let exact = known.lines().filter_map(|line| line.split('|').nth(1)).map(str::trim);
    let exact = exact.into_iter().find(|found| found.starts_with(&format!("{version}+")));
    let exact = exact.ok_or_else(|| format!("{suite} has no rust-src {version}"))?;
    let mut download = apt.get();
    download.args(["download", &format!("rust-src={exact}")]).current_dir(apt.download());
    tools::limited(&mut download, "rust-src-download", 600)?;
    tools::unpack(&tools::package_in(&apt.download())?, folder)
}

fn compiler_version(dist: &Dist) -> Result<String, String> {
    let shown = dist.run("rustc-version", Command::new("rustc").arg("--version"))?;
    shown.split_whitespace().nth(1).map(str::to_owned).ok_or_else(|| "rustc tells no version".to_owned())
}

/// A folder with `cargo-zigbuild` and zig.
fn zig(dist: &Dist) -> Result<PathBuf, String> {
    let venv = workspace::tools().join("zig");
    let bin = venv.join("bin");
    if !bin.join("cargo-zigbuild").is_file() {
        create(&workspace::tools())?;
        dist.run("venv", Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
        dist.run("pip", Command::new(bin.join("pip")).args(["install", "--quiet"]).args(ZIG))?;
    }
    Ok(bin)
}

fn compile(dist: &Dist, target: &str, library: &Library, zig: &Path) -> Result<PathBuf, String> {
    let path = format!("{}:{}", zig.display(), std::env::var("PATH").unwrap_or_default());
    let folder = workspace::target().join("musl");
    let mut build = Command::new(zig.join("cargo-zigbuild"));
    build.args(["build", "--release", "-p", "butterfs-cli", "--target", target]).env("PATH", path);
    build.env("CARGO_TARGET_DIR", &folder).env("CARGO_PROFILE_RELEASE_STRIP", "true");
    build.env_remove("COMPILER_PATH").current_dir(workspace::root());
    if let Library::Sources(sources) = library {
        // zig brings the start files and the C library; the compiler's own would come with the target that is not
        // installed.
        let flags = format!("CARGO_TARGET_{}_RUSTFLAGS", target.to_uppercase().replace('-', "_"));
        build.args(["-Z", "build-std=std,panic_unwind"]).env(flags, "-C link-self-contained=no");
        build.env("RUSTC_BOOTSTRAP", "1").env("__CARGO_TESTS_ONLY_SRC_ROOT", sources);
    }
    dist.run(&format!("build-{target}"), &mut build)?;
    Ok(folder.join(target).join("release/butterfs"))
}

fn archive(dist: &Dist, target: &str, program: &Path) -> Result<(), String> {
    let described = dist.run("file", Command::new("file").arg("-b").arg(program))?;
    if !described.contains("static") {
        return Err(format!("{} is not static: {}", program.display(), described.trim()));
    }
    let folder = dist.folder.join(format!("butterfs-{}-{target}", dist.version));
    dist.run("copy", Command::new("cp").arg("-a").arg(dist.root()).arg(&folder))?;
    let copy = folder.join("usr/bin/butterfs");
    std::fs::copy(program, &copy).map_err(|error| format!("cannot write {}: {error}", copy.display()))?;
    let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    dist.pack(&folder, &dist.out(&format!("{name}.tar.gz")))
}
