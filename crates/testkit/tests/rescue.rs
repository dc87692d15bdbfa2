//! Rescue mounts and older commits, beside the kernel: the same damage, the same options, the same files; nothing
//! written.

use butterfs_device::{BlockDevice, FileDevice, FileOptions};
use butterfs_fs::{Commit, Env, Filesystem, Options, Rescue};
use butterfs_ondisk::{Logical, TreeId};
use butterfs_testkit::editor::Editor;
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::kernel::{KernelMount, mkfs};
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Content of a file that is found on the device.
const MARK: &[u8; 17] = b"to be found there";

fn writable(image: &Path) -> Arc<dyn BlockDevice> {
    Arc::new(FileDevice::open(image, &FileOptions::read_write()).unwrap())
}

/// Opens an image read-only with these words of `rescue=`; "" for none.
fn open(image: &Path, words: &str) -> butterfs_fs::Result<Filesystem> {
    let mut rescue = Rescue::default();
    for word in words.split(':').filter(|word| !["", "nologreplay"].contains(word)) {
        rescue.apply(word).expect("a word of it");
    }
    open_as(image, rescue)
}

fn open_as(image: &Path, rescue: Rescue) -> butterfs_fs::Result<Filesystem> {
    let device = FileDevice::open(image, &FileOptions::read_only()).unwrap();
    let options = Options { read_only: true, no_log_replay: rescue.is_any(), rescue, ..Options::default() };
    Filesystem::open(vec![Arc::new(device)], options, Env::system())
}

/// A filesystem with several commits, as the kernel leaves it, and what it shows of the last two: with and without
/// `last`.
fn made_by_kernel(scratch: &Scratch) -> (PathBuf, Fingerprint) {
    let image = scratch.sparse_file("made.img", 160 << 20);
    mkfs(&image, &["-m", "dup", "-d", "single"]);
    let mount = KernelMount::new(&image, "noatime");
    let at = mount.path();
    fs::create_dir_all(at.join("folder/deeper")).unwrap();
    for number in 0..200 {
        fs::write(at.join(format!("folder/{number}")), vec![number as u8; number * 50]).unwrap();
    }
    fs::write(at.join("folder/deeper/large"), MARK.repeat(10_000)).unwrap();
    std::os::unix::fs::symlink("folder", at.join("link")).unwrap();
    sync(at);
    fs::write(at.join("first"), "first").unwrap();
    sync(at);
    let earlier = Fingerprint::of_tree(at);
    fs::write(at.join("last"), "last").unwrap();
    mount.finish();
    (image, earlier)
}

fn sync(at: &Path) {
    butterfs_testkit::kernel::run_ok(20, "btrfs", &["filesystem", "sync", at.to_str().unwrap()]);
}

/// When a file was written last.
fn written(image: &Path) -> std::time::SystemTime {
    fs::metadata(image).unwrap().modified().unwrap()
}

type Damage = fn(&Editor);

fn spoil_root(editor: &Editor, tree: TreeId) {
    editor.write_raw(editor.root(tree), &vec![0x5a; editor.sb.nodesize.get() as usize]);
}

/// Spoils the checksum of the root of a tree, and nothing else.
fn spoil_checksum(editor: &Editor, tree: TreeId) {
    let at = editor.root(tree);
    let mut bytes = editor.node(at).bytes().to_vec();
    bytes[0] ^= 1;
    editor.write_raw(at, &bytes);
}

/// Damage, the word that helps against it, and whether all files are intact without any.
const DAMAGES: [(&str, Damage, &str); 9] = [
    ("none", |_| {}, "nologreplay"),
    ("extent tree", |editor| spoil_root(editor, TreeId::EXTENT), "ignorebadroots"),
    ("checksum tree", |editor| spoil_root(editor, TreeId::CSUM), "ignorebadroots"),
    ("device tree", |editor| spoil_root(editor, TreeId::DEV), "ignorebadroots"),
    ("free space tree", |editor| spoil_root(editor, TreeId::FREE_SPACE), "ignorebadroots"),
    ("a checksum", |editor| spoil_checksum(editor, TreeId::FS), "ignoremetacsums"),
    ("a checksum of data", spoil_data_checksum, "ignoredatacsums"),
    (
        "superblock flags",
        |editor| editor.superblock(|sb| sb.flags = (sb.flags.get() | 1 << 39).into()),
        "ignoresuperflags",
    ),
    ("root tree", |editor| spoil_root(editor, TreeId::ROOT), "usebackuproot"),
];

/// Spoils the stored checksums of all data.
fn spoil_data_checksum(editor: &Editor) {
    use butterfs_ondisk::KeyType;
    let leaves: Vec<Logical> = editor.blocks(TreeId::CSUM);
    for at in leaves {
        let node = editor.node(at);
        let mut bytes = node.bytes().to_vec();
        let mut changed = false;
        for (key, data) in node.items() {
            assert_eq!(key.kind, KeyType::EXTENT_CSUM);
            let offset = data.as_ptr() as usize - node.bytes().as_ptr() as usize;
            bytes[offset..offset + data.len()].iter_mut().for_each(|byte| *byte ^= 0xff);
            changed = true;
        }
        if changed {
            editor.stamp(at, bytes);
        }
    }
}

#[test]
fn rescue_mounts_are_as_the_kernel_s() {
    const TEST: &str = "rescue_mounts";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let (made, earlier) = made_by_kernel(&scratch);
    let whole = Fingerprint::of_library(&open(&made, "").unwrap()).unwrap();
    for (name, damage, word) in DAMAGES {
        let image = scratch.join("damaged.img");
        fs::copy(&made, &image).unwrap();
        damage(&Editor::open(vec![writable(&image)]));
        let before = written(&image);
        for words in ["", word, "all"] {
            let shown = open(&image, words).and_then(|opened| {
                let print = Fingerprint::of_library(&opened);
                print.map_err(butterfs_fs::Error::corrupt)
            });
            assert_eq!(written(&image), before, "{name}, {words}: nothing is written");
            let kernel = kernel_shows(&image, words);
            // A free space tree is not needed for reading, whatever is asked for.
            let more = ["free space tree"].contains(&name) && words.is_empty();
            let (ours, theirs) = (shown.as_ref().err(), kernel.as_ref().err());
            assert!(
                ours.is_none() == theirs.is_none() || more,
                "{name}, '{words}': we {ours:?}, the kernel {theirs:?}"
            );
            let (Ok(shown), Ok(kernel)) = (shown, kernel) else { continue };
            assert_eq!(differences(&kernel, &shown, Compare::ALL), [""; 0], "{name}, '{words}'");
            let expected = if word == "usebackuproot" { &earlier } else { &whole };
            assert_eq!(differences(expected, &shown, Compare { atime: false, ..Compare::ALL }), [""; 0], "{name}");
        }
        let helped = open(&image, word).map(drop);
        helped.unwrap_or_else(|error| panic!("{name}: '{word}' helps: {error}"));
        // Nothing of it is for writing.
        let device = writable(&image);
        let rescue = Rescue { ignore_data_checksums: true, ..Rescue::default() };
        let refused = Filesystem::open(vec![device], Options { rescue, ..Options::default() }, Env::system());
        let sentence = refused.err().expect("it is refused").to_string();
        assert!(sentence.contains("only possible with ro") || name == "root tree", "{name}: {sentence}");
    }
}

/// The kernel's fingerprint with these options. It shows nothing where files cannot be read.
fn kernel_shows(image: &Path, words: &str) -> Result<Fingerprint, String> {
    let options = if words.is_empty() { "ro".to_owned() } else { format!("ro,rescue={words}") };
    let mount = KernelMount::try_new(image, &options)?;
    let readable = fs::read(mount.path().join("folder/deeper/large")).map_err(|error| error.to_string());
    let shown = readable.map(|_| Fingerprint::of_tree(mount.path()));
    mount.finish();
    shown
}

#[test]
fn older_commits_are_shown() {
    const TEST: &str = "older_commits";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let (image, earlier) = made_by_kernel(&scratch);
    let before = fs::read(&image).unwrap();
    let superblock = open(&image, "").unwrap().superblock();
    let newest = superblock.generation.get();
    let shown = |commit| {
        let opened = open_as(&image, Rescue { commit, ..Rescue::default() })?;
        Fingerprint::of_library(&opened).map_err(butterfs_fs::Error::corrupt)
    };
    let whole = Fingerprint::of_library(&open(&image, "").unwrap()).unwrap();
    assert_eq!(differences(&whole, &shown(Commit::Generation(newest)).unwrap(), Compare::ALL), [""; 0]);
    // The one before is whole, because what it lost is not used again before the next commit.
    let previous = shown(Commit::Generation(newest - 1)).unwrap();
    let has = |print: &Fingerprint, name: &str| print.entries.contains_key(name.as_bytes());
    assert!(has(&whole, "last") && has(&previous, "first"));
    assert_eq!(differences(&earlier, &previous, Compare { atime: false, ..Compare::ALL }), [""; 0]);
    // Each slot is of some commit, and shows that or an error.
    for slot in 0..4 {
        let generation = superblock.super_roots[slot].tree_root_gen.get();
        let (by_slot, by_generation) = (shown(Commit::Slot(slot)), shown(Commit::Generation(generation)));
        assert_eq!(by_slot.is_ok(), by_generation.is_ok(), "slot {slot}, generation {generation}");
    }
    // The same by addresses: a root tree, and a subvolume's tree beside the commit that has it.
    let slot = superblock.super_roots.iter().find(|slot| slot.tree_root_gen.get() == newest - 1).expect("it is there");
    for at in [slot.tree_root, slot.fs_root] {
        let by_address = shown(Commit::Root(Logical(at.get()))).unwrap();
        assert_eq!(differences(&previous, &by_address, Compare::ALL), [""; 0], "{at}");
    }
    for (at, words) in [(superblock.chunk_root.get(), "only roots"), (4096, "no tree block")] {
        let refused = shown(Commit::Root(Logical(at))).unwrap_err().to_string();
        assert!(refused.contains(words), "{refused}");
    }
    let unknown = shown(Commit::Generation(newest + 7)).unwrap_err().to_string();
    assert!(unknown.contains("does not remember") && unknown.contains(&newest.to_string()), "{unknown}");
    assert!(fs::read(&image).unwrap() == before, "nothing is written");
}

/// The kernel writes such a filesystem on an ordinary device; what it leaves there is read, and never written.
#[test]
fn zoned_filesystems_are_read_and_not_written() {
    const TEST: &str = "zoned";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    if !butterfs_testkit::kernel::can_make("zoned") {
        return requirement::skip(TEST, "mkfs.btrfs makes no zoned filesystems");
    }
    let scratch = Scratch::new(TEST);
    let image = scratch.sparse_file("zoned.img", 4 << 30);
    mkfs(&image, &["-O", "zoned"]);
    let mount = match KernelMount::try_new(&image, "noatime") {
        Ok(mount) => mount,
        Err(why) => return requirement::skip(TEST, &format!("the kernel mounts no zoned filesystems: {why}")),
    };
    let at = mount.path();
    fs::create_dir(at.join("folder")).unwrap();
    for number in 0..100 {
        fs::write(at.join(format!("folder/{number}")), vec![number as u8; number * 500]).unwrap();
    }
    let snapshot = [at.to_str().unwrap().to_owned(), at.join("snapshot").to_str().unwrap().to_owned()];
    butterfs_testkit::kernel::run_ok(20, "btrfs", &["subvolume", "snapshot", &snapshot[0], &snapshot[1]]);
    fs::write(at.join("folder/50"), "changed").unwrap();
    let kernel = Fingerprint::of_tree(at);
    mount.finish();
    let ours = Fingerprint::of_library(&open(&image, "").unwrap()).unwrap();
    assert_eq!(differences(&kernel, &ours, Compare::ALL), [""; 0]);
    let refused = |image: &Path, options: Options| {
        let opened = Filesystem::open(vec![writable(image)], options, Env::system());
        opened.err().expect("it is refused").to_string()
    };
    let sentence = refused(&image, Options::default());
    assert!(sentence.contains("ZONED") && sentence.contains("only reading is possible"), "{sentence}");
    // As on a device with zones.
    let device = writable(&image);
    let mut superblock = vec![0; 4096];
    device.read_at(64 << 10, &mut superblock).unwrap();
    device.write_at(0, &superblock).unwrap();
    drop(device);
    let sentence = refused(&image, Options { read_only: true, ..Options::default() });
    assert!(sentence.contains("as a log in its first zones"), "{sentence}");
}
