//! Told faults of one member.

use super::Devices;
use crate::plan::Plan;
use butterfs_testkit::rng::Rng;

/// Parts of a device that can fail without the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Chunks of data.
    Data,
    /// Tree blocks and all superblocks.
    Metadata,
    /// Primary superblocks alone.
    Superblock,
    /// Everything.
    All,
}

impl Part {
    /// Whether what fails in this part fails in an access to that one.
    pub fn holds(self, accessed: Part) -> bool {
        self == Part::All || self == accessed || self == Part::Metadata && accessed == Part::Superblock
    }
}

/// The operation that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failing {
    /// Writes; nothing is stored.
    Write,
    /// Writes; the first sectors are stored.
    TornWrite,
    /// Reads, which says nothing about what is stored.
    Read,
    /// Flushes, and all writes after the first.
    Flush,
    /// The device is gone: whatever is asked of it fails, for ever.
    Gone,
}

/// A told fault of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The device.
    pub device: usize,
    /// The part in which reads or writes fail.
    pub part: Part,
    /// The operation that fails.
    pub failing: Failing,
    /// The number of such operations that succeed first.
    pub after: u64,
    /// All later ones fail too.
    pub for_ever: bool,
}

/// The target of the faults of a run, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aim {
    /// Many fsyncs, while a device takes no primary superblock any more.
    Logs,
    /// The whole device cannot be read for a moment, while another one is behind.
    Repair,
}

impl Trouble {
    /// The troubles of a life without the devices `away`.
    pub fn some(plan: &Plan, away: &Devices, rng: &mut Rng) -> Vec<Trouble> {
        let count = *rng.pick(&[0, 0, 0, 1, 1, 2]);
        let any: Vec<Trouble> = (0..count).map(|_| Trouble::of(plan, rng)).collect();
        let device = rng.index(plan.devices);
        match plan.aim {
            Some(Aim::Logs) if rng.chance(70) => {
                vec![Trouble {
                    device,
                    part: Part::Superblock,
                    failing: Failing::Write,
                    after: rng.below(12),
                    for_ever: true,
                }]
            }
            Some(Aim::Repair) if away.is_empty() => {
                vec![Trouble { device, part: Part::Data, failing: Failing::Read, after: rng.below(4), for_ever: false }]
            }
            _ => any,
        }
    }

    fn of(plan: &Plan, rng: &mut Rng) -> Trouble {
        let all = [Failing::Write, Failing::Write, Failing::TornWrite, Failing::Flush, Failing::Gone, Failing::Read];
        let failing = *rng.pick(&all);
        let part = match failing {
            // Of trees every copy is checked.
            Failing::Read => Part::Data,
            Failing::Write => *rng.pick(&[Part::Data, Part::Data, Part::Metadata, Part::Superblock, Part::All]),
            _ => *rng.pick(&[Part::Data, Part::Data, Part::Metadata, Part::All]),
        };
        let after = match failing {
            // Flushes and superblocks are far fewer than writes.
            Failing::Flush | Failing::Read => rng.below(20),
            _ if part == Part::Superblock => rng.below(20),
            _ => rng.below(120),
        };
        Trouble { device: rng.index(plan.devices), part, failing, after, for_ever: rng.chance(50) }
    }

    /// Whether one more operation of this trouble's kind, the one with this number from 0, fails.
    pub fn strikes(&self, number: u64) -> bool {
        let lasts = self.for_ever || matches!(self.failing, Failing::Flush | Failing::Gone);
        number == self.after || number > self.after && lasts
    }
}
