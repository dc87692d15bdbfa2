//! Every kind of source, as the kernel shows the image.

use crate::{assert_shows, build, tree};
use butterfs_fs::mkfs::{FeatureChoice, MkfsOptions};
use butterfs_fs::options::{Algorithm, Method};
use butterfs_image::{Builder, FolderSource, Rule, TarSource};
use butterfs_ondisk::{ChecksumKind, Profile};
use butterfs_testkit::kernel::{KernelMount, run_ok};
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;

fn zstd() -> Rule {
    Rule::Compress(Some(Method::new(Algorithm::Zstd, 3)))
}

#[test]
fn a_folder_is_shown_as_it_is() {
    if !requirement::kernel_btrfs("a_folder_is_shown_as_it_is") {
        return;
    }
    let scratch = Scratch::new("image-folder");
    let source = scratch.folder("source");
    tree::make(&source, true);
    let image = scratch.join("image");
    let formats: [(&str, MkfsOptions, Option<Rule>); 4] = [
        ("plain", MkfsOptions::default(), None),
        ("zstd", MkfsOptions { metadata: Profile::named("single"), ..MkfsOptions::default() }, Some(zstd())),
        (
            "zlib sha256",
            MkfsOptions {
                nodesize: Some(4096),
                checksum: ChecksumKind::Sha256,
                features: features("^no-holes,^free-space-tree"),
                ..MkfsOptions::default()
            },
            Some(Rule::Compress(Some(Algorithm::Zlib.into()))),
        ),
        (
            "mixed lzo",
            MkfsOptions { features: features("mixed-bg,^skinny-metadata,^block-group-tree"), ..MkfsOptions::default() },
            Some(Rule::Compress(Some(Algorithm::Lzo.into()))),
        ),
    ];
    for (name, format, rule) in formats {
        println!("{name}");
        let builder = Builder::new().source("/", FolderSource::new(&source)).unwrap().format(format);
        build(rule.into_iter().fold(builder, |builder, rule| builder.rule("/", rule).unwrap()), &image);
        assert_shows(&image, "", &source);
    }
}

fn features(list: &str) -> FeatureChoice {
    let mut choice = FeatureChoice::default();
    choice.apply(list).unwrap();
    choice
}

#[test]
fn an_archive_is_shown_as_the_folder_that_it_is_of() {
    if !requirement::kernel_btrfs("an_archive_is_shown_as_the_folder_that_it_is_of") {
        return;
    }
    let scratch = Scratch::new("image-tar");
    let source = scratch.folder("source");
    tree::make(&source, true);
    // tar has no sockets, and stores what is smaller than a block as it is.
    std::fs::remove_file(source.join("socket")).unwrap();
    std::fs::remove_file(source.join("small hole")).unwrap();
    // It asks how much a file takes, attributes included.
    std::fs::remove_file(source.join("half a hole")).unwrap();
    let top = source.to_str().unwrap();
    let (archive, image) = (scratch.join("archive"), scratch.join("image"));
    for options in [
        &["--format=pax", "--xattrs", "--xattrs-include=*", "--acls", "--sparse"][..],
        &["--format=pax", "--xattrs", "--xattrs-include=*", "--acls", "--sparse", "--sparse-version=0.1", "--gzip"],
        &["--format=pax", "--xattrs", "--xattrs-include=*", "--sparse", "--sparse-version=0.0", "--zstd"],
        &["--format=pax", "--xattrs", "--xattrs-include=*", "--sparse", "--hole-detection=raw", "--xz"],
    ] {
        println!("{options:?}");
        let all = [&["-C", top, "-cf", archive.to_str().unwrap(), "--numeric-owner"], options, &["."]].concat();
        run_ok(60, "tar", &all);
        let builder = Builder::new().source("/", TarSource::open(&archive).unwrap()).unwrap();
        build(builder.rule("", zstd()).unwrap(), &image);
        assert_shows(&image, "", &source);
    }
    // What GNU's own form and ustar cannot say is taken out first: fractions of seconds, attributes, large numbers,
    // years.
    let plain = scratch.folder("plain");
    std::fs::create_dir_all(plain.join("a/b")).unwrap();
    let long = plain.join("a").join("l".repeat(120));
    std::fs::write(&long, "long name").unwrap();
    std::os::unix::fs::symlink("t".repeat(150), plain.join("a/link")).unwrap();
    let sparse = std::fs::File::create(plain.join("a/sparse")).unwrap();
    sparse.set_len(30 << 20).unwrap();
    for part in 0..29u64 {
        std::os::unix::fs::FileExt::write_all_at(&sparse, &[part as u8 + 1; 5000], part << 20).unwrap();
    }
    run_ok(60, "find", &[plain.to_str().unwrap(), "-exec", "touch", "-hd", "1960-01-01 00:00:00", "{}", "+"]);
    run_ok(
        60,
        "tar",
        &["-C", plain.to_str().unwrap(), "-cf", archive.to_str().unwrap(), "--format=gnu", "--sparse", "."],
    );
    build(Builder::new().source("/", TarSource::open(&archive).unwrap()).unwrap(), &image);
    assert_shows(&image, "", &plain);
}

#[test]
fn sources_lie_over_each_other_and_folders_become_subvolumes() {
    if !requirement::kernel_btrfs("sources_lie_over_each_other_and_folders_become_subvolumes") {
        return;
    }
    let scratch = Scratch::new("image-subvolumes");
    let (root, home, image) = (scratch.folder("root"), scratch.folder("home"), scratch.join("image"));
    tree::make(&root, true);
    std::fs::create_dir_all(home.join("user/.cache")).unwrap();
    std::fs::write(home.join("user/.cache/x"), vec![7; 100_000]).unwrap();
    let builder = Builder::new()
        .source("@", FolderSource::new(&root))
        .and_then(|it| it.source("@home", FolderSource::new(&home)))
        .and_then(|it| it.subvolume("@", false))
        .and_then(|it| it.subvolume("@home", false))
        .and_then(|it| it.subvolume("@home/user/.cache", false))
        .and_then(|it| it.snapshot("@", "snapshots/first", true))
        .and_then(|it| it.default_subvolume("@"))
        .and_then(|it| it.rule("@", zstd()))
        .and_then(|it| it.rule("@home", Rule::InPlace))
        .unwrap();
    let report = build(builder, &image);
    let paths: Vec<(u64, &[u8])> = report.subvolumes.iter().map(|(id, path)| (*id, path.as_slice())).collect();
    assert_eq!(paths, [(256, &b"@"[..]), (257, b"@home"), (258, b"@home/user/.cache"), (259, b"snapshots/first")]);
    assert_shows(&image, "", &root);
    let mount = KernelMount::new(&image, "subvolid=5");
    let list = run_ok(20, "btrfs", &["subvolume", "list", mount.path().to_str().unwrap()]);
    assert_eq!(list.lines().count(), 4, "{list}");
    let property =
        run_ok(20, "btrfs", &["property", "get", "-ts", mount.path().join("snapshots/first").to_str().unwrap()]);
    assert_eq!(property.trim(), "ro=true");
    let flags = run_ok(20, "lsattr", &["-d", mount.path().join("@home/user/.cache/x").to_str().unwrap()]);
    assert!(flags.contains('C'), "{flags}");
    // The snapshot shares its data, and a child of it can be sent as a difference.
    let usage = run_ok(
        20,
        "btrfs",
        &["filesystem", "du", "--raw", "-s", mount.path().join("snapshots/first").to_str().unwrap()],
    );
    let numbers: Vec<&str> = usage.lines().last().unwrap().split_whitespace().collect();
    assert_eq!(numbers[1], "0", "nothing is the snapshot's alone: {usage}");
    assert_eq!(mount.finish(), Vec::<String>::new());
}

#[test]
fn the_kernel_goes_on_with_a_small_image() {
    if !requirement::kernel_btrfs("the_kernel_goes_on_with_a_small_image") {
        return;
    }
    let scratch = Scratch::new("image-usable");
    let (source, image) = (scratch.folder("source"), scratch.join("image"));
    tree::make(&source, true);
    for profile in ["single", "dup"] {
        let format = MkfsOptions { metadata: Profile::named(profile), ..MkfsOptions::default() };
        let report = build(Builder::new().source("/", FolderSource::new(&source)).unwrap().format(format), &image);
        println!("{profile}: {}", report.total_bytes);
        let mount = KernelMount::new(&image, "");
        for number in 0..200 {
            std::fs::write(mount.path().join(format!("new-{number}")), vec![number as u8; 3000]).unwrap();
        }
        std::fs::remove_file(mount.path().join("text")).unwrap();
        run_ok(20, "btrfs", &["filesystem", "sync", mount.path().to_str().unwrap()]);
        assert_eq!(mount.finish(), Vec::<String>::new());
        butterfs_testkit::kernel::check_all(&image);
    }
}
