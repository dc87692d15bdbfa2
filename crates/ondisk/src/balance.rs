//! The flags of a balance's description, and which chunks it takes.
//!
//! Percentages are of a chunk's length, in integers; ranges are half open, but those of stripes and limits.

use crate::chunk::Chunk;
use crate::items::{BalanceArgs, BalanceItem, block_group_flags as bits};
use crate::profile::Profile;

/// Flags of a [`BalanceItem`].
pub mod balance_flags {
    /// Data chunks.
    pub const DATA: u64 = 1;
    /// System chunks.
    pub const SYSTEM: u64 = 2;
    /// Metadata chunks.
    pub const METADATA: u64 = 4;
    /// Redundancy may be reduced.
    pub const FORCE: u64 = 8;
    /// It was interrupted and goes on.
    pub const RESUME: u64 = 16;
    /// All types.
    pub const TYPES: u64 = DATA | SYSTEM | METADATA;
}

/// Flags of [`BalanceArgs`].
pub mod args_flags {
    /// `profiles=`.
    pub const PROFILES: u64 = 0x1;
    /// `usage=N`.
    pub const USAGE: u64 = 0x2;
    /// `devid=`.
    pub const DEVID: u64 = 0x4;
    /// `drange=`.
    pub const DRANGE: u64 = 0x8;
    /// `vrange=`.
    pub const VRANGE: u64 = 0x10;
    /// `limit=N`.
    pub const LIMIT: u64 = 0x20;
    /// `limit=A..B`.
    pub const LIMIT_RANGE: u64 = 0x40;
    /// `stripes=`.
    pub const STRIPES_RANGE: u64 = 0x80;
    /// `convert=`.
    pub const CONVERT: u64 = 0x100;
    /// `soft`.
    pub const SOFT: u64 = 0x200;
    /// `usage=A..B`.
    pub const USAGE_RANGE: u64 = 0x400;
    /// All that are known.
    pub const KNOWN: u64 = 0x7ff;
}

/// The bit that stands for single, which has none in a chunk's flags.
pub const SINGLE: u64 = 1 << 48;

/// The profile bits of a chunk, with one for single.
pub const fn extended_profile(flags: u64) -> u64 {
    match flags & bits::PROFILE_MASK {
        0 => SINGLE,
        profile => profile,
    }
}

impl BalanceArgs {
    /// Whether a filter is used.
    pub fn has(&self, flag: u64) -> bool {
        self.flags.get() & flag != 0
    }

    /// The number of `usage=N`.
    pub fn usage(&self) -> u64 {
        u64::from(self.usage_min.get()) | u64::from(self.usage_max.get()) << 32
    }

    /// Sets it.
    pub fn set_usage(&mut self, percent: u64) {
        self.usage_min = (percent as u32).into();
        self.usage_max = ((percent >> 32) as u32).into();
    }

    /// The number of `limit=N`.
    pub fn limit(&self) -> u64 {
        u64::from(self.limit_min.get()) | u64::from(self.limit_max.get()) << 32
    }

    /// Sets it.
    pub fn set_limit(&mut self, limit: u64) {
        self.limit_min = (limit as u32).into();
        self.limit_max = ((limit >> 32) as u32).into();
    }

    /// The profile to convert to; none where nothing is converted, or to something that is no single profile.
    pub fn target_profile(&self) -> Option<&'static Profile> {
        if !self.has(args_flags::CONVERT) {
            return None;
        }
        match self.target.get() {
            SINGLE => Profile::of(0),
            target if target & !bits::PROFILE_MASK == 0 && target.count_ones() == 1 => Profile::of(target),
            _ => None,
        }
    }

    /// Most chunks that are taken, and fewest for which it is done at all.
    pub fn limits(&self) -> (u64, u64) {
        if self.has(args_flags::LIMIT) {
            (self.limit(), 0)
        } else if self.has(args_flags::LIMIT_RANGE) {
            (self.limit_max.get().into(), self.limit_min.get().into())
        } else {
            (u64::MAX, 0)
        }
    }

    /// Whether all filters but the limit let a chunk pass, of which `used` bytes are in use.
    pub fn takes(&self, chunk: &Chunk, used: u64) -> bool {
        let profile = extended_profile(chunk.kind);
        let converted = self.target.get() == profile;
        (!self.has(args_flags::PROFILES) || self.profiles.get() & profile != 0)
            && self.takes_usage(chunk.length, used)
            && self.takes_device(chunk)
            && (!self.has(args_flags::VRANGE)
                || chunk.start.0 < self.vend.get() && chunk.start.0 + chunk.length > self.vstart.get())
            && (!self.has(args_flags::STRIPES_RANGE) || {
                let stripes = chunk.stripes.len() as u64;
                (u64::from(self.stripes_min.get())..=u64::from(self.stripes_max.get())).contains(&stripes)
            })
            && !(self.has(args_flags::SOFT) && self.has(args_flags::CONVERT) && converted)
    }

    fn takes_usage(&self, length: u64, used: u64) -> bool {
        let percent = |percent: u64| (u128::from(length) * u128::from(percent.min(100)) / 100) as u64;
        if self.has(args_flags::USAGE) {
            match self.usage() {
                0 => used == 0,
                most => used < percent(most),
            }
        } else if self.has(args_flags::USAGE_RANGE) {
            let least = percent(self.usage_min.get().into());
            match u64::from(self.usage_max.get()) {
                0 => used == 0,
                most => (least..percent(most)).contains(&used),
            }
        } else {
            true
        }
    }

    fn takes_device(&self, chunk: &Chunk) -> bool {
        if !self.has(args_flags::DEVID) {
            return true;
        }
        let len = chunk.stripe_length();
        chunk.stripes.iter().any(|stripe| {
            stripe.device.0 == self.devid.get()
                && (!self.has(args_flags::DRANGE)
                    || stripe.physical.0 < self.pend.get() && stripe.physical.0 + len > self.pstart.get())
        })
    }
}

impl BalanceItem {
    /// The filters for chunks with these type bits; none where the type is not balanced.
    pub fn args_of(&self, kind: u64) -> Option<&BalanceArgs> {
        let chosen = [
            (bits::DATA, balance_flags::DATA, &self.data),
            (bits::SYSTEM, balance_flags::SYSTEM, &self.system),
            (bits::METADATA, balance_flags::METADATA, &self.metadata),
        ];
        let flags = self.flags.get();
        let taken = chosen.iter().any(|(kind_bit, flag, _)| kind & kind_bit != 0 && flags & flag != 0);
        chosen.into_iter().find(|(kind_bit, ..)| kind & kind_bit != 0).filter(|_| taken).map(|(.., args)| args)
    }

    /// From its bytes on disk.
    pub fn from_bytes(bytes: &[u8]) -> Option<BalanceItem> {
        zerocopy::FromBytes::read_from_bytes(bytes).ok()
    }

    /// Its bytes on disk.
    pub fn to_bytes(&self) -> Vec<u8> {
        zerocopy::IntoBytes::as_bytes(self).to_vec()
    }

    /// The same for who goes on after an interruption: finished work is not repeated.
    pub fn resumed(mut self) -> BalanceItem {
        const USAGE: u64 = 90;
        self.flags |= balance_flags::RESUME;
        for args in [&mut self.data, &mut self.metadata, &mut self.system] {
            if args.has(args_flags::CONVERT) {
                args.flags |= args_flags::SOFT;
            } else if !args.has(args_flags::USAGE | args_flags::USAGE_RANGE) {
                args.flags |= args_flags::USAGE;
                args.set_usage(USAGE);
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::ChunkStripe;
    use crate::{DeviceId, Logical, Physical};

    const MIB: u64 = 1 << 20;

    fn chunk(kind: u64, stripes: u64) -> Chunk {
        let stripe = |n| ChunkStripe { device: DeviceId(n), physical: Physical(100 * MIB * n), dev_uuid: [0; 16] };
        Chunk::new(Logical(1000 * MIB), 64 * MIB, kind, 4096, (1..=stripes).map(stripe).collect())
    }

    fn args(flags: u64, set: impl FnOnce(&mut BalanceArgs)) -> BalanceArgs {
        let mut args = BalanceArgs { flags: flags.into(), ..BalanceArgs::default() };
        set(&mut args);
        args
    }

    #[test]
    fn usage_is_below_and_zero_is_empty() {
        let data = chunk(bits::DATA, 1);
        let usage = |n| args(args_flags::USAGE, |args| args.set_usage(n));
        assert!(usage(0).takes(&data, 0) && !usage(0).takes(&data, 4096));
        assert!(usage(50).takes(&data, 32 * MIB - 1) && !usage(50).takes(&data, 32 * MIB));
        assert!(!usage(100).takes(&data, 64 * MIB) && !usage(1000).takes(&data, 64 * MIB));
        let range = |a: u32, b: u32| {
            args(args_flags::USAGE_RANGE, |args| (args.usage_min, args.usage_max) = (a.into(), b.into()))
        };
        assert!(range(10, 50).takes(&data, 16 * MIB) && !range(50, 60).takes(&data, 16 * MIB));
        assert!(range(0, 0).takes(&data, 0) && !range(0, 0).takes(&data, 1));
    }

    #[test]
    fn profiles_devices_ranges_and_stripes() {
        let (single, mirrored) = (chunk(bits::DATA, 1), chunk(bits::DATA | bits::RAID1, 2));
        let profiles = args(args_flags::PROFILES, |args| args.profiles = (SINGLE | bits::DUP).into());
        assert!(profiles.takes(&single, 0) && !profiles.takes(&mirrored, 0));
        let device = |flags, start: u64, end: u64| {
            args(args_flags::DEVID | flags, |args| {
                (args.devid, args.pstart, args.pend) = (2.into(), (start * MIB).into(), (end * MIB).into());
            })
        };
        assert!(device(0, 0, 0).takes(&mirrored, 0) && !device(0, 0, 0).takes(&single, 0));
        assert!(device(args_flags::DRANGE, 263, 300).takes(&mirrored, 0));
        assert!(!device(args_flags::DRANGE, 264, 300).takes(&mirrored, 0));
        assert!(!device(args_flags::DRANGE, 0, 200).takes(&mirrored, 0));
        let range = |start: u64, end: u64| {
            args(args_flags::VRANGE, |args| (args.vstart, args.vend) = ((start * MIB).into(), (end * MIB).into()))
        };
        assert!(range(0, 1001).takes(&single, 0) && range(1063, 2000).takes(&single, 0));
        assert!(!range(0, 1000).takes(&single, 0) && !range(1064, 2000).takes(&single, 0));
        let stripes =
            args(args_flags::STRIPES_RANGE, |args| (args.stripes_min, args.stripes_max) = (2.into(), 3.into()));
        assert!(stripes.takes(&mirrored, 0) && !stripes.takes(&single, 0));
    }

    #[test]
    fn soft_skips_what_is_converted_and_resuming_is_soft() {
        let convert = args(args_flags::CONVERT, |args| args.target = bits::RAID1.into());
        let item = BalanceItem { flags: 3.into(), data: convert, ..BalanceItem::default() };
        let mirrored = chunk(bits::DATA | bits::RAID1, 2);
        assert!(item.data.takes(&mirrored, 0));
        let resumed = item.resumed();
        assert!(!resumed.data.takes(&mirrored, 0) && resumed.data.takes(&chunk(bits::DATA, 1), 0));
        assert_eq!((resumed.flags.get(), resumed.metadata.usage(), resumed.system.flags.get()), (0x13, 90, 2));
        assert!(item.args_of(bits::METADATA).is_none() && item.args_of(bits::SYSTEM).is_some());
        assert_eq!(convert.target_profile().map(|profile| profile.name), Some("RAID1"));
    }
}
