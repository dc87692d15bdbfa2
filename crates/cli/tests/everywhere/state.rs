//! The state of one side after an act: the tree of a folder, which subvolumes it has, and which one is the default.

use crate::sides::Side;
use butterfs_control::{SubvolumeRecord, question};
use butterfs_fuse::client;
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::kernel::run_ok;
use rustix::fs::{Access, Mode, OFlags, major, minor};
use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Contents, rights, links and xattrs; neither times nor allocation.
const COMPARE: Compare =
    Compare { atime: false, mtime: false, ctime: false, btime: false, blocks: false, holes: false, slack_ns: 0 };

/// A folder of a side.
pub struct FolderState {
    tree: Fingerprint,
    /// Paths from the folder, and whether they are read-only.
    subvolumes: BTreeSet<(String, bool)>,
    /// The path of the default subvolume from the top level, or from the folder.
    default: String,
    label: String,
    /// Names beside the folder.
    names: BTreeSet<String>,
}

impl FolderState {
    pub fn of(side: &Side, folder: &str) -> FolderState {
        let mut tree = Fingerprint::of_tree(&side.top.join(folder));
        // Follows from the names, and would repeat every name that differs already.
        tree.entries.entry(Vec::new()).and_modify(|top| top.size = 0);
        let names = std::fs::read_dir(&side.top).expect("it is mounted");
        let names =
            names.map(|entry| entry.expect("it is mounted").file_name().to_string_lossy().into_owned()).collect();
        let (subvolumes, default, label) = match side.is_ours() {
            true => ours(&side.top, folder),
            false => kernels(&side.top, folder, &tree),
        };
        let default = default.strip_prefix(&format!("{folder}/")).map_or(default.clone(), |path| format!("./{path}"));
        FolderState { tree, subvolumes, default, label, names }
    }

    /// Of the folder alone.
    pub fn without_names(self) -> FolderState {
        FolderState { names: BTreeSet::new(), ..self }
    }

    /// One sentence for each difference of ours from the kernel's.
    pub fn differences(&self, kernels: &FolderState) -> BTreeSet<String> {
        let mut found: BTreeSet<String> = differences(&kernels.tree, &self.tree, COMPARE).into_iter().collect();
        for pair in self.subvolumes.symmetric_difference(&kernels.subvolumes) {
            let whose = if self.subvolumes.contains(pair) { "ours" } else { "the kernel's" };
            found.insert(format!("subvolume {} (read-only: {}) is only {whose}", pair.0, pair.1));
        }
        for name in self.names.symmetric_difference(&kernels.names) {
            found.insert(format!("{name} is there on one side only"));
        }
        for (what, ours, theirs) in
            [("default", &self.default, &kernels.default), ("label", &self.label, &kernels.label)]
        {
            if ours != theirs {
                found.insert(format!("the {what} is '{ours}', the kernel's '{theirs}'"));
            }
        }
        found
    }
}

fn ours(top: &Path, folder: &str) -> (BTreeSet<(String, bool)>, String, String) {
    let device = std::fs::metadata(top).expect("it is mounted").dev();
    let mut client = client::ask_about((major(device), minor(device))).expect("it is served");
    let opened = rustix::fs::open(top, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).expect("it is mounted");
    let opened = [opened.as_fd()];
    let default = client.ask(question::GetDefault {}, &opened).expect("it is served").expect("root may ask")[0].0;
    let label = client.ask(question::GetLabel {}, &opened).expect("it is served").expect("root may ask");
    let label = text(&label[0].0);
    let all = client.ask(question::ListSubvolumes {}, &opened).expect("it is served").expect("root may ask");
    let path = |record: &SubvolumeRecord| path_from_top(&all, record);
    let below = format!("{folder}/");
    let inside =
        all.iter().filter_map(|record| Some((path(record).strip_prefix(&below)?.to_owned(), record.is_read_only())));
    let default = all.iter().find(|record| record.id == default).map(path);
    (inside.collect(), default.unwrap_or_default(), label)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("test names are text")
}

fn path_from_top(all: &[SubvolumeRecord], record: &SubvolumeRecord) -> String {
    let above = all.iter().find(|other| other.id == record.parent).map(|parent| path_from_top(all, parent));
    let parts = [above.unwrap_or_default(), text(&record.directory_path), text(&record.name)];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/")
}

/// A folder with the inode number 256 is a subvolume; one that nobody may write to is read-only.
fn kernels(top: &Path, folder: &str, tree: &Fingerprint) -> (BTreeSet<(String, bool)>, String, String) {
    let subvolumes = tree.numbers.iter().filter(|(path, number)| **number == 256 && !path.is_empty());
    let subvolumes = subvolumes.map(|(path, _)| {
        let path = String::from_utf8(path.clone()).expect("test names are text");
        let writable = rustix::fs::access(top.join(folder).join(&path), Access::WRITE_OK);
        (path, writable == Err(rustix::io::Errno::ROFS))
    });
    let said = run_ok(20, "btrfs", &["subvolume", "get-default", &top.to_string_lossy()]);
    let default = said.trim().split_once(" path ").map_or("", |(_, path)| path);
    let label = run_ok(20, "btrfs", &["filesystem", "label", &top.to_string_lossy()]);
    (subvolumes.collect(), default.to_owned(), label.trim().to_owned())
}
