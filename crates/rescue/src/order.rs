//! The order of the stripes of chunks that have data: its checksums say which device has which sector.
//!
//! Invariant: a sector counts only where as many device extents hold bytes that fit its checksum as the profile has
//! copies, so that equal contents prove nothing.

use crate::chunks::ordered;
use crate::roots::Roots;
use crate::tree::Tree;
use crate::wreck::Wreck;
use butterfs_ondisk::chunk::Chunk;
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::{Key, KeyType, Logical, Physical};
use butterfs_volume::Layout;
use std::ops::ControlFlow;

/// Sectors that are looked at for one chunk.
const MOST_SECTORS: usize = 65_536;

/// The chunk with its stripes in the order that the checksums of its data prove.
pub(crate) fn proven(wreck: &Wreck, chunk: Chunk) -> Option<Chunk> {
    let checksums = Roots::assemble(wreck).checksums()?;
    let (sector, width) = (wreck.sectorsize(), wreck.checksum().len());
    let reach = wreck.nodesize() as u64 / width as u64 * sector;
    let key = |at| Key::new(objectid::EXTENT_CSUM, KeyType::EXTENT_CSUM, at);
    let (first, last) = (key(chunk.start.0.saturating_sub(reach)), key(chunk.end().0 - 1));
    let mut places: Vec<Option<usize>> = vec![None; chunk.stripes.len()];
    let (mut looked_at, mut is_contradicted) = (0, false);
    Tree::new(wreck, checksums).scan(first, last, &mut |key, data, _| {
        for (index, sum) in data.chunks_exact(width).enumerate() {
            let at = Logical(key.offset.saturating_add(index as u64 * sector));
            if chunk.start <= at && at < chunk.end() {
                looked_at += 1;
                is_contradicted |= place(wreck, &chunk, at, sum, &mut places).is_none();
            }
            let is_done = places.iter().filter(|place| place.is_none()).count() <= 1;
            if is_done || is_contradicted || looked_at >= MOST_SECTORS {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    });
    if is_contradicted { None } else { ordered(chunk, places) }
}

/// Notes what a sector proves; `None` where that contradicts what another one has proved.
fn place(wreck: &Wreck, chunk: &Chunk, at: Logical, sum: &[u8], places: &mut [Option<usize>]) -> Option<()> {
    let layout = Layout::of(chunk).ok()?;
    let piece = layout.pieces(at, 1).next()?;
    let stripes: Vec<usize> =
        (0..layout.mirrors()).map(|mirror| layout.stripe_address(&piece, mirror).stripe).collect();
    if stripes.iter().all(|stripe| places[*stripe].is_some()) {
        return Some(());
    }
    let mut bytes = vec![0; wreck.sectorsize() as usize];
    let mut holds = |extent: &usize| {
        let stripe = &chunk.stripes[*extent];
        let physical = Physical(stripe.physical.0.saturating_add(piece.depth));
        wreck.volume().read_device(stripe.device, physical, &mut bytes).is_ok() && wreck.checksum().matches(&bytes, sum)
    };
    let found: Vec<usize> = (0..chunk.stripes.len()).filter(&mut holds).collect();
    if found.len() != stripes.len() {
        return Some(());
    }
    for extent in found {
        if stripes.iter().any(|stripe| places[*stripe] == Some(extent)) {
            continue;
        }
        // An extent has one place only.
        let free = stripes.iter().find(|stripe| places[**stripe].is_none()).filter(|_| !places.contains(&Some(extent)));
        places[*free?] = Some(extent);
    }
    Some(())
}
