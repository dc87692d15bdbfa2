//! The features that can be chosen when a filesystem is made, as one table, and the `a,^b` lists that choose them.

use butterfs_ondisk::features::{compat_ro, incompat};

/// One row of [`FEATURES`].
#[derive(Debug, PartialEq, Eq)]
pub struct Feature {
    /// Its name in lists, as btrfs-progs has it.
    pub name: &'static str,
    /// Its description.
    pub description: &'static str,
    /// Linux versions: first that knows it, first that can be trusted with it.
    pub since: &'static str,
    /// Bits of `incompat_flags`.
    pub incompat: u64,
    /// Bits of `compat_ro_flags`.
    pub compat_ro: u64,
    /// On unless it is switched off.
    pub default: bool,
}

/// Every feature that can be chosen.
pub static FEATURES: [Feature; 6] = [
    Feature {
        name: "mixed-bg",
        description: "data and metadata share block groups",
        since: "compat=2.6.37, safe=2.6.37",
        incompat: incompat::MIXED_GROUPS,
        compat_ro: 0,
        default: false,
    },
    Feature {
        name: "extref",
        description: "65535 hard links to one file, whatever their names",
        since: "compat=3.7, safe=3.12, default=3.12",
        incompat: incompat::EXTENDED_IREF,
        compat_ro: 0,
        default: true,
    },
    Feature {
        name: "skinny-metadata",
        description: "smaller extent items for tree blocks",
        since: "compat=3.10, safe=3.18, default=3.18",
        incompat: incompat::SKINNY_METADATA,
        compat_ro: 0,
        default: true,
    },
    Feature {
        name: "no-holes",
        description: "holes in files need no items",
        since: "compat=3.14, safe=4.0, default=5.15",
        incompat: incompat::NO_HOLES,
        compat_ro: 0,
        default: true,
    },
    Feature {
        name: "free-space-tree",
        description: "free space kept in a tree (space_cache=v2)",
        since: "compat=4.5, safe=4.9, default=5.15",
        incompat: 0,
        compat_ro: compat_ro::FREE_SPACE_TREE | compat_ro::FREE_SPACE_TREE_VALID,
        default: true,
    },
    Feature {
        name: "block-group-tree",
        description: "block groups in a tree of their own, for fast mounts",
        since: "compat=6.1, default=6.19",
        incompat: 0,
        compat_ro: compat_ro::BLOCK_GROUP_TREE,
        default: true,
    },
];

/// Names that btrfs-progs knows and we cannot make.
const UNSUPPORTED: [&str; 6] = ["quota", "squota", "zoned", "extent-tree-v2", "raid-stripe-tree", "remap-tree"];

/// Names of features that follow from the profiles, and are there when they are needed.
const IMPLIED: [&str; 2] = ["raid56", "raid1c34"];

/// Which features were asked for and which were asked to be off; what was said last counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeatureChoice {
    /// Bit *i* stands for row *i* of [`FEATURES`].
    on: u32,
    off: u32,
}

impl FeatureChoice {
    /// Takes in a list such as `no-holes,^block-group-tree`. The error is a sentence that names the culprit.
    pub fn apply(&mut self, list: &str) -> Result<(), String> {
        list.split(',').map(str::trim).filter(|word| !word.is_empty()).try_for_each(|word| self.apply_one(word))
    }

    fn apply_one(&mut self, word: &str) -> Result<(), String> {
        let (name, wanted) = match word.strip_prefix('^') {
            Some(name) => (name, false),
            None => (word, true),
        };
        match FEATURES.iter().position(|feature| feature.name == name) {
            Some(row) => self.set(row, wanted),
            None if IMPLIED.contains(&name) || UNSUPPORTED.contains(&name) && !wanted => {}
            None if UNSUPPORTED.contains(&name) => return Err(format!("filesystem feature '{name}' is not supported")),
            None => return Err(format!("unrecognized filesystem feature '{name}'")),
        }
        Ok(())
    }

    /// Asks for the feature in `row` to be on or off.
    fn set(&mut self, row: usize, wanted: bool) {
        let bit = 1 << row;
        self.on = if wanted { self.on | bit } else { self.on & !bit };
        self.off = if wanted { self.off & !bit } else { self.off | bit };
    }

    /// Asks for mixed block groups, as the option `-M` does.
    pub fn set_mixed(&mut self) {
        self.set(0, true);
    }

    /// The flags of the superblock, `(incompat, compat_ro)`, without those that follow from other things.
    ///
    /// The block group tree needs the free space tree and no-holes. Where one of those was switched off, it is off too,
    /// unless it was asked for: then the combination is refused.
    pub(super) fn resolve(&self) -> Result<(u64, u64), String> {
        let (mut incompat_flags, mut compat_ro_flags) = (incompat::MIXED_BACKREF, 0);
        for (row, feature) in FEATURES.iter().enumerate() {
            if self.on & 1 << row != 0 || feature.default && self.off & 1 << row == 0 {
                incompat_flags |= feature.incompat;
                compat_ro_flags |= feature.compat_ro;
            }
        }
        let prerequisites =
            incompat_flags & incompat::NO_HOLES != 0 && compat_ro_flags & compat_ro::FREE_SPACE_TREE != 0;
        if compat_ro_flags & compat_ro::BLOCK_GROUP_TREE != 0 && !prerequisites {
            if self.asks_for(compat_ro::BLOCK_GROUP_TREE) {
                return Err("feature 'block-group-tree' needs 'no-holes' and 'free-space-tree'".to_owned());
            }
            compat_ro_flags &= !compat_ro::BLOCK_GROUP_TREE;
        }
        Ok((incompat_flags, compat_ro_flags))
    }

    /// Whether the feature with this `compat_ro` bit was named in a list.
    fn asks_for(&self, compat_ro_bit: u64) -> bool {
        FEATURES.iter().enumerate().any(|(row, feature)| feature.compat_ro == compat_ro_bit && self.on & 1 << row != 0)
    }
}

/// The names of the table's features that are on, in its order, each with whether its bit is a `compat_ro` one.
pub fn names_of(incompat_flags: u64, compat_ro_flags: u64) -> Vec<&'static str> {
    let on = |feature: &&Feature| {
        incompat_flags & feature.incompat == feature.incompat
            && compat_ro_flags & feature.compat_ro == feature.compat_ro
    };
    FEATURES.iter().filter(on).map(|feature| feature.name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(lists: &[&str]) -> Result<String, String> {
        let mut choice = FeatureChoice::default();
        lists.iter().try_for_each(|list| choice.apply(list))?;
        choice.resolve().map(|(incompat_flags, compat_ro_flags)| names_of(incompat_flags, compat_ro_flags).join(" "))
    }

    #[test]
    fn lists_choose_features() {
        let all = "extref skinny-metadata no-holes free-space-tree block-group-tree";
        let table: &[(&[&str], Result<&str, &str>)] = &[
            (&[], Ok(all)),
            (&["no-holes,extref"], Ok(all)),
            (&["^extref", "extref"], Ok(all)),
            (&["^raid56"], Ok(all)),
            (&["mixed-bg,^extref"], Ok("mixed-bg skinny-metadata no-holes free-space-tree block-group-tree")),
            (&["^block-group-tree"], Ok("extref skinny-metadata no-holes free-space-tree")),
            (&["^free-space-tree"], Ok("extref skinny-metadata no-holes")),
            (&["^no-holes"], Ok("extref skinny-metadata free-space-tree")),
            (&["^no-holes,block-group-tree"], Err("feature 'block-group-tree' needs 'no-holes' and 'free-space-tree'")),
            (&["raid56"], Ok(all)),
            (&["zoned"], Err("filesystem feature 'zoned' is not supported")),
            (&["^nosuch"], Err("unrecognized filesystem feature 'nosuch'")),
        ];
        for (lists, expected) in table {
            assert_eq!(resolve(lists), expected.map(str::to_owned).map_err(str::to_owned), "{lists:?}");
        }
    }

    #[test]
    fn mixed_block_groups_are_the_first_row() {
        let mut choice = FeatureChoice::default();
        choice.set_mixed();
        assert_ne!(choice.resolve().unwrap().0 & incompat::MIXED_GROUPS, 0);
    }
}
