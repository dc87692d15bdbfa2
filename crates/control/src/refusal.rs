//! Why a question was not answered.

use serde::{Deserialize, Serialize};

/// Refuses with the number that the kernel would answer, and a sentence for the user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The kernel's number for it.
    pub errno: i32,
    /// A sentence.
    pub sentence: String,
}

impl Refusal {
    /// A refusal with a sentence.
    pub fn new(errno: i32, sentence: impl Into<String>) -> Refusal {
        Refusal { errno, sentence: sentence.into() }
    }
}
