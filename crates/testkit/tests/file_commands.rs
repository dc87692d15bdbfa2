//! The commands about contents of files, on a mount and on an image: what they do the kernel reads, and `btrfs check`
//! finds nothing. What is about caches: a clone through the mount is seen at once, also where the target grew.

use butterfs_testkit::kernel::{KernelMount, check_all, run};
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::serve::{self, Served, binary};
use butterfs_testkit::watchdog::Watchdog;
use std::path::{Path, PathBuf};

/// Runs the command; its output, and whether it went well.
fn butterfs(arguments: &[&str]) -> (bool, String) {
    let done = run(60, binary(), arguments);
    (done.code == Some(0), done.output)
}

fn ok(arguments: &[&str]) -> String {
    let (fine, output) = butterfs(arguments);
    assert!(fine, "{arguments:?}: {output}");
    output
}

fn refused(arguments: &[&str], why: &str) {
    let (fine, output) = butterfs(arguments);
    assert!(!fine && output.contains(why), "{arguments:?}: {output}");
}

fn words(len: usize) -> Vec<u8> {
    (0..).flat_map(|line: u64| format!("{line} extents of a file\n").into_bytes()).take(len).collect()
}

fn noise(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    butterfs_testkit::rng::Rng::new(1).fill(&mut bytes);
    bytes
}

fn on_mount(at: &Path) -> Vec<(&'static str, Vec<u8>)> {
    let path = |name: &str| at.join(name).display().to_string();
    let (large, small) = (noise(3_000_000), words(900));
    std::fs::write(path("large"), &large).unwrap();
    std::fs::write(path("small"), &small).unwrap();
    std::fs::write(path("longer"), noise(3_500_000)).unwrap();
    // The kernel knows these sizes, and must learn new ones.
    std::fs::write(path("short"), b"short").unwrap();
    for target in ["new", "longer", "short"] {
        ok(&["reflink", "clone", &path("large"), &path(target)]);
        assert!(std::fs::read(path(target)).unwrap() == large, "{target}");
    }
    assert!(ok(&["filesystem", "extents", &path("new")]).contains("shared"));
    ok(&["reflink", "clone", &path("small"), &path("small-clone")]);
    ok(&["reflink", "range", "-s", "1m", "-t", "64k", "-l", "128k", &path("large"), &path("part")]);
    let mut part = vec![0; 65_536];
    part.extend_from_slice(&large[1 << 20..(1 << 20) + (128 << 10)]);
    assert!(std::fs::read(path("part")).unwrap() == part);
    refused(&["reflink", "range", "-s", "100", "-l", "4k", &path("large"), &path("part")], "whole sectors");
    run(10, "touch", &[&path("nocow")]);
    run(10, "chattr", &["+C", &path("nocow")]);
    refused(&["reflink", "clone", &path("large"), &path("nocow")], "checksums");

    std::fs::write(path("equal"), &large).unwrap();
    let said = ok(&["dedupe", &path("large"), &path("equal")]);
    assert!(said.contains("3000000 of 3000000 bytes are shared"), "{said}");
    assert!(ok(&["filesystem", "extents", &path("equal")]).contains("shared"));
    let said = ok(&["dedupe", &path("large"), &path("part")]);
    assert!(said.contains("0 of 196608 bytes are shared"), "{said}");

    let text = words(2_000_000);
    std::fs::create_dir(path("folder")).unwrap();
    for name in ["folder/one", "folder/two"] {
        std::fs::write(path(name), &text).unwrap();
    }
    ok(&["filesystem", "defragment", "-r", "-czstd", "-L", "9", "-f", &path("folder")]);
    assert!(ok(&["filesystem", "extents", &path("folder/two")]).contains("zstd"));

    ok(&["property", "set", &path("folder"), "compression", "lzo"]);
    assert_eq!(ok(&["property", "get", &path("folder"), "compression"]), "compression=lzo\n");
    std::fs::write(path("folder/three"), &text).unwrap();
    assert!(ok(&["filesystem", "extents", &path("folder/three")]).contains("lzo"));
    refused(&["property", "set", &path("folder"), "compression", "lz4"], "Invalid argument");
    ok(&["property", "set", "-t", "f", &path(""), "label", "by a mount"]);
    assert_eq!(ok(&["property", "get", "-t", "f", &path(""), "label"]), "label=by a mount\n");
    assert!(ok(&["property", "list", &path("folder")]).contains("compression"));
    vec![
        ("large", large.clone()),
        ("longer", large.clone()),
        ("short", large.clone()),
        ("equal", large),
        ("small-clone", small),
        ("part", part),
        ("folder/one", text.clone()),
        ("folder/three", text),
    ]
}

fn on_image(image: &Path) {
    let image = image.to_str().expect("a text path");
    let with = |words: &[&str]| {
        let (command, rest) = words.split_at(words.iter().position(|word| word.starts_with('/')).expect("a path"));
        ok(&[command, &["--image", image], rest].concat())
    };
    with(&["reflink", "range", "-l", "4k", "-t", "8k", "/large", "/part"]);
    assert!(with(&["filesystem", "extents", "/part"]).contains("shared"));
    assert!(with(&["dedupe", "/large", "/short"]).contains("3000000 of 3000000"));
    with(&["filesystem", "defragment", "-clzo", "/folder/one"]);
    assert!(with(&["filesystem", "extents", "/folder/one"]).contains("lzo"));
    with(&["property", "set", "/folder/one", "compression", "zstd"]);
    assert!(with(&["property", "get", "/folder/one"]).contains("compression=zstd"));
    with(&["property", "set", "/", "label", "by hand"]);
    assert!(with(&["property", "get", "/", "label"]).contains("label=by hand"));
}

#[test]
fn files_are_shared_deduped_and_defragmented() {
    const TEST: &str = "files_are_shared_deduped_and_defragmented";
    if !requirement::kernel_btrfs(TEST) || !requirement::fuse(TEST) {
        return;
    }
    let _watchdog = Watchdog::new(TEST, 120);
    let scratch = Scratch::new(TEST);
    let image: PathBuf = scratch.sparse_file("image", 512 << 20);
    serve::mkfs(&image, &[]);
    let served = Served::mount(&image, &scratch.folder("mnt"), "noatime");
    let mut files = on_mount(served.path());
    served.unmount();
    check_all(&image);
    on_image(&image);
    check_all(&image);
    let (large, part) = (files[0].1.clone(), &mut files[5].1);
    part[8192..12_288].copy_from_slice(&large[..4096]);
    let mount = KernelMount::new(&image, "ro");
    for (name, content) in &files {
        assert!(std::fs::read(mount.path().join(name)).unwrap() == *content, "{name}");
    }
    assert_eq!(mount.finish(), [""; 0]);
}

/// Options of a mount that is changed while it is in use.
#[test]
fn a_remount_changes_how_data_is_stored() {
    const TEST: &str = "a_remount_changes_how_data_is_stored";
    if !requirement::kernel_btrfs(TEST) || !requirement::fuse(TEST) {
        return;
    }
    let _watchdog = Watchdog::new(TEST, 60);
    let scratch = Scratch::new(TEST);
    let image: PathBuf = scratch.sparse_file("image", 256 << 20);
    serve::mkfs(&image, &[]);
    let served = Served::mount(&image, &scratch.folder("mnt"), "noatime");
    let at = served.path().display().to_string();
    let stored = |name: &str| {
        let path = served.path().join(name);
        std::fs::write(&path, words(300_000)).unwrap();
        ok(&["filesystem", "extents", &path.display().to_string()])
    };
    for (options, shown) in [("compress=lzo", "lzo"), ("compress-force=zstd:2", "zstd"), ("compress=zlib", "zlib")] {
        ok(&["mount", "-o", &format!("remount,{options}"), &image.display().to_string(), &at]);
        let extents = stored(shown);
        assert!(extents.contains(shown), "{options}: {extents}");
    }
    ok(&["mount", "-o", "remount,noatime", &image.display().to_string(), &at]);
    assert!(stored("still").contains("zlib"), "what is not mentioned stays");
    ok(&["mount", "-o", "remount,compress=no", &image.display().to_string(), &at]);
    let extents = stored("plain");
    assert!(!["lzo", "zstd", "zlib"].iter().any(|name| extents.contains(name)), "{extents}");
    refused(&["mount", "-o", "remount,compress=lz4", &image.display().to_string(), &at], "lz4");
    served.unmount();
    check_all(&image);
}
