//! `butterfs stream ls`, `cat` and `diff`: reading snapshots in a store.

use super::place::{StoreArgs, snapshot, snapshots};
use crate::args::pretty_size;
use crate::commands::Run;
use crate::error::CliError;
use crate::moments;
use crate::output::{self, Format};
use butterfs_objects::items::{DIRECTORY, Inode, SYMLINK};
use butterfs_objects::{Archive, Change, Manifest, View, differences};
use serde::Serialize;
use std::io::Write;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

/// Names of a directory that are read at once.
const NAMES: usize = 1024;

/// List the snapshots of a store, or the files of a snapshot
#[derive(clap::Args, Clone, Debug)]
pub struct LsArgs {
    /// Show mode, owner, group, size and time; of snapshots the parent and the id
    #[arg(short, long)]
    long: bool,
    /// List the directories below, too
    #[arg(short = 'R', long)]
    recursive: bool,
    #[command(flatten)]
    store: StoreArgs,
    /// The store
    #[arg(value_name = "URL")]
    url: String,
    /// The snapshot, by name or id
    #[arg(value_name = "SNAPSHOT")]
    snapshot: Option<String>,
    /// The directory or file in it
    #[arg(value_name = "PATH", default_value = "/")]
    path: PathBuf,
}

#[derive(Serialize)]
struct SnapshotJson {
    name: String,
    id: String,
    uuid: String,
    transid: u64,
    parent: Option<String>,
    time: i64,
    bytes: u64,
    inodes: u64,
    sent: u64,
}

impl SnapshotJson {
    fn of(manifest: Manifest) -> SnapshotJson {
        let id = manifest.id();
        let Manifest { name, uuid, transid, parent, time, bytes, inodes, sent, .. } = manifest;
        SnapshotJson { name, id, uuid, transid, parent, time, bytes, inodes, sent }
    }
}

#[derive(Serialize)]
struct FileJson {
    path: String,
    inode: u64,
    mode: u32,
    links: u32,
    uid: u32,
    gid: u32,
    size: u64,
    modified: i64,
    target: Option<String>,
}

impl Run for LsArgs {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        self.run_as(Format::Text, out)
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        let repository = self.store.open(&self.url)?;
        let Some(name) = &self.snapshot else {
            let all = snapshots(&repository, &[])?;
            return match format {
                Format::Json => {
                    let all: Vec<SnapshotJson> = all.into_iter().map(SnapshotJson::of).collect();
                    output::json(out, "stream-ls", &all)
                }
                Format::Text => all.iter().try_for_each(|manifest| self.line(manifest, out)),
            };
        };
        let manifest = snapshot(&repository, name)?;
        let archive = Archive::new(&repository);
        let view = View::new(&archive, &manifest)?;
        let mut found = Vec::new();
        self.walk(&view, &mut |path, ino, inode| {
            match format {
                Format::Json => found.push(file(&view, path, ino, inode)?),
                Format::Text => self.file(&view, path, ino, inode, out)?,
            }
            Ok(())
        })?;
        if format == Format::Json { output::json(out, "stream-ls", &found) } else { Ok(()) }
    }
}

fn file(view: &View<'_>, path: &[u8], ino: u64, inode: &Inode) -> Result<FileJson, CliError> {
    let target =
        if inode.is(SYMLINK) { Some(String::from_utf8_lossy(&view.link_text(ino)?).into_owned()) } else { None };
    Ok(FileJson {
        path: String::from_utf8_lossy(path).into_owned(),
        inode: ino,
        mode: inode.mode,
        links: inode.links,
        uid: inode.uid,
        gid: inode.gid,
        size: inode.size,
        modified: inode.times[1].sec,
        target,
    })
}

/// Type and permissions as ls(1) shows them.
fn mode(mode: u32) -> String {
    let kind = match mode >> 12 {
        0o01 => 'p',
        0o02 => 'c',
        0o04 => 'd',
        0o06 => 'b',
        0o12 => 'l',
        0o14 => 's',
        _ => '-',
    };
    let bit = |shift: u32, letter: char| if mode >> shift & 1 == 1 { letter } else { '-' };
    let special = |special: u32, shift: u32, letter: char| match (mode >> special & 1, mode >> shift & 1) {
        (1, 1) => letter,
        (1, _) => letter.to_ascii_uppercase(),
        _ => bit(shift, 'x'),
    };
    [
        kind,
        bit(8, 'r'),
        bit(7, 'w'),
        special(11, 6, 's'),
        bit(5, 'r'),
        bit(4, 'w'),
        special(10, 3, 's'),
        bit(2, 'r'),
        bit(1, 'w'),
        special(9, 0, 't'),
    ]
    .iter()
    .collect()
}

impl LsArgs {
    fn line(&self, manifest: &Manifest, out: &mut dyn Write) -> Result<(), CliError> {
        let (when, size, sent) =
            (moments::shown(manifest.time), pretty_size(manifest.bytes), pretty_size(manifest.sent));
        write!(out, "{when}  {size:>11}  {sent:>11} sent  {}", manifest.name)?;
        if self.long {
            let parent = manifest.parent.as_deref().unwrap_or("-");
            write!(out, "  id {}  parent {parent}  {} inodes", manifest.id(), manifest.inodes)?;
        }
        Ok(writeln!(out)?)
    }

    fn file(&self, view: &View<'_>, path: &[u8], ino: u64, inode: &Inode, out: &mut dyn Write) -> Result<(), CliError> {
        if self.long {
            let size = match inode.mode >> 12 {
                0o02 | 0o06 => format!("{},{}", inode.device >> 8 & 0xfff, inode.device & 0xff),
                _ => inode.size.to_string(),
            };
            let (mode, when) = (mode(inode.mode), moments::shown(inode.times[1].sec));
            write!(out, "{mode} {:>3} {:>6} {:>6} {size:>12} {when} ", inode.links, inode.uid, inode.gid)?;
        }
        out.write_all(path)?;
        if self.long && inode.is(SYMLINK) {
            out.write_all(b" -> ")?;
            out.write_all(&view.link_text(ino)?)?;
        }
        Ok(writeln!(out)?)
    }

    fn walk(
        &self,
        view: &View<'_>,
        visit: &mut dyn FnMut(&[u8], u64, &Inode) -> Result<(), CliError>,
    ) -> Result<(), CliError> {
        let path = self.path.as_os_str().as_bytes();
        let ino = view.find(path)?;
        let inode = view.inode(ino)?;
        if !inode.is(DIRECTORY) {
            return visit(path, ino, &inode);
        }
        // The names of a directory come together, directories below it afterwards in their order.
        let mut waiting = vec![(ino, Vec::new())];
        while let Some((ino, prefix)) = waiting.pop() {
            let (mut after, mut below) = (Vec::new(), Vec::new());
            loop {
                let names = view.entries(ino, &after, NAMES)?;
                let Some(last) = names.last() else { break };
                after = last.name.clone();
                for entry in names {
                    let path = [&prefix[..], &entry.name].concat();
                    visit(&path, entry.ino, &view.inode(entry.ino)?)?;
                    if entry.kind == DIRECTORY && self.recursive {
                        view.enter(ino, &entry)?;
                        below.push((entry.ino, [&path[..], b"/"].concat()));
                    }
                }
            }
            waiting.extend(below.into_iter().rev());
        }
        Ok(())
    }
}

/// Print the content of a file of a snapshot
#[derive(clap::Args, Clone, Debug)]
pub struct CatArgs {
    /// Begin at this byte
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    offset: u64,
    /// Print at most so many bytes
    #[arg(long, value_name = "BYTES")]
    length: Option<u64>,
    #[command(flatten)]
    store: StoreArgs,
    /// The store
    #[arg(value_name = "URL")]
    url: String,
    /// The snapshot, by name or id
    #[arg(value_name = "SNAPSHOT")]
    snapshot: String,
    /// The file
    #[arg(value_name = "PATH")]
    path: PathBuf,
}

impl Run for CatArgs {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let repository = self.store.open(&self.url)?;
        let manifest = snapshot(&repository, &self.snapshot)?;
        let archive = Archive::new(&repository);
        let view = View::new(&archive, &manifest)?;
        let ino = view.file(self.path.as_os_str().as_bytes())?;
        let size = view.inode(ino)?.size;
        let until = self.length.map_or(size, |length| self.offset.saturating_add(length)).min(size);
        let (mut at, mut failed) = (self.offset, None);
        let broken = || butterfs_store::Error::new(butterfs_store::Kind::Broken, "the reader is gone");
        let mut print = |offset: u64, bytes: &[u8]| {
            let wrote = zeros(offset - at, out).and_then(|()| out.write_all(bytes));
            at = offset + bytes.len() as u64;
            wrote.map_err(|error| {
                failed = Some(error);
                broken()
            })
        };
        let read = view.content(ino, self.offset, until, &mut print);
        if let Some(error) = failed {
            return Err(error.into());
        }
        read?;
        Ok(zeros(until.saturating_sub(at), out)?)
    }
}

fn zeros(mut count: u64, out: &mut dyn Write) -> std::io::Result<()> {
    let zeros = [0; 1 << 16];
    while count > 0 {
        let now = count.min(zeros.len() as u64);
        out.write_all(&zeros[..now as usize])?;
        count -= now;
    }
    Ok(())
}

/// Show the differences of two snapshots
///
/// A line for each name: '+' only the second snapshot has it, '-' only the first one, 'M' content or attributes differ.
/// Of directories below a new or removed one nothing more is said.
#[derive(clap::Args, Clone, Debug)]
pub struct DiffArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// The store
    #[arg(value_name = "URL")]
    url: String,
    /// The first snapshot, by name or id
    #[arg(value_name = "SNAPSHOT")]
    one: String,
    /// The second snapshot
    #[arg(value_name = "SNAPSHOT")]
    other: String,
}

#[derive(Serialize)]
struct ChangeJson {
    path: String,
    change: &'static str,
}

impl Run for DiffArgs {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        self.run_as(Format::Text, out)
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        let repository = self.store.open(&self.url)?;
        let both = snapshots(&repository, &[self.one.clone(), self.other.clone()])?;
        let archive = Archive::new(&repository);
        let (mut found, mut failed) = (Vec::new(), None);
        let told = differences(&archive, (&both[0], &both[1]), &mut |change, path| {
            let (sign, word) = match change {
                Change::Added => ("+", "added"),
                Change::Removed => ("-", "removed"),
                Change::Modified => ("M", "modified"),
            };
            if format == Format::Json {
                found.push(ChangeJson { path: format!("/{}", String::from_utf8_lossy(path)), change: word });
                return Ok(());
            }
            let line = [sign.as_bytes(), b" /", path, b"\n"].concat();
            out.write_all(&line).map_err(|error| {
                failed = Some(error);
                butterfs_store::Error::new(butterfs_store::Kind::Broken, "the reader is gone")
            })
        });
        if let Some(error) = failed {
            return Err(error.into());
        }
        told?;
        if format == Format::Json { output::json(out, "stream-diff", &found) } else { Ok(()) }
    }
}
