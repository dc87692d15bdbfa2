//! Item payloads, one declaration each. Every structure is packed and little-endian; sizes are asserted.
//!
//! The first line of each type's documentation has the kernel's name for it.

macro_rules! layout {
    ($size:literal, $(#[$doc:meta])* pub struct $name:ident { $($(#[$fdoc:meta])* pub $field:ident: $ty:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Debug)]
        #[repr(C)]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty,)* }
        const _: () = assert!(size_of::<$name>() == $size);
        impl Default for $name {
            fn default() -> $name { zerocopy::FromZeros::new_zeroed() }
        }
        impl $name {
            /// Bytes on disk.
            pub const LEN: usize = $size;
        }
    };
}

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
