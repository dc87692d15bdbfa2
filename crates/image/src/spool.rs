//! Contents that are going to lie inside of items, kept until the trees are written: first in memory, then in a file
//! without a name.

use crate::error::{Error, ErrorKind, Result};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes that are kept in memory.
const IN_MEMORY: usize = 32 << 20;

/// See the [module](self).
pub struct Spool {
    folder: PathBuf,
    file: Option<File>,
    written: u64,
    tail: Vec<u8>,
}

impl Spool {
    /// An empty spool, with its file in `folder` when it needs one.
    pub fn new(folder: &Path) -> Spool {
        Spool { folder: folder.to_owned(), file: None, written: 0, tail: Vec::new() }
    }

    /// Adds bytes and returns where they are.
    pub fn append(&mut self, bytes: &[u8]) -> Result<u64> {
        if self.tail.len() + bytes.len() > IN_MEMORY {
            self.write_out()?;
        }
        let at = self.written + self.tail.len() as u64;
        self.tail.extend_from_slice(bytes);
        Ok(at)
    }

    fn write_out(&mut self) -> Result<()> {
        let failed = |error: std::io::Error| {
            let folder = self.folder.display();
            Error::new(ErrorKind::Output, format!("cannot write a temporary file in {folder}: {error}"))
        };
        if self.file.is_none() {
            self.file = Some(nameless(&self.folder).map_err(failed)?);
        }
        let file = self.file.as_ref().expect("just made");
        file.write_all_at(&self.tail, self.written).map_err(failed)?;
        self.written += self.tail.len() as u64;
        self.tail.clear();
        Ok(())
    }

    /// Fills `out` with what was put at `at`.
    pub fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        if at >= self.written {
            let start = (at - self.written) as usize;
            out.copy_from_slice(&self.tail[start..start + out.len()]);
            return Ok(());
        }
        let file = self.file.as_ref().expect("what is not in memory was written");
        file.read_exact_at(out, at).map_err(|error| {
            Error::new(ErrorKind::Output, format!("cannot read a temporary file in {}: {error}", self.folder.display()))
        })
    }
}

/// A file without a name. Where the filesystem has none, one whose name is taken away at once.
pub(crate) fn nameless(folder: &Path) -> std::io::Result<File> {
    use rustix::fs::{Mode, OFlags};
    let mode = Mode::RUSR | Mode::WUSR;
    if let Ok(file) = rustix::fs::open(folder, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, mode) {
        return Ok(file.into());
    }
    let path = folder.join(format!(".butterfs-spool-{}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out() {
        let mut spool = Spool::new(&std::env::temp_dir());
        let block = |n: usize| vec![n as u8; 1 << 20];
        let places: Vec<u64> = (0..100).map(|n| spool.append(&block(n)).unwrap()).collect();
        assert!(spool.written > 0 && !spool.tail.is_empty());
        for (n, at) in places.into_iter().enumerate() {
            let mut out = vec![0; 1 << 20];
            spool.read(at, &mut out).unwrap();
            assert!(out == block(n), "{n}");
        }
    }
}
