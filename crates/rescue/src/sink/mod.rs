//! Where restored files go: a directory, a tar stream, a new image.
//!
//! Invariants: (1) a sink gets paths as components that were on a disk: it never leads outside of where it writes;
//! (2) a directory comes before what is in it, and [`Sink::leave`] after all of that; (3) nothing takes the place of
//! what the sink itself has made.

mod directory;
mod image;
mod tar;
mod written;

pub use directory::Directory;
pub use image::Image;
pub use tar::Tar;

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

/// A path: names, outermost first; empty for the top.
pub type Path = [Vec<u8>];

/// Seconds since 1970, and nanoseconds.
pub type Moment = (i64, u32);

/// Everything about an inode but its content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Type and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Major and minor number of a device.
    pub device: (u32, u32),
    /// Last access.
    pub atime: Moment,
    /// Last change of the content.
    pub mtime: Moment,
    /// Last change of the inode; only archives take it.
    pub ctime: Moment,
    /// Extended attributes, ACLs among them.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Owner, mode and times are to be restored.
    pub is_wanted: bool,
}

/// Takes bytes at an offset.
pub type Take<'a> = dyn FnMut(u64, &[u8]) -> io::Result<()> + 'a;

/// A regular file on its way: its length, where it has data, and how to get that.
pub struct Incoming<'a> {
    /// Bytes.
    pub size: u64,
    /// Where there is data, ascending.
    pub ranges: &'a [Range<u64>],
    /// Hands over the data, in ascending order; parts of the ranges may be left out.
    pub fill: &'a mut dyn FnMut(&mut Take<'_>) -> io::Result<()>,
}

/// The outcome of making something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Made {
    /// It is there now.
    Yes,
    /// It was there before, as it would have been made.
    Same,
    /// Something else with its name was there before, and stays.
    Kept,
    /// The sink itself has made something else with its name, which stays.
    Taken,
    /// The sink has nothing of this kind.
    LeftOut,
}

impl Made {
    /// Whether it is there as it was to be made.
    pub fn is_there(self) -> bool {
        matches!(self, Made::Yes | Made::Same)
    }
}

/// Takes restored files.
pub trait Sink {
    /// Makes a directory, or goes into one that is there.
    fn directory(&mut self, path: &Path, attributes: &Attributes) -> io::Result<()>;
    /// Everything in a directory has been made.
    fn leave(&mut self, path: &Path, attributes: &Attributes) -> io::Result<()>;
    /// Makes a regular file.
    fn file(&mut self, path: &Path, attributes: &Attributes, incoming: Incoming<'_>) -> io::Result<Made>;
    /// Makes a symbolic link.
    fn symlink(&mut self, path: &Path, attributes: &Attributes, target: &[u8]) -> io::Result<Made>;
    /// Makes a device, FIFO or socket.
    fn node(&mut self, path: &Path, attributes: &Attributes) -> io::Result<Made>;
    /// Makes another name of a file that was made before.
    fn link(&mut self, path: &Path, first: &Path) -> io::Result<Made>;
    /// Everything has been made.
    fn finish(&mut self) -> io::Result<()>;
    /// Attributes that what was made last was to get and did not, each with the reason.
    fn lacking(&mut self) -> Vec<String> {
        Vec::new()
    }
    /// Sentences about problems that made no file incomplete, since the last call.
    fn complaints(&mut self) -> Vec<String> {
        Vec::new()
    }
}

/// A sink that several runs restore into, one after the other: only its owner finishes it.
pub struct Shared<'a>(pub &'a mut dyn Sink);

impl Sink for Shared<'_> {
    fn directory(&mut self, path: &Path, attributes: &Attributes) -> io::Result<()> {
        self.0.directory(path, attributes)
    }
    fn leave(&mut self, path: &Path, attributes: &Attributes) -> io::Result<()> {
        self.0.leave(path, attributes)
    }
    fn file(&mut self, path: &Path, attributes: &Attributes, incoming: Incoming<'_>) -> io::Result<Made> {
        self.0.file(path, attributes, incoming)
    }
    fn symlink(&mut self, path: &Path, attributes: &Attributes, target: &[u8]) -> io::Result<Made> {
        self.0.symlink(path, attributes, target)
    }
    fn node(&mut self, path: &Path, attributes: &Attributes) -> io::Result<Made> {
        self.0.node(path, attributes)
    }
    fn link(&mut self, path: &Path, first: &Path) -> io::Result<Made> {
        self.0.link(path, first)
    }
    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
    fn lacking(&mut self) -> Vec<String> {
        self.0.lacking()
    }
    fn complaints(&mut self) -> Vec<String> {
        self.0.complaints()
    }
}

/// A path as text, with a slash in front.
pub fn shown(path: &Path) -> String {
    let names = path.iter().map(|name| format!("/{}", String::from_utf8_lossy(name)));
    let shown: String = names.collect();
    if shown.is_empty() { "/".to_owned() } else { shown }
}

/// A name that leads nowhere else: what it is called where its own name cannot be used.
pub fn safe_name(name: &[u8]) -> Vec<u8> {
    if is_safe(name) {
        return name.to_vec();
    }
    let mut safe = b"%".to_vec();
    for byte in name.iter().take(200) {
        match byte {
            b'/' | 0 | b'%' => safe.extend(format!("%{byte:02x}").bytes()),
            byte => safe.push(*byte),
        }
    }
    safe.truncate(255);
    safe
}

/// Whether a name names an entry of its directory.
pub fn is_safe(name: &[u8]) -> bool {
    !name.is_empty()
        && name.len() <= 255
        && name != b"."
        && name != b".."
        && !name.contains(&b'/')
        && !name.contains(&0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_get_others() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"../../etc/passwd", b"a\0b", &[b'x'; 256]] {
            assert!(!is_safe(bad) && is_safe(&safe_name(bad)), "{bad:?}");
        }
        assert_eq!(safe_name(b"../x"), b"%..%2fx");
        assert_eq!(safe_name(b"100%"), b"100%");
    }
}
