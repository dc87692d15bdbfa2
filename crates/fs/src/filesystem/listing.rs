//! Answers that can be long, given one by one.

use super::Filesystem;
use crate::backref::{Referrer, Referrers};
use crate::error::Result;
use crate::subvolume::extents::{User, UsersOf};
use crate::subvolume::paths::PathsOf;
use crate::transaction::Core;
use std::collections::VecDeque;

/// The items of a [`Listing`].
pub trait Listed {
    /// One of them.
    type Item;

    /// The next one; none at the end.
    #[doc(hidden)]
    fn following(&mut self, core: &Core) -> Result<Option<Self::Item>>;
}

/// An answer of any length: each step looks for what comes next, and little is held in memory. After an error it goes
/// on where it was.
pub struct Listing<S> {
    filesystem: Filesystem,
    source: S,
}

impl<S: Listed> Listing<S> {
    pub(super) fn new(filesystem: &Filesystem, source: S) -> Listing<S> {
        Listing { filesystem: filesystem.clone(), source }
    }
}

impl<S: Listed> Iterator for Listing<S> {
    type Item = Result<S::Item>;

    fn next(&mut self) -> Option<Result<S::Item>> {
        let _operation = self.filesystem.begin();
        self.source.following(&self.filesystem.0.engine).transpose()
    }
}

impl Listed for UsersOf {
    type Item = User;

    fn following(&mut self, core: &Core) -> Result<Option<User>> {
        self.next(core)
    }
}

impl Listed for PathsOf {
    type Item = Vec<u8>;

    fn following(&mut self, core: &Core) -> Result<Option<Vec<u8>>> {
        self.next(core)
    }
}

/// The places that lead to an extent.
pub struct ReferrersOf {
    pub(super) referrers: Referrers,
    pub(super) found: VecDeque<Referrer>,
}

impl Listed for ReferrersOf {
    type Item = Referrer;

    fn following(&mut self, core: &Core) -> Result<Option<Referrer>> {
        /// The number that is looked for at a time: after a commit the search begins anew.
        const MANY: usize = 4096;
        if self.found.is_empty() {
            self.found.extend(self.referrers.next(core, MANY)?);
        }
        Ok(self.found.pop_front())
    }
}
