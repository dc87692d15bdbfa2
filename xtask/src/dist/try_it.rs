//! The Debian package, installed on a Debian that has nothing but its essential packages, runs what the README shows.

use super::{Dist, Failure, shown};
use crate::{process, workspace};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The steps of a new user, as a shell script. `umount -l` stands for a mount that a failed step left.
const SCRIPT: &str = "set -e
cd /root
mkdir mnt
butterfs mount --create 300M disk.img mnt
cp -r /etc/apt mnt/
butterfs umount mnt
butterfs check disk.img
mount -t butterfs -o noatime disk.img mnt
diff -r /etc/apt mnt/apt
mount -o remount,compress=zstd /root/mnt
umount.butterfs mnt
fsck.butterfs -a disk.img
fsck.butterfs disk.img
mkfs.butterfs -f disk.img
zcat /usr/share/man/man8/butterfs-mount.8.gz | grep -q 'Mount a filesystem'
test -e /usr/lib/systemd/system/butterfs@.service
";

/// The step.
pub fn on_clean_debian(dist: &Dist) -> Result<(), Failure> {
    if process::capture("id", &["-u"]).as_deref() != Some("0\n") {
        return Err(Failure::Unavailable("it needs root".to_owned()));
    }
    if !Path::new("/dev/fuse").exists() {
        return Err(Failure::Unavailable("there is no /dev/fuse".to_owned()));
    }
    let package = workspace::files_below(&dist.folder.join("out"), ".deb").pop();
    let package = package.ok_or_else(|| Failure::Unavailable("there is no Debian package".to_owned()))?;
    let root = clean_root(dist).map_err(Failure::Unavailable)?;
    let copy = root.join("tmp/butterfs.deb");
    std::fs::copy(&package, &copy).map_err(|error| format!("cannot write {}: {error}", copy.display()))?;
    let mut script = Command::new("unshare");
    script.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", ENTER, "sh"]).arg(&root).arg(SCRIPT);
    dist.run("clean-debian", &mut script)?;
    Ok(())
}

/// Goes into the root with its own /proc and /dev, installs the package and runs the script.
const ENTER: &str = "mount -t proc proc \"$1/proc\"
mount --rbind /dev \"$1/dev\"
mount -t tmpfs tmpfs \"$1/run\"
chroot \"$1\" dpkg -i /tmp/butterfs.deb
exec chroot \"$1\" sh -exc \"$2\"";

/// A Debian of this machine's release, made anew each time from the packages that apt has fetched.
fn clean_root(dist: &Dist) -> Result<PathBuf, String> {
    if !process::exists("debootstrap") {
        return Err("debootstrap is missing".to_owned());
    }
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let codename = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME=")).unwrap_or("stable");
    let (root, cache) = (dist.folder.join("debian"), workspace::tools().join("debootstrap"));
    super::create(&cache)?;
    let mut bootstrap = Command::new("debootstrap");
    bootstrap.arg("--variant=minbase").arg(format!("--cache-dir={}", shown(&cache)));
    bootstrap.arg(codename).arg(&root);
    dist.run("debootstrap", &mut bootstrap)?;
    Ok(root)
}
