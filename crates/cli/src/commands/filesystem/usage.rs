//! `butterfs filesystem usage`.

mod table;

use crate::commands::Run;
use crate::error::CliError;
use crate::open_filesystem::ImagesArgument;
use crate::output::{self, Format, ShortUnits, UnitFormat};
use crate::space::{Details, Overview, device_name, listing_order, overview, profile_name, type_name};
use butterfs_control::{FilesystemRecord, SpaceRecord};
use butterfs_ondisk::items::block_group_flags as bits;
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;

/// Below that, unallocated space does not count as free: no chunk fits in there.
const LEAST_UNALLOCATED: u64 = 16 << 20;

/// Show the use of the space of a filesystem, on each device
#[derive(clap::Args, Clone, Debug)]
#[command(disable_help_flag = true)]
pub struct Args {
    #[command(flatten)]
    images: ImagesArgument,
    #[command(flatten)]
    units: ShortUnits,
    /// Show devices and types in one table
    #[arg(short = 'T')]
    table: bool,
    /// Directories of mounts
    paths: Vec<PathBuf>,
}

/// The first section: sums over all devices and types.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Overall {
    device_size: u64,
    device_allocated: u64,
    device_unallocated: u64,
    device_missing: u64,
    device_slack: u64,
    used: u64,
    free_estimated: u64,
    free_estimated_min: u64,
    free_statfs: u64,
    data_ratio: f64,
    metadata_ratio: f64,
    global_reserve: u64,
    global_reserve_used: u64,
    /// The types that have several profiles.
    multiple_profiles: Vec<&'static str>,
}

/// Bytes on all devices, for each byte of a type's groups.
fn ratio<'a>(spaces: impl Iterator<Item = &'a SpaceRecord> + Clone) -> f64 {
    let total: u64 = spaces.clone().map(|space| space.total).sum();
    let raw: u64 = spaces.map(|space| space.raw).sum();
    if total == 0 { 0.0 } else { raw as f64 / total as f64 }
}

fn raw_used(space: &SpaceRecord) -> u64 {
    (space.used as f64 * ratio(std::iter::once(space))) as u64
}

impl Overall {
    fn of(whole: &FilesystemRecord) -> Overall {
        let of_type = |kind: u64| whole.spaces.iter().filter(move |space| space.flags & kind != 0);
        let allocated: u64 = whole.spaces.iter().map(|space| space.raw).sum();
        let unallocated = whole.device_bytes.saturating_sub(allocated);
        let is_mixed = whole.spaces.iter().any(|space| space.flags & bits::TYPE_MASK == bits::DATA | bits::METADATA);
        let data_ratio = ratio(of_type(bits::DATA));
        let metadata_ratio = if is_mixed { data_ratio } else { ratio(of_type(bits::METADATA)) };
        let (mut free, mut least) = (0, 0);
        if data_ratio > 0.0 {
            // Each part in whole bytes, as btrfs-progs has it.
            let divided = |bytes: u64, ratio: f64| (bytes as f64 / ratio) as u64;
            let raw_data: u64 = of_type(bits::DATA).map(|space| space.raw).sum();
            let raw_data_used: u64 = of_type(bits::DATA).map(raw_used).sum();
            free = divided(raw_data.saturating_sub(raw_data_used), data_ratio);
            if is_mixed {
                // What is kept for trees is kept in the same groups.
                free = free.saturating_sub(whole.global_reserve);
            }
            least = free;
            if unallocated >= LEAST_UNALLOCATED {
                let highest = whole.spaces.iter().map(|space| ratio(std::iter::once(space))).fold(1.0, f64::max);
                free += divided(unallocated, data_ratio);
                least += divided(unallocated, highest);
            }
        }
        Overall {
            device_size: whole.device_bytes,
            device_allocated: allocated,
            device_unallocated: unallocated,
            device_missing: whole.missing_bytes,
            device_slack: whole.slack_bytes,
            used: whole.spaces.iter().map(raw_used).sum(),
            free_estimated: free,
            free_estimated_min: least,
            free_statfs: whole.available,
            data_ratio,
            metadata_ratio,
            global_reserve: whole.global_reserve,
            global_reserve_used: 0,
            multiple_profiles: multiple_profiles(&whole.spaces),
        }
    }

    fn show(&self, units: UnitFormat, out: &mut dyn Write) -> Result<(), CliError> {
        let is_default = units == UnitFormat::Scaled { base: 1024, power: None };
        let width = if is_default { 10 } else { 18 };
        let size = |bytes| units.size(bytes);
        writeln!(out, "Overall:")?;
        for (label, bytes) in [
            ("Device size:\t\t", self.device_size),
            ("Device allocated:\t\t", self.device_allocated),
            ("Device unallocated:\t\t", self.device_unallocated),
            ("Device missing:\t\t", self.device_missing),
            ("Device slack:\t\t", self.device_slack),
            ("Used:\t\t\t", self.used),
        ] {
            writeln!(out, "    {label}{:>width$}", size(bytes))?;
        }
        let (free, least) = (size(self.free_estimated), size(self.free_estimated_min));
        writeln!(out, "    Free (estimated):\t\t{free:>width$}\t(min: {least})")?;
        writeln!(out, "    Free (statfs, df):\t\t{:>width$}", size(self.free_statfs))?;
        writeln!(out, "    Data ratio:\t\t\t{:>width$.2}", self.data_ratio)?;
        writeln!(out, "    Metadata ratio:\t\t{:>width$.2}", self.metadata_ratio)?;
        let (reserve, used) = (size(self.global_reserve), size(self.global_reserve_used));
        writeln!(out, "    Global reserve:\t\t{reserve:>width$}\t(used: {used})")?;
        match &self.multiple_profiles[..] {
            [] => writeln!(out, "    Multiple profiles:\t\t{:>width$}", "no")?,
            types => writeln!(out, "    Multiple profiles:\t\t{:>width$}\t({})", "yes", types.join(", "))?,
        }
        Ok(())
    }
}

fn multiple_profiles(spaces: &[SpaceRecord]) -> Vec<&'static str> {
    let several = |kind: u64| spaces.iter().filter(|space| space.flags & bits::TYPE_MASK == kind).count() > 1;
    let types = [
        (bits::DATA, "data"),
        (bits::METADATA, "metadata"),
        (bits::DATA | bits::METADATA, "data+metadata"),
        (bits::SYSTEM, "system"),
    ];
    types.into_iter().filter(|(kind, _)| several(*kind)).map(|(_, name)| name).collect()
}

/// The types and profiles in the order in which they are listed.
fn listed(whole: &FilesystemRecord) -> Vec<SpaceRecord> {
    let mut spaces = whole.spaces.clone();
    spaces.sort_by_key(|space| listing_order(space.flags));
    spaces
}

fn show_list(shown: &Overview, units: UnitFormat, out: &mut dyn Write) -> Result<(), CliError> {
    for space in listed(&shown.whole) {
        let percent = if space.total == 0 { 0.0 } else { 100.0 * space.used as f64 / space.total as f64 };
        let (total, used) = (units.size(space.total), units.size(space.used));
        let (kind, profile) = (type_name(space.flags), profile_name(space.flags));
        writeln!(out, "\n{kind},{profile}: Size:{total}, Used:{used} ({percent:.2}%)")?;
        let Some(details) = &shown.details else { continue };
        for member in &details.members {
            let bytes = details.on_device(space.flags, member.id);
            if bytes > 0 {
                writeln!(out, "   {}\t{:>10}", device_name(member), units.size(bytes))?;
            }
        }
    }
    let Some(Details { members, .. }) = &shown.details else { return Ok(()) };
    writeln!(out, "\nUnallocated:")?;
    for member in members {
        let unallocated = units.size(member.total_bytes.saturating_sub(member.allocated));
        writeln!(out, "   {}\t{unallocated:>10}", device_name(member))?;
    }
    Ok(())
}

/// The JSON document of one filesystem.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct UsageRecord {
    overall: Overall,
    spaces: Vec<SpaceUse>,
    /// None for those who may not see the devices.
    devices: Option<Vec<DeviceUse>>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct SpaceUse {
    bg_type: &'static str,
    bg_profile: &'static str,
    total: u64,
    used: u64,
    raw: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct DeviceUse {
    devid: u64,
    path: Option<String>,
    size: u64,
    unallocated: u64,
    slack: u64,
    spaces: Vec<DeviceSpace>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct DeviceSpace {
    bg_type: &'static str,
    bg_profile: &'static str,
    size: u64,
}

fn record(shown: &Overview) -> UsageRecord {
    let spaces = listed(&shown.whole);
    let name = |flags| (type_name(flags), profile_name(flags));
    let devices = shown.details.as_ref().map(|details| {
        let device = |member: &butterfs_control::MemberRecord| DeviceUse {
            devid: member.id,
            path: member.storage.as_ref().map(|(name, _)| name.clone()),
            size: member.total_bytes,
            unallocated: member.total_bytes.saturating_sub(member.allocated),
            slack: table::slack(member),
            spaces: spaces
                .iter()
                .map(|space| (name(space.flags), details.on_device(space.flags, member.id)))
                .filter(|(_, size)| *size > 0)
                .map(|((bg_type, bg_profile), size)| DeviceSpace { bg_type, bg_profile, size })
                .collect(),
        };
        details.members.iter().map(device).collect()
    });
    let spaces = spaces.iter().map(|space| {
        let (bg_type, bg_profile) = name(space.flags);
        SpaceUse { bg_type, bg_profile, total: space.total, used: space.used, raw: space.raw }
    });
    UsageRecord { overall: Overall::of(&shown.whole), spaces: spaces.collect(), devices }
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        self.run_as(Format::Text, out)
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        let units = self.units.format();
        let mut records = Vec::new();
        for (number, mut opened) in self.images.open(&self.paths)?.into_iter().enumerate() {
            let shown = overview(&mut opened)?;
            match format {
                Format::Json => records.push(record(&shown)),
                Format::Text => {
                    if number > 0 {
                        writeln!(out)?;
                    }
                    Overall::of(&shown.whole).show(units, out)?;
                    match self.table {
                        true => table::show(&shown, &listed(&shown.whole), units, out)?,
                        false => show_list(&shown, units, out)?,
                    }
                }
            }
            opened.close()?;
        }
        if format == Format::Json { output::json(out, "filesystem-usage", &records) } else { Ok(()) }
    }
}
