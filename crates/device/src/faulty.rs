//! The fault model: what this device does wrong, and nothing else.
//!
//! | fault | read | write | flush |
//! |---|---|---|---|
//! | [`Fail`](Fault::Fail) | error, the buffer is garbage | error, nothing is stored | error, nothing is passed on |
//! | [`Flip`](Fault::Flip) | success, one bit is wrong; what is stored is right | success, one bit is stored wrong | - |
//! | [`Torn`](Fault::Torn) | - | success, only the first sectors are stored | - |
//! | [`TornFail`](Fault::TornFail) | - | error, only the first sectors are stored | - |
//! | [`Lost`](Fault::Lost) | - | success, nothing is stored | success, nothing is passed on |
//! | [`Misdirect`](Fault::Misdirect) | success, the bytes of another place | success, stored at another place | - |
//!
//! Besides, sectors can be broken ([`FaultyDevice::break_range`]): every read that touches one fails until it has been
//! written again. And everything can fail from now on, like a device that was pulled out.
//!
//! A fault strikes where a [`FaultRule`] says, or by chance with a seed and [`FaultRates`]. The same seed and the same
//! sequence of operations give the same faults. Rules go before chance, and at most one fault strikes one operation.
//! A fault of a kind that an operation cannot have leaves it alone.
//!
//! Not here: order and power cuts (see [`Recorder`](crate::Recorder)), slowness, a device that changes its size.

use crate::random::Random;
use crate::{BlockDevice, SECTOR, check_read, check_write};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// A kind of fault; the table above says its effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The operation fails.
    Fail,
    /// One bit is wrong: this one of the operation's bytes, counted modulo their number.
    Flip {
        /// Bit number from the first byte's lowest bit.
        bit: u64,
    },
    /// Only so many sectors are stored.
    Torn {
        /// Sectors, counted modulo those of the write.
        sectors: u64,
    },
    /// Only so many sectors are stored, and it is reported.
    TornFail {
        /// Sectors, counted modulo those of the write.
        sectors: u64,
    },
    /// Nothing happens, and it is not reported.
    Lost,
    /// The operation happens so many bytes further on (wrapping at the end of the device).
    Misdirect {
        /// Distance in bytes.
        distance: u64,
    },
}

/// The kinds of operations that can go wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// `read_at`.
    Read,
    /// `write_at`.
    Write,
    /// `flush`.
    Flush,
}

/// A fault at a chosen moment: of the operations that touch `range`, `skip` go well, the next `times` do not.
#[derive(Clone, Debug)]
pub struct FaultRule {
    /// Which operations.
    pub on: Operation,
    /// Only operations that touch these bytes; flushes touch everything.
    pub range: Range<u64>,
    /// The number of operations that succeed first.
    pub skip: u64,
    /// The number of operations that fail then.
    pub times: u64,
    /// The kind of fault.
    pub fault: Fault,
}

impl FaultRule {
    /// `fault` on every operation of this kind, anywhere.
    pub fn always(on: Operation, fault: Fault) -> FaultRule {
        FaultRule { on, range: 0..u64::MAX, skip: 0, times: u64::MAX, fault }
    }

    /// Only operations that touch `range`.
    pub fn within(self, range: Range<u64>) -> FaultRule {
        FaultRule { range, ..self }
    }

    /// Only after `skip` operations went well, and only so many `times`.
    pub fn after(self, skip: u64, times: u64) -> FaultRule {
        FaultRule { skip, times, ..self }
    }

    /// Whether this rule strikes now; counts down.
    fn strikes(&mut self, on: Operation, range: &Range<u64>) -> bool {
        let touches = on == Operation::Flush || (range.start < self.range.end && self.range.start < range.end);
        if self.on != on || !touches {
            return false;
        }
        if self.skip != 0 {
            self.skip -= 1;
            return false;
        }
        let strikes = self.times != 0;
        self.times -= u64::from(strikes);
        strikes
    }
}

/// The number of random faults in a million operations.
#[derive(Clone, Copy, Default, Debug)]
pub struct FaultRates {
    /// Reads that fail.
    pub read_fails: u32,
    /// Reads with a wrong bit.
    pub read_flips: u32,
    /// Writes that fail with nothing stored.
    pub write_fails: u32,
    /// Writes that are torn silently.
    pub write_torn: u32,
    /// Writes that are lost silently.
    pub write_lost: u32,
    /// Writes that land elsewhere silently.
    pub write_misdirected: u32,
    /// Writes that are stored with a wrong bit.
    pub write_flips: u32,
    /// Flushes that fail.
    pub flush_fails: u32,
    /// Flushes that do nothing silently.
    pub flush_lost: u32,
}

impl FaultRates {
    /// A fault for the next operation, perhaps.
    fn draw(&self, on: Operation, random: &mut Random) -> Option<Fault> {
        let table: &[(u32, Fault)] = match on {
            Operation::Read => {
                let bit = random.next();
                &[(self.read_fails, Fault::Fail), (self.read_flips, Fault::Flip { bit })]
            }
            Operation::Write => {
                let [bit, sectors, sector] = [random.next(), random.next(), random.next()];
                &[
                    (self.write_fails, Fault::Fail),
                    (self.write_torn, Fault::Torn { sectors }),
                    (self.write_lost, Fault::Lost),
                    (self.write_misdirected, Fault::Misdirect { distance: (sector % (1 << 32) + 1) * SECTOR }),
                    (self.write_flips, Fault::Flip { bit }),
                ]
            }
            Operation::Flush => &[(self.flush_fails, Fault::Fail), (self.flush_lost, Fault::Lost)],
        };
        table.iter().find(|(rate, _)| random.happens(*rate)).map(|(_, fault)| *fault)
    }
}

/// The number of faults that occurred, so that a test can tell that it tested something.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct FaultCounts {
    /// Faulty reads.
    pub reads: u64,
    /// Faulty writes.
    pub writes: u64,
    /// Faulty flushes.
    pub flushes: u64,
}

impl FaultCounts {
    fn of(&mut self, on: Operation) -> &mut u64 {
        match on {
            Operation::Read => &mut self.reads,
            Operation::Write => &mut self.writes,
            Operation::Flush => &mut self.flushes,
        }
    }
}

/// A device that goes wrong on purpose.
#[derive(Debug)]
pub struct FaultyDevice {
    inner: Arc<dyn BlockDevice>,
    state: Mutex<FaultState>,
}

#[derive(Debug)]
struct FaultState {
    rules: Vec<FaultRule>,
    rates: FaultRates,
    random: Random,
    broken_sectors: BTreeSet<u64>,
    reads_fail: bool,
    writes_fail: bool,
    counts: FaultCounts,
}

impl FaultyDevice {
    /// A device that does nothing wrong yet.
    pub fn new(inner: Arc<dyn BlockDevice>) -> FaultyDevice {
        FaultyDevice::seeded(inner, 0, FaultRates::default())
    }

    /// A device that goes wrong by chance.
    pub fn seeded(inner: Arc<dyn BlockDevice>, seed: u64, rates: FaultRates) -> FaultyDevice {
        let state = FaultState {
            rules: Vec::new(),
            rates,
            random: Random::new(seed),
            broken_sectors: BTreeSet::new(),
            reads_fail: false,
            writes_fail: false,
            counts: FaultCounts::default(),
        };
        FaultyDevice { inner, state: Mutex::new(state) }
    }

    /// Adds a rule; of several that strike the first added wins.
    pub fn add_rule(&self, rule: FaultRule) {
        self.state.lock().rules.push(rule);
    }

    /// Forgets rules and rates and what fails from now on; broken sectors stay broken.
    pub fn clear(&self) {
        let mut state = self.state.lock();
        (state.reads_fail, state.writes_fail) = (false, false);
        state.rules.clear();
        state.rates = FaultRates::default();
    }

    /// Reads that touch one of these bytes' sectors fail until the sector is written again.
    pub fn break_range(&self, range: Range<u64>) {
        self.state.lock().broken_sectors.extend(range.start / SECTOR..range.end.div_ceil(SECTOR));
    }

    /// From now on every write and flush fails.
    pub fn fail_writes(&self) {
        self.state.lock().writes_fail = true;
    }

    /// From now on every read fails.
    pub fn fail_reads(&self) {
        self.state.lock().reads_fail = true;
    }

    /// Faults so far.
    pub fn counts(&self) -> FaultCounts {
        self.state.lock().counts
    }

    /// The fault that strikes this operation, counted.
    fn fault(&self, on: Operation, range: Range<u64>) -> Option<Fault> {
        let mut state = self.state.lock();
        let fault = state.choose(on, &range)?;
        *state.counts.of(on) += 1;
        Some(fault)
    }

    fn error(&self, what: &str) -> io::Error {
        io::Error::other(format!("injected fault: {what} of {} failed", self.inner.name()))
    }

    /// The offset to which a misdirected operation goes.
    fn elsewhere(&self, offset: u64, len: usize, distance: u64) -> u64 {
        let offsets = self.len() - len as u64 + 1;
        ((u128::from(offset) + u128::from(distance)) % u128::from(offsets)) as u64
    }

    fn write_torn(&self, offset: u64, data: &[u8], sectors: u64) -> io::Result<()> {
        let total = (data.len() as u64).div_ceil(SECTOR).max(1);
        let kept = ((sectors % total) * SECTOR) as usize;
        self.store(offset, &data[..kept])
    }

    fn store(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, data)?;
        let rewritten = offset.div_ceil(SECTOR)..(offset + data.len() as u64) / SECTOR;
        let mut state = self.state.lock();
        if !state.broken_sectors.is_empty() {
            state.broken_sectors.retain(|sector| !rewritten.contains(sector));
        }
        Ok(())
    }
}

impl FaultState {
    fn choose(&mut self, on: Operation, range: &Range<u64>) -> Option<Fault> {
        let fails = match on {
            Operation::Read => self.reads_fail || self.touches_broken_sector(range),
            Operation::Write | Operation::Flush => self.writes_fail,
        };
        if fails {
            return Some(Fault::Fail);
        }
        let ruled = self.rules.iter_mut().find_map(|rule| rule.strikes(on, range).then_some(rule.fault));
        ruled.or_else(|| self.rates.draw(on, &mut self.random))
    }

    fn touches_broken_sector(&self, range: &Range<u64>) -> bool {
        let sectors = range.start / SECTOR..range.end.div_ceil(SECTOR);
        !sectors.is_empty() && self.broken_sectors.range(sectors).next().is_some()
    }
}

fn flip(bytes: &mut [u8], bit: u64) {
    if !bytes.is_empty() {
        let bit = bit % (bytes.len() as u64 * 8);
        bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
    }
}

impl BlockDevice for FaultyDevice {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        check_read(self, offset, buf.len())?;
        match self.fault(Operation::Read, offset..offset + buf.len() as u64) {
            Some(Fault::Fail) => {
                buf.fill(0xdb);
                Err(self.error("read"))
            }
            Some(Fault::Flip { bit }) => {
                self.inner.read_at(offset, buf)?;
                flip(buf, bit);
                Ok(())
            }
            Some(Fault::Misdirect { distance }) => self.inner.read_at(self.elsewhere(offset, buf.len(), distance), buf),
            Some(Fault::Torn { .. } | Fault::TornFail { .. } | Fault::Lost) | None => self.inner.read_at(offset, buf),
        }
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        check_write(self, offset, data.len() as u64)?;
        match self.fault(Operation::Write, offset..offset + data.len() as u64) {
            Some(Fault::Fail) => Err(self.error("write")),
            Some(Fault::Lost) => Ok(()),
            Some(Fault::Torn { sectors }) => self.write_torn(offset, data, sectors),
            Some(Fault::TornFail { sectors }) => {
                self.write_torn(offset, data, sectors)?;
                Err(self.error("write"))
            }
            Some(Fault::Misdirect { distance }) => self.store(self.elsewhere(offset, data.len(), distance), data),
            Some(Fault::Flip { bit }) => {
                let mut wrong = data.to_vec();
                flip(&mut wrong, bit);
                self.store(offset, &wrong)
            }
            None => self.store(offset, data),
        }
    }

    fn flush(&self) -> io::Result<()> {
        match self.fault(Operation::Flush, 0..u64::MAX) {
            Some(Fault::Fail) => Err(self.error("flush")),
            Some(Fault::Lost) => Ok(()),
            _ => self.inner.flush(),
        }
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)
    }

    fn supports_discard(&self) -> bool {
        self.inner.supports_discard()
    }

    fn name(&self) -> String {
        self.inner.name()
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }
}

#[cfg(test)]
mod tests;
