//! Work on devices and chunks through the library: the same content afterwards, progress, cancelling, refusals.

use butterfs::{
    BalanceFilter, BalanceOutcome, Check, DataCheck, Device, DeviceId, DeviceSize, ErrorKind, Existing, Filesystem,
    MemoryDevice, Mkfs, OldDevice, Profile, RemovedDevice, Repair,
};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

fn filled(bytes: u64) -> (Device, Filesystem) {
    let disk = Device::memory(bytes);
    Mkfs::new().device(disk.clone()).run().unwrap();
    let filesystem = Filesystem::open(disk.clone()).unwrap();
    for number in 0..8u8 {
        filesystem.root().write(format!("file{number}"), vec![number; 4 * MIB as usize]).unwrap();
    }
    filesystem.sync().unwrap();
    (disk, filesystem)
}

/// The content is the one of [`filled`], and the checker finds nothing.
fn must_be_whole(filesystem: Filesystem, devices: &[Device]) {
    for number in 0..8u8 {
        let content = filesystem.root().read(format!("file{number}")).unwrap();
        assert!(content.len() as u64 == 4 * MIB && content.iter().all(|byte| *byte == number));
    }
    filesystem.close().unwrap();
    let check = devices.iter().cloned().fold(Check::new(), Check::device);
    let report = check.data(DataCheck::Verify).run().unwrap();
    assert!(report.is_clean(), "{:?}", report.findings());
}

#[test]
fn devices_are_added_replaced_and_removed() {
    let (first, filesystem) = filled(1024 * MIB);
    let (second, third) = (Device::memory(1024 * MIB), Device::memory(1024 * MIB));
    assert_eq!(filesystem.add_device(second.clone(), Existing::Keep).unwrap(), DeviceId::new(2));
    let refused = filesystem.add_device(second, Existing::Overwrite).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");

    let mut reports = 0;
    filesystem.remove_device(RemovedDevice::Id(DeviceId::new(1))).run().unwrap();
    let replacement = filesystem.replace_device(DeviceId::new(2), third.clone()).old_device(OldDevice::Avoid);
    replacement
        .on_progress(|progress| {
            reports += 1;
            assert!(progress.done_bytes <= progress.total_bytes.max(progress.done_bytes));
            ControlFlow::Continue(())
        })
        .run()
        .unwrap();
    assert!(reports > 0, "the end is reported");
    let devices = filesystem.devices();
    assert_eq!((devices.len(), devices[0].id, devices[0].total_bytes), (1, DeviceId::new(2), 1024 * MIB));
    must_be_whole(filesystem, &[third]);
    assert!(Filesystem::open(first).is_err(), "a removed device holds no filesystem");
}

#[test]
fn a_device_that_was_lost_is_replaced() {
    let disks: Vec<Device> = (0..2).map(|_| Device::memory(512 * MIB)).collect();
    Mkfs::new().devices(disks.clone()).data(Profile::Raid1).run().unwrap();
    let both = butterfs::Builder::new().devices(disks.clone()).open().unwrap();
    (0..8u8).for_each(|number| both.root().write(format!("file{number}"), vec![number; 4 * MIB as usize]).unwrap());
    both.close().unwrap();
    let one = butterfs::Builder::new().device(disks[0].clone()).missing_devices(butterfs::MissingDevices::Allow);
    let one = one.open().unwrap();
    assert!(one.devices()[1].name.is_none());
    let new = Device::memory(512 * MIB);
    one.replace_device(DeviceId::new(2), new.clone()).run().unwrap();
    assert!(one.devices()[1].name.is_some());
    must_be_whole(one, &[disks[0].clone(), new]);
}

#[test]
fn a_device_is_resized_and_refuses_senseless_sizes() {
    let (disk, filesystem) = filled(1024 * MIB);
    let id = DeviceId::new(1);
    filesystem.resize_device(id, DeviceSize::Shrink(400 * MIB)).run().unwrap();
    assert_eq!(filesystem.devices()[0].total_bytes, 624 * MIB);
    filesystem.resize_device(id, DeviceSize::Max).run().unwrap();
    assert_eq!(filesystem.devices()[0].total_bytes, 1024 * MIB);
    let too_large = filesystem.resize_device(id, DeviceSize::Grow(MIB)).run().unwrap_err();
    assert_eq!(too_large.kind(), ErrorKind::TooLarge, "{too_large}");
    let missing = filesystem.resize_device(DeviceId::new(7), DeviceSize::Max).run().unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound, "{missing}");
    must_be_whole(filesystem, &[disk]);
}

#[test]
fn a_balance_converts_and_is_cancelled() {
    let (first, filesystem) = filled(1024 * MIB);
    let second = Device::memory(1024 * MIB);
    filesystem.add_device(second.clone(), Existing::Keep).unwrap();
    let raid1 = BalanceFilter::new().convert(Profile::Raid1).skip_converted();
    let mut last = None;
    let balance = filesystem.balance().data(raid1).metadata(raid1).on_progress(|progress| {
        last = Some(*progress);
        ControlFlow::Continue(())
    });
    assert_eq!(balance.run().unwrap(), BalanceOutcome::Completed { no_space: 0 });
    assert!(last.is_some_and(|progress| progress.completed > 0 && progress.completed == progress.expected));
    let nothing = filesystem.balance().data(raid1).run().unwrap();
    assert_eq!(nothing, BalanceOutcome::Completed { no_space: 0 });
    assert!(filesystem.balance_status().is_none());
    let none = filesystem.resume_balance().run().unwrap_err();
    assert_eq!(none.kind(), ErrorKind::NotFound, "{none}");
    must_be_whole(filesystem, &[first, second]);
}

#[test]
fn a_scrub_repairs_and_names_the_file() {
    let memory = Arc::new(MemoryDevice::new(512 * MIB));
    let disk = Device::from(Arc::clone(&memory) as Arc<dyn butterfs::BlockDevice>);
    Mkfs::new().device(disk.clone()).data(Profile::Dup).run().unwrap();
    let filesystem = Filesystem::open(disk.clone()).unwrap();
    let content: Vec<u8> = (0..MIB).map(|at| (at * 7 / 4096) as u8 | 1).collect();
    filesystem.root().write("victim", &content).unwrap();
    filesystem.sync().unwrap();
    // The first copy of the file loses a sector.
    let mut sector = vec![0; 4096];
    let is_it = |at: &u64| {
        butterfs::BlockDevice::read_at(&*memory, *at, &mut sector).unwrap();
        sector == content[..4096]
    };
    let at = (0..512 * MIB).step_by(4096).find(is_it).expect("the file is on the device");
    butterfs::BlockDevice::write_at(&*memory, at, &[0; 4096]).unwrap();

    let look = filesystem.scrub().repair(Repair::ReportOnly).run().unwrap();
    assert!(!look.is_clean() && look.is_complete() && look.damage()[0].is_corrected());
    let report = filesystem.scrub().run().unwrap();
    let [damage] = report.damage() else { panic!("{:?}", report.damage()) };
    assert_eq!((damage.physical(), damage.len_bytes(), damage.device()), (at, 4096, DeviceId::new(1)));
    assert_eq!(damage.files()[0].path.as_deref(), Some(Path::new("victim")));
    assert!(damage.to_string().contains("repaired"), "{damage}");
    assert!(filesystem.scrub().run().unwrap().is_clean());
}

#[test]
fn free_space_is_discarded() {
    let (disk, filesystem) = filled(512 * MIB);
    filesystem.root().remove_file("file0").unwrap();
    filesystem.sync().unwrap();
    assert!(filesystem.discard_free_space(0).unwrap() > 4 * MIB);
    assert_eq!(filesystem.discard_free_space(u64::MAX).unwrap(), 0);
    filesystem.root().write("file0", vec![0; 4 * MIB as usize]).unwrap();
    must_be_whole(filesystem, &[disk]);
}
