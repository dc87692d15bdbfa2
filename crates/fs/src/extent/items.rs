//! The operations on one tree that algorithms over its items need. The engine's trees give it, a sorted map in tests,
//! and whatever else holds such items (a log tree).

use crate::error::Result;
use butterfs_ondisk::Key;
use std::ops::{ControlFlow, Deref};

/// Looks at an item, and says whether to go on.
pub type Visit<'a> = dyn FnMut(Key, &[u8]) -> Result<ControlFlow<()>> + 'a;

/// Items in the order of their keys.
pub trait Items {
    /// An item's payload.
    type Payload: Deref<Target = [u8]>;

    /// The last item whose key is smaller than `key`.
    fn last_before(&self, key: Key) -> Result<Option<(Key, Self::Payload)>>;

    /// Calls `each` for the items from `from` to `to`, both included, until it breaks off.
    fn scan(&self, from: Key, to: Key, each: &mut Visit<'_>) -> Result<()>;

    /// The last item whose key is `key` or smaller.
    fn at_or_before(&self, key: Key) -> Result<Option<(Key, Self::Payload)>> {
        self.last_before(key.successor())
    }
}

/// Items that can be changed.
pub trait EditItems: Items {
    /// Adds an item; false, and nothing done, when the key exists.
    fn insert(&mut self, key: Key, payload: &[u8]) -> Result<bool>;

    /// Gives an item another payload; false when there is none.
    fn replace(&mut self, key: Key, payload: &[u8]) -> Result<bool>;

    /// Changes a payload in place; false when there is none.
    fn update(&mut self, key: Key, change: &mut dyn FnMut(&mut [u8])) -> Result<bool>;

    /// Removes an item; false when there is none.
    fn remove(&mut self, key: Key) -> Result<bool>;
}

#[cfg(test)]
pub(crate) mod model {
    //! Items in a sorted map.

    use super::*;
    use std::collections::BTreeMap;
    use std::ops::Bound;

    /// See the [module](self).
    #[derive(Default, Clone, Debug)]
    pub struct ItemMap(pub BTreeMap<Key, Vec<u8>>);

    impl Items for ItemMap {
        type Payload = Vec<u8>;

        fn last_before(&self, key: Key) -> Result<Option<(Key, Vec<u8>)>> {
            Ok(self.0.range(..key).next_back().map(|(key, payload)| (*key, payload.clone())))
        }

        fn scan(&self, from: Key, to: Key, each: &mut Visit<'_>) -> Result<()> {
            if from > to {
                return Ok(());
            }
            for (key, payload) in self.0.range((Bound::Included(from), Bound::Included(to))) {
                if each(*key, payload)?.is_break() {
                    break;
                }
            }
            Ok(())
        }
    }

    impl EditItems for ItemMap {
        fn insert(&mut self, key: Key, payload: &[u8]) -> Result<bool> {
            let vacant = !self.0.contains_key(&key);
            if vacant {
                self.0.insert(key, payload.to_vec());
            }
            Ok(vacant)
        }

        fn replace(&mut self, key: Key, payload: &[u8]) -> Result<bool> {
            Ok(self.0.get_mut(&key).map(|old| *old = payload.to_vec()).is_some())
        }

        fn update(&mut self, key: Key, change: &mut dyn FnMut(&mut [u8])) -> Result<bool> {
            Ok(self.0.get_mut(&key).map(|payload| change(payload)).is_some())
        }

        fn remove(&mut self, key: Key) -> Result<bool> {
            Ok(self.0.remove(&key).is_some())
        }
    }
}
