//! Sessions: who is at work in a repository. A put that shares a segment must not lose it to a prune meanwhile.
//!
//! ```text
//! key = sessions/put-… for a put or a copy, sessions/prune for a prune; the object is a sentence for people
//! ```
//! Each kind makes its own object first and looks for the other kind afterwards, so that one of the two sees the other.
//! An object is put again every minute; one that is older than [`DEAD_AFTER`] by the store's clock belongs to a process
//! that is gone, and a prune removes it.

use crate::manifest::Manifest;
use crate::repository::Repository;
use butterfs_store::{Entry, Error, Kind, Result};
use std::time::{Duration, Instant};

/// Seconds after which a session that was not put again is dead.
pub const DEAD_AFTER: i64 = 15 * 60;
const REFRESH: Duration = Duration::from_secs(60);
const PRUNE: &str = "sessions/prune";

/// See the [module](self).
pub struct Session {
    repository: Repository,
    key: String,
    sentence: String,
    refreshed: Instant,
    is_over: bool,
}

impl Session {
    /// Begins a put.
    pub fn put(repository: &Repository) -> Result<Session> {
        let random =
            getrandom::u64().map_err(|error| Error::new(Kind::Invalid, format!("there is no entropy: {error}")))?;
        let session = Session::begin(repository, format!("sessions/put-{random:016x}"))?;
        let (own, others) = session.others()?;
        match others.iter().find(|other| other.key == PRUNE && is_alive(other, &own)) {
            Some(prune) => Err(busy(repository, prune, "a prune is at work")),
            None => Ok(session),
        }
    }

    /// Begins a prune; removes sessions that are dead.
    pub fn prune(repository: &Repository) -> Result<Session> {
        let store = repository.store();
        let made = Session::begin(repository, PRUNE.to_owned());
        if made.as_ref().is_err_and(|error| error.kind() == Kind::Exists) {
            // The store's clock now, by an object of our own.
            let probe =
                Session::begin(repository, format!("sessions/probe-{:016x}", getrandom::u64().unwrap_or_default()))?;
            let (own, others) = probe.others()?;
            if let Some(prune) = others.iter().find(|other| other.key == PRUNE && is_alive(other, &own)) {
                return Err(busy(repository, prune, "another prune is at work"));
            }
            store.delete(PRUNE)?;
            probe.end()?;
        }
        let session = match made {
            Err(error) if error.kind() == Kind::Exists => Session::begin(repository, PRUNE.to_owned())?,
            made => made?,
        };
        let (own, others) = session.others()?;
        for other in others {
            if other.key.starts_with("sessions/put-") && is_alive(&other, &own) {
                return Err(busy(repository, &other, "a put is at work"));
            }
            store.delete(&other.key)?;
        }
        Ok(session)
    }

    fn begin(repository: &Repository, key: String) -> Result<Session> {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let sentence =
            format!("process {} on {host}, session {:016x}\n", std::process::id(), getrandom::u64().unwrap_or(0));
        repository.store().create(&key, sentence.clone().into_bytes())?;
        Ok(Session { repository: repository.clone(), key, sentence, refreshed: Instant::now(), is_over: false })
    }

    /// The session's own object, and all others.
    fn others(&self) -> Result<(Entry, Vec<Entry>)> {
        let (own, others): (Vec<Entry>, _) =
            self.repository.store().list("sessions")?.into_iter().partition(|entry| entry.key == self.key);
        Ok((own.into_iter().next().ok_or_else(|| self.lost())?, others))
    }

    fn lost(&self) -> Error {
        let rule = format!(
            "{} is gone: this process paused for so long that a prune took it for dead; run the command again",
            self.repository.store().shown(&self.key)
        );
        Error::new(Kind::Conflict, rule)
    }

    /// Says that the process is alive, if it is time to.
    pub fn refresh(&mut self) -> Result<()> {
        if self.refreshed.elapsed() < REFRESH {
            return Ok(());
        }
        // A session that was taken for dead must not come back.
        self.check()?;
        self.repository.store().put(&self.key, self.sentence.clone().into_bytes())?;
        self.refreshed = Instant::now();
        Ok(())
    }

    /// Fails where others took this session for dead.
    pub fn check(&self) -> Result<()> {
        match self.repository.store().get(&self.key, 1 << 16) {
            Ok(object) if object.bytes == self.sentence.as_bytes() => Ok(()),
            Err(error) if error.kind() != Kind::NotFound => Err(error),
            _ => Err(self.lost()),
        }
    }

    /// Writes a manifest whose segments are there. Takes it back if a prune took this session for dead meanwhile, which
    /// may have removed segments that the manifest needs.
    pub fn publish(&self, manifest: &Manifest) -> Result<()> {
        self.check()?;
        manifest.put(&self.repository)?;
        let alive = self.check();
        if alive.is_err() {
            self.repository.store().delete(&manifest.key(&self.repository))?;
        }
        alive
    }

    /// Ends it.
    pub fn end(mut self) -> Result<()> {
        self.is_over = true;
        self.repository.store().delete(&self.key)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.is_over {
            // If this fails, the session is dead after DEAD_AFTER.
            let _ = self.repository.store().delete(&self.key);
        }
    }
}

fn is_alive(other: &Entry, own: &Entry) -> bool {
    own.modified - other.modified < DEAD_AFTER
}

fn busy(repository: &Repository, other: &Entry, rule: &str) -> Error {
    let place = repository.store().shown(&other.key);
    Error::new(Kind::Conflict, format!("{rule} in {}: {place}", repository.store().shown("")))
}
