//! `butterfs image build`.

use super::super::Run;
use super::sources;
use crate::args;
use crate::commands::mkfs::{FormatArgs, parse_uuid};
use crate::error::CliError;
use butterfs_fs::mkfs::MkfsOptions;
use butterfs_fs::options::Method;
use butterfs_image::{Builder, Form, Limits, Owners, Rule, Size};
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  butterfs image build disk.img --from ./rootfs --all-root
  zcat rootfs.tar.gz | butterfs image build disk.img --from - --compress zstd:15
  butterfs image build disk.img --from @=rootfs.tar --from @home=./home \\
      --subvol default:@ --subvol @home --compress zstd --size 4G
  SOURCE_DATE_EPOCH=1700000000 butterfs image build disk.img --from ./rootfs --seed my-product-1.2";

/// Make an image from folders and archives, without root and without mounting anything.
///
/// The image is written beside OUT and gets its name when it is complete and durable. Without --size it is as small as
/// it can be while files can still be made in it.
///
/// With SOURCE_DATE_EPOCH in the environment, or --epoch, no time is later than that, and the UUIDs follow from the
/// content: the same input gives the same bytes on every machine. With --seed the UUIDs follow from the seed.
#[derive(clap::Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// The image
    out: PathBuf,
    /// A folder, an archive of tar (plain, gzip, zstd or xz; '-' for the standard input) or an image of a container
    /// (OCI layout or archive, docker save), a send stream, a dump of composefs or another btrfs image, with the folder
    /// below which its content goes; later ones lie over earlier ones. 'dir:', 'tar:', 'oci:', 'oci-layers:' (a
    /// snapshot for each layer), 'send:', 'composefs:' or 'btrfs:' before it names its type
    #[arg(long, required = true, value_name = "[PATH=]SOURCE")]
    from: Vec<OsString>,
    /// The folder with the contents of files that dumps of composefs name
    #[arg(long, value_name = "DIR")]
    objects: Option<PathBuf>,
    /// A folder that becomes a subvolume: plain, or 'ro:', 'default:' or 'default-ro:' before its path
    #[arg(long, value_name = "[TYPE:]PATH")]
    subvol: Vec<OsString>,
    /// A snapshot of a subvolume that shares its content, with 'ro:' before it a read-only one
    #[arg(long, value_name = "[ro:]PATH=NEW")]
    snapshot: Vec<OsString>,
    /// Compress: zlib, lzo or zstd with a level, or none; for everything, or for a path and all below, in which '*'
    /// and '?' stand for parts of names
    #[arg(long, value_name = "[PATH=]METHOD")]
    compress: Vec<OsString>,
    /// A path whose files are overwritten in place, without checksums (chattr +C), with everything below it
    #[arg(long, value_name = "PATH")]
    nodatacow: Vec<OsString>,
    /// Everything belongs to user 0 and group 0
    #[arg(long, conflicts_with_all = ["owner", "owner_map"])]
    all_root: bool,
    /// Everything belongs to this user and group
    #[arg(long, value_name = "UID:GID", value_parser = parse_owner)]
    owner: Option<(u32, u32)>,
    /// Ranges of users and groups: INSIDE:OUTSIDE:COUNT, separated by commas, or a file with such lines, as in
    /// /proc/PID/uid_map; 'u' or 'g' before one means users or groups alone
    #[arg(long, value_name = "RANGES|FILE")]
    owner_map: Option<OsString>,
    /// Keep the access, change and birth times that archives have
    #[arg(long)]
    keep_times: bool,
    /// Bytes of the image
    #[arg(long, value_name = "SIZE", value_parser = args::size, conflicts_with = "shrink")]
    size: Option<u64>,
    /// Make the image as small as possible: 'usable' (default), so that files can be made in it, or 'read-only'
    #[arg(long, value_name = "FOR", num_args = 0..=1, default_missing_value = "usable", require_equals = true)]
    shrink: Option<Shrink>,
    /// Bytes that are free for new data
    #[arg(long, value_name = "SIZE", value_parser = args::size, default_value = "0")]
    free: u64,
    /// The latest time in the image, in seconds since 1970 [default: SOURCE_DATE_EPOCH]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    epoch: Option<i64>,
    /// A text from which all UUIDs follow
    #[arg(long, value_name = "TEXT")]
    seed: Option<OsString>,
    /// UUID of the device
    #[arg(long, value_parser = parse_uuid)]
    device_uuid: Option<[u8; 16]>,
    /// Write the image compressed with zstd, in frames that can be read alone; on its own where OUT ends with '.zst'
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, default_missing_value = "3", require_equals = true,
        value_parser = clap::value_parser!(i32).range(-7..=22), allow_negative_numbers = true)]
    zstd: Option<i32>,
    /// Contents that are not compressed share their place on this machine with the files that they come from; both must
    /// be on one filesystem that can do that
    #[arg(long, conflicts_with = "zstd")]
    reflink: bool,
    /// Threads that compress; the image does not depend on it
    #[arg(long, value_name = "NUMBER")]
    threads: Option<usize>,
    /// Most bytes of the image
    #[arg(long, value_name = "SIZE", value_parser = args::size)]
    max_size: Option<u64>,
    /// Most bytes of memory for names and attributes
    #[arg(long, value_name = "SIZE", value_parser = args::size)]
    max_memory: Option<u64>,
    /// Say nothing unless something fails
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    format: FormatArgs,
}

/// The purpose of a small image.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Shrink {
    /// Files can be made in it
    Usable,
    /// It is only read
    ReadOnly,
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let report = self.builder()?.build(&self.out)?;
        if !self.quiet {
            writeln!(out, "UUID:       {}", uuid::Uuid::from_bytes(report.fsid))?;
            writeln!(out, "Bytes:      {} ({})", report.total_bytes, args::pretty_size(report.total_bytes))?;
            writeln!(out, "Inodes:     {}", report.inodes)?;
            for (id, path) in &report.subvolumes {
                writeln!(out, "Subvolume:  {id} {}", path.escape_ascii())?;
            }
        }
        Ok(())
    }
}

impl Args {
    fn builder(&self) -> Result<Builder, CliError> {
        let format: MkfsOptions = self.format.options()?;
        let defaults = Limits::default();
        let limits = Limits {
            memory: self.max_memory.unwrap_or(defaults.memory),
            size: self.max_size.unwrap_or_else(|| defaults.size.max(self.size.unwrap_or(0))),
        };
        let mut builder =
            Builder::new().format(format).owners(self.owners()?).size(self.size()).free(self.free).limits(limits);
        builder = sources::add(builder, &self.from, self.objects.as_deref())?;
        builder = builder.form(self.form()?);
        if self.reflink {
            builder = builder.reflink();
        }
        builder = self.subvolumes(builder)?;
        builder = self.rules(builder)?;
        if let Some(epoch) = self.epoch.map_or_else(source_date_epoch, |epoch| Ok(Some(epoch)))? {
            builder = builder.epoch(epoch);
        }
        if let Some(seed) = &self.seed {
            builder = builder.seed(seed.as_bytes());
        }
        if let Some(uuid) = self.device_uuid {
            builder = builder.device_uuid(uuid);
        }
        if let Some(threads) = self.threads {
            builder = builder.threads(threads);
        }
        Ok(if self.keep_times { builder.keep_times() } else { builder })
    }

    fn form(&self) -> Result<Form, CliError> {
        let is_named_so = self.out.extension().is_some_and(|extension| extension == "zst");
        if is_named_so && self.reflink {
            return Err(CliError::usage("an image that is compressed as a whole (.zst) cannot share content"));
        }
        Ok(self.zstd.or(is_named_so.then_some(3)).map_or(Form::Raw, Form::Zstd))
    }

    fn size(&self) -> Size {
        match (self.size, self.shrink) {
            (Some(bytes), _) => Size::Exactly(bytes),
            (None, Some(Shrink::ReadOnly)) => Size::Minimal,
            (None, _) => Size::Usable,
        }
    }

    fn owners(&self) -> Result<Owners, CliError> {
        if let Some((user, group)) = self.owner {
            return Ok(Owners { only_user: Some(user), only_group: Some(group), ..Owners::default() });
        }
        if self.all_root {
            return Ok(Owners::all_root());
        }
        let Some(map) = &self.owner_map else { return Ok(Owners::default()) };
        let text = match std::fs::read_to_string(map) {
            Ok(text) => text,
            Err(_) if !Path::new(map).exists() => map.to_string_lossy().into_owned(),
            Err(error) => return Err(CliError::failed(format!("cannot read {}: {error}", Path::new(map).display()))),
        };
        text.parse().map_err(|error: butterfs_image::Error| CliError::usage(error.to_string()))
    }

    fn subvolumes(&self, mut builder: Builder) -> Result<Builder, CliError> {
        for text in &self.subvol {
            builder = add_subvolume(builder, text)?;
        }
        for text in &self.snapshot {
            let bytes = text.as_bytes();
            let (is_read_only, pair) = bytes.strip_prefix(b"ro:").map_or((false, bytes), |rest| (true, rest));
            let equals = pair
                .iter()
                .position(|byte| *byte == b'=')
                .ok_or_else(|| CliError::usage(format!("'{}' is not PATH=NEW", text.display())))?;
            builder = builder.snapshot(&pair[..equals], &pair[equals + 1..], is_read_only)?;
        }
        Ok(builder)
    }

    fn rules(&self, mut builder: Builder) -> Result<Builder, CliError> {
        for text in &self.compress {
            let (path, method) = split(text);
            builder = builder.rule(path.as_bytes(), Rule::Compress(parse_method(&method.to_string_lossy())?))?;
        }
        for path in &self.nodatacow {
            builder = builder.rule(path.as_bytes(), Rule::InPlace)?;
        }
        Ok(builder)
    }
}

/// The parts before and behind the last `=`; a text without one is the part behind it.
pub(super) fn split(text: &OsStr) -> (OsString, OsString) {
    let bytes = text.as_bytes();
    match bytes.iter().rposition(|byte| *byte == b'=') {
        Some(at) => (OsString::from_vec(bytes[..at].to_vec()), OsString::from_vec(bytes[at + 1..].to_vec())),
        None => (OsString::new(), text.to_owned()),
    }
}

/// Adds what `[TYPE:]PATH` says; `./` before a path makes it one whatever it begins with.
pub fn add_subvolume(builder: Builder, text: &OsStr) -> Result<Builder, CliError> {
    let bytes = text.as_bytes();
    let types = [("rw:", false, false), ("ro:", true, false), ("default:", false, true), ("default-ro:", true, true)];
    let found = types.iter().find_map(|(prefix, is_read_only, is_default)| {
        bytes.strip_prefix(prefix.as_bytes()).map(|path| (path, *is_read_only, *is_default))
    });
    let (path, is_read_only, is_default) = found.unwrap_or((bytes, false, false));
    let builder = builder.subvolume(path, is_read_only)?;
    Ok(if is_default { builder.default_subvolume(path)? } else { builder })
}

/// A method of compression, or none.
pub fn parse_method(text: &str) -> Result<Option<Method>, CliError> {
    let levels = |name: &str| match name {
        "zlib" => Some(1..=9),
        "zstd" => Some(-15..=15),
        _ => None,
    };
    if matches!(text, "no" | "none") {
        return Ok(None);
    }
    if let Some((name, level)) = text.split_once(':')
        && let (Some(range), Ok(level)) = (levels(name), level.parse::<i32>())
        && !range.contains(&level)
    {
        let (low, high) = (range.start().max(&1), range.end());
        return Err(CliError::usage(format!("compression level {level} out of range [{low}..{high}]")));
    }
    let method = Method::parse(text)
        .ok_or_else(|| CliError::usage(format!("'{text}' is no compression; known are zlib, lzo, zstd and none")))?;
    Ok(Some(method))
}

/// `SOURCE_DATE_EPOCH`: decimal seconds.
pub fn source_date_epoch() -> Result<Option<i64>, CliError> {
    let Some(text) = std::env::var_os("SOURCE_DATE_EPOCH") else { return Ok(None) };
    let parsed = text.to_str().and_then(|text| text.parse().ok());
    let wrong =
        || CliError::failed(format!("SOURCE_DATE_EPOCH is '{}', which is no number of seconds", text.display()));
    parsed.map(Some).ok_or_else(wrong)
}

fn parse_owner(text: &str) -> Result<(u32, u32), String> {
    let pair = text.split_once(':').and_then(|(user, group)| Some((user.parse().ok()?, group.parse().ok()?)));
    pair.ok_or_else(|| format!("'{text}' is not UID:GID in numbers"))
}
