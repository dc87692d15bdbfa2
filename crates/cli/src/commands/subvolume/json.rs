//! Subvolumes as JSON.

use butterfs_control::SubvolumeRecord;
use serde::Serialize;
use uuid::Uuid;

/// A subvolume. UUIDs that are not set are null; times are seconds since 1970, null where there is none.
#[derive(Debug, Serialize)]
pub struct SubvolumeJson {
    id: u64,
    path: String,
    parent: u64,
    generation: u64,
    created_generation: u64,
    uuid: Option<String>,
    parent_uuid: Option<String>,
    received_uuid: Option<String>,
    read_only: bool,
    created: Option<i64>,
    sent: Option<i64>,
    received: Option<i64>,
    sent_generation: u64,
    received_generation: u64,
}

impl SubvolumeJson {
    /// The subvolume of `record`, shown under `path`.
    pub fn of(record: &SubvolumeRecord, path: &[u8]) -> SubvolumeJson {
        SubvolumeJson {
            id: record.id,
            path: String::from_utf8_lossy(path).into_owned(),
            parent: record.parent,
            generation: record.generation,
            created_generation: record.created.transid,
            uuid: uuid(&record.uuid),
            parent_uuid: uuid(&record.parent_uuid),
            received_uuid: uuid(&record.received_uuid),
            read_only: record.is_read_only(),
            created: time(record.created.seconds),
            sent: time(record.sent.seconds),
            received: time(record.received.seconds),
            sent_generation: record.sent.transid,
            received_generation: record.received.transid,
        }
    }
}

fn uuid(bytes: &[u8; 16]) -> Option<String> {
    (*bytes != [0; 16]).then(|| Uuid::from_bytes(*bytes).to_string())
}

fn time(seconds: i64) -> Option<i64> {
    (seconds != 0).then_some(seconds)
}

/// A subvolume with its snapshots.
#[derive(Debug, Serialize)]
pub struct ShownJson {
    /// The subvolume.
    #[serde(flatten)]
    pub subvolume: SubvolumeJson,
    /// The paths of its snapshots.
    pub snapshots: Vec<String>,
}
