//! Logs that are laid over the last commit, because they cannot be replayed.

use crate::opened::plain;
use crate::saved::{Contents, Hashing, below, by_us};
use crate::{file, noise};
use butterfs_device::BlockDevice;
use butterfs_ondisk::{KeyType, TreeId};
use butterfs_rescue::overlay;
use butterfs_rescue::restore::Summary;
use butterfs_testkit::editor::Editor;
use butterfs_testkit::kernel::{KernelMount, mkfs, run_ok};
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::{Scratch, load};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are text")
}

/// Restores with the log laid over the last commit; with the sentences about it.
fn laid_over(device: Arc<dyn BlockDevice>) -> (Hashing, Summary, Vec<String>) {
    let mut wreck = plain(&[device]).unwrap();
    wreck.lay_log_over();
    let (sink, summary) = by_us(&wreck);
    (sink, summary.unwrap(), wreck.cautions)
}

fn restored(devices: &[Arc<dyn BlockDevice>]) -> Hashing {
    by_us(&plain(devices).unwrap()).0
}

/// Whole logs of the kernel show the same laid over the last commit as replayed, by us and by the kernel.
#[test]
fn logs_of_the_kernel_show_what_a_replay_shows() {
    const TEST: &str = "logs_laid_over";
    let Some(archive) = requirement::shared_data(TEST, "corpus/kernel-dirty-logs.tar.zst") else { return };
    if !requirement::kernel_btrfs(TEST) || !requirement::programs(TEST, &["zstd"]) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let folder = scratch.folder("images");
    run_ok(120, "tar", &["-S", "--zstd", "-xf", text(&archive), "-C", text(&folder)]);
    let mut images: Vec<PathBuf> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    images.sort();
    assert_eq!(images.len(), 34);
    let mut wrong = Vec::new();
    for image in images {
        let name = image.file_name().unwrap().to_string_lossy().into_owned();
        let (laid, summary, cautions) = laid_over(file(&image));
        let replayed = restored(&overlay::with_log_replayed(vec![file(&image)]).unwrap());
        let mount = KernelMount::new(&image, "noatime");
        let by_kernel = below(mount.path());
        mount.finish();
        let differing = |what: &str, is_same: bool| (!is_same).then(|| format!("{name}: {what}"));
        wrong.extend(differing("paths", laid.paths == replayed.paths));
        wrong.extend(differing("contents by the kernel", laid.contents == by_kernel));
        wrong.extend(differing("files", laid.files == replayed.files));
        wrong.extend(differing("others", laid.others == replayed.others));
        wrong.extend(differing("links", laid.targets == replayed.targets));
        wrong.extend(differing(&format!("{summary:?}"), summary.complete));
        wrong.extend(differing(&format!("{cautions:?}"), cautions.is_empty()));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A filesystem of the kernel whose log has several leaves: new files, one that was written again, one that grew, one
/// that was renamed and one that is gone; and the kernel's view after its replay.
fn synced(scratch: &Scratch) -> (PathBuf, Contents) {
    let image = scratch.sparse_file("made.img", 160 << 20);
    mkfs(&image, &["-m", "dup", "-n", "4096"]);
    let mount = KernelMount::new(&image, "noatime,commit=300");
    let at = |name: String| mount.path().join(name);
    for number in 0..40 {
        fs::write(at(format!("old{number}")), noise(number, 5000)).unwrap();
    }
    run_ok(20, "btrfs", &["filesystem", "sync", text(mount.path())]);
    let sync = |name: String| fs::File::open(at(name)).unwrap().sync_all().unwrap();
    let again = fs::OpenOptions::new().write(true).open(at("old3".to_owned())).unwrap();
    again.write_all_at(&noise(500, 4096), 0).unwrap();
    again.sync_all().unwrap();
    let longer = fs::OpenOptions::new().write(true).open(at("old4".to_owned())).unwrap();
    longer.write_all_at(&noise(501, 20_000), 8192).unwrap();
    longer.sync_all().unwrap();
    drop((again, longer));
    fs::rename(at("old1".to_owned()), at("renamed".to_owned())).unwrap();
    sync("renamed".to_owned());
    fs::remove_file(at("old7".to_owned())).unwrap();
    sync(".".to_owned());
    for number in 0..40 {
        fs::write(at(format!("new{number}")), noise(1000 + number, 9000)).unwrap();
        sync(format!("new{number}"));
    }
    let image = {
        let copy = scratch.join("synced.img");
        run_ok(60, "cp", &["--sparse=always", text(&image), text(&copy)]);
        copy
    };
    mount.finish();
    let replayed = scratch.join("replayed.img");
    run_ok(60, "cp", &["--sparse=always", text(&image), text(&replayed)]);
    let mount = KernelMount::new(&replayed, "noatime");
    let all = below(mount.path());
    mount.finish();
    (image, all)
}

/// Each lost leaf of the log costs its own inodes, and each item of the last commit only itself.
#[test]
fn a_damaged_log_gives_the_rest() {
    const TEST: &str = "damaged_log";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let (image, all) = synced(&scratch);
    assert_eq!(all.len(), 79);
    let base = load(&image);
    let without = restored(&[Arc::new(load(&image))]);
    let (sink, summary, _) = laid_over(Arc::new(load(&image)));
    assert!(sink.contents == all && summary.complete, "{summary:?}");
    assert!(sink.paths.contains_key(&b"renamed"[..]) && !sink.paths.contains_key(&b"old7"[..]));
    let mut leaves = Vec::new();
    let editor = Editor::of_copy(&base).0;
    editor.each_leaf_below(editor.log_of(TreeId::FS).unwrap(), &mut |leaf| {
        let of_files: BTreeSet<u64> = leaf.items().map(|(key, _)| key.objectid).collect();
        leaves.push((leaf.at(), of_files));
        false
    });
    assert!(leaves.len() > 3, "{leaves:?}");
    for (at, inodes) in leaves {
        let (editor, copy) = Editor::of_copy(&base);
        editor.write_raw(at, &[0; 4096]);
        assert!(overlay::with_log_replayed(vec![copy.clone()]).is_err());
        let (sink, summary, cautions) = laid_over(copy);
        let saved = sink.contents.intersection(&all).count();
        assert!(saved + inodes.len() >= all.len(), "{at}: {saved} of {}, {inodes:?}", all.len());
        assert!(
            without
                .paths
                .keys()
                .filter(|path| *path != b"old1")
                .filter(|path| *path != b"old7")
                .all(|path| { sink.paths.contains_key(path) })
        );
        assert!(!summary.complete && summary.lost_blocks > 0, "{summary:?}");
        assert!(cautions.iter().any(|caution| caution.contains("a block of the log of subvolume 5")), "{cautions:?}");
    }
    // An inode of the last commit has lost its item.
    let (editor, copy) = Editor::of_copy(&base);
    editor.remove(TreeId::FS, |item| item.is(KeyType::INODE_ITEM) && item.key().objectid == 257 + 20);
    let (sink, summary, _) = laid_over(copy);
    let saved = sink.contents.intersection(&all).count();
    assert!(saved + 1 >= all.len() && sink.paths.len() == all.len() && !summary.complete, "{saved}: {summary:?}");
    // Nothing of the log is left.
    let (editor, copy) = Editor::of_copy(&base);
    editor.write_raw(editor.root(TreeId::TREE_LOG), &[0; 4096]);
    let (sink, summary, cautions) = laid_over(copy);
    assert!(sink.paths == without.paths && !summary.complete, "{summary:?}");
    assert!(cautions.iter().any(|caution| caution.contains("the list of the logs")), "{cautions:?}");
}
