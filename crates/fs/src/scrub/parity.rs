//! Parity: whether P and Q of a row fit its data, at the depths at which the row has extents.
//!
//! The device that holds P checks the row. Where data is bad, its own device has to repair and count it first; such a
//! row is checked again when all devices are through.

use super::UNIT;
use super::damage::{Cause, Content, Damage, Outcome};
use super::plan::{Holds, ParityRow, Plan, RowPiece, Window};
use super::window::{Order, WindowResult};
use butterfs_ondisk::Logical;
use butterfs_volume::{Confirmed, RowChecked, RowRepair, VolumeError};

impl Order<'_> {
    /// Checks the rows of a window.
    pub(super) fn check_rows(&self, window: &Window, plan: &Plan, result: &mut WindowResult) {
        for row in &plan.rows {
            let own = Window { depths: row.number * UNIT..(row.number + 1) * UNIT, ..window.clone() };
            match self.check_row(row, RowRepair::Count) {
                Ok(found) if found.data + found.lost > 0 && self.is_last => result.counters.unchecked_parity += UNIT,
                Ok(found) if found.data + found.lost > 0 => result.deferred.push(own),
                Ok(found) if found.parity > 0 => self.settle_row(row, &own, found, result),
                Ok(_) => {}
                Err(_) => result.counters.unchecked_parity += UNIT,
            }
        }
    }

    fn settle_row(&self, row: &ParityRow, window: &Window, found: RowChecked, result: &mut WindowResult) {
        let outcome = match self.repairs {
            false => Outcome::Recomputable,
            true => match self.check_row(row, RowRepair::Write) {
                Ok(_) => Outcome::Recomputed,
                Err(error) => Outcome::Lost(error.to_string()),
            },
        };
        result.counters.parity_errors += found.parity / u64::from(self.core.sectorsize());
        result.damages.push(Damage {
            device: self.device,
            device_name: self.core.volume().device_name(self.device),
            physical: window.start(),
            at: Some(row.start),
            len: found.parity,
            content: Content::Parity,
            cause: Cause::Contradiction,
            outcome,
        });
    }

    fn check_row(&self, row: &ParityRow, repair: RowRepair) -> Result<RowChecked, VolumeError> {
        let has_blocks = row.pieces.iter().any(|piece| piece.holds != Holds::Data);
        let unit = u64::from(if has_blocks { self.core.nodesize() } else { self.core.sectorsize() });
        let is_wanted = |inside: u64| row.pieces.iter().any(|piece| touches(row, piece, inside, unit));
        let confirm = |at: Logical, bytes: &[u8]| self.confirm(row, at, bytes);
        self.core.volume().check_parity(row.start, unit as usize, repair, &is_wanted, &confirm)
    }

    fn confirm(&self, row: &ParityRow, at: Logical, bytes: &[u8]) -> Confirmed {
        let index = row.pieces.partition_point(|piece| piece.at.plus(piece.len) <= at);
        let Some(piece) = row.pieces.get(index).filter(|piece| piece.at <= at) else { return Confirmed::Unknown };
        match piece.holds {
            Holds::Data => {
                let sector = u64::from(self.core.sectorsize());
                let stored = piece.sums.as_ref().and_then(|sums| sums.get(((at.0 - piece.at.0) / sector) as usize));
                match stored {
                    Some(stored) if self.core.checksum_kind().matches(bytes, stored) => Confirmed::Yes(0),
                    Some(_) => Confirmed::No,
                    None => Confirmed::Unknown,
                }
            }
            Holds::Block { generation, .. } if piece.at == at && piece.len == bytes.len() as u64 => {
                match self.check_block(at, generation, bytes) {
                    Ok(()) => Confirmed::Yes(generation),
                    Err(_) => Confirmed::No,
                }
            }
            Holds::Block { .. } => Confirmed::Unknown,
        }
    }
}

/// Whether a piece has bytes at a depth of the row's elements.
fn touches(row: &ParityRow, piece: &RowPiece, inside: u64, unit: u64) -> bool {
    let (from, to) = (piece.at.0 - row.start.0, piece.at.0 + piece.len - row.start.0);
    let (first, last) = (from / UNIT, (to - 1) / UNIT);
    (first..=last).any(|column| {
        let (start, end) = (column * UNIT + inside, column * UNIT + inside + unit);
        start < to && from < end
    })
}
