//! Doing such work.

use super::target::Target;
use super::{Failing, Filters, Maintenance};
use butterfs_device::{BlockDevice, Operation};
use butterfs_fs::filesystem::{
    BalanceRun, BalanceState, ExclusiveOperation, NewSize, OldContent, RemovedDevice, ReplaceRequest, SourceReads,
    Storage,
};
use butterfs_fs::{BalanceArgs, BalanceItem, DeviceId, Errno, Error, Filesystem, Result};
use butterfs_ondisk::balance::{args_flags, balance_flags};
use std::cell::RefCell;
use std::sync::Arc;

/// The slots of a life, and the balance that runs in it.
#[derive(Default)]
pub(crate) struct Slots {
    devices: Vec<Arc<dyn BlockDevice>>,
    balance: RefCell<Option<BalanceRun>>,
}

/// Whether an error says that work was not begun, or ended early.
pub(crate) fn is_refusal(error: &Error) -> bool {
    const REFUSALS: [Errno; 10] = [
        Errno::ENOSPC,
        Errno::EINVAL,
        Errno::EINPROGRESS,
        Errno::ENOTCONN,
        Errno::ENODEV,
        Errno::ENOENT,
        Errno::EEXIST,
        Errno::EOPNOTSUPP,
        Errno::EFBIG,
        Errno::ECANCELED,
    ];
    REFUSALS.iter().any(|errno| error.is(*errno))
}

impl Slots {
    pub(crate) fn new(devices: Vec<Arc<dyn BlockDevice>>) -> Slots {
        Slots { devices, balance: RefCell::default() }
    }

    /// Does a step of it. Nothing is borrowed meanwhile: other steps run inside.
    pub(crate) fn perform(&self, fs: &Filesystem, what: &Maintenance) -> Result<()> {
        match what {
            Maintenance::Balance(filters) => {
                let run = fs.balance_begin(control(filters))?;
                *self.balance.borrow_mut() = Some(run);
                Ok(())
            }
            Maintenance::BalanceSteps(count) => self.balance(fs, *count),
            Maintenance::BalancePause => {
                drop(self.balance.take());
                Ok(())
            }
            Maintenance::BalanceCancel => self.cancel_balance(fs),
            Maintenance::Resize { slot, mib } => {
                let id = self.id(fs, *slot)?;
                fs.resize_device(id, NewSize::Bytes(mib << 20), Storage::Stays).map(drop)
            }
            Maintenance::Add { slot } => {
                fs.add_device(Arc::clone(&self.devices[*slot]), true, OldContent::Keep).map(drop)
            }
            Maintenance::Remove { slot } => fs.remove_device(RemovedDevice::Id(self.id(fs, *slot)?)),
            Maintenance::RemoveMissing => fs.remove_device(RemovedDevice::Missing),
            Maintenance::Replace { slot, target, spares_source, fails } => {
                self.replace(fs, *slot, *target, *spares_source, *fails)
            }
            Maintenance::ContinueReplace => fs.continue_replace()?.map_or(Ok(()), |replacement| replacement.run()),
            Maintenance::Cancel => {
                use ExclusiveOperation::{DeviceRemove, DeviceReplace, Resize};
                for work in [DeviceRemove, DeviceReplace, Resize] {
                    fs.cancel_exclusive(work);
                }
                Ok(())
            }
        }
    }

    /// The device in a slot.
    fn id(&self, fs: &Filesystem, slot: usize) -> Result<DeviceId> {
        let name = self.devices[slot].name();
        let is_there = |storage: &Option<(String, u64)>| storage.as_ref().is_some_and(|(path, _)| *path == name);
        let found = fs.device_usage().into_iter().find(|device| is_there(&device.storage));
        let none = || Error::refused(Errno::ENODEV, "the slot is spare");
        found.map(|device| device.id).ok_or_else(none)
    }

    fn balance(&self, fs: &Filesystem, count: usize) -> Result<()> {
        let run = self.balance.take();
        let mut run = run.map_or_else(|| fs.balance_begin_again(), Ok)?;
        for _ in 0..count {
            if fs.balance_step(&mut run)?.is_some() {
                return Ok(());
            }
        }
        *self.balance.borrow_mut() = Some(run);
        Ok(())
    }

    fn cancel_balance(&self, fs: &Filesystem) -> Result<()> {
        let is_running = fs.balance_status().is_some_and(|status| status.state != BalanceState::Paused);
        let run = self.balance.take();
        match run {
            Some(mut run) => {
                fs.balance_ask_to_cancel();
                while fs.balance_step(&mut run)?.is_none() {}
                Ok(())
            }
            // The step that runs it is the one inside which this one runs.
            None if is_running => {
                fs.balance_ask_to_cancel();
                Ok(())
            }
            None => fs.balance_cancel(),
        }
    }

    fn replace(
        &self,
        fs: &Filesystem,
        slot: Option<usize>,
        target: usize,
        spares_source: bool,
        fails: Option<Failing>,
    ) -> Result<()> {
        let missing = || fs.device_usage().into_iter().find(|device| device.storage.is_none());
        let source = match slot {
            Some(slot) => self.id(fs, slot)?,
            None => missing().ok_or_else(|| Error::refused(Errno::ENODEV, "no device is missing"))?.id,
        };
        let reads = if spares_source { SourceReads::Avoided } else { SourceReads::Allowed };
        let request = ReplaceRequest { source, reads, force: true, old: OldContent::Keep };
        let target = Arc::new(Target::new(Arc::clone(&self.devices[target])));
        match fails {
            Some(Failing::Write(after)) => target.fail(Operation::Write, after),
            Some(Failing::Flush(after)) => target.fail(Operation::Flush, after),
            None => (),
        }
        let replaced = fs.begin_replace(target.clone(), &request).and_then(|replacement| replacement.run());
        let has_failed = target.recover();
        match replaced {
            Err(_) if has_failed && fs.stopped().is_none() => Ok(()),
            replaced => replaced,
        }
    }
}

fn control(filters: &Filters) -> BalanceItem {
    let args = |target: Option<u64>| {
        let mut args = BalanceArgs::default();
        let mut flags = 0;
        if let Some(target) = target {
            args.target = target.into();
            flags |= args_flags::CONVERT | if filters.soft { args_flags::SOFT } else { 0 };
        }
        if let Some(usage) = filters.usage {
            args.set_usage(usage);
            flags |= args_flags::USAGE;
        }
        if let Some(limit) = filters.limit {
            args.set_limit(limit);
            flags |= args_flags::LIMIT;
        }
        args.flags = flags.into();
        args
    };
    BalanceItem {
        flags: (filters.types | balance_flags::FORCE).into(),
        data: args(filters.data),
        metadata: args(filters.metadata),
        system: args(filters.metadata),
        ..BalanceItem::default()
    }
}
