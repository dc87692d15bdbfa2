//! Attempts: a request that may fail now and succeed later, again and again with growing pauses.
//!
//! The client retries single requests that failed before an answer; here are whole calls, with bodies that end early.

use object_store::Error;
use std::future::Future;
use std::time::{Duration, Instant};

/// The first pause.
const FIRST: Duration = Duration::from_millis(50);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(10);

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
