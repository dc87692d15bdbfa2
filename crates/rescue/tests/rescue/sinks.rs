//! A directory, a tar stream and a new image hold what the kernel shows; hostile names stay inside.

use crate::opened::plain;
use crate::saved::everything;
use crate::{file, made_by_kernel};
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::{Caller, Env, Filesystem, Options};
use butterfs_ondisk::{KeyType, TreeId};
use butterfs_rescue::Wreck;
use butterfs_rescue::restore::{ROOT_DIRECTORY, Restorer, Selection, Summary};
use butterfs_rescue::roots::Roots;
use butterfs_rescue::sink::{Directory, Image, Sink, Tar};
use butterfs_testkit::editor::Editor;
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::kernel::{KernelMount, check_all, run_ok};
use butterfs_testkit::operation::Kind;
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use std::fs;
use std::sync::Arc;

fn restore(wreck: &Wreck, sink: &mut dyn Sink) -> Summary {
    let roots = Roots::assemble(wreck);
    let mut tell = |_: butterfs_rescue::restore::Event<'_>| ();
    let restorer = Restorer::new(wreck, &roots, everything(), Selection::default(), sink, &mut tell);
    restorer.run(TreeId::FS, ROOT_DIRECTORY).unwrap()
}

/// Compares restored files: sizes and links of directories belong to the filesystem, and so do times of changes.
fn compare(expected: &Fingerprint, actual: &Fingerprint, atime: bool) {
    let normal = |print: &Fingerprint| {
        let mut print = print.clone();
        // Properties are for btrfs alone.
        print.entries.values_mut().for_each(|entry| entry.xattrs.retain(|name, _| !name.starts_with(b"btrfs.")));
        for entry in print.entries.values_mut().filter(|entry| entry.kind == Kind::Folder) {
            (entry.size, entry.links) = (0, 1);
        }
        print
    };
    let found = differences(&normal(expected), &normal(actual), Compare { atime, ..Compare::MODEL });
    assert_eq!(found, [""; 0]);
}

#[test]
fn each_sink_holds_what_the_kernel_shows() {
    const TEST: &str = "each_sink";
    if !requirement::kernel_btrfs(TEST) || !requirement::programs(TEST, &["tar"]) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let (image, _) = made_by_kernel(&scratch);
    let mount = KernelMount::new(&image, "ro,noatime");
    let expected = Fingerprint::of_tree(mount.path());
    mount.finish();
    let before = fs::read(&image).unwrap();
    let wreck = plain(&[file(&image)]).unwrap();
    let folder = scratch.folder("folder");
    restore(&wreck, &mut Directory::open(&folder, false).unwrap());
    compare(&expected, &Fingerprint::of_tree(&folder), false);
    // Again: nothing is overwritten unless it is asked for.
    fs::write(folder.join("round0/zlib"), "mine").unwrap();
    let again = restore(&wreck, &mut Directory::open(&folder, false).unwrap());
    assert!(again.in_the_way == 1 && again.kept > 300 && !again.complete, "{again:?}");
    assert_eq!(fs::read(folder.join("round0/zlib")).unwrap(), b"mine");
    restore(&wreck, &mut Directory::open(&folder, true).unwrap());
    compare(&expected, &Fingerprint::of_tree(&folder), false);
    // The stream, as GNU tar reads it.
    let stream = scratch.join("stream.tar");
    restore(&wreck, &mut Tar::new(fs::File::create(&stream).unwrap()));
    let unpacked = scratch.folder("unpacked");
    let (from, to) = (stream.to_str().unwrap(), unpacked.to_str().unwrap());
    run_ok(60, "tar", &["--xattrs", "--xattrs-include=*", "--same-owner", "-xpf", from, "-C", to]);
    compare(&expected, &Fingerprint::of_tree(&unpacked), false);
    // A new filesystem, as the kernel shows it.
    let new = scratch.join("new.img");
    restore(&wreck, &mut Image::create(&new, 512 << 20).unwrap());
    check_all(&new);
    let mount = KernelMount::new(&new, "ro,noatime");
    compare(&expected, &Fingerprint::of_tree(mount.path()), true);
    mount.finish();
    assert!(fs::read(&image).unwrap() == before, "nothing is written to the source");
}

/// Names that lead elsewhere, in directory entries and references, stay in the target; nothing outside is made or
/// changed.
#[test]
fn hostile_names_stay_inside() {
    let scratch = Scratch::new("hostile_names");
    let device = Arc::new(MemoryDevice::new(256 << 20));
    let devices: Vec<Arc<dyn BlockDevice>> = vec![device.clone()];
    butterfs_fs::mkfs::mkfs(&devices, &Default::default(), &Env::system()).unwrap();
    let filesystem = Filesystem::open(devices.clone(), Options::default(), Env::system()).unwrap();
    let (root, caller) = (filesystem.root(), Caller { privileged: true, ..Caller::default() });
    // Of the same lengths as the names that take their places.
    for name in ["XX-XX-outside", "XX", "X"] {
        let made = filesystem.create(&caller, root, name.as_bytes(), 0o644).unwrap();
        filesystem.write(made.id, 0, b"hostile", false).unwrap();
    }
    filesystem.symlink(&caller, root, b"link", scratch.path().as_os_str().as_encoded_bytes()).unwrap();
    let inside = filesystem.mkdir(&caller, root, b"LINK", 0o755).unwrap();
    let made = filesystem.create(&caller, inside.id, b"beyond", 0o644).unwrap();
    filesystem.write(made.id, 0, b"hostile", false).unwrap();
    filesystem.shutdown().unwrap();
    drop(filesystem);
    let editor = Editor::open(devices.clone());
    // `../../outside` and the directory itself; and a directory with the name of a symbolic link.
    for (old, new) in [("XX-XX-outside", "../../outside"), ("XX", ".."), ("X", "."), ("LINK", "link")] {
        rename(&editor, old.as_bytes(), new.as_bytes());
    }
    let target = scratch.folder("deep/target");
    let wreck = plain(&devices).unwrap();
    let summary = restore(&wreck, &mut Directory::open(&target, false).unwrap());
    assert!(!scratch.join("outside").exists() && !scratch.join("beyond").exists(), "{summary:?}");
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 1);
    assert_eq!(fs::read_dir(scratch.join("deep")).unwrap().count(), 1);
    let contents = fs::read_dir(&target).unwrap().flatten().filter(|entry| entry.metadata().unwrap().is_file());
    assert_eq!(contents.count(), 3, "each has a name of its own");
    assert!(summary.renamed == 3 && !summary.complete, "{summary:?}");
    // A stream that is unpacked by a program that follows links leads nowhere else either.
    let mut stream = Vec::new();
    restore(&wreck, &mut Tar::new(&mut stream));
    let mut paths: Vec<Vec<u8>> = Vec::new();
    for entry in tar::Archive::new(&stream[..]).entries().unwrap() {
        let path = entry.unwrap().path_bytes().into_owned();
        paths.push(path.strip_suffix(b"/").unwrap_or(&path).to_vec());
    }
    paths.retain(|path| path != b".");
    let links = paths.iter().filter(|path| **path == b"link").count();
    assert!(links <= 1 && !paths.contains(&b"link/beyond".to_vec()), "{paths:?}");
    let unique: std::collections::BTreeSet<_> = paths.iter().collect();
    assert!(unique.len() == paths.len() && paths.len() >= 4, "{paths:?}");
}

/// Gives entries and references another name of the same length.
fn rename(editor: &Editor, old: &[u8], new: &[u8]) {
    assert_eq!(old.len(), new.len());
    let kinds = [KeyType::DIR_ITEM, KeyType::DIR_INDEX, KeyType::INODE_REF];
    for at in editor.blocks(TreeId::FS) {
        let mut node = editor.node(at);
        let mut changed = false;
        for slot in 0..if node.is_leaf() { node.nritems() } else { 0 } {
            let is_name = kinds.contains(&node.key(slot).kind) && node.item(slot).ends_with(old);
            // The name is the whole rest behind the head.
            let head = if node.key(slot).kind == KeyType::INODE_REF { 10 } else { 30 };
            if is_name && node.item_len(slot) == head + old.len() {
                node.item_mut(slot)[head..].copy_from_slice(new);
                changed = true;
            }
        }
        if changed {
            editor.stamp(at, node.bytes().to_vec());
        }
    }
}
