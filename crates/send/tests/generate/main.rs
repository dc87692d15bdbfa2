//! Streams of ours, judged by a strict receiver in memory and by the kernel with `btrfs receive`.

mod kernel;
mod random;
mod receiver;
mod world;
