//! The FUSE protocol between kernel and server, version 7: structures, flags, and requests taken apart.
//!
//! Nothing here does I/O. What the kernel sends is decoded with every length checked ([`request`]), because the same
//! code reads what a fuzzer or a foreign kernel sends. Only what [`flags`] lists is ever negotiated, so that no
//! structure arrives that [`wire`] does not know.

pub mod directory;
pub mod flags;
pub mod request;
pub mod ring;
pub mod wire;

pub use request::{Operation, Request};
