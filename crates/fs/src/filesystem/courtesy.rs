//! Long work that lets others go first: balance, removal, shrinking and replacement move gigabytes through the queue in
//! which the requests of users wait.
//!
//! After a step during which others have begun operations it pauses, so that they have the devices for themselves for a
//! longer time than they had to share them. Where nobody else is at work it never waits.

use super::{Filesystem, OperationProgress};
use crate::error::Result;
use std::time::Duration;

/// A pause is so many halves of the time of the step before it.
const HALVES: u32 = 3;
/// The longest pause.
const MOST: Duration = Duration::from_millis(500);
/// The time between two looks at what others do.
const SLICE: Duration = Duration::from_millis(5);
/// Slices without an operation of others, after which a pause ends.
const IDLE_SLICES: u32 = 4;
/// Operations that a step may begin itself.
const OWN: u64 = 2;
/// Others are at work where they begin an operation in each such time.
const EACH: Duration = Duration::from_millis(10);

/// See the [module](self).
pub(super) struct Courtesy {
    /// Operations that had been begun when the step began.
    begun: u64,
    /// When it began.
    since: Duration,
}

impl Courtesy {
    /// The first step begins.
    pub(super) fn new(filesystem: &Filesystem) -> Courtesy {
        Courtesy { begun: filesystem.0.exclusion.begun(), since: filesystem.0.engine.env().uptime() }
    }

    /// A step has ended, and the next one begins when this returns: at once if nobody else was at work, or as soon as
    /// nobody is, or `stop` says so. Nothing may be held.
    pub(super) fn let_others_work(&mut self, filesystem: &Filesystem, stop: &dyn Fn() -> bool) {
        let (env, exclusion) = (filesystem.0.engine.env(), &filesystem.0.exclusion);
        let taken = env.uptime().saturating_sub(self.since);
        let others = exclusion.begun().saturating_sub(self.begun + OWN);
        // A simulator has no time that passes by itself.
        if env.background() && u128::from(others) > taken.as_millis() / EACH.as_millis() {
            let end = env.uptime() + (taken * HALVES / 2).min(MOST);
            let (mut seen, mut idle) = (exclusion.begun(), 0);
            while env.uptime() < end && idle < IDLE_SLICES && !stop() {
                std::thread::sleep(SLICE);
                let now = exclusion.begun();
                idle = if now == seen { idle + 1 } else { 0 };
                seen = now;
            }
        }
        *self = Courtesy::new(filesystem);
    }

    /// The same for an operation with `progress`: an error where it was cancelled, or the filesystem is being closed.
    pub(super) fn before_next_step(&mut self, filesystem: &Filesystem, progress: &OperationProgress) -> Result<()> {
        self.let_others_work(filesystem, &|| progress.is_cancelled() || filesystem.is_stopping());
        progress.must_go_on()?;
        filesystem.must_not_be_stopping()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mkfs::{MkfsOptions, mkfs};
    use crate::{Env, Options};
    use butterfs_device::{BlockDevice, MemoryDevice};
    use std::cell::Cell;
    use std::sync::Arc;

    #[test]
    fn only_work_of_others_makes_it_wait() {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(256 << 20));
        mkfs(&[Arc::clone(&device)], &MkfsOptions::default(), &Env::system()).unwrap();
        let fs = Filesystem::open(vec![device], Options::default(), Env::system()).unwrap();
        let mut courtesy = Courtesy::new(&fs);
        let has_waited = |courtesy: &mut Courtesy| {
            let asked = Cell::new(false);
            courtesy.let_others_work(&fs, &|| {
                asked.set(true);
                true
            });
            asked.get()
        };
        assert!(!has_waited(&mut courtesy), "nobody is at work");
        std::thread::sleep(EACH * 3);
        drop(fs.begin());
        assert!(!has_waited(&mut courtesy), "its own operation");
        (0..10_000).for_each(|_| drop(fs.begin()));
        assert!(has_waited(&mut courtesy));
        assert!(!has_waited(&mut courtesy), "the others have stopped");
    }
}
