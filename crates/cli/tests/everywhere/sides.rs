//! The two sides, ours and the kernel's: how they are filled, asked, and what their answers mean.

use crate::BINARY;
use crate::mounted::{shell, text};
use butterfs_testkit::kernel::run;
use std::path::Path;

/// Words in messages, and the error that they stand for.
const ERRORS: &[(&str, &str)] = &[
    ("invalid argument", "EINVAL"),
    ("not a subvolume", "EINVAL"),
    ("read-only", "EROFS"),
    ("only its owner", "EPERM"),
    ("the directory is sticky", "EPERM"),
    ("only root", "EPERM"),
    ("only those who may write", "EPERM"),
    ("not permitted", "EPERM"),
    ("permission denied", "EACCES"),
    ("no such file", "ENOENT"),
    ("not on a butterfs mount", "ENOTTY"),
    ("not a btrfs", "ENOTTY"),
    ("not on a btrfs", "ENOTTY"),
    ("belong to btrfs mount point", "ENOTTY"),
    ("unable to resolve", "ENOENT"),
    ("file exists", "EEXIST"),
    ("inappropriate ioctl", "ENOTTY"),
];

pub fn answer(code: Option<i32>, output: &str) -> String {
    if code == Some(0) {
        return "done".into();
    }
    let lower = output.to_lowercase();
    let known = ERRORS.iter().find(|(words, _)| lower.contains(words));
    known.map_or_else(|| format!("({})", output.trim().replace('\n', "; ")), |(_, error)| (*error).into())
}

/// The stream of a side, outside of its mount.
pub fn stream(tool: &str, top: &Path) -> std::path::PathBuf {
    top.with_file_name(if tool == BINARY { "stream-ours" } else { "stream-kernel" })
}

/// Fills a new folder for a situation on one side.
pub fn fill(tool: &str, top: &Path, folder: &str) {
    let script = "mkdir $top/$folder; cd $top/$folder
        for name in s p victim; do $tool subvolume create $name; done >/dev/null
        $tool subvolume snapshot -r s ro >/dev/null
        for name in f g h f2; do head -c 65536 /dev/zero | tr '\\0' x > $name; done; touch gone from; sync -f .";
    shell(script, &[("tool", Path::new(tool)), ("top", top), ("folder", Path::new(folder))]);
}

pub fn ask(tool: &str, top: &Path, other: &Path, folder: &str, line: &str, situation: &str) -> String {
    let act = line.replace("{t}", tool).replace("$stream", text(&stream(tool, top)));
    let at = top.join(folder);
    let script = format!("export act=\"{act}\" top={} at={} other={}; {situation}", text(top), text(&at), text(other));
    let finished = run(20, "unshare", &["-m", "bash", "-c", &script]);
    answer(finished.code, &finished.output)
}
