//! The objects of a store at a moment, and the states that a crash could leave of recorded changes.

use super::journal::{Event, ROOT, Recorded, SEGMENTS};
use crate::cut::Cut;
use butterfs_testkit::rng::Rng;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

/// An object.
#[derive(Clone, Debug)]
pub struct Object {
    /// The change that brought it, which is its version.
    pub number: usize,
    /// Its content.
    pub bytes: Bytes,
}

/// The condition of a put.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    /// None.
    None,
    /// There is no such object.
    Absent,
    /// The object has this version.
    Version(usize),
}

/// A change of an object.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Change {
    Put { bytes: Bytes, condition: Condition },
    Delete,
}

/// A change that a host asks for.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Mutation {
    pub host: usize,
    pub key: Arc<str>,
    pub change: Change,
}

impl Mutation {
    /// The epoch and the sequence of a record of the log; a root comes behind all records of the epochs before it.
    pub fn place(&self) -> Option<(u64, u64)> {
        let number = |digits| u64::from_str_radix(digits, 16).ok();
        if let Some((folder, sequence)) = self.key.rsplit_once('/').filter(|(folder, _)| folder.contains("/log/")) {
            return Some((number(folder.rsplit_once('-')?.1)?, number(sequence)?));
        }
        let Change::Put { bytes, .. } = &self.change else { return None };
        let (_, behind) = std::str::from_utf8(bytes).ok()?.split_once("\"epoch\": ")?;
        Some((behind.split_once(',')?.0.parse().ok()?, 0))
    }

    /// Whether it deletes a segment.
    pub fn deletes_segment(&self) -> bool {
        self.key.starts_with(SEGMENTS) && matches!(self.change, Change::Delete)
    }

    /// Whether only a writer of the volume, or a host that becomes the writer, asks for it.
    pub fn is_about_writers(&self) -> bool {
        *self.key == *ROOT || self.key.contains("/log/") && matches!(self.change, Change::Put { .. })
    }
}

/// All objects of a store. Copies share their bytes.
#[derive(Clone, Debug, Default)]
pub struct Shelf {
    objects: BTreeMap<Arc<str>, Object>,
    /// Later changes have numbers from here on.
    first: usize,
}

impl Shelf {
    /// The object with this key.
    pub fn get(&self, key: &str) -> Option<&Object> {
        self.objects.get(key)
    }

    /// All objects whose keys begin so.
    pub fn below(&self, prefix: &str) -> Vec<(Arc<str>, Object)> {
        let from = self.objects.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        let found = from.take_while(|(key, _)| key.starts_with(prefix));
        found.map(|(key, object)| (key.clone(), object.clone())).collect()
    }

    /// Does a change where its condition holds; says whether it does.
    pub fn apply(&mut self, number: usize, mutation: &Mutation) -> bool {
        let Mutation { key, change, .. } = mutation;
        match change {
            Change::Delete => drop(self.objects.remove(key)),
            Change::Put { bytes, condition } => {
                let now = self.objects.get(key).map(|object| object.number);
                let holds = match condition {
                    Condition::None => true,
                    Condition::Absent => now.is_none(),
                    Condition::Version(version) => now == Some(*version),
                };
                if !holds {
                    return false;
                }
                self.objects.insert(key.clone(), Object { number, bytes: bytes.clone() });
            }
        }
        true
    }

    /// The number of the first change after this moment.
    pub fn first_number(&self) -> usize {
        self.first
    }

    /// The same objects, where later changes have higher numbers than all of these.
    pub fn with_first(self, first: usize) -> Shelf {
        Shelf { first, ..self }
    }
}

/// The store that a crash leaves.
pub struct Remains {
    /// Its objects.
    pub shelf: Shelf,
    /// The changes that it has.
    pub kept: BTreeSet<usize>,
    /// Those that were in flight and that it does not have: they may still arrive.
    pub late: Vec<(usize, Mutation)>,
}

/// Makes the stores of cuts, in their order.
pub struct Shelves<'a> {
    recorded: &'a Recorded,
    first: usize,
    certain: Shelf,
    kept: BTreeSet<usize>,
    in_flight: BTreeSet<usize>,
    looked_at: usize,
}

impl<'a> Shelves<'a> {
    /// From what was there before the first change.
    pub fn new(base: &Shelf, recorded: &'a Recorded) -> Shelves<'a> {
        let (kept, in_flight) = Default::default();
        Shelves { recorded, first: base.first, certain: base.clone(), kept, in_flight, looked_at: 0 }
    }

    /// The store of a cut, which is not before the last one.
    pub fn at(&mut self, cut: &Cut) -> Remains {
        assert!(cut.prefix >= self.looked_at, "cuts are taken in order");
        let mutation = |number: usize| &self.recorded.mutations[number - self.first];
        for event in &self.recorded.events[self.looked_at..cut.prefix] {
            match *event {
                Event::Begun(number) => {
                    self.in_flight.insert(number);
                }
                Event::Refused(number) => {
                    self.in_flight.remove(&number);
                }
                Event::Applied(_) => {}
                Event::Certain(number) => {
                    self.in_flight.remove(&number);
                    self.kept.insert(number);
                    let holds = self.certain.apply(number, mutation(number));
                    assert!(holds, "change {number} was done, and its condition does not hold: {:?}", mutation(number));
                }
            }
        }
        self.looked_at = cut.prefix;
        let last = self.first + self.recorded.mutations.len();
        let (mut shelf, mut kept, mut late) = (self.certain.clone().with_first(last), self.kept.clone(), Vec::new());
        let mut rng = Rng::new(cut.seed);
        let percent = if cut.seed == 0 { 100 } else { *rng.pick(&[0, 10, 50, 50, 90]) };
        let mut in_flight: Vec<usize> = self.in_flight.iter().copied().collect();
        if cut.seed != 0 && rng.chance(30) {
            (1..in_flight.len()).rev().for_each(|last| in_flight.swap(last, rng.index(last + 1)));
        }
        for number in in_flight {
            if !rng.chance(percent) {
                late.push((number, mutation(number).clone()));
            } else if shelf.apply(number, mutation(number)) {
                kept.insert(number);
            }
        }
        Remains { shelf, kept, late }
    }
}

/// The cuts of recorded changes: some where an object that counts became certain, and `between` other moments, half of
/// them just before such a one.
pub fn cuts(recorded: &Recorded, anchors: usize, between: usize, seed: u64) -> Vec<Cut> {
    let mut rng = Rng::new(seed);
    let first =
        recorded.events.iter().find_map(|event| if let Event::Begun(first) = event { Some(*first) } else { None });
    let counts = |event: &Event| match event {
        Event::Certain(number) => recorded.mutations[number - first.unwrap_or(0)].is_about_writers(),
        _ => false,
    };
    let events = recorded.events.iter().enumerate();
    let certain: Vec<usize> = events.filter(|(_, event)| counts(event)).map(|(at, _)| at + 1).collect();
    let mut cuts = vec![Cut { prefix: recorded.events.len(), seed: 0 }];
    for number in 0..anchors + between {
        let before = certain.is_empty() || number >= anchors && number % 2 == 0;
        let prefix = match before {
            true => rng.index(recorded.events.len() + 1),
            false => *rng.pick(&certain) - usize::from(number >= anchors),
        };
        let seed = if number < anchors / 2 { 0 } else { rng.bits() | 1 };
        cuts.push(Cut { prefix, seed });
    }
    cuts.sort_unstable();
    cuts.dedup();
    cuts
}
