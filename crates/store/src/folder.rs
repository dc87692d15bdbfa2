//! A conditional replacement in a plain folder, which its client does not have: under a lock, the version is compared
//! and the file replaced by a rename.

use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutPayload, PutResult};
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct Folder {
    /// The folder that all keys are below.
    pub root: PathBuf,
    /// Its client.
    pub client: Arc<LocalFileSystem>,
}

/// The lock's name: no key has it, because keys with this end are the client's own.
const LOCK: &str = ".lock#0";

impl Folder {
    /// Replaces the object if its version is still this one.
    pub async fn replace(&self, location: &Path, payload: PutPayload, version: &str) -> Result<PutResult, Error> {
        let path = self.root.join(LOCK);
        let locked = tokio::task::spawn_blocking(move || lock(path)).await?;
        let _lock = locked.map_err(|error| Error::Generic { store: "folder", source: Box::new(error) })?;
        let now = self.client.head(location).await;
        let is_same = matches!(&now, Ok(meta) if meta.e_tag.as_deref() == Some(version));
        if !is_same {
            let source = "the version is another one".into();
            return Err(Error::Precondition { path: location.to_string(), source });
        }
        self.client.put_opts(location, payload, Default::default()).await
    }
}

fn lock(path: PathBuf) -> io::Result<File> {
    let file = File::options().create(true).truncate(false).write(true).open(path)?;
    file.lock()?;
    Ok(file)
}
