//! How much memory this process has taken.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The most memory this process ever had resident, in KiB (`VmHWM`).
pub fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux has it");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// A measurement of the memory that this process takes. Others wait until it is dropped: there is one peak for the
/// whole process, and each measurement begins it anew.
#[must_use]
pub struct Measurement {
    resident_kib: u64,
    _alone: MutexGuard<'static, ()>,
}

static MEASURING: Mutex<()> = Mutex::new(());

/// Begins the peak anew.
pub fn start_measuring() -> Measurement {
    let alone = MEASURING.lock().unwrap_or_else(PoisonError::into_inner);
    // Where the system does not allow it, the peak stays that of the whole process, which is more.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    Measurement { resident_kib: peak_kib(), _alone: alone }
}

impl Measurement {
    /// The most memory that was resident since the beginning beyond what was resident then, in KiB.
    pub fn taken_kib(&self) -> u64 {
        // Resident pages are counted for each processor and added up late.
        peak_kib().saturating_sub(self.resident_kib)
    }
}
