//! `butterfs device usage`.

use crate::commands::Run;
use crate::error::CliError;
use crate::open_filesystem::ImagesArgument;
use crate::output::{self, Format, ShortUnits, UnitFormat};
use crate::space::{chunks, device_name, listing_order, members, profile_name, type_name};
use butterfs_control::{ChunkRecord, MemberRecord};
use butterfs_ondisk::profile::Profile;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

/// Show the allocation of the space of each device
#[derive(clap::Args, Clone, Debug)]
#[command(disable_help_flag = true)]
pub struct Args {
    #[command(flatten)]
    images: ImagesArgument,
    #[command(flatten)]
    units: ShortUnits,
    /// Directories of mounts
    paths: Vec<PathBuf>,
}

/// The space of a device; the names are those of the text.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct DeviceUse {
    devid: u64,
    path: Option<String>,
    device_size: u64,
    device_slack: u64,
    allocations: Vec<Allocation>,
    unallocated: u64,
    #[serde(skip)]
    name: String,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Allocation {
    bg_type: &'static str,
    bg_profile: &'static str,
    /// Stripes of each chunk, where the profile spreads data over as many as there are.
    stripes: Option<usize>,
    size: u64,
}

fn device_use(member: &MemberRecord, chunks: &[ChunkRecord]) -> DeviceUse {
    let mut sizes: BTreeMap<((u8, u64), u64, usize), u64> = BTreeMap::new();
    for chunk in chunks {
        let here = chunk.stripes.iter().filter(|(id, _)| *id == member.id).count() as u64;
        if here > 0 {
            let spreads = Profile::of(chunk.flags).is_some_and(|profile| profile.max_devices.is_none());
            let stripes = if spreads { chunk.stripes.len() } else { 0 };
            *sizes.entry((listing_order(chunk.flags), chunk.flags, stripes)).or_default() += here * chunk.stripe_length;
        }
    }
    let allocation = |((_, flags, stripes), size): ((_, u64, usize), u64)| Allocation {
        bg_type: type_name(flags),
        bg_profile: profile_name(flags),
        stripes: (stripes > 0).then_some(stripes),
        size,
    };
    let bytes = member.storage.as_ref().map_or(0, |(_, bytes)| *bytes);
    DeviceUse {
        devid: member.id,
        path: member.storage.as_ref().map(|(name, _)| name.clone()),
        device_size: bytes,
        device_slack: bytes.saturating_sub(member.total_bytes),
        allocations: sizes.into_iter().map(allocation).collect(),
        unallocated: member.total_bytes.saturating_sub(member.allocated),
        name: device_name(member).to_owned(),
    }
}

impl DeviceUse {
    fn show(&self, units: UnitFormat, out: &mut dyn Write) -> Result<(), CliError> {
        let mut line = |label: &str, bytes| writeln!(out, "   {:<22}{:>10}", format!("{label}:"), units.size(bytes));
        line("Device size", self.device_size)?;
        line("Device slack", self.device_slack)?;
        for Allocation { bg_type, bg_profile, stripes, size } in &self.allocations {
            let stripes = stripes.map(|count| format!("/{count}")).unwrap_or_default();
            line(&format!("{bg_type},{bg_profile}{stripes}"), *size)?;
        }
        line("Unallocated", self.unallocated)?;
        Ok(writeln!(out)?)
    }
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        self.run_as(Format::Text, out)
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        let mut devices = Vec::new();
        for mut opened in self.images.open(&self.paths)? {
            let chunks = chunks(&mut opened)?;
            devices.extend(members(&mut opened)?.iter().map(|member| device_use(member, &chunks)));
            opened.close()?;
        }
        if format == Format::Json {
            return output::json(out, "device-usage", &devices);
        }
        for device in &devices {
            writeln!(out, "{}, ID: {}", device.name, device.devid)?;
            device.show(self.units.format(), out)?;
        }
        Ok(())
    }
}
