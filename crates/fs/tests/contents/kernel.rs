//! Content written by the kernel, read by us.

use super::world::{World, pattern};
use butterfs_fs::Options;
use butterfs_fs::file::Whence;
use butterfs_testkit::kernel::{KernelMount, mkfs};
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Text that compresses, with stretches that do not.
fn text(seed: u64, len: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for i in 0u64.. {
        if out.len() >= len {
            break;
        }
        out.extend_from_slice(format!("line {i} of file {seed}, and the extents of it\n").as_bytes());
        if i % 50 == 0 {
            out.extend_from_slice(&pattern(i + seed, 700));
        }
    }
    out.truncate(len);
    out
}

fn fill(folder: &Path) {
    let lengths = [0, 1, 100, 2047, 2048, 2049, 4095, 4096, 4097, 5000, 131_072, 131_073, 1_000_000];
    for len in lengths {
        std::fs::write(folder.join(format!("text{len}")), text(len as u64, len)).unwrap();
    }
    std::fs::write(folder.join("zeros"), vec![0; 400_000]).unwrap();
    std::fs::write(folder.join("noise"), pattern(1, 300_000)).unwrap();
    let mut sparse = std::fs::File::create(folder.join("sparse")).unwrap();
    for at in [1 << 20, 3 << 20, (7 << 20) + 5] {
        sparse.seek(SeekFrom::Start(at)).unwrap();
        sparse.write_all(&text(at, 70_000)).unwrap();
    }
    let patched = std::fs::File::create(folder.join("patched")).unwrap();
    patched.write_all_at(&text(2, 900_000), 0).unwrap();
    rustix::fs::fdatasync(&patched).unwrap();
    for at in (0..880_000).step_by(37_777) {
        patched.write_all_at(&pattern(at, 3000), at).unwrap();
    }
    rustix::fs::fdatasync(&patched).unwrap();
    patched.set_len(850_001).unwrap();
    patched.set_len(880_000).unwrap();
    let prealloc = std::fs::File::create(folder.join("prealloc")).unwrap();
    rustix::fs::fallocate(&prealloc, rustix::fs::FallocateFlags::empty(), 0, 600_000).unwrap();
    prealloc.write_all_at(&text(3, 50_000), 200_001).unwrap();
    let keep = rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&prealloc, keep | rustix::fs::FallocateFlags::PUNCH_HOLE, 220_000, 9000).unwrap();
    rustix::fs::fallocate(&prealloc, keep, 600_000, 100_000).unwrap();
}

/// All files of a folder: name, content, and where data begins and ends.
fn view(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names.into_iter().map(|name| (name.clone(), std::fs::read(folder.join(name)).unwrap())).collect()
}

#[test]
fn content_of_the_kernel_reads_the_same() {
    if !requirement::kernel_btrfs("content_of_the_kernel_reads_the_same") {
        return;
    }
    let cases = [
        ("crc32c", "no-holes", "16384", "noatime"),
        ("xxhash", "^no-holes", "4096", "compress-force=zlib:9"),
        ("sha256", "no-holes", "16384", "compress-force=lzo"),
        ("blake2", "no-holes", "65536", "compress-force=zstd:15"),
        ("crc32c", "^no-holes", "16384", "compress=zstd,max_inline=4095"),
        ("crc32c", "no-holes", "16384", "nodatasum"),
        ("crc32c", "no-holes", "16384", "nodatacow,max_inline=0"),
    ];
    for (checksum, holes, nodesize, options) in cases {
        let scratch = Scratch::new("kernel-contents");
        let image = scratch.sparse_file("image", 512 << 20);
        mkfs(&image, &["--csum", checksum, "-O", holes, "-n", nodesize]);
        let mount = KernelMount::new(&image, options);
        fill(mount.path());
        rustix::fs::sync();
        let expected = view(mount.path());
        assert!(mount.finish().is_empty());
        let world = World::of_image(&image, Options::default());
        for (name, content) in &expected {
            let id = world.id(name);
            assert!(world.content(id) == *content, "{checksum} {holes} {nodesize} {options}: {name}");
            for at in (0..content.len()).step_by(content.len() / 13 + 1) {
                let mut out = Vec::new();
                world.fs.read(id, at as u64, 5000, &mut out).unwrap();
                assert!(out == content[at..content.len().min(at + 5000)], "{name} at {at}");
            }
            if !content.is_empty() && world.fs.seek(id, 0, Whence::Data).is_err() {
                assert!(content.iter().all(|&byte| byte == 0), "{name}");
            }
        }
        change(&world, &expected);
        let (_scratch, image) = world.finish("kernel-contents-changed");
        let mount = KernelMount::new(&image, "ro");
        for (name, content) in changed(&expected) {
            let found = std::fs::read(mount.path().join(&name)).unwrap();
            assert!(found == content, "{checksum} {holes} {nodesize} {options}: {name} after our changes");
        }
        let complaints = mount.finish();
        assert!(complaints.is_empty(), "{complaints:#?}");
    }
}

/// Overwrites the middle of every file, appends, and shrinks every third.
fn changed(files: &[(String, Vec<u8>)]) -> Vec<(String, Vec<u8>)> {
    let mut files = files.to_vec();
    for (i, (_, content)) in files.iter_mut().enumerate() {
        let (middle, end) = (content.len() / 2, content.len());
        let patch = pattern(i as u64, 3333);
        content.resize(end.max(middle + patch.len()), 0);
        content[middle..middle + patch.len()].copy_from_slice(&patch);
        content.extend_from_slice(b"appended");
        if i % 3 == 0 {
            content.truncate(end / 3);
        }
    }
    let copies = files.iter().map(|(name, content)| (format!("copy of {name}"), content.clone())).collect::<Vec<_>>();
    files.extend(copies);
    files
}

fn change(world: &World, files: &[(String, Vec<u8>)]) {
    for (i, (name, content)) in files.iter().enumerate() {
        let id = world.id(name);
        world.write(id, content.len() as u64 / 2, &pattern(i as u64, 3333));
        let size = world.fs.getattr(id).unwrap().size;
        world.write(id, size, b"appended");
        if i % 3 == 0 {
            let set = butterfs_fs::SetAttr { size: Some(content.len() as u64 / 3), ..Default::default() };
            world.fs.setattr(&super::world::ROOT, id, &set).unwrap();
        }
        let copy = world.file(&format!("copy of {name}"));
        world.fs.copy_range((id, 0), (copy, 0), 1 << 40).unwrap();
    }
}
