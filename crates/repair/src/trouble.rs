//! Why a repair cannot go on.

use butterfs_tree::Corrupt;
use butterfs_volume::VolumeError;
use std::fmt;

/// A sentence without full stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    sentence: String,
    /// More room for tree blocks would help.
    pub(crate) wants_room: bool,
}

pub(crate) type Result<T> = std::result::Result<T, Trouble>;

impl Trouble {
    pub(crate) fn new(sentence: impl Into<String>) -> Trouble {
        Trouble { sentence: sentence.into(), wants_room: false }
    }

    /// The chunks of trees are full.
    pub(crate) fn no_room() -> Trouble {
        let sentence = "there is no room for another tree block in the chunks that exist";
        Trouble { wants_room: true, ..Trouble::new(sentence) }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl std::error::Error for Trouble {}

impl From<Corrupt> for Trouble {
    fn from(corrupt: Corrupt) -> Trouble {
        Trouble::new(corrupt.to_string())
    }
}

impl From<VolumeError> for Trouble {
    fn from(error: VolumeError) -> Trouble {
        Trouble::new(error.hint().map_or_else(|| error.to_string(), |hint| format!("{error}; {hint}")))
    }
}

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Trouble {
        Trouble::new(error.to_string())
    }
}
