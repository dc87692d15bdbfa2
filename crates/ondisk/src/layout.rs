//! The fields of every structure, as a table: for tools that change or compare fields without knowing what they mean.
//!
//! Invariants: (1) a structure's fields come from its one declaration, by the macro `layout!`; (2) every structure so
//! declared is in [`STRUCTURES`], which a test holds against the sources.

mod parts;

pub use parts::{Part, parts};

use crate::header::{Header, ItemHeader, KeyPointer};
use crate::items::*;
use crate::superblock::{RootBackup, Superblock};
use zerocopy::little_endian::{I64, U16, U32, U64};

/// Declares a structure of the format: packed, little-endian, of this size.
macro_rules! layout {
    ($size:tt, $(#[$doc:meta])* pub struct $name:ident { $($(#[$fdoc:meta])* pub $field:ident: $ty:ty,)* }) => {
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
        impl crate::layout::Layout for $name {
            fn describe(name: &str, at: usize, into: &mut Vec<crate::layout::Field>) {
                $(<$ty as crate::layout::Layout>::describe(
                    &crate::layout::joined(name, stringify!($field)),
                    at + std::mem::offset_of!($name, $field),
                    into,
                );)*
            }
        }
    };
}

/// A number of a structure, or an array of numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Field {
    /// Its name, with those of the structures that it lies in: `inode.ctime.sec`.
    pub name: String,
    /// Its offset in bytes.
    pub at: usize,
    /// Bytes of one number.
    pub width: usize,
    /// Numbers in a row.
    pub count: usize,
}

/// A structure with fields, or a field.
pub trait Layout {
    /// Appends its fields to `into`; it is called `name` and begins at `at`.
    fn describe(name: &str, at: usize, into: &mut Vec<Field>);
}

macro_rules! numbers {
    ($($number:ty)*) => {
        $(impl Layout for $number {
            fn describe(name: &str, at: usize, into: &mut Vec<Field>) {
                into.push(Field { name: name.to_owned(), at, width: size_of::<$number>(), count: 1 });
            }
        })*
    };
}

numbers! { u8 U16 U32 U64 I64 }

impl<T: Layout, const COUNT: usize> Layout for [T; COUNT] {
    fn describe(name: &str, at: usize, into: &mut Vec<Field>) {
        let first = into.len();
        T::describe(name, at, into);
        match &mut into[first..] {
            [number] if number.name == name => number.count *= COUNT,
            _ => {
                into.truncate(first);
                (0..COUNT)
                    .for_each(|index| T::describe(&format!("{name}[{index}]"), at + index * size_of::<T>(), into));
            }
        }
    }
}

/// The name of a field inside of another one.
pub(crate) fn joined(outer: &str, inner: &str) -> String {
    if outer.is_empty() { inner.to_owned() } else { format!("{outer}.{inner}") }
}

/// A structure of the format.
#[derive(Clone, Copy, Debug)]
pub struct Structure {
    /// As it is called here.
    pub name: &'static str,
    /// Bytes on disk.
    pub len: usize,
    /// Its fields.
    pub fields: fn() -> Vec<Field>,
}

impl Structure {
    /// The structure that `T` declares.
    pub const fn of<T: Layout>(name: &'static str) -> Structure {
        Structure { name, len: size_of::<T>(), fields: fields_of::<T> }
    }
}

fn fields_of<T: Layout>() -> Vec<Field> {
    let mut fields = Vec::new();
    T::describe("", 0, &mut fields);
    fields
}

macro_rules! structures {
    ($($name:ident)*) => {
        /// Every structure that is declared.
        pub const STRUCTURES: &[Structure] = &[$(Structure::of::<$name>(stringify!($name)),)*];
    };
}

structures! {
    Superblock RootBackup Header ItemHeader KeyPointer
    InodeItem Timespec InodeRef InodeExtref DirItem FileExtentHead FileExtentBody FileExtent
    ExtentItem TreeBlockInfo InlineRef ExtentDataRef SharedDataRef
    RootItem RootRef
    BlockGroupItem FreeSpaceInfo FreeSpaceHeader ChunkHead Stripe DevItem DevExtent DevStats DevReplaceItem StaleDevice
    LeftState
    QgroupStatus QgroupInfo QgroupLimit BalanceItem BalanceArgs
}

/// The structure of this name; there must be one.
pub fn structure(name: &str) -> &'static Structure {
    STRUCTURES.iter().find(|one| one.name == name).unwrap_or_else(|| panic!("no structure is called {name}"))
}

impl Layout for crate::key::DiskKey {
    fn describe(name: &str, at: usize, into: &mut Vec<Field>) {
        U64::describe(&joined(name, "objectid"), at, into);
        u8::describe(&joined(name, "kind"), at + 8, into);
        U64::describe(&joined(name, "offset"), at + 9, into);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::{Path, PathBuf};

    fn sources(folder: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).expect("the sources are there").flatten().map(|entry| entry.path());
        entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
    }

    #[test]
    fn every_declared_structure_is_in_the_table() {
        let mut declared = Vec::new();
        for file in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")) {
            let text = std::fs::read_to_string(file).expect("a source file");
            for part in text.split("\nlayout! {").skip(1) {
                let name = part.split("pub struct ").nth(1).and_then(|rest| rest.split(' ').next());
                declared.push(name.expect("a structure has a name").to_owned());
            }
        }
        declared.sort();
        let mut known: Vec<&str> = STRUCTURES.iter().map(|one| one.name).collect();
        known.sort();
        assert_eq!(known, declared);
    }

    #[test]
    fn fields_follow_each_other_to_the_end() {
        for one in STRUCTURES {
            let fields = (one.fields)();
            let end = fields.iter().fold(0, |at, field| {
                assert_eq!(field.at, at, "{} {}", one.name, field.name);
                at + field.width * field.count
            });
            assert_eq!(end, one.len, "{}", one.name);
        }
        let of_root = (structure("RootItem").fields)();
        assert!(of_root.iter().any(|field| field.name == "inode.ctime.nsec" && field.width == 4));
        assert!(of_root.iter().any(|field| field.name == "uuid" && field.count == 16));
    }
}
