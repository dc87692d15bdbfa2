//! `butterfs image verify`, `diff` and `df`: what is in images, and how full they are.

use super::place::Place;
use crate::args::pretty_size;
use crate::commands::Run;
use crate::error::CliError;
use butterfs::Access;
use butterfs_image::{FilesystemSource, Manifest};
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
        match self.expected.filter(|expected| expected.trim_start_matches("sha256:") != digest) {
            Some(expected) => Err(CliError::failed(format!("{} should have the digest {expected}", self.image))),
            None => Ok(()),
        }
    }
}

/// Compare what two images show, whatever their layout
///
/// A line for each path that differs: '-' before what the first image has, '+' before what the second one has. The exit
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
        match found.is_empty() {
            true => Ok(()),
            false => Err(CliError::Reported { code: crate::error::FAILED }),
        }
    }
}

fn manifest_of(image: &str) -> Result<Manifest, CliError> {
    let place = Place::parse(image);
    let filesystem = place.open(Access::ReadOnly)?;
    Ok(Manifest::of(&mut FilesystemSource::new(place.to_string(), filesystem.root()))?)
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
        let usage = Place::parse(&self.image).open(Access::ReadOnly)?.usage();
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
}
