//! `butterfs subvolume show`.

use super::forest::TOP_LEVEL;
use super::json::{ShownJson, SubvolumeJson};
use super::local_date::with_zone;
use super::uuid_or_dash;
use crate::commands::Run;
use crate::commands::inspect_internal::dump_tree::local_time::Zone;
use crate::error::CliError;
use crate::open_filesystem::{ImageArgument, Intent, about, plain};
use crate::output::{self, Format};
use butterfs_control::question::{
    DescribeSubvolume, DescribeSubvolumeById, DescribeSubvolumeByUuid, FindSubvolumePath, ListSnapshots,
};
use butterfs_control::{InodePath, SubvolumeRecord};
use std::io::Write;
use std::path::PathBuf;
use uuid::Uuid;

/// Show more about a subvolume
///
/// For root, and the user who mounted the filesystem: it shows names of folders that others may not read.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The subvolume with this id, of the filesystem that the path is on
    #[arg(short, long, value_name = "ID", conflicts_with = "uuid")]
    rootid: Option<u64>,
    /// The subvolume with this UUID, of the filesystem that the path is on
    #[arg(short, long)]
    uuid: Option<String>,
    #[command(flatten)]
    image: ImageArgument,
    /// The subvolume
    path: PathBuf,
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        self.run_as(Format::Text, out)
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        let mut opened = self.image.open(&self.path, Intent::Look)?;
        let what = format!("cannot show '{}'", self.path.display());
        let record = match (self.rootid, &self.uuid) {
            (Some(id), _) => opened.ask_one(&what, plain(DescribeSubvolumeById { id })),
            (_, Some(text)) => opened.ask_one(&what, plain(DescribeSubvolumeByUuid { uuid: uuid_of(text)? })),
            _ => {
                let subvolume = opened.object(&self.path)?;
                opened.ask_one(&what, about([&subvolume], |[subvolume]| DescribeSubvolume { subvolume }))
            }
        }?;
        let InodePath(path) = opened.ask_one(&what, plain(FindSubvolumePath { id: record.id }))?;
        let snapshots = opened.ask(&what, plain(ListSnapshots { of: record.id }))?;
        match format {
            Format::Text => write_record(out, &record, &path, &snapshots)?,
            Format::Json => {
                let path: &[u8] = if record.id == TOP_LEVEL { b"/" } else { &path };
                let snapshots = snapshots.iter().map(|path| String::from_utf8_lossy(&path.0).into_owned()).collect();
                let shown = ShownJson { subvolume: SubvolumeJson::of(&record, path), snapshots };
                output::json(out, "subvolume-show", &shown)?;
            }
        }
        opened.close()
    }
}

/// Reads a UUID as it is shown.
fn uuid_of(text: &str) -> Result<[u8; 16], CliError> {
    let uuid = Uuid::try_parse(text).ok().filter(|_| text.len() == 36);
    uuid.map(Uuid::into_bytes).ok_or_else(|| CliError::failed(format!("invalid UUID: {text}")))
}

/// `path` leads to the subvolume from the top level.
fn write_record(
    out: &mut dyn Write,
    record: &SubvolumeRecord,
    path: &[u8],
    snapshots: &[InodePath],
) -> Result<(), CliError> {
    let top = record.id == TOP_LEVEL;
    let path = if top { b"/" } else { path };
    out.write_all(&[path, b"\n"].concat())?;
    let zone = Zone::of_system();
    let time = |seconds: i64| if seconds == 0 { "-".to_owned() } else { with_zone(&zone, seconds) };
    let SubvolumeRecord { created, sent, received, .. } = record;
    // btrfs-progs shows the time of creation where there is none of sending.
    let sent_at = if sent.seconds == 0 { created.seconds } else { sent.seconds };
    let name = if top { "<FS_TREE>".to_owned() } else { String::from_utf8_lossy(&record.name).into_owned() };
    let lines = [
        ("Name: \t\t", name),
        ("UUID: \t\t", uuid_or_dash(&record.uuid)),
        ("Parent UUID: \t", uuid_or_dash(&record.parent_uuid)),
        ("Received UUID: \t", uuid_or_dash(&record.received_uuid)),
        ("Creation time: \t", time(created.seconds)),
        ("Subvolume ID: \t", record.id.to_string()),
        ("Generation: \t", record.generation.to_string()),
        ("Gen at creation: ", created.transid.to_string()),
        ("Parent ID: \t", record.parent.to_string()),
        ("Top level ID: \t", record.parent.to_string()),
        ("Flags: \t\t", if record.is_read_only() { "readonly" } else { "-" }.to_owned()),
        ("Send transid: \t", sent.transid.to_string()),
        ("Send time: \t", time(sent_at)),
        ("Receive transid: ", received.transid.to_string()),
        ("Receive time: \t", time(received.seconds)),
    ];
    for (name, value) in lines {
        writeln!(out, "\t{name}\t{value}")?;
    }
    writeln!(out, "\tSnapshot(s):")?;
    for snapshot in snapshots {
        out.write_all(&[b"\t\t\t\t", snapshot.0.as_slice(), b"\n"].concat())?;
    }
    Ok(())
}
