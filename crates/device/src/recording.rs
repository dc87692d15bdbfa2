//! A recording of writes and flushes in their order, and the disks that a power cut could leave behind.
//!
//! One [`Recorder`] logs for any number of devices, so that the order between devices is known too. The crash model:
//!
//! 1. A write is logged when it has completed. It is durable once a flush of its device has completed that began
//!    after that.
//! 2. At a power cut every durable write is on disk. Each other logged write is there whole, not at all, or in part
//!    (whole sectors), independently of all others, so later ones may be there when earlier ones are not.
//! 3. A discard that is not durable happened whole, not at all, or in part, like a write. Replayed, it is a discard of
//!    the device that it is replayed onto.
//!
//! A prefix length ("the first n events happened") names the moment of the cut.

use crate::{BlockDevice, SECTOR};
use parking_lot::Mutex;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Something that happened to a device; `device` counts from 0 in the order of [`Recorder::record`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A write completed.
    Write {
        /// Which device.
        device: usize,
        /// The offset.
        offset: u64,
        /// The bytes.
        data: Arc<[u8]>,
    },
    /// A discard completed.
    Discard {
        /// Which device.
        device: usize,
        /// The offset.
        offset: u64,
        /// The number of bytes.
        len: u64,
    },
    /// A flush completed. Of the device's events it covers those among the first `covers`.
    Flush {
        /// Which device.
        device: usize,
        /// Events logged when the flush began.
        covers: usize,
    },
}

impl Event {
    /// The device.
    pub fn device(&self) -> usize {
        match self {
            Event::Write { device, .. } | Event::Discard { device, .. } | Event::Flush { device, .. } => *device,
        }
    }
}

/// The part of a write that remains after a power cut if the write was not durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// All of it.
    Whole,
    /// Nothing.
    Nothing,
    /// These of its sectors, counted from its start.
    Sectors(Range<u64>),
}

/// The log of one or more devices. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    log: Arc<Mutex<Log>>,
}

#[derive(Debug, Default)]
struct Log {
    devices: usize,
    events: Vec<Event>,
}

impl Recorder {
    /// An empty log.
    pub fn new() -> Recorder {
        Recorder::default()
    }

    /// A device that passes everything to `inner` and logs what changed it.
    pub fn record(&self, inner: Arc<dyn BlockDevice>) -> RecordingDevice {
        let mut log = self.log.lock();
        log.devices += 1;
        RecordingDevice { inner, recorder: self.clone(), device: log.devices - 1 }
    }

    /// Events so far: the prefix length that stands for "now".
    pub fn len(&self) -> usize {
        self.log.lock().events.len()
    }

    /// Whether nothing has happened.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A copy of some events; their data is shared.
    pub fn events(&self, range: Range<usize>) -> Vec<Event> {
        self.log.lock().events[range].to_vec()
    }

    /// The prefix lengths that end with a flush.
    pub fn flush_points(&self) -> Vec<usize> {
        let is_flush = |(index, event): (usize, &Event)| matches!(event, Event::Flush { .. }).then_some(index + 1);
        self.log.lock().events.iter().enumerate().filter_map(is_flush).collect()
    }

    /// Indices of the writes and discards among the first `prefix` events that are not durable then.
    pub fn pending(&self, prefix: usize) -> Vec<usize> {
        pending(&self.events(0..prefix), self.log.lock().devices)
    }

    /// Does the first `prefix` events again, on `bases`: one device for each recorded one, with its content from
    /// before the recording.
    pub fn replay(&self, prefix: usize, bases: &[&dyn BlockDevice]) -> io::Result<()> {
        self.crash(prefix, bases, &mut |_, _| Kept::Whole)
    }

    /// Turns `bases`, as for [`replay`](Self::replay), into what a power cut after `prefix` events leaves. `keep` is
    /// asked, with its index, about each event that is not durable.
    pub fn crash(
        &self,
        prefix: usize,
        bases: &[&dyn BlockDevice],
        keep: &mut dyn FnMut(usize, &Event) -> Kept,
    ) -> io::Result<()> {
        let events = self.events(0..prefix);
        let pending = pending(&events, self.log.lock().devices);
        for (index, event) in events.iter().enumerate() {
            let kept = if pending.binary_search(&index).is_ok() { keep(index, event) } else { Kept::Whole };
            apply(event, kept, bases[event.device()])?;
        }
        Ok(())
    }

    fn push(&self, event: Event) {
        self.log.lock().events.push(event);
    }
}

fn pending(events: &[Event], devices: usize) -> Vec<usize> {
    let mut durable = vec![0; devices];
    for event in events {
        if let Event::Flush { device, covers } = event {
            durable[*device] = (*covers).max(durable[*device]);
        }
    }
    let is_pending = |(index, event): (usize, &Event)| {
        let changes = !matches!(event, Event::Flush { .. });
        (changes && index >= durable[event.device()]).then_some(index)
    };
    events.iter().enumerate().filter_map(is_pending).collect()
}

fn apply(event: &Event, kept: Kept, onto: &dyn BlockDevice) -> io::Result<()> {
    match event {
        Event::Flush { .. } => Ok(()),
        Event::Write { offset, data, .. } => {
            let part = kept_bytes(&kept, data.len() as u64);
            onto.write_at(offset + part.start, &data[part.start as usize..part.end as usize])
        }
        Event::Discard { offset, len, .. } => {
            let part = kept_bytes(&kept, *len);
            onto.discard(offset + part.start, part.end - part.start)
        }
    }
}

/// The range of a write of `len` bytes that is kept.
fn kept_bytes(kept: &Kept, len: u64) -> Range<u64> {
    match kept {
        Kept::Whole => 0..len,
        Kept::Nothing => 0..0,
        Kept::Sectors(sectors) => {
            let start = sectors.start.saturating_mul(SECTOR).min(len);
            start..sectors.end.saturating_mul(SECTOR).clamp(start, len)
        }
    }
}

/// A device whose changes are logged; see [`Recorder`].
#[derive(Debug)]
pub struct RecordingDevice {
    inner: Arc<dyn BlockDevice>,
    recorder: Recorder,
    device: usize,
}

impl BlockDevice for RecordingDevice {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, data)?;
        self.recorder.push(Event::Write { device: self.device, offset, data: data.into() });
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let covers = self.recorder.len();
        self.inner.flush()?;
        self.recorder.push(Event::Flush { device: self.device, covers });
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)?;
        self.recorder.push(Event::Discard { device: self.device, offset, len });
        Ok(())
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
mod tests {
    use super::*;
    use crate::MemoryDevice;

    const LEN: u64 = 8192;

    fn recorded(count: usize) -> (Recorder, Vec<RecordingDevice>) {
        let recorder = Recorder::new();
        let devices = (0..count).map(|_| recorder.record(Arc::new(MemoryDevice::new(LEN)))).collect();
        (recorder, devices)
    }

    fn crashed(recorder: &Recorder, prefix: usize, keep: &mut dyn FnMut(usize, &Event) -> Kept) -> Vec<u8> {
        let base = MemoryDevice::new(LEN);
        recorder.crash(prefix, &[&base], keep).unwrap();
        base.to_bytes()
    }

    #[test]
    fn every_prefix_can_be_materialised() {
        let (recorder, devices) = recorded(1);
        for value in 1..=4u8 {
            devices[0].write_at(u64::from(value) * 10, &[value; 15]).unwrap();
            devices[0].flush().unwrap();
        }
        let model = MemoryDevice::new(LEN);
        for value in 0..=4u8 {
            if value != 0 {
                model.write_at(u64::from(value) * 10, &[value; 15]).unwrap();
            }
            let base = MemoryDevice::new(LEN);
            recorder.replay(usize::from(value) * 2, &[&base]).unwrap();
            assert_eq!(base.to_bytes(), model.to_bytes(), "after {value} writes");
        }
        assert_eq!(recorder.flush_points(), [2, 4, 6, 8]);
    }

    #[test]
    fn only_writes_since_the_last_flush_can_be_lost() {
        let (recorder, devices) = recorded(1);
        devices[0].write_at(0, &[1; 512]).unwrap();
        devices[0].flush().unwrap();
        devices[0].write_at(512, &[2; 512]).unwrap();
        devices[0].write_at(1024, &[3; 512]).unwrap();
        assert_eq!(recorder.pending(recorder.len()), [2, 3]);
        let found = crashed(&recorder, 4, &mut |index, _| if index == 2 { Kept::Nothing } else { Kept::Whole });
        let firsts = [found[0], found[512], found[1024]];
        assert_eq!(firsts, [1, 0, 3], "the flushed write, the lost one, the later one that arrived");
    }

    #[test]
    fn a_torn_write_keeps_whole_sectors() {
        let (recorder, devices) = recorded(1);
        devices[0].write_at(0, &[9; 2048]).unwrap();
        let found = crashed(&recorder, 1, &mut |_, _| Kept::Sectors(1..3));
        let firsts: Vec<u8> = found.chunks(512).take(5).map(|sector| sector[0]).collect();
        assert_eq!(firsts, [0, 9, 9, 0, 0]);
        assert_eq!(crashed(&recorder, 1, &mut |_, _| Kept::Sectors(7..9)), vec![0; LEN as usize]);
    }

    #[test]
    fn a_flush_covers_its_own_device_only() {
        let (recorder, devices) = recorded(2);
        devices[0].write_at(0, &[1]).unwrap();
        devices[1].write_at(0, &[2]).unwrap();
        devices[1].flush().unwrap();
        assert_eq!(recorder.pending(3), [0]);
        let bases = [MemoryDevice::new(LEN), MemoryDevice::new(LEN)];
        recorder.crash(3, &[&bases[0], &bases[1]], &mut |_, _| Kept::Nothing).unwrap();
        assert_eq!([bases[0].to_bytes()[0], bases[1].to_bytes()[0]], [0, 2]);
    }

    #[test]
    fn a_discard_is_replayed_in_part() {
        let (recorder, devices) = recorded(1);
        devices[0].write_at(0, &[1; 4096]).unwrap();
        devices[0].discard(512, 1024).unwrap();
        for (kept, expected) in [
            (Kept::Whole, [true, false, false, true]),
            (Kept::Nothing, [true; 4]),
            (Kept::Sectors(1..2), [true, true, false, true]),
        ] {
            let base = MemoryDevice::new(LEN).with_garbage();
            let mut keep = |index, _: &Event| if index == 1 { kept.clone() } else { Kept::Whole };
            recorder.crash(2, &[&base], &mut keep).unwrap();
            let found = base.to_bytes();
            assert_eq!([511, 512, 1535, 1536].map(|at: usize| found[at] == 1), expected, "{kept:?}");
        }
    }

    #[test]
    fn a_refused_write_is_not_logged() {
        let (recorder, devices) = recorded(1);
        assert!(devices[0].write_at(LEN, &[1]).is_err());
        assert!(recorder.is_empty());
    }
}
