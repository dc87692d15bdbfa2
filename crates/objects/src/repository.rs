//! A repository: a prefix of a store with the object `repository`, which has the version of the layout and, where the
//! repository is encrypted, its secret, wrapped by age for each recipient.
//!
//! ```text
//! repository = JSON {"format": "butterfs objects", "version": 2, "secret": hex-digits-of-an-age-file}
//! ```

use crate::digest::Digest;
use crate::keys::Keys;
use crate::manifest::{Manifest, damaged};
use crate::piece;
use butterfs_store::{Error, Kind, Result, Store};
use serde::{Deserialize, Serialize};
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;

/// The version of the layout.
pub const VERSION: u32 = 2;
/// The key of the object.
pub const KEY: &str = "repository";
const FORMAT: &str = "butterfs objects";
/// The object is not longer.
const MAX_LEN: u64 = 1 << 20;

#[derive(Serialize, Deserialize)]
struct Head {
    format: String,
    version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
}

/// See the [module](self).
#[derive(Clone)]
pub struct Repository {
    store: Store,
    keys: Option<Arc<Keys>>,
}

/// The recipients of an encrypted repository that is made, and the identities that open one.
#[derive(Default)]
pub struct Access {
    /// age recipients (`age1…`), for a repository that is made.
    pub recipients: Vec<Box<dyn age::Recipient + Send>>,
    /// age identities, for one that is opened.
    pub identities: Vec<Box<dyn age::Identity>>,
}

impl Access {
    /// Takes in a recipient.
    pub fn add_recipient(&mut self, text: &str) -> Result<()> {
        let parsed = text.trim().parse::<age::x25519::Recipient>();
        let invalid = |rule: &str| Error::new(Kind::Invalid, format!("'{text}' is no age recipient: {rule}"));
        self.recipients.push(Box::new(parsed.map_err(invalid)?));
        Ok(())
    }

    /// Takes in the identities of a file, as `age-keygen` writes it. Their recipients can open a repository that is
    /// made.
    pub fn add_identity_file(&mut self, path: &Path) -> Result<()> {
        let failed = |rule: &str| {
            Error::new(Kind::Invalid, format!("cannot read age identities from {}: {rule}", path.display()))
        };
        let text = std::fs::read_to_string(path).map_err(|error| failed(&error.to_string()))?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        for line in lines {
            let identity: age::x25519::Identity = line.parse().map_err(failed)?;
            self.recipients.push(Box::new(identity.to_public()));
            self.identities.push(Box::new(identity));
        }
        if self.identities.is_empty() { Err(failed("there is none")) } else { Ok(()) }
    }
}

impl Repository {
    /// Opens the repository in a store.
    pub fn open(store: Store, access: &Access) -> Result<Repository> {
        let object = store.get(KEY, MAX_LEN).map_err(|error| match error.kind() {
            Kind::NotFound => {
                let rule = format!("{} has no snapshots of butterfs: there is no object '{KEY}'", store.shown(""));
                Error::new(Kind::NotFound, rule)
            }
            _ => error,
        })?;
        let damaged = |rule: &str| damaged(&store, KEY, rule);
        let head: Head = serde_json::from_slice(&object.bytes).map_err(|_| damaged("it lacks something"))?;
        if head.format != FORMAT {
            return Err(damaged("it has another format"));
        }
        if head.version != VERSION {
            let rule = format!("{} has version {}, known is {VERSION}", store.shown(KEY), head.version);
            return Err(Error::new(Kind::Unsupported, rule));
        }
        let keys = match head.secret {
            None => None,
            Some(text) => {
                let wrapped = hex::decode(&text).map_err(|_| damaged("its secret is no hexadecimal digits"))?;
                Some(Arc::new(Keys::of(&unwrap(&store, &wrapped, access)?)))
            }
        };
        Ok(Repository { store, keys })
    }

    /// Opens the repository in a store, or makes one: encrypted where there are recipients.
    pub fn open_or_make(store: Store, access: &Access) -> Result<Repository> {
        match Repository::open(store.clone(), access) {
            Err(error) if error.kind() == Kind::NotFound => {}
            opened => return opened,
        }
        let secret = if access.recipients.is_empty() { None } else { Some(wrap(access)?) };
        let head =
            Head { format: FORMAT.to_owned(), version: VERSION, secret: secret.map(|bytes| hex::encode(&bytes)) };
        let bytes = serde_json::to_vec(&head).expect("it has a JSON form");
        match store.create(KEY, bytes) {
            // Another put made it first; it may have other recipients.
            Err(error) if error.kind() == Kind::Exists => {}
            made => drop(made?),
        }
        Repository::open(store, access)
    }

    /// Opens the repository in a store, or makes one that is encrypted as `other` is, for the same recipients.
    pub fn open_or_copy(store: Store, other: &Repository, access: &Access) -> Result<Repository> {
        match Repository::open(store.clone(), access) {
            Err(error) if error.kind() == Kind::NotFound => {}
            opened => return opened,
        }
        let head = other.store.get(KEY, MAX_LEN)?;
        store.create(KEY, head.bytes)?;
        Repository::open(store, access)
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The keys, where it is encrypted.
    pub fn keys(&self) -> Option<&Keys> {
        self.keys.as_deref()
    }

    /// An error about a snapshot.
    pub(crate) fn damaged_snapshot(&self, manifest: &Manifest, rule: &str) -> Error {
        damaged(&self.store, &manifest.key(self), rule)
    }

    /// The digest of raw bytes.
    pub fn digest(&self, raw: &[u8]) -> Digest {
        piece::digest(raw, self.keys())
    }
}

fn wrap(access: &Access) -> Result<Vec<u8>> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).map_err(|error| Error::new(Kind::Invalid, format!("there is no entropy: {error}")))?;
    let recipients = access.recipients.iter().map(|recipient| &**recipient as &dyn age::Recipient);
    let failed = |rule: String| Error::new(Kind::Invalid, format!("cannot encrypt for these recipients: {rule}"));
    let encryptor = age::Encryptor::with_recipients(recipients).map_err(|error| failed(error.to_string()))?;
    let mut out = Vec::new();
    let write = |out: &mut Vec<u8>| -> std::io::Result<()> {
        let mut writer = encryptor.wrap_output(out)?;
        writer.write_all(&secret)?;
        writer.finish().map(|_| ())
    };
    write(&mut out).map_err(|error| failed(error.to_string()))?;
    Ok(out)
}

fn unwrap(store: &Store, wrapped: &[u8], access: &Access) -> Result<[u8; 32]> {
    let refused = |rule: &str| {
        Error::new(Kind::Permission, format!("cannot open {}, which is encrypted: {rule}", store.shown("")))
    };
    if access.identities.is_empty() {
        return Err(refused("no identity was given"));
    }
    let decryptor = age::Decryptor::new(wrapped).map_err(|error| refused(&error.to_string()))?;
    let identities = access.identities.iter().map(|identity| &**identity);
    let mut reader = decryptor.decrypt(identities).map_err(|error| refused(&error.to_string()))?;
    let mut secret = Vec::new();
    reader.by_ref().take(33).read_to_end(&mut secret).map_err(|error| refused(&error.to_string()))?;
    secret.try_into().map_err(|_| refused("its secret has another length"))
}
