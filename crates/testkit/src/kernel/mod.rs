//! The kernel's btrfs and btrfs-progs as oracles: loop devices, mounts, the kernel log, `btrfs check`.
//!
//! Invariants: (1) what is attached or mounted is taken back when its value is dropped; (2) every program that is
//! started has a time limit.

mod check;
mod command;
mod log;
mod loop_device;
mod mkfs;
mod mount;

pub use check::{Verdict, check, check_all, check_several, judge_all, judge_several};
pub use command::{Finished, run, run_ok};
pub use log::KernelLog;
pub use loop_device::LoopDevice;
pub use mkfs::{can_make, mkfs};
pub use mount::{KernelMount, unmount};
