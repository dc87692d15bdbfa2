//! `butterfs stream tar`.

use super::place::{StoreArgs, snapshot};
use crate::commands::Run;
use crate::error::{CliError, os_message};
use butterfs_objects::items::{DIRECTORY, Inode, REGULAR, SYMLINK};
use butterfs_objects::{Archive, View};
use butterfs_rescue::sink::{self, Attributes, Incoming, Sink};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

/// Names of a directory that are read at once.
const NAMES: usize = 1024;

/// Write a snapshot, or a directory of it, as a tar archive
///
/// Owners, modes, times, links, devices, extended attributes and holes are in the archive, as GNU tar and 'butterfs
/// image build' read them.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Write to this file instead of standard output
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    store: StoreArgs,
    /// The store
    #[arg(value_name = "URL")]
    url: String,
    /// The snapshot, by name or id
    #[arg(value_name = "SNAPSHOT")]
    snapshot: String,
    /// The directory in it
    #[arg(value_name = "PATH", default_value = "/")]
    path: PathBuf,
}

impl Run for Args {
    fn run(self, _out: &mut dyn Write) -> Result<(), CliError> {
        if self.file.is_none() && io::stdout().is_terminal() {
            let sentence = "an archive is not written to a terminal";
            return Err(CliError::failed(sentence).hint("-f FILE writes it to a file"));
        }
        let repository = self.store.open(&self.url)?;
        let manifest = snapshot(&repository, &self.snapshot)?;
        let archive = Archive::sequential(&repository);
        let view = View::new(&archive, &manifest)?;
        let top = view.directory(self.path.as_os_str().as_bytes())?;
        let file = match &self.file {
            None => File::from(rustix::stdio::stdout().try_clone_to_owned().map_err(CliError::from)?),
            Some(path) => {
                let cannot =
                    |error| CliError::failed(format!("cannot create '{}': {}", path.display(), os_message(&error)));
                File::options().write(true).create(true).truncate(true).mode(0o600).open(path).map_err(cannot)?
            }
        };
        let mut tar = sink::Tar::new(BufWriter::with_capacity(1 << 20, file));
        let written = Walk { view, links: HashMap::new() }.run(top, &mut tar).and_then(|()| tar.finish());
        written.map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => CliError::BrokenPipe,
            _ => CliError::failed(os_message(&error)),
        })
    }
}

/// Hands the files of a view to a sink.
struct Walk<'a> {
    view: View<'a>,
    /// The paths of inodes that have several names.
    links: HashMap<u64, Vec<Vec<u8>>>,
}

/// A directory that is being walked.
struct Open {
    ino: u64,
    attributes: Attributes,
    names: std::vec::IntoIter<butterfs_objects::Entry>,
    after: Vec<u8>,
    is_done: bool,
}

impl Walk<'_> {
    fn open(&self, ino: u64) -> io::Result<Open> {
        let attributes = self.attributes(ino, &self.view.inode(ino).map_err(other)?)?;
        Ok(Open { ino, attributes, names: Vec::new().into_iter(), after: Vec::new(), is_done: false })
    }

    fn run(&mut self, top: u64, sink: &mut dyn Sink) -> io::Result<()> {
        let mut way = vec![self.open(top)?];
        let mut path: Vec<Vec<u8>> = Vec::new();
        sink.directory(&path, &way[0].attributes)?;
        while let Some(directory) = way.last_mut() {
            let Some(entry) = directory.names.next() else {
                if !directory.is_done {
                    let names = self.view.entries(directory.ino, &directory.after, NAMES).map_err(other)?;
                    directory.is_done = names.len() < NAMES;
                    directory.after = names.last().map(|entry| entry.name.clone()).unwrap_or_default();
                    directory.names = names.into_iter();
                    continue;
                }
                sink.leave(&path, &directory.attributes)?;
                way.pop();
                path.pop();
                continue;
            };
            if entry.kind == DIRECTORY {
                self.view.enter(directory.ino, &entry).map_err(other)?;
            }
            path.push(entry.name);
            if entry.kind == DIRECTORY {
                let open = self.open(entry.ino)?;
                sink.directory(&path, &open.attributes)?;
                way.push(open);
                continue;
            }
            self.one(entry.ino, &path, sink)?;
            path.pop();
        }
        Ok(())
    }

    fn one(&mut self, ino: u64, path: &[Vec<u8>], sink: &mut dyn Sink) -> io::Result<()> {
        let inode = self.view.inode(ino).map_err(other)?;
        if let Some(first) = self.links.get(&ino) {
            return sink.link(path, first).map(drop);
        }
        if inode.links > 1 {
            self.links.insert(ino, path.to_vec());
        }
        let attributes = self.attributes(ino, &inode)?;
        if inode.is(SYMLINK) {
            return sink.symlink(path, &attributes, &self.view.link_text(ino).map_err(other)?).map(drop);
        }
        if !inode.is(REGULAR) {
            return sink.node(path, &attributes).map(drop);
        }
        let ranges = self.view.data_ranges(ino).map_err(other)?;
        let view = self.view;
        let mut fill = |take: &mut sink::Take<'_>| -> io::Result<()> {
            let mut failed = None;
            let read = view.content(ino, 0, u64::MAX, &mut |offset, bytes| {
                take(offset, bytes).map_err(|error| {
                    failed = Some(error);
                    butterfs_store::Error::new(butterfs_store::Kind::Broken, "the archive cannot be written")
                })
            });
            failed.map_or_else(|| read.map_err(other), Err)
        };
        sink.file(path, &attributes, Incoming { size: inode.size, ranges: &ranges, fill: &mut fill }).map(drop)
    }

    fn attributes(&self, ino: u64, inode: &Inode) -> io::Result<Attributes> {
        let moment = |at: usize| (inode.times[at].sec, inode.times[at].nsec);
        let device = inode.device as u32;
        Ok(Attributes {
            mode: inode.mode,
            uid: inode.uid,
            gid: inode.gid,
            device: ((device >> 8) & 0xfff, (device & 0xff) | ((device >> 12) & 0xf_ff00)),
            atime: moment(0),
            mtime: moment(1),
            ctime: moment(2),
            xattrs: self.view.xattrs(ino).map_err(other)?.into_iter().collect(),
            is_wanted: true,
        })
    }
}

fn other(error: butterfs_store::Error) -> io::Error {
    io::Error::other(error)
}
