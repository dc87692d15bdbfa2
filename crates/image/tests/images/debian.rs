//! A root file system of Debian as a folder, an archive and an image of a container: the kernel shows the source, and
//! the system starts in a container of systemd-nspawn.
//!
//! The short form unpacks a few packages and starts a shell; the long one installs a system and boots it.

use crate::{assert_shows, build, oci};
use butterfs_fs::options::{Algorithm, Method};
use butterfs_image::{Builder, FolderSource, Layers, OciSource, Rule, Source, TarSource};
use butterfs_testkit::kernel::{KernelMount, check_all, run_ok};
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::{self, Scratch};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Starts what the arguments behind a mounted root say, in a container. It gets a `/run` in memory, where
/// systemd-nspawn keeps its state and mounts; the machine need not have one.
const CONTAINER: &str = "mount --make-rprivate / && mount -t tmpfs tmpfs /run && root=$1 && shift && \
    exec systemd-nspawn --quiet --register=no --keep-unit -D \"$root\" \"$@\"";

/// Ends the start of the system: says how it went, and switches off.
const LAST_UNIT: &str = "[Unit]\nDescription=Says how the start went\n[Service]\nType=exec\n\
    ExecStart=/bin/sh -c '(systemctl is-system-running --wait; systemctl --failed --no-legend; \
    findmnt -no FSTYPE /; su -c id nobody -s /bin/sh; ping -c 1 127.0.0.1 | grep -c 1.received) > /var/said 2>&1; \
    systemctl poweroff'\n[Install]\nWantedBy=multi-user.target\n";

fn in_container(root: &Path, limit_s: u32, arguments: &[&str]) -> String {
    let root = root.to_str().unwrap();
    let all = [&["--mount", "sh", "-c", CONTAINER, "sh", root], arguments].concat();
    run_ok(limit_s, "unshare", &all)
}

/// Adds what packages do not bring: ACLs, holes, nanoseconds, attributes, devices, a file with several names.
fn adorn(root: &Path) {
    let at = |path: &str| root.join(path).to_str().unwrap().to_owned();
    std::fs::create_dir_all(root.join("srv/shared")).unwrap();
    run_ok(10, "setfacl", &["-m", "u:1234:rwx,g:4321:r-x,d:u:1234:rwx", &at("srv/shared")]);
    run_ok(10, "setfattr", &["-n", "user.origin", "-v", "packages", &at("srv/shared")]);
    std::fs::write(root.join("srv/shared/one"), "several names").unwrap();
    std::fs::hard_link(root.join("srv/shared/one"), root.join("srv/two")).unwrap();
    let sparse = std::fs::File::create(root.join("srv/sparse")).unwrap();
    sparse.set_len(64 << 20).unwrap();
    sparse.write_all_at(&[7; 10_000], 20 << 20).unwrap();
    drop(sparse);
    if !root.join("dev/null").exists() {
        std::fs::create_dir_all(root.join("dev")).unwrap();
        run_ok(10, "mknod", &[&at("dev/null"), "c", "1", "3"]);
    }
    run_ok(10, "setcap", &["cap_net_raw+ep", &at("srv/two")]);
    run_ok(10, "chown", &["-h", "1000:100000", &at("srv/two")]);
    run_ok(10, "setcap", &["cap_net_raw+ep", &at("srv/two")]);
    run_ok(10, "touch", &["-hd", "1987-06-05 04:03:02.123456789", &at("srv/sparse")]);
}

fn archive_of(root: &Path, archive: &Path, more: &[&str]) {
    let form = ["--format=pax", "--numeric-owner", "--xattrs", "--xattrs-include=*", "--acls"];
    let what = ["-C", root.to_str().unwrap(), "-cf", archive.to_str().unwrap(), "."];
    run_ok(300, "tar", &[&form[..], more, &what].concat());
}

/// Builds the image, and compares what the kernel shows with the folder.
fn shown_as(root: &Path, source: impl Source + 'static, image: &Path) {
    let zstd = Rule::Compress(Some(Method::new(Algorithm::Zstd, 3)));
    let builder = Builder::new().source("/", source).and_then(|it| it.rule("/", zstd)).unwrap();
    build(builder.free(200 << 20), image);
    assert_shows(image, "", root);
}

fn unpacked(root: &Path) -> Option<()> {
    let folder = scratch::tools().join("debian-packages");
    let packages: Vec<PathBuf> = std::fs::read_dir(folder).ok()?.map(|entry| entry.unwrap().path()).collect();
    for package in packages.iter().filter(|path| path.extension().is_some_and(|end| end == "deb")) {
        run_ok(60, "dpkg-deb", &["-x", package.to_str().unwrap(), root.to_str().unwrap()]);
    }
    root.join("bin/dash").exists().then_some(())
}

const NEEDED: &[&str] = &["systemd-nspawn", "unshare", "dpkg-deb", "setfacl", "setfattr", "setcap"];

#[test]
fn a_few_packages_run_in_a_container_from_each_source() {
    let test = "a_few_packages_run_in_a_container_from_each_source";
    if !requirement::kernel_btrfs(test) || !requirement::programs(test, NEEDED) {
        return;
    }
    let scratch = Scratch::new("image-packages");
    let (root, image, archive) = (scratch.folder("root"), scratch.join("image"), scratch.join("root.tar"));
    if unpacked(&root).is_none() {
        return requirement::skip(test, "needs some packages of Debian (cargo xtask test fetches them)");
    }
    adorn(&root);
    shown_as(&root, FolderSource::new(&root), &image);
    archive_of(&root, &archive, &["--sparse"]);
    shown_as(&root, TarSource::open(&archive).unwrap(), &image);
    let layout = oci::layout(&scratch.folder("layout"), &[std::fs::read(&archive).unwrap()]);
    shown_as(&root, OciSource::new(layout, Layers::Flat), &image);
    let mount = KernelMount::new(&image, "");
    let script = "test $$ = 1 && echo made > /srv/made && . /etc/os-release && echo \"$ID $(stat -fc %T /)\"";
    let said = in_container(mount.path(), 60, &["/bin/dash", "-c", script]);
    assert_eq!(said.lines().last(), Some("debian btrfs"), "{said}");
    assert_eq!(std::fs::read(mount.path().join("srv/made")).unwrap(), b"made\n");
    assert_eq!(mount.finish(), Vec::<String>::new());
    check_all(&image);
}

/// A system that debootstrap has installed, with systemd as its first process.
fn installed(root: &Path) {
    let cache = scratch::tools().join("debootstrap");
    std::fs::create_dir_all(&cache).unwrap();
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let codename = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME=")).unwrap_or("stable");
    let cache = format!("--cache-dir={}", cache.canonicalize().unwrap().display());
    let more = "--include=systemd-sysv,dbus,iputils-ping,acl,attr";
    run_ok(1200, "debootstrap", &["--variant=minbase", &cache, more, codename, root.to_str().unwrap()]);
    let units = root.join("etc/systemd/system");
    std::fs::write(units.join("last.service"), LAST_UNIT).unwrap();
    let wants = units.join("multi-user.target.wants");
    std::fs::create_dir_all(&wants).unwrap();
    std::os::unix::fs::symlink("/etc/systemd/system/last.service", wants.join("last.service")).unwrap();
}

/// The archive as podman saves it after importing it: a real image of a container.
fn saved_by_podman(archive: &Path, scratch: &Scratch) -> PathBuf {
    let (store, saved) = (scratch.folder("store"), scratch.join("saved"));
    let run = format!("/tmp/image-{}", std::process::id());
    let common = ["--root", store.to_str().unwrap(), "--runroot", &run, "--storage-driver", "vfs"];
    let pod = |arguments: &[&str]| run_ok(600, "podman", &[&common[..], arguments].concat());
    pod(&["import", "-q", archive.to_str().unwrap(), "debian:root"]);
    pod(&["save", "-q", "--format", "oci-archive", "-o", saved.to_str().unwrap(), "debian:root"]);
    pod(&["rmi", "-a", "-f"]);
    let _ = std::fs::remove_dir_all(run);
    saved
}

fn boots(image: &Path) {
    let mount = KernelMount::new(image, "");
    let shown = in_container(mount.path(), 180, &["--boot"]);
    let said = std::fs::read_to_string(mount.path().join("var/said")).unwrap_or(shown);
    let lines: Vec<&str> = said.lines().collect();
    let user = "uid=65534(nobody) gid=65534(nogroup) groups=65534(nogroup)";
    assert_eq!(lines, ["running", "btrfs", user, "1"], "{said}");
    assert_eq!(mount.finish(), Vec::<String>::new());
    butterfs_testkit::judge::assert_clean(image);
    check_all(image);
}

#[test]
#[ignore = "long: cargo xtask soak images"]
fn an_installed_system_boots_from_each_source() {
    let test = "an_installed_system_boots_from_each_source";
    let programs = [NEEDED, &["debootstrap", "podman"]].concat();
    if !requirement::kernel_btrfs(test) || !requirement::programs(test, &programs) {
        return;
    }
    let scratch = Scratch::new("image-debian");
    let (root, image, archive) = (scratch.join("root"), scratch.join("image"), scratch.join("root.tar"));
    installed(&root);
    adorn(&root);
    shown_as(&root, FolderSource::new(&root), &image);
    boots(&image);
    archive_of(&root, &archive, &["--sparse"]);
    shown_as(&root, TarSource::open(&archive).unwrap(), &image);
    boots(&image);
    // podman cannot give back a layer with a sparse file: its digest is another one then.
    std::fs::remove_file(root.join("srv/sparse")).unwrap();
    archive_of(&root, &archive, &[]);
    let saved = saved_by_podman(&archive, &scratch);
    shown_as(&root, OciSource::new(saved, Layers::Flat), &image);
    boots(&image);
}
