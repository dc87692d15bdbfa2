//! Small scripts of file operations in a mounted folder, one operation a line or between semicolons, in words.
//!
//! ```text
//! touch P            mkdir P             fill P OFF LEN BYTE      trunc P SIZE       punch P OFF LEN
//! falloc P OFF LEN   fallock P OFF LEN   clone P OFF LEN Q OFF    ln P Q             mv P Q
//! xchg P Q           whiteout P Q        rm P                     rmdir P            symlink TEXT P
//! fifo P             device P            chmod P MODE             chown P UID        setx P NAME VALUE
//! rmx P NAME         links P Q FROM TO   touchs P FROM TO         rms P FROM TO      xattrs P FROM TO
//! open P             close P             tmpfile DIR P            lnopen P Q         fsync P
//! fdatasync P        sync                evict                    snap P Q           subvol P
//! delsub P
//! ```
//! `P` and `Q` are paths in the folder, `.` the folder itself. `open` keeps a file open under its path, which later
//! lines name instead of a path that is gone; `tmpfile` opens a file without a name. Ranges like `links P Q 1 9` stand
//! for `Q1` to `Q9`. `evict` drops what the kernel has cached of inodes.
//!
//! Invariant: every operation must succeed; the script's line is in the panic.

use crate::kernel::run_ok;
use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, XattrFlags};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Runs scripts in a folder; keeps what they open.
#[derive(Debug)]
pub struct Script {
    root: PathBuf,
    open: HashMap<String, File>,
}

impl Script {
    /// Scripts for the folder `root`.
    pub fn new(root: &Path) -> Script {
        Script { root: root.to_owned(), open: HashMap::new() }
    }

    /// Runs `text`.
    pub fn run(&mut self, text: &str) {
        for line in text.split(['\n', ';']).map(str::trim).filter(|line| !line.is_empty()) {
            let words: Vec<&str> = line.split_whitespace().collect();
            self.step(&words).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    /// Tries one operation; what the folder cannot do changes nothing.
    pub fn attempt(&mut self, line: &str) -> io::Result<()> {
        let words: Vec<&str> = line.split_whitespace().collect();
        self.step(&words)
    }

    /// Whether something has this name, or is open under it.
    pub fn exists(&self, path: &str) -> bool {
        self.open.contains_key(path) || self.at(path).symlink_metadata().is_ok_and(|found| !found.is_symlink())
    }

    fn at(&self, path: &str) -> PathBuf {
        if path == "." { self.root.clone() } else { self.root.join(path) }
    }

    /// The file that is open under a path, or opened now.
    fn file(&self, path: &str) -> io::Result<File> {
        match self.open.get(path) {
            Some(file) => file.try_clone(),
            None if self.at(path).is_dir() => File::open(self.at(path)),
            None => File::options().read(true).write(true).create(true).truncate(false).open(self.at(path)),
        }
    }

    fn step(&mut self, words: &[&str]) -> io::Result<()> {
        match *words {
            ["open", path] => drop(self.open.insert(path.to_owned(), self.file(path)?)),
            ["close", path] => drop(self.open.remove(path)),
            ["tmpfile", folder, path] => {
                let flags = OFlags::TMPFILE | OFlags::RDWR;
                let file = rustix::fs::open(self.at(folder), flags, Mode::from_raw_mode(0o644))?;
                self.open.insert(path.to_owned(), file.into());
            }
            ["sync"] => rustix::fs::syncfs(File::open(&self.root)?)?,
            ["fsync", path] => rustix::fs::fsync(self.handle(path)?)?,
            ["fdatasync", path] => rustix::fs::fdatasync(self.handle(path)?)?,
            ["evict"] => std::fs::write("/proc/sys/vm/drop_caches", "2")?,
            ["snap", from, to] => btrfs(&["subvolume", "snapshot"], &[&self.at(from), &self.at(to)]),
            ["subvol", path] => btrfs(&["subvolume", "create"], &[&self.at(path)]),
            ["delsub", path] => btrfs(&["subvolume", "delete"], &[&self.at(path)]),
            [verb, path, ref rest @ ..] if self.of_names(verb, path, rest)? => {}
            [verb, path, ref rest @ ..] if self.of_contents(verb, path, rest)? => {}
            [verb, path, ref rest @ ..] if self.of_attributes(verb, path, rest)? => {}
            _ => return Err(io::Error::other("no such operation")),
        }
        Ok(())
    }

    /// Opens a path to sync: nothing is created for it, and a symbolic link has only its folder's file system.
    fn handle(&self, path: &str) -> io::Result<File> {
        match self.open.get(path) {
            Some(file) => file.try_clone(),
            None => File::open(self.at(path)),
        }
    }

    fn of_names(&self, verb: &str, path: &str, rest: &[&str]) -> io::Result<bool> {
        let at = self.at(path);
        let rename = |to: &str, flags| rustix::fs::renameat_with(CWD, &at, CWD, self.at(to), flags);
        let made = |kind, mode, device| rustix::fs::mknodat(CWD, &at, kind, Mode::from_raw_mode(mode), device);
        match (verb, rest) {
            ("touch", []) => drop(File::options().append(true).create(true).open(at)?),
            ("mkdir", []) => std::fs::create_dir(at)?,
            ("ln", [to]) => std::fs::hard_link(at, self.at(to))?,
            ("mv", [to]) => std::fs::rename(at, self.at(to))?,
            ("xchg", [to]) => rename(to, RenameFlags::EXCHANGE)?,
            ("whiteout", [to]) => rename(to, RenameFlags::WHITEOUT)?,
            ("rm", []) => std::fs::remove_file(at)?,
            ("rmdir", []) => std::fs::remove_dir(at)?,
            ("symlink", [to]) => std::os::unix::fs::symlink(path, self.at(to))?,
            ("fifo", []) => made(FileType::Fifo, 0o600, 0)?,
            ("device", []) => made(FileType::CharacterDevice, 0o600, rustix::fs::makedev(1, 3))?,
            ("lnopen", [to]) => {
                let file = self.file(path)?;
                let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
                rustix::fs::linkat(CWD, own, CWD, self.at(to), AtFlags::SYMLINK_FOLLOW)?;
            }
            ("links", [to, from, last]) => {
                each(from, last, |number| std::fs::hard_link(&at, self.at(&format!("{to}{number}"))))?;
            }
            ("touchs", [from, last]) => {
                each(from, last, |number| File::create(self.at(&format!("{path}{number}"))).map(drop))?;
            }
            ("rms", [from, last]) => {
                each(from, last, |number| std::fs::remove_file(self.at(&format!("{path}{number}"))))?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn of_contents(&self, verb: &str, path: &str, rest: &[&str]) -> io::Result<bool> {
        let space = |offset, len, flags| -> io::Result<()> {
            Ok(rustix::fs::fallocate(self.file(path)?, flags, number(offset), number(len))?)
        };
        match (verb, rest) {
            ("fill", [offset, len, byte]) => {
                let data = vec![number(byte) as u8; number(len) as usize];
                self.file(path)?.write_all_at(&data, number(offset))?;
            }
            ("trunc", [size]) => self.file(path)?.set_len(number(size))?,
            ("falloc", [offset, len]) => space(offset, len, FallocateFlags::empty())?,
            ("fallock", [offset, len]) => space(offset, len, FallocateFlags::KEEP_SIZE)?,
            ("punch", [offset, len]) => {
                space(offset, len, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE)?;
            }
            ("clone", [offset, len, to, at]) => {
                let (source, target) = (self.file(path)?, self.file(to)?);
                let (mut from, mut into, len) = (number(offset), number(at), number(len) as usize);
                let copied = rustix::fs::copy_file_range(&source, Some(&mut from), &target, Some(&mut into), len)?;
                if copied != len {
                    return Err(io::Error::other(format!("{copied} of {len} bytes were cloned")));
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn of_attributes(&self, verb: &str, path: &str, rest: &[&str]) -> io::Result<bool> {
        let at = self.at(path);
        let set = |name: &str, value: &str| rustix::fs::lsetxattr(&at, name, value.as_bytes(), XattrFlags::empty());
        match (verb, rest) {
            ("chmod", [mode]) => {
                let mode = u32::from_str_radix(mode, 8).expect("an octal number");
                std::fs::set_permissions(at, std::os::unix::fs::PermissionsExt::from_mode(mode))?;
            }
            ("chown", [uid]) => std::os::unix::fs::lchown(at, Some(number(uid) as u32), None)?,
            ("setx", [name, value]) => set(name, value)?,
            ("rmx", [name]) => rustix::fs::lremovexattr(at, *name)?,
            ("xattrs", [from, last]) => {
                each(from, last, |number| Ok(set(&format!("user.number-{number}"), &format!("value {number}"))?))?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn btrfs(command: &[&str], paths: &[&Path]) {
    let paths: Vec<&str> = paths.iter().map(|path| path.to_str().expect("test paths are text")).collect();
    run_ok(60, "btrfs", &[command, &paths].concat());
}

/// A number, in bytes or in units of `K` or `M`.
fn number(word: &str) -> u64 {
    let (digits, unit) = match word.strip_suffix(['K', 'M']) {
        Some(digits) => (digits, if word.ends_with('K') { 1 << 10 } else { 1 << 20 }),
        None => (word, 1),
    };
    digits.parse::<u64>().unwrap_or_else(|_| panic!("{word} is no number")) * unit
}

fn each(from: &str, last: &str, mut act: impl FnMut(u64) -> io::Result<()>) -> io::Result<()> {
    (number(from)..=number(last)).try_for_each(&mut act)
}
