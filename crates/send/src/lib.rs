//! Internal to butterfs: this crate promises no stability. Depend on the crate `butterfs` instead.
//!
//! Send streams: what makes one subvolume, or the difference of two, travel.
//!
//! [`wire`] is the stream itself, bytes to commands and back; it uses neither the engine nor the format of the disk.
//! [`generate`] makes streams from snapshots, [`apply`] carries commands out on a target.

#![forbid(unsafe_code)]

pub mod apply;
pub mod fuzz;
pub mod generate;
pub mod wire;
