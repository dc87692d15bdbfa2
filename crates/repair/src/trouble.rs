//! Why a repair cannot go on.

use butterfs_tree::Corrupt;
use butterfs_volume::VolumeError;
use std::fmt;

/// A sentence without full stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble(pub(crate) String);

pub(crate) type Result<T> = std::result::Result<T, Trouble>;

impl Trouble {
    pub(crate) fn new(sentence: impl Into<String>) -> Trouble {
        Trouble(sentence.into())
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Trouble {}

impl From<Corrupt> for Trouble {
    fn from(corrupt: Corrupt) -> Trouble {
        Trouble(corrupt.to_string())
    }
}

impl From<VolumeError> for Trouble {
    fn from(error: VolumeError) -> Trouble {
        Trouble(error.hint().map_or_else(|| error.to_string(), |hint| format!("{error}; {hint}")))
    }
}

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Trouble {
        Trouble(error.to_string())
    }
}
