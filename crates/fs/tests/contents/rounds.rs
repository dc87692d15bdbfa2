//! Filled and emptied again and again: nothing leaks, nothing is cut to pieces, and what one class of block groups does
//! not need any more serves the other.

use super::world::{ROOT, World, pattern};
use butterfs_fs::mkfs::MkfsOptions;
use butterfs_fs::{Errno, InodeId, Options};
use butterfs_ondisk::items::block_group_flags as bits;
use butterfs_testkit::rng::Rng;

const MIB: u64 = 1 << 20;

fn world(features: &str, len: u64) -> World {
    let mut made = MkfsOptions::default();
    made.features.apply(features).expect("known features");
    World::with(&made, Options::default(), len)
}

/// Block groups, and how many bytes they have, of those that hold `kind`.
fn groups(world: &World, kind: u64) -> (usize, u64) {
    let groups = world.fs.block_groups();
    let lengths = groups.iter().filter(|group| group.flags & bits::TYPE_MASK == kind).map(|group| group.length);
    (lengths.clone().count(), lengths.sum())
}

/// Preallocates one file until the disk is full; the bytes it has.
fn fill_with_data(world: &World, name: &str) -> u64 {
    let file = world.file(name);
    let mut at = 0;
    let refused = loop {
        match world.fs.fallocate(file, 0, at, MIB, false) {
            Ok(()) => at += MIB,
            Err(error) => break error,
        }
    };
    assert!(refused.is(Errno::ENOSPC), "{refused}");
    world.fs.forget(file, 1);
    at
}

/// Makes files whose attributes take a tree block each until the disk is full; how many there are.
fn fill_with_trees(world: &World) -> usize {
    let value = vec![b'v'; 15_000];
    for number in 0.. {
        let made = world.fs.create(&ROOT, world.fs.root(), format!("leaf{number}").as_bytes(), 0o644);
        let done = made.and_then(|made| {
            let done = world.fs.set_xattr(&ROOT, made.id, b"user.large", &value, 0);
            world.fs.forget(made.id, 1);
            done
        });
        if let Err(error) = done {
            assert!(error.is(Errno::ENOSPC), "{error}");
            return number;
        }
    }
    unreachable!("the disk becomes full")
}

/// Removes everything, and gives back what is empty then.
fn empty(world: &World) {
    let root = world.fs.root();
    let mut names = Vec::new();
    world
        .fs
        .readdir(root, 0, &mut |entry| {
            if ![&b"."[..], b".."].contains(&entry.name) {
                names.push(entry.name.to_vec());
            }
            true
        })
        .unwrap();
    for name in names {
        world.fs.unlink(root, &name).unwrap_or_else(|error| panic!("removing always works: {error}"));
    }
    // Life goes on: what is left of the trees moves together as it changes.
    for _ in 0..3 {
        world.fs.sync().unwrap();
        let file = world.file("file");
        world.write(file, 0, b"content");
        world.fs.forget(file, 1);
        world.fs.sync().unwrap();
        world.fs.unlink(root, b"file").unwrap();
    }
    world.fs.sync().unwrap();
}

fn from_data_to_trees_and_back(name: &str, features: &str) {
    let mut world = world(features, 160 * MIB);
    let (at_first, trees_at_first) = (world.fs.block_groups(), groups(&world, bits::METADATA).1);
    let (mut data, mut trees) = (Vec::new(), Vec::new());
    for round in 0..3 {
        data.push(fill_with_data(&world, "data"));
        empty(&world);
        trees.push(fill_with_trees(&world));
        let grown = groups(&world, bits::METADATA).1;
        println!("round {round}: {} MiB of data, {} blocks of trees in {grown} bytes", data[round] / MIB, trees[round]);
        assert!(grown > trees_at_first, "trees did not get what data had");
        empty(&world);
        // What a power cut leaves now has the same groups.
        let cut = world.after_power_cut();
        assert_eq!(cut.fs.block_groups(), world.fs.block_groups());
        world = world.reopen();
        assert!(world.fs.block_groups().len() <= at_first.len(), "{:#?}", world.fs.block_groups());
    }
    // Both get at least what they got the first time; a group of 16 MiB may lie where it is in the way.
    assert!(data.iter().all(|&bytes| bytes + 16 * MIB >= data[0]), "{data:?}");
    assert!(trees.iter().all(|&count| count + 700 >= trees[0]), "{trees:?}");
    world.finish(name);
}

#[test]
fn space_goes_from_data_to_trees_and_back() {
    from_data_to_trees_and_back("data-and-trees", "");
}

#[test]
fn space_goes_from_data_to_trees_and_back_in_old_formats() {
    from_data_to_trees_and_back("data-and-trees-old", "^free-space-tree,^block-group-tree");
    from_data_to_trees_and_back("data-and-trees-extents", "^block-group-tree,^no-holes,^skinny-metadata");
}

/// Files of all sizes come and go in no order, some stay from round to round.
#[test]
fn forty_rounds_leave_what_the_first_found() {
    let world = world("", 160 * MIB);
    let mut rng = Rng::new(7);
    let at_first = (world.fs.statfs(), world.fs.block_groups());
    let mut alive: Vec<(u64, InodeId, usize)> = Vec::new();
    let (mut next, mut written) = (0u64, Vec::new());
    for _ in 0..40 {
        let mut bytes = 0;
        loop {
            next += 1;
            let len = if rng.chance(70) { 1 + rng.index(24_000) } else { 1 + rng.index(3 << 20) };
            let made = world.fs.create(&ROOT, world.fs.root(), format!("f{next}").as_bytes(), 0o644);
            let done = made.and_then(|made| {
                alive.push((next, made.id, 0));
                let count = world.fs.write(made.id, 0, &pattern(next, len), false)?;
                alive.last_mut().expect("just pushed").2 = count;
                bytes += count;
                Ok(count)
            });
            match done {
                Ok(count) if count == len => {}
                Ok(_) => break,
                Err(error) => {
                    assert!(error.is(Errno::ENOSPC), "{error}");
                    break;
                }
            }
        }
        written.push(bytes);
        let (number, id, len) = *rng.pick(&alive);
        assert!(world.content(id) == pattern(number, len), "file {number}");
        for last in (1..alive.len()).rev() {
            alive.swap(last, rng.index(last + 1));
        }
        for (number, id, _) in alive.split_off(alive.len() / 10) {
            world.fs.unlink(world.fs.root(), format!("f{number}").as_bytes()).unwrap();
            world.fs.forget(id, 1);
        }
    }
    println!("{written:?}");
    assert!(written.iter().all(|&bytes| bytes > written[0] / 2), "less and less fits: {written:?}");
    for (number, id, len) in alive {
        assert!(world.content(id) == pattern(number, len), "file {number}");
        world.fs.forget(id, 1);
    }
    empty(&world);
    let world = world.reopen();
    let now = world.fs.statfs();
    assert_eq!((now.blocks, now.blocks_free), (at_first.0.blocks, at_first.0.blocks_free));
    assert!(world.fs.block_groups().len() <= at_first.1.len() + 1, "{:#?}", world.fs.block_groups());
    let whole = fill_with_data(&world, "whole");
    assert!(whole * 100 >= at_first.0.blocks_available * 4096 * 80, "{whole} bytes in one file");
    world.fs.unlink(world.fs.root(), b"whole").unwrap();
    world.finish("forty-rounds");
}
