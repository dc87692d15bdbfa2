//! An object store in memory that writes down every change: when it was asked for, when it took effect, and from when
//! on no crash can undo it. Hosts have a client each, whose requests can be made to stand still.
//!
//! # Invariants
//! 1. A change is certain when its request was answered, or when another request has met its effect. Everything else
//!    that was asked for is in flight.
//! 2. Changes of one object become certain in the order in which they took effect.

use super::shelf::{Change, Condition, Mutation, Object, Shelf};
use butterfs_store::Store;
use butterfs_testkit::rng::Rng;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// The folder of the simulated volume.
const VOLUME: &str = "volumes/";
/// The root of it.
pub const ROOT: &str = "volumes/main/root";
/// Its log.
const LOG: &str = "volumes/main/log/";
/// Segments.
pub const SEGMENTS: &str = "segments/";
/// With a canary that answers early, a change takes effect for crashes so many changes later.
const LATE: usize = 6;

/// A bug of the store on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreCanary {
    /// Conditions of puts are not looked at.
    ConditionIgnored,
    /// A record of the log is acknowledged before it is there.
    RecordEarly,
    /// A segment is acknowledged before it is there, so that the record that names it may be there first.
    SegmentEarly,
}

/// An event of the change with this number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// It was asked for.
    Begun(usize),
    /// It took effect.
    Applied(usize),
    /// No crash can undo it.
    Certain(usize),
    /// Its condition did not hold.
    Refused(usize),
}

/// A request of a host that stands still.
#[derive(Clone, Copy, Debug)]
pub struct Hold {
    /// Its number, counted from 1: changes, and reads of the volume's folder.
    pub request: u64,
    /// It has taken effect, and the answer waits.
    pub answer: bool,
}

/// The outcome of a change.
enum Answer {
    /// It took effect.
    Done(usize),
    /// Its condition did not hold.
    Refused,
    /// It took effect, or did not, and the host hears of neither.
    Lost,
}

/// The requests of a host.
#[derive(Default)]
struct Host {
    requests: u64,
    hold: Option<Hold>,
    waits: bool,
    /// It does nothing any more.
    ended: bool,
}

struct State {
    shelf: Shelf,
    mutations: Vec<Mutation>,
    events: Vec<Event>,
    /// The changes that took effect and are not certain.
    uncertain: BTreeMap<usize, Arc<str>>,
    /// Those that a canary answers early, and the number of changes after which they are there.
    early: VecDeque<(usize, usize)>,
    hosts: BTreeMap<usize, Host>,
    rng: Rng,
}

/// See the [module](self).
pub struct Journal {
    state: Mutex<State>,
    changed: Condvar,
    canary: Option<StoreCanary>,
    /// Requests take some time.
    slow: bool,
    /// Percent of the answers to changes that get lost, so that the client asks again.
    lost: u64,
}

/// The changes of a store from its first state on.
pub struct Recorded {
    /// All changes, by number.
    pub mutations: Vec<Mutation>,
    /// Everything that happened to them.
    pub events: Vec<Event>,
}

impl Journal {
    /// A store whose requests are answered at once.
    pub fn quick(shelf: Shelf) -> Arc<Journal> {
        Arc::new(Journal::new(shelf, Rng::new(0)))
    }

    /// A store whose requests take some time, so that many are under way together, and of whose answers some percent
    /// get lost.
    pub fn slow(shelf: Shelf, rng: Rng, lost: u64, canary: Option<StoreCanary>) -> Arc<Journal> {
        Arc::new(Journal { canary, slow: true, lost, ..Journal::new(shelf, rng) })
    }

    fn new(shelf: Shelf, rng: Rng) -> Journal {
        let state = State {
            shelf,
            mutations: Vec::new(),
            events: Vec::new(),
            uncertain: BTreeMap::new(),
            early: VecDeque::new(),
            hosts: BTreeMap::new(),
            rng,
        };
        Journal { state: Mutex::new(state), changed: Condvar::new(), canary: None, slow: false, lost: 0 }
    }

    /// The store as this host sees it.
    pub fn store(self: &Arc<Journal>, host: usize) -> Store {
        let client = Client { journal: Arc::clone(self), host };
        Store::of(Arc::new(client), Path::default(), "store".to_owned()).expect("threads can be started")
    }

    /// Events so far.
    pub fn len(&self) -> usize {
        self.state.lock().events.len()
    }

    /// All objects now.
    pub fn shelf(&self) -> Shelf {
        let state = self.state.lock();
        let first = state.first() + state.mutations.len();
        state.shelf.clone().with_first(first)
    }

    /// Everything that happened.
    pub fn recorded(&self) -> Recorded {
        let state = self.state.lock();
        Recorded { mutations: state.mutations.clone(), events: state.events.clone() }
    }

    /// A request of a host shall stand still.
    pub fn hold(&self, host: usize, hold: Hold) {
        self.state.lock().hosts.entry(host).or_default().hold = Some(hold);
    }

    /// Waits until the request of a host stands still, or the host has ended; says whether it stands still.
    pub fn await_hold(&self, host: usize) -> bool {
        let mut state = self.state.lock();
        loop {
            let other = state.hosts.entry(host).or_default();
            if other.waits || other.ended {
                return other.waits;
            }
            self.changed.wait(&mut state);
        }
    }

    /// Lets the request of a host go on; one that does not stand still yet never will.
    pub fn release(&self, host: usize) {
        self.state.lock().hosts.entry(host).or_default().hold = None;
        self.changed.notify_all();
    }

    /// A host does nothing any more.
    pub fn end(&self, host: usize) {
        self.state.lock().hosts.entry(host).or_default().ended = true;
        self.changed.notify_all();
    }

    /// Changes that were in flight at a crash take effect now, where their conditions hold.
    pub fn arrive(&self, late: &[(usize, Mutation)]) {
        let mut state = self.state.lock();
        for (number, mutation) in late {
            state.shelf.apply(*number, mutation);
        }
    }

    /// Whether another host has ended this one's epoch, or replaced its root, since this one became the writer.
    pub fn has_rival(&self, host: usize) -> bool {
        let state = self.state.lock();
        let of = |event: &Event| if let Event::Applied(number) = event { Some(state.mutation(*number)) } else { None };
        let mut applied = state.events.iter().filter_map(of).filter(|mutation| mutation.is_about_writers());
        let own = applied.find(|mutation| mutation.host == host && *mutation.key == *ROOT);
        let Some((epoch, _)) = own.and_then(Mutation::place) else { return false };
        let (mut last, mut ends, mut is_replaced) = ((epoch, 0), Vec::new(), false);
        for mutation in applied {
            let place = mutation.place().unwrap_or_default();
            match (mutation.host == host, *mutation.key == *ROOT) {
                (true, true) => {}
                (true, false) => last = last.max(place),
                (false, true) => is_replaced |= place > last,
                (false, false) => ends.push(place),
            }
        }
        // An end counts when it is the next record. A host that was too slow may end an epoch that is over, or at a
        // record that a table has replaced; one that meets a fast writer ends its epoch some way ahead.
        is_replaced || ends.contains(&(last.0, last.1 + 1))
    }

    /// The changes of roots and logs so far, in the order in which they took effect, for messages.
    pub fn about_writers(&self) -> Vec<String> {
        let state = self.state.lock();
        let shown = |event: &Event| match event {
            Event::Begun(_) => None,
            Event::Applied(number) | Event::Certain(number) | Event::Refused(number) => {
                let mutation = state.mutation(*number);
                let Mutation { host, key, .. } = mutation;
                mutation.is_about_writers().then(|| format!("host {host}: {event:?} {key}"))
            }
        };
        state.events.iter().filter_map(shown).collect()
    }

    /// Whether another host has ended an epoch or replaced the root since there were so many events.
    pub fn others_since(&self, host: usize, prefix: usize) -> bool {
        let state = self.state.lock();
        let is_others = |event: &Event| match event {
            Event::Applied(number) => {
                let mutation = state.mutation(*number);
                mutation.host != host && mutation.is_about_writers()
            }
            _ => false,
        };
        state.events[prefix..].iter().any(is_others)
    }

    /// Time that a request takes, in two parts.
    fn pause(&self) -> [Duration; 2] {
        if !self.slow {
            return [Duration::ZERO; 2];
        }
        let rng = &mut self.state.lock().rng;
        let part = |rng: &mut Rng| match rng.below(10) {
            0..5 => 0,
            5..9 => rng.below(300),
            _ => rng.below(3000),
        };
        [(); 2].map(|()| Duration::from_micros(part(rng)))
    }

    /// Counts a request of a host; whether it stands still, and then whether its answer does.
    fn count(state: &mut State, host: usize) -> Option<bool> {
        let host = state.hosts.entry(host).or_default();
        host.requests += 1;
        host.hold.filter(|hold| hold.request == host.requests).map(|hold| hold.answer)
    }

    fn stand_still<'a>(&self, mut state: MutexGuard<'a, State>, host: usize) -> MutexGuard<'a, State> {
        state.hosts.entry(host).or_default().waits = true;
        self.changed.notify_all();
        while state.hosts.entry(host).or_default().hold.is_some() {
            self.changed.wait(&mut state);
        }
        state
    }

    /// Does a change where its condition holds.
    fn change(&self, host: usize, key: &str, change: Change) -> Answer {
        let change = match change {
            Change::Put { bytes, .. } if self.canary == Some(StoreCanary::ConditionIgnored) => {
                Change::Put { bytes, condition: Condition::None }
            }
            change => change,
        };
        let mutation = Mutation { host, key: key.into(), change };
        let [before, after] = self.pause();
        let mut state = self.state.lock();
        let held = Journal::count(&mut state, host);
        let number = state.begin(mutation.clone());
        if held == Some(false) {
            state = self.stand_still(state, host);
        }
        drop(state);
        wait(before);
        let mut state = self.state.lock();
        state.observe(|other| *other == *mutation.key);
        let is_done = state.shelf.apply(number, &mutation);
        if is_done {
            state.events.push(Event::Applied(number));
            state.uncertain.insert(number, mutation.key.clone());
        }
        if held == Some(true) {
            state = self.stand_still(state, host);
        }
        drop(state);
        wait(after);
        let mut state = self.state.lock();
        if !is_done {
            state.events.push(Event::Refused(number));
        }
        if state.rng.chance(self.lost) {
            return Answer::Lost;
        }
        if !is_done {
            return Answer::Refused;
        }
        if self.is_early(&mutation) {
            let due = state.mutations.len() + LATE;
            state.early.push_back((number, due));
        } else {
            state.settle(number);
        }
        Answer::Done(number)
    }

    fn is_early(&self, mutation: &Mutation) -> bool {
        match self.canary {
            Some(StoreCanary::RecordEarly) => mutation.key.starts_with(LOG),
            Some(StoreCanary::SegmentEarly) => mutation.key.starts_with(SEGMENTS),
            _ => false,
        }
    }

    /// The object now, which the host has then seen.
    fn look(&self, host: usize, key: &str) -> Option<Object> {
        let [before, after] = self.pause();
        let mut state = self.state.lock();
        let held = if key.starts_with(VOLUME) { Journal::count(&mut state, host) } else { None };
        if held == Some(false) {
            state = self.stand_still(state, host);
        }
        drop(state);
        wait(before);
        let mut state = self.state.lock();
        state.observe(|other| *other == *key);
        let object = state.shelf.get(key).cloned();
        if held == Some(true) {
            state = self.stand_still(state, host);
        }
        drop(state);
        wait(after);
        object
    }

    fn list(&self, below: &str) -> Vec<(Arc<str>, Object)> {
        let mut state = self.state.lock();
        state.observe(|key| key.starts_with(below));
        state.shelf.below(below)
    }
}

impl State {
    fn mutation(&self, number: usize) -> &Mutation {
        &self.mutations[number - self.first()]
    }

    /// The number of the first change here.
    fn first(&self) -> usize {
        self.shelf.first_number()
    }

    fn begin(&mut self, mutation: Mutation) -> usize {
        let number = self.first() + self.mutations.len();
        self.mutations.push(mutation);
        self.events.push(Event::Begun(number));
        while let Some((early, due)) = self.early.front().copied()
            && due <= self.mutations.len()
        {
            self.early.pop_front();
            self.settle(early);
        }
        number
    }

    /// A request meets the effects of earlier changes of these objects.
    fn observe(&mut self, is_met: impl Fn(&str) -> bool) {
        let met: Vec<usize> = self.uncertain.iter().filter(|(_, key)| is_met(key)).map(|(number, _)| *number).collect();
        let is_early = |number: &usize| self.early.iter().any(|(early, _)| early == number);
        let met: Vec<usize> = met.into_iter().filter(|number| !is_early(number)).collect();
        met.into_iter().for_each(|number| self.settle(number));
    }

    fn settle(&mut self, number: usize) {
        if self.uncertain.remove(&number).is_some() {
            self.events.push(Event::Certain(number));
        }
    }
}

fn wait(time: Duration) {
    if !time.is_zero() {
        std::thread::sleep(time);
    }
}

/// A host's client.
struct Client {
    journal: Arc<Journal>,
    host: usize,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

impl std::fmt::Display for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "host {}", self.host)
    }
}

fn tag(number: usize) -> String {
    format!("\"{number}\"")
}

fn meta(location: Path, object: &Object) -> ObjectMeta {
    ObjectMeta {
        location,
        last_modified: Default::default(),
        size: object.bytes.len() as u64,
        e_tag: Some(tag(object.number)),
        version: None,
    }
}

fn lost() -> Error {
    Error::Generic { store: "the simulator", source: "the answer is lost".into() }
}

fn unused<T>(operation: &str) -> Result<T> {
    Err(Error::NotImplemented { operation: operation.to_owned(), implementer: "the simulator".to_owned() })
}

#[async_trait::async_trait]
impl ObjectStore for Client {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let condition = match options.mode {
            PutMode::Overwrite => Condition::None,
            PutMode::Create => Condition::Absent,
            PutMode::Update(version) => {
                let tag = version.e_tag.unwrap_or_default();
                let number = tag.trim_matches('"').parse().expect("a tag that was given out");
                Condition::Version(number)
            }
        };
        let change = Change::Put { bytes: Bytes::from(payload), condition };
        let path = location.to_string();
        match (self.journal.change(self.host, location.as_ref(), change), condition) {
            (Answer::Done(number), _) => {
                Ok(PutResult { e_tag: Some(tag(number)), version: None, extensions: Default::default() })
            }
            (Answer::Lost, _) => Err(lost()),
            (Answer::Refused, Condition::Absent) => Err(Error::AlreadyExists { path, source: "it exists".into() }),
            (Answer::Refused, _) => Err(Error::Precondition { path, source: "it has another version".into() }),
        }
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        unused("put_multipart")
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let object = self.journal.look(self.host, location.as_ref());
        let path = location.to_string();
        let object = object.ok_or_else(|| Error::NotFound { path, source: "it is not there".into() })?;
        let meta = meta(location.clone(), &object);
        options.check_preconditions(&meta)?;
        let whole = 0..meta.size;
        // The name says that there is no use in trying again.
        let failed = |error| Error::Generic { store: "InMemory", source: Box::new(error) };
        let range = options.range.map_or(Ok(whole), |range| range.as_range(meta.size)).map_err(failed)?;
        let bytes = object.bytes.slice(range.start as usize..range.end as usize);
        let payload = GetResultPayload::Stream(stream::iter([Ok(bytes)]).boxed());
        Ok(GetResult { payload, meta, range, attributes: Default::default(), extensions: Default::default() })
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let (journal, host) = (Arc::clone(&self.journal), self.host);
        let delete = move |location: Result<Path>| {
            let location = location?;
            match journal.change(host, location.as_ref(), Change::Delete) {
                Answer::Lost => Err(lost()),
                _ => Ok(location),
            }
        };
        locations.map(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let below = prefix.map(|prefix| format!("{prefix}/")).unwrap_or_default();
        let found = self.journal.list(&below).into_iter();
        let metas: Vec<Result<ObjectMeta>> = found.map(|(key, object)| Ok(meta(Path::from(&*key), &object))).collect();
        stream::iter(metas).boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        unused("list_with_delimiter")
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        unused("copy")
    }
}
