//! Filesystems on several devices: every profile, made by us and by the kernel, read and written by both.
//!
//! Our content is a workload that the model holds too; all checkers find the images clean after each step.

mod both_ways;
mod judging;
mod lost;
mod lost_beside_the_kernel;
mod parity;
mod rig;
mod split;
mod stale;
mod vanishing;
