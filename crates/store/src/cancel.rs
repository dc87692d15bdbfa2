//! Calls that end when nobody wants their answers any more.

use std::sync::Arc;
use tokio::sync::watch;

/// Ends the calls of [`Store::until`](crate::Store::until), those that have begun and those that begin later.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<watch::Sender<bool>>);

impl Cancel {
    /// Ends the calls.
    pub fn cancel(&self) {
        self.0.send_replace(true);
    }

    /// Returns when the calls are to end.
    pub(crate) async fn cancelled(&self) {
        // The sender lives as long as this does.
        let _ = self.0.subscribe().wait_for(|is_cancelled| *is_cancelled).await;
    }
}
