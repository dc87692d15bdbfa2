//! `butterfs subvolume show`.

use super::forest::TOP_LEVEL;
use super::local_date::with_zone;
use crate::commands::Run;
use crate::commands::inspect_internal::dump_tree::local_time::Zone;
use crate::error::CliError;
use crate::target::{ImageArgument, Intent, Question, nonsense};
use butterfs_fuse::subvolumes::{SubvolumeRecord, uuid_from_text, uuid_text};
use std::io::Write;
use std::path::PathBuf;

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
        let mut target = self.image.target(&self.path, Intent::Look)?;
        let what = format!("cannot show '{}'", self.path.display());
        let records = match (&self.rootid, &self.uuid) {
            (Some(id), _) => target.ask(&what, &Question::new("info-id").number(*id)),
            (_, Some(uuid)) => {
                let uuid = uuid_from_text(uuid).ok_or_else(|| CliError::failed(format!("invalid UUID: {uuid}")))?;
                target.ask(&what, &Question::new("info-uuid").word(uuid_text(&uuid)))
            }
            _ => {
                let question = Question::new("info").about(&target.object(&self.path)?);
                target.ask(&what, &question)
            }
        }?;
        let record = records.first().and_then(|words| SubvolumeRecord::from_words(words)).ok_or_else(nonsense)?;
        let snapshots = target.ask(&what, &Question::new("snapshots-of").number(record.id))?;
        let paths: Vec<_> = snapshots.into_iter().filter_map(|mut words| words.pop()).collect();
        write_record(out, &record, &paths)?;
        target.close()
    }
}

/// `paths`: that of the subvolume from the top level, then those of its snapshots.
fn write_record(out: &mut dyn Write, record: &SubvolumeRecord, paths: &[Vec<u8>]) -> Result<(), CliError> {
    let top = record.id == TOP_LEVEL;
    let (path, snapshots) = paths.split_first().ok_or_else(nonsense)?;
    let path = if top { b"/" } else { path.as_slice() };
    out.write_all(&[path, b"\n"].concat())?;
    let zone = Zone::of_system();
    let uuid = |uuid: &[u8; 16]| if *uuid == [0; 16] { "-".to_owned() } else { uuid_text(uuid) };
    let time = |seconds: i64| if seconds == 0 { "-".to_owned() } else { with_zone(&zone, seconds) };
    let [_, created, sent, received] = record.transids;
    let [_, otime, stime, rtime] = record.times;
    // btrfs-progs shows the time of creation where there is none of sending.
    let stime = if stime == 0 { otime } else { stime };
    let name = if top { "<FS_TREE>".to_owned() } else { String::from_utf8_lossy(&record.name).into_owned() };
    let lines = [
        ("Name: \t\t", name),
        ("UUID: \t\t", uuid(&record.uuid)),
        ("Parent UUID: \t", uuid(&record.parent_uuid)),
        ("Received UUID: \t", uuid(&record.received_uuid)),
        ("Creation time: \t", time(otime)),
        ("Subvolume ID: \t", record.id.to_string()),
        ("Generation: \t", record.generation.to_string()),
        ("Gen at creation: ", created.to_string()),
        ("Parent ID: \t", record.parent.to_string()),
        ("Top level ID: \t", record.parent.to_string()),
        ("Flags: \t\t", if record.flags & 1 != 0 { "readonly" } else { "-" }.to_owned()),
        ("Send transid: \t", sent.to_string()),
        ("Send time: \t", time(stime)),
        ("Receive transid: ", received.to_string()),
        ("Receive time: \t", time(rtime)),
    ];
    for (name, value) in lines {
        writeln!(out, "\t{name}\t{value}")?;
    }
    writeln!(out, "\tSnapshot(s):")?;
    for snapshot in snapshots {
        out.write_all(&[b"\t\t\t\t", snapshot.as_slice(), b"\n"].concat())?;
    }
    Ok(())
}
