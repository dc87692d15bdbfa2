//! The process that serves a mount, or a command, is killed (SIGKILL) at chosen moments, where somebody else changes
//! the device meanwhile (`intruders`), where devices are changed (`device_work`), where streams are received
//! (`receives`), and where the device is write-protected (`write_protected`).
//!
//! `BUTTERFS_TORTURE=200` kills 20 times as often.

#[allow(dead_code)] // other tests need the rest
#[path = "../common/mod.rs"]
mod common;
mod device_work;
mod intruders;
#[allow(dead_code)] // other tests of mounts need the rest
#[path = "../mounted/mod.rs"]
mod mounted;
mod receives;
mod write_protected;

const BINARY: &str = env!("CARGO_BIN_EXE_butterfs");

/// The factor by which it runs more often than in CI.
fn factor() -> u64 {
    std::env::var("BUTTERFS_TORTURE").map_or(1, |text| text.parse::<u64>().expect("a number").div_ceil(10))
}
