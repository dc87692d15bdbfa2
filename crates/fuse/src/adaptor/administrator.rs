//! Whether a caller administers this machine, and what it says in memory of its own.
//!
//! The kernel checks who may set a file's attributes. Of ioctls that concern the whole filesystem it knows nothing, and
//! a request says no more about its caller than user, group and process.

use crate::credentials;
use crate::protocol::wire::InHeader;
use crate::subvolumes::Capabilities;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Whether the caller is root with CAP_SYS_ADMIN, in the user namespace of this process: root of a container is
/// neither. It waits for the answer, so that its number stays its own.
pub fn is_administrator(header: &InHeader) -> bool {
    let capabilities = || credentials::of_process(&header.pid.to_string());
    header.uid == 0 && capabilities().include(Capabilities::ADMINISTRATION)
}

/// Whether the caller was killed and only waits for the answer.
pub fn is_killed(header: &InHeader) -> bool {
    const KILLED: u64 = 1 << 8;
    let Ok(status) = std::fs::read_to_string(format!("/proc/{}/status", header.pid)) else { return false };
    let pending = status.lines().filter_map(|line| line.strip_prefix("SigPnd:").or(line.strip_prefix("ShdPnd:")));
    pending.filter_map(|set| u64::from_str_radix(set.trim(), 16).ok()).any(|set| set & KILLED != 0)
}

/// A number in the memory of the caller, who waits for the answer meanwhile: the argument of an ioctl whose number says
/// that it only returns something, so that the kernel does not send it.
pub fn number_at(header: &InHeader, address: u64) -> Option<u32> {
    let mut bytes = [0; 4];
    let memory = File::open(format!("/proc/{}/mem", header.pid)).ok()?;
    memory.read_exact_at(&mut bytes, address).ok()?;
    Some(u32::from_ne_bytes(bytes))
}
