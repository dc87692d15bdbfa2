//! How many files are saved from an image: by us, by `btrfs restore`, by the kernel.

use butterfs_ondisk::TreeId;
use butterfs_rescue::Wreck;
use butterfs_rescue::restore::{ROOT_DIRECTORY, Restorer, Selection, Summary, Wanted};
use butterfs_rescue::roots::Roots;
use butterfs_rescue::sink::{Attributes, Incoming, Made, Path as SinkPath, Sink};
use butterfs_testkit::fingerprint::ContentHash;
use butterfs_testkit::kernel::{KernelMount, run};
use butterfs_testkit::scratch::Scratch;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Hashes of contents, by length too.
pub type Contents = BTreeSet<(u64, u64)>;

/// Takes files and keeps what their contents hash to.
#[derive(Default)]
pub struct Hashing {
    pub contents: Contents,
    pub paths: BTreeMap<Vec<u8>, (u64, u64)>,
    pub files: BTreeMap<Vec<u8>, Attributes>,
    pub others: BTreeMap<Vec<u8>, Attributes>,
    pub targets: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Sink for Hashing {
    fn directory(&mut self, path: &SinkPath, attributes: &Attributes) -> io::Result<()> {
        self.others.insert(path.join(&b'/'), attributes.clone());
        Ok(())
    }
    fn leave(&mut self, _: &SinkPath, _: &Attributes) -> io::Result<()> {
        Ok(())
    }
    fn file(&mut self, path: &SinkPath, attributes: &Attributes, incoming: Incoming<'_>) -> io::Result<Made> {
        let (mut pending, mut hash): (Vec<u8>, _) = (Vec::new(), ContentHash::default());
        let mut start = 0;
        (incoming.fill)(&mut |offset, bytes| {
            assert!(offset + bytes.len() as u64 <= incoming.size, "within the file");
            if offset != start + pending.len() as u64 || !offset.is_multiple_of(4096) {
                hash.update(start, &pending);
                pending.clear();
                start = offset;
            }
            pending.extend_from_slice(bytes);
            if pending.len() >= 1 << 20 && pending.len().is_multiple_of(4096) {
                hash.update(start, &pending);
                start += pending.len() as u64;
                pending.clear();
            }
            Ok(())
        })?;
        hash.update(start, &pending);
        let found = (incoming.size, hash.finish());
        self.contents.insert(found);
        self.paths.insert(path.join(&b'/'), found);
        self.files.insert(path.join(&b'/'), attributes.clone());
        Ok(Made::Yes)
    }
    fn symlink(&mut self, path: &SinkPath, attributes: &Attributes, target: &[u8]) -> io::Result<Made> {
        self.targets.insert(path.join(&b'/'), target.to_vec());
        self.others.insert(path.join(&b'/'), attributes.clone());
        Ok(Made::Yes)
    }
    fn node(&mut self, path: &SinkPath, attributes: &Attributes) -> io::Result<Made> {
        self.others.insert(path.join(&b'/'), attributes.clone());
        Ok(Made::Yes)
    }
    fn link(&mut self, path: &SinkPath, first: &SinkPath) -> io::Result<Made> {
        if let Some(found) = self.paths.get(&first.join(&b'/')).copied() {
            self.paths.insert(path.join(&b'/'), found);
        }
        Ok(Made::Yes)
    }
    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A restore: what it has brought, and what it says of itself.
pub type Restored = (Hashing, io::Result<Summary>);

/// Everything is wanted.
pub fn everything() -> Wanted {
    Wanted {
        metadata: true,
        xattrs: true,
        symlinks: true,
        snapshots: true,
        special: true,
        hard_links: true,
        orphans: true,
        ignore_errors: true,
        most_bytes: Some(1 << 30),
        ..Wanted::default()
    }
}

/// Restores with our code.
pub fn by_us(wreck: &Wreck) -> Restored {
    let (mut sink, roots) = (Hashing::default(), Roots::assemble(wreck));
    let mut tell = |_: butterfs_rescue::restore::Event<'_>| ();
    let restorer = Restorer::new(wreck, &roots, everything(), Selection::default(), &mut sink, &mut tell);
    let summary = restorer.run(TreeId::FS, ROOT_DIRECTORY);
    (sink, summary)
}

/// The contents of all files below a folder that can be read.
pub fn below(folder: &Path) -> Contents {
    let (mut found, mut seen) = (Contents::new(), BTreeSet::new());
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        // In a damaged filesystem a folder may be below itself.
        let Ok(status) = fs::metadata(&folder) else { continue };
        if !seen.insert((status.dev(), status.ino())) {
            continue;
        }
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten().take(MOST_ENTRIES) {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                Ok(kind) if kind.is_file() => found.extend(content_of(&entry.path())),
                _ => {}
            }
        }
    }
    found
}

/// More than any folder of the images has: the kernel lists some damaged folders again and again without end.
const MOST_ENTRIES: usize = 2000;
/// Longer than any file of the images: a damaged inode may name any length, and reading never ends.
const LONGEST_FILE: u64 = 64 << 20;

fn content_of(file: &Path) -> Option<(u64, u64)> {
    let mut bytes = Vec::new();
    let file = fs::File::open(file).ok()?;
    let len = file.metadata().ok().filter(|status| status.len() <= LONGEST_FILE)?.len();
    file.take(len).read_to_end(&mut bytes).ok()?;
    let mut hash = ContentHash::default();
    hash.update(0, &bytes);
    Some((bytes.len() as u64, hash.finish()))
}

/// Restores with `btrfs restore`.
pub fn by_btrfs_restore(image: &Path, scratch: &Scratch) -> Contents {
    let folder = scratch.join("restored");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let (image, into) = (image.to_str().unwrap(), folder.to_str().unwrap());
    for more in [&[][..], &["-u", "1"]] {
        run(30, "btrfs", &[&["restore", "-i", "-s"], more, &[image, into]].concat());
        let found = below(&folder);
        if !found.is_empty() {
            return found;
        }
    }
    Contents::new()
}

/// Reads the kernel's mount with rescue options.
pub fn by_kernel(image: &Path) -> Contents {
    for words in ["rescue=all", "rescue=all:usebackuproot", "rescue=usebackuproot"] {
        if let Ok(mount) = KernelMount::try_new(image, &format!("ro,{words}")) {
            let found = below(mount.path());
            mount.finish();
            if !found.is_empty() {
                return found;
            }
        }
    }
    Contents::new()
}
