//! The programs and packages that the tests need, and how they get here.
//!
//! Invariants: nothing outside the build output is changed except through `apt-get install`, and only for root; a tool
//! that cannot be had is named with the reason, and the tests that need it report themselves skipped.

use crate::{process, workspace};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A program and the Debian package that has it.
const PROGRAMS: [(&str, &str); 31] = [
    ("mkfs.btrfs", "btrfs-progs"),
    ("fio", "fio"),
    ("dbench", "dbench"),
    ("xfs_io", "xfsprogs"),
    ("stress-ng", "stress-ng"),
    ("setfattr", "attr"),
    ("setfacl", "acl"),
    ("fusermount3", "fuse3"),
    ("zstd", "zstd"),
    ("b3sum", "b3sum"),
    ("xz", "xz-utils"),
    ("setcap", "libcap2-bin"),
    ("losetup", "mount"),
    ("prlimit", "util-linux"),
    ("rsync", "rsync"),
    ("sqlite3", "sqlite3"),
    ("git", "git"),
    ("btrbk", "btrbk"),
    ("podman", "podman"),
    ("snapper", "snapper"),
    ("rpmbuild", "rpm"),
    ("debootstrap", "debootstrap"),
    ("file", "file"),
    ("strip", "binutils"),
    ("unshare", "util-linux"),
    ("qemu-img", "qemu-utils"),
    ("qemu-nbd", "qemu-utils"),
    ("img2simg", "android-sdk-libsparse-utils"),
    ("fsverity", "fsverity"),
    ("filefrag", "e2fsprogs"),
    ("systemd-nspawn", "systemd-container"),
];

/// A shell and what it needs, to be unpacked as the root of a container.
const CONTAINER_PACKAGES: [&str; 11] = [
    "base-files",
    "coreutils",
    "dash",
    "libacl1",
    "libattr1",
    "libc6",
    "libgcc-s1",
    "libgmp10",
    "libpcre2-8-0",
    "libselinux1",
    "tzdata",
];

/// Programs from crates.io, with the versions that the lists of expected results were made with.
const CRATES: [(&str, &str); 2] = [("pjdfstest", "0.2.2"), ("fsx", "0.3.2")];

/// The variables by which test programs find the tools.
pub fn environment() -> Vec<(String, String)> {
    let tools = workspace::tools();
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}:/usr/sbin:/sbin", tools.join("bin").display());
    vec![("PATH".into(), path), ("BUTTERFS_TOOLS".into(), tools.display().to_string())]
}

/// Gets everything that is missing. Returns one sentence for each tool that cannot be had.
pub fn ensure() -> Vec<String> {
    let steps: [fn() -> Result<(), String>; 7] = [
        debian_packages,
        crate_programs,
        newer_btrfs_progs,
        kernel_source,
        wheel_builder,
        object_server,
        container_packages,
    ];
    steps.iter().filter_map(|step| step().err()).collect()
}

fn debian_packages() -> Result<(), String> {
    let missing: Vec<&str> =
        PROGRAMS.iter().filter(|(program, _)| !process::exists(program)).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    if process::capture("id", &["-u"]).as_deref() != Some("0\n") {
        return Err(format!("missing packages: {list} (apt-get install needs root)"));
    }
    println!("installing {list}");
    let install = || {
        let mut command = Command::new("apt-get");
        command
            .args(["install", "-y", "--no-install-recommends"])
            .args(&missing)
            .env("DEBIAN_FRONTEND", "noninteractive");
        limited(&mut command, "apt-install", 600)
    };
    install().or_else(|_| {
        limited(Command::new("apt-get").arg("update"), "apt-update", 300)?;
        install()
    })
}

fn crate_programs() -> Result<(), String> {
    let folder = workspace::tools();
    let missing = CRATES.iter().filter(|(name, _)| !folder.join("bin").join(name).is_file());
    let wanted: Vec<String> = missing.map(|(name, version)| format!("{name}@{version}")).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    println!("installing {}", wanted.join(" "));
    let mut command = Command::new("cargo");
    // Compiling them costs more than they take in all tests.
    command.args(["install", "--debug", "--locked", "--root"]).arg(folder).args(wanted);
    limited(&mut command, "cargo-install", 900)
}

/// The program that builds the Python wheel.
fn wheel_builder() -> Result<(), String> {
    python_program("python", "maturin", "maturin==1.16.0")
}

/// A server that speaks S3, with conditional puts.
fn object_server() -> Result<(), String> {
    python_program("moto", "moto_server", "moto[s3,server]==5.2.5")
}

/// A program from PyPI, in a virtual environment of its own.
fn python_program(folder: &str, program: &str, package: &str) -> Result<(), String> {
    let folder = workspace::tools().join(folder);
    if folder.join("bin").join(program).is_file() {
        return Ok(());
    }
    println!("installing {package}");
    limited(Command::new("python3").args(["-m", "venv"]).arg(&folder), "python-venv", 120)?;
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", package];
    limited(Command::new(folder.join("bin/python")).args(install), "pip-install", 300)
}

/// Packages that tests unpack as the root of a container.
fn container_packages() -> Result<(), String> {
    let folder = workspace::tools().join("debian-packages");
    let found = workspace::files_below(&folder, ".deb");
    let is_there = |name: &str| found.iter().any(|path| path.to_string_lossy().contains(&format!("/{name}_")));
    let missing: Vec<&str> = CONTAINER_PACKAGES.into_iter().filter(|name| !is_there(name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    println!("fetching {}", missing.join(" "));
    std::fs::create_dir_all(&folder).map_err(|error| format!("cannot create {}: {error}", folder.display()))?;
    let download = || {
        let mut command = Command::new("apt-get");
        limited(command.arg("download").args(&missing).current_dir(&folder), "container-packages", 300)
    };
    download().or_else(|_| {
        limited(Command::new("apt-get").arg("update"), "apt-update", 300)?;
        download()
    })
}

/// The btrfs-progs of bookworm cannot make the block group tree, which is today's default. Debian's backports have one
/// that can; it is unpacked beside the build output, and the system's own stays as it is.
fn newer_btrfs_progs() -> Result<(), String> {
    let folder = workspace::tools().join("btrfs-progs");
    let makes_block_group_tree = |program: &str| {
        let listed = Command::new(program).args(["-O", "list-all"]).output();
        listed.is_ok_and(|output| String::from_utf8_lossy(&output.stderr).contains("block-group-tree"))
    };
    let unpacked = folder.join("sbin/mkfs.btrfs");
    if makes_block_group_tree("mkfs.btrfs") || makes_block_group_tree(&unpacked.to_string_lossy()) {
        return Ok(());
    }
    println!("fetching a btrfs-progs that knows the block group tree");
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let codename = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME=")).unwrap_or("stable");
    let apt = Apt::new(&folder.join("apt"), "deb", &format!("{codename}-backports"))?;
    limited(apt.get().args(["download", "btrfs-progs"]).current_dir(apt.download()), "backports-download", 300)?;
    unpack(&package_in(&apt.download())?, &folder)
}

/// The newest mkfs.btrfs and mkfs.erofs that Debian has, with the libraries they need, for the benchmark of images.
pub fn image_makers() -> Result<(), String> {
    let (folder, root) = (workspace::tools().join("image-makers"), workspace::tools().join("image-makers/root"));
    let programs = [("mkfs.btrfs", "sbin"), ("mkfs.erofs", "bin")];
    if programs.iter().all(|(name, _)| folder.join("bin").join(name).is_file()) {
        return Ok(());
    }
    println!("fetching the newest btrfs-progs and erofs-utils");
    let apt = Apt::new(&folder.join("apt"), "deb", "sid")?;
    let failed = |path: &Path, error| format!("cannot create {}: {error}", path.display());
    for path in [&root, &folder.join("bin")] {
        std::fs::create_dir_all(path).map_err(|error| failed(path, error))?;
    }
    // As if nothing were installed, so that all libraries come.
    let mut install = apt.get();
    install.args(["-o", "Dir::State::status=/dev/null", "install", "--download-only", "-y", "--no-install-recommends"]);
    limited(install.args(["btrfs-progs", "erofs-utils"]), "image-makers", 300)?;
    for package in workspace::files_below(&folder.join("apt/cache/archives"), ".deb") {
        unpack(&package, &root)?;
    }
    for (name, place) in programs {
        let (path, root) = (folder.join("bin").join(name), root.display());
        let script = format!(
            "#!/bin/sh\nexec {root}/usr/lib64/ld-linux-*.so.* --library-path \"$(echo {root}/usr/lib/*-linux-gnu)\" \
             {root}/usr/{place}/{name} \"$@\"\n"
        );
        std::fs::write(&path, script).map_err(|error| failed(&path, error))?;
        make_executable(&path).map_err(|error| failed(&path, error))?;
    }
    Ok(())
}

fn make_executable(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
}

/// apt-get with a folder and one source of its own; the system's lists stay as they are.
pub struct Apt {
    folder: PathBuf,
}

impl Apt {
    /// `kind` is `deb` or `deb-src`; `suite` a release of Debian. Fetches the lists.
    pub fn new(folder: &Path, kind: &str, suite: &str) -> Result<Apt, String> {
        let failed = |path: &Path, error| format!("cannot create {}: {error}", path.display());
        for sub in ["lists/partial", "cache/archives/partial", "download"] {
            std::fs::create_dir_all(folder.join(sub)).map_err(|error| failed(folder, error))?;
        }
        let keys = "/usr/share/keyrings/debian-archive-keyring.gpg";
        let list = folder.join("sources.list");
        let line = format!("{kind} [signed-by={keys}] http://deb.debian.org/debian {suite} main\n");
        std::fs::write(&list, line).map_err(|error| failed(&list, error))?;
        let apt = Apt { folder: folder.to_owned() };
        limited(apt.get().arg("update"), "own-apt-update", 300)?;
        Ok(apt)
    }

    /// The folder to which packages are downloaded.
    pub fn download(&self) -> PathBuf {
        self.folder.join("download")
    }

    /// apt-get, without its words.
    pub fn get(&self) -> Command {
        self.program("apt-get")
    }

    /// apt-cache, without its words.
    pub fn cache(&self) -> Command {
        self.program("apt-cache")
    }

    fn program(&self, name: &str) -> Command {
        let at = |place: &str| self.folder.join(place).display().to_string();
        let mut command = Command::new(name);
        command.args(["-o", &format!("Dir::Etc::SourceList={}", at("sources.list"))]);
        command.args(["-o", "Dir::Etc::SourceParts=/dev/null"]);
        command.args(["-o", &format!("Dir::State::Lists={}", at("lists"))]);
        command.args(["-o", &format!("Dir::Cache={}", at("cache"))]);
        command
    }
}

/// Debian's Linux source package: the real tree that the interop test and the benchmark unpack.
fn kernel_source() -> Result<(), String> {
    let folder = workspace::tools().join("linux-source");
    if source_tarball(&folder).is_some() {
        return Ok(());
    }
    let depends = process::capture("apt-cache", &["depends", "linux-source"]).unwrap_or_default();
    let package = depends.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
    let package = package.ok_or("no package linux-source is known to apt (apt-get update?)")?.to_owned();
    println!("fetching {package}");
    std::fs::create_dir_all(&folder).map_err(|error| format!("cannot create {}: {error}", folder.display()))?;
    limited(Command::new("apt-get").args(["download", &package]).current_dir(&folder), "linux-source", 600)?;
    let archive = package_in(&folder)?;
    unpack(&archive, &folder)?;
    let _ = std::fs::remove_file(archive);
    source_tarball(&folder).map(|_| ()).ok_or_else(|| format!("{package} holds no tarball"))
}

fn source_tarball(folder: &Path) -> Option<PathBuf> {
    workspace::files_below(&folder.join("usr/src"), ".tar.xz").pop()
}

pub fn package_in(folder: &Path) -> Result<PathBuf, String> {
    workspace::files_below(folder, ".deb").pop().ok_or_else(|| format!("no package arrived in {}", folder.display()))
}

pub fn unpack(package: &Path, folder: &Path) -> Result<(), String> {
    limited(Command::new("dpkg-deb").arg("-x").args([package, folder]), "unpack", 120)
}

pub fn limited(command: &mut Command, name: &str, seconds: u64) -> Result<(), String> {
    let log = workspace::target().join("xtask-logs").join(format!("{name}.log"));
    let ended = process::run(command, &log, Duration::from_secs(seconds))?;
    match (ended.success, ended.timed_out) {
        (true, _) => Ok(()),
        (false, true) => Err(format!("{name}: not finished after {seconds} s")),
        (false, false) => {
            let last = ended.output.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no output");
            Err(format!("{name}: {last}"))
        }
    }
}
