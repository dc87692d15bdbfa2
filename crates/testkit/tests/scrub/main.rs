//! Scrub: what it finds, repairs and names; beside the kernel, under work, interrupted, and with devices that fail.

mod beside_the_kernel;
mod interrupted;
mod repairs;
mod rig;
mod under_work;
