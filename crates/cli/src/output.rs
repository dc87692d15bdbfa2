//! How results are shown: as text or JSON, and in which unit sizes are printed.
//!
//! # Use
//! A command that can print JSON overrides [`Run::run_as`](crate::commands::Run::run_as) and hands its records to
//! [`json`]; every other command refuses `--format json` before it does anything. A command that prints sizes flattens
//! [`Units`], or [`ShortUnits`] where btrfs-progs has the short options too, and calls [`UnitFormat::size`].
//!
//! # JSON
//! The frame is that of btrfs-progs: a header with the version, then one key named after the group and the command.
//! Numbers are bare, as since btrfs-progs 6.3. Bytes that are no UTF-8 are shown as `U+FFFD`.

use crate::error::CliError;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use std::io::Write;

/// The version of the JSON documents.
const JSON_VERSION: &str = "1";

/// How a command shows its result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// A JSON document: the header, and the result under its name.
struct Document<'a, T> {
    name: &'a str,
    result: &'a T,
}

#[derive(Serialize)]
struct Header {
    version: &'static str,
}

impl<T: Serialize> Serialize for Document<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("__header", &Header { version: JSON_VERSION })?;
        map.serialize_entry(self.name, self.result)?;
        map.end()
    }
}

/// Prints `result` as a JSON document; `name` is `GROUP-COMMAND`.
pub fn json<T: Serialize>(out: &mut dyn Write, name: &str, result: &T) -> Result<(), CliError> {
    let document = Document { name, result };
    let text = serde_json::to_string_pretty(&document)
        .map_err(|error| CliError::failed(format!("the result cannot be shown as JSON: {error}")))?;
    Ok(writeln!(out, "{text}")?)
}

/// Refuses JSON for a call that changes something and shows nothing.
pub fn must_be_text(format: Format) -> Result<(), CliError> {
    match format {
        Format::Text => Ok(()),
        Format::Json => Err(CliError::failed("output format json is unsupported for this command")),
    }
}

/// Options for the unit of sizes, in their long form.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub struct Units {
    /// Show sizes in bytes
    #[arg(long)]
    raw: bool,
    /// Show sizes in a unit that fits, base 1024 (the default)
    #[arg(long)]
    human_readable: bool,
    /// Use base 1024 (KiB, MiB, GiB, TiB)
    #[arg(long)]
    iec: bool,
    /// Use base 1000 (kB, MB, GB, TB)
    #[arg(long)]
    si: bool,
    /// Show sizes in KiB, or kB with --si
    #[arg(long)]
    kbytes: bool,
    /// Show sizes in MiB, or MB with --si
    #[arg(long)]
    mbytes: bool,
    /// Show sizes in GiB, or GB with --si
    #[arg(long)]
    gbytes: bool,
    /// Show sizes in TiB, or TB with --si
    #[arg(long)]
    tbytes: bool,
}

/// The same options with short forms. `-h` is one of them, so the command has no `-h` for help.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub struct ShortUnits {
    /// Show sizes in bytes
    #[arg(short = 'b', long)]
    raw: bool,
    /// Show sizes in a unit that fits, base 1024 (the default)
    #[arg(short = 'h', long)]
    human_readable: bool,
    /// Use base 1024 (KiB, MiB, GiB, TiB)
    #[arg(long)]
    iec: bool,
    /// Use base 1000 (kB, MB, GB, TB)
    #[arg(short = 'H', long)]
    si: bool,
    /// Show sizes in KiB, or kB with --si
    #[arg(short = 'k', long)]
    kbytes: bool,
    /// Show sizes in MiB, or MB with --si
    #[arg(short = 'm', long)]
    mbytes: bool,
    /// Show sizes in GiB, or GB with --si
    #[arg(short = 'g', long)]
    gbytes: bool,
    /// Show sizes in TiB, or TB with --si
    #[arg(short = 't', long)]
    tbytes: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::HelpLong)]
    help: Option<bool>,
}

/// In which unit sizes are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitFormat {
    /// Bytes, without a unit.
    Raw,
    /// With a unit.
    Scaled {
        /// 1000 or 1024.
        base: u64,
        /// This power of the base; where it is not fixed, the one that fits.
        power: Option<usize>,
    },
}

impl Units {
    /// The requested format. Of several fixed units the largest counts; bytes count before all.
    pub fn format(self) -> UnitFormat {
        if self.raw {
            return UnitFormat::Raw;
        }
        let fixed = [(self.tbytes, 4), (self.gbytes, 3), (self.mbytes, 2), (self.kbytes, 1)];
        let power = fixed.into_iter().find(|(asked, _)| *asked).map(|(_, power)| power);
        UnitFormat::Scaled { base: if self.si { 1000 } else { 1024 }, power }
    }
}

impl ShortUnits {
    /// The requested format.
    pub fn format(self) -> UnitFormat {
        let ShortUnits { raw, human_readable, iec, si, kbytes, mbytes, gbytes, tbytes, .. } = self;
        Units { raw, human_readable, iec, si, kbytes, mbytes, gbytes, tbytes }.format()
    }
}

impl UnitFormat {
    /// A number of bytes.
    pub fn size(self, bytes: u64) -> String {
        const BINARY: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        const DECIMAL: [&str; 7] = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
        let UnitFormat::Scaled { base, power } = self else { return bytes.to_string() };
        let units = if base == 1000 { DECIMAL } else { BINARY };
        let fitting = || (1..units.len()).take_while(|power| bytes / base.pow(*power as u32) > 0).count();
        let unit = |power: usize| base.pow(power as u32);
        // As btrfs-progs rounds: in single precision, and to a unit that fits from whole units of the power below.
        let (value, power) = match power {
            Some(power) => (bytes as f32 / unit(power) as f32, power),
            None => match fitting() {
                0 => (bytes as f32, 0),
                power => ((bytes / unit(power - 1)) as f32 / base as f32, power),
            },
        };
        format!("{value:.2}{}", units[power])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scaled(base: u64, power: Option<usize>) -> UnitFormat {
        UnitFormat::Scaled { base, power }
    }

    #[test]
    fn sizes_have_the_unit_that_was_asked_for() {
        let table = [
            (scaled(1024, None), 1023, "1023.00B"),
            (scaled(1024, None), 1024, "1.00KiB"),
            (scaled(1024, None), (1 << 20) - 1, "1024.00KiB"),
            (scaled(1024, None), u64::MAX, "16.00EiB"),
            (scaled(1000, None), 999, "999.00B"),
            (scaled(1000, None), 1_500_000, "1.50MB"),
            (scaled(1024, Some(3)), 214_748_365, "0.20GiB"),
            (scaled(1000, Some(1)), 16_384, "16.38kB"),
            (scaled(1000, None), 268_435_456, "268.43MB"),
            (scaled(1000, Some(3)), 5_767_168, "0.01GB"),
            (scaled(1024, Some(1)), 3_042_530_637, "2971221.25KiB"),
            (UnitFormat::Raw, 16_384, "16384"),
        ];
        for (format, bytes, text) in table {
            assert_eq!(format.size(bytes), text);
        }
    }

    #[test]
    fn json_has_a_header_and_the_result() {
        #[derive(Serialize)]
        struct Row {
            size: u64,
        }
        let mut text = Vec::new();
        json(&mut text, "group-command", &[Row { size: 7 }]).unwrap();
        let text = String::from_utf8(text).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["__header"]["version"], "1");
        assert_eq!(value["group-command"][0]["size"], 7);
        assert!(
            text.starts_with("{\n  \"__header\": {\n    \"version\": \"1\"\n  },\n  \"group-command\": ["),
            "{text}"
        );
    }
}
