//! A dump of composefs as a source: a text with one line for each path. Contents of files are in the line, or in files
//! of a folder of objects, whose fs-verity digests the dump names.
//!
//! # Invariants
//! 1. Memory is bounded: a line has a longest length.
//! 2. No name of an object leads out of its folder, and no symbolic link is followed there.
//! 3. A content with another digest than the dump says does not get into an image.

mod line;
mod verity;

use super::Source;
use crate::assembly::Target;
use crate::entry::{Content, Special};
use crate::error::{Error, ErrorKind, Result, shown};
use crate::path::{components, joined};
use line::{Kind, Line, Stored};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

/// Longest line: contents inside of it are small.
const MAX_LINE: u64 = 16 << 20;

/// See the [module](self).
pub struct ComposefsSource {
    name: String,
    reader: Box<dyn BufRead + Send>,
    objects: Option<OwnedFd>,
}

impl ComposefsSource {
    /// The dump in a file; `-` stands for the standard input. `objects` is the folder with the contents.
    pub fn open(path: impl AsRef<Path>, objects: Option<&Path>) -> Result<ComposefsSource> {
        let path = path.as_ref();
        if path == Path::new("-") {
            return ComposefsSource::new("standard input", std::io::stdin(), objects);
        }
        let file =
            File::open(path).map_err(|error| Error::source(format!("cannot open {}: {error}", path.display())))?;
        ComposefsSource::new(path.display().to_string(), file, objects)
    }

    /// A dump that a reader gives.
    pub fn new(
        name: impl Into<String>,
        reader: impl Read + Send + 'static,
        objects: Option<&Path>,
    ) -> Result<ComposefsSource> {
        let open = |path: &Path| {
            let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
            rustix::fs::open(path, flags, Mode::empty())
                .map_err(|error| Error::source(format!("cannot open {}: {error}", path.display())))
        };
        let objects = objects.map(open).transpose()?;
        Ok(ComposefsSource { name: name.into(), reader: Box::new(BufReader::with_capacity(1 << 20, reader)), objects })
    }

    /// Whether a file begins as a dump does: with the root folder.
    pub fn begins(head: &[u8]) -> bool {
        head.strip_prefix(b"/ ").is_some_and(|rest| rest.first().is_some_and(u8::is_ascii_digit))
    }

    fn put(&self, line: Line, into: &mut dyn Target) -> Result<()> {
        let Line { path, attributes, kind } = line;
        match kind {
            Kind::Folder => into.folder(&path, attributes),
            Kind::HardLink(original) => into.hard_link(&path, &original),
            Kind::Special(special) => {
                if let Special::Symlink(target) = &special
                    && target.is_empty()
                {
                    return Err(Error::content("the symbolic link has no target"));
                }
                into.special(&path, attributes, special)
            }
            Kind::File { size: _, stored: Stored::Inline(bytes) } => {
                into.file(&path, attributes, Content::whole(bytes.len() as u64, &mut bytes.as_slice()))
            }
            Kind::File { size, stored: Stored::Object(object, digest) } => {
                let file = self.object(&object, size)?;
                if let Some(digest) = digest {
                    verity::check(&file, size, &digest).map_err(|error| error.of(&shown(&object)))?;
                }
                let mut reader = &file;
                let content = Content { file: Some(&file), ..Content::whole(size, &mut reader) };
                into.file(&path, attributes, content)
            }
        }
    }

    /// Opens an object of `size` bytes.
    fn object(&self, name: &[u8], size: u64) -> Result<File> {
        let Some(folder) = &self.objects else {
            let sentence = format!("the content is in the object {}, and no folder of objects is given", shown(name));
            return Err(Error::new(ErrorKind::Options, sentence));
        };
        let path = joined(&components(name)?);
        let failed = |error: std::io::Error| Error::source(format!("cannot open the object {}: {error}", shown(name)));
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let file = rustix::fs::openat2(folder, path.as_slice(), flags, Mode::empty(), how);
        let file: File = file.map_err(|error| failed(error.into()))?.into();
        let found = file.metadata().map_err(failed)?;
        if !found.is_file() || found.len() != size {
            let sentence = format!("the object {} should be a file of {size} bytes", shown(name));
            return Err(Error::content(sentence));
        }
        Ok(file)
    }
}

impl Source for ComposefsSource {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn read(&mut self, into: &mut dyn Target) -> Result<()> {
        for number in 1u64.. {
            let about = |error: Error| error.of(&format!("line {number}"));
            let mut text = Vec::new();
            let read = (&mut self.reader).take(MAX_LINE + 1).read_until(b'\n', &mut text);
            read.map_err(|error| about(Error::source(format!("cannot read it: {error}"))))?;
            if text.is_empty() {
                break;
            }
            if text.last() == Some(&b'\n') {
                text.pop();
            }
            if text.len() as u64 > MAX_LINE {
                return Err(about(Error::content(format!("it has more than {MAX_LINE} bytes"))));
            }
            let line = Line::parse(&text).map_err(about)?;
            self.put(line, into).map_err(about)?;
        }
        Ok(())
    }
}
