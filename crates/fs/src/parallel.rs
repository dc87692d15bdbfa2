//! Work that is the same for many pieces, on several threads: compressing and decompressing on several cores, copying
//! with several requests on their way to the devices.
//!
//! The number of threads that help with computing is bounded for the whole filesystem, whoever asks; the caller works
//! too, so that no piece waits for a thread. Where the environment allows no threads, it works alone, in order.

use crate::env::Env;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Pieces that one caller has on their way to the devices.
const LANES: usize = 4;

/// Worker threads that exist now.
#[derive(Default)]
pub(crate) struct Helpers(AtomicUsize);

/// Worker threads reserved for one call; given back when dropped.
struct Workers<'a> {
    helpers: &'a Helpers,
    count: usize,
}

impl Drop for Workers<'_> {
    fn drop(&mut self) {
        self.helpers.0.fetch_sub(self.count, Ordering::Relaxed);
    }
}

impl Helpers {
    fn reserve(&self, env: &Env, wanted: usize) -> Workers<'_> {
        let most = if env.background() { env.threads() - 1 } else { 0 };
        let mut count = 0;
        // A thread that another caller reserves in between is one less for us; more than `most` there never are.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |busy| {
            count = most.saturating_sub(busy).min(wanted);
            Some(busy + count)
        });
        Workers { helpers: self, count }
    }

    /// `work` of every index below `count`, in order. Each thread makes its own `tool` first.
    pub fn map<T: Send + Sync, W>(
        &self,
        env: &Env,
        count: usize,
        tool: impl Fn() -> W + Sync,
        work: impl Fn(&mut W, usize) -> T + Sync,
    ) -> Vec<T> {
        let workers = self.reserve(env, count.saturating_sub(1));
        map_with(workers.count, count, tool, work)
    }
}

/// `work` of every index below `count`, which waits for devices most of the time; the results are in order.
pub(crate) fn map_waiting<T: Send + Sync>(env: &Env, count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let helpers = if env.background() { LANES.min(count).saturating_sub(1) } else { 0 };
    map_with(helpers, count, || (), |(), index| work(index))
}

/// The same on the caller's thread and `helpers` others. Each thread makes its own `tool` first.
fn map_with<T: Send + Sync, W>(
    helpers: usize,
    count: usize,
    tool: impl Fn() -> W + Sync,
    work: impl Fn(&mut W, usize) -> T + Sync,
) -> Vec<T> {
    if helpers == 0 {
        let mut own = tool();
        return (0..count).map(|index| work(&mut own, index)).collect();
    }
    let results: Vec<OnceLock<T>> = (0..count).map(|_| OnceLock::new()).collect();
    let next = AtomicUsize::new(0);
    let run = || {
        let mut own = tool();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(slot) = results.get(index) else { break };
            let _ = slot.set(work(&mut own, index));
        }
    };
    std::thread::scope(|scope| {
        // A thread that cannot be started is a worker less.
        (0..helpers).for_each(|_| drop(std::thread::Builder::new().spawn_scoped(scope, run)));
        run();
    });
    results.into_iter().map(|slot| slot.into_inner().expect("every index was worked on")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_order_and_workers_leave() {
        let (helpers, env) = (Helpers::default(), Env::system());
        for count in [0, 1, 2, 7, 300] {
            let squares = helpers.map(&env, count, || 1, |one, index| index * index * *one);
            assert_eq!(squares, (0..count).map(|index| index * index).collect::<Vec<_>>());
            assert_eq!(helpers.0.load(Ordering::Relaxed), 0);
        }
    }
}
