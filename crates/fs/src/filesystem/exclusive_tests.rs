//! Which operations exclude which.

use super::{ExclusiveOperation, Filesystem};
use crate::mkfs::{MkfsOptions, mkfs};
use crate::{Env, Errno, Options};
use butterfs_device::{BlockDevice, MemoryDevice};
use std::sync::Arc;

fn filesystem() -> Filesystem {
    let devices: Vec<Arc<dyn BlockDevice>> = vec![Arc::new(MemoryDevice::new(128 << 20))];
    mkfs(&devices, &MkfsOptions::default(), &Env::system()).unwrap();
    Filesystem::open(devices, Options::default(), Env::system()).unwrap()
}

#[test]
fn one_at_a_time() {
    let filesystem = filesystem();
    let resize = filesystem.begin_exclusive(ExclusiveOperation::Resize).unwrap();
    let refused = filesystem.begin_exclusive(ExclusiveOperation::Balance).err().unwrap();
    assert!(refused.is(Errno::EINPROGRESS));
    assert_eq!(refused.to_string(), "unable to start balance, another exclusive operation 'resize' in progress");
    assert!(!filesystem.cancel_exclusive(ExclusiveOperation::Balance));
    assert!(filesystem.cancel_exclusive(ExclusiveOperation::Resize));
    assert!(resize.progress().must_go_on().err().unwrap().is(Errno::ECANCELED));
    drop(resize);
    drop(filesystem.begin_exclusive(ExclusiveOperation::Balance).unwrap());
    assert!(filesystem.exclusive_operation().is_none());
}

#[test]
fn a_device_is_added_beside_a_paused_balance() {
    let filesystem = filesystem();
    let balance = filesystem.begin_exclusive(ExclusiveOperation::Balance).unwrap();
    assert!(filesystem.begin_exclusive(ExclusiveOperation::DeviceAdd).is_err());
    balance.become_operation(ExclusiveOperation::BalancePaused).unwrap();
    assert!(filesystem.begin_exclusive(ExclusiveOperation::DeviceRemove).is_err());
    let add = filesystem.begin_exclusive(ExclusiveOperation::DeviceAdd).unwrap();
    assert!(filesystem.begin_exclusive(ExclusiveOperation::DeviceAdd).is_err(), "two are enough");
    assert!(balance.become_operation(ExclusiveOperation::Balance).is_err(), "it is resumed when the device is there");
    drop(add);
    balance.become_operation(ExclusiveOperation::Balance).unwrap();
}
