//! Items of inodes: the inode itself, names, entries, attributes, extents, and the checksums of data.

use super::{DumpOptions, hex, joined_or_none, key::KeyText, line_with_name, padded, time, up_to};
use crate::items::{
    DirItem, FileExtent, FileExtentHead, InodeExtref, InodeItem, InodeRef, compression, dir_type, file_extent_type,
    inode_flags as flag,
};
use std::io::{self, Write};
use zerocopy::FromBytes;
use zerocopy::little_endian::U64;

const INODE_FLAGS: &[(u64, &str)] = &[
    (flag::NODATASUM, "NODATASUM"),
    (flag::NODATACOW, "NODATACOW"),
    (flag::READONLY, "READONLY"),
    (flag::NOCOMPRESS, "NOCOMPRESS"),
    (flag::PREALLOC, "PREALLOC"),
    (flag::SYNC, "SYNC"),
    (flag::IMMUTABLE, "IMMUTABLE"),
    (flag::APPEND, "APPEND"),
    (flag::NODUMP, "NODUMP"),
    (flag::NOATIME, "NOATIME"),
    (flag::DIRSYNC, "DIRSYNC"),
    (flag::COMPRESS, "COMPRESS"),
];

pub(super) fn inode_item(out: &mut dyn Write, data: &[u8], options: &DumpOptions) -> io::Result<()> {
    let inode: InodeItem = padded(data);
    let InodeItem { generation, transid, size, nbytes, block_group, nlink, uid, gid, rdev, sequence, .. } = inode;
    let (mode, flags) = (inode.mode.get(), inode.flags.get());
    writeln!(out, "\t\tgeneration {generation} transid {transid} size {size} nbytes {nbytes}")?;
    writeln!(out, "\t\tblock group {block_group} mode {mode:o} links {nlink} uid {uid} gid {gid} rdev {rdev}")?;
    writeln!(out, "\t\tsequence {sequence} flags {flags:#x}({})", joined_or_none(flags, INODE_FLAGS))?;
    for (label, value) in
        [("atime", inode.atime), ("ctime", inode.ctime), ("mtime", inode.mtime), ("otime", inode.otime)]
    {
        time::line(out, label, &value, options)?;
    }
    Ok(())
}

pub(super) fn inode_refs(out: &mut dyn Write, mut data: &[u8], options: &DumpOptions) -> io::Result<()> {
    while let Ok((head, rest)) = InodeRef::ref_from_prefix(data) {
        let (name, after) = up_to(rest, head.name_len.get().into());
        let label = format!("\t\tindex {} namelen {} name: ", head.index, head.name_len);
        line_with_name(out, &label, name, options)?;
        data = after;
    }
    Ok(())
}

pub(super) fn inode_extrefs(out: &mut dyn Write, mut data: &[u8], options: &DumpOptions) -> io::Result<()> {
    while let Ok((head, rest)) = InodeExtref::ref_from_prefix(data) {
        let (name, after) = up_to(rest, head.name_len.get().into());
        let InodeExtref { index, parent, name_len } = head;
        let label = format!("\t\tindex {index} parent {parent} namelen {name_len} name: ");
        line_with_name(out, &label, name, options)?;
        data = after;
    }
    Ok(())
}

pub(super) fn dir_items(out: &mut dyn Write, mut data: &[u8], options: &DumpOptions) -> io::Result<()> {
    while let Ok((entry, rest)) = DirItem::ref_from_prefix(data) {
        let DirItem { location, transid, data_len, name_len, kind } = *entry;
        let (name, rest) = up_to(rest, name_len.get().into());
        let (value, after) = up_to(rest, data_len.get().into());
        writeln!(out, "\t\tlocation {} type {}", KeyText(location.into()), entry_type(kind))?;
        writeln!(out, "\t\ttransid {transid} data_len {data_len} name_len {name_len}")?;
        line_with_name(out, "\t\tname: ", name, options)?;
        if data_len.get() != 0 {
            line_with_name(out, "\t\tdata ", value, options)?;
        }
        data = after;
    }
    Ok(())
}

fn entry_type(kind: u8) -> String {
    let name = match kind {
        dir_type::REG_FILE => "FILE",
        dir_type::DIR => "DIR",
        dir_type::CHRDEV => "CHRDEV",
        dir_type::BLKDEV => "BLKDEV",
        dir_type::FIFO => "FIFO",
        dir_type::SOCK => "SOCK",
        dir_type::SYMLINK => "SYMLINK",
        dir_type::XATTR => "XATTR",
        other => return format!("DIR_ITEM.{other}"),
    };
    name.to_owned()
}

pub(super) fn dir_log(out: &mut dyn Write, data: &[u8]) -> io::Result<()> {
    writeln!(out, "\t\tdir log end {}", padded::<U64>(data))
}

pub(super) fn file_extent(out: &mut dyn Write, data: &[u8]) -> io::Result<()> {
    let FileExtent { head, body } = padded(data);
    let packing = compression_name(head.compression);
    writeln!(out, "\t\tgeneration {} type {} ({})", head.generation, head.kind, extent_type(head.kind))?;
    match head.kind {
        file_extent_type::INLINE => {
            let size = data.len().saturating_sub(FileExtentHead::LEN);
            write!(out, "\t\tinline extent data size {size} ram_bytes {} ", head.ram_bytes)?;
            writeln!(out, "compression {} ({packing})", head.compression)
        }
        file_extent_type::PREALLOC => {
            writeln!(out, "\t\tprealloc data disk byte {} nr {}", body.disk_bytenr, body.disk_num_bytes)?;
            writeln!(out, "\t\tprealloc data offset {} nr {}", body.offset, body.num_bytes)
        }
        _ => {
            writeln!(out, "\t\textent data disk byte {} nr {}", body.disk_bytenr, body.disk_num_bytes)?;
            writeln!(out, "\t\textent data offset {} nr {} ram {}", body.offset, body.num_bytes, head.ram_bytes)?;
            writeln!(out, "\t\textent compression {} ({packing})", head.compression)
        }
    }
}

fn extent_type(kind: u8) -> &'static str {
    match kind {
        file_extent_type::INLINE => "inline",
        file_extent_type::REGULAR => "regular",
        file_extent_type::PREALLOC => "prealloc",
        _ => "unknown",
    }
}

fn compression_name(kind: u8) -> String {
    let name = match kind {
        compression::NONE => "none",
        compression::ZLIB => "zlib",
        compression::LZO => "lzo",
        compression::ZSTD => "zstd",
        other => return format!("UNKNOWN.{other}"),
    };
    name.to_owned()
}

pub(super) fn checksums(out: &mut dyn Write, start: u64, data: &[u8], options: &DumpOptions) -> io::Result<()> {
    let (sector, len) = (u64::from(options.sectorsize), options.checksum.len());
    let covered = (data.len() / len) as u64 * sector;
    write!(out, "\t\trange start {start} end {} length {covered}", start.wrapping_add(covered))?;
    if options.csum_items {
        // A line holds as many checksums as are readable: four short ones, one long one.
        let per_line = (16 / len).max(1);
        for (index, digest) in data.chunks_exact(len).enumerate() {
            out.write_all(if index % per_line == 0 { b"\n\t\t" } else { b" " })?;
            let at = start.wrapping_add(index as u64 * sector);
            write!(out, "[{at}] 0x{}", hex(digest))?;
        }
        if data.len() < len {
            out.write_all(b"\n")?;
        }
    }
    writeln!(out)
}
