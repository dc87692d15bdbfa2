//! Whether the devices are still ours: asked before anything is written, because what is free for this process may hold
//! what the other one has written.
//!
//! Locks and claims keep out whoever asks for them. A loop device over an image file, `mkfs` on an image file, another
//! machine on the same disk, and `truncate` do not ask. Their traces are a primary superblock that this process has
//! neither read nor written, and a device that has become shorter. Writing a superblock then would destroy what the
//! other side has, so nothing is written any more. Between looking and writing somebody can still come; nothing
//! prevents that.

use crate::error::VolumeError;
use crate::member::Member;
use crate::volume::Volume;
use butterfs_ondisk::superblock::{OFFSETS, Superblock};

/// How closely to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Past the caches of block devices, whose storage others may reach too: for commits.
    Fresh,
    /// A cheap check: for logs and all other writes.
    Cached,
}

impl Volume {
    /// Refuses when the kernel uses the filesystem from the storage of a device that is open for writing.
    pub(crate) fn check_not_mounted(&self, sb: &Superblock) -> Result<(), VolumeError> {
        let members = self.members();
        let used = members.iter().filter(|member| !member.device.is_read_only()).find_map(|member| {
            let usage = member.device.kernel_use(&sb.fsid)?;
            Some(format!("{} is {usage}", member.device.name()))
        });
        used.map_or(Ok(()), |sentence| Err(VolumeError::refused_with(sentence, "unmount it first")))
    }

    /// Like the check before each write, but past the caches of block devices: for the beginning of a commit.
    pub fn check_ownership(&self) -> Result<(), VolumeError> {
        self.check_still_ours(Look::Fresh)
    }

    /// Refuses when a device in use is shorter than it was, or its primary superblock is not the one that this process
    /// knows. One that cannot be read is no sign of anything: writing will tell.
    pub(crate) fn check_still_ours(&self, look: Look) -> Result<(), VolumeError> {
        self.members().iter().filter(|member| member.is_in_use()).try_for_each(|member| check_member(member, look))
    }
}

fn check_member(member: &Member, look: Look) -> Result<(), VolumeError> {
    let (name, opened_len) = (member.device.name(), member.device.len());
    if let Some(len) = member.device.current_len().ok().filter(|len| *len < opened_len) {
        let sentence = format!("{name} has shrunk while it was in use: it had {opened_len} bytes, now {len}");
        return Err(VolumeError::refused_with(sentence, "what lay behind its end is lost; restore it from a copy"));
    }
    let is_known = member.superblock_is_known(|found| match look {
        Look::Fresh => member.device.read_fresh(OFFSETS[0].0, found),
        Look::Cached => member.device.read_at(OFFSETS[0].0, found),
    });
    if is_known {
        return Ok(());
    }
    let sentence = format!(
        "the superblock of {name} is not the one that was last written here: another program or machine has written to \
         the device while it was in use"
    );
    Err(VolumeError::refused_with(sentence, "unmount both; check the filesystem before it is used again"))
}

#[cfg(test)]
mod tests {
    use crate::fixture::{device_with, superblock};
    use crate::volume::Volume;
    use butterfs_device::{BlockDevice, MemoryDevice};
    use butterfs_ondisk::Logical;
    use butterfs_ondisk::superblock::{OFFSETS, Superblock};
    use std::io;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    const LEN: u64 = 65 << 20;

    /// A device with a cache of its own in front of it, which somebody else shortens or mounts.
    #[derive(Debug)]
    struct Shared {
        storage: Arc<MemoryDevice>,
        cached: MemoryDevice,
        len_now: AtomicU64,
        is_mounted: AtomicBool,
    }

    impl BlockDevice for Shared {
        fn len(&self) -> u64 {
            LEN
        }

        fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
            self.cached.read_at(offset, buf)
        }

        fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            self.cached.write_at(offset, data)?;
            self.storage.write_at(offset, data)
        }

        fn flush(&self) -> io::Result<()> {
            Ok(())
        }

        fn discard(&self, _offset: u64, _len: u64) -> io::Result<()> {
            Ok(())
        }

        fn name(&self) -> String {
            "disk1".to_owned()
        }

        fn current_len(&self) -> io::Result<u64> {
            Ok(self.len_now.load(Ordering::Relaxed))
        }

        fn read_fresh(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
            self.storage.read_at(offset, buf)
        }

        fn kernel_use(&self, _fsid: &[u8; 16]) -> Option<String> {
            self.is_mounted.load(Ordering::Relaxed).then(|| "mounted at /mnt through /dev/loop9".to_owned())
        }
    }

    fn shared() -> Arc<Shared> {
        let storage = device_with(&superblock(8, 1, LEN), 1, LEN);
        let cached = storage.snapshot();
        let (len_now, is_mounted) = (AtomicU64::new(LEN), AtomicBool::new(false));
        Arc::new(Shared { storage, cached, len_now, is_mounted })
    }

    fn open(device: &Arc<Shared>) -> (Volume, Superblock) {
        let (volume, mut sb, _) = Volume::open(vec![device.clone()]).unwrap();
        sb.generation = 9.into();
        (volume, sb)
    }

    #[test]
    fn own_superblocks_follow_each_other() {
        let device = shared();
        let (volume, sb) = open(&device);
        volume.write_superblock(&sb).unwrap();
        volume.write_unflushed_primary_superblock(&sb, &volume.device_items()).unwrap();
        volume.write_primary_superblock(&sb).unwrap();
        volume.write_superblock(&sb).unwrap();
    }

    #[test]
    fn a_foreign_superblock_is_never_overwritten() {
        let device = shared();
        let (volume, sb) = open(&device);
        let written = volume.device_items();
        // One byte of what a kernel would write through another loop device; no cache of ours shows it.
        device.storage.write_at(OFFSETS[0].0 + 72, &[77]).unwrap();
        let foreign = device.storage.to_bytes();
        for error in [volume.write_superblock(&sb), volume.write_primary_superblock_with(&sb, &written)] {
            let error = error.unwrap_err();
            assert!(error.to_string().contains("another program or machine has written to the device"), "{error}");
        }
        assert!(device.storage.to_bytes() == foreign, "nothing was written, the secondary superblocks neither");
        volume.check_ownership().unwrap_err();
        device.cached.write_at(OFFSETS[0].0 + 72, &[77]).unwrap();
        let error = volume.write(Logical(22 << 20), &[0; 4096]).unwrap_err();
        assert!(error.to_string().contains("another program or machine"), "{error}");
        volume.write_unflushed_primary_superblock(&sb, &written).unwrap_err();
        assert!(device.storage.to_bytes() == foreign);
    }

    #[test]
    fn a_device_that_has_shrunk_is_never_written() {
        let device = shared();
        let (volume, sb) = open(&device);
        device.len_now.store(LEN - 1, Ordering::Relaxed);
        let error = volume.write_superblock(&sb).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("disk1 has shrunk while it was in use: it had {LEN} bytes, now {}", LEN - 1)
        );
    }

    #[test]
    fn devices_mounted_by_the_kernel_are_not_opened() {
        let device = shared();
        device.is_mounted.store(true, Ordering::Relaxed);
        let error = Volume::open(vec![device]).unwrap_err();
        assert_eq!(error.to_string(), "disk1 is mounted at /mnt through /dev/loop9");
    }
}
