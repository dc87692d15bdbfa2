//! Making changes durable: the scripts of the commits that log directories by index alone and extended attributes only
//! when they changed, beside the kernel through a mount; then the savings of these and a third one, by the engine
//! alone.
//!
//! Both mounts commit every 300 s, so that each figure is the fsync's own and leaves out the work of an earlier commit.

mod beside;
mod policies;

use crate::Scale;
use crate::table::Table;

/// How much work is done.
struct Sizes {
    /// Names in the directory.
    names: &'static [u64],
    /// Bytes of each writer's file.
    file_bytes: u64,
    /// Names in the directory of the engine's before and after.
    policy_names: u64,
    /// Writes, each with an fsync, of the engine's before and after.
    policy_writes: u64,
}

impl Sizes {
    fn of(scale: Scale) -> Sizes {
        match scale {
            crate::LEAST => Sizes { names: &[200], file_bytes: 1 << 20, policy_names: 500, policy_writes: 20 },
            crate::SMALL => {
                Sizes { names: &[1_000, 10_000], file_bytes: 16 << 20, policy_names: 10_000, policy_writes: 500 }
            }
            _ => Sizes {
                names: &[1_000, 10_000, 100_000, 1_000_000],
                file_bytes: 256 << 20,
                policy_names: 100_000,
                policy_writes: 2_000,
            },
        }
    }
}

/// Runs everything.
pub fn run(scale: Scale, table: &mut Table) {
    let sizes = Sizes::of(scale);
    beside::run(&sizes, table);
    policies::run(&sizes, table);
}
