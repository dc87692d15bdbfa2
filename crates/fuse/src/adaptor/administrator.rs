//! Whether a caller administers this machine, and what it says in memory of its own.
//!
//! The kernel checks who may set a file's attributes. Of ioctls that concern the whole filesystem it knows nothing, and a
//! request says no more about its caller than user, group and process.

use crate::protocol::wire::InHeader;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// CAP_SYS_ADMIN.
const ADMINISTRATION: u64 = 1 << 21;

/// Whether the caller is root with CAP_SYS_ADMIN, in the user namespace of this process: root of a container is neither.
pub fn is_administrator(header: &InHeader) -> bool {
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/user")).ok();
    let process = header.pid.to_string();
    let ours = namespace("self");
    header.uid == 0 && ours.is_some() && namespace(&process) == ours && capabilities(&process) & ADMINISTRATION != 0
}

/// The effective capabilities of a process; none when nothing can be found out.
fn capabilities(process: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|value| u64::from_str_radix(value.trim(), 16).ok()).unwrap_or(0)
}

/// A number in the memory of the caller, who waits for the answer meanwhile: the argument of an ioctl whose number says that
/// it only returns something, so that the kernel does not send it.
pub fn number_at(header: &InHeader, address: u64) -> Option<u32> {
    let mut bytes = [0; 4];
    let memory = File::open(format!("/proc/{}/mem", header.pid)).ok()?;
    memory.read_exact_at(&mut bytes, address).ok()?;
    Some(u32::from_ne_bytes(bytes))
}
