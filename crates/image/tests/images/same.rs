//! The same input gives the same bytes, whoever builds, where and with how many threads.

use crate::{build, tree};
use butterfs_fs::options::{Algorithm, Method};
use butterfs_image::{Builder, FolderSource, Owners, Rule, Size};
use butterfs_testkit::scratch::Scratch;
use std::os::unix::fs::FileExt;
use std::path::Path;

fn builder(source: &Path) -> Builder {
    let zstd = Rule::Compress(Some(Method::new(Algorithm::Zstd, 7)));
    Builder::new()
        .source("/", FolderSource::new(source))
        .and_then(|it| it.rule("/", zstd))
        .and_then(|it| it.subvolume("etc", true))
        .unwrap()
        .owners(Owners::all_root())
        .epoch(1_700_000_000)
}

/// A copy of a tree whose entries are in another order on the host, and were made by another program at another time.
fn copied_backwards(from: &Path, to: &Path) {
    let mut names: Vec<_> = std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    for path in names.iter().rev() {
        let to = to.to_str().unwrap();
        butterfs_testkit::kernel::run_ok(60, "cp", &["-a", "--sparse=always", path.to_str().unwrap(), to]);
    }
    let times = ["-r", from.to_str().unwrap(), to.to_str().unwrap()];
    butterfs_testkit::kernel::run_ok(10, "touch", &times);
}

#[test]
fn the_same_tree_gives_the_same_bytes() {
    let scratch = Scratch::new("image-same");
    let (source, other) = (scratch.folder("source"), scratch.folder("elsewhere/copy"));
    tree::make(&source, false);
    // A link into another part of the tree would not survive a copy in parts.
    std::fs::remove_file(source.join("many/motd")).unwrap();
    for number in 0..300 {
        let name = format!("many/noise-with-a-rather-long-name-so-that-not-all-fit-{number}");
        std::fs::remove_file(source.join(name)).unwrap();
    }
    std::fs::File::open(source.join("many")).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    copied_backwards(&source, &other);
    let (one, two) = (scratch.join("one"), scratch.join("two"));
    let first = build(builder(&source).threads(1), &one);
    let want = std::fs::read(&one).unwrap();
    for (threads, source) in [(2, &other), (5, &source)] {
        let report = build(builder(source).threads(threads), &two);
        assert!(std::fs::read(&two).unwrap() == want, "{threads} threads, {}", source.display());
        assert_eq!(report.fsid, first.fsid);
    }
    // Without a seed the UUIDs follow from the content.
    std::fs::write(other.join("etc/motd"), "another\n").unwrap();
    assert_ne!(build(builder(&other), &two).fsid, first.fsid);
    assert_eq!(build(builder(&other).seed(*b"x"), &two).fsid, build(builder(&source).seed(*b"x"), &one).fsid);
}

#[test]
fn nothing_is_left_behind_by_a_build_that_fails() {
    let scratch = Scratch::new("image-atomic");
    let (source, out) = (scratch.folder("source"), scratch.folder("out"));
    std::fs::write(source.join("file"), vec![1; 40 << 20]).unwrap();
    let image = out.join("image");
    std::fs::write(&image, "what was there").unwrap();
    let error =
        Builder::new().source("/", FolderSource::new(&source)).unwrap().size(Size::Exactly(30 << 20)).build(&image);
    assert!(error.unwrap_err().to_string().contains("does not fit"));
    let gone = Builder::new().source("/", FolderSource::new(scratch.join("missing"))).unwrap().build(&image);
    assert!(gone.unwrap_err().to_string().contains("cannot read"));
    assert_eq!(std::fs::read(&image).unwrap(), b"what was there");
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 1);
    build(Builder::new().source("/", FolderSource::new(&source)).unwrap(), &image);
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 1);
}

#[test]
fn an_image_of_a_size_has_it_and_ends_where_it_should() {
    let scratch = Scratch::new("image-size");
    let (source, image) = (scratch.folder("source"), scratch.join("image"));
    std::fs::write(source.join("file"), vec![7; 300_000]).unwrap();
    let builder = || Builder::new().source("/", FolderSource::new(&source)).unwrap();
    let small = build(builder().size(Size::Minimal), &image).total_bytes;
    let usable = build(builder(), &image).total_bytes;
    let free = build(builder().free(300 << 20), &image).total_bytes;
    let exact = build(builder().size(Size::Exactly(400 << 20)), &image).total_bytes;
    println!("{small} {usable} {free} {exact}");
    assert!(small < usable && usable + (299 << 20) <= free && exact == 400 << 20);
    // Data across the place of the superblock's second copy.
    let content: Vec<u8> = (0..15u32 << 20).flat_map(u32::to_le_bytes).collect();
    std::fs::write(source.join("file"), &content).unwrap();
    build(builder().size(Size::Minimal), &image);
    let second = std::fs::File::open(&image).unwrap();
    let mut magic = [0; 8];
    second.read_exact_at(&mut magic, (64 << 20) + 64).unwrap();
    assert_eq!(&magic, b"_BHRfS_M");
}
