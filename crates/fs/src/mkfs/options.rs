//! The options for a new filesystem, and their meaning once defaults are filled in and rules are checked.

use super::features::FeatureChoice;
use crate::error::{Errno, Error, Result};
use butterfs_ondisk::ChecksumKind;
use butterfs_ondisk::features::incompat;
use butterfs_ondisk::profile::Profile;

/// Smallest and largest node size.
const NODESIZES: std::ops::RangeInclusive<u32> = 4096..=65536;
/// The only sector size that is made.
const SECTORSIZE: u32 = 4096;
/// Node size unless asked otherwise.
const DEFAULT_NODESIZE: u32 = 16384;
/// Pages of most machines; larger nodes have a feature bit of their own.
const PAGE_SIZE: u32 = 4096;
/// Longest label; a NUL follows it in the superblock.
const MAX_LABEL_LEN: usize = 255;

/// How to make a filesystem. The default is what mkfs.btrfs makes by default.
#[derive(Clone, Debug, Default)]
pub struct MkfsOptions {
    /// Label, at most 255 bytes.
    pub label: Vec<u8>,
    /// Bytes of a tree block; `None`: 16 KiB, or the sector size with mixed block groups.
    pub nodesize: Option<u32>,
    /// Bytes of a sector; `None`: 4096.
    pub sectorsize: Option<u32>,
    /// Profile of metadata and system chunks; `None`: DUP on one device, RAID1 on several, or single with mixed block
    /// groups.
    pub metadata: Option<&'static Profile>,
    /// Profile of data chunks; `None`: single.
    pub data: Option<&'static Profile>,
    /// Features beyond or without the default ones.
    pub features: FeatureChoice,
    /// Checksum of tree blocks, superblocks and data.
    pub checksum: ChecksumKind,
    /// The filesystem's UUID; `None`: a random one.
    pub fsid: Option<[u8; 16]>,
    /// The device's UUID, where there is one device; `None`: a random one.
    pub device_uuid: Option<[u8; 16]>,
    /// Bytes to use of each device; `None`: all of them.
    pub byte_count: Option<u64>,
    /// Overwrite what is recognised on a device.
    pub force: bool,
    /// Do not tell the devices that their old content is not needed.
    pub keep_old_blocks: bool,
}

/// Options with every default filled in, and every rule that needs no device checked.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Label.
    pub label: Vec<u8>,
    /// Bytes of a tree block.
    pub nodesize: u32,
    /// Bytes of a sector.
    pub sectorsize: u32,
    /// Profile of metadata and system chunks.
    pub metadata: &'static Profile,
    /// Profile of data chunks.
    pub data: &'static Profile,
    /// Feature bits.
    pub incompat: u64,
    /// Feature bits.
    pub compat_ro: u64,
    /// The checksum.
    pub checksum: ChecksumKind,
}

impl Settings {
    /// Whether data and metadata share block groups.
    pub fn mixed(&self) -> bool {
        self.incompat & incompat::MIXED_GROUPS != 0
    }
}

fn refuse<T>(what: impl Into<String>) -> Result<T> {
    Err(Error::refused_at(Errno::EINVAL, what.into()))
}

impl MkfsOptions {
    /// Fills in the defaults for this many devices and checks what can be checked without looking at one. `EINVAL` with
    /// a sentence that names the option and its value.
    pub fn settings(&self, devices: usize) -> Result<Settings> {
        let (mut incompat_flags, compat_ro) =
            self.features.resolve().map_err(|what| Error::refused_at(Errno::EINVAL, what))?;
        let mixed = incompat_flags & incompat::MIXED_GROUPS != 0;
        check_label(&self.label)?;
        let sectorsize = checked_sectorsize(self.sectorsize)?;
        let nodesize = checked_nodesize(self.nodesize, sectorsize, mixed)?;
        let (metadata, data) = checked_profiles(self.metadata, self.data, mixed, devices)?;
        if [metadata, data].iter().any(|profile| profile.copies > 2) {
            incompat_flags |= incompat::RAID1C34;
        }
        if [metadata, data].iter().any(|profile| profile.parity > 0) {
            incompat_flags |= incompat::RAID56;
        }
        let large = if nodesize > PAGE_SIZE { incompat::BIG_METADATA } else { 0 };
        Ok(Settings {
            label: self.label.clone(),
            nodesize,
            sectorsize,
            metadata,
            data,
            incompat: incompat_flags | large,
            compat_ro,
            checksum: self.checksum,
        })
    }
}

fn check_label(label: &[u8]) -> Result<()> {
    if label.len() > MAX_LABEL_LEN {
        return refuse(format!("the label has {} bytes, at most {MAX_LABEL_LEN} are possible", label.len()));
    }
    if label.iter().any(|byte| matches!(byte, 0 | b'\n')) {
        return refuse("the label must not contain NUL or newline characters");
    }
    Ok(())
}

fn checked_sectorsize(asked: Option<u32>) -> Result<u32> {
    match asked.unwrap_or(SECTORSIZE) {
        SECTORSIZE => Ok(SECTORSIZE),
        size @ (8192 | 16384 | 32768 | 65536) => {
            refuse(format!("sector size {size} is not supported, only {SECTORSIZE} is"))
        }
        size => refuse(format!("invalid sector size {size}, only {SECTORSIZE} is supported")),
    }
}

fn checked_nodesize(asked: Option<u32>, sectorsize: u32, mixed: bool) -> Result<u32> {
    let size = asked.unwrap_or(if mixed { sectorsize } else { DEFAULT_NODESIZE });
    if !NODESIZES.contains(&size) || !size.is_power_of_two() {
        return refuse(format!("invalid node size {size}, it must be a power of two from 4096 to 65536"));
    }
    if mixed && size != sectorsize {
        return refuse(format!(
            "with mixed block groups the node size must be the sector size {sectorsize}, not {size}"
        ));
    }
    Ok(size)
}

fn checked_profiles(
    metadata: Option<&'static Profile>,
    data: Option<&'static Profile>,
    mixed: bool,
    devices: usize,
) -> Result<(&'static Profile, &'static Profile)> {
    let named = |name| Profile::named(name).expect("the table has this row");
    let default_metadata = named(match devices {
        _ if mixed => "single",
        0 | 1 => "dup",
        _ => "raid1",
    });
    let (metadata, data) = (metadata.unwrap_or(default_metadata), data.unwrap_or(named("single")));
    for (what, profile) in [("metadata", metadata), ("data", data)] {
        let (name, least) = (profile.name, profile.min_devices);
        if devices < least {
            return refuse(format!("{what} profile {name} needs at least {least} devices, {devices} given"));
        }
    }
    if mixed && metadata != data {
        return refuse("with mixed block groups data and metadata profiles must be the same");
    }
    Ok((metadata, data))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> MkfsOptions {
        MkfsOptions::default()
    }

    fn mixed() -> FeatureChoice {
        let mut choice = FeatureChoice::default();
        choice.set_mixed();
        choice
    }

    #[test]
    fn defaults_depend_on_mixed_groups() {
        let plain = options().settings(1).unwrap();
        assert_eq!((plain.nodesize, plain.metadata.name, plain.data.name), (16384, "DUP", "single"));
        assert_eq!(plain.incompat, 0x361);
        assert_eq!(plain.compat_ro, 0xb);
        let mixed = MkfsOptions { features: mixed(), ..options() }.settings(1).unwrap();
        assert_eq!((mixed.nodesize, mixed.metadata.name, mixed.data.name), (4096, "single", "single"));
        assert_eq!(mixed.incompat, 0x345);
    }

    #[test]
    fn refusals_name_option_and_value() {
        let profile = Profile::named;
        let table: &[(MkfsOptions, &str)] = &[
            (MkfsOptions { label: vec![b'x'; 256], ..options() }, "256"),
            (MkfsOptions { label: b"a\nb".to_vec(), ..options() }, "newline"),
            (MkfsOptions { nodesize: Some(3000), ..options() }, "3000"),
            (MkfsOptions { nodesize: Some(2048), ..options() }, "2048"),
            (MkfsOptions { nodesize: Some(131072), ..options() }, "131072"),
            (MkfsOptions { sectorsize: Some(8192), ..options() }, "8192 is not supported"),
            (MkfsOptions { sectorsize: Some(5000), ..options() }, "5000"),
            (
                MkfsOptions { metadata: profile("raid1"), ..options() },
                "metadata profile RAID1 needs at least 2 devices, 1 given",
            ),
            (MkfsOptions { data: profile("raid1c4"), ..options() }, "data profile RAID1C4 needs at least 4"),
            (MkfsOptions { nodesize: Some(16384), features: mixed(), ..options() }, "16384"),
            (MkfsOptions { metadata: profile("dup"), features: mixed(), ..options() }, "must be the same"),
        ];
        for (options, part) in table {
            let error = options.settings(1).expect_err(part);
            assert!(error.is(Errno::EINVAL) && error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn defaults_depend_on_the_number_of_devices() {
        let settings = options().settings(2).unwrap();
        assert_eq!((settings.metadata.name, settings.data.name, settings.incompat), ("RAID1", "single", 0x361));
        let settings = MkfsOptions { data: Profile::named("raid1c3"), ..options() }.settings(3).unwrap();
        assert_eq!((settings.metadata.name, settings.incompat), ("RAID1", 0xb61));
        let settings = MkfsOptions { data: Profile::named("raid5"), ..options() }.settings(2).unwrap();
        assert_eq!((settings.metadata.name, settings.incompat), ("RAID1", 0x3e1));
        let few = MkfsOptions { data: Profile::named("raid6"), ..options() }.settings(2).expect_err("two devices");
        assert!(few.is(Errno::EINVAL) && few.to_string().contains("RAID6 needs at least 3 devices"), "{few}");
    }
}
