//! Power cuts while a plan is written, and while it is taken back: whatever a crash leaves is the filesystem before or
//! after the repair, and running the same step again ends as if nothing had happened.

#[allow(dead_code)] // a part is used
#[path = "../../../check/tests/planted/plants.rs"]
mod plants;
#[path = "../../../check/tests/support/mod.rs"]
mod support;

use butterfs_check::Options as CheckOptions;
use butterfs_device::{BlockDevice, Event, Kept, MemoryDevice, Recorder};
use butterfs_repair::{Options, Plan, apply, plan, resume, undo};
use butterfs_testkit::editor::Editor;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Damages that differ in what is written: trees, a copy in place, superblocks.
const DAMAGES: &[&str] =
    &["reference-count", "tree-block-copy", "superblock-primary", "superblock-copy", "inode-link-count"];
/// Crashes of each kind for each damage.
const CRASHES: u64 = 4;

fn devices(device: &Arc<MemoryDevice>) -> Vec<Arc<dyn BlockDevice>> {
    vec![device.clone()]
}

fn findings(device: &Arc<MemoryDevice>) -> BTreeSet<&'static str> {
    let report = butterfs_check::check(devices(device), &CheckOptions::default(), &|_| {});
    report.findings.iter().map(|finding| finding.id()).collect()
}

/// A number that looks random, from a few.
fn mixed(numbers: &[u64]) -> u64 {
    numbers.iter().fold(0x9e37_79b9, |sum, number| (sum ^ number).wrapping_mul(0x2545_f491_4f6c_dd1d).rotate_left(29))
}

/// The kept part of a write that was on its way: all, nothing, or some sectors.
fn kept(seed: u64, index: usize, event: &Event) -> Kept {
    let len = match event {
        Event::Write { data, .. } => data.len() as u64 / 512,
        _ => 1,
    };
    let chance = mixed(&[seed, index as u64]);
    match chance % 3 {
        0 => Kept::Whole,
        1 => Kept::Nothing,
        _ => Kept::Sectors(0..1 + chance / 7 % len.max(1)),
    }
}

/// The recorded changes of image and undo file while `what` runs on the image `base` and the undo file `file`.
fn recorded(
    base: &MemoryDevice,
    file: &MemoryDevice,
    what: &dyn Fn(Arc<dyn BlockDevice>, &dyn BlockDevice),
) -> Recorder {
    let recorder = Recorder::new();
    let image: Arc<dyn BlockDevice> = Arc::new(recorder.record(Arc::new(base.snapshot())));
    let saved = recorder.record(Arc::new(file.snapshot()));
    what(image, &saved);
    recorder
}

fn crashed(recorder: &Recorder, seed: u64, base: &MemoryDevice, file: &MemoryDevice) -> [Arc<MemoryDevice>; 2] {
    let left = [Arc::new(base.snapshot()), Arc::new(file.snapshot())];
    let prefix = (mixed(&[seed]) % (recorder.len() as u64 + 1)) as usize;
    let bases: [&dyn BlockDevice; 2] = [&*left[0], &*left[1]];
    recorder.crash(prefix, &bases, &mut |index, event| kept(seed, index, event)).expect("memory can be written");
    left
}

fn planned(damaged: &Arc<MemoryDevice>) -> Plan {
    let options = Options { now: 1_700_000_000, ..Options::default() };
    let made = plan(&devices(damaged), &options, &|_, _| {}).expect("there is a plan");
    assert!(made.is_clean(), "{:#?}", made.after.findings);
    made
}

fn check_damage(damaged: &Arc<MemoryDevice>, id: &str) {
    let made = planned(damaged);
    let empty = MemoryDevice::new(made.undo_len());
    let (repaired, whole) = (Arc::new(damaged.snapshot()), Arc::new(empty.snapshot()));
    apply(&made, &devices(&repaired), &*whole).expect("the plan can be written");
    let (before, after) = (findings(damaged), findings(&repaired));
    assert!(after.is_empty() && !before.is_empty(), "{id}: {after:?}");
    let forwards = recorded(damaged, &empty, &|image, file| {
        apply(&made, &[image], file).expect("it is written");
    });
    for seed in 0..CRASHES {
        let [image, file] = crashed(&forwards, seed, damaged, &empty);
        let found = findings(&image);
        // Copies that are bad may be repaired before the rest is; a superblock that is on its way may be torn.
        let new: Vec<_> = found.difference(&before).filter(|id| !id.starts_with("superblock-")).collect();
        assert!(new.is_empty(), "{id}, crash {seed}: {new:?}");
        match resume(&devices(&image), &*file).expect("it can go on") {
            None => {
                assert!(support::same(&image, damaged), "{id}, crash {seed}: written before the undo file was complete")
            }
            Some(_) => assert!(support::same(&image, &repaired), "{id}, crash {seed}: not as if it had never happened"),
        }
    }
    let backwards = recorded(&repaired, &whole, &|image, file| {
        undo(&[image], file).expect("it is taken back");
    });
    for seed in 0..CRASHES {
        let [image, file] = crashed(&backwards, seed, &repaired, &whole);
        undo(&devices(&image), &*file).expect("it can go on");
        assert!(support::same(&image, damaged), "{id}, crash {seed} while undoing");
    }
}

#[test]
fn power_cuts_leave_the_filesystem_before_or_after_the_repair() {
    let Some(base) = support::filled("repair-power", 160 << 20, &[]) else { return };
    let mut planted = 0;
    for (id, plant) in plants::all().filter(|(id, _)| DAMAGES.contains(id)) {
        let (editor, copy) = Editor::of_copy(&base);
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| plant(&editor))).is_err() {
            continue;
        }
        planted += 1;
        check_damage(&copy, id);
    }
    assert!(planted >= 3, "only {planted} damages could be planted");
}

#[test]
fn an_undo_file_belongs_to_what_it_was_made_of() {
    let Some(base) = support::filled("repair-identity", 160 << 20, &[]) else { return };
    let (editor, damaged) = Editor::of_copy(&base);
    editor.superblock(|sb| sb.bytes_used = (sb.bytes_used.get() + 4096).into());
    let made = planned(&damaged);
    let file = MemoryDevice::new(made.undo_len());
    let image = Arc::new(damaged.snapshot());
    // Somebody writes between the plan and its end.
    image.write_at(65536 + 300, &[1]).unwrap();
    let error = apply(&made, &devices(&image), &file).unwrap_err();
    assert!(error.to_string().contains("has changed since the plan was made"), "{error}");
    let image = Arc::new(damaged.snapshot());
    apply(&made, &devices(&image), &file).unwrap();
    image.write_at(65536 + 300, &[1]).unwrap();
    let error = undo(&devices(&image), &file).unwrap_err();
    assert!(error.to_string().contains("has been written since"), "{error}");
    for at in [0, 20, 60, 4096, 4200] {
        let broken = file.snapshot();
        let mut byte = [0];
        broken.read_at(at, &mut byte).unwrap();
        broken.write_at(at, &[byte[0] ^ 0x55]).unwrap();
        assert!(undo(&devices(&image), &broken).is_err(), "byte {at} of the undo file");
    }
}
