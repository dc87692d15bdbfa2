//! A real source tree in two versions, written by the kernel, plain and compressed: every way, in full and incremental.
//!
//! `BUTTERFS_SEND_TREE=MB` takes so much of the tree, 2000 all of it.

use crate::both_ways::{How, Source, travel};
use crate::world::TOP;
use butterfs_send::wire::Version;
use butterfs_testkit::kernel::{KernelMount, mkfs, run_ok};
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::watchdog::Watchdog;
use butterfs_testkit::{requirement, source_tree};
use std::path::Path;

/// The next version: directories renamed and moved, files renamed, edited in the middle, appended to, cut, deleted,
/// copied and made, permissions changed. Which ones depends on their names only.
const NEXT_VERSION: &str = r#"
cd "$at/w"
every() { find . -type f | LC_ALL=C sort | awk "NR % $1 == $2"; }
every 23 1 | while read -r f; do echo "/* edited */" >> "$f"; done
every 29 2 | while read -r f; do printf 'EDITED' | dd of="$f" bs=1 seek=100 conv=notrunc status=none; done
every 31 3 | while read -r f; do truncate -s 1000 "$f"; done
every 37 4 | while read -r f; do rm "$f"; done
every 41 5 | while read -r f; do mv "$f" "$f.renamed"; done
every 43 6 | while read -r f; do cp "$f" "$f.copy"; done
every 47 7 | while read -r f; do cp --reflink=always "$f" "$f.shared"; done
every 53 8 | while read -r f; do chmod 600 "$f"; done
find . -mindepth 3 -maxdepth 3 -type d | LC_ALL=C sort | awk 'NR % 5 == 1' |
    while read -r d; do mv "$d" "$d-moved"; done
find . -mindepth 2 -maxdepth 2 -type d | LC_ALL=C sort | awk 'NR % 7 == 2' | while read -r d; do mv "$d" .; done
find . -mindepth 1 -maxdepth 1 -type d | LC_ALL=C sort | tail -n 1 |
    while read -r d; do mv "$d" last; mkdir "$d"; mv last "$d/"; done
"#;

fn megabytes() -> u64 {
    std::env::var("BUTTERFS_SEND_TREE").ok().and_then(|count| count.parse().ok()).unwrap_or(16)
}

/// Both versions, as `v1` and `v2`.
fn make(image: &Path, tarball: &Path, options: &str) {
    mkfs(image, &[]);
    let mount = KernelMount::new(image, options);
    // The end of what is unpacked is cut, of which tar complains.
    let script = format!(
        "set -eu; at='{}'; btrfs -q subvolume create \"$at/w\" 2> /dev/null || btrfs subvolume create \"$at/w\"\n\
         (xz -dc '{}' || true) | head -c {}000000 | (tar -x -C \"$at/w\" 2> /dev/null || true)\n\
         btrfs subvolume snapshot -r \"$at/w\" \"$at/v1\"\n({NEXT_VERSION})\n\
         sync; btrfs subvolume snapshot -r \"$at/w\" \"$at/v2\"",
        mount.path().display(),
        tarball.display(),
        megabytes(),
    );
    run_ok(600, "bash", &["-c", &script]);
    assert!(mount.finish().is_empty());
}

#[test]
fn a_source_tree_in_two_versions() {
    const TEST: &str = "a_source_tree_in_two_versions";
    if !requirement::kernel_btrfs(TEST) || !requirement::fuse(TEST) || !requirement::programs(TEST, &["xz"]) {
        return;
    }
    let Some(tarball) = source_tree::tarball(TEST) else { return };
    let watchdog = Watchdog::new(TEST, 300 + 5 * megabytes());
    let scratch = Scratch::new("source-tree");
    let plain = How { version: Version::V1, compressed: false };
    let packed = How { version: Version::V2, compressed: true };
    for (options, how) in [("noatime", plain), ("noatime,compress=zstd", packed)] {
        watchdog.note(&format!("unpacking with {options}"));
        let image = scratch.sparse_file("source.img", 6 << 30);
        make(&image, &tarball, options);
        let mut source = Source::of(&image);
        let id = |name: &str| source.world.fs.lookup(TOP, name.as_bytes()).expect("it was made").id.tree;
        let ids = [id("v1"), id("v2")];
        source.add_pair(format!("{} MB, {options}", megabytes()), ("v1", ids[0]), ("v2", ids[1]));
        assert!(source.files() > 300, "{} files", source.files());
        println!("{options}: {} files", source.files());
        travel(&scratch, &image, source, how, &watchdog);
        std::fs::remove_file(&image).expect("our own file");
    }
}
