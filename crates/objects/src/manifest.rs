//! Manifests: one small object for each snapshot, written last.
//!
//! ```text
//! key      = snapshots/ uuid-as-32-hex-digits - transid-in-decimal = name
//! manifest = JSON "\n" digest-of-the-JSON-as-64-hex-digits "\n"
//! ```
//! In the name of a key, bytes other than letters, digits, `-`, `_` and `.` are a `=` and two hexadecimal digits, and
//! it is cut behind [`NAME_BYTES`] of these characters. In an encrypted repository, `uuid - transid` and the name are
//! keyed digests of 32 hexadecimal digits each, and the manifest is sealed ([`crate::keys`]).

use crate::digest::Digest;

use crate::piece::PieceRef;
use crate::repository::Repository;
use crate::tree::Root;
use butterfs_send::wire::{Uuid, Version};
use butterfs_store::{Error, Kind, Result, Store, each};
use serde::{Deserialize, Serialize};

/// No manifest is longer.
const MAX_LEN: u64 = 16 << 20;
/// Characters of a name in a key.
const NAME_BYTES: usize = 120;
/// Manifests that are read at once.
const READERS: usize = 8;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The snapshot's name; bytes that are no UTF-8 are replaced.
    pub name: String,
    /// The UUID that streams know it by, in hexadecimal digits.
    pub uuid: String,
    /// The transaction that it was last changed in.
    pub transid: u64,
    /// The snapshot that it was sent as a difference from.
    pub parent: Option<String>,
    /// When it was put, in seconds since 1970.
    pub time: i64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Inodes.
    pub inodes: u64,
    /// The next number of an inode.
    pub next_inode: u64,
    /// The version of streams that its content needs.
    pub stream: u32,
    /// The root of the index, as a reference in hexadecimal digits; empty where nothing is in it.
    pub root: String,
    /// The level of the root.
    pub level: u8,
    /// The list of pieces that came with this snapshot, as references one behind the other, in pieces of their own.
    pub pieces: Vec<String>,
    /// Bytes that were sent for it.
    pub sent: u64,
}

/// The name of a snapshot in keys.
pub fn id(uuid: &Uuid, transid: u64) -> String {
    format!("{}-{transid}", hex::encode(uuid))
}

/// The parts of a key that stand for an id and for a name.
fn token_of_id(repository: &Repository, id: &str) -> String {
    repository.keys().map_or_else(|| id.to_owned(), |keys| keys.name(id.as_bytes()))
}

fn token_of_name(repository: &Repository, name: &str) -> String {
    if let Some(keys) = repository.keys() {
        return keys.name(name.as_bytes());
    }
    let mut token = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => token.push(byte.into()),
            _ => token.push_str(&format!("={byte:02x}")),
        }
    }
    token.truncate(NAME_BYTES);
    token
}

/// The snapshots of a repository as its keys name them, without their manifests.
pub struct Listing<'r> {
    repository: &'r Repository,
    /// The key of each, by the part for the id.
    keys: Vec<(String, String, String)>,
}

impl<'r> Listing<'r> {
    /// Asks the store.
    pub fn new(repository: &'r Repository) -> Result<Listing<'r>> {
        let entries = repository.store().list("snapshots")?;
        let parts = |entry: butterfs_store::Entry| {
            let (id, name) = entry.key.strip_prefix("snapshots/")?.split_once('=')?;
            Some((id.to_owned(), name.to_owned(), entry.key.clone()))
        };
        Ok(Listing { repository, keys: entries.into_iter().filter_map(parts).collect() })
    }

    /// The manifest with this id.
    pub fn by_id(&self, id: &str) -> Result<Option<Manifest>> {
        let token = token_of_id(self.repository, id);
        let found = self.keys.iter().find(|(of_id, ..)| *of_id == token);
        found.map(|(.., key)| read(self.repository, key)).transpose()
    }

    /// All manifests, the oldest first.
    pub fn all(&self) -> Result<Vec<Manifest>> {
        self.read(self.keys.iter().map(|(.., key)| key.as_str()).collect())
    }

    /// The snapshot that a user names: by its name, or by its id. Of several with the same name the newest.
    pub fn find(&self, named: &str) -> Result<Manifest> {
        let (id, name) = (token_of_id(self.repository, named), token_of_name(self.repository, named));
        let fits = |(of_id, of_name, _): &&(String, String, String)| *of_id == id || *of_name == name;
        let found = self.read(self.keys.iter().filter(fits).map(|(.., key)| key.as_str()).collect())?;
        let found = found.into_iter().rfind(|manifest| manifest.name == named || manifest.id() == named);
        found.ok_or_else(|| {
            let rule = format!("{} has no snapshot '{named}'", self.repository.store().shown(""));
            Error::new(Kind::NotFound, rule)
        })
    }

    fn read(&self, keys: Vec<&str>) -> Result<Vec<Manifest>> {
        let mut manifests = each(&keys, READERS, |key| read(self.repository, key))?;
        manifests.sort_by(|a, b| (a.time, &a.name, a.transid).cmp(&(b.time, &b.name, b.transid)));
        Ok(manifests)
    }
}

impl Manifest {
    /// The name in keys.
    pub fn id(&self) -> String {
        format!("{}-{}", self.uuid, self.transid)
    }

    /// The key of the manifest.
    pub fn key(&self, repository: &Repository) -> String {
        format!("snapshots/{}={}", token_of_id(repository, &self.id()), token_of_name(repository, &self.name))
    }

    /// The UUID as bytes.
    pub fn uuid_bytes(&self, repository: &Repository) -> Result<Uuid> {
        let bytes = hex::decode(&self.uuid).ok().and_then(|bytes| bytes.try_into().ok());
        bytes.ok_or_else(|| damaged(repository.store(), &self.key(repository), "its UUID is none"))
    }

    /// The version of streams that it needs.
    pub fn stream_version(&self) -> Version {
        if self.stream <= 1 { Version::V1 } else { Version::V2 }
    }

    /// The root of the index.
    pub fn root(&self, repository: &Repository) -> Result<Option<Root>> {
        if self.root.is_empty() {
            return Ok(None);
        }
        let at = reference(repository, self, &self.root, "its root is no reference")?;
        Ok(Some(Root { at, level: self.level }))
    }

    /// The pieces of the list of pieces.
    pub fn lists(&self, repository: &Repository) -> Result<Vec<PieceRef>> {
        let list = |text: &String| reference(repository, self, text, "a list of its pieces is no reference");
        self.pieces.iter().map(list).collect()
    }

    /// Writes it, unless the store has it already.
    pub fn put(&self, repository: &Repository) -> Result<()> {
        repository.store().create(&self.key(repository), self.to_bytes(repository)).map(|_| ())
    }

    fn to_bytes(&self, repository: &Repository) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).expect("a manifest has a JSON form");
        let digest = Digest::of(&bytes);
        bytes.extend_from_slice(format!("\n{digest}\n").as_bytes());
        let Some(keys) = repository.keys() else { return bytes };
        let mut sealed = Vec::new();
        keys.seal(&bytes, &mut sealed);
        sealed
    }

    fn parse(bytes: &[u8]) -> std::result::Result<Manifest, &'static str> {
        let text = std::str::from_utf8(bytes).map_err(|_| "it is no text")?;
        let line = text.strip_suffix('\n').ok_or("its end is missing")?;
        let (json, digest) = line.rsplit_once('\n').ok_or("it has no digest")?;
        if Digest::from_hex(digest) != Some(Digest::of(json.as_bytes())) {
            return Err("its digest is not that of its bytes");
        }
        serde_json::from_str(json).map_err(|_| "it lacks something")
    }
}

fn reference(repository: &Repository, of: &Manifest, text: &str, rule: &str) -> Result<PieceRef> {
    let at = hex::decode(text).ok().and_then(|bytes| PieceRef::from_bytes(&bytes));
    at.ok_or_else(|| damaged(repository.store(), &of.key(repository), rule))
}

/// Reads the manifest with this key.
fn read(repository: &Repository, key: &str) -> Result<Manifest> {
    let object = repository.store().get(key, MAX_LEN)?;
    let wrong = |rule: &str| damaged(repository.store(), key, rule);
    let opened = match repository.keys() {
        None => object.bytes.to_vec(),
        Some(keys) => keys.open(&object.bytes).ok_or_else(|| wrong("it was not sealed with the repository's key"))?,
    };
    let manifest = Manifest::parse(&opened).map_err(wrong)?;
    if manifest.key(repository) != key {
        return Err(wrong("it is the manifest of another snapshot"));
    }
    Ok(manifest)
}

/// An error about an object.
pub fn damaged(store: &Store, key: &str, rule: &str) -> Error {
    Error::new(Kind::Damaged, format!("{} is damaged: {rule}", store.shown(key)))
}
