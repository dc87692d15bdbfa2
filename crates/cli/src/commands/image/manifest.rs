//! `butterfs image verify`, `diff` and `df`: what is in images, and how full they are.

use super::place::{Place, said};
use crate::args::pretty_size;
use crate::commands::Run;
use crate::error::CliError;
use crate::output::{self, Format};
use butterfs::{Access, SubvolumeId, Usage};
use butterfs_image::{FilesystemSource, Manifest};
use serde::Serialize;
use std::io::Write;

/// Print a digest of everything that an image shows, whatever its layout, and compare it with an expected one
#[derive(clap::Args, Debug)]
pub struct VerifyArgs {
    /// Print a line for each path, of which the digest is made
    #[arg(short, long)]
    list: bool,
    /// The image, or a device; '@' and a number behind it mean a partition in it
    #[arg(value_name = "IMAGE[@NUMBER]")]
    image: String,
    /// The digest that it should have
    expected: Option<String>,
}

impl Run for VerifyArgs {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let manifest = manifest_of(&self.image)?;
        let digest = manifest.digest();
        if self.list {
            manifest.lines().try_for_each(|line| writeln!(out, "{line}"))?;
        }
        writeln!(out, "sha256:{digest}")?;
        self.compare(&digest)
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        if format == Format::Text {
            return self.run(out);
        }
        let manifest = manifest_of(&self.image)?;
        let digest = manifest.digest();
        let matches = self.expected.as_ref().map(|_| self.compare(&digest).is_ok());
        let lines = self.list.then(|| manifest.lines().collect());
        output::json(out, "image-verify", &VerifyJson { digest: format!("sha256:{digest}"), matches, lines })?;
        self.compare(&digest)
    }
}

impl VerifyArgs {
    fn compare(&self, digest: &str) -> Result<(), CliError> {
        match self.expected.as_ref().filter(|expected| expected.trim_start_matches("sha256:") != digest) {
            Some(expected) => Err(CliError::failed(format!("{} should have the digest {expected}", self.image))),
            None => Ok(()),
        }
    }
}

/// The digest of an image; whether it is the expected one, and its lines, where that was asked for.
#[derive(Serialize)]
struct VerifyJson {
    digest: String,
    matches: Option<bool>,
    lines: Option<Vec<String>>,
}

/// Compare the contents of two images, independent of their layout
///
/// A line for each path that differs: '-' before entries of the first image, '+' before the second one's. The exit
/// code is 1 where something differs.
#[derive(clap::Args, Debug)]
pub struct DiffArgs {
    /// An image, or a device; '@' and a number behind it mean a partition in it
    #[arg(value_name = "IMAGE[@NUMBER]")]
    one: String,
    /// Another one
    #[arg(value_name = "OTHER[@NUMBER]")]
    other: String,
}

impl Run for DiffArgs {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let found = manifest_of(&self.one)?.differences(&manifest_of(&self.other)?);
        found.iter().try_for_each(|line| writeln!(out, "{line}"))?;
        differ(!found.is_empty())
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        if format == Format::Text {
            return self.run(out);
        }
        let (one, other) = (manifest_of(&self.one)?, manifest_of(&self.other)?);
        let found: Vec<DifferenceJson<'_>> = one.changed(&other).map(DifferenceJson::of).collect();
        output::json(out, "image-diff", &found)?;
        differ(!found.is_empty())
    }
}

/// The exit code of a comparison.
fn differ(is_so: bool) -> Result<(), CliError> {
    if is_so { Err(CliError::Reported { code: crate::error::FAILED }) } else { Ok(()) }
}

/// A path that is not the same in two images, and what each has there.
#[derive(Serialize)]
struct DifferenceJson<'a> {
    path: String,
    one: Option<&'a str>,
    other: Option<&'a str>,
}

impl<'a> DifferenceJson<'a> {
    fn of((path, one, other): (&[u8], Option<&'a str>, Option<&'a str>)) -> DifferenceJson<'a> {
        DifferenceJson { path: format!("/{}", String::from_utf8_lossy(path)), one, other }
    }
}

fn manifest_of(image: &str) -> Result<Manifest, CliError> {
    let place = Place::parse(image);
    let filesystem = place.open(Access::ReadOnly)?;
    // A default subvolume would hide the rest.
    let top = filesystem.subvolume_root(SubvolumeId::TOP_LEVEL).map_err(said)?;
    Ok(Manifest::of(&mut FilesystemSource::new(place.to_string(), top))?)
}

/// Show how full an image is
#[derive(clap::Args, Debug)]
pub struct DfArgs {
    /// The image, or a device; '@' and a number behind it mean a partition in it
    #[arg(value_name = "IMAGE[@NUMBER]")]
    image: String,
}

impl Run for DfArgs {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let usage = self.usage()?;
        for (name, bytes) in [
            ("Total", usage.total),
            ("Used", usage.used),
            ("Available", usage.available),
            ("Data used", usage.data.1),
            ("Data total", usage.data.0),
            ("Metadata used", usage.metadata.1),
            ("Metadata total", usage.metadata.0),
        ] {
            writeln!(out, "{:<16}{bytes:>16} {:>12}", format!("{name}:"), pretty_size(bytes))?;
        }
        Ok(())
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        if format == Format::Text {
            return self.run(out);
        }
        let Usage { total, used, available, data, metadata, .. } = self.usage()?;
        let shown = SpaceJson {
            total,
            used,
            available,
            data_used: data.1,
            data_total: data.0,
            metadata_used: metadata.1,
            metadata_total: metadata.0,
        };
        output::json(out, "image-df", &shown)
    }
}

impl DfArgs {
    fn usage(&self) -> Result<Usage, CliError> {
        Ok(Place::parse(&self.image).open(Access::ReadOnly)?.usage())
    }
}

/// The space of an image, in bytes.
#[derive(Serialize)]
struct SpaceJson {
    total: u64,
    used: u64,
    available: u64,
    data_used: u64,
    data_total: u64,
    metadata_used: u64,
    metadata_total: u64,
}
