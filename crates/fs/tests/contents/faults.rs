//! Bad checksums, good copies, failing devices.

use super::world::{ROOT, World, pattern, quiet_env};
use butterfs_device::{BlockDevice, Fault, FaultRule, FaultyDevice, Operation};
use butterfs_fs::mkfs::MkfsOptions;
use butterfs_fs::{Errno, Filesystem, InodeId, Options, inode_flags};
use butterfs_ondisk::items::block_group_flags;
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

/// From now on the device takes no data in the first `len` bytes of each data chunk.
fn refuse_data(fs: &Filesystem, device: &FaultyDevice, len: u64) {
    for chunk in fs.chunks().iter().filter(|chunk| chunk.kind & block_group_flags::DATA != 0) {
        let start = chunk.stripes[0].physical.0;
        let fails = FaultRule::always(Operation::Write, Fault::Fail);
        device.add_rule(fails.within(start..start + chunk.stripe_length().min(len)));
    }
}

fn content(fs: &Filesystem, id: InodeId) -> Vec<u8> {
    let mut out = Vec::new();
    fs.read(id, 0, 1 << 30, &mut out).unwrap();
    out
}

/// Three files: one that is copied on write, one that is preallocated, one without copy on write.
fn files_of_each_kind(world: &World) -> [&'static str; 3] {
    world.file("cow");
    let preallocated = world.file("preallocated");
    world.fs.fallocate(preallocated, 0, 0, 300_000, false).unwrap();
    let nodatacow = world.file("nodatacow");
    world.fs.set_flags(nodatacow, inode_flags::NODATACOW, inode_flags::NODATACOW).unwrap();
    world.write(nodatacow, 0, &pattern(9, 300_000));
    world.fs.sync().unwrap();
    ["cow", "preallocated", "nodatacow"]
}

#[test]
fn data_that_cannot_be_written_is_an_error_of_its_file() {
    let made = World::new();
    let names = files_of_each_kind(&made);
    for name in names {
        let (fs, device, memory) = made.behind_faults_on();
        let id = fs.lookup(fs.root(), name.as_bytes()).unwrap().id;
        let data = pattern(3, 300_000);
        fs.write(id, 0, &data, false).unwrap();
        refuse_data(&fs, &device, u64::MAX);
        for _ in 0..2 {
            assert_eq!(fs.fsync(id, false).unwrap_err().errno(), Errno::EIO, "{name}: until it is written");
        }
        let told = fs.take_messages();
        assert!(told.len() == 1 && told[0].contains(&format!("inode {}", id.ino)), "{name}: {told:?}");
        assert!(content(&fs, id) == data, "{name}: reads show what was written");
        // Everything else goes on, durably.
        let folder = fs.mkdir(&ROOT, fs.root(), b"folder", 0o755).unwrap().id;
        fs.fsync(folder, false).unwrap();
        let small = fs.create(&ROOT, folder, b"inline", 0o644).unwrap().id;
        fs.write(small, 0, b"inline", false).unwrap();
        assert_eq!(fs.sync().unwrap_err().errno(), Errno::EIO, "{name}: not everything is durable");
        fs.create_subvolume(&ROOT, fs.root(), b"subvolume").unwrap();
        fs.commit_recorded().unwrap();
        let cut = World::on(memory.snapshot().into());
        assert!(cut.content(cut.id("folder/inline")) == b"inline");
        cut.id("subvolume");
        // The device recovers, and nothing was lost.
        device.clear();
        fs.fsync(id, false).unwrap();
        let cut = World::on(memory.snapshot().into());
        assert!(cut.content(cut.id(name)) == data, "{name}");
        fs.shutdown().unwrap();
        cut.finish("data-error");
    }
}

#[test]
fn unwritable_data_takes_bounded_memory_and_stops_nobody() {
    const FILE: usize = 64 << 10;
    let options = Options { dirty_data_bytes: 2 << 20, ..Options::default() };
    let world = World::with(&MkfsOptions::default(), options, 256 << 20);
    let (fs, device, _) = world.behind_faults_on();
    refuse_data(&fs, &device, u64::MAX);
    let files: Vec<InodeId> = (0..100)
        .map(|number| {
            let id = fs.create(&ROOT, fs.root(), format!("file{number}").as_bytes(), 0o644).unwrap().id;
            fs.write(id, 0, &pattern(number, FILE), false).unwrap_or_else(|error| panic!("file {number}: {error}"));
            id
        })
        .collect();
    let lost = fs.take_messages().iter().filter(|message| message.contains("are lost")).count();
    assert!((60..100).contains(&lost), "{lost} files are lost");
    // Each is told of once.
    assert_eq!(fs.fsync(files[0], false).unwrap_err().errno(), Errno::EIO);
    fs.fsync(files[0], false).unwrap();
    assert_eq!(fs.fsync(files[1], true).unwrap_err().errno(), Errno::EIO);
    fs.fsync(files[1], true).unwrap();
    // Closing the filesystem says that data is lost, and all else is there.
    assert_eq!(fs.shutdown().unwrap_err().errno(), Errno::EIO);
    device.clear();
    let again = Filesystem::open(vec![device], Options::default(), quiet_env()).unwrap();
    assert!((0..100).all(|number| again.lookup(again.root(), format!("file{number}").as_bytes()).is_ok()));
}

#[test]
fn a_bad_place_does_not_catch_the_next_write_too() {
    let world = World::new();
    let (fs, device, _) = world.behind_faults_on();
    let id = fs.create(&ROOT, fs.root(), b"file", 0o644).unwrap().id;
    let data = pattern(4, 200_000);
    fs.write(id, 0, &data, false).unwrap();
    // The first place that data is written to is bad, and stays bad.
    refuse_data(&fs, &device, 1 << 20);
    assert_eq!(fs.fsync(id, false).unwrap_err().errno(), Errno::EIO);
    assert!((0..10).any(|_| fs.fsync(id, false).is_ok()), "a try goes to a place behind it");
    assert!(content(&fs, id) == data);
}
