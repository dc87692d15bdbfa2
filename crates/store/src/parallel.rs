//! Requests that are made at once.

use crate::error::Result;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The results of `work` for each item, in no order; up to `threads` of them at once. After an error a thread takes no
/// further item.
pub fn each<T: Sync, R: Send>(items: &[T], threads: usize, work: impl Fn(&T) -> Result<R> + Sync) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let run = || -> Result<Vec<R>> {
        let mut own = Vec::new();
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            own.push(work(item)?);
        }
        Ok(own)
    };
    if items.len() <= 1 {
        return run();
    }
    let parts: Vec<Result<Vec<R>>> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads.min(items.len())).map(|_| scope.spawn(run)).collect();
        let joined = running.into_iter().map(|thread| thread.join());
        joined.map(|part| part.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    Ok(parts.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
}
