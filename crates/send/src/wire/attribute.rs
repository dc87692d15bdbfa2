//! The attributes of commands: numbers, names and the types of their values, as one table.
//!
//! Each attribute is a type; [`Attribute::Kind`] says what its value is. A value of a fixed size must have exactly that
//! size; text holds no NUL.

use std::fmt;

/// A UUID, in the order in which it is written as text.
pub type Uuid = [u8; 16];

/// A point in time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Timespec {
    /// Seconds since 1970; negative before.
    pub sec: i64,
    /// Nanoseconds; whoever uses them checks that they are below 10^9.
    pub nsec: u32,
}

/// Why the bytes of a value are not one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WrongValue {
    /// Another size was expected.
    Size {
        /// In bytes.
        expected: usize,
        /// In bytes.
        got: usize,
    },
    /// Text with a NUL in it.
    Nul,
}

impl fmt::Display for WrongValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WrongValue::Size { expected, got } => {
                write!(f, "invalid size for attribute, expected = {expected}, got = {got}")
            }
            WrongValue::Nul => f.write_str("text holds a NUL"),
        }
    }
}

/// A type of values.
pub trait Kind {
    /// The type of a value in memory.
    type Value<'a>;
    /// Appends the value's bytes.
    fn put(value: &Self::Value<'_>, out: &mut Vec<u8>);
    /// The value of these bytes.
    fn take(bytes: &[u8]) -> Result<Self::Value<'_>, WrongValue>;
}

macro_rules! numbers {
    ($($kind:ident($type:ty);)*) => {$(
        #[doc = concat!("A `", stringify!($type), "`.")]
        pub struct $kind;

        impl Kind for $kind {
            type Value<'a> = $type;

            fn put(value: &$type, out: &mut Vec<u8>) {
                out.extend_from_slice(&value.to_le_bytes());
            }

            fn take(bytes: &[u8]) -> Result<$type, WrongValue> {
                sized(bytes).map(<$type>::from_le_bytes)
            }
        }
    )*};
}

numbers! {
    U8(u8);
    U32(u32);
    U64(u64);
}

fn sized<const LEN: usize>(bytes: &[u8]) -> Result<[u8; LEN], WrongValue> {
    bytes.try_into().map_err(|_| WrongValue::Size { expected: LEN, got: bytes.len() })
}

/// Any bytes.
pub struct Bytes;

impl Kind for Bytes {
    type Value<'a> = &'a [u8];

    fn put(value: &&[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(value);
    }

    fn take(bytes: &[u8]) -> Result<&[u8], WrongValue> {
        Ok(bytes)
    }
}

/// Bytes without NUL.
pub struct Text;

impl Kind for Text {
    type Value<'a> = &'a [u8];

    fn put(value: &&[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(value);
    }

    fn take(bytes: &[u8]) -> Result<&[u8], WrongValue> {
        if bytes.contains(&0) { Err(WrongValue::Nul) } else { Ok(bytes) }
    }
}

/// A [`Uuid`].
pub struct UuidBytes;

impl Kind for UuidBytes {
    type Value<'a> = Uuid;

    fn put(value: &Uuid, out: &mut Vec<u8>) {
        out.extend_from_slice(value);
    }

    fn take(bytes: &[u8]) -> Result<Uuid, WrongValue> {
        sized(bytes)
    }
}

/// A [`Timespec`].
pub struct Time;

impl Kind for Time {
    type Value<'a> = Timespec;

    fn put(value: &Timespec, out: &mut Vec<u8>) {
        out.extend_from_slice(&value.sec.to_le_bytes());
        out.extend_from_slice(&value.nsec.to_le_bytes());
    }

    fn take(bytes: &[u8]) -> Result<Timespec, WrongValue> {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = sized::<12>(bytes)?;
        let sec = i64::from_le_bytes([a, b, c, d, e, f, g, h]);
        Ok(Timespec { sec, nsec: u32::from_le_bytes([i, j, k, l]) })
    }
}

/// An attribute.
pub trait Attribute {
    /// Its number on the wire.
    const NUMBER: u16;
    /// The type of its value.
    type Kind: Kind;
}

macro_rules! attributes {
    ($($number:literal $name:ident: $kind:ident, $what:literal;)*) => {
        $(
            #[doc = $what]
            pub struct $name;

            impl Attribute for $name {
                const NUMBER: u16 = $number;
                type Kind = $kind;
            }
        )*

        /// The name of an attribute, for errors.
        pub const fn name(number: u16) -> Option<&'static str> {
            match number { $($number => Some(stringify!($name)),)* _ => None }
        }
    };
}

/// Attributes have numbers from 1 to below this one.
pub const COUNT: usize = 36;

attributes! {
    1 SubvolUuid: UuidBytes, "The UUID that the subvolume is known by.";
    2 Transid: U64, "The transaction that the subvolume was last changed in.";
    3 Ino: U64, "The number of the inode at the sender.";
    4 Size: U64, "A length in bytes.";
    5 Mode: U64, "Permissions, with the type for special files.";
    6 Uid: U64, "The owner.";
    7 Gid: U64, "The group.";
    8 Rdev: U64, "A device number in the kernel's new encoding of 32 bits.";
    9 Ctime: Time, "When the inode changed.";
    10 Mtime: Time, "When the content changed.";
    11 Atime: Time, "When the content was read.";
    12 Otime: Time, "When the inode was made.";
    13 XattrName: Text, "The full name of an extended attribute.";
    14 XattrData: Bytes, "The value of an extended attribute.";
    15 Path: Text, "What the command is about.";
    16 PathTo: Text, "Where it goes.";
    17 PathLink: Text, "What is linked, or the text of a symbolic link.";
    18 FileOffset: U64, "Where in the file.";
    19 Data: Bytes, "Content.";
    20 CloneUuid: UuidBytes, "The UUID of the subvolume that is cloned from.";
    21 CloneTransid: U64, "The transaction that subvolume was last changed in.";
    22 ClonePath: Text, "The file that is cloned from.";
    23 CloneOffset: U64, "Where in that file.";
    24 CloneLen: U64, "How many bytes are cloned.";
    25 FallocateMode: U32, "The flags of `fallocate(2)`.";
    26 Fileattr: U64, "The flags of the inode item.";
    27 UnencodedFileLen: U64, "How many of the decoded bytes the file gets.";
    28 UnencodedLen: U64, "How many bytes the data decodes to.";
    29 UnencodedOffset: U64, "Where in the decoded bytes those of the file begin.";
    30 Compression: U32, "How the data is compressed.";
    31 Encryption: U32, "How the data is encrypted.";
    32 VerityAlgorithm: U8, "The hash of the Merkle tree.";
    33 VerityBlockSize: U32, "The size of the Merkle tree's blocks in bytes.";
    34 VeritySalt: Bytes, "The salt of the Merkle tree.";
    35 VeritySignature: Bytes, "The signature of the Merkle tree.";
}
