//! The counters of scrub on each device, with the kernel's names (`btrfs_scrub_progress`).

/// The counters of one device. Errors are counted in sectors.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counters {
    /// Units of 64 KiB in which data extents were verified.
    pub data_extents: u64,
    /// The same of tree blocks.
    pub tree_extents: u64,
    /// Bytes of data that were verified.
    pub data_bytes: u64,
    /// Bytes of tree blocks that were verified.
    pub tree_bytes: u64,
    /// Sectors that cannot be read.
    pub read_errors: u64,
    /// Data sectors whose checksum is wrong.
    pub csum_errors: u64,
    /// Sectors of tree blocks that are wrong.
    pub verify_errors: u64,
    /// Data sectors that have no checksum.
    pub no_csum: u64,
    /// Superblock copies that are wrong.
    pub super_errors: u64,
    /// Sectors that no copy is good of.
    pub uncorrectable: u64,
    /// Sectors that were repaired, or could have been.
    pub corrected: u64,
    /// The end of the last unit that was verified.
    pub last_physical: u64,
    /// Bytes of parity that could not be compared, because data of the row is lost. Ours.
    pub unchecked_parity: u64,
    /// Sectors of parity that did not fit the data. Ours: the kernel rewrites them without a word.
    pub parity_errors: u64,
}

impl Counters {
    /// The counters by the names that the kernel and btrfs-progs give them, in their order.
    pub fn named(&self) -> [(&'static str, u64); 15] {
        [
            ("data_extents_scrubbed", self.data_extents),
            ("tree_extents_scrubbed", self.tree_extents),
            ("data_bytes_scrubbed", self.data_bytes),
            ("tree_bytes_scrubbed", self.tree_bytes),
            ("read_errors", self.read_errors),
            ("csum_errors", self.csum_errors),
            ("verify_errors", self.verify_errors),
            ("no_csum", self.no_csum),
            ("csum_discards", 0),
            ("super_errors", self.super_errors),
            ("malloc_errors", 0),
            ("uncorrectable_errors", self.uncorrectable),
            ("unverified_errors", 0),
            ("corrected_errors", self.corrected),
            ("last_physical", self.last_physical),
        ]
    }

    /// Sets the counter with this name; false where there is none.
    pub fn set(&mut self, name: &str, value: u64) -> bool {
        let counter = match name {
            "data_extents_scrubbed" => &mut self.data_extents,
            "tree_extents_scrubbed" => &mut self.tree_extents,
            "data_bytes_scrubbed" => &mut self.data_bytes,
            "tree_bytes_scrubbed" => &mut self.tree_bytes,
            "read_errors" => &mut self.read_errors,
            "csum_errors" => &mut self.csum_errors,
            "verify_errors" => &mut self.verify_errors,
            "no_csum" => &mut self.no_csum,
            "super_errors" => &mut self.super_errors,
            "uncorrectable_errors" => &mut self.uncorrectable,
            "corrected_errors" => &mut self.corrected,
            "last_physical" => &mut self.last_physical,
            _ => return false,
        };
        *counter = value;
        true
    }

    /// Adds what was counted later, or on another device.
    pub fn add(&mut self, more: &Counters) {
        let add = |to: &mut u64, value: u64| *to = to.saturating_add(value);
        add(&mut self.data_extents, more.data_extents);
        add(&mut self.tree_extents, more.tree_extents);
        add(&mut self.data_bytes, more.data_bytes);
        add(&mut self.tree_bytes, more.tree_bytes);
        add(&mut self.read_errors, more.read_errors);
        add(&mut self.csum_errors, more.csum_errors);
        add(&mut self.verify_errors, more.verify_errors);
        add(&mut self.no_csum, more.no_csum);
        add(&mut self.super_errors, more.super_errors);
        add(&mut self.uncorrectable, more.uncorrectable);
        add(&mut self.corrected, more.corrected);
        add(&mut self.unchecked_parity, more.unchecked_parity);
        add(&mut self.parity_errors, more.parity_errors);
        self.last_physical = self.last_physical.max(more.last_physical);
    }

    /// Bytes that were verified.
    pub fn bytes(&self) -> u64 {
        self.data_bytes.saturating_add(self.tree_bytes)
    }

    /// Errors of all kinds.
    pub fn errors(&self) -> u64 {
        let all = [self.read_errors, self.csum_errors, self.verify_errors, self.super_errors];
        all.into_iter().fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_that_is_kept_can_be_set() {
        let mut counters = Counters::default();
        for (index, (name, _)) in Counters::default().named().into_iter().enumerate() {
            let is_kept = !["csum_discards", "malloc_errors", "unverified_errors"].contains(&name);
            assert_eq!(counters.set(name, index as u64 + 1), is_kept, "{name}");
        }
        for (index, (name, value)) in counters.named().into_iter().enumerate() {
            assert!(value == index as u64 + 1 || value == 0, "{name}");
        }
        assert_eq!(counters.errors(), 5 + 6 + 7 + 10);
    }
}
