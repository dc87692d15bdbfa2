//! How much memory this process has taken.

/// The most memory this process ever had resident, in KiB (`VmHWM`).
pub fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux has it");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}
