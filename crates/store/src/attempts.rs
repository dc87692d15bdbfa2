//! Attempts: a request that may fail now and succeed later, again and again with growing pauses; and the time that a
//! call has for all of them.
//!
//! The client retries single requests that failed before an answer; here are whole calls, with bodies that end early or
//! come too slowly.

use object_store::Error;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The first pause.
const FIRST: Duration = Duration::from_millis(50);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(10);
/// The time of an attempt that begins when the patience is nearly over: it tells best what is wrong.
const LAST: Duration = Duration::from_secs(5);
/// Bytes that a store must move in a second.
const LOWEST_RATE: u64 = 64 << 10;

/// The time of one call: the patience, that of the last attempt, and that of the bytes that it moves at the lowest
/// rate. A store that is slow but never silent does not end a call otherwise.
pub struct Time {
    begun: Instant,
    patience: Duration,
    bytes: AtomicU64,
}

impl Time {
    /// The time of a call that begins now and moves so many bytes.
    pub fn new(patience: Duration, bytes: u64) -> Time {
        Time { begun: Instant::now(), patience, bytes: bytes.into() }
    }

    /// The call moves so many bytes, as its answer says now.
    pub fn is_for(&self, bytes: u64) {
        self.bytes.fetch_max(bytes, Ordering::Relaxed);
    }

    /// Returns when the time is up.
    pub async fn up(&self) {
        loop {
            let left = self.whole().saturating_sub(self.begun.elapsed());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left).await;
        }
    }

    /// The rule that a call breaks when its time is up.
    pub fn rule(&self) -> String {
        let bytes = self.bytes.load(Ordering::Relaxed);
        let (whole, patience) = (self.whole().as_secs_f64(), self.patience.as_secs_f64());
        let rate = LOWEST_RATE >> 10;
        format!(
            "the store did not finish its answer within {whole:.1} s: {patience:.1} s (give_up_after), {} s, and the \
             time of {bytes} bytes at {rate} KiB/s",
            LAST.as_secs()
        )
    }

    fn whole(&self) -> Duration {
        let bytes = self.bytes.load(Ordering::Relaxed);
        let moving = Duration::from_secs_f64(bytes as f64 / LOWEST_RATE as f64);
        self.patience.saturating_add(LAST).saturating_add(moving)
    }
}

/// Calls `attempt` until it succeeds, fails for good, or `patience` is over.
pub async fn attempts<T, F: Future<Output = Result<T, Error>>>(
    patience: Duration,
    mut attempt: impl FnMut() -> F,
) -> Result<T, Error> {
    let began = Instant::now();
    let mut pause = FIRST;
    loop {
        match attempt().await {
            Err(error) if may_pass(&error) && began.elapsed() + pause < patience => {}
            done => return done,
        }
        tokio::time::sleep(jittered(pause)).await;
        pause = (pause * 2).min(LONGEST);
    }
}

/// Whether the same request may succeed later.
fn may_pass(error: &Error) -> bool {
    matches!(error, Error::Generic { .. } | Error::JoinError { .. }) && !is_final(error)
}

/// Whether the server understood the request and refused it. Memory and folders do not change their minds.
fn is_final(error: &Error) -> bool {
    if matches!(error, Error::Generic { store: "InMemory" | "LocalFileSystem", .. }) {
        return true;
    }
    let words = error.to_string();
    ["400 Bad Request", "405 Method", "501 Not Implemented", "411 ", "413 ", "416 "]
        .iter()
        .any(|status| words.contains(&format!("status code: {status}")))
}

/// Between half of the pause and all of it, so that clients that failed together do not come back together.
fn jittered(pause: Duration) -> Duration {
    let share = getrandom::u32().unwrap_or(u32::MAX) as f64 / f64::from(u32::MAX);
    pause.mul_f64(0.5 + share / 2.0)
}
