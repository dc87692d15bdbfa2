//! How far what was read can be believed: by the blocks that say it.
//!
//! Invariant: a thing without doubts is what the filesystem had, as far as checksums can tell.

/// How far a statement can be believed, best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Trust {
    /// Its block fits its checksum and belongs to the state that is read.
    #[default]
    Proved,
    /// Its block fits its checksum, but may belong to an older state.
    Older,
    /// Its block breaks a rule, that of the checksum or another one.
    Doubtful,
    /// No block says it: it is guessed.
    Guessed,
}

/// The reasons why a thing that is restored may not be what it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Doubts {
    /// How far its name can be believed.
    pub name: Trust,
    /// How far its type, size, owner, mode and times can be believed.
    pub inode: Trust,
    /// How far its extended attributes can be believed.
    pub xattrs: Trust,
    /// How far the items that say where its content lies can be believed; of a link, its target.
    pub content: Trust,
    /// Its entry and its inode, or its inode and its extents, contradict each other.
    pub contradicts: bool,
    /// Some of its items lay in tree blocks that are gone.
    pub is_incomplete: bool,
    /// An extent of it is marked as preallocated, but has checksums: data was written there.
    pub is_preallocation_written: bool,
    /// Some of its extents lost their items, and were found by what the extent tree says.
    pub is_by_back_reference: bool,
    /// Its list of extents is lost, or a part of it: the extents are those that the extent tree has for it.
    pub is_list_lost: bool,
    /// Some of the extents that fill the list overlap, and nothing tells which one is newer.
    pub is_order_unknown: bool,
    /// The extents that fill the list have no checksums: nothing may ever have been written into them.
    pub may_be_unwritten: bool,
}

impl Doubts {
    /// The worst of them.
    pub fn worst(&self) -> Trust {
        let flags = [
            self.contradicts,
            self.is_incomplete,
            self.is_preallocation_written,
            self.is_by_back_reference,
            self.is_list_lost,
            self.is_order_unknown,
            self.may_be_unwritten,
        ];
        let is_odd = flags.contains(&true);
        let odd = if is_odd { Trust::Doubtful } else { Trust::Proved };
        [self.name, self.inode, self.xattrs, self.content, odd].into_iter().max().unwrap_or_default()
    }

    /// Whether there are none.
    pub fn is_none(&self) -> bool {
        self.worst() == Trust::Proved
    }

    /// Where an older state is what is wanted, it is no reason.
    pub fn expecting_older(self) -> Doubts {
        let of = |trust: Trust| if trust == Trust::Older { Trust::Proved } else { trust };
        Doubts {
            name: of(self.name),
            inode: of(self.inode),
            xattrs: of(self.xattrs),
            content: of(self.content),
            ..self
        }
    }

    /// The reasons in words, none where there is no doubt.
    pub fn reasons(&self) -> Vec<String> {
        let parts = [
            (self.name, "its name"),
            (self.inode, "its size, owner, mode and times"),
            (self.xattrs, "its extended attributes"),
            (self.content, "the place of its content"),
        ];
        let mut reasons = Vec::new();
        let kinds = [
            (Trust::Guessed, "guessed, nothing is left that says so"),
            (Trust::Doubtful, "from a damaged tree block"),
            (Trust::Older, "from a tree block of an older state"),
        ];
        for (kind, words) in kinds {
            let of_kind: Vec<&str> = parts.iter().filter(|(trust, _)| *trust == kind).map(|(_, part)| *part).collect();
            if !of_kind.is_empty() {
                let verb =
                    if of_kind == ["its name"] || of_kind == ["the place of its content"] { "is" } else { "are" };
                reasons.push(format!("{} {verb} {words}", of_kind.join(" and ")));
            }
        }
        let flags = [
            (self.contradicts, "what tree blocks say about it contradicts itself"),
            (self.is_incomplete, "tree blocks are lost that may have had more of it"),
            (self.is_preallocation_written, "an extent of it is marked as preallocated, but has checksums of data"),
            (self.is_by_back_reference, "its list of extents has a gap, which the extent tree fills"),
            (
                self.is_list_lost,
                "its list of extents is lost, or a part of it: they are those that the extent tree has, and more may \
                 show than the file had",
            ),
            (self.is_order_unknown, "extents of it overlap, and nothing tells which one is newer"),
            (self.may_be_unwritten, "it has no checksums: some of it may be space that it never wrote"),
        ];
        reasons.extend(flags.iter().filter(|(is_so, _)| *is_so).map(|(_, reason)| (*reason).to_owned()));
        reasons
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_name_the_parts_and_older_states_may_be_wanted() {
        let older = Doubts { inode: Trust::Older, content: Trust::Older, ..Doubts::default() };
        assert!(!older.is_none() && older.expecting_older().is_none() && Doubts::default().reasons().is_empty());
        let said =
            "its size, owner, mode and times and the place of its content are from a tree block of an older state";
        assert_eq!(older.reasons(), [said]);
        let doubtful = Doubts { name: Trust::Doubtful, contradicts: true, ..older };
        assert_eq!((doubtful.worst(), doubtful.reasons().len()), (Trust::Doubtful, 3));
        assert!(!doubtful.expecting_older().is_none());
    }
}
