//! Images beside their sources: the kernel mounts them, `btrfs check` and our checker find nothing, and the fingerprint
//! of the mounted content is that of the source. The same input gives the same bytes.

mod attacks;
mod composefs;
mod containers;
mod debian;
mod hostile;
mod layers;
mod oci;
mod random;
mod same;
mod sharing;
mod sources;
mod streams;
mod tree;

use butterfs_image::{Builder, Report};
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::kernel::{KernelMount, check_all};
use butterfs_testkit::operation::Kind;
use std::path::Path;

/// The attributes of a source that an image keeps.
pub const KEPT: Compare =
    Compare { atime: false, mtime: true, ctime: false, btime: false, blocks: false, holes: true, slack_ns: 0 };

/// Builds an image, and lets both checkers look at it.
pub fn build(builder: Builder, image: &Path) -> Report {
    let report = builder.build(image).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(std::fs::metadata(image).unwrap().len(), report.total_bytes);
    butterfs_testkit::judge::assert_clean(image);
    if butterfs_testkit::requirement::programs("images", &["btrfs"]) {
        check_all(image);
    }
    report
}

/// Panics unless the kernel shows in `image`, below `folder`, what is in `source`.
pub fn assert_shows(image: &Path, folder: &str, source: &Path) {
    let mount = KernelMount::new(image, "ro");
    let [expected, actual] = [source, &mount.path().join(folder)].map(|top| {
        let mut print = Fingerprint::of_tree(top);
        same_tree(&mut print);
        print
    });
    let found = differences(&expected, &actual, KEPT);
    assert!(found.is_empty(), "{}", found.join("\n"));
    let complaints = mount.finish();
    assert!(complaints.is_empty(), "{complaints:?}");
}

/// Takes out what is not the tree's: sizes and links of folders are the filesystem's own.
pub fn same_tree(print: &mut Fingerprint) {
    let folders = print.entries.values_mut().filter(|entry| entry.kind == Kind::Folder);
    folders.for_each(|entry| (entry.size, entry.links) = (0, 1));
}
