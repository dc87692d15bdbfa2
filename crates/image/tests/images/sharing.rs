//! Contents that share their place on the host with the files that they come from, on the kernel's btrfs.

use crate::{assert_shows, build};
use butterfs_image::{Builder, FolderSource, Form, Rule};
use butterfs_testkit::kernel::{KernelMount, mkfs, run_ok};
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use std::os::unix::fs::FileExt;
use std::path::Path;

fn source(folder: &Path) -> Builder {
    Builder::new().source("/", FolderSource::new(folder)).unwrap().epoch(4_000_000_000).reflink()
}

/// Extents of a file that others share, as the kernel says.
fn shared(path: &Path) -> usize {
    run_ok(20, "filefrag", &["-v", path.to_str().unwrap()]).lines().filter(|line| line.contains("shared")).count()
}

#[test]
fn content_is_shared_where_the_host_can_do_that() {
    let test = "content_is_shared_where_the_host_can_do_that";
    if !requirement::kernel_btrfs(test) || !requirement::programs(test, &["filefrag"]) {
        return;
    }
    let scratch = Scratch::new("image-sharing");
    let host = scratch.sparse_file("host.img", 512 << 20);
    mkfs(&host, &[]);
    let mount = KernelMount::new(&host, "rw");
    let (folder, image) = (mount.path().join("source"), mount.path().join("disk.img"));
    std::fs::create_dir(&folder).unwrap();
    let noise: Vec<u8> = (0..20_000_001u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    std::fs::write(folder.join("large"), &noise).unwrap();
    std::fs::write(folder.join("small"), "some text\n").unwrap();
    std::fs::write(folder.join("sector"), &noise[..4096]).unwrap();
    std::fs::write(folder.join("tail"), &noise[5..8197 + 100]).unwrap();
    std::fs::write(folder.join("packed"), vec![b'x'; 1 << 20]).unwrap();
    let holes = std::fs::File::create(folder.join("holes")).unwrap();
    holes.write_all_at(&noise[..300_000], 1 << 20).unwrap();
    holes.write_all_at(&noise[..5000], 5 << 20).unwrap();
    holes.set_len(8 << 20).unwrap();
    // A file that keeps to other rules than the image: copied.
    std::fs::write(folder.join("in place"), "").unwrap();
    run_ok(20, "chattr", &["+C", folder.join("in place").to_str().unwrap()]);
    std::fs::write(folder.join("in place"), &noise[..50_000]).unwrap();
    run_ok(20, "sync", &["-f", folder.to_str().unwrap()]);
    build(
        source(&folder).rule("packed", Rule::Compress(Some(butterfs_fs::options::Algorithm::Zlib.into()))).unwrap(),
        &image,
    );
    let extents = shared(&image);
    assert!(extents >= 4, "{extents} extents are shared");
    assert_shows(&image, "", &folder);
    // The same without sharing is the same image.
    let copied = scratch.join("copied.img");
    let plain = Builder::new().source("/", FolderSource::new(&folder)).unwrap().epoch(4_000_000_000);
    plain.build(&copied).unwrap();
    // Another filesystem shares nothing.
    let error = source(&folder).build(scratch.join("other.img")).unwrap_err().to_string();
    assert!(error.contains("cannot be shared") && error.contains("one filesystem"), "{error}");
    assert!(!scratch.join("other.img").exists());
    // A change of the source does not reach the image.
    let before = std::fs::read(&image).unwrap();
    std::fs::File::options().write(true).open(folder.join("large")).unwrap().write_all_at(&[0; 9000], 5000).unwrap();
    assert!(std::fs::read(&image).unwrap() == before);
    butterfs_testkit::judge::assert_clean(&copied);
    drop(holes);
    assert!(mount.finish().is_empty());
}

#[test]
fn a_device_shares_nothing() {
    let scratch = Scratch::new("image-sharing-device");
    let device = std::sync::Arc::new(butterfs_device::MemoryDevice::new(64 << 20));
    let error = source(&scratch.folder("source")).build_on(device).unwrap_err().to_string();
    assert!(error.contains("only be shared with a file"), "{error}");
    // What is compressed as a whole at the end need not stay shared.
    assert_eq!(Form::default(), Form::Raw);
}
