//! The commands: numbers, names and attributes, as one table.
//!
//! A [`Command`] borrows from the bytes it was decoded from, or from whatever its maker has. Attributes are encoded in
//! the order of the table, which is the kernel's. Of an attribute that stands twice the last counts; known attributes
//! that the command does not have are passed over. The type of a field
//! stands in the table again, because a type that is looked up through a trait would tie the lifetimes of all values.

use super::Version;
use super::attribute::{self, Attribute, COUNT, Data, Kind, Timespec, Uuid, WrongValue};
use super::error::ErrorKind;

/// The values of a command's attributes by number, as they stand on the wire.
pub(super) struct Values<'a>([Option<&'a [u8]>; COUNT]);

impl<'a> Values<'a> {
    /// Takes a payload apart.
    pub(super) fn split(mut payload: &'a [u8], version: Version) -> Result<Values<'a>, ErrorKind> {
        let mut values = [None; COUNT];
        while !payload.is_empty() {
            let (number, rest) = take_u16(payload)?;
            let slot = values.get_mut(usize::from(number)).filter(|_| number != 0);
            let slot = slot.ok_or(ErrorKind::UnknownAttribute(number))?;
            if number == Data::NUMBER && version.has_open_data() {
                *slot = Some(rest);
                break;
            }
            let (len, rest) = take_u16(rest)?;
            let (value, rest) = rest.split_at_checked(usize::from(len)).ok_or(ErrorKind::TruncatedCommand)?;
            *slot = Some(value);
            payload = rest;
        }
        Ok(Values(values))
    }

    fn optional<A: Attribute>(&self) -> Result<Option<<A::Kind as Kind>::Value<'a>>, ErrorKind> {
        let Some(bytes) = self.0[usize::from(A::NUMBER)] else { return Ok(None) };
        let wrong = |why: WrongValue| ErrorKind::WrongValue { attribute: A::NUMBER, why };
        A::Kind::take(bytes).map(Some).map_err(wrong)
    }

    fn required<A: Attribute>(&self) -> Result<<A::Kind as Kind>::Value<'a>, ErrorKind> {
        self.optional::<A>()?.ok_or(ErrorKind::MissingAttribute(A::NUMBER))
    }
}

fn take_u16(bytes: &[u8]) -> Result<(u16, &[u8]), ErrorKind> {
    let (head, rest) = bytes.split_first_chunk::<2>().ok_or(ErrorKind::TruncatedCommand)?;
    Ok((u16::from_le_bytes(*head), rest))
}

/// The buffer to which attributes are appended; remembers the first that does not fit.
pub(super) struct Attributes<'o> {
    pub(super) out: &'o mut Vec<u8>,
    pub(super) version: Version,
    pub(super) too_long: Option<u16>,
}

impl Attributes<'_> {
    fn put<A: Attribute>(&mut self, value: &<A::Kind as Kind>::Value<'_>) {
        self.out.extend_from_slice(&A::NUMBER.to_le_bytes());
        if A::NUMBER == Data::NUMBER && self.version.has_open_data() {
            A::Kind::put(value, self.out);
            return;
        }
        let len_at = self.out.len();
        self.out.extend_from_slice(&[0; 2]);
        A::Kind::put(value, self.out);
        match u16::try_from(self.out.len() - len_at - 2) {
            Ok(len) => self.out[len_at..len_at + 2].copy_from_slice(&len.to_le_bytes()),
            Err(_) => self.too_long = self.too_long.or(Some(A::NUMBER)),
        }
    }
}

macro_rules! commands {
    ($(
        $(#[$doc:meta])*
        $number:literal $name:ident $text:literal since $since:ident
        { $($field:ident: $attribute:ident($type:ty)),* }
        $(, or $default:literal { $($usual:ident: $usual_attribute:ident($usual_type:ty)),* })?
        $(, maybe { $($option:ident: $option_attribute:ident($option_type:ty)),* })?
        $(, last { $($last:ident: $last_attribute:ident($last_type:ty)),* })?
    ;)*) => {
        /// One command with its attributes.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[allow(missing_docs)] // a field is the attribute that it is named after
        pub enum Command<'a> {
            $(
                $(#[$doc])*
                $name {
                    $($field: $type,)*
                    $($($usual: $usual_type,)*)?
                    $($($option: Option<$option_type>,)*)?
                    $($($last: $last_type,)*)?
                },
            )*
            /// A number that no version of the stream has; its attributes are not looked at.
            Unknown {
                number: u16,
            },
        }

        impl<'a> Command<'a> {
            /// The number on the wire.
            pub const fn number(&self) -> u16 {
                match self {
                    $(Command::$name { .. } => $number,)*
                    Command::Unknown { number } => *number,
                }
            }

            /// The first version of the stream whose makers know the command.
            pub const fn since(&self) -> Version {
                match self {
                    $(Command::$name { .. } => Version::$since,)*
                    Command::Unknown { .. } => Version::V3,
                }
            }

            /// The command with this number and these attributes.
            pub(super) fn of(number: u16, values: &Values<'a>) -> Result<Command<'a>, ErrorKind> {
                Ok(match number {
                    $($number => Command::$name {
                        $($field: values.required::<attribute::$attribute>()?,)*
                        $($($usual: values.optional::<attribute::$usual_attribute>()?.unwrap_or($default),)*)?
                        $($($option: values.optional::<attribute::$option_attribute>()?,)*)?
                        $($($last: values.required::<attribute::$last_attribute>()?,)*)?
                    },)*
                    number => Command::Unknown { number },
                })
            }

            /// Appends the attributes.
            pub(super) fn put_attributes(&self, to: &mut Attributes<'_>) {
                match self {
                    $(Command::$name {
                        $($field,)* $($($usual,)*)? $($($option,)*)? $($($last,)*)?
                    } => {
                        $(to.put::<attribute::$attribute>($field);)*
                        $($(to.put::<attribute::$usual_attribute>($usual);)*)?
                        $($(if let Some(value) = $option {
                            to.put::<attribute::$option_attribute>(value);
                        })*)?
                        $($(to.put::<attribute::$last_attribute>($last);)*)?
                    })*
                    Command::Unknown { .. } => {}
                }
                let _ = to;
            }
        }

        /// The name of a command, as `btrfs receive --dump` prints it.
        pub const fn name(number: u16) -> Option<&'static str> {
            match number { $($number => Some($text),)* _ => None }
        }

        /// The number and the name of every command.
        pub const TABLE: &[(u16, &str)] = &[$(($number, $text),)*];
    };
}

commands! {
    /// Begins an empty subvolume; everything up to the next one, or END, is about it.
    1 Subvol "subvol" since V1 { path: Path(&'a [u8]), uuid: SubvolUuid(Uuid), transid: Transid(u64) };
    /// Begins a writable snapshot of the subvolume that is known as `parent_uuid`.
    2 Snapshot "snapshot" since V1 {
        path: Path(&'a [u8]), uuid: SubvolUuid(Uuid), transid: Transid(u64), parent_uuid: CloneUuid(Uuid),
        parent_transid: CloneTransid(u64)
    };
    /// Makes an empty file, mode 0600.
    3 Mkfile "mkfile" since V1 { path: Path(&'a [u8]), ino: Ino(u64) };
    /// Makes a directory, mode 0700.
    4 Mkdir "mkdir" since V1 { path: Path(&'a [u8]), ino: Ino(u64) };
    /// Makes a device.
    5 Mknod "mknod" since V1 { path: Path(&'a [u8]), ino: Ino(u64), rdev: Rdev(u64), mode: Mode(u64) };
    /// Makes a FIFO, mode 0600.
    6 Mkfifo "mkfifo" since V1 { path: Path(&'a [u8]), ino: Ino(u64) }, or 0 { rdev: Rdev(u64), mode: Mode(u64) };
    /// Makes a socket, mode 0600.
    7 Mksock "mksock" since V1 { path: Path(&'a [u8]), ino: Ino(u64) }, or 0 { rdev: Rdev(u64), mode: Mode(u64) };
    /// Makes a symbolic link with the text `target`.
    8 Symlink "symlink" since V1 { path: Path(&'a [u8]), ino: Ino(u64), target: PathLink(&'a [u8]) };
    /// Renames; what stands at `to` is replaced.
    9 Rename "rename" since V1 { path: Path(&'a [u8]), to: PathTo(&'a [u8]) };
    /// Makes the name `path` for what `existing` leads to.
    10 Link "link" since V1 { path: Path(&'a [u8]), existing: PathLink(&'a [u8]) };
    /// Removes a name of anything but a directory.
    11 Unlink "unlink" since V1 { path: Path(&'a [u8]) };
    /// Removes an empty directory.
    12 Rmdir "rmdir" since V1 { path: Path(&'a [u8]) };
    /// Sets an extended attribute.
    13 SetXattr "set_xattr" since V1 { path: Path(&'a [u8]), name: XattrName(&'a [u8]), value: XattrData(&'a [u8]) };
    /// Removes an extended attribute.
    14 RemoveXattr "remove_xattr" since V1 { path: Path(&'a [u8]), name: XattrName(&'a [u8]) };
    /// Writes content.
    15 Write "write" since V1 { path: Path(&'a [u8]), offset: FileOffset(u64) }, last { data: Data(&'a [u8]) };
    /// Shares `len` bytes at `source_offset` of `source`, in the subvolume known as `source_uuid`.
    16 Clone "clone" since V1 {
        offset: FileOffset(u64), len: CloneLen(u64), path: Path(&'a [u8]),
        source_uuid: CloneUuid(Uuid), source_transid: CloneTransid(u64), source: ClonePath(&'a [u8]),
        source_offset: CloneOffset(u64)
    };
    /// Sets the size.
    17 Truncate "truncate" since V1 { path: Path(&'a [u8]), size: Size(u64) };
    /// Sets the permissions.
    18 Chmod "chmod" since V1 { path: Path(&'a [u8]), mode: Mode(u64) };
    /// Sets owner and group.
    19 Chown "chown" since V1 { path: Path(&'a [u8]), uid: Uid(u64), gid: Gid(u64) };
    /// Sets the times; those of change and of making cannot be set.
    20 Utimes "utimes" since V1 {
        path: Path(&'a [u8]), atime: Atime(Timespec), mtime: Mtime(Timespec), ctime: Ctime(Timespec)
    }, maybe { otime: Otime(Timespec) };
    /// Ends the stream.
    21 End "end" since V1 {};
    /// Says that content changed, in a stream without content.
    22 UpdateExtent "update_extent" since V1 { path: Path(&'a [u8]), offset: FileOffset(u64), len: Size(u64) };
    /// `fallocate(2)`.
    23 Fallocate "fallocate" since V2 {
        path: Path(&'a [u8]), mode: FallocateMode(u32), offset: FileOffset(u64), len: Size(u64)
    };
    /// Sets the flags of the inode item.
    24 Fileattr "fileattr" since V2 { path: Path(&'a [u8]), flags: Fileattr(u64) };
    /// Writes `unencoded_file_len` bytes at `unencoded_offset` of what `data` decodes to.
    25 EncodedWrite "encoded_write" since V2 {
        path: Path(&'a [u8]), offset: FileOffset(u64),
        unencoded_file_len: UnencodedFileLen(u64), unencoded_len: UnencodedLen(u64),
        unencoded_offset: UnencodedOffset(u64)
    }, or 0 { compression: Compression(u32), encryption: Encryption(u32) }, last { data: Data(&'a [u8]) };
    /// Makes the file a verity file.
    26 EnableVerity "enable_verity" since V3 {
        path: Path(&'a [u8]), algorithm: VerityAlgorithm(u8), block_size: VerityBlockSize(u32),
        salt: VeritySalt(&'a [u8]), signature: VeritySignature(&'a [u8])
    };
}

impl Command<'_> {
    /// The name, as `btrfs receive --dump` prints it.
    pub const fn name(&self) -> &'static str {
        match name(self.number()) {
            Some(name) => name,
            None => "unknown command",
        }
    }
}

impl<'a> Command<'a> {
    /// The subject.
    pub fn path(&self) -> Option<&'a [u8]> {
        match *self {
            Command::Subvol { path, .. }
            | Command::Snapshot { path, .. }
            | Command::Mkfile { path, .. }
            | Command::Mkdir { path, .. }
            | Command::Mknod { path, .. }
            | Command::Mkfifo { path, .. }
            | Command::Mksock { path, .. }
            | Command::Symlink { path, .. }
            | Command::Rename { path, .. }
            | Command::Link { path, .. }
            | Command::Unlink { path }
            | Command::Rmdir { path }
            | Command::SetXattr { path, .. }
            | Command::RemoveXattr { path, .. }
            | Command::Write { path, .. }
            | Command::Clone { path, .. }
            | Command::Truncate { path, .. }
            | Command::Chmod { path, .. }
            | Command::Chown { path, .. }
            | Command::Utimes { path, .. }
            | Command::UpdateExtent { path, .. }
            | Command::Fallocate { path, .. }
            | Command::Fileattr { path, .. }
            | Command::EncodedWrite { path, .. }
            | Command::EnableVerity { path, .. } => Some(path),
            Command::End {} | Command::Unknown { .. } => None,
        }
    }
}
