//! The operations, one arm each.

use super::attributes::{Asking, change, device, statx};
use super::entries::{answer_hold, answer_open};
use super::{Outcome, Shared, caller, errno, writers};
use crate::protocol::flags::{OPEN_KILL_SUIDGID, SETXATTR_ACL_KILL_SGID, WRITE_CACHE, WRITE_KILL_SUIDGID};
use crate::protocol::wire::*;
use crate::protocol::{Operation, Request};
use butterfs_fs::inode::attr::{Caller, SetAttr, SetTime};
use butterfs_fs::{Filesystem, InodeId, RenameMode};
use rustix::io::Errno;
use zerocopy::IntoBytes;

/// Most bytes that the answer of the 32-bit COPY_FILE_RANGE can tell of, in whole blocks.
const MOST_COPIED: u64 = u32::MAX as u64 & !0xffff;

impl Shared {
    /// Serves one request.
    pub(super) fn serve(&self, request: &Request<'_>, payload: &mut Vec<u8>) -> Outcome {
        let fs = self.filesystem();
        let header = &request.header;
        let node = header.nodeid;
        // Those that are not about one node.
        match request.operation {
            Operation::Forget { nlookup } => {
                self.forget(node, nlookup);
                return Ok(());
            }
            Operation::BatchForget { nodes } => {
                nodes.iter().for_each(|one| self.forget(one.nodeid, one.nlookup));
                return Ok(());
            }
            Operation::Statfs {} => {
                self.witness.note(header.pid);
                return answer_statfs(&fs, payload);
            }
            Operation::Syncfs {} => return fs.sync().map_err(errno),
            Operation::Destroy {} => return self.close().map_err(|_| Errno::IO),
            _ => {}
        }
        let id = self.inode(node)?;
        match request.operation {
            Operation::Lookup { name } => self.look_up(id, name, payload),
            Operation::Getattr {} => self.answer_attributes(fs.getattr(id), payload),
            Operation::Statx { .. } => self.answer_statx(id, payload),
            Operation::Setattr { arguments } => {
                let change = change(&arguments, self.asking(header));
                self.answer_attributes(fs.setattr(&caller(request, 0), id, &change), payload)
            }
            Operation::Readlink {} => answer_bytes(fs.readlink(id), payload),
            Operation::Symlink { name, target } => {
                self.answer_entry(fs.symlink(&caller(request, 0), id, name, target), payload)
            }
            Operation::Mknod { arguments: MknodIn { mode, rdev, umask, .. }, name } => {
                self.answer_entry(fs.mknod(&caller(request, umask), id, name, mode, device(rdev)), payload)
            }
            Operation::Mkdir { arguments: MkdirIn { mode, umask }, name } => {
                self.answer_entry(fs.mkdir(&caller(request, umask), id, name, mode), payload)
            }
            Operation::Create { arguments, name } => self.create(request, id, &arguments, name, payload),
            Operation::Tmpfile { arguments: CreateIn { flags, mode, umask, .. } } => {
                if let Some(node) = self.holds.node_for(header.pid) {
                    answer_hold(node, payload);
                    return Ok(());
                }
                self.answer_open_entry(fs.tmpfile(&caller(request, umask), id, mode), (flags, header.uid), payload)
            }
            Operation::Link { node, new_name } => self.answer_entry(fs.link(self.inode(node)?, id, new_name), payload),
            Operation::Unlink { name } => fs.unlink(id, name).map_err(errno),
            Operation::Rmdir { name } => fs.rmdir(id, name).map_err(errno),
            Operation::Rename { new_parent, name, new_name } => {
                self.rename(caller(request, 0), (id, name), (new_parent, new_name), 0)
            }
            Operation::Rename2 { new_parent, flags, name, new_name } => {
                self.rename(caller(request, 0), (id, name), (new_parent, new_name), flags)
            }
            Operation::Open { arguments } => self.open(request, id, &arguments, payload),
            Operation::Release { arguments } => {
                self.writers.closed(node, arguments.flags);
                Ok(())
            }
            Operation::Readdir { arguments } => self.read_directory(id, &arguments, payload),
            Operation::Readdirplus { arguments } => self.read_directory_plus(id, &arguments, payload),
            Operation::Read { arguments: ReadIn { offset, size, flags, .. } } => {
                let quiet = flags & libc::O_NOATIME as u32 != 0;
                let read = if quiet { Filesystem::read_unnoticed } else { Filesystem::read };
                read(&fs, id, offset, size as usize, payload).map(drop).map_err(errno)
            }
            Operation::Write { arguments, data } => self.write(id, &arguments, data, payload),
            Operation::Lseek { arguments } => self.seek(node, &arguments, payload),
            Operation::Fallocate { arguments: FallocateIn { offset, length, mode, .. } } => {
                fs.fallocate(id, mode, offset, length, header.uid != 0).map_err(errno)
            }
            Operation::CopyFileRange { arguments } => {
                let size = self.copy(header, id, &arguments, MOST_COPIED)? as u32;
                answer(&WriteOut { size, padding: 0 }, payload)
            }
            Operation::CopyFileRange64 { arguments } => {
                let bytes_copied = self.copy(header, id, &arguments, u64::MAX)?;
                answer(&CopyFileRangeOut { bytes_copied }, payload)
            }
            Operation::Fsync { data_only } | Operation::Fsyncdir { data_only } => {
                fs.fsync(id, data_only).map_err(errno)
            }
            Operation::Getxattr { size, name } => answer_sized(&fs.get_xattr(id, name).map_err(errno)?, size, payload),
            Operation::Listxattr { size } => answer_sized(&fs.list_xattrs(id).map_err(errno)?, size, payload),
            Operation::Setxattr { flags, setxattr_flags, name, value } => {
                let privileged = setxattr_flags & SETXATTR_ACL_KILL_SGID == 0;
                let caller = Caller { privileged, ..caller(request, 0) };
                fs.set_xattr(&caller, id, name, value, flags).map_err(errno)
            }
            Operation::Removexattr { name } => fs.remove_xattr(&caller(request, 0), id, name).map_err(errno),
            Operation::Ioctl { arguments, data } => self.ioctl(header, id, (&arguments, data), payload),
            // The kernel decides (ACCESS), or there is nothing to say (FLUSH: errors of writing back belong to fsync)
            // or to prepare (OPENDIR).
            _ => Err(Errno::NOSYS),
        }
    }

    /// The name does not exist, as far as the kernel knew when it asked.
    fn create(
        &self,
        request: &Request<'_>,
        parent: InodeId,
        arguments: &CreateIn,
        name: &[u8],
        payload: &mut Vec<u8>,
    ) -> Outcome {
        let made = self.filesystem().create(&caller(request, arguments.umask), parent, name, arguments.mode);
        self.answer_open_entry(made, (arguments.flags, request.header.uid), payload)
    }

    fn open(&self, request: &Request<'_>, id: InodeId, arguments: &OpenIn, payload: &mut Vec<u8>) -> Outcome {
        let OpenIn { flags, open_flags } = *arguments;
        if writers::may_write(flags) {
            self.filesystem().check_writable(id, flags & libc::O_APPEND as u32 != 0).map_err(errno)?;
        }
        if flags & libc::O_TRUNC as u32 != 0 {
            let kill_suidgid = open_flags & OPEN_KILL_SUIDGID != 0;
            let empty = SetAttr { size: Some(0), mtime: Some(SetTime::Now), kill_suidgid, ..SetAttr::default() };
            self.filesystem().setattr(&caller(request, 0), id, &empty).map_err(errno)?;
        }
        let InHeader { nodeid, uid, .. } = request.header;
        self.writers.opened(nodeid, flags, uid);
        self.note_coming_access(nodeid, id, flags);
        answer_open(payload);
        Ok(())
    }

    /// A read from the kernel's cache leaves no trace here. Written data is in that cache, so that the first read
    /// after a write would be none that moves the time of access; opening the file to read it does instead.
    fn note_coming_access(&self, node: u64, id: InodeId, flags: u32) {
        let is_read = flags as i32 & (libc::O_ACCMODE | libc::O_NOATIME) == libc::O_RDONLY;
        if is_read && self.filesystem().note_coming_access(id).unwrap_or(false) {
            // Without a connection nobody shows the time either.
            let _ = self.device.forget_attributes(node);
        }
    }

    fn asking(&self, header: &InHeader) -> Asking {
        let InHeader { nodeid, uid, .. } = *header;
        match self.writers.contains(nodeid) {
            false => Asking::NoWriter,
            true if uid != 0 && self.writers.includes(nodeid, uid) => Asking::Writer,
            true => Asking::Anybody,
        }
    }

    fn write(&self, id: InodeId, arguments: &WriteIn, data: &[u8], payload: &mut Vec<u8>) -> Outcome {
        let WriteIn { offset, write_flags, .. } = *arguments;
        let written = match write_flags & WRITE_CACHE != 0 {
            true => self.filesystem().write_mapped(id, offset, data),
            false => self.filesystem().write(id, offset, data, write_flags & WRITE_KILL_SUIDGID != 0),
        };
        let size = written.map_err(errno)?;
        answer(&WriteOut { size: size as u32, padding: 0 }, payload)
    }

    fn rename(&self, caller: Caller, from: (InodeId, &[u8]), to: (u64, &[u8]), flags: u32) -> Outcome {
        const NOREPLACE: u32 = libc::RENAME_NOREPLACE;
        const EXCHANGE: u32 = libc::RENAME_EXCHANGE;
        const WHITEOUT: u32 = libc::RENAME_WHITEOUT;
        let mode = match flags {
            0 => RenameMode::Replace,
            NOREPLACE => RenameMode::NoReplace,
            EXCHANGE => RenameMode::Exchange,
            WHITEOUT => RenameMode::Whiteout { caller, replace: true },
            flags if flags == WHITEOUT | NOREPLACE => RenameMode::Whiteout { caller, replace: false },
            _ => return Err(Errno::INVAL),
        };
        self.filesystem().rename(from.0, from.1, self.inode(to.0)?, to.1, mode).map_err(errno)
    }

    fn copy(&self, header: &InHeader, from: InodeId, arguments: &CopyFileRangeIn, most: u64) -> Result<u64, Errno> {
        let CopyFileRangeIn { off_in, nodeid_out, off_out, len, flags, .. } = *arguments;
        if flags != 0 {
            return Err(Errno::INVAL);
        }
        let to = self.inode(nodeid_out)?;
        let copied = self.filesystem().copy_range_as((from, off_in), (to, off_out), len.min(most), header.uid != 0);
        copied.map_err(errno)
    }

    /// The kernel has written back its cache of the file.
    pub(super) fn seek(&self, node: u64, arguments: &LseekIn, payload: &mut Vec<u8>) -> Outcome {
        let LseekIn { offset, whence, .. } = *arguments;
        let offset = self.filesystem().lseek(self.inode(node)?, offset, whence).map_err(errno)?;
        answer(&LseekOut { offset }, payload)
    }

    fn answer_statx(&self, id: InodeId, payload: &mut Vec<u8>) -> Outcome {
        let attr = self.filesystem().getattr(id).map_err(errno)?;
        answer(&statx(&attr, self.nodes.ino(id), self.valid_secs), payload)
    }
}

fn answer(structure: &(impl IntoBytes + zerocopy::Immutable), payload: &mut Vec<u8>) -> Outcome {
    payload.extend_from_slice(structure.as_bytes());
    Ok(())
}

fn answer_bytes(bytes: butterfs_fs::Result<Vec<u8>>, payload: &mut Vec<u8>) -> Outcome {
    payload.extend_from_slice(&bytes.map_err(errno)?);
    Ok(())
}

/// A value, or its size for a caller that has no room.
fn answer_sized(value: &[u8], room: u32, payload: &mut Vec<u8>) -> Outcome {
    match room as usize {
        0 => return answer(&GetxattrOut { size: value.len() as u32, padding: 0 }, payload),
        room if room < value.len() => return Err(Errno::RANGE),
        _ => payload.extend_from_slice(value),
    }
    Ok(())
}

fn answer_statfs(fs: &Filesystem, payload: &mut Vec<u8>) -> Outcome {
    let statfs = fs.statfs();
    let totals = StatfsOut {
        blocks: statfs.blocks,
        bfree: statfs.blocks_free,
        bavail: statfs.blocks_available,
        bsize: statfs.block_size,
        frsize: statfs.block_size,
        namelen: statfs.name_len,
        ..StatfsOut::default()
    };
    answer(&totals, payload)
}
