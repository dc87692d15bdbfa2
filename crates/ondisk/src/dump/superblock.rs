//! The text of a superblock.

use super::{hex, key::KeyText, space_items, uuid};
use crate::ChecksumKind;
use crate::chunk::SysChunkEntries;
use crate::features::{compat_ro, incompat};
use crate::items::DevItem;
use crate::key::{DiskKey, Key, KeyType};
use crate::superblock::{BACKUP_ROOTS, MAGIC, RootBackup, SYS_CHUNK_ARRAY_LEN, Superblock, super_flags};
use std::fmt::Display;
use std::io::{self, Write};
use zerocopy::{FromBytes, IntoBytes};

/// Flag bits, by name.
struct Flags {
    /// Bits that are not called unknown.
    known: u64,
    names: &'static [(u64, &'static str)],
}

static SUPER_FLAGS: Flags = Flags {
    known: super_flags::WRITTEN
        | super_flags::RELOC
        | super_flags::SEEDING
        | super_flags::METADUMP
        | super_flags::METADUMP_V2
        | CHANGING_FSID,
    names: &[
        (super_flags::WRITTEN, "WRITTEN"),
        (super_flags::RELOC, "RELOC"),
        (CHANGING_FSID, "CHANGING_FSID"),
        (super_flags::SEEDING, "SEEDING"),
        (super_flags::METADUMP, "METADUMP"),
        (super_flags::METADUMP_V2, "METADUMP_V2"),
    ],
};
const CHANGING_FSID: u64 = 1 << 35;

static COMPAT_RO_FLAGS: Flags = Flags {
    // VERITY is known, but has no name.
    known: compat_ro::SUPPORTED,
    names: &[
        (compat_ro::FREE_SPACE_TREE, "FREE_SPACE_TREE"),
        (compat_ro::FREE_SPACE_TREE_VALID, "FREE_SPACE_TREE_VALID"),
        (compat_ro::BLOCK_GROUP_TREE, "BLOCK_GROUP_TREE"),
    ],
};

static INCOMPAT_FLAGS: Flags = Flags {
    // Bits 0 to 12; EXTENT_TREE_V2 has a name but counts as unknown.
    known: (1 << 13) - 1,
    names: &[
        (incompat::MIXED_BACKREF, "MIXED_BACKREF"),
        (incompat::DEFAULT_SUBVOL, "DEFAULT_SUBVOL"),
        (incompat::MIXED_GROUPS, "MIXED_GROUPS"),
        (incompat::COMPRESS_LZO, "COMPRESS_LZO"),
        (incompat::COMPRESS_ZSTD, "COMPRESS_ZSTD"),
        (incompat::BIG_METADATA, "BIG_METADATA"),
        (incompat::EXTENDED_IREF, "EXTENDED_IREF"),
        (incompat::RAID56, "RAID56"),
        (incompat::SKINNY_METADATA, "SKINNY_METADATA"),
        (incompat::NO_HOLES, "NO_HOLES"),
        (incompat::METADATA_UUID, "METADATA_UUID"),
        (incompat::RAID1C34, "RAID1C34"),
        (incompat::ZONED, "ZONED"),
        (incompat::EXTENT_TREE_V2, "EXTENT_TREE_V2"),
    ],
};

/// Prints a superblock; with `full` also the system chunk array and the backup roots. Nothing need be valid.
pub fn superblock(out: &mut dyn Write, sb: &Superblock, full: bool) -> io::Result<()> {
    print_identity(out, sb)?;
    print_roots(out, sb)?;
    print_sizes(out, sb)?;
    print_features(out, sb)?;
    print_device(out, sb)?;
    if full {
        print_sys_chunks(out, sb)?;
        print_backups(out, sb)?;
    }
    Ok(())
}

/// A field, its value in the column that tabs of 8 put at 24; names too long for it are followed by one tab.
fn field(out: &mut dyn Write, name: &str, value: impl Display) -> io::Result<()> {
    let tabs = (24usize.saturating_sub(name.len())).div_ceil(8).max(1);
    writeln!(out, "{name}{}{value}", &"\t\t\t"[..tabs])
}

fn print_identity(out: &mut dyn Write, sb: &Superblock) -> io::Result<()> {
    print_checksum(out, sb)?;
    field(out, "bytenr", sb.bytenr)?;
    print_flags(out, "flags", sb.flags.get(), &SUPER_FLAGS)?;
    field(out, "magic", format_args!("{} {}", shown(&sb.magic), matching(sb.magic == MAGIC)))?;
    field(out, "fsid", uuid(sb.fsid))?;
    field(out, "metadata_uuid", uuid(sb.block_fsid()))?;
    field(out, "label", shown(sb.label()))
}

/// A label or magic; bytes that are not printable ASCII as dots.
fn shown(bytes: &[u8]) -> String {
    let printable = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
    bytes.iter().map(|&byte| if printable(byte) { char::from(byte) } else { '.' }).collect()
}

fn matching(matches: bool) -> &'static str {
    if matches { "[match]" } else { "[DON'T MATCH]" }
}

fn print_checksum(out: &mut dyn Write, sb: &Superblock) -> io::Result<()> {
    let kind = sb.checksum_kind();
    let len = kind.map_or(sb.csum.len(), ChecksumKind::len);
    field(out, "csum_type", format_args!("{} ({})", sb.csum_type, kind.map_or("INVALID", ChecksumKind::name)))?;
    field(out, "csum_size", len)?;
    let verdict = match kind {
        Some(kind) => matching(kind.matches(&sb.as_bytes()[32..], &sb.csum)),
        None => "[UNKNOWN CSUM TYPE OR SIZE]",
    };
    field(out, "csum", format_args!("0x{} {verdict}", hex(&sb.csum[..len])))
}

fn print_roots(out: &mut dyn Write, sb: &Superblock) -> io::Result<()> {
    field(out, "generation", sb.generation)?;
    field(out, "root", sb.root)?;
    field(out, "sys_array_size", sb.sys_chunk_array_size)?;
    field(out, "chunk_root_generation", sb.chunk_root_generation)?;
    field(out, "root_level", sb.root_level)?;
    field(out, "chunk_root", sb.chunk_root)?;
    field(out, "chunk_root_level", sb.chunk_root_level)?;
    field(out, "log_root", sb.log_root)?;
    field(out, "log_root_transid (deprecated)", sb.log_root_transid)?;
    field(out, "log_root_level", sb.log_root_level)
}

fn print_sizes(out: &mut dyn Write, sb: &Superblock) -> io::Result<()> {
    field(out, "total_bytes", sb.total_bytes)?;
    field(out, "bytes_used", sb.bytes_used)?;
    field(out, "sectorsize", sb.sectorsize)?;
    field(out, "nodesize", sb.nodesize)?;
    field(out, "leafsize (deprecated)", sb.leafsize)?;
    field(out, "stripesize", sb.stripesize)?;
    field(out, "root_dir", sb.root_dir_objectid)?;
    field(out, "num_devices", sb.num_devices)
}

fn print_features(out: &mut dyn Write, sb: &Superblock) -> io::Result<()> {
    field(out, "compat_flags", format_args!("{:#x}", sb.compat_flags.get()))?;
    print_flags(out, "compat_ro_flags", sb.compat_ro_flags.get(), &COMPAT_RO_FLAGS)?;
    print_flags(out, "incompat_flags", sb.incompat_flags.get(), &INCOMPAT_FLAGS)?;
    field(out, "cache_generation", sb.cache_generation)?;
    field(out, "uuid_tree_generation", sb.uuid_tree_generation)
}

fn print_flags(out: &mut dyn Write, name: &str, value: u64, flags: &Flags) -> io::Result<()> {
    field(out, name, format_args!("{value:#x}"))?;
    if value == 0 {
        return Ok(());
    }
    let mut parts = Vec::new();
    if value & flags.known != 0 {
        let set = flags.names.iter().filter(|(bit, _)| value & bit != 0);
        parts.extend(set.map(|(_, name)| (*name).to_owned()));
    }
    if value & !flags.known != 0 {
        parts.push(format!("unknown flag: {:#x}", value & !flags.known));
    }
    let end = if parts.is_empty() { ")" } else { " )" };
    writeln!(out, "\t\t\t( {}{end}", parts.join(" |\n\t\t\t  "))
}

fn print_device(out: &mut dyn Write, sb: &Superblock) -> io::Result<()> {
    let DevItem { kind, total_bytes, bytes_used, io_align, io_width, sector_size, devid, .. } = sb.dev_item;
    let DevItem { dev_group, seek_speed, bandwidth, generation, .. } = sb.dev_item;
    field(out, "dev_item.uuid", uuid(sb.dev_item.uuid))?;
    let matches = matching(sb.dev_item.fsid == sb.block_fsid());
    field(out, "dev_item.fsid", format_args!("{} {matches}", uuid(sb.dev_item.fsid)))?;
    field(out, "dev_item.type", kind)?;
    field(out, "dev_item.total_bytes", total_bytes)?;
    field(out, "dev_item.bytes_used", bytes_used)?;
    field(out, "dev_item.io_align", io_align)?;
    field(out, "dev_item.io_width", io_width)?;
    field(out, "dev_item.sector_size", sector_size)?;
    field(out, "dev_item.devid", devid)?;
    field(out, "dev_item.dev_group", dev_group)?;
    field(out, "dev_item.seek_speed", seek_speed)?;
    field(out, "dev_item.bandwidth", bandwidth)?;
    field(out, "dev_item.generation", generation)
}

/// The system chunk array, up to the first entry that is not whole.
fn print_sys_chunks(out: &mut dyn Write, sb: &Superblock) -> io::Result<()> {
    writeln!(out, "sys_chunk_array[{SYS_CHUNK_ARRAY_LEN}]:")?;
    let size = sb.sys_chunk_array_size.get() as usize;
    let Some(array) = sb.sys_chunk_array.get(..size) else { return Ok(()) };
    let mut at = 0;
    for slot in 0.. {
        let Ok((key, _)) = DiskKey::read_from_prefix(&array[at..]) else { break };
        let key = Key::from(key);
        writeln!(out, "\titem {slot} {}", KeyText(key))?;
        let Some(Ok((_, payload))) = SysChunkEntries::new(&array[at..]).next() else { break };
        if key.kind != KeyType::CHUNK_ITEM || payload.len() < size_of::<crate::items::ChunkHead>() + 1 {
            break;
        }
        space_items::chunk(out, payload)?;
        at += size_of::<DiskKey>() + payload.len();
    }
    Ok(())
}

fn print_backups(out: &mut dyn Write, sb: &Superblock) -> io::Result<()> {
    writeln!(out, "backup_roots[{BACKUP_ROOTS}]:")?;
    let version_2 = sb.incompat_flags.get() & incompat::EXTENT_TREE_V2 != 0;
    for (slot, backup) in sb.super_roots.iter().enumerate() {
        writeln!(out, "\tbackup {slot}:")?;
        print_backup(out, backup, version_2)?;
    }
    Ok(())
}

fn print_backup(out: &mut dyn Write, backup: &RootBackup, extent_tree_v2: bool) -> io::Result<()> {
    let extent_root = if extent_tree_v2 { "backup_block_group_root:\t" } else { "backup_extent_root:\t" };
    let roots = [
        ("backup_tree_root:\t", backup.tree_root, backup.tree_root_gen, backup.tree_root_level),
        ("backup_chunk_root:\t", backup.chunk_root, backup.chunk_root_gen, backup.chunk_root_level),
        (extent_root, backup.extent_root, backup.extent_root_gen, backup.extent_root_level),
        ("backup_fs_root:\t\t", backup.fs_root, backup.fs_root_gen, backup.fs_root_level),
        ("backup_dev_root:\t", backup.dev_root, backup.dev_root_gen, backup.dev_root_level),
        ("csum_root:\t", backup.csum_root, backup.csum_root_gen, backup.csum_root_level),
    ];
    for (name, at, generation, level) in roots {
        writeln!(out, "\t\t{name}{at}\tgen: {generation}\tlevel: {level}")?;
    }
    writeln!(out, "\t\tbackup_total_bytes:\t{}", backup.total_bytes)?;
    writeln!(out, "\t\tbackup_bytes_used:\t{}", backup.bytes_used)?;
    writeln!(out, "\t\tbackup_num_devices:\t{}\n", backup.num_devices)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(change: impl FnOnce(&mut Superblock), first: &str, count: usize) -> String {
        let mut sb: Superblock = zerocopy::FromZeros::new_zeroed();
        change(&mut sb);
        let mut out = Vec::new();
        superblock(&mut out, &sb, true).unwrap();
        let text = String::from_utf8(out).unwrap();
        let from = text.find(first).unwrap_or_else(|| panic!("no {first} in {text}"));
        text[from..].lines().take(count).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn flags_and_features_have_their_names() {
        let flags = |value: u64| lines(|sb| sb.flags = value.into(), "flags\t", 3);
        assert!(flags(0).starts_with("flags\t\t\t0x0\nmagic"));
        assert!(flags(1 | 1 << 32).starts_with("flags\t\t\t0x100000001\n\t\t\t( WRITTEN |\n\t\t\t  SEEDING )"));
        assert!(flags(4).starts_with("flags\t\t\t0x4\n\t\t\t( unknown flag: 0x4 )"));
        let compat_ro = |value: u64| lines(|sb| sb.compat_ro_flags = value.into(), "compat_ro_flags", 2);
        assert_eq!(compat_ro(4), "compat_ro_flags\t\t0x4\n\t\t\t( )");
        assert_eq!(compat_ro(8), "compat_ro_flags\t\t0x8\n\t\t\t( BLOCK_GROUP_TREE )");
        let incompat = |value: u64| lines(|sb| sb.incompat_flags = value.into(), "incompat_flags", 4);
        let text = incompat(0x2001);
        assert_eq!(
            text,
            "incompat_flags\t\t0x2001\n\t\t\t( MIXED_BACKREF |\n\t\t\t  EXTENT_TREE_V2 |\n\t\t\t  unknown flag: 0x2000 \
             )"
        );
        assert!(incompat(0x2000).starts_with("incompat_flags\t\t0x2000\n\t\t\t( unknown flag: 0x2000 )"));
    }

    #[test]
    fn unprintable_characters_are_replaced() {
        let text = lines(|sb| sb.label[..6].copy_from_slice(b"a\xff\nb\0c"), "label", 1);
        assert_eq!(text, "label\t\t\ta..b");
        let text = lines(|sb| sb.magic = *b"\x01BH fS_M", "magic", 1);
        assert_eq!(text, "magic\t\t\t.BH fS_M [DON'T MATCH]");
        let text = lines(|sb| sb.csum_type = 4.into(), "csum_type", 3);
        let zeros = "0".repeat(64);
        assert_eq!(
            text,
            format!("csum_type\t\t4 (INVALID)\ncsum_size\t\t32\ncsum\t\t\t0x{zeros} [UNKNOWN CSUM TYPE OR SIZE]")
        );
    }
}
