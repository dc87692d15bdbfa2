//! The two sides, ours and the kernel's: how they are filled, asked, and what their answers mean.

use crate::BINARY;
use crate::common::butterfs;
use crate::mounted::{Bed, eventually, shell, text};
use butterfs_testkit::kernel::run;
use std::path::{Path, PathBuf};

/// Words in messages, and the error that they stand for.
const ERRORS: &[(&str, &str)] = &[
    ("cannot open /proc/self/mountinfo", "no /proc"),
    ("is /proc mounted?", "no /proc"),
    ("is busy", "EBUSY"),
    ("is in use", "EBUSY"),
    ("does not exist", "ENOENT"),
    ("not a directory", "ENOTDIR"),
    ("is a directory", "EISDIR"),
    ("a directory has no content", "EISDIR"),
    ("omitting directory", "EISDIR"),
    ("cannot overwrite directory", "EISDIR"),
    ("only regular files", "EINVAL"),
    ("dangling symlink", "ENOENT"),
    ("symbolic link to nowhere", "ENOENT"),
    ("no such device or address", "ENXIO"),
    ("system call failed: no such file", "ENOENT"),
    ("no mount point specified", "ENOENT"),
    ("failed to setup loop device", "EPERM"),
    // mount(8) calls it a permission that is denied.
    ("after failed mount system call", "EPERM"),
    ("no write access to mountpoint", "EACCES"),
    ("could not determine username", "no name"),
    ("is not a butterfs mount", "ENOTTY"),
    ("invalid argument", "EINVAL"),
    ("not a subvolume", "EINVAL"),
    ("read-only", "EROFS"),
    ("only its owner", "EPERM"),
    ("the directory is sticky", "EPERM"),
    ("immutable or append-only", "EPERM"),
    ("only root", "EPERM"),
    ("only those who may write", "EPERM"),
    ("not permitted", "EPERM"),
    ("permission denied", "EACCES"),
    ("no such file", "ENOENT"),
    ("there is no tree", "ENOENT"),
    ("error -2", "ENOENT"),
    ("parent determination failed", "no parent"),
    ("another filesystem", "EXDEV"),
    ("cross-device", "EXDEV"),
    ("from the same filesystem", "EXDEV"),
    ("not on mount point", "EXDEV"),
    ("not on a butterfs mount", "ENOTTY"),
    ("not a btrfs", "ENOTTY"),
    ("not on a btrfs", "ENOTTY"),
    ("belong to btrfs mount point", "ENOTTY"),
    ("unable to resolve", "ENOENT"),
    ("file exists", "EEXIST"),
    ("inappropriate ioctl", "ENOTTY"),
    ("can't access", "EINVAL"),
    ("must be superuser", "EPERM"),
    ("nobody answers", "unreachable"),
];

pub fn answer(code: Option<i32>, output: &str) -> String {
    if code == Some(0) {
        return "done".into();
    }
    if code == Some(124) {
        return "waits".into();
    }
    let lower = output.to_lowercase();
    let known = ERRORS.iter().find(|(words, _)| lower.contains(words));
    known.map_or_else(|| format!("({})", output.trim().replace('\n', "; ")), |(_, error)| (*error).into())
}

/// Whether an answer is in no table, so that equal ones may mean different things.
pub fn is_unknown(answer: &str) -> bool {
    answer.starts_with('(')
}

/// Unmounts, and waits for the serving process: for a moment the mount is also in the mount namespaces of other tests.
pub fn umount(bed: &Bed) {
    let ran = butterfs(&["umount", text(&bed.at)]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    eventually(|| bed.serving_process().is_none());
}

/// One of the two.
pub struct Side {
    /// `butterfs` or `btrfs`.
    pub tool: &'static str,
    /// The mount point.
    pub top: PathBuf,
    /// The mounted image.
    pub image: PathBuf,
    /// A folder outside of it, of this side alone.
    pub aside: PathBuf,
}

impl Side {
    pub fn new(tool: &'static str, aside: PathBuf, top: &Path, image: &Path) -> Side {
        Side { tool, top: top.to_owned(), image: image.to_owned(), aside }
    }

    pub fn is_ours(&self) -> bool {
        self.tool == BINARY
    }

    /// A stream, outside of the mount.
    pub fn stream(&self) -> PathBuf {
        self.aside.join("stream")
    }

    /// The command that gives the whole mount other options.
    fn remount(&self, options: &str) -> String {
        match self.is_ours() {
            true => format!("{BINARY} mount -o remount,{options} {} {}", text(&self.image), text(&self.top)),
            false => format!("mount -o remount,{options} {}", text(&self.top)),
        }
    }

    /// Words of a table as a script.
    fn words(&self, line: &str) -> String {
        let mount = if self.is_ours() { format!("{BINARY} mount") } else { "mount -t btrfs -o loop".to_owned() };
        let umount = if self.is_ours() { format!("{BINARY} umount") } else { "umount".to_owned() };
        let values = [
            ("{ro}", self.remount("ro")),
            ("{rw}", self.remount("rw")),
            ("{mount}", mount),
            ("{umount}", umount),
            ("{t}", self.tool.to_owned()),
            ("{top}", text(&self.top).to_owned()),
            ("$stream", text(&self.stream()).to_owned()),
            ("$aside", text(&self.aside).to_owned()),
        ];
        values.iter().fold(line.to_owned(), |line, (name, value)| line.replace(name, value))
    }

    /// Fills a new folder for a situation.
    pub fn fill(&self, folder: &str) {
        let script = "mkdir -p $top/$folder/mp; cd $top/$folder
            for name in s p victim; do $tool subvolume create $name; done >/dev/null
            $tool subvolume snapshot -r s ro >/dev/null
            for name in f g h f2; do head -c 65536 /dev/zero | tr '\\0' x > $name; done; touch gone from";
        shell(script, &[("tool", Path::new(self.tool)), ("top", &self.top), ("folder", Path::new(folder))]);
    }

    /// Runs an act in a situation, in a mount namespace of its own.
    pub fn ask(&self, other: &Path, folder: &str, line: &str, situation: &str) -> String {
        let (act, top, at) = (self.words(line), text(&self.top), text(&self.top.join(folder)).to_owned());
        let other = text(other);
        let script = format!("export act=\"{act}\" top={top} at={at} other={other}; {}", self.words(situation));
        let finished = run(20, "unshare", &["-m", "bash", "-c", &script]);
        answer(finished.code, &finished.output)
    }
}
