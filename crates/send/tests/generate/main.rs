//! Streams of ours, checked by a strict receiver in memory and by the kernel with `btrfs receive`.

mod beginning;
mod both_ways;
mod kernel;
mod kernel_made;
mod namespace;
mod random;
mod receiver;
mod scenarios;
mod source_tree;
mod world;
