//! How much memory this process has taken.

/// The most memory this process ever had resident, in KiB (`VmHWM`).
pub fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux has it");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// From now on [`peak_kib`] says the most since this moment. Returns what is resident now, in KiB.
pub fn start_measuring() -> u64 {
    // Where the system does not allow it, the peak stays that of the whole process, which is more.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    peak_kib()
}
