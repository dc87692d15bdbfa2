//! Item payloads, one declaration each. Every structure is packed and little-endian; sizes are asserted.
//!
//! The first line of each type's documentation has the kernel's name for it.

mod extent;
mod inode;
mod quota;
mod root;
mod space;

pub use extent::*;
pub use inode::*;
pub use quota::*;
pub use root::*;
pub use space::*;
