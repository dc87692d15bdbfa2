//! The block group profiles as one table: how a chunk of each kind is laid over devices, and what it survives.
//!
//! Numbers only; mapping addresses and choosing devices are the business of `volume` and of the allocator.

use crate::items::block_group_flags as bits;

/// One row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Profile {
    /// The name that btrfs-progs prints.
    pub name: &'static str,
    /// The profile's bit in [`block_group_flags`](crate::items::block_group_flags); 0 for single.
    pub bit: u64,
    /// Fewest devices that a new chunk needs.
    pub min_devices: usize,
    /// Most devices that one chunk uses; `None`: as many as there are stripes in a chunk item.
    pub max_devices: Option<usize>,
    /// A chunk's device count is a multiple of this.
    pub device_multiple: usize,
    /// Stripes that a chunk has on each of its devices.
    pub stripes_per_device: usize,
    /// Copies of every byte.
    pub copies: usize,
    /// Stripes of each full stripe that hold parity.
    pub parity: usize,
    /// `sub_stripes` of the chunk item: neighbouring stripes that mirror each other.
    pub sub_stripes: u16,
    /// Devices that may be lost.
    pub tolerated_failures: usize,
}

const fn row(
    name: &'static str,
    bit: u64,
    (min_devices, max_devices, device_multiple): (usize, Option<usize>, usize),
    (stripes_per_device, copies, parity): (usize, usize, usize),
    sub_stripes: u16,
    tolerated_failures: usize,
) -> Profile {
    Profile {
        name,
        bit,
        min_devices,
        max_devices,
        device_multiple,
        stripes_per_device,
        copies,
        parity,
        sub_stripes,
        tolerated_failures,
    }
}

/// Every profile.
pub static PROFILES: [Profile; 9] = [
    //   name      bit            min, max, multiple    per device, copies, parity   sub  survives
    row("single", 0, (1, Some(1), 1), (1, 1, 0), 1, 0),
    row("RAID0", bits::RAID0, (1, None, 1), (1, 1, 0), 1, 0),
    row("RAID1", bits::RAID1, (2, Some(2), 2), (1, 2, 0), 1, 1),
    row("DUP", bits::DUP, (1, Some(1), 1), (2, 2, 0), 1, 0),
    row("RAID10", bits::RAID10, (2, None, 2), (1, 2, 0), 2, 1),
    row("RAID5", bits::RAID5, (2, None, 1), (1, 1, 1), 1, 1),
    row("RAID6", bits::RAID6, (3, None, 1), (1, 1, 2), 1, 2),
    row("RAID1C3", bits::RAID1C3, (3, Some(3), 3), (1, 3, 0), 1, 2),
    row("RAID1C4", bits::RAID1C4, (4, Some(4), 4), (1, 4, 0), 1, 3),
];

impl Profile {
    /// The profile of a chunk or block group with `flags`; `None` when more than one profile bit is set.
    pub fn of(flags: u64) -> Option<&'static Profile> {
        let bit = flags & bits::PROFILE_MASK;
        PROFILES.iter().find(|profile| profile.bit == bit)
    }

    /// The profile with this name, whatever its case.
    pub fn named(name: &str) -> Option<&'static Profile> {
        PROFILES.iter().find(|profile| profile.name.eq_ignore_ascii_case(name))
    }

    /// Stripes' worth of distinct data in a chunk of `num_stripes`; at least 1, so that it can divide.
    pub fn data_stripes(&self, num_stripes: usize) -> usize {
        (num_stripes.saturating_sub(self.parity) / self.copies).max(1)
    }

    /// Bytes of each device extent of a chunk with `length` logical bytes.
    pub fn stripe_length(&self, length: u64, num_stripes: usize) -> u64 {
        length / self.data_stripes(num_stripes) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookup_by_flags_finds_each_row_and_no_mixture() {
        for profile in &PROFILES {
            assert_eq!(Profile::of(profile.bit | bits::DATA), Some(profile));
            assert_eq!(Profile::named(&profile.name.to_lowercase()), Some(profile));
        }
        assert_eq!(Profile::of(bits::RAID1 | bits::DUP), None);
        assert_eq!(Profile::named("raid7"), None);
    }

    #[test]
    fn stripe_length_divides_by_data_stripes() {
        let cases =
            [("single", 1, 1), ("DUP", 2, 1), ("RAID0", 3, 3), ("RAID10", 6, 3), ("RAID5", 4, 3), ("RAID6", 4, 2)];
        for (name, stripes, data) in cases {
            let profile = Profile::named(name).unwrap();
            assert_eq!(profile.data_stripes(stripes), data, "{name}");
            assert_eq!(profile.stripe_length(data as u64 * 65536, stripes), 65536, "{name}");
        }
    }
}
