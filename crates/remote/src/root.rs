//! The root of a volume: a small JSON object, the only one that is ever replaced.

use crate::bytes_of::{Digest, unhex};
use crate::table::{BLOCK, Place};
use butterfs_store::{Error, Kind, Result, Store, Version};
use serde::{Deserialize, Serialize};

const FORMAT: &str = "butterfs volume 1";
/// No root is longer.
const MOST_BYTES: u64 = 64 << 10;
/// The name of a volume where none is given.
pub const DEFAULT_VOLUME: &str = "main";

/// The process that writes to a volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Writer {
    /// A random number, in hexadecimal digits.
    pub id: String,
    /// Its host.
    pub host: String,
    /// The boot of the host, by which its process numbers mean something.
    pub boot: String,
    /// Its process.
    pub pid: u32,
}

/// The place of the table.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TablePlace {
    /// The writer of its segment, in hexadecimal digits.
    pub writer: String,
    /// The number of its segment.
    pub segment: u64,
    /// Its offset in the segment, in bytes.
    pub at: u64,
    /// Its bytes.
    pub len: u64,
    /// Of its bytes.
    pub digest: String,
}

/// See the [module](self).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Root {
    /// The version of the layout.
    pub format: String,
    /// The UUID of the volume.
    pub volume: String,
    /// Bytes of the device.
    pub length: u64,
    /// The mounts that have written, counted.
    pub epoch: u64,
    /// The last record of the log that the table has.
    pub sequence: u64,
    /// The digest of that record; zeros in front of the first one.
    pub chain: String,
    /// The table; none of a device of zeros.
    pub table: Option<TablePlace>,
    /// The process that writes; none after it has closed the volume.
    pub writer: Option<Writer>,
    /// Nobody may write, because it is a snapshot.
    #[serde(default)]
    pub frozen: bool,
    /// Seconds since 1970 by the clock of the host that made the volume.
    pub made: i64,
}

impl Root {
    /// Of a new device of zeros.
    pub fn new(volume: [u8; 16], length: u64, made: i64) -> Root {
        Root {
            format: FORMAT.to_owned(),
            volume: hex::encode(volume),
            length,
            epoch: 0,
            sequence: 0,
            chain: hex::encode(Digest::default()),
            table: None,
            writer: None,
            frozen: false,
            made,
        }
    }

    /// The UUID of the volume.
    pub fn uuid(&self) -> [u8; 16] {
        unhex(&self.volume).unwrap_or_default()
    }

    /// The digest of the last record that the table has.
    pub fn chain(&self) -> Digest {
        unhex(&self.chain).unwrap_or_default()
    }

    /// Whether it names the same map and the same log as another root of the volume. Where the store was put back to an
    /// older state, only the writer tells two epochs with one number apart.
    pub fn has_map_of(&self, other: &Root) -> bool {
        let of = |root: &Root| {
            let writer = root.writer.as_ref().map(|writer| writer.id.clone());
            (root.volume.clone(), root.epoch, writer, root.sequence, root.chain.clone(), root.table.clone())
        };
        of(self) == of(other)
    }

    /// The bytes of the object.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).expect("plain strings and numbers");
        bytes.push(b'\n');
        bytes
    }

    /// Reads the root of a volume.
    pub fn read(store: &Store, name: &str) -> Result<(Root, Version)> {
        let key = root_key(name);
        let object = store.get(&key, MOST_BYTES).map_err(|error| match error.kind() {
            Kind::NotFound => Error::new(Kind::NotFound, format!("{} has no volume '{name}'", store.shown(""))),
            _ => error,
        })?;
        let damaged = |rule: &str| Error::new(Kind::Damaged, format!("{} {rule}", store.shown(&key)));
        let root: Root = serde_json::from_slice(&object.bytes).map_err(|_| damaged("is no root of a volume"))?;
        if root.format != FORMAT {
            return Err(damaged("is of another version than 'butterfs volume 1'"));
        }
        // Both are shown.
        let is_shown = |text: &str| text.len() <= 256 && !text.contains(char::is_control);
        let writer = root.writer.as_ref().is_none_or(|writer| is_shown(&writer.host) && is_shown(&writer.id));
        let sound = writer && unhex::<16>(&root.volume).is_some() && unhex::<16>(&root.chain).is_some();
        let table = root.table.as_ref().is_none_or(|table| {
            let digits = unhex::<8>(&table.writer).is_some() && unhex::<16>(&table.digest).is_some();
            digits && table.at <= u64::from(u32::MAX) && table.len <= MOST_TABLE
        });
        if !sound || !table || !root.length.is_multiple_of(BLOCK) || root.length == 0 {
            return Err(damaged("has values that no root can have"));
        }
        Ok((root, object.version))
    }
}

/// Bytes of the longest table.
const MOST_TABLE: u64 = 128 << 20;

impl TablePlace {
    /// The place of a table in the segment of a writer.
    pub fn of(place: &Place, writer: u64) -> TablePlace {
        TablePlace {
            writer: format!("{writer:016x}"),
            segment: place.segment,
            at: u64::from(place.at),
            len: u64::from(place.len),
            digest: hex::encode(place.digest),
        }
    }

    /// The writer of its segment.
    pub fn writer(&self) -> u64 {
        unhex(&self.writer).map_or(0, u64::from_be_bytes)
    }

    /// The digest.
    pub fn digest(&self) -> Digest {
        unhex(&self.digest).unwrap_or_default()
    }
}

/// The folder of a volume.
pub fn folder(name: &str) -> String {
    format!("volumes/{name}")
}

/// The key of the root of a volume.
pub fn root_key(name: &str) -> String {
    format!("volumes/{name}/root")
}

/// Whether this can be the name of a volume: letters, digits, `-`, `_` and `.`, not with a dot in front.
pub fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=100).contains(&name.len()) && name.bytes().all(fits) && !name.starts_with('.')
}
