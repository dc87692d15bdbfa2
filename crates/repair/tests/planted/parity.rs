//! RAID5 of which one device was partly overwritten.

use crate::{actions, options, support, text};
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_ondisk::items::block_group_flags as bits;
use butterfs_repair::{Plan, apply, plan, undo};
use butterfs_testkit::editor::Editor;
use butterfs_testkit::kernel::{KernelMount, check_several, run, run_ok};
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::load;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of each device.
const LEN: u64 = 192 << 20;
const PIECE: usize = 64 << 10;
const SECTOR: usize = 4096;

type Disks = Vec<Arc<MemoryDevice>>;

fn shared(disks: &Disks) -> Vec<Arc<dyn BlockDevice>> {
    disks.iter().map(|disk| disk.clone() as Arc<dyn BlockDevice>).collect()
}

fn images(scratch: &support::Scratch) -> Vec<PathBuf> {
    (1..4).map(|number| scratch.0.join(format!("disk{number}"))).collect()
}

fn contents(folder: &Path) -> BTreeMap<OsString, Vec<u8>> {
    let entries = std::fs::read_dir(folder).expect("it is a folder").flatten();
    entries.map(|entry| (entry.file_name(), std::fs::read(entry.path()).expect("it can be read"))).collect()
}

/// Devices with RAID5 that the kernel has filled, and what is on them.
fn made(scratch: &support::Scratch) -> (Disks, BTreeMap<OsString, Vec<u8>>) {
    let images = images(scratch);
    for image in &images {
        std::fs::File::create(image).and_then(|file| file.set_len(LEN)).expect("an image can be made");
    }
    let mut arguments = vec!["-q", "-f", "-n", "4096", "-d", "raid5", "-m", "raid5"];
    arguments.extend(images.iter().map(|image| image.to_str().expect("text")));
    run_ok(60, "mkfs.btrfs", &arguments);
    let mount = KernelMount::several(&images, "noatime");
    let fill = "for i in $(seq 12); do head -c $((i * 40000)) /dev/urandom > f$i; done; sync";
    run_ok(60, "bash", &["-c", &format!("cd {} && {fill}", mount.path().display())]);
    let before = contents(mount.path());
    mount.finish();
    (images.iter().map(|image| Arc::new(load(image))).collect(), before)
}

/// Overwrites half of the pieces of the second device.
fn overwrite(disks: &Disks) -> Disks {
    let disks: Disks = disks.iter().map(|disk| Arc::new(disk.snapshot())).collect();
    let (mut random, mut bytes) = (Rng::new(4), vec![0; PIECE]);
    for at in (2 << 20..LEN).step_by(PIECE) {
        if random.below(2) == 0 {
            random.fill(&mut bytes);
            disks[1].write_at(at, &bytes).expect("memory can be written");
        }
    }
    disks
}

fn planned(disks: &Disks) -> Plan {
    plan(&shared(disks), &options("checksum"), &|_, _| {}).expect("there is a plan")
}

fn said(made: &Plan) -> String {
    format!("trouble {:?}\n  steps:{}\n  after:{}", made.trouble, actions(made), text(&made.after))
}

#[test]
fn one_damaged_device_of_raid5_is_rebuilt() {
    if !support::kernel("raid5") {
        return;
    }
    let scratch = support::Scratch::new("raid5");
    let (sound, before) = made(&scratch);
    let damaged = overwrite(&sound);
    let disks: Disks = damaged.iter().map(|disk| Arc::new(disk.snapshot())).collect();
    let made = planned(&disks);
    assert!(made.is_clean() && made.before.errors > 0, "{}", said(&made));
    let file = MemoryDevice::new(made.undo_len());
    apply(&made, &shared(&disks), &file).expect("memory can be written");
    let images = images(&scratch);
    disks.iter().zip(&images).for_each(|(disk, image)| crate::kernel::write_image(disk, image));
    check_several(&images);
    let mount = KernelMount::several(&images, "noatime");
    assert!(contents(mount.path()) == before, "a file differs");
    let scrub = run(60, "btrfs", &["scrub", "start", "-B", mount.path().to_str().expect("text")]);
    assert!(scrub.output.contains("no errors found"), "{}", scrub.output);
    mount.finish();
    undo(&shared(&disks), &file).expect("it can be undone");
    let is_back = disks.iter().zip(&damaged).all(|(disk, damaged)| support::same(disk, damaged));
    assert!(is_back, "undo does not bring the damaged devices back");
}

/// Overwrites some sectors of a file on the first device where the second one was overwritten at the same depth.
fn strike(sound: &Disks, damaged: &Disks, content: &[u8]) {
    let map = Editor::open(shared(sound)).volume.chunk_map();
    let sector_at = |disk: &MemoryDevice, at: u64| {
        let mut bytes = vec![0; SECTOR];
        disk.read_at(at, &mut bytes).expect("it is inside");
        bytes
    };
    let mut struck = 0;
    for chunk in map.iter().filter(|chunk| chunk.kind & bits::DATA != 0) {
        let start_on = |number: u64| {
            let own = chunk.stripes.iter().find(|stripe| stripe.device.get() == number);
            own.expect("it lies on all devices").physical.get()
        };
        for depth in (0..chunk.stripe_length().min(16 << 20)).step_by(SECTOR) {
            let (first, second) = (start_on(1) + depth, start_on(2) + depth);
            let bytes = sector_at(&sound[0], first);
            let is_of_file = content.chunks_exact(SECTOR).any(|sector| sector == bytes);
            if struck < 4 && is_of_file && sector_at(&sound[1], second) != sector_at(&damaged[1], second) {
                damaged[0].write_at(first, &[0x5a; SECTOR]).expect("memory can be written");
                struck += 1;
            }
        }
    }
    assert_eq!(struck, 4, "the file lies on both devices");
}

/// A row with two bad elements cannot be rebuilt: the plan names it, and repairs all other rows.
#[test]
fn a_row_that_is_lost_stops_no_other_one() {
    if !support::kernel("raid5-lost") {
        return;
    }
    let scratch = support::Scratch::new("raid5-lost");
    let (sound, before) = made(&scratch);
    let damaged = overwrite(&sound);
    let largest = before.values().max_by_key(|content| content.len()).expect("there are files");
    strike(&sound, &damaged, largest);
    let made = planned(&damaged);
    assert!(made.trouble.is_none(), "{}", said(&made));
    let is_lost = |finding: &butterfs_check::Finding| finding.id() == "data-checksum";
    assert!(made.after.findings.iter().all(is_lost) && (4..=16).contains(&made.after.errors), "{}", said(&made));
    assert!(made.actions.iter().any(|action| action.what.starts_with("leaves the row")), "{}", actions(&made));
}
