//! A mount of a filesystem that another process serves already: one more mount of it, as the kernel's btrfs makes one.
//!
//! The serving process is found by the storage of the devices, below links and loop devices: a copy of a filesystem,
//! which has the same UUID, is another filesystem. Of commands that mount one filesystem at the same moment all but one
//! wait, by UUID, until they can find the first.

use super::Args;
use crate::error::CliError;
use crate::report;
use butterfs_control::{MountAnswer, MountQuestion, Storage};
use butterfs_device::Origin;
use butterfs_fuse::control::{ControlClient, MountTurn};
use butterfs_fuse::mount::{self, MountOptions, mountinfo};
use butterfs_ondisk::superblock::{MAGIC, OFFSETS, Superblock};
use rustix::fs::{Mode, OFlags};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use zerocopy::FromBytes;

/// How long a process may take to say what it serves.
const PATIENCE: Duration = Duration::from_secs(5);

/// The turn to mount the filesystem on `device`; none where it cannot be read, which whoever opens it next will say.
pub fn turn(device: &Path) -> Option<MountTurn> {
    let mut bytes = [0; size_of::<Superblock>()];
    std::fs::File::open(device).ok()?.read_exact_at(&mut bytes, OFFSETS[0].0).ok()?;
    let superblock = Superblock::read_from_bytes(&bytes).ok()?;
    let is_btrfs = superblock.magic == MAGIC;
    MountTurn::wait(&superblock.fsid).ok().filter(|_| is_btrfs)
}

/// The storage of devices.
pub fn storage(devices: &[PathBuf]) -> Vec<Storage> {
    let origin = |path: &PathBuf| Origin::of(&std::fs::metadata(path).ok()?);
    let stored = |Origin { device, inode, start }: Origin| Storage { device, inode, start };
    devices.iter().filter_map(origin).map(stored).collect()
}

/// The process that serves one of the devices, if there is one.
pub fn server(args: &Args, options: &MountOptions) -> Option<ControlClient> {
    let wanted = storage(&args.devices(options));
    ControlClient::find_serving(|client| {
        let answer =
            client.be_patient_for(Some(PATIENCE)).and_then(|()| client.ask_about_mounts(MountQuestion::Locate));
        matches!(answer, Ok((MountAnswer::Located(all), _)) if all.iter().any(|one| wanted.contains(one)))
    })
}

/// Mounts what another process serves. False: it does not serve any more.
pub fn join(
    mut server: ControlClient,
    args: &Args,
    options: &MountOptions,
    mountpoint: &Path,
) -> Result<bool, CliError> {
    let source = args.source().display();
    let question = MountQuestion::Join { options: args.options.clone() };
    let answer = server.be_patient_for(None).and_then(|()| server.ask_about_mounts(question));
    match answer {
        Ok((MountAnswer::Joined(unheeded), Some(mount))) => {
            place(mount, args, options, mountpoint)?;
            for option in unheeded {
                report::warn(&format!("{source} is mounted already, and keeps its options: '{option}' has no effect"));
            }
            Ok(true)
        }
        Ok((MountAnswer::Refused(refusal), _)) if refusal.errno != libc::ESHUTDOWN => {
            let sentence = refusal.sentence;
            Err(CliError::failed(if sentence.contains('/') { sentence } else { format!("{source}: {sentence}") }))
        }
        // It has ended, or is about to.
        _ => Ok(false),
    }
}

fn place(mount: OwnedFd, args: &Args, options: &MountOptions, mountpoint: &Path) -> Result<(), CliError> {
    let shown = mountpoint.display();
    let device = mount::device_number(&mount)?;
    // As the kernel: not the same filesystem twice in one place.
    if mountinfo::at(mountpoint)?.is_some_and(|there| there.device == device) {
        let there = rustix::fs::open(mountpoint, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .map_err(std::io::Error::from)?;
        if args.for_mount && mount::inode_number(&there)? == mount::inode_number(&mount)? {
            return Ok(());
        }
        return Err(CliError::failed(format!("{} is already mounted on {shown}", args.source().display())));
    }
    let placed = mount::place(mount, &options.flags, mountpoint);
    placed.map_err(|error| CliError::failed(format!("cannot mount on {shown}: {error}")))
}
