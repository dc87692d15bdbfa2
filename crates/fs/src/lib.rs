//! The engine: a btrfs filesystem that is read and written.
//!
//! Modules stand in a fixed order, each using only earlier ones (checked by `cargo xtask layering`):
//! `error env node_io | space | transaction | extent | commit | inode | file | subvolume | mount | filesystem`.

#![forbid(unsafe_code)]
