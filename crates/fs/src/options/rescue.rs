//! The parts that may be missing from a filesystem that does not open otherwise (`rescue=…`, `usebackuproot`), and
//! which of its last commits is shown (`at=…`). Only for reading.

use butterfs_ondisk::Logical;

/// Which commit is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Commit {
    /// The last one.
    #[default]
    Last,
    /// The last one whose root tree can be read, of those that the superblock remembers (`usebackuproot`).
    LastReadable,
    /// The one in this slot of the superblock's backup roots (`at=backup0` to `at=backup3`).
    Slot(usize),
    /// The one with this generation, if the superblock remembers it (`at=GENERATION`).
    Generation(u64),
    /// The newest one that the superblock remembers of which no subvolume was changed after this moment, in seconds
    /// since 1970 (`at=TIME`).
    Moment(i64),
    /// The one whose root tree begins here; or the one that has this root of a subvolume, which is shown (`at=@BYTENR`,
    /// as `rescue scan` lists them).
    Root(Logical),
}

/// The parts that are ignored or may be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Rescue {
    /// Which commit is shown.
    pub commit: Commit,
    /// Trees that are not needed for reading files may be unreadable (`ignorebadroots`).
    pub ignore_bad_roots: bool,
    /// Data is not compared with its checksums (`ignoredatacsums`).
    pub ignore_data_checksums: bool,
    /// Tree blocks are not compared with theirs; all other rules hold (`ignoremetacsums`).
    pub ignore_metadata_checksums: bool,
    /// Flags of the superblock that are not known, or say that a conversion is half done, do not count
    /// (`ignoresuperflags`).
    pub ignore_superblock_flags: bool,
}

impl Rescue {
    /// Everything but another commit (`rescue=all`).
    pub const ALL: Rescue = Rescue {
        commit: Commit::Last,
        ignore_bad_roots: true,
        ignore_data_checksums: true,
        ignore_metadata_checksums: true,
        ignore_superblock_flags: true,
    };

    /// Applies one word of `rescue=`; `None`: it is not one of these.
    pub fn apply(&mut self, word: &str) -> Option<()> {
        match word {
            "usebackuproot" => self.commit = Commit::LastReadable,
            "ignorebadroots" | "ibadroots" => self.ignore_bad_roots = true,
            "ignoredatacsums" | "idatacsums" => self.ignore_data_checksums = true,
            "ignoremetacsums" | "imetacsums" => self.ignore_metadata_checksums = true,
            "ignoresuperflags" | "isuperflags" => self.ignore_superblock_flags = true,
            "all" => *self = Rescue { commit: self.commit, ..Rescue::ALL },
            _ => return None,
        }
        Some(())
    }

    /// The value of `at=`; the error is the end of a sentence.
    pub fn parse_commit(value: &str) -> Result<Commit, String> {
        let slot = value.strip_prefix("backup").and_then(|slot| slot.parse().ok());
        let root = value.strip_prefix('@').and_then(|at| at.parse().ok());
        let moment = value.parse().ok().map(jiff::Timestamp::as_second);
        match (slot, root, value.parse(), moment) {
            (Some(slot @ 0..=3), ..) => Ok(Commit::Slot(slot)),
            (_, Some(at), ..) => Ok(Commit::Root(Logical(at))),
            (_, _, Ok(generation), _) => Ok(Commit::Generation(generation)),
            (.., Some(moment)) => Ok(Commit::Moment(moment)),
            _ => {
                Err("it takes a generation, backup0 to backup3 (see 'inspect-internal dump-super -f'), a time such as \
                      2026-11-27T10:00:00Z, or @ with the address of a root (see 'rescue scan')"
                    .to_owned())
            }
        }
    }

    /// Whether anything is asked for.
    pub fn is_any(&self) -> bool {
        *self != Rescue::default()
    }

    /// The options that ask for it, as the kernel shows them.
    pub fn shown(&self) -> Vec<String> {
        let words = [
            (self.ignore_bad_roots, "ignorebadroots"),
            (self.ignore_data_checksums, "ignoredatacsums"),
            (self.ignore_metadata_checksums, "ignoremetacsums"),
            (self.ignore_superblock_flags, "ignoresuperflags"),
            (self.commit == Commit::LastReadable, "usebackuproot"),
        ];
        let words: Vec<&str> = words.into_iter().filter(|(on, _)| *on).map(|(_, word)| word).collect();
        let rescue = (!words.is_empty()).then(|| format!("rescue={}", words.join(":")));
        let at = match self.commit {
            Commit::Last | Commit::LastReadable => None,
            Commit::Slot(slot) => Some(format!("at=backup{slot}")),
            Commit::Generation(generation) => Some(format!("at={generation}")),
            Commit::Moment(seconds) => {
                let time = jiff::Timestamp::from_second(seconds).map(|time| time.to_string());
                Some(format!("at={}", time.unwrap_or_else(|_| seconds.to_string())))
            }
            Commit::Root(at) => Some(format!("at=@{at}")),
        };
        rescue.into_iter().chain(at).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_and_shown() {
        let mut rescue = Rescue::default();
        assert!(!rescue.is_any() && rescue.shown().is_empty());
        for word in ["ibadroots", "idatacsums", "usebackuproot"] {
            rescue.apply(word).unwrap();
        }
        assert_eq!(rescue.shown(), ["rescue=ignorebadroots:ignoredatacsums:usebackuproot"]);
        rescue.apply("all").unwrap();
        assert!(rescue.ignore_metadata_checksums && rescue.commit == Commit::LastReadable);
        assert_eq!(rescue.apply("everything"), None);
        assert_eq!(Rescue::parse_commit("backup3"), Ok(Commit::Slot(3)));
        assert_eq!(Rescue::parse_commit("4711"), Ok(Commit::Generation(4711)));
        assert_eq!(Rescue::parse_commit("@30490624"), Ok(Commit::Root(Logical(30_490_624))));
        assert_eq!(Rescue::parse_commit("1970-01-02T01:00:00+01:00"), Ok(Commit::Moment(86_400)));
        rescue.commit = Commit::Moment(86_400);
        assert_eq!(rescue.shown().last().unwrap(), "at=1970-01-02T00:00:00Z");
        assert!(Rescue::parse_commit("@").is_err() && Rescue::parse_commit("@-1").is_err());
        assert!(Rescue::parse_commit("backup4").is_err() && Rescue::parse_commit("yesterday").is_err());
    }
}
