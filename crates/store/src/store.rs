//! A store: one bucket and a prefix, and the calls that block.

use crate::attempts::{Time, attempts};
use crate::buffers::Buffers;
use crate::cancel::Cancel;
use crate::error::{Error, Kind, Result};
use crate::folder::Folder;
use crate::settings::Settings;
use crate::url;
use bytes::Bytes;
use futures_util::future::{Either, pending, select};
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, GetResult, GetResultPayload, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
    UpdateVersion,
};
use std::fs::File;
use std::future::Future;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Handle, Runtime};
use tokio::task::JoinSet;

/// The version of an object, by which [`Store::replace`] knows whether it is still the same.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Version(UpdateVersion);

/// An object that was read.
#[derive(Clone, Debug)]
pub struct Object {
    /// All bytes.
    pub bytes: Bytes,
    /// Its version.
    pub version: Version,
}

/// An object as it was when it was looked at.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Bytes of the object.
    pub len: u64,
    e_tag: Option<String>,
    /// Seconds since 1970; 0 where the server does not say.
    modified: i64,
}

/// An object in a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The key, without the prefix of the store.
    pub key: String,
    /// Bytes of the object.
    pub len: u64,
    /// When it was put, by the store's clock, in seconds since 1970.
    pub modified: i64,
}

/// See the [module](self). Clones share the client.
#[derive(Clone)]
pub struct Store {
    client: Arc<dyn ObjectStore>,
    folder: Option<Folder>,
    prefix: Path,
    name: String,
    patience: Duration,
    /// Ends the calls.
    cancel: Option<Cancel>,
    runtime: Arc<Runtime>,
    buffers: Arc<Buffers>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Store({})", self.shown(""))
    }
}

impl Store {
    /// The store of a URL.
    pub fn open(url: &str, settings: &Settings) -> Result<Store> {
        let opened = url::open(url, settings)?;
        let store = Store::of(opened.client, opened.prefix, opened.name)?;
        Ok(Store { folder: opened.folder, patience: settings.give_up_after, ..store })
    }

    /// A store around a client; `name` stands in messages.
    pub fn of(client: Arc<dyn ObjectStore>, prefix: Path, name: String) -> Result<Store> {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).thread_name("store").enable_all().build();
        let failed = |error| Error::new(Kind::Unreachable, format!("cannot start threads for the store: {error}"));
        let runtime = Arc::new(runtime.map_err(failed)?);
        let patience = Settings::default().give_up_after;
        Ok(Store { client, folder: None, prefix, name, patience, cancel: None, runtime, buffers: Arc::default() })
    }

    /// An empty store in memory.
    ///
    /// # Panics
    /// When no thread can be started.
    pub fn in_memory() -> Store {
        let client = Arc::new(object_store::memory::InMemory::new());
        Store::of(client, Path::default(), "memory".to_owned()).expect("threads can be started")
    }

    /// The same store with another patience.
    pub fn give_up_after(self, patience: Duration) -> Store {
        Store { patience, ..self }
    }

    /// The same store; its calls end with [`Kind::Cancelled`] when `cancel` says so.
    pub fn until(&self, cancel: &Cancel) -> Store {
        Store { cancel: Some(cancel.clone()), ..self.clone() }
    }

    /// The folder that the store is.
    pub fn folder(&self) -> Option<&std::path::Path> {
        self.folder.as_ref().map(|folder| folder.root.as_path())
    }

    /// The client, whose locations are [`Store::location`]s.
    pub fn object_store(&self) -> Arc<dyn ObjectStore> {
        self.client.clone()
    }

    /// The runtime that drives the client.
    pub fn runtime(&self) -> &Handle {
        self.runtime.handle()
    }

    /// The location of a key for the client.
    pub fn location(&self, key: &str) -> Result<Path> {
        let parsed = Path::parse(key);
        let parsed = parsed.map_err(|error| Error::new(Kind::Invalid, format!("'{key}' is not a key: {error}")))?;
        Ok(self.prefix.parts().chain(parsed.parts()).collect())
    }

    /// A key as it is named in messages.
    pub fn shown(&self, key: &str) -> String {
        let parts = [self.name.as_str(), self.prefix.as_ref(), key];
        parts.iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join("/")
    }

    /// An object, which must not be longer than `limit`.
    pub fn get(&self, key: &str, limit: u64) -> Result<Object> {
        let (location, time) = (self.location(key)?, self.time(0));
        let done = self.attempt("get", key, &time, || async {
            let result = self.client.get(&location).await?;
            let version = version_of(result.meta.e_tag.clone(), result.meta.version.clone());
            let len = result.meta.size;
            if len > limit {
                return Ok(Err(len));
            }
            time.is_for(len);
            let mut bytes = body(result, vec![len as usize], self.buffers.clone()).await?;
            Ok(Ok(Object { bytes: bytes.pop().unwrap_or_default(), version }))
        });
        let too_long = |len| self.error(Kind::Length, "get", key, &format!("it has {len} bytes, at most {limit} fit"));
        done?.map_err(too_long)
    }

    /// Bytes of an object; all of the range must be there.
    pub fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        let len = range.end.saturating_sub(range.start) as usize;
        Ok(self.get_runs(key, range.start, &[len])?.pop().expect("one run was asked for"))
    }

    /// Runs of bytes of an object that follow each other from an offset on, each in memory of its own; all of them must
    /// be there.
    pub fn get_runs(&self, key: &str, from: u64, lens: &[usize]) -> Result<Vec<Bytes>> {
        self.get_runs_if(key, from, lens, None)
    }

    /// The same of an object that is still as it was looked at; [`Kind::Conflict`] when it is not.
    pub fn get_runs_of(&self, key: &str, from: u64, lens: &[usize], seen: &Seen) -> Result<Vec<Bytes>> {
        self.get_runs_if(key, from, lens, Some(seen))
    }

    fn get_runs_if(&self, key: &str, from: u64, lens: &[usize], seen: Option<&Seen>) -> Result<Vec<Bytes>> {
        const DOING: &str = "get a part of";
        let location = self.location(key)?;
        let len = lens.iter().map(|len| *len as u64).sum::<u64>();
        let range = from..from + len;
        if range.is_empty() {
            return Ok(vec![Bytes::new(); lens.len()]);
        }
        let if_match = seen.and_then(Seen::condition);
        let done = self.attempt(DOING, key, &self.time(len), || async {
            let wanted = Some(GetRange::Bounded(range.clone()));
            let options = GetOptions { range: wanted, if_match: if_match.clone(), ..GetOptions::default() };
            let result = match self.client.get_opts(&location, options).await {
                Err(error) if is_behind_end(&error) => return Ok(Err((Kind::Length, "it is shorter".to_owned()))),
                result => result?,
            };
            // A server may not know the condition.
            if let Some(difference) = seen.and_then(|seen| seen.difference(&result.meta)) {
                return Ok(Err((Kind::Conflict, difference)));
            }
            if result.range != range {
                let has = result.meta.size;
                let rule = format!("it has {has} bytes, those from {} to {} are needed", range.start, range.end);
                return Ok(Err((Kind::Length, rule)));
            }
            Ok(Ok(body(result, lens.to_vec(), self.buffers.clone()).await?))
        });
        done?.map_err(|(kind, rule)| {
            let kind = if seen.is_some() { Kind::Conflict } else { kind };
            self.error(kind, DOING, key, &rule)
        })
    }

    /// Looks at an object, so that [`Store::get_runs_of`] knows whether it is still the same.
    pub fn look(&self, key: &str) -> Result<Seen> {
        let location = self.location(key)?;
        let meta = self.attempt("look at", key, &self.time(0), || self.client.head(&location))?;
        Ok(Seen { len: meta.size, e_tag: meta.e_tag, modified: meta.last_modified.timestamp() })
    }

    /// Length and version of an object.
    pub fn head(&self, key: &str) -> Result<(u64, Version)> {
        let location = self.location(key)?;
        let meta = self.attempt("look at", key, &self.time(0), || self.client.head(&location))?;
        Ok((meta.size, version_of(meta.e_tag, meta.version)))
    }

    /// Puts an object, whether or not there is one.
    pub fn put(&self, key: &str, content: impl Into<PutPayload>) -> Result<Version> {
        self.put_in_mode("put", key, &content.into(), PutMode::Overwrite)
    }

    /// Puts an object that is not there yet. One that is there with the same bytes is as good.
    pub fn create(&self, key: &str, content: impl Into<PutPayload>) -> Result<Version> {
        let content = content.into();
        let created = self.put_in_mode("create", key, &content, PutMode::Create);
        self.or_equal(created, key, &content)
    }

    /// Puts an object in the place of the one with this version.
    pub fn replace(&self, key: &str, content: impl Into<PutPayload>, version: &Version) -> Result<Version> {
        let content = content.into();
        let replace = |version| self.put_in_mode("replace", key, &content, PutMode::Update(version));
        let replaced = replace(version.0.clone());
        if !replaced.as_ref().is_err_and(|error| error.kind() == Kind::Conflict) {
            return replaced;
        }
        let unquoted = version.0.e_tag.as_deref().and_then(|tag| tag.strip_prefix('"')?.strip_suffix('"'));
        match unquoted {
            // Ceph's gateway (16.2) compares tags as they are without the quotes that it gives them.
            Some(tag) if self.head(key).is_ok_and(|(_, now)| now == *version) => {
                let again = replace(UpdateVersion { e_tag: Some(tag.to_owned()), version: version.0.version.clone() });
                self.or_equal(again, key, &content)
            }
            _ => self.or_equal(replaced, key, &content),
        }
    }

    /// Removes an object; one that is not there is as good.
    pub fn delete(&self, key: &str) -> Result<()> {
        let location = self.location(key)?;
        match self.attempt("delete", key, &self.time(0), || self.client.delete(&location)) {
            Err(error) if error.kind() == Kind::NotFound => Ok(()),
            done => done,
        }
    }

    /// All objects below a folder of keys, in no order.
    pub fn list(&self, below: &str) -> Result<Vec<Entry>> {
        let location = self.location(below)?;
        let prefix = Some(&location).filter(|location| !location.as_ref().is_empty());
        let time = self.time(0);
        let found = self.attempt("list", below, &time, || async {
            let (mut list, mut found) = (self.client.list(prefix), Vec::new());
            while let Some(meta) = list.try_next().await? {
                found.push(meta);
                time.is_for(found.len() as u64 * LISTED);
            }
            Ok(found)
        });
        let entry = |meta: object_store::ObjectMeta| {
            let key = meta.location.prefix_match(&self.prefix)?.map(|part| part.as_ref().to_owned());
            let key = key.collect::<Vec<_>>().join("/");
            Some(Entry { key, len: meta.size, modified: meta.last_modified.timestamp() })
        };
        Ok(found?.into_iter().filter_map(entry).collect())
    }

    fn put_in_mode(&self, doing: &str, key: &str, content: &PutPayload, mode: PutMode) -> Result<Version> {
        let location = self.location(key)?;
        let time = self.time(content.content_length() as u64);
        let done = self.attempt(doing, key, &time, || async {
            match (&self.folder, &mode) {
                (Some(folder), PutMode::Update(version)) => {
                    let version = version.e_tag.as_deref().unwrap_or_default();
                    folder.replace(&location, content.clone(), version).await
                }
                _ => self.client.put_opts(&location, content.clone(), PutOptions::from(mode.clone())).await,
            }
        });
        let done = done?;
        match done.e_tag {
            // Every later replacement needs one.
            None => Ok(self.head(key)?.1),
            tag => Ok(version_of(tag, done.version)),
        }
    }

    /// An earlier attempt may have succeeded without an answer: then the object has our bytes.
    fn or_equal(&self, done: Result<Version>, key: &str, content: &PutPayload) -> Result<Version> {
        match done {
            Err(error) if matches!(error.kind(), Kind::Exists | Kind::Conflict) => {
                match self.get(key, content.content_length() as u64) {
                    Ok(object) if is_content(&object.bytes, content) => Ok(object.version),
                    Ok(_) => Err(error),
                    Err(other) if matches!(other.kind(), Kind::Length | Kind::NotFound) => Err(error),
                    Err(other) => Err(other),
                }
            }
            done => done,
        }
    }

    fn time(&self, bytes: u64) -> Time {
        Time::new(self.patience, bytes)
    }

    /// The outcome of a call for one object. An attempt that is dropped closes its connection.
    fn attempt<T, F>(&self, doing: &str, key: &str, time: &Time, attempt: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = std::result::Result<T, object_store::Error>>,
    {
        let cancelled = async {
            match &self.cancel {
                Some(cancel) => cancel.cancelled().await,
                None => pending().await,
            }
        };
        let (calls, up, cancelled) = (pin!(attempts(self.patience, attempt)), pin!(time.up()), pin!(cancelled));
        match self.runtime.block_on(select(calls, select(up, cancelled))) {
            Either::Left((done, _)) => done.map_err(|error| Error::of(doing, &self.shown(key), &error)),
            Either::Right((Either::Left(_), _)) => Err(self.error(Kind::Unreachable, doing, key, &time.rule())),
            Either::Right((Either::Right(_), _)) => {
                Err(self.error(Kind::Cancelled, doing, key, "nobody needs it any more"))
            }
        }
    }

    fn error(&self, kind: Kind, doing: &str, key: &str, rule: &str) -> Error {
        Error::new(kind, format!("cannot {doing} {}: {rule}", self.shown(key)))
    }
}

impl Seen {
    /// The tag that a server is asked to compare; a weak one never counts as equal there.
    fn condition(&self) -> Option<String> {
        self.e_tag.clone().filter(|tag| !tag.starts_with("W/"))
    }

    /// The difference to the object as an answer describes it. Servers leave out what they do not know.
    fn difference(&self, now: &object_store::ObjectMeta) -> Option<String> {
        if now.size != self.len {
            return Some(format!("it had {} bytes and has {} now", self.len, now.size));
        }
        let strong = |tag: &str| tag.strip_prefix("W/").unwrap_or(tag).to_owned();
        if let (Some(then), Some(now)) = (&self.e_tag, &now.e_tag) {
            if strong(then) != strong(now) {
                return Some(format!("its tag was {then} and is {now} now"));
            }
            if self.condition().is_some() {
                return None;
            }
        }
        let modified = now.last_modified.timestamp();
        let is_other = self.modified != 0 && modified != 0 && modified != self.modified;
        is_other.then(|| "the time of its last change is another one".to_owned())
    }
}

/// Whether a server has no byte of the range that it was asked for.
fn is_behind_end(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::Generic { .. }) && error.to_string().contains("status code: 416")
}

fn is_content(bytes: &[u8], content: &PutPayload) -> bool {
    let mut rest = Some(bytes);
    content.iter().for_each(|part| rest = rest.and_then(|rest| rest.strip_prefix(part.as_ref())));
    rest.is_some_and(<[u8]>::is_empty)
}

fn version_of(e_tag: Option<String>, version: Option<String>) -> Version {
    Version(UpdateVersion { e_tag, version })
}

/// Bytes of one object in a list.
const LISTED: u64 = 1 << 10;

/// The body of an answer, which must have exactly the bytes of these runs.
async fn body(
    result: GetResult,
    lens: Vec<usize>,
    buffers: Arc<Buffers>,
) -> std::result::Result<Vec<Bytes>, object_store::Error> {
    match result.payload {
        GetResultPayload::File(file, _) => content(&file, result.range.start, &lens, &buffers),
        // By a thread that drives connections: the caller would be woken for each packet.
        GetResultPayload::Stream(stream) => {
            // A set ends its tasks when it is dropped.
            let mut set = JoinSet::new();
            set.spawn(collect(stream, lens, buffers));
            match set.join_next().await.expect("one was spawned") {
                Ok(collected) => collected,
                Err(ended) => match ended.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    Err(ended) => Err(object_store::Error::JoinError { source: ended }),
                },
            }
        }
    }
}

/// Runs of a file in a folder, which the client would read in many small parts, each by another thread.
fn content(
    file: &File,
    from: u64,
    lens: &[usize],
    buffers: &Arc<Buffers>,
) -> std::result::Result<Vec<Bytes>, object_store::Error> {
    let (mut at, mut runs) = (from, Vec::with_capacity(lens.len()));
    for len in lens {
        let mut run = buffers.take(*len);
        run.bytes().resize(*len, 0);
        file.read_exact_at(run.bytes(), at).map_err(|_| wrong_length("shorter", lens))?;
        at += *len as u64;
        runs.push(run.freeze());
    }
    Ok(runs)
}

type Parts = BoxStream<'static, std::result::Result<Bytes, object_store::Error>>;

async fn collect(
    mut stream: Parts,
    lens: Vec<usize>,
    buffers: Arc<Buffers>,
) -> std::result::Result<Vec<Bytes>, object_store::Error> {
    let mut runs = Vec::with_capacity(lens.len());
    let mut part = Bytes::new();
    for len in &lens {
        let mut buffer = buffers.take(*len);
        let run = buffer.bytes();
        while run.len() < *len {
            if part.is_empty() {
                part = stream.next().await.ok_or_else(|| wrong_length("shorter", &lens))??;
            }
            run.extend_from_slice(&part.split_to(part.len().min(len - run.len())));
        }
        runs.push(buffer.freeze());
    }
    while part.is_empty() {
        match stream.next().await {
            Some(more) => part = more?,
            None => return Ok(runs),
        }
    }
    Err(wrong_length("longer", &lens))
}

fn wrong_length(what: &str, lens: &[usize]) -> object_store::Error {
    let len: usize = lens.iter().sum();
    let source = format!("the answer is {what} than the {len} bytes that it announced").into();
    object_store::Error::Generic { store: "client", source }
}
