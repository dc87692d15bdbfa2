//! Opening damaged filesystems, with a scan and without.

use butterfs_device::BlockDevice;
use butterfs_rescue::scan::{Settings, scan};
use butterfs_rescue::wreck::{Opening, Wreck};
use butterfs_rescue::{Result, superblocks};
use butterfs_testkit::scratch::Scratch;
use std::fs;
use std::sync::Arc;

/// Scans devices and opens what is there.
pub fn scanned(devices: &[Arc<dyn BlockDevice>], scratch: &Scratch) -> Result<Wreck> {
    let path = scratch.join("scan.map");
    let _ = fs::remove_file(&path);
    let map = scan(devices, &path, &Settings::default(), &mut |_| ())?;
    let copies = superblocks::copies(devices);
    let (index, identity) = map.into_index(superblocks::block_fsids(&copies, devices.len()))?;
    let opening = Opening { index: Some(index), identity: Some(identity), ..Opening::default() };
    Wreck::open(devices.to_vec(), opening)
}

/// Opens devices without a scan.
pub fn plain(devices: &[Arc<dyn BlockDevice>]) -> Result<Wreck> {
    Wreck::open(devices.to_vec(), Opening::default())
}
