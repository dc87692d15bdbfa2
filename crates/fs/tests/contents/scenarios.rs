//! Rules of the format and promises to users, one at a time.

use super::world::{ROOT, World, pattern};
use butterfs_device::BlockDevice;
use butterfs_fs::file::Whence;
use butterfs_fs::mkfs::MkfsOptions;
use butterfs_fs::{Errno, InodeId, Options, SetAttr};

const KEEP_SIZE: u32 = 1;
const PUNCH: u32 = 3;

fn truncate(world: &World, id: InodeId, size: u64) {
    world.fs.setattr(&ROOT, id, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
}

#[test]
fn a_small_file_takes_no_blocks_and_grows_out_of_its_item() {
    let world = World::new();
    let (small, grown, sparse) = (world.file("small"), world.file("grown"), world.file("sparse"));
    world.write(small, 0, &pattern(1, 2048));
    world.write(grown, 0, &pattern(2, 100));
    world.write(sparse, 0, &pattern(3, 100));
    assert_eq!((world.blocks(small), world.blocks(grown)), (8, 8));
    world.write(grown, 100, &pattern(4, 2500));
    world.write(sparse, 1 << 20, b"far");
    assert_eq!((world.blocks(grown), world.blocks(sparse)), (8, 16));
    let mut expected = pattern(3, 100);
    expected.resize(1 << 20, 0);
    expected.extend_from_slice(b"far");
    assert!(world.content(sparse) == expected);
    world.finish("inline");
}

#[test]
fn the_tail_behind_a_shrunk_files_end_is_never_seen() {
    for (how, first) in [("truncate", 5000u64), ("write", 5000), ("fallocate", 9000), ("inline", 900)] {
        let world = World::new();
        let id = world.file("file");
        world.write(id, 0, &pattern(1, first as usize));
        world.fs.sync().unwrap();
        truncate(&world, id, first - 800);
        world.fs.sync().unwrap();
        match how {
            "truncate" | "inline" => truncate(&world, id, 40_000),
            "write" => world.write(id, 39_000, &[1; 1000]),
            _ => world.fs.fallocate(id, 0, 0, 40_000, false).unwrap(),
        }
        let mut expected = pattern(1, first as usize - 800);
        expected.resize(40_000, 0);
        if how == "write" {
            expected[39_000..].fill(1);
        }
        assert!(world.content(id) == expected, "{how}");
        let world = world.reopen();
        let id = world.id("file");
        assert!(world.content(id) == expected, "{how}");
        world.finish(how);
    }
}

#[test]
fn reads_past_the_end_and_of_holes() {
    let world = World::new();
    let id = world.file("file");
    world.write(id, 100_000, b"x");
    let mut out = vec![1, 2, 3];
    assert_eq!(world.fs.read(id, 100_001, 10, &mut out).unwrap(), 0);
    assert!(out.is_empty());
    assert_eq!(world.fs.read(id, u64::MAX, 10, &mut out).unwrap(), 0);
    assert_eq!(world.fs.read(id, 99_999, 10, &mut out).unwrap(), 2);
    assert_eq!(out, [0, b'x']);
    assert_eq!(world.fs.read(id, 5, 1000, &mut out).unwrap(), 1000);
    assert!(out.iter().all(|&byte| byte == 0));
    world.finish("holes");
}

#[test]
fn requests_that_cannot_be_done_are_refused() {
    let world = World::new();
    let id = world.file("file");
    let root = world.fs.root();
    let errno = |result: butterfs_fs::Result<()>| result.unwrap_err().errno();
    assert_eq!(errno(world.fs.write(root, 0, b"x", false).map(drop)), Errno::EISDIR);
    assert_eq!(errno(world.fs.read(root, 0, 1, &mut Vec::new()).map(drop)), Errno::EISDIR);
    assert_eq!(errno(world.fs.write(id, i64::MAX as u64, b"x", false).map(drop)), Errno::EFBIG);
    assert_eq!(errno(world.fs.write(id, u64::MAX, b"x", false).map(drop)), Errno::EFBIG);
    assert_eq!(errno(world.fs.fallocate(id, 0, 0, 0, false)), Errno::EINVAL);
    assert_eq!(errno(world.fs.fallocate(id, 0, u64::MAX, 2, false)), Errno::EFBIG);
    for mode in [2, 8, 9, 32, 64, 1 << 20] {
        assert_eq!(errno(world.fs.fallocate(id, mode, 0, 4096, false)), Errno::EOPNOTSUPP, "{mode}");
    }
    assert_eq!(errno(world.fs.seek(id, 0, Whence::Data).map(drop)), Errno::ENXIO);
    truncate(&world, id, i64::MAX as u64);
    truncate(&world, id, 0);
    world.finish("refused");
}

#[test]
fn preallocated_space_is_written_in_place() {
    let world = World::new();
    let id = world.file("file");
    world.fs.fallocate(id, KEEP_SIZE, 0, 1 << 20, false).unwrap();
    assert_eq!(world.blocks(id), 2048);
    assert_eq!(world.fs.getattr(id).unwrap().size, 0);
    world.write(id, 8192, &pattern(1, 10_000));
    world.write(id, 100_000, &pattern(2, 5));
    assert_eq!(world.blocks(id), 2048, "nothing new was allocated");
    assert_eq!(world.fs.seek(id, 0, Whence::Data).unwrap(), 8192);
    assert_eq!(world.fs.seek(id, 8192, Whence::Hole).unwrap(), 20480);
    truncate(&world, id, 100_005);
    assert_eq!(world.blocks(id), 100_005u64.next_multiple_of(4096) / 512);
    world.finish("prealloc");
}

#[test]
fn a_full_disk_still_takes_what_was_preallocated() {
    let world = World::with(&MkfsOptions::default(), Options::default(), 128 << 20);
    let (kept, filler) = (world.file("kept"), world.file("filler"));
    world.fs.fallocate(kept, 0, 0, 4 << 20, false).unwrap();
    let refused = fill(&world, filler);
    assert_eq!(refused, Errno::ENOSPC);
    let data = pattern(9, 4 << 20);
    for (i, part) in data.chunks(300_000).enumerate() {
        world.write(kept, i as u64 * 300_000, part);
    }
    world.fs.sync().unwrap();
    assert!(world.content(kept) == data);
    let world = world.reopen();
    assert!(world.content(world.id("kept")) == data);
    world.finish("full");
}

fn fill(world: &World, id: InodeId) -> Errno {
    let mut at = world.fs.getattr(id).unwrap().size;
    for len in [1 << 20, 65536, 4096] {
        loop {
            match world.fs.write(id, at, &pattern(at, len), true) {
                Ok(written) => at += written as u64,
                Err(error) if len == 4096 => return error.errno(),
                Err(_) => break,
            }
        }
    }
    unreachable!("the last length returns")
}

#[test]
fn a_full_disk_refuses_at_the_start_loses_nothing_and_can_be_emptied() {
    let world = World::with(&MkfsOptions::default(), Options::default(), 128 << 20);
    for round in 0..4 {
        let id = world.file("big");
        assert_eq!(fill(&world, id), Errno::ENOSPC);
        let size = world.fs.getattr(id).unwrap().size;
        assert!(size > 40 << 20, "round {round}: {size}");
        world.fs.sync().unwrap();
        let mut out = Vec::new();
        world.fs.read(id, 0, 4096, &mut out).unwrap();
        assert!(out == pattern(0, 4096));
        // Copy on write needs space, too.
        let refused = world.fs.write(id, 0, &pattern(1, 4096), true);
        assert!(refused.is_ok_and(|written| written == 4096) || fill(&world, id) == Errno::ENOSPC);
        world.fs.sync().unwrap();
        if round % 2 == 0 {
            truncate(&world, id, 0);
        }
        world.fs.unlink(world.fs.root(), b"big").unwrap();
        world.fs.forget(id, 1);
        world.fs.sync().unwrap();
    }
    world.finish("emptied");
}

#[test]
fn punching_gives_space_back() {
    let world = World::new();
    let id = world.file("file");
    world.write(id, 0, &pattern(1, 1 << 20));
    assert_eq!(world.blocks(id), 2048);
    world.fs.fallocate(id, PUNCH, 4095, (1 << 20) - 8190, false).unwrap();
    assert_eq!(world.blocks(id), 16);
    let mut expected = pattern(1, 1 << 20);
    expected[4095..(1 << 20) - 4095].fill(0);
    assert!(world.content(id) == expected);
    world.finish("punch");
}

#[test]
fn a_fragmented_file_is_overwritten_and_shrunk_in_steps() {
    let world = World::new();
    let id = world.file("file");
    for i in (0..2000u64).rev() {
        world.write(id, i * 8192, &pattern(i, 4096));
        if i % 100 == 0 {
            world.fs.fsync(id, true).unwrap();
        }
    }
    let data = pattern(7, 16 << 20);
    world.write(id, 0, &data);
    world.fs.sync().unwrap();
    assert!(world.content(id) == data);
    for i in 0..2000u64 {
        world.fs.fallocate(id, PUNCH, i * 8192, 4096, false).unwrap();
    }
    truncate(&world, id, 4096 * 5);
    let mut expected = data[..4096 * 5].to_vec();
    [0, 2, 4].iter().for_each(|i| expected[i * 4096..(i + 1) * 4096].fill(0));
    assert!(world.content(id) == expected);
    world.finish("fragments");
}

#[test]
fn an_open_file_without_a_name_keeps_its_content_until_it_is_closed() {
    let world = World::new();
    let id = world.file("file");
    world.fs.acquire(id);
    world.write(id, 0, &pattern(1, 500_000));
    world.fs.unlink(world.fs.root(), b"file").unwrap();
    world.fs.sync().unwrap();
    world.write(id, 500_000, b"more");
    assert_eq!(world.content(id).len(), 500_004);
    world.fs.forget(id, 1);
    world.fs.release(id);
    world.finish("unlinked");
}

#[test]
fn small_budgets_write_back_on_their_own() {
    let options = Options { dirty_data_bytes: 1 << 20, ..Options::default() };
    let world = World::with(&MkfsOptions::default(), options, 256 << 20);
    let ids: Vec<_> = (0..50).map(|i| world.file(&format!("file{i}"))).collect();
    for round in 0..4 {
        for (i, id) in ids.iter().enumerate() {
            world.write(*id, round * 100_000, &pattern(i as u64, 100_000));
        }
    }
    for (i, id) in ids.iter().enumerate() {
        assert!(world.content(*id) == pattern(i as u64, 100_000).repeat(4));
    }
    world.finish("budget");
}

/// How many of `contents` have their first sector on the device.
fn on_device(device: &dyn BlockDevice, contents: &[Vec<u8>]) -> usize {
    let (mut found, mut sector) = (0, vec![0; 4096]);
    for at in (0..device.len()).step_by(4096) {
        device.read_at(at, &mut sector).unwrap();
        found += usize::from(contents.iter().any(|content| content[..4096] == sector));
    }
    found
}

#[test]
fn a_writer_that_meets_a_full_budget_writes_back_its_share() {
    let options = Options { dirty_data_bytes: 1 << 20, ..Options::default() };
    let world = World::with(&MkfsOptions::default(), options, 256 << 20);
    let contents: Vec<_> = (0..40).map(|i| pattern(i, 32 << 10)).collect();
    for (i, content) in contents.iter().enumerate() {
        world.write(world.file(&format!("file{i}")), 0, content);
        // The budget is 32 of them, and one more is what is looked at before the next one comes.
        assert_eq!(on_device(&*world.device, &contents), i.saturating_sub(32), "{i}");
    }
    world.finish("share");
}

#[test]
fn copies_share_extents_until_they_are_written() {
    let world = World::new();
    let source = world.file("source");
    let data = pattern(1, (60 << 20) + 77);
    world.write(source, 0, &data);
    let copies: Vec<_> = (0..10).map(|i| world.file(&format!("copy{i}"))).collect();
    for copy in &copies {
        assert_eq!(world.fs.copy_range((source, 0), (*copy, 0), u64::MAX >> 1).unwrap(), data.len() as u64);
    }
    world.write(copies[3], 1_000_000, &[7; 100]);
    truncate(&world, copies[4], 5000);
    world.fs.clone_range((source, 0), (copies[5], 1 << 30), 0).unwrap();
    world.fs.clone_range((copies[6], 4096), (copies[6], 50 << 20), 8192).unwrap();
    world.fs.unlink(world.fs.root(), b"source").unwrap();
    world.fs.forget(source, 1);
    let world = world.reopen();
    for i in 0..10 {
        let mut expected = data.clone();
        match i {
            3 => expected[1_000_000..1_000_100].fill(7),
            4 => expected.truncate(5000),
            5 => {
                let mut out = Vec::new();
                world.fs.read(world.id("copy5"), (1 << 30) + 123, 5000, &mut out).unwrap();
                assert!(out == data[123..5123]);
                continue;
            }
            6 => expected.copy_within(4096..4096 + 8192, 50 << 20),
            _ => {}
        }
        assert!(world.content(world.id(&format!("copy{i}"))) == expected, "copy {i}");
    }
    world.finish("copies");
}

#[test]
fn clones_that_cannot_share_are_refused() {
    let world = World::new();
    let (small, large, target) = (world.file("small"), world.file("large"), world.file("target"));
    world.write(small, 0, b"inline");
    world.write(large, 0, &pattern(1, 100_001));
    world.write(target, 0, &pattern(2, 200_000));
    let refused = |source, target, len| world.fs.clone_range(source, target, len).unwrap_err().errno();
    for (source, to, len) in [
        ((small, 0), (target, 0), 0),
        ((large, 1), (target, 0), 4096),
        ((large, 0), (target, 5), 4096),
        ((large, 0), (target, 0), 100),
        ((large, 98_304), (target, 0), 0),
        ((large, 0), (large, 4096), 8192),
        ((large, 0), (target, 0), 200_000),
    ] {
        assert_eq!(refused(source, to, len), Errno::EINVAL);
    }
    world.fs.clone_range((large, 98_304), (target, 200_704), 0).unwrap();
    assert_eq!(world.content(target)[200_704..], pattern(1, 100_001)[98_304..]);
    world.finish("refused clones");
}
