//! Files of which all items are lost: their content follows from the extent tree, and nothing calls it complete.

use crate::opened::{plain, scanned};
use crate::saved::everything;
use crate::{content, noise};
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::file::codec::Encoder;
use butterfs_fs::options::{Algorithm, Method};
use butterfs_ondisk::{Key, KeyType, Logical, TreeId};
use butterfs_rescue::Wreck;
use butterfs_rescue::data::Grade;
use butterfs_rescue::restore::{Finding, ROOT_DIRECTORY, Restorer, Selection, Summary};
use butterfs_rescue::roots::Roots;
use butterfs_rescue::sink::{Attributes, Incoming, Made, Path as SinkPath, Sink};
use butterfs_testkit::editor::Editor;
use butterfs_testkit::kernel::{KernelMount, mkfs, run_ok};
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::{Scratch, load};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

const SECTOR: usize = 4096;
const LEN: u64 = 192 << 20;

/// Contents of files by their paths.
pub type Files = BTreeMap<String, Vec<u8>>;

/// Takes files and keeps their contents.
#[derive(Default)]
pub struct Keeping {
    pub files: Files,
    modes: BTreeMap<String, u32>,
}

impl Sink for Keeping {
    fn directory(&mut self, _: &SinkPath, _: &Attributes) -> io::Result<()> {
        Ok(())
    }
    fn leave(&mut self, _: &SinkPath, _: &Attributes) -> io::Result<()> {
        Ok(())
    }
    fn file(&mut self, path: &SinkPath, attributes: &Attributes, incoming: Incoming<'_>) -> io::Result<Made> {
        let (mut bytes, mut done) = (vec![0; incoming.size as usize], 0);
        (incoming.fill)(&mut |offset, part| {
            assert!(offset >= done, "bytes come in order");
            done = offset + part.len() as u64;
            let is_named = |range: &std::ops::Range<u64>| range.start <= offset && done <= range.end;
            assert!(incoming.ranges.iter().any(is_named), "bytes lie in a range");
            bytes[offset as usize..done as usize].copy_from_slice(part);
            Ok(())
        })?;
        let path = String::from_utf8(path.join(&b'/')).unwrap();
        self.modes.insert(path.clone(), attributes.mode);
        self.files.insert(path, bytes);
        Ok(Made::Yes)
    }
    fn symlink(&mut self, _: &SinkPath, _: &Attributes, _: &[u8]) -> io::Result<Made> {
        Ok(Made::Yes)
    }
    fn node(&mut self, _: &SinkPath, _: &Attributes) -> io::Result<Made> {
        Ok(Made::Yes)
    }
    fn link(&mut self, _: &SinkPath, _: &SinkPath) -> io::Result<Made> {
        Ok(Made::Yes)
    }
    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn restore_of(wreck: &Wreck) -> (Keeping, Summary) {
    let (mut sink, roots) = (Keeping::default(), Roots::assemble(wreck));
    let mut tell = |_: butterfs_rescue::restore::Event<'_>| ();
    let restorer = Restorer::new(wreck, &roots, everything(), Selection::default(), &mut sink, &mut tell);
    let summary = restorer.run(TreeId::FS, ROOT_DIRECTORY).unwrap();
    (sink, summary)
}

fn restore(device: &Arc<MemoryDevice>) -> (Keeping, Summary) {
    restore_of(&plain(&[device.clone() as Arc<dyn BlockDevice>]).unwrap())
}

/// All regular files below a folder, and the inode of each.
fn files_below(top: &Path) -> (Files, BTreeMap<String, u64>) {
    let (mut files, mut inodes, mut folders) = (Files::new(), BTreeMap::new(), vec![top.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if entry.file_type().unwrap().is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(top).unwrap().to_str().unwrap().to_owned();
                inodes.insert(name.clone(), entry.metadata().unwrap().ino());
                files.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    (files, inodes)
}

/// Leaves of a tree that have items of inodes and no entries of directories.
fn leaves_of_files(editor: &Editor, tree: TreeId) -> Vec<Logical> {
    let mut found = Vec::new();
    editor.each_leaf(tree, &mut |leaf| {
        let is_entry = |kind| [KeyType::DIR_ITEM, KeyType::DIR_INDEX, KeyType::ROOT_ITEM].contains(&kind);
        if leaf.items().all(|(key, _)| key.objectid > ROOT_DIRECTORY && !is_entry(key.kind)) {
            found.push(leaf.at());
        }
        false
    });
    found
}

/// The inodes that have their items in a leaf.
fn inodes_in(editor: &Editor, leaf: Logical) -> BTreeSet<u64> {
    let items = editor.node(leaf);
    items.items().filter(|(key, _)| key.kind == KeyType::INODE_ITEM).map(|(key, _)| key.objectid).collect()
}

/// Removes all leaves with files of a tree; the inodes whose item was in one.
fn lose(editor: &Editor, tree: TreeId) -> BTreeSet<u64> {
    let leaves = leaves_of_files(editor, tree);
    assert!(!leaves.is_empty());
    let lost = leaves.iter().flat_map(|leaf| inodes_in(editor, *leaf)).collect();
    leaves.iter().for_each(|leaf| editor.write_raw(*leaf, &[0; SECTOR]));
    lost
}

fn found<'a>(summary: &'a Summary, path: &str) -> &'a Finding {
    let found = summary.findings.iter().find(|finding| finding.path.trim_start_matches('/') == path);
    found.unwrap_or_else(|| panic!("{path} is not named"))
}

/// Whether what was restored begins as the file did, and has only zeros more.
fn is_same(right: &[u8], own: &[u8]) -> bool {
    let len = right.len().max(own.len());
    let padded = |bytes: &[u8]| [bytes, &vec![0; len - bytes.len()][..]].concat();
    padded(right) == padded(own)
}

fn sync(top: &Path) {
    run_ok(20, "btrfs", &["filesystem", "sync", top.to_str().unwrap()]);
}

fn write_at(path: &Path, offset: u64, bytes: &[u8]) {
    let file = fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(bytes, offset).unwrap();
    file.sync_all().unwrap();
}

fn packed_file(path: &Path, method: &str, bytes: &[u8]) {
    fs::write(path, "").unwrap();
    run_ok(10, "btrfs", &["property", "set", path.to_str().unwrap(), "compression", method]);
    fs::write(path, bytes).unwrap();
}

/// Files of all kinds. Names that begin with `plain` have their content in the order in which it was written.
fn fill(top: &Path) {
    for number in 0..40 {
        fs::write(top.join(format!("plain{number}")), noise(number, [20_480, 19_000, 5000][number % 3])).unwrap();
    }
    fs::write(top.join("inline"), noise(50, 100)).unwrap();
    fs::write(top.join("empty"), "").unwrap();
    for (number, method) in ["zlib", "lzo", "zstd"].iter().enumerate() {
        packed_file(&top.join(format!("{method}-long")), method, &content(60 + number, 300_000));
        packed_file(&top.join(format!("{method}-short")), method, &content(70 + number, 20_000));
        packed_file(&top.join(format!("{method}-changed")), method, &content(80 + number, 200_000));
        packed_file(&top.join(format!("{method}-noise")), method, &noise(90 + number, 30_000));
    }
    fs::write(top.join("changed"), noise(100, 200_000)).unwrap();
    fs::write(top.join("grown"), noise(101, 50_000)).unwrap();
    sync(top);
    for method in ["zlib", "lzo", "zstd"] {
        write_at(&top.join(format!("{method}-changed")), 8192, &noise(110, 4096));
    }
    write_at(&top.join("changed"), 40_960, &noise(111, 20_480));
    write_at(&top.join("grown"), 50_000, &noise(112, 70_000));
    sync(top);
    write_at(&top.join("changed"), 45_056, &noise(113, 4096));
    write_at(&top.join("grown"), 2 << 20, &noise(114, 10_000));
    fs::write(top.join("cut"), noise(115, 100_000)).unwrap();
    sync(top);
    fs::File::options().write(true).open(top.join("cut")).unwrap().set_len(30_000).unwrap();
    let text = top.to_str().unwrap();
    run_ok(10, "fallocate", &["-l", "65536", &format!("{text}/allocated")]);
    run_ok(10, "fallocate", &["-l", "65536", &format!("{text}/half")]);
    write_at(&top.join("half"), 16_384, &noise(116, 8192));
    fs::write(top.join("unsummed"), "").unwrap();
    run_ok(10, "chattr", &["+C", &format!("{text}/unsummed")]);
    fs::write(top.join("unsummed"), noise(117, 40_000)).unwrap();
    run_ok(10, "cp", &["--reflink=always", &format!("{text}/plain0"), &format!("{text}/cloned")]);
    // Files that are streams themselves.
    let stream = |algorithm: Algorithm, bytes: &[u8]| {
        Encoder::default().compress(Method::new(algorithm, 3), bytes, SECTOR as u32).unwrap()
    };
    let text: Vec<u8> = (0..60_000).flat_map(|number: u32| (number * number).to_string().into_bytes()).collect();
    let object = [&b"blob 100000\0"[..], &text[..100_000]].concat();
    fs::write(top.join("object"), stream(Algorithm::Zlib, &object)).unwrap();
    let mut frames = stream(Algorithm::Zstd, &text[..100_000]);
    frames.extend_from_slice(&frames.clone());
    fs::write(top.join("frames"), frames).unwrap();
    sync(top);
}

/// Every kind of file of which all items are lost has its content, and is named; a name without extents stays a name.
#[test]
fn content_follows_from_the_extent_tree() {
    const TEST: &str = "content_follows";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let image = scratch.sparse_file("made.img", LEN);
    mkfs(&image, &["-m", "dup", "-d", "single", "-n", "4096"]);
    let mount = KernelMount::new(&image, "noatime");
    fs::create_dir(mount.path().join("folder")).unwrap();
    fill(&mount.path().join("folder"));
    let (truth, inodes) = files_below(mount.path());
    mount.finish();
    let (editor, device) = Editor::of_copy(&load(&image));
    assert!(restore(&device).1.complete);
    no_frame_of_the_kernel_has_a_checksum(&editor);
    let lost = lose(&editor, TreeId::FS);
    let (sink, summary) = restore(&device);
    assert!(!summary.complete && summary.orphans == 0, "{summary:?}");
    let is_lost = |path: &String| lost.contains(&inodes[path]);
    let (mut exact, mut names) = (0, 0);
    for (path, right) in truth.iter().filter(|(path, _)| is_lost(path)) {
        let (finding, name) = (found(&summary, path), path.trim_start_matches("folder/"));
        let Some(own) = sink.files.get(path) else {
            assert!(["inline", "empty"].contains(&name) && finding.grade == Grade::Lost, "{finding:?}");
            names += 1;
            continue;
        };
        assert!([Grade::Doubtful, Grade::Partial].contains(&finding.grade) && finding.restored, "{finding:?}");
        assert!(finding.reasons.iter().any(|reason| reason.contains("list of extents is lost")), "{finding:?}");
        assert!(finding.reasons.iter().any(|reason| reason.contains("size, owner, mode and times")), "{finding:?}");
        assert_eq!(sink.modes[path], 0o100600);
        let is_unwritten = finding.reasons.iter().any(|reason| reason.contains("never wrote"));
        assert_eq!(is_unwritten, ["allocated", "unsummed"].contains(&name), "{finding:?}");
        match name {
            "cut" => assert!(own.len() >= right.len() && own[..right.len()] == right[..]),
            "half" => assert!(own.len() == 24_576 && is_same(right, own)),
            _ => {
                assert!(is_same(right, own), "{path}: {} bytes instead of {}", own.len(), right.len());
                assert_eq!(own.len(), right.len().next_multiple_of(SECTOR), "{path}");
            }
        }
        exact += 1;
    }
    println!("{exact} of {} files come back without their items, {names} are names", truth.len());
    assert!(exact > 40 && names == 2, "{exact}, {names}");
    for kind in ["zlib-long", "lzo-changed", "zstd-short", "changed", "grown", "half", "unsummed", "object", "frames"] {
        assert!(is_lost(&format!("folder/{kind}")), "{kind} is among them");
    }
    let whole = truth.iter().filter(|(path, _)| !is_lost(path));
    assert!(whole.into_iter().all(|(path, right)| sink.files[path] == *right), "the others are whole");
}

/// The descriptor of each Zstandard frame that lies in a packed extent.
fn no_frame_of_the_kernel_has_a_checksum(editor: &Editor) {
    let mut frames = 0;
    editor.each_leaf(TreeId::FS, &mut |leaf| {
        for (_, data) in
            leaf.items().filter(|(key, data)| key.kind == KeyType::EXTENT_DATA && data.len() == 53 && data[16] == 3)
        {
            let at = u64::from_le_bytes(data[21..29].try_into().unwrap());
            let stored = editor.node(Logical(at));
            assert_eq!(stored.bytes()[..4], [0x28, 0xb5, 0x2f, 0xfd]);
            assert_eq!(stored.bytes()[4] & 4, 0, "the kernel adds checksums: packed data looks as files do");
            frames += 1;
        }
        false
    });
    assert!(frames >= 4, "{frames}");
}

/// A file that has lost one of the leaves of its list: the gap is filled, and its length stays.
#[test]
fn a_part_of_a_list_follows_from_the_extent_tree() {
    const TEST: &str = "part_of_a_list";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let image = scratch.sparse_file("made.img", LEN);
    mkfs(&image, &["-m", "dup", "-d", "single", "-n", "4096"]);
    let mount = KernelMount::new(&image, "noatime");
    let path = mount.path().join("fragments");
    fs::write(&path, "").unwrap();
    for number in 0..150 {
        write_at(&path, number * 16_384, &noise(number as usize, 16_384));
    }
    for number in (0..150).step_by(3) {
        write_at(&path, number * 16_384 + 4096, &noise(500 + number as usize, 4096));
    }
    fs::File::options().write(true).open(&path).unwrap().set_len(150 * 16_384 - 1000).unwrap();
    let (truth, _) = files_below(mount.path());
    mount.finish();
    let base = load(&image);
    let (editor, _) = Editor::of_copy(&base);
    let is_list = |at: &Logical| editor.node(*at).items().all(|(key, _)| key.kind == KeyType::EXTENT_DATA);
    let lists: Vec<Logical> = leaves_of_files(&editor, TreeId::FS).into_iter().filter(is_list).collect();
    assert!(lists.len() > 3);
    for lost in lists {
        let (editor, device) = Editor::of_copy(&base);
        editor.write_raw(lost, &[0; SECTOR]);
        let (sink, summary) = restore(&device);
        assert_eq!(sink.files, truth, "{summary:?}");
        let finding = found(&summary, "fragments");
        assert!(finding.grade == Grade::Partial && !summary.complete, "{finding:?}");
        assert!(finding.reasons.iter().any(|reason| reason.contains("list of extents is lost")), "{finding:?}");
    }
}

/// With a scan an older version of the leaf counts first, and what it does not have follows from the extent tree.
#[test]
fn older_leaves_come_first() {
    const TEST: &str = "older_leaves_first";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let image = scratch.sparse_file("made.img", LEN);
    mkfs(&image, &["-m", "dup", "-d", "single", "-n", "4096"]);
    let mount = KernelMount::new(&image, "noatime");
    for number in 0..60 {
        fs::write(mount.path().join(format!("old{number}")), noise(number, 20_000)).unwrap();
    }
    sync(mount.path());
    for number in 0..60 {
        let old = mount.path().join(format!("old{number}"));
        fs::set_permissions(old, fs::Permissions::from_mode(0o640)).unwrap();
        fs::write(mount.path().join(format!("new{number}")), noise(100 + number, 20_000)).unwrap();
    }
    let (truth, _) = files_below(mount.path());
    mount.finish();
    let (editor, device) = Editor::of_copy(&load(&image));
    lose(&editor, TreeId::FS);
    let (sink, summary) = restore_of(&scanned(&[device as Arc<dyn BlockDevice>], &scratch).unwrap());
    assert_eq!(truth.keys().collect::<Vec<_>>(), sink.files.keys().collect::<Vec<_>>());
    for (path, right) in &truth {
        let own = &sink.files[path];
        assert!(is_same(right, own), "{path}: {} bytes, {:?}", own.len(), found(&summary, path));
    }
    let by_tree = truth.keys().filter(|path| sink.files[*path].len() == 20_480);
    let (old, new): (Vec<&String>, Vec<&String>) = by_tree.partition(|path| path.starts_with("old"));
    assert!(old.len() < 30 && new.len() > 40, "{} {}", old.len(), new.len());
    assert!(new.iter().chain(&old).all(|path| found(&summary, path).grade >= Grade::Doubtful));
}

/// A snapshot shares its leaves, whose extents are those of the subvolume that has written them.
#[test]
fn snapshots_have_the_extents_of_shared_leaves() {
    const TEST: &str = "extents_of_shared_leaves";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let image = scratch.sparse_file("made.img", LEN);
    mkfs(&image, &["-m", "dup", "-d", "single", "-n", "4096"]);
    let mount = KernelMount::new(&image, "noatime");
    let text = mount.path().to_str().unwrap().to_owned();
    run_ok(10, "btrfs", &["subvolume", "create", &format!("{text}/home")]);
    for number in 0..60 {
        fs::write(format!("{text}/home/file{number}"), noise(number, 20_000)).unwrap();
    }
    sync(mount.path());
    run_ok(20, "btrfs", &["subvolume", "snapshot", &format!("{text}/home"), &format!("{text}/taken")]);
    let (truth, _) = files_below(mount.path());
    mount.finish();
    let shared = load(&image);
    // All leaves of both are lost.
    let (editor, device) = Editor::of_copy(&shared);
    lose(&editor, TreeId(256));
    let (sink, summary) = restore(&device);
    assert_eq!(sink.files.len(), 120);
    assert!(truth.iter().all(|(path, right)| is_same(right, &sink.files[path])));
    assert!(!summary.complete && summary.doubtful + summary.partial > 80, "{summary:?}");
    // The subvolume has changed since: it has leaves of its own, and the snapshot alone has those that are lost.
    let mount = KernelMount::new(&image, "noatime");
    let text = mount.path().to_str().unwrap().to_owned();
    for number in 0..60 {
        write_at(Path::new(&format!("{text}/home/file{number}")), 0, &noise(200 + number, 4096));
    }
    sync(mount.path());
    let (truth, _) = files_below(mount.path());
    mount.finish();
    let (editor, device) = Editor::of_copy(&load(&image));
    lose(&editor, TreeId(257));
    let (sink, summary) = restore(&device);
    assert_eq!(sink.files.len(), 120, "{summary:?}");
    let of = |top: &'static str| truth.iter().filter(move |(path, _)| path.starts_with(top));
    assert!(of("home").all(|(path, right)| sink.files[path] == *right), "the subvolume is whole");
    for (path, right) in of("taken") {
        assert!(is_same(right, &sink.files[path]), "{path}");
        let is_whole = sink.files[path].len() == right.len();
        assert!(is_whole || found(&summary, path).grade >= Grade::Doubtful);
    }
    assert!(summary.doubtful + summary.partial > 40, "{summary:?}");
}

/// Files of which even the entries are lost come back by their numbers, and no other inode is made up.
#[test]
fn files_without_entries_go_to_lost_and_found() {
    let bed = crate::trust::Bed::new();
    let (sound, summary) = restore(&bed.device);
    assert!(summary.complete, "{summary:?}");
    let editor = bed.editor();
    let blocks = editor.blocks(TreeId(256));
    let leaves: Vec<Logical> = blocks.into_iter().filter(|at| editor.node(*at).is_leaf()).collect();
    assert!(leaves.len() > 5);
    leaves.iter().for_each(|leaf| editor.write_raw(*leaf, &[0; SECTOR]));
    let (sink, summary) = restore(&bed.device);
    let own: Vec<(&String, &Vec<u8>)> =
        sink.files.iter().filter(|(path, _)| path.starts_with("home/lost+found/inode-")).collect();
    let right: Vec<&Vec<u8>> =
        sound.files.iter().filter(|(path, _)| path.starts_with("home/")).map(|(_, bytes)| bytes).collect();
    assert_eq!((own.len(), right.len()), (60, 60), "{summary:?}");
    assert!(right.iter().all(|right| own.iter().any(|(_, own)| is_same(right, own))));
    assert!(own.iter().all(|(path, _)| found(&summary, path).grade >= Grade::Doubtful));
    assert!(!summary.complete && summary.orphans >= 60, "{summary:?}");
    let others = |files: &Files| -> Files {
        files
            .iter()
            .filter(|(path, _)| !path.starts_with("home/"))
            .map(|(p, bytes)| (p.clone(), bytes.clone()))
            .collect()
    };
    assert_eq!(others(&sink.files), others(&sound.files));
    // Without a lost leaf a reference to an inode that is not there makes no file.
    let bed = crate::trust::Bed::new();
    let editor = bed.editor();
    let is_of_last = |key: Key| key.objectid == 316;
    while let Some(position) = editor.try_find(TreeId(256), |item| is_of_last(item.key())) {
        editor.remove_at(position);
    }
    while let Some(position) = editor.try_find(TreeId(256), |item| {
        (item.is(KeyType::DIR_ITEM) || item.is(KeyType::DIR_INDEX)) && item.data().ends_with(b"inside59")
    }) {
        editor.remove_at(position);
    }
    let (sink, summary) = restore(&bed.device);
    assert!(summary.orphans == 0 && sink.files.len() == sound.files.len() - 1, "{summary:?}");
}

/// Wrong data and wrong checksums: a packed extent of which a sector is damaged is missing, and never shown as it is.
#[test]
fn a_damaged_packed_extent_is_not_shown_as_it_is() {
    const TEST: &str = "damaged_packed";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let image = scratch.sparse_file("made.img", LEN);
    mkfs(&image, &["-m", "dup", "-d", "single", "-n", "4096"]);
    let mount = KernelMount::new(&image, "noatime");
    let words: Vec<u8> = (0..90_000).flat_map(|number: u32| (number * 7919).to_string().into_bytes()).collect();
    for number in 0..30 {
        packed_file(&mount.path().join(format!("packed{number}")), "zstd", &words[number..300_000]);
    }
    let (truth, _) = files_below(mount.path());
    mount.finish();
    let (editor, device) = Editor::of_copy(&load(&image));
    // The last sector of the first extent of each file.
    editor.each_leaf(TreeId::FS, &mut |leaf| {
        for (_, data) in
            leaf.items().filter(|(key, data)| key.kind == KeyType::EXTENT_DATA && key.offset == 0 && data.len() == 53)
        {
            let number = |at: usize| u64::from_le_bytes(data[at..at + 8].try_into().unwrap());
            assert!(number(29) > 2 * SECTOR as u64);
            let at = Logical(number(21) + number(29) - SECTOR as u64);
            editor.write_raw(at, &[1; SECTOR]);
        }
        false
    });
    lose(&editor, TreeId::FS);
    let (sink, summary) = restore(&device);
    for (path, right) in &truth {
        let own = &sink.files[path];
        assert!(own[..128 << 10].iter().all(|byte| *byte == 0), "{path}");
        assert!(own[128 << 10..right.len()] == right[128 << 10..], "{path}");
        assert!(found(&summary, path).grade == Grade::Partial);
    }
}
