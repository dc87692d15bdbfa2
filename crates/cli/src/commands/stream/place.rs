//! The store that a command works with.

use crate::error::CliError;
use crate::stores;
use butterfs_objects::{Access, Listing, Manifest, Repository};
use butterfs_store::{Kind, Settings, Store};
use std::path::PathBuf;
use std::time::Duration;

/// How to reach a store.
#[derive(clap::Args, Clone, Debug)]
pub struct StoreArgs {
    /// The URL of the server, where it is not that of the maker, for example of Ceph's gateway
    #[arg(long, value_name = "URL", help_heading = "Store")]
    endpoint: Option<String>,
    /// The region of the bucket
    #[arg(long, value_name = "NAME", help_heading = "Store")]
    region: Option<String>,
    /// The profile in ~/.aws/credentials and ~/.aws/config
    #[arg(long, value_name = "NAME", help_heading = "Store")]
    profile: Option<String>,
    /// Give up a request that has failed for so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 180, help_heading = "Store")]
    give_up_after: u64,
    /// A file with the age identity that opens an encrypted store; can be given several times
    #[arg(long, value_name = "FILE", help_heading = "Store")]
    identity: Vec<PathBuf>,
}

impl StoreArgs {
    /// The store at a URL.
    pub fn store(&self, url: &str) -> Result<Store, CliError> {
        self.reached(url, false)
    }

    fn reached(&self, url: &str, makes_folder: bool) -> Result<Store, CliError> {
        self.connected(url, makes_folder).map_err(stores::refused)
    }

    fn connected(&self, url: &str, makes_folder: bool) -> Result<Store, butterfs_store::Error> {
        let settings = Settings {
            endpoint: self.endpoint.clone(),
            region: self.region.clone(),
            profile: self.profile.clone(),
            give_up_after: Duration::from_secs(self.give_up_after),
            makes_folder,
            ..stores::settings()
        };
        Store::open(url, &settings)
    }

    /// The error where a URL has no repository yet, which a snapshot needs that is a difference from another one.
    pub fn refuse_missing(&self, url: &str) -> Result<(), CliError> {
        let access = self.access()?;
        let opened = self.connected(url, false).and_then(|store| Repository::open(store, &access));
        opened.map(drop).map_err(|error| match error.kind() {
            Kind::NotFound => {
                CliError::from(error).hint("the stream is a difference; put the snapshot before it first")
            }
            _ => refused(error),
        })
    }

    fn access(&self) -> Result<Access, CliError> {
        let mut access = Access::default();
        self.identity.iter().try_for_each(|file| access.add_identity_file(file))?;
        Ok(access)
    }

    /// The repository at a URL.
    pub fn open(&self, url: &str) -> Result<Repository, CliError> {
        Repository::open(self.store(url)?, &self.access()?).map_err(refused)
    }

    /// The arguments for another store, whose server and profile are others where they are given.
    pub fn elsewhere(&self, endpoint: Option<String>, profile: Option<String>) -> StoreArgs {
        let mut other = self.clone();
        other.endpoint = endpoint.or(other.endpoint);
        other.profile = profile.or(other.profile);
        other
    }

    /// The repository at a URL; a new one gets the key of another repository.
    pub fn open_like(&self, url: &str, other: &Repository) -> Result<Repository, CliError> {
        Repository::open_or_copy(self.reached(url, true)?, other, &self.access()?).map_err(refused)
    }

    /// The repository at a URL; a new one is made, encrypted for these recipients if there are any.
    pub fn open_or_make(&self, url: &str, recipients: &[String]) -> Result<Repository, CliError> {
        let mut access = self.access()?;
        if recipients.is_empty() {
            // Identities open; only recipients make an encrypted one.
            access.recipients.clear();
        }
        recipients.iter().try_for_each(|recipient| access.add_recipient(recipient))?;
        let store = self.reached(url, true)?;
        let repository = Repository::open_or_make(store, &access).map_err(refused)?;
        if repository.keys().is_none() && !recipients.is_empty() {
            let sentence = format!("{} exists and is not encrypted", repository.store().shown(""));
            return Err(CliError::failed(sentence).hint("choose another prefix, or leave --encrypt-to out"));
        }
        Ok(repository)
    }
}

/// The snapshot with this name.
pub fn snapshot(repository: &Repository, name: &str) -> Result<Manifest, CliError> {
    Ok(Listing::new(repository)?.find(name)?)
}

fn refused(error: butterfs_store::Error) -> CliError {
    match error.kind() {
        Kind::Permission if error.to_string().contains("identity") => {
            CliError::from(error).hint("give the identity: --identity FILE")
        }
        _ => stores::refused(error),
    }
}

/// The snapshots with these names; all, the oldest first, where none is named.
pub fn snapshots(repository: &Repository, names: &[String]) -> Result<Vec<Manifest>, CliError> {
    let listing = Listing::new(repository)?;
    if names.is_empty() {
        return Ok(listing.all()?);
    }
    Ok(names.iter().map(|name| listing.find(name)).collect::<Result<_, _>>()?)
}
