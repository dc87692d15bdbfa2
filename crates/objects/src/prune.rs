//! Retention: which snapshots stay, and the removal of segments that none needs.
//!
//! # Invariants
//! 1. Manifests go first, segments after them: a prune that ends in between leaves segments that the next one removes.
//! 2. A segment is removed only if no manifest needs it, and no put is at work ([`crate::session`]).

use crate::archive::Archive;
use crate::digest::Digest;
use crate::manifest::{Listing, Manifest};
use crate::repository::Repository;
use crate::segment;
use crate::session::Session;
use crate::verify::Needed;
use butterfs_store::Result;
use jiff::tz::TimeZone;
use std::collections::BTreeMap;

/// The snapshots that stay. Without any rule all stay.
#[derive(Clone, Debug, Default)]
pub struct Keep {
    /// So many of the newest.
    pub last: usize,
    /// The newest one of so many hours that have one.
    pub hourly: usize,
    /// The newest one of so many days that have one.
    pub daily: usize,
    /// The newest one of so many weeks, which begin on Monday.
    pub weekly: usize,
    /// The newest one of so many months.
    pub monthly: usize,
    /// The newest one of so many years.
    pub yearly: usize,
    /// All that are not older than so many seconds before `now`.
    pub within: Option<i64>,
    /// All with these names or ids.
    pub names: Vec<String>,
    /// Now, in seconds since 1970.
    pub now: i64,
}

impl Keep {
    /// Whether there is a rule.
    pub fn is_some(&self) -> bool {
        let counts = [self.last, self.hourly, self.daily, self.weekly, self.monthly, self.yearly];
        counts.iter().any(|count| *count > 0) || self.within.is_some() || !self.names.is_empty()
    }

    /// For each snapshot the rules by which it stays; none: it goes. Times are those of `zone`.
    pub fn plan(&self, manifests: &[Manifest], zone: &TimeZone) -> Vec<Vec<&'static str>> {
        let mut reasons: Vec<Vec<&'static str>> = vec![Vec::new(); manifests.len()];
        let mut order: Vec<usize> = (0..manifests.len()).collect();
        order.sort_by_key(|at| std::cmp::Reverse((manifests[*at].time, *at)));
        let moment = |at: usize| {
            let time = jiff::Timestamp::from_second(manifests[at].time).unwrap_or_default();
            zone.to_datetime(time)
        };
        let period = |rule: &str, at: usize| -> (i16, i32) {
            let moment = moment(at);
            let week = moment.date().iso_week_date();
            match rule {
                "hourly" => (moment.year(), i32::from(moment.date().day_of_year()) * 24 + i32::from(moment.hour())),
                "daily" => (moment.year(), moment.date().day_of_year().into()),
                "weekly" => (week.year(), week.week().into()),
                "monthly" => (moment.year(), moment.month().into()),
                _ => (moment.year(), 0),
            }
        };
        let rules = [
            ("hourly", self.hourly),
            ("daily", self.daily),
            ("weekly", self.weekly),
            ("monthly", self.monthly),
            ("yearly", self.yearly),
        ];
        for (rule, count) in rules {
            let mut seen = BTreeMap::new();
            for at in &order {
                let period = period(rule, *at);
                if seen.len() < count && seen.insert(period, ()).is_none() {
                    reasons[*at].push(rule);
                }
            }
        }
        order.iter().take(self.last).for_each(|at| reasons[*at].push("last"));
        for (at, manifest) in manifests.iter().enumerate() {
            if self.within.is_some_and(|seconds| manifest.time >= self.now.saturating_sub(seconds)) {
                reasons[at].push("within");
            }
            if self.names.iter().any(|name| *name == manifest.name || *name == manifest.id()) {
                reasons[at].push("name");
            }
            if !self.is_some() {
                reasons[at].push("no rule");
            }
        }
        reasons
    }
}

/// The outcome of a prune, or of a dry run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Snapshots.
    pub snapshots: u64,
    /// Segments that no snapshot needs any more.
    pub segments: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of the segments that stay.
    pub kept_bytes: u64,
    /// Bytes in these that no snapshot needs.
    pub slack_bytes: u64,
}

/// Removes these snapshots, and all segments that no other one needs; `is_dry`: nothing is removed.
pub fn prune(repository: &Repository, remove: &[Manifest], is_dry: bool) -> Result<Pruned> {
    let mut session = if is_dry { None } else { Some(Session::prune(repository)?) };
    let store = repository.store();
    let mut pruned = Pruned { snapshots: remove.len() as u64, ..Pruned::default() };
    let archive = Archive::sequential(repository);
    let mut needed = Needed::default();
    for manifest in Listing::new(repository)?.all()? {
        if !remove.iter().any(|removed| removed.id() == manifest.id()) {
            needed.add(&archive, &manifest, &mut |_, _| Ok(()))?;
            session.as_mut().map_or(Ok(()), Session::refresh)?;
        }
    }
    // Everything that stays could be read; so what goes is known.
    if !is_dry {
        remove.iter().try_for_each(|manifest| store.delete(&manifest.key(repository)))?;
    }
    let used: BTreeMap<Digest, u64> = needed.segments().iter().map(|(name, _, bytes)| (*name, *bytes)).collect();
    for (name, len) in segment::lengths(store)? {
        match used.get(&name) {
            Some(bytes) => {
                pruned.kept_bytes += len;
                pruned.slack_bytes += len.saturating_sub(*bytes);
            }
            None => {
                pruned.segments += 1;
                pruned.bytes += len;
                if let Some(session) = &mut session {
                    session.refresh()?;
                    store.delete(&segment::key(&name))?;
                }
            }
        }
    }
    session.map_or(Ok(()), Session::end)?;
    Ok(pruned)
}
