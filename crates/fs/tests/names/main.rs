//! Names, attributes and orphans through the public interface, on filesystems in memory. After each test the image is
//! checked by `btrfs check`, which is said to be skipped where it is missing.

mod world;

mod attributes;
mod creation;
mod limits;
mod links;
mod listing;
mod orphans;
mod removal;
mod renames;
mod subvolumes;
mod threads;
mod xattrs;
