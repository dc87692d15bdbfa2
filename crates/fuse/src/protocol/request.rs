//! A request taken apart: header, operation, its arguments, and the names and data that follow them.
//!
//! # Invariants
//! 1. Decoding never panics and never reads beyond the request, whatever the bytes are.
//! 2. A name ends at its NUL and contains none; what follows where nothing should is ignored, as the kernel's newer
//!    versions append fields.
//! 3. A request whose header can be read is answered: the error carries its `unique`.

use super::wire::*;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// One request of the kernel. Borrows names and data from the buffer it arrived in.
#[derive(Debug)]
pub struct Request<'a> {
    /// The asker, and the node.
    pub header: InHeader,
    /// The question.
    pub operation: Operation<'a>,
}

/// Why a request cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// Not even a header; there is nobody to answer.
    NoHeader,
    /// The arguments are shorter than the operation's, or a name does not end.
    Malformed {
        /// The request to refuse.
        unique: u64,
    },
    /// An operation that is not served.
    Unknown {
        /// The request to refuse.
        unique: u64,
    },
}

macro_rules! operations {
    ($($(#[$doc:meta])* $variant:ident = $opcode:literal => $shape:tt;)*) => {
        /// Operations with their arguments.
        #[derive(Debug)]
        #[allow(missing_docs)]
        pub enum Operation<'a> { $($(#[$doc])* $variant $shape,)* }

        /// Numbers of the operations.
        #[allow(non_upper_case_globals)]
        pub mod opcode {
            $($(#[$doc])* pub const $variant: u32 = $opcode;)*
        }

        impl Operation<'_> {
            /// The operation's number.
            pub fn opcode(&self) -> u32 {
                match self { $(Operation::$variant { .. } => $opcode,)* }
            }
        }
    };
}

operations! {
    /// A name in a directory.
    Lookup = 1 => { name: &'a [u8] };
    /// References are given back; no reply.
    Forget = 2 => { nlookup: u64 };
    /// The attributes that `stat` shows.
    Getattr = 3 => {};
    /// Change attributes.
    Setattr = 4 => { arguments: SetattrIn };
    /// The target of a symbolic link.
    Readlink = 5 => {};
    /// Make a symbolic link.
    Symlink = 6 => { name: &'a [u8], target: &'a [u8] };
    /// Make a file of any kind.
    Mknod = 8 => { arguments: MknodIn, name: &'a [u8] };
    /// Make a directory.
    Mkdir = 9 => { arguments: MkdirIn, name: &'a [u8] };
    /// Remove a name.
    Unlink = 10 => { name: &'a [u8] };
    /// Remove a directory.
    Rmdir = 11 => { name: &'a [u8] };
    /// Rename, replacing.
    Rename = 12 => { new_parent: u64, name: &'a [u8], new_name: &'a [u8] };
    /// A further name.
    Link = 13 => { node: u64, new_name: &'a [u8] };
    /// Open a file.
    Open = 14 => { arguments: OpenIn };
    /// Read from a file.
    Read = 15 => { arguments: ReadIn };
    /// Write to a file.
    Write = 16 => { arguments: WriteIn, data: &'a [u8] };
    /// The totals that `statfs` shows.
    Statfs = 17 => {};
    /// Close a file.
    Release = 18 => { arguments: ReleaseIn };
    /// Make a file durable.
    Fsync = 20 => { data_only: bool };
    /// Set an extended attribute.
    Setxattr = 21 => { flags: u32, setxattr_flags: u32, name: &'a [u8], value: &'a [u8] };
    /// Get an extended attribute, or its size where `size` is 0.
    Getxattr = 22 => { size: u32, name: &'a [u8] };
    /// The names of the extended attributes, or their size where `size` is 0.
    Listxattr = 23 => { size: u32 };
    /// Remove an extended attribute.
    Removexattr = 24 => { name: &'a [u8] };
    /// A descriptor was closed.
    Flush = 25 => {};
    /// The first request of a connection.
    Init = 26 => { arguments: InitIn, flags2: u32 };
    /// Open a directory.
    Opendir = 27 => { arguments: OpenIn };
    /// Read a directory.
    Readdir = 28 => { arguments: ReadIn };
    /// Close a directory.
    Releasedir = 29 => { arguments: ReleaseIn };
    /// Make a directory durable.
    Fsyncdir = 30 => { data_only: bool };
    /// May the caller do this; not sent with `default_permissions`.
    Access = 34 => { mask: u32 };
    /// Make a regular file and open it.
    Create = 35 => { arguments: CreateIn, name: &'a [u8] };
    /// The caller of another request was signalled.
    Interrupt = 36 => { unique: u64 };
    /// The filesystem is being unmounted.
    Destroy = 38 => {};
    /// An ioctl; `data` is what the command's number says it carries in.
    Ioctl = 39 => { arguments: IoctlIn, data: &'a [u8] };
    /// References of several nodes are given back; no reply.
    BatchForget = 42 => { nodes: ForgetList<'a> };
    /// Allocate, punch or zero a range.
    Fallocate = 43 => { arguments: FallocateIn };
    /// Read a directory with the entries' attributes.
    Readdirplus = 44 => { arguments: ReadIn };
    /// Rename with flags.
    Rename2 = 45 => { new_parent: u64, flags: u32, name: &'a [u8], new_name: &'a [u8] };
    /// SEEK_DATA and SEEK_HOLE.
    Lseek = 46 => { arguments: LseekIn };
    /// Copy a range; the answer has 32 bits.
    CopyFileRange = 47 => { arguments: CopyFileRangeIn };
    /// Make everything durable.
    Syncfs = 50 => {};
    /// Make a file without a name and open it.
    Tmpfile = 51 => { arguments: CreateIn };
    /// The attributes that `statx` shows.
    Statx = 52 => { arguments: StatxIn };
    /// Copy a range; the answer has 64 bits.
    CopyFileRange64 = 53 => { arguments: CopyFileRangeIn };
}

/// The nodes of a BATCH_FORGET. Holds whole entries only.
#[derive(Clone, Copy, Debug)]
pub struct ForgetList<'a>(&'a [u8]);

impl<'a> ForgetList<'a> {
    /// The entries.
    pub fn iter(self) -> impl Iterator<Item = ForgetOne> + 'a {
        self.0.chunks_exact(size_of::<ForgetOne>()).filter_map(|bytes| ForgetOne::read_from_bytes(bytes).ok())
    }
}

impl<'a> Request<'a> {
    /// Takes a request apart. `bytes` is exactly one request.
    pub fn decode(bytes: &'a [u8]) -> Result<Request<'a>, DecodeError> {
        let (header, body) = InHeader::read_from_prefix(bytes).map_err(|_| DecodeError::NoHeader)?;
        let unique = header.unique;
        let malformed = DecodeError::Malformed { unique };
        if header.len as usize != bytes.len() {
            return Err(malformed);
        }
        let extensions = usize::from(header.total_extlen) * 8;
        let length = body.len().checked_sub(extensions).ok_or(malformed)?;
        match operation(header.opcode, Body(&body[..length])) {
            Ok(Some(operation)) => Ok(Request { header, operation }),
            Ok(None) => Err(DecodeError::Unknown { unique }),
            Err(Short) => Err(malformed),
        }
    }

    /// Whether the kernel waits for a reply.
    pub fn wants_reply(&self) -> bool {
        !matches!(
            self.operation,
            Operation::Forget { .. } | Operation::BatchForget { .. } | Operation::Interrupt { .. }
        )
    }
}

/// The body ends too early, or a name does not end.
struct Short;

/// The rest of a request's body.
struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    fn take<T: FromBytes + IntoBytes + KnownLayout + Immutable>(&mut self) -> Result<T, Short> {
        let (value, rest) = T::read_from_prefix(self.0).map_err(|_| Short)?;
        self.0 = rest;
        Ok(value)
    }

    fn name(&mut self) -> Result<&'a [u8], Short> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or(Short)?;
        let (name, rest) = self.0.split_at(end);
        self.0 = &rest[1..];
        Ok(name)
    }

    fn bytes(&mut self, len: u32) -> Result<&'a [u8], Short> {
        let (bytes, rest) = self.0.split_at_checked(len as usize).ok_or(Short)?;
        self.0 = rest;
        Ok(bytes)
    }
}

fn operation(opcode: u32, mut body: Body<'_>) -> Result<Option<Operation<'_>>, Short> {
    let body = &mut body;
    Ok(Some(match opcode {
        opcode::Lookup => Operation::Lookup { name: body.name()? },
        opcode::Forget => Operation::Forget { nlookup: body.take::<ForgetIn>()?.nlookup },
        opcode::Getattr => Operation::Getattr {},
        opcode::Setattr => Operation::Setattr { arguments: body.take()? },
        opcode::Readlink => Operation::Readlink {},
        opcode::Symlink => Operation::Symlink { name: body.name()?, target: body.name()? },
        opcode::Mknod => Operation::Mknod { arguments: body.take()?, name: body.name()? },
        opcode::Mkdir => Operation::Mkdir { arguments: body.take()?, name: body.name()? },
        opcode::Unlink => Operation::Unlink { name: body.name()? },
        opcode::Rmdir => Operation::Rmdir { name: body.name()? },
        opcode::Rename => rename(body)?,
        opcode::Rename2 => rename2(body)?,
        opcode::Link => Operation::Link { node: body.take::<LinkIn>()?.oldnodeid, new_name: body.name()? },
        opcode::Open => Operation::Open { arguments: body.take()? },
        opcode::Read => Operation::Read { arguments: body.take()? },
        opcode::Write => write(body)?,
        opcode::Statfs => Operation::Statfs {},
        opcode::Release => Operation::Release { arguments: body.take()? },
        opcode::Fsync => Operation::Fsync { data_only: data_only(body)? },
        opcode::Setxattr => setxattr(body)?,
        opcode::Getxattr => Operation::Getxattr { size: body.take::<GetxattrIn>()?.size, name: body.name()? },
        opcode::Listxattr => Operation::Listxattr { size: body.take::<GetxattrIn>()?.size },
        opcode::Removexattr => Operation::Removexattr { name: body.name()? },
        opcode::Flush => Operation::Flush {},
        // Kernels before 5.17 end the structure at `flags`.
        opcode::Init => Operation::Init { arguments: body.take()?, flags2: body.take().unwrap_or(0) },
        opcode::Opendir => Operation::Opendir { arguments: body.take()? },
        opcode::Readdir => Operation::Readdir { arguments: body.take()? },
        opcode::Readdirplus => Operation::Readdirplus { arguments: body.take()? },
        opcode::Releasedir => Operation::Releasedir { arguments: body.take()? },
        opcode::Fsyncdir => Operation::Fsyncdir { data_only: data_only(body)? },
        opcode::Access => Operation::Access { mask: body.take::<AccessIn>()?.mask },
        opcode::Create => Operation::Create { arguments: body.take()?, name: body.name()? },
        opcode::Interrupt => Operation::Interrupt { unique: body.take::<InterruptIn>()?.unique },
        opcode::Destroy => Operation::Destroy {},
        opcode::Ioctl => ioctl(body)?,
        opcode::BatchForget => batch_forget(body)?,
        opcode::Fallocate => Operation::Fallocate { arguments: body.take()? },
        opcode::Lseek => Operation::Lseek { arguments: body.take()? },
        opcode::CopyFileRange => Operation::CopyFileRange { arguments: body.take()? },
        opcode::CopyFileRange64 => Operation::CopyFileRange64 { arguments: body.take()? },
        opcode::Syncfs => Operation::Syncfs {},
        opcode::Tmpfile => Operation::Tmpfile { arguments: body.take()? },
        opcode::Statx => Operation::Statx { arguments: body.take()? },
        _ => return Ok(None),
    }))
}

fn rename<'a>(body: &mut Body<'a>) -> Result<Operation<'a>, Short> {
    let RenameIn { newdir } = body.take()?;
    Ok(Operation::Rename { new_parent: newdir, name: body.name()?, new_name: body.name()? })
}

fn rename2<'a>(body: &mut Body<'a>) -> Result<Operation<'a>, Short> {
    let Rename2In { newdir, flags, .. } = body.take()?;
    Ok(Operation::Rename2 { new_parent: newdir, flags, name: body.name()?, new_name: body.name()? })
}

fn write<'a>(body: &mut Body<'a>) -> Result<Operation<'a>, Short> {
    let arguments: WriteIn = body.take()?;
    Ok(Operation::Write { arguments, data: body.bytes(arguments.size)? })
}

/// In the form of SETXATTR_EXT, which [`crate::session`] insists on.
fn setxattr<'a>(body: &mut Body<'a>) -> Result<Operation<'a>, Short> {
    let SetxattrIn { size, flags, setxattr_flags, .. } = body.take()?;
    Ok(Operation::Setxattr { flags, setxattr_flags, name: body.name()?, value: body.bytes(size)? })
}

fn ioctl<'a>(body: &mut Body<'a>) -> Result<Operation<'a>, Short> {
    let arguments: IoctlIn = body.take()?;
    Ok(Operation::Ioctl { arguments, data: body.bytes(arguments.in_size)? })
}

fn batch_forget<'a>(body: &mut Body<'a>) -> Result<Operation<'a>, Short> {
    let BatchForgetIn { count, .. } = body.take()?;
    let length = count.checked_mul(size_of::<ForgetOne>() as u32).ok_or(Short)?;
    Ok(Operation::BatchForget { nodes: ForgetList(body.bytes(length)?) })
}

fn data_only(body: &mut Body<'_>) -> Result<bool, Short> {
    Ok(body.take::<FsyncIn>()?.fsync_flags & super::flags::FSYNC_FDATASYNC != 0)
}
