//! Content that may already be on a device: magic numbers of filesystems, volume managers and partition tables, as a
//! table.
//!
//! A match means that somebody may want the content; it does not mean that the content is intact.

use butterfs_device::BlockDevice;
use std::io;

/// One row of [`SIGNATURES`]: these bytes at this offset.
struct Signature {
    name: &'static str,
    offset: u64,
    magic: &'static [u8],
}

const fn row(name: &'static str, offset: u64, magic: &'static [u8]) -> Signature {
    Signature { name, offset, magic }
}

/// Ordered from the most telling to the least: a boot sector's two bytes are also on disks that hold something else.
static SIGNATURES: [Signature; 48] = [
    row("btrfs", 0x10040, b"_BHRfS_M"),
    row("ext2, ext3 or ext4", 0x438, &[0x53, 0xef]),
    row("xfs", 0, b"XFSB"),
    row("xfs log", 0, &[0xfe, 0xed, 0xba, 0xbe]),
    row("f2fs", 0x400, &[0x10, 0x20, 0xf5, 0xf2]),
    row(
        "bcachefs",
        0x1018,
        &[0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9, 0xd9, 0x6a, 0x60, 0xcf, 0x80, 0x3d, 0xf7, 0xef],
    ),
    row(
        "bcache",
        0x1018,
        &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81],
    ),
    row("reiserfs", 0x10034, b"ReIsEr"),
    row("reiserfs", 0x2034, b"ReIsEr"),
    row("jfs", 0x8000, b"JFS1"),
    row("nilfs2", 0x406, &[0x34, 0x34]),
    row("ocfs2", 0x1000, b"OCFSV2"),
    row("gfs2", 0x10000, &[0x01, 0x16, 0x19, 0x70]),
    row("erofs", 0x400, &[0xe2, 0xe1, 0xf5, 0xe0]),
    row("squashfs", 0, b"hsqs"),
    row("cramfs", 0, &[0x45, 0x3d, 0xcd, 0x28]),
    row("hfs", 0x400, b"BD"),
    row("hfsplus", 0x400, b"H+"),
    row("hfsplus", 0x400, b"HX"),
    row("apfs", 32, b"NXSB"),
    row("ufs", 0x255c, &[0x54, 0x19, 0x01, 0x00]),
    row("ufs2", 0x1055c, &[0x19, 0x01, 0x54, 0x19]),
    row("iso9660", 0x8001, b"CD001"),
    row("udf", 0x8001, b"BEA01"),
    row("udf", 0x8001, b"NSR02"),
    row("exfat", 3, b"EXFAT   "),
    row("ntfs", 3, b"NTFS    "),
    row("refs", 3, b"ReFS\0\0\0\0"),
    row("BitLocker", 3, b"-FVE-FS-"),
    row("vfat", 82, b"FAT32   "),
    row("vfat", 54, b"FAT16   "),
    row("vfat", 54, b"FAT12   "),
    row("swap", 4096 - 10, b"SWAPSPACE2"),
    row("swap", 8192 - 10, b"SWAPSPACE2"),
    row("swap", 16384 - 10, b"SWAPSPACE2"),
    row("swap", 65536 - 10, b"SWAPSPACE2"),
    row("suspended system", 4096 - 10, b"S1SUSPEND"),
    row("LUKS", 0, b"LUKS\xba\xbe"),
    row("LUKS", 0x4000, b"SKUL\xba\xbe"),
    row("LVM2 physical volume", 0x218, b"LVM2 001"),
    row("LVM2 physical volume", 0x18, b"LVM2 001"),
    row("Linux RAID", 0, &[0xfc, 0x4e, 0x2b, 0xa9]),
    row("Linux RAID", 0x1000, &[0xfc, 0x4e, 0x2b, 0xa9]),
    row("VMFS", 0x100000, &[0x0d, 0xd0, 0x01, 0xc0]),
    row("QCOW2 image", 0, b"QFI\xfb"),
    row("GPT partition table", 512, b"EFI PART"),
    row("GPT partition table", 4096, b"EFI PART"),
    row("DOS partition table or boot sector", 510, &[0x55, 0xaa]),
];

/// ZFS keeps a ring of uberblocks behind 128 KiB, one of which is the newest.
const ZFS_RING: std::ops::Range<u64> = 0x20000..0x40000;
/// The distance of uberblocks.
const ZFS_STEP: u64 = 1024;
/// The first bytes of an uberblock, in either byte order.
const ZFS_MAGIC: [[u8; 8]; 2] = [[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0xba, 0xb1, 0x0c]];

/// The name of what is on `device`, if anything is recognised.
pub fn recognise(device: &dyn BlockDevice) -> io::Result<Option<&'static str>> {
    for signature in &SIGNATURES {
        if holds(device, signature.offset, &[signature.magic])? {
            return Ok(Some(signature.name));
        }
    }
    for offset in ZFS_RING.step_by(ZFS_STEP as usize) {
        if holds(device, offset, &[&ZFS_MAGIC[0], &ZFS_MAGIC[1]])? {
            return Ok(Some("zfs"));
        }
    }
    Ok(None)
}

/// Whether one of `magics`, all of one length, lies at `offset`. A device that ends before it does not hold it.
fn holds(device: &dyn BlockDevice, offset: u64, magics: &[&[u8]]) -> io::Result<bool> {
    let mut found = [0u8; 16];
    let found = &mut found[..magics[0].len()];
    if offset + found.len() as u64 > device.len() {
        return Ok(false);
    }
    device.read_at(offset, found)?;
    Ok(magics.contains(&&*found))
}
