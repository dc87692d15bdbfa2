//! The JSON documents of `butterfs image ls`, `stat` and `tree`.

use super::place::said;
use super::verbs::names;
use crate::error::CliError;
use crate::output;
use butterfs::{Dir, FileType, Follow, Metadata, Node, Timestamp};
use serde::Serialize;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A point in time.
#[derive(Serialize)]
struct TimeJson {
    seconds: i64,
    nanoseconds: u32,
}

impl From<Timestamp> for TimeJson {
    fn from(time: Timestamp) -> TimeJson {
        TimeJson { seconds: time.secs(), nanoseconds: time.nanos() }
    }
}

/// Something that has a name.
#[derive(Serialize)]
struct EntryJson {
    path: String,
    #[serde(rename = "type")]
    kind: &'static str,
    mode: String,
    uid: u32,
    gid: u32,
    size: u64,
    modified: TimeJson,
    target: Option<String>,
}

/// An extended attribute; the value in hexadecimal digits.
#[derive(Serialize)]
struct AttributeJson {
    name: String,
    value: String,
}

/// Everything that is known of a file.
#[derive(Serialize)]
struct StatJson {
    #[serde(flatten)]
    entry: EntryJson,
    allocated: u64,
    links: u32,
    inode: u64,
    subvolume: u64,
    device: Option<[u32; 2]>,
    changed: TimeJson,
    accessed: TimeJson,
    created: TimeJson,
    attributes: Vec<AttributeJson>,
}

fn text(bytes: &OsStr) -> String {
    bytes.to_string_lossy().into_owned()
}

fn kind(of: FileType) -> &'static str {
    match of {
        FileType::Directory => "folder",
        FileType::Symlink => "symlink",
        FileType::CharDevice => "character device",
        FileType::BlockDevice => "block device",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
        _ => "file",
    }
}

fn entry(path: &Path, node: &Node, metadata: &Metadata) -> Result<EntryJson, CliError> {
    let target = match metadata.is_symlink() {
        true => Some(text(node.read_link().map_err(said)?.as_os_str())),
        false => None,
    };
    Ok(EntryJson {
        path: text(path.as_os_str()),
        kind: kind(metadata.file_type()),
        mode: format!("{:04o}", metadata.mode().bits() & 0o7777),
        uid: metadata.owner().uid,
        gid: metadata.owner().gid,
        size: metadata.len(),
        modified: metadata.modified().into(),
        target,
    })
}

fn entry_at(root: &Dir, path: &Path) -> Result<(EntryJson, bool), CliError> {
    let node = root.node(path, Follow::Nothing).map_err(said)?;
    let metadata = node.metadata().map_err(said)?;
    Ok((entry(path, &node, &metadata)?, metadata.is_dir()))
}

/// The entries of a folder, or a file.
pub fn ls(path: &Path, root: &Dir, out: &mut dyn Write) -> Result<(), CliError> {
    let paths = match root.metadata(path).map_err(said)?.is_dir() {
        true => names(root, path)?.iter().map(|name| path.join(name)).collect(),
        false => vec![path.to_owned()],
    };
    let entries = paths.iter().map(|path| Ok(entry_at(root, path)?.0)).collect::<Result<Vec<_>, CliError>>()?;
    output::json(out, "image-ls", &entries)
}

/// Everything that is known of a file.
pub fn stat(path: &Path, root: &Dir, out: &mut dyn Write) -> Result<(), CliError> {
    let node = root.node(path, Follow::Nothing).map_err(said)?;
    let it = node.metadata().map_err(said)?;
    let is_device = matches!(it.file_type(), FileType::CharDevice | FileType::BlockDevice);
    let (major, minor) = it.device_numbers();
    let stat = StatJson {
        entry: entry(path, &node, &it)?,
        allocated: it.allocated_bytes(),
        links: it.links(),
        inode: it.id().number,
        subvolume: it.id().subvolume.get(),
        device: is_device.then_some([major, minor]),
        changed: it.changed().into(),
        accessed: it.accessed().into(),
        created: it.created().into(),
        attributes: attributes(&node)?,
    };
    output::json(out, "image-stat", &stat)
}

fn attributes(node: &Node) -> Result<Vec<AttributeJson>, CliError> {
    let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let attribute = |name: std::ffi::OsString| {
        let value = node.xattr(&name).map_err(said)?.unwrap_or_default();
        Ok(AttributeJson { name: String::from_utf8_lossy(name.as_bytes()).into_owned(), value: hex(value) })
    };
    node.xattrs().map_err(said)?.into_iter().map(attribute).collect()
}

/// A folder and everything below it.
pub fn tree(path: &Path, root: &Dir, out: &mut dyn Write) -> Result<(), CliError> {
    let mut entries = Vec::new();
    let mut waiting = vec![path.to_owned()];
    while let Some(path) = waiting.pop() {
        let (entry, is_folder) = entry_at(root, &path)?;
        entries.push(entry);
        if is_folder {
            waiting.extend(names(root, &path)?.into_iter().rev().map(|name| path.join(name)));
        }
    }
    output::json(out, "image-tree", &entries)
}
