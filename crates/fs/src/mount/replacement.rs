//! A device that is being replaced, as the last mount left it: by us or by the kernel, ended in order or not.
//!
//! The new device gets every write from the beginning, before a log is replayed. Whoever goes on copying begins anew
//! where the new device may lack something: after a crash, and when it was away.

use crate::error::{Error, Result};
use crate::transaction::Core;
use butterfs_device::BlockDevice;
use butterfs_ondisk::items::DevReplaceItem;
use butterfs_ondisk::{DeviceId, Key, KeyType};
use std::sync::Arc;
use zerocopy::FromBytes;

/// Reads the item, and has the new device follow. Returns a device that takes over from none any more: a power cut came
/// before the replacement had begun, or before the target of one that was given up was wiped.
pub(super) fn load(core: &Core, is_degraded: bool, notes: &mut Vec<String>) -> Result<Option<Arc<dyn BlockDevice>>> {
    let mut left = None;
    let target = core.volume.target();
    let mut item = match core.globals().dev.get(core, Key::new(0, KeyType::DEV_REPLACE, 0))? {
        Some(data) => {
            DevReplaceItem::read_from_prefix(&data)
                .map_err(|_| Error::corrupt(format!("the item of a replacement has {} bytes", data.len())))?
                .0
        }
        None => DevReplaceItem { src_devid: DevReplaceItem::NO_DEVICE.into(), ..DevReplaceItem::default() },
    };
    match (item.is_active(), target) {
        (true, Some(target)) => {
            let source = DeviceId(item.src_devid.get());
            let is_known = core.devices.space.lock().devices.contains_key(&source);
            if !is_known {
                return Err(Error::corrupt(format!("device {source} is being replaced, and there is none")));
            }
            let was_away = target.generation < core.superblock().generation.get();
            if item.state.get() == DevReplaceItem::STARTED || was_away {
                item.cursor_left = 0.into();
                item.cursor_right = 0.into();
            }
            core.volume.begin_twin(source, target.item, target.device);
            core.volume.twins_take_superblocks(true);
        }
        (true, None) if is_degraded || core.is_read_only() => {
            // What is written now, the new device lacks.
            item.cursor_left = 0.into();
            item.cursor_right = 0.into();
            notes.push("a device is being replaced, and the new one (devid 0) was not given: it waits".to_owned());
        }
        (true, None) => {
            let what = "cannot mount because device replace operation is ongoing and tgtdev (devid 0) is missing";
            return Err(Error::Incomplete(what.into()));
        }
        (false, Some(target)) => {
            notes.push(format!("{} takes over from no device any more: it is left alone", target.device.name()));
            core.volume.forget_target();
            left = Some(target.device);
        }
        (false, None) => {}
    }
    *core.devices.replacement.lock() = item;
    Ok(left)
}
