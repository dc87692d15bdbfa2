//! Tree blocks of which every copy is damaged, each at another place: put together from what is good in each.
//!
//! Invariants: (1) only a block counts that fits its checksum and says that it belongs there; (2) so few pieces differ
//! that no mixture fits the checksum by chance.

use crate::action::{Action, Pass};
use crate::store::Store;
use crate::trouble::Result;
use butterfs_check::Finding;
use butterfs_ondisk::Logical;
use butterfs_ondisk::header::Header;
use std::collections::BTreeSet;
use std::ops::Range;
use zerocopy::FromBytes;

/// Ranges in which two copies may differ: each mixture of them is tried.
const MOST_RANGES: usize = 8;
/// Equal bytes between two differences that are one range with them.
const NEAR: usize = 64;

/// One copy, and the bytes of it that can be read.
struct Copy {
    bytes: Vec<u8>,
    readable: Vec<bool>,
}

/// Writes blocks that can be put together over their damaged copies.
pub(crate) fn restore(store: &Store, findings: &[Finding]) -> Result<Vec<Action>> {
    let bad = |finding: &Finding| match finding {
        Finding::BlockBad { at, .. } => Some(*at),
        _ => None,
    };
    let mut actions = Vec::new();
    // Of rows with parity the elements are rebuilt.
    let blocks: BTreeSet<Logical> = findings.iter().filter_map(bad).collect();
    for at in blocks.into_iter().filter(|at| store.volume.row_of(*at).is_none()) {
        let Some(bytes) = assemble(store, at) else { continue };
        store.volume.write(at, &bytes)?;
        let what = format!("puts block {at} together from its copies, each of which is damaged at another place");
        actions.push(Action { pass: Pass::Copies, what, lost: None });
    }
    Ok(actions)
}

fn assemble(store: &Store, at: Logical) -> Option<Vec<u8>> {
    let copies: Vec<Copy> = (0..store.volume.copies(at)).map(|copy| read(store, at, copy)).collect();
    let is_whole = |copy: &&Copy| copy.readable.iter().all(|readable| *readable) && is_good(store, at, &copy.bytes);
    if copies.iter().any(|copy| is_whole(&copy)) {
        return None;
    }
    let pairs =
        copies.iter().enumerate().flat_map(|(index, one)| copies[index + 1..].iter().map(move |two| (one, two)));
    pairs
        .into_iter()
        .find_map(|(one, two)| mixture(one, two, store.sectorsize() as usize, &|bytes| is_good(store, at, bytes)))
}

fn read(store: &Store, at: Logical, copy: usize) -> Copy {
    let (mut bytes, sector) = (vec![0; store.nodesize() as usize], store.sectorsize() as usize);
    let mut readable = Vec::new();
    for (index, part) in bytes.chunks_mut(sector).enumerate() {
        let from = Logical(at.get() + (index * sector) as u64);
        readable.push(store.volume.read_copy(from, copy, part).is_ok());
    }
    Copy { bytes, readable }
}

fn is_good(store: &Store, at: Logical, bytes: &[u8]) -> bool {
    Header::read_from_prefix(bytes).is_ok_and(|(header, _)| {
        header.bytenr.get() == at.get()
            && header.fsid == store.identity.fsid
            && header.generation.get() < store.generation.get()
            && store.identity.checksum.matches(&bytes[32..], &header.csum)
    })
}

/// A mixture of two copies that `is_good`.
fn mixture(one: &Copy, two: &Copy, sector: usize, is_good: &dyn Fn(&[u8]) -> bool) -> Option<Vec<u8>> {
    let (mut bytes, mut differing) = (one.bytes.clone(), Vec::new());
    for (index, readable) in one.readable.iter().zip(&two.readable).enumerate() {
        let range = index * sector..((index + 1) * sector).min(bytes.len());
        match readable {
            (true, true) => {
                let places: Vec<usize> = range.filter(|at| one.bytes[*at] != two.bytes[*at]).collect();
                differing.extend(ranges(&places));
            }
            (true, false) => {}
            (false, true) => bytes[range.clone()].copy_from_slice(&two.bytes[range]),
            (false, false) => return None,
        }
    }
    if differing.len() > MOST_RANGES {
        return None;
    }
    (0..1u32 << differing.len()).find_map(|choice| {
        let mut bytes = bytes.clone();
        for (number, range) in differing.iter().enumerate() {
            let source = if choice >> number & 1 == 0 { one } else { two };
            bytes[range.clone()].copy_from_slice(&source.bytes[range.clone()]);
        }
        is_good(&bytes).then_some(bytes)
    })
}

/// The ranges of these places, ascending; those that are near each other are one.
fn ranges(places: &[usize]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for &at in places {
        match ranges.last_mut() {
            Some(last) if at - last.end < NEAR => last.end = at + 1,
            _ => ranges.push(at..at + 1),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_damaged_copies_make_a_good_one() {
        let good: Vec<u8> = (0..4096u32).map(|at| ((at * at) >> 3) as u8).collect();
        let copy = |damage: &[(usize, usize)], unreadable: &[usize]| {
            let mut bytes = good.clone();
            damage.iter().flat_map(|(from, to)| *from..*to).for_each(|at| bytes[at] ^= 0x5a);
            let readable = (0..4).map(|sector| !unreadable.contains(&sector)).collect();
            Copy { bytes, readable }
        };
        let found = |one: &Copy, two: &Copy| mixture(one, two, 1024, &|bytes| bytes == good);
        assert!(found(&copy(&[(10, 20), (3000, 3001)], &[]), &copy(&[(200, 900)], &[])).is_some());
        assert!(found(&copy(&[(0, 1024), (3500, 3501)], &[0]), &copy(&[(1500, 1600)], &[2])).is_some());
        assert!(found(&copy(&[(10, 20)], &[]), &copy(&[(15, 30)], &[])).is_none(), "the same byte is bad in both");
        assert!(found(&copy(&[], &[1]), &copy(&[], &[1])).is_none(), "no copy of a sector can be read");
        let many: Vec<(usize, usize)> = (0..9).map(|number| (number * 200, number * 200 + 1)).collect();
        assert!(found(&copy(&many, &[]), &copy(&[(4000, 4001)], &[])).is_none(), "too many mixtures");
    }
}
