//! Failures of what several threads wait for: those who waited for an answer that failed do not ask again one after the
//! other, which would take each of them the time of a whole failure. Neither does a reader that, after a long read has
//! failed, tries its parts.

use butterfs_store::{Error, Kind};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Failures that are known; with more, all are forgotten.
const MOST: usize = 1024;
/// A store that did not answer is not asked for the same again for so long.
const PAUSE: Duration = Duration::from_secs(1);

/// See the [module](self).
#[derive(Default)]
pub struct Failures<K>(Mutex<HashMap<K, (Instant, Error)>>);

impl<K: Eq + Hash> Failures<K> {
    /// Takes note of a failure of each of these.
    pub fn note(&self, keys: impl IntoIterator<Item = K>, error: &Error) {
        let mut known = self.0.lock();
        for key in keys {
            if known.len() >= MOST {
                known.clear();
            }
            known.insert(key, (Instant::now(), error.clone()));
        }
    }

    /// The failure of one of these since a moment, or just before it.
    pub fn since(&self, begun: Instant, keys: impl IntoIterator<Item = K>) -> Option<Error> {
        let known = self.0.lock();
        if known.is_empty() {
            return None;
        }
        let counts = |(at, error): &&(Instant, Error)| {
            *at >= begun || (error.kind() == Kind::Unreachable && begun - *at < PAUSE)
        };
        keys.into_iter().find_map(|key| known.get(&key).filter(counts)).map(|(_, error)| error.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_waited_share_a_failure_and_later_ones_ask_again() {
        let failures = Failures::default();
        let error = |kind| Error::new(kind, "no answer");
        let begun = Instant::now();
        failures.note([1, 2], &error(Kind::Damaged));
        failures.note([3], &error(Kind::Unreachable));
        assert!([1, 2, 3].iter().all(|key| failures.since(begun, [*key]).is_some()));
        assert!(failures.since(begun, [4]).is_none());
        let later = Instant::now() + Duration::from_millis(1);
        assert!(failures.since(later, [1, 2]).is_none(), "the next answer may be right");
        assert!(failures.since(later, [1, 3]).is_some_and(|error| error.kind() == Kind::Unreachable));
        assert!(failures.since(later + PAUSE, [3]).is_none());
    }
}
