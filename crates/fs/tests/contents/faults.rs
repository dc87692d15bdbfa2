//! Bad checksums, good copies, failing devices.

use super::world::{World, pattern};
use butterfs_device::BlockDevice;
use butterfs_fs::mkfs::MkfsOptions;
use butterfs_fs::{Errno, Options};
use butterfs_ondisk::profile::Profile;

/// Finds `data` on the device and flips one byte in the middle of it.
fn damage(device: &dyn BlockDevice, data: &[u8]) -> usize {
    let mut found = 0;
    let mut sector = vec![0; 4096];
    for at in (0..device.len()).step_by(4096) {
        device.read_at(at, &mut sector).unwrap();
        if sector[..] == data[..4096] {
            sector[1000] ^= 1;
            device.write_at(at, &sector).unwrap();
            found += 1;
        }
    }
    found
}

#[test]
fn a_flipped_bit_is_an_error_and_never_content() {
    let world = World::new();
    let id = world.file("file");
    let data = pattern(1, 1 << 20);
    world.write(id, 0, &data);
    world.fs.sync().unwrap();
    assert_eq!(damage(&*world.device, &data[40960..]), 1);
    let world = world.reopen();
    let id = world.id("file");
    let mut out = Vec::new();
    let error = world.fs.read(id, 0, 1 << 20, &mut out).unwrap_err();
    assert_eq!((error.errno(), out.len()), (Errno::EIO, 0));
    assert!(error.to_string().contains(&format!("inode {}", id.ino)), "{error}");
    world.fs.read(id, 0, 40960, &mut out).unwrap();
    assert!(out == data[..40960]);
    // A write that keeps a part of the bad sector fails, one that replaces it heals.
    assert_eq!(world.fs.write(id, 41000, b"x", false).unwrap_err().errno(), Errno::EIO);
    world.write(id, 40960, &[7; 4096]);
    assert_eq!(world.fs.read(id, 0, 1 << 20, &mut out).unwrap(), 1 << 20);
}

/// Flips a bit in one of the copies of each sector of `data`, turn by turn; returns how many copies there are.
fn damage_in_turn(device: &dyn BlockDevice, data: &[u8]) -> usize {
    let mut seen = vec![0; data.len() / 4096];
    let mut sector = vec![0; 4096];
    for at in (0..device.len()).step_by(4096) {
        device.read_at(at, &mut sector).unwrap();
        let Some(index) = data.chunks(4096).position(|own| own == sector) else { continue };
        if seen[index] == index % 2 {
            sector[7] ^= 4;
            device.write_at(at, &sector).unwrap();
        }
        seen[index] += 1;
    }
    assert!(seen.iter().all(|&copies| copies == seen[0]));
    seen[0]
}

#[test]
fn bad_sectors_are_read_from_the_other_copy_and_repaired() {
    let made = MkfsOptions { data: Profile::named("dup"), ..MkfsOptions::default() };
    let world = World::with(&made, Options::default(), 256 << 20);
    let id = world.file("file");
    let data = pattern(5, 400_000 / 4096 * 4096);
    world.write(id, 0, &data);
    world.fs.sync().unwrap();
    // Neither copy is good as a whole.
    assert_eq!(damage_in_turn(&*world.device, &data), 2);
    let world = world.reopen();
    assert!(world.content(world.id("file")) == data);
    // Now both are: each can be damaged as a whole.
    assert_eq!(damage_in_turn(&*world.device, &data), 2);
    assert!(world.content(world.id("file")) == data);
    world.finish("repaired");
}

#[test]
fn a_failing_device_keeps_what_was_written_and_says_so_at_fsync() {
    let world = World::new();
    world.file("file");
    world.fs.sync().unwrap();
    let (fs, device) = world.behind_faults();
    let id = fs.lookup(fs.root(), b"file").unwrap().id;
    let data = pattern(3, 300_000);
    fs.write(id, 0, &data, false).unwrap();
    device.fail_writes();
    assert!(fs.fsync(id, false).is_err());
    let mut out = Vec::new();
    fs.read(id, 0, data.len(), &mut out).unwrap();
    assert!(out == data, "reads go on");
    assert!(fs.fsync(id, false).is_err(), "and it is not forgotten");
    device.clear();
    match fs.fsync(id, false) {
        Ok(()) => {}
        Err(error) => assert_eq!(error.errno(), Errno::EROFS),
    }
}
