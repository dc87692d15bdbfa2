//! Chunks that move and devices that come, go and change their size, beneath a filesystem with everything in it.

mod crashes;
mod left;
mod operations;
mod parity;
mod scene;
mod seeds;
mod uncommitted;
