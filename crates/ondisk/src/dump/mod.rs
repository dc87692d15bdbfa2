//! The text of `btrfs inspect-internal dump-tree` and `dump-super`, byte for byte as btrfs-progs 6.2 prints it.
//!
//! Pure functions from bytes to text. They print what is there, right or wrong: nothing is validated beyond the
//! layout that [`tree_checker::check_layout`](crate::tree_checker::check_layout) ensures, no bytes make them panic,
//! and a payload that is too short reads as zeros where it ends.
//!
//! Items that version 6.2 does not know (simple quotas, the RAID stripe tree) are printed as it prints them, by number.
//! Reading blocks and walking trees is the command's business.

mod extent_items;
mod file_items;
mod key;
mod other_items;
mod root_items;
mod space_items;
mod superblock;
mod time;

pub use key::{KeyText, Objectid};
pub use superblock::superblock;
pub use time::civil;

use crate::ChecksumKind;
use crate::header::{HEADER_LEN, Header, ITEM_LEN, ItemHeader, KeyPointer, leaf_data_size, pointers_per_node};
use crate::key::{Key, KeyType};
use std::io::{self, Write};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

/// The first line of `dump-tree`, which names the version whose text this is.
pub const FORMAT_VERSION: &str = "btrfs-progs v6.2";
/// Longest name that is printed.
const NAME_MAX: usize = 255;

/// How blocks are printed.
#[derive(Clone, Copy)]
pub struct DumpOptions<'a> {
    /// Print `HIDDEN` instead of names and values.
    pub hide_names: bool,
    /// Print the checksums in block headers.
    pub csum_headers: bool,
    /// Print the checksums in checksum items.
    pub csum_items: bool,
    /// The filesystem's checksum.
    pub checksum: ChecksumKind,
    /// The filesystem's sector size.
    pub sectorsize: u32,
    /// Seconds that local time is ahead of UTC at a time in seconds since 1970.
    pub utc_offset: &'a dyn Fn(i64) -> i32,
}

/// Prints a node or leaf: its header and everything in it, but not its children. The block's layout must have been
/// checked; what does not fit is left out.
pub fn tree_block(out: &mut dyn Write, block: &[u8], options: &DumpOptions) -> io::Result<()> {
    let Ok((header, body)) = Header::ref_from_prefix(block) else { return Ok(()) };
    let kind = if header.level == 0 { "leaf" } else { "node" };
    let count = header.nritems.get() as usize;
    if header.level == 0 {
        let items = fitting::<ItemHeader>(body, count);
        print_head(out, kind, "", header, free_in_leaf(items, block.len()))?;
        print_identity(out, kind, header, options)?;
        items.iter().enumerate().try_for_each(|(slot, item)| print_item(out, slot, item, body, options))
    } else {
        let pointers = fitting::<KeyPointer>(body, count);
        let free = pointers_per_node(block.len() as u32) as i64 - count as i64;
        print_head(out, kind, &format!(" level {}", header.level), header, free)?;
        print_identity(out, kind, header, options)?;
        pointers.iter().try_for_each(|pointer| print_pointer(out, pointer))
    }
}

/// As many of `count` items as there are in `body`.
fn fitting<T: FromBytes + Immutable + zerocopy::KnownLayout + zerocopy::Unaligned>(body: &[u8], count: usize) -> &[T] {
    let count = count.min(body.len() / size_of::<T>());
    <[T]>::ref_from_prefix_with_elems(body, count).map_or(&[], |(items, _)| items)
}

fn free_in_leaf(items: &[ItemHeader], nodesize: usize) -> i64 {
    let data_start = items.last().map_or(leaf_data_size(nodesize as u32) as i64, |last| i64::from(last.offset.get()));
    data_start - (items.len() * ITEM_LEN) as i64
}

fn print_head(out: &mut dyn Write, kind: &str, level: &str, header: &Header, free: i64) -> io::Result<()> {
    let owner = Objectid::plain(header.owner.get());
    write!(out, "{kind} {}{level} items {} free space {free} ", header.bytenr, header.nritems)?;
    writeln!(out, "generation {} owner {owner}", header.generation)
}

fn print_identity(out: &mut dyn Write, kind: &str, header: &Header, options: &DumpOptions) -> io::Result<()> {
    let all = header.flags.get();
    let (flags, revision) = (all & (Header::BACKREF_REV - 1), all >> 56);
    let names = [(Header::WRITTEN, "WRITTEN"), (Header::RELOC, "RELOC")];
    write!(out, "{kind} {} flags {flags:#x}({}) backref revision {revision}", header.bytenr, joined(flags, &names))?;
    if options.csum_headers {
        write!(out, " csum 0x{}", hex(&header.csum[..options.checksum.len()]))?;
    }
    writeln!(out, "\nfs uuid {}\nchunk uuid {}", uuid(header.fsid), uuid(header.chunk_tree_uuid))
}

fn print_pointer(out: &mut dyn Write, pointer: &KeyPointer) -> io::Result<()> {
    let key = KeyText(pointer.key.into());
    writeln!(out, "\t{key} block {} gen {}", pointer.blockptr, pointer.generation)
}

fn print_item(
    out: &mut dyn Write,
    slot: usize,
    item: &ItemHeader,
    body: &[u8],
    options: &DumpOptions,
) -> io::Result<()> {
    let key = Key::from(item.key);
    let (offset, size) = (item.offset.get(), item.size.get());
    writeln!(out, "\titem {slot} {} itemoff {offset} itemsize {size}", KeyText(key))?;
    let start = (offset as usize).min(body.len());
    let end = start.saturating_add(size as usize).min(body.len());
    print_payload(out, key, &body[start..end], options)
}

fn print_payload(out: &mut dyn Write, key: Key, data: &[u8], options: &DumpOptions) -> io::Result<()> {
    match key.kind {
        KeyType::INODE_ITEM => file_items::inode_item(out, data, options),
        KeyType::INODE_REF => file_items::inode_refs(out, data, options),
        KeyType::INODE_EXTREF => file_items::inode_extrefs(out, data, options),
        KeyType::DIR_ITEM | KeyType::DIR_INDEX | KeyType::XATTR_ITEM => file_items::dir_items(out, data, options),
        KeyType::DIR_LOG_ITEM | KeyType::DIR_LOG_INDEX => file_items::dir_log(out, data),
        KeyType::ORPHAN_ITEM => writeln!(out, "\t\torphan item"),
        KeyType::EXTENT_DATA => file_items::file_extent(out, data),
        KeyType::EXTENT_CSUM => file_items::checksums(out, key.offset, data, options),
        KeyType::ROOT_ITEM => root_items::root_item(out, data, options),
        KeyType::ROOT_REF => root_items::root_ref(out, "root ref", data),
        KeyType::ROOT_BACKREF => root_items::root_ref(out, "root backref", data),
        KeyType::UUID_KEY_SUBVOL | KeyType::UUID_KEY_RECEIVED_SUBVOL => root_items::uuid_item(out, data),
        KeyType::EXTENT_ITEM | KeyType::METADATA_ITEM => extent_items::extent_item(out, key, data),
        KeyType::TREE_BLOCK_REF => writeln!(out, "\t\ttree block backref"),
        KeyType::SHARED_BLOCK_REF => writeln!(out, "\t\tshared block backref"),
        KeyType::EXTENT_DATA_REF => extent_items::data_ref(out, data),
        KeyType::SHARED_DATA_REF => extent_items::shared_data_ref(out, data),
        KeyType::BLOCK_GROUP_ITEM => space_items::block_group(out, data),
        KeyType::FREE_SPACE_INFO => space_items::free_space_info(out, data),
        KeyType::FREE_SPACE_EXTENT => writeln!(out, "\t\tfree space extent"),
        KeyType::FREE_SPACE_BITMAP => writeln!(out, "\t\tfree space bitmap"),
        KeyType::CHUNK_ITEM => space_items::chunk(out, data),
        KeyType::DEV_ITEM => space_items::device(out, data),
        KeyType::DEV_EXTENT => space_items::dev_extent(out, data),
        _ => other_items::print(out, key, data),
    }
}

/// A structure at the start of `data`; what is missing reads as zero.
fn padded<T: FromZeros + FromBytes + IntoBytes>(data: &[u8]) -> T {
    let mut value = T::new_zeroed();
    let len = data.len().min(size_of::<T>());
    value.as_mut_bytes()[..len].copy_from_slice(&data[..len]);
    value
}

/// The names of the set bits, joined by `|`.
fn joined(flags: u64, names: &[(u64, &'static str)]) -> String {
    let set: Vec<&str> = names.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name).collect();
    set.join("|")
}

/// The same, and `none` when none is set.
fn joined_or_none(flags: u64, names: &[(u64, &'static str)]) -> String {
    let text = joined(flags, names);
    if text.is_empty() { "none".to_owned() } else { text }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn uuid(bytes: [u8; 16]) -> uuid::Uuid {
    uuid::Uuid::from_bytes(bytes)
}

/// The part of a name that is printed: at most [`NAME_MAX`] bytes, and none after a NUL.
fn printable(name: &[u8]) -> &[u8] {
    let name = &name[..name.len().min(NAME_MAX)];
    &name[..name.iter().position(|&byte| byte == 0).unwrap_or(name.len())]
}

/// Prints `label`, then a name or its placeholder, then a newline.
fn line_with_name(out: &mut dyn Write, label: &str, name: &[u8], options: &DumpOptions) -> io::Result<()> {
    out.write_all(label.as_bytes())?;
    out.write_all(if options.hide_names { b"HIDDEN" } else { printable(name) })?;
    out.write_all(b"\n")
}

/// The largest prefix of `data` that is not longer than `len`.
fn up_to(data: &[u8], len: usize) -> (&[u8], &[u8]) {
    data.split_at(len.min(data.len()))
}

const _: () = assert!(HEADER_LEN == size_of::<Header>());

#[cfg(test)]
mod tests;
