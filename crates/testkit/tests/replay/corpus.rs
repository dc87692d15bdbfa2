//! The logs of the corpus, which Linux 6.18 wrote: our replay shows the trees that its own replay showed, and leaves a
//! filesystem that checks clean.

use super::expected::Json;
use butterfs_fs::{AccessTimes, Filesystem, Options};
use butterfs_testkit::engine::open;
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::kernel::{check_all, run_ok};
use butterfs_testkit::operation::Kind;
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::watchdog::Watchdog;
use std::collections::BTreeMap;
use std::path::Path;

/// The corpus, unpacked, and what is expected of each image.
fn corpus(test: &str, scratch: &Scratch) -> Option<BTreeMap<String, Json>> {
    if !requirement::programs(test, &["tar", "zstd"]) {
        return None;
    }
    let packed = requirement::shared_data(test, "corpus/kernel-dirty-logs.tar.zst")?;
    let text =
        std::fs::read_to_string(packed.with_file_name("kernel-dirty-logs.json")).expect("it lies beside the images");
    let (packed, folder) = (packed.to_string_lossy().into_owned(), scratch.path().to_string_lossy().into_owned());
    run_ok(120, "tar", &["-S", "--zstd", "-xf", &packed, "-C", &folder]);
    Some(Json::parse(&text).object().clone())
}

#[test]
fn kernel_logs_bring_back_what_the_kernel_brings_back() {
    const TEST: &str = "kernel_logs_bring_back_what_the_kernel_brings_back";
    let watchdog = Watchdog::new(TEST, 300);
    let scratch = Scratch::new("corpus");
    let Some(images) = corpus(TEST, &scratch) else { return };
    assert_eq!(images.len(), 34);
    let mut wrong = Vec::new();
    for (name, expected) in &images {
        watchdog.note(name);
        wrong.extend(replay(&scratch.join(name), expected).into_iter().map(|what| format!("{name}: {what}")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Replays one image and says what is not as expected.
fn replay(image: &Path, expected: &Json) -> Vec<String> {
    let filesystem = open(image, Options::default());
    assert_eq!(filesystem.superblock().log_root.get(), 0, "the log is gone");
    let print = Fingerprint::of_library(&filesystem).unwrap_or_else(|error| panic!("{}: {error}", image.display()));
    let mut wrong = match &expected.object()["tree"] {
        Json::Object(tree) => compare(&filesystem, &print, tree),
        _ => Vec::new(),
    };
    let entries = format!("{}", print.entries.len());
    if expected.object()["entries"] != Json::Word(entries.clone()) {
        wrong.push(format!("{entries} entries, expected {:?}", expected.object()["entries"]));
    }
    filesystem.shutdown().unwrap_or_else(|error| panic!("{}: {error}", image.display()));
    wrong
}

fn compare(filesystem: &Filesystem, print: &Fingerprint, tree: &BTreeMap<String, Json>) -> Vec<String> {
    let mut wrong = Vec::new();
    for (path, expected) in tree {
        let path = if path == "." { "" } else { path };
        let actual = print.entries.contains_key(path.as_bytes()).then(|| described(filesystem, print, path));
        let expected = expected.texts();
        if actual.as_ref() != Some(&expected) {
            wrong.push(format!("/{path}: {actual:?}, expected {expected:?}"));
        }
    }
    wrong
}

/// One path in the corpus's own notation.
fn described(filesystem: &Filesystem, print: &Fingerprint, path: &str) -> Vec<String> {
    let entry = &print.entries[path.as_bytes()];
    let kind = match entry.kind {
        Kind::File => 0o100_000,
        Kind::Folder => 0o040_000,
        Kind::Symlink => 0o120_000,
        Kind::Fifo => 0o010_000,
        Kind::CharDevice => 0o020_000,
        Kind::BlockDevice => 0o060_000,
        Kind::Socket => 0o140_000,
    };
    let links = if entry.kind == Kind::Folder { "None".to_owned() } else { entry.links.to_string() };
    let mtime = entry.mtime.expect("the library knows times");
    let mut all = vec![
        format!("{:#o}", kind | entry.mode),
        entry.uid.to_string(),
        entry.gid.to_string(),
        links,
        (i128::from(mtime.sec) * 1_000_000_000 + i128::from(mtime.nsec)).to_string(),
    ];
    match entry.kind {
        Kind::File => all.extend([entry.size.to_string(), content(filesystem, path)]),
        Kind::Symlink => all.push(String::from_utf8_lossy(entry.target.as_deref().unwrap_or_default()).into_owned()),
        Kind::CharDevice | Kind::BlockDevice => {
            all.push(rustix::fs::makedev(entry.device.0, entry.device.1).to_string());
        }
        _ => {}
    }
    let xattr =
        |(name, value): (&Vec<u8>, &Vec<u8>)| format!("('{}', b'{}')", name.escape_ascii(), value.escape_ascii());
    all.push(format!("[{}]", entry.xattrs.iter().map(xattr).collect::<Vec<_>>().join(", ")));
    all
}

fn content(filesystem: &Filesystem, path: &str) -> String {
    let mut at = filesystem.root();
    let mut size = 0;
    for name in path.split('/') {
        let attr = filesystem.lookup(at, name.as_bytes()).expect("it was listed");
        (at, size) = (attr.id, attr.size);
    }
    let mut hash = blake2b_simd::Params::new().hash_length(16).to_state();
    let (mut offset, mut buffer) = (0, Vec::new());
    while offset < size {
        buffer.clear();
        offset += filesystem.read(at, offset, 1 << 20, &mut buffer).expect("good data") as u64;
        hash.update(&buffer);
    }
    let mut digest = [0; 16];
    digest.copy_from_slice(hash.finalize().as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The same against the kernel's own replay of a copy of each image, in every respect that can be seen, and checked.
#[test]
fn kernel_logs_beside_the_kernel() {
    const TEST: &str = "kernel_logs_beside_the_kernel";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let watchdog = Watchdog::new(TEST, 600);
    let scratch = Scratch::new("corpus-kernel");
    let Some(images) = corpus(TEST, &scratch) else { return };
    let mut wrong = Vec::new();
    for name in images.keys() {
        watchdog.note(name);
        let (ours, theirs) = (scratch.join(name), scratch.join("copy"));
        run_ok(60, "cp", &["--sparse=always", &ours.to_string_lossy(), &theirs.to_string_lossy()]);
        let expected = super::kernels_replay(&theirs);
        let filesystem = open(&ours, Options { access_times: AccessTimes::Never, ..Options::default() });
        let shown = Fingerprint::of_library(&filesystem).unwrap_or_else(|error| panic!("{name}: {error}"));
        filesystem.shutdown().unwrap_or_else(|error| panic!("{name}: {error}"));
        let found = differences(&expected, &shown, Compare::ALL);
        wrong.extend(found.into_iter().map(|what| format!("{name}: {what}")));
        check_all(&ours);
        std::fs::remove_file(&ours).expect("our own file");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
