//! Folders for one test's files.
//!
//! Invariant: a folder is removed when its test ends well, and stays when the test panics, so that the image can be
//! looked at.

use butterfs_device::{BlockDevice, FileDevice, FileOptions, MemoryDevice, copy_content};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder that nobody else uses.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// A new empty folder with `name` in its name.
    pub fn new(name: &str) -> Scratch {
        Scratch::below(&root(), name)
    }

    /// The same in memory, where the machine has a place for that.
    pub fn in_memory(name: &str) -> Scratch {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { Scratch::below(memory, &format!("butterfs-{name}")) } else { Scratch::new(name) }
    }

    fn below(folder: &Path, name: &str) -> Scratch {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("{name}-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap_or_else(|error| panic!("cannot create {}: {error}", path.display()));
        Scratch { path }
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path inside it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// A new folder inside it.
    pub fn folder(&self, name: &str) -> PathBuf {
        let path = self.join(name);
        std::fs::create_dir_all(&path).unwrap_or_else(|error| panic!("cannot create {}: {error}", path.display()));
        path
    }

    /// A new file inside it that is one hole of `len` bytes.
    pub fn sparse_file(&self, name: &str, len: u64) -> PathBuf {
        let path = self.join(name);
        let made = std::fs::File::create(&path).and_then(|file| file.set_len(len));
        made.unwrap_or_else(|error| panic!("cannot create {}: {error}", path.display()));
        path
    }

    /// A new sparse image file inside it with the content of `disk`.
    pub fn image(&self, name: &str, disk: &dyn BlockDevice) -> PathBuf {
        let path = self.sparse_file(name, disk.len());
        let file = FileDevice::open(&path, &FileOptions::read_write()).expect("nobody else uses it");
        copy_content(disk, &file).unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
        path
    }
}

/// The content of an image file, in memory.
pub fn load(image: &Path) -> MemoryDevice {
    let file = FileDevice::open(image, &FileOptions::inspect());
    let file = file.unwrap_or_else(|error| panic!("cannot open {}: {error}", image.display()));
    let disk = MemoryDevice::new(file.len());
    copy_content(&file, &disk).unwrap_or_else(|error| panic!("cannot read {}: {error}", image.display()));
    disk
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("kept for a look: {}", self.path.display());
        } else {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// The build output's folder (`target/debug`) that this test program lies in.
pub fn build_folder() -> PathBuf {
    let program = std::env::current_exe().expect("a program knows its own path");
    let folder = program.parent().expect("a program lies in a folder");
    let inside = if folder.ends_with("deps") { folder.parent() } else { Some(folder) };
    inside.expect("test programs lie in the build output").to_owned()
}

/// The folder for all scratch space: `BUTTERFS_SCRATCH`, or `tmp` in the build output.
pub fn root() -> PathBuf {
    std::env::var_os("BUTTERFS_SCRATCH").map_or_else(|| build_folder().with_file_name("tmp"), PathBuf::from)
}

/// The folder of fetched tools: `BUTTERFS_TOOLS`, or `tools` in the build output.
pub fn tools() -> PathBuf {
    std::env::var_os("BUTTERFS_TOOLS").map_or_else(|| build_folder().with_file_name("tools"), PathBuf::from)
}
