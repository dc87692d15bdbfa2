//! Many subvolumes: the script of the UUID tree's first measurements, by the library alone and, through mounts and
//! commands, beside the kernel.

mod beside;
mod in_memory;

use crate::Scale;
use crate::table::Table;

/// The number of subvolumes at the time of a measurement.
const SIZES: [usize; 6] = [2, 1_000, 5_000, 27_000, 100_000, 1_000_000];

fn sizes(most: usize) -> impl Iterator<Item = usize> {
    let last = (!SIZES.contains(&most)).then_some(most);
    SIZES.into_iter().filter(move |size| *size <= most).chain(last)
}

/// Through mounts and by commands, beside the kernel.
pub fn by_commands(scale: Scale, table: &mut Table) {
    beside::run(scale, table);
}

/// By the library alone.
pub fn by_library(scale: Scale, table: &mut Table) {
    in_memory::many(scale.library_subvolumes, table);
    in_memory::large(scale.library_files, table);
}
