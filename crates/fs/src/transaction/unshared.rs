//! Data extents that have lost a user in a transaction that is not durable yet.
//!
//! The last commit still shows the data to the user that is gone, and a power cut brings that commit back. So until the loss
//! is durable nobody overwrites the data in place, although the trees in memory have only one user left.

use butterfs_ondisk::{Generation, Logical};
use butterfs_sync::{Mutex, order};
use rustc_hash::FxHashMap;

/// See the [module](self). One entry for each extent that a running or written transaction took a user from.
#[derive(Default)]
pub(crate) struct Unshared(Mutex<FxHashMap<Logical, Generation>, { order::UNSHARED }>);

impl Unshared {
    /// The extent at `at` has lost a user in this transaction, and has others.
    pub fn note(&self, at: Logical, generation: Generation) {
        self.0.lock().insert(at, generation);
    }

    /// Whether the last commit may show the extent at `at` to somebody whom the trees in memory do not show it to.
    pub fn is_recent(&self, at: Logical) -> bool {
        self.0.lock().contains_key(&at)
    }

    /// A transaction is durable.
    pub fn forget(&self, durable: Generation) {
        self.0.lock().retain(|_, generation| *generation > durable);
    }
}
