//! The C interface: `libbutterfs`. The header `include/butterfs.h` says how to use it; this is how it is made.
//!
//! # Invariants
//! 1. No panic crosses the border: every function runs inside of [`error::code`] or [`error::pointer`], which catch it.
//! 2. Every `unsafe` block relies on the rules at the head of the header (`cbindgen.toml`) and on nothing else: strings
//!    end with NUL, pointers come from this library and were not freed, output pointers can be written.
//! 3. The library keeps no pointer of the caller after a call, but the callbacks and the `user` pointer of a device.
//!
//! The crate promises the stability of its header, not of its Rust items.

mod callbacks;
mod device;
mod directory;
mod error;
mod file;
mod filesystem;
mod paths;
mod streams;
mod subvolume;
