//! Very many references to one extent: what they cost, in items looked at and in changes that others wait for, and
//! references whose hashes collide.

use super::world::{ROOT, World, pattern};
use butterfs_fs::mkfs::MkfsOptions;
use butterfs_fs::options::{Booking, Policies};
use butterfs_fs::{Ino, InodeId, Options, SetAttr};
use butterfs_ondisk::checksum::extent_data_ref_hash;

const BLOCK: u64 = 4096;

/// A file of one block, and another one that has it `count` times more.
fn shared_with_itself(world: &World, count: u64) -> InodeId {
    let file = world.file("file");
    world.write(file, 0, &pattern(1, BLOCK as usize));
    world.fs.sync().unwrap();
    for n in 1..=count {
        world.fs.clone_range((file, 0), (file, 2 * n * BLOCK), BLOCK).unwrap();
    }
    world.fs.sync().unwrap();
    file
}

fn truncate(world: &World, id: InodeId, size: u64) {
    world.fs.setattr(&ROOT, id, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
    world.fs.sync().unwrap();
}

#[test]
fn looking_up_references_costs_the_same_for_each() {
    let cost = |count: u64| {
        let world = World::new();
        let file = shared_with_itself(&world, count);
        let added = world.fs.booking_cost().0;
        truncate(&world, file, count * BLOCK);
        let dropped = world.fs.booking_cost().0 - added;
        assert_eq!(world.content(file)[..BLOCK as usize], pattern(1, BLOCK as usize));
        if count == 4000 {
            world.finish("many-references");
        }
        (added, dropped)
    };
    let (added, dropped) = cost(1000);
    let (more_added, more_dropped) = cost(4000);
    // Four times the references; with the square of them it would be sixteen times.
    assert!(more_added < 6 * added.max(1000), "{added} items for 1000, {more_added} for 4000");
    assert!(more_dropped < 6 * dropped.max(1000), "{dropped} items for 1000, {more_dropped} for 4000");
}

#[test]
fn work_that_others_wait_for_stays_small() {
    let world = World::new();
    shared_with_itself(&world, 20_000);
    let most = Booking::default();
    let (_, at_once) = world.fs.booking_cost();
    assert!(at_once <= most.early / 2, "{at_once} changes were booked while all waited");
    let world = world.reopen();
    let file = world.id("file");
    // And back: another file takes all of it, the first one goes, the cleaner has nothing to do with it.
    let copy = world.file("copy");
    let size = world.fs.getattr(file).unwrap().size;
    world.fs.clone_range((file, 0), (copy, 0), size).unwrap();
    world.fs.unlink(world.fs.root(), b"file").unwrap();
    world.fs.forget(file, 2);
    world.fs.sync().unwrap();
    let (_, at_once) = world.fs.booking_cost();
    assert!(at_once <= most.early / 2, "{at_once} changes were booked while all waited");
    world.finish("settled-in-slices");
}

/// Deleting a snapshot whose leaves it alone has queues a reference for each extent in them.
#[test]
fn a_deleted_snapshot_is_booked_in_slices() {
    let booking = Booking { early: 64, slice: 16, left: 32 };
    let options = Options { policies: Policies { booking, ..Policies::default() }, ..Options::default() };
    let world = World::with(&MkfsOptions::default(), options, 256 << 20);
    let file = shared_with_itself(&world, 3000);
    world.fs.snapshot(world.fs.root().tree, world.fs.root(), b"snapshot", true).unwrap();
    truncate(&world, file, BLOCK);
    world.fs.delete_subvolume(world.fs.root(), b"snapshot").unwrap();
    while world.fs.clean_once().unwrap() {}
    world.fs.sync().unwrap();
    let (_, at_once) = world.fs.booking_cost();
    assert!(at_once <= 8 * booking.slice, "{at_once} changes were booked while all waited");
    assert_eq!(world.content(world.id("file")), pattern(1, BLOCK as usize));
    world.finish("snapshot-in-slices");
}

/// The position in inode `ino` whose reference by `tree` has the hash `wanted`: the checksum is linear in the 32 bits
/// above the block, and a bijection of them.
fn colliding_position(tree: u64, ino: u64, wanted: u64) -> u64 {
    let hash = |blocks: u64| extent_data_ref_hash(tree, ino, blocks * BLOCK);
    let base = hash(0);
    let mut rows: Vec<(u64, u64)> = (0..32).map(|bit| (hash(1 << bit) ^ base, 1 << bit)).collect();
    let (mut left, mut blocks) = (wanted ^ base, 0);
    for bit in (0..32).rev() {
        let Some(pivot) = rows.iter().position(|(column, _)| column >> bit & 1 == 1) else { continue };
        let (column, combination) = rows.swap_remove(pivot);
        for (other, combined) in &mut rows {
            if *other >> bit & 1 == 1 {
                (*other, *combined) = (*other ^ column, *combined ^ combination);
            }
        }
        if left >> bit & 1 == 1 {
            (left, blocks) = (left ^ column, blocks ^ combination);
        }
    }
    assert_eq!(hash(blocks), wanted);
    blocks * BLOCK
}

/// References with one hash lie one behind another. Some go, which leaves gaps, and come again: each is stored once,
/// and found wherever it lies.
#[test]
fn colliding_references_are_stored_once_and_found() {
    for booking in [Booking::default(), Booking { early: 3, slice: 2, left: 1 }] {
        let options = Options { policies: Policies { booking, ..Policies::default() }, ..Options::default() };
        let world = World::with(&MkfsOptions::default(), options, 256 << 20);
        // More than fit into the extent item.
        let file = shared_with_itself(&world, 50);
        let tree = world.fs.root().tree.0;
        let wanted = extent_data_ref_hash(tree, 999, 0);
        let files: Vec<(InodeId, u64)> = (0..40)
            .map(|n| {
                let id = world.file(&format!("collision-{n}"));
                (id, colliding_position(tree, id.ino.0, wanted))
            })
            .collect();
        let clone = |(id, at): (InodeId, u64)| {
            world.fs.clone_range((file, 0), (id, at), BLOCK).unwrap();
        };
        files.iter().for_each(|file| clone(*file));
        world.fs.sync().unwrap();
        let rounds: [&dyn Fn(usize) -> bool; 4] =
            [&|n| n % 3 == 1, &|n| n < 20, &|n| n == 0 || n == 39, &|n| n % 2 == 0];
        for gone in rounds {
            let chosen = || files.iter().enumerate().filter(|(n, _)| gone(*n)).map(|(_, file)| *file);
            chosen().for_each(|(id, _)| truncate(&world, id, 0));
            // The other way round, so that they would take each other's places.
            let mut again: Vec<_> = chosen().collect();
            again.reverse();
            again.into_iter().for_each(clone);
            world.fs.sync().unwrap();
        }
        let image = world.after_power_cut();
        for (id, at) in &files {
            let mut read = Vec::new();
            image.fs.read(*id, *at, BLOCK as usize, &mut read).unwrap();
            assert_eq!(read, pattern(1, BLOCK as usize), "{:?}", Ino(id.ino.0));
        }
        image.finish("collisions");
        files.iter().for_each(|(id, _)| truncate(&world, *id, 0));
        truncate(&world, file, 0);
        world.finish("collisions-gone");
    }
}
