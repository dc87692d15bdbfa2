//! Contents of files through the whole engine, against byte arrays, `btrfs check` and the kernel.

mod compression;
mod faults;
mod full;
mod in_place;
mod kernel;
mod long_reads;
mod many_references;
mod random;
mod rounds;
mod scenarios;
mod sharing;
mod slow_device;
mod threads;
mod world;
