//! Looking for the other devices of a filesystem among the system's block devices.

use super::image::{Member, open_member};
use butterfs_ondisk::superblock::Superblock;
use std::path::{Path, PathBuf};

/// Devices that have a superblock of the filesystem that `sb` belongs to, but none of the numbers of `known`.
pub fn missing_members(sb: &Superblock, known: &[Member]) -> Vec<Member> {
    let mut found: Vec<Member> = Vec::new();
    for path in block_devices() {
        let Ok(member) = open_member(&path, &mut |_| ()) else { continue };
        let id = |member: &Member| member.0.dev_item.devid.get();
        let is_known = known.iter().chain(&found).any(|other| id(other) == id(&member));
        if member.0.fsid == sb.fsid && !is_known {
            found.push(member);
        }
    }
    found
}

/// The system's block devices; none where the system does not list them.
fn block_devices() -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir("/sys/class/block").into_iter().flatten().flatten();
    entries.filter(|entry| has_content(&entry.path())).map(|entry| Path::new("/dev").join(entry.file_name()))
}

/// Whether a device has a size; a loop device that nothing is attached to has none.
fn has_content(entry: &Path) -> bool {
    std::fs::read_to_string(entry.join("size")).is_ok_and(|size| size.trim() != "0")
}
