//! Block groups for tests of this module.

use super::{GroupInfo, Space};
use butterfs_ondisk::Logical;

/// Bytes of each group.
pub const GROUP: u64 = 16 << 20;

/// Groups with these flags, one after the other, all new.
pub fn space(flags: &[u64]) -> Space {
    let space = Space::new(16384);
    for (number, &flags) in flags.iter().enumerate() {
        let start = Logical(number as u64 * GROUP);
        space.add_group(GroupInfo { start, length: GROUP, flags, used: 0 }, &[], true);
    }
    space
}
