//! Operations on the whole filesystem.

use crate::meter::{Operation, Reach};
use crate::world::{ROOT, quiet_env};
use Reach::{All, One};
use butterfs_device::BlockDevice;
use butterfs_fs::{Errno, Error, Filesystem, Options, SetAttr};
use std::sync::Arc;

/// See the [module](self).
pub const OPERATIONS: &[Operation] = &[
    Operation::new("sync", "nothing is changed", One, |s, m| {
        s.world.fs.sync().unwrap();
        m.call(s, || s.world.fs.sync()).unwrap();
    }),
    Operation::new("sync", "one file is changed", One, |s, m| {
        s.world.fs.sync().unwrap();
        s.world.fs.setattr(&ROOT, s.file, &SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
        m.call(s, || s.world.fs.sync()).unwrap();
    }),
    Operation::new("set_read_only", "", One, |s, m| {
        s.world.fs.sync().unwrap();
        m.call(s, || s.world.fs.set_read_only(true)).unwrap();
        s.world.fs.set_read_only(false).unwrap();
    }),
    Operation::new("statfs", "", One, |s, m| {
        let _ = m.call(s, || s.world.fs.statfs());
    }),
    Operation::new("block_groups", "", All, |s, m| {
        let _ = m.call(s, || s.world.fs.block_groups());
    }),
    Operation::new("device_stats", "", One, |s, m| {
        let _ = m.call(s, || s.world.fs.device_stats());
    }),
    Operation::new("reset_device_stats", "", One, |s, m| {
        let _ = m.call(s, || s.world.fs.reset_device_stats(None)).unwrap();
    }),
    Operation::new("scrub", "", All, |s, m| {
        let settings = butterfs_fs::scrub::Settings::default();
        let _ = m.call(s, || s.world.fs.scrub(settings, Vec::new())).unwrap();
    }),
    Operation::new("scrub_selection", "of a file", One, |s, m| {
        let _ = m.call(s, || s.world.fs.scrub_selection(&[s.file])).unwrap();
    }),
    Operation::new("set_label", "", One, |s, m| m.call(s, || s.world.fs.set_label(b"label")).unwrap()),
    Operation::new("transaction", "", One, |s, m| {
        m.call(s, || s.world.fs.transaction(|together| together.set_label(b"together"))).unwrap();
    }),
    Operation::new("transaction", "taken back", All, |s, m| {
        let taken_back = || s.world.fs.transaction(|_| Err::<(), _>(Error::refused(Errno::EINTR, "on purpose")));
        m.call(s, taken_back).unwrap_err();
    }),
    Operation::new("memory_held", "", One, |s, m| {
        let _ = m.call(s, || s.world.fs.memory_held());
    }),
    Operation::new("age_caches", "", All, |s, m| m.call(s, || s.world.fs.age_caches())),
    Operation::new("resync", "", One, |s, m| {
        let _ = m.call(s, || s.world.fs.resync()).unwrap();
    }),
    Operation::new("has_log", "", One, |s, m| {
        let device: Arc<dyn BlockDevice> = Arc::new(s.world.device.snapshot());
        m.call(s, || Filesystem::has_log(vec![device])).unwrap();
    }),
    Operation::new("open", "", All, |s, m| {
        let device: Arc<dyn BlockDevice> = Arc::new(s.world.device.snapshot());
        let opened = m.call(s, || Filesystem::open(vec![device], Options::default(), quiet_env())).unwrap();
        m.add(opened.work());
    }),
    Operation::new("shutdown", "", All, |s, m| {
        let other = s.world.after_power_cut();
        m.call_on(&other.fs, || other.fs.shutdown()).unwrap();
    }),
];
