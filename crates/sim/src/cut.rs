//! The disks that a power cut could leave of one recorded life.
//!
//! Cuts are taken in order of their moments, so that what is durable is written once: a disk costs what was in flight.

use butterfs_device::{BlockDevice, Event, MemoryDevice, SECTOR};
use butterfs_ondisk::superblock::OFFSETS;
use butterfs_testkit::rng::Rng;
use std::ops::Range;

/// A moment, and what becomes of what was in flight then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cut {
    /// The number of events that happened.
    pub prefix: usize,
    /// Everything in flight is kept when this is zero; otherwise what is kept follows from it.
    pub seed: u64,
}

impl Cut {
    /// After every flush, and at `between` other moments; ascending.
    pub fn choose(events: &[Event], between: usize, seed: u64) -> Vec<Cut> {
        let mut rng = Rng::new(seed);
        let is_flush = |event: &Event| matches!(event, Event::Flush { .. });
        let flushes = events.iter().enumerate().filter(|(_, event)| is_flush(event)).map(|(at, _)| at + 1);
        let mut cuts: Vec<Cut> = flushes.clone().map(|prefix| Cut { prefix, seed: 0 }).collect();
        let flushes: Vec<usize> = flushes.collect();
        for number in 0..between {
            // Half of them just before a flush, when most is in flight.
            let prefix = match flushes.is_empty() || number % 2 == 0 {
                true => rng.index(events.len() + 1),
                false => *rng.pick(&flushes) - 1,
            };
            cuts.push(Cut { prefix, seed: rng.bits() | 1 });
        }
        cuts.sort_unstable();
        cuts
    }
}

/// Makes the disks.
pub struct Disks<'a> {
    events: &'a [Event],
    /// The durable part of the events so far.
    durable: MemoryDevice,
    looked_at: usize,
    /// The others of them.
    in_flight: Vec<usize>,
    /// The number of events the flushes of each device made durable.
    covered: Vec<usize>,
}

impl<'a> Disks<'a> {
    /// From what was on so many devices before the first event.
    pub fn new(base: &MemoryDevice, devices: usize, events: &'a [Event]) -> Disks<'a> {
        let (in_flight, covered) = (Vec::new(), vec![0; devices]);
        Disks { events, durable: base.snapshot(), looked_at: 0, in_flight, covered }
    }

    /// The disk of a cut, which is not before the last one. `whole_superblocks`: the primary superblock is not torn.
    pub fn at(&mut self, cut: &Cut, whole_superblocks: bool) -> MemoryDevice {
        self.make(cut, |event| !whole_superblocks || !is_primary_superblock(event))
    }

    /// The same, where every write is kept whole or not at all.
    pub fn untorn_at(&mut self, cut: &Cut) -> MemoryDevice {
        self.make(cut, |_| false)
    }

    fn make(&mut self, cut: &Cut, may_tear: impl Fn(&Event) -> bool) -> MemoryDevice {
        assert!(cut.prefix >= self.looked_at, "cuts are taken in order");
        for index in self.looked_at..cut.prefix {
            match &self.events[index] {
                Event::Flush { device, covers } => self.covered[*device] = self.covered[*device].max(*covers),
                _ => self.in_flight.push(index),
            }
        }
        self.looked_at = cut.prefix;
        let (events, covered, durable, devices) = (self.events, &self.covered, &self.durable, self.covered.len());
        self.in_flight.retain(|index| {
            let event = &events[*index];
            let is_durable = *index < covered[event.device()];
            if is_durable {
                write(durable, devices, event, None);
            }
            !is_durable
        });
        let disk = self.durable.snapshot();
        let in_flight: Vec<&Event> = self.in_flight.iter().map(|index| &events[*index]).collect();
        if cut.seed == 0 {
            in_flight.iter().for_each(|event| write(&disk, devices, event, None));
            return disk;
        }
        let mut rng = Rng::new(cut.seed);
        let percent_kept = *rng.pick(&[0, 10, 50, 50, 90, 100]);
        let percent_torn = *rng.pick(&[0, 0, 10, 50]);
        let mut order: Vec<usize> = (0..in_flight.len()).collect();
        if rng.chance(30) {
            (1..order.len()).rev().for_each(|last| order.swap(last, rng.index(last + 1)));
        }
        for index in order {
            let event = in_flight[index];
            if !rng.chance(percent_kept) {
                continue;
            }
            let torn = rng.chance(percent_torn).then(|| sectors(event, &mut rng)).flatten();
            match torn {
                Some(_) if !may_tear(event) => {}
                torn => write(&disk, devices, event, torn),
            }
        }
        disk
    }
}

fn is_primary_superblock(event: &Event) -> bool {
    matches!(event, Event::Write { offset, .. } if *offset == OFFSETS[0].0)
}

/// Some of a write's sectors, as bytes from its start.
fn sectors(event: &Event, rng: &mut Rng) -> Option<Range<usize>> {
    let Event::Write { data, .. } = event else { return None };
    let count = data.len() as u64 / SECTOR;
    if count < 2 {
        return None;
    }
    let start = rng.below(count);
    let end = start + 1 + rng.below(count - start);
    Some((start * SECTOR) as usize..(end * SECTOR) as usize)
}

fn write(onto: &MemoryDevice, devices: usize, event: &Event, part: Option<Range<usize>>) {
    let start = onto.len() / devices as u64 * event.device() as u64;
    let done = match event {
        Event::Write { offset, data, .. } => {
            let part = part.unwrap_or(0..data.len());
            onto.write_at(start + offset + part.start as u64, &data[part])
        }
        Event::Discard { offset, len, .. } => onto.discard(start + *offset, *len),
        Event::Flush { .. } => Ok(()),
    };
    done.expect("the recorded device had this length too");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(offset: u64, byte: u8) -> Event {
        Event::Write { device: 0, offset, data: vec![byte; 1024].into() }
    }

    #[test]
    fn a_disk_has_what_was_flushed_and_part_of_the_rest() {
        let events = [
            event(0, 1),
            event(4096, 2),
            Event::Flush { device: 0, covers: 2 },
            event(0, 3),
            event(8192, 4),
            Event::Flush { device: 0, covers: 5 },
            event(12288, 5),
        ];
        let base = MemoryDevice::new(1 << 20);
        let (mut kept, mut lost, mut torn) = (0, 0, 0);
        for seed in 1..200 {
            let mut disks = Disks::new(&base, 1, &events);
            let disk = disks.at(&Cut { prefix: 5, seed }, false).to_bytes();
            assert_eq!(disk[4096..5120], [2; 1024]);
            for (at, old, new) in [(0, 1, 3), (8192, 0, 4)] {
                let new = disk[at..at + 1024].iter().filter(|byte| **byte == new).count();
                assert_eq!(disk[at..at + 1024].iter().filter(|byte| **byte == old).count(), 1024 - new);
                (kept, lost) = (kept + usize::from(new == 1024), lost + usize::from(new == 0));
                torn += usize::from(new == 512);
            }
            let disk = disks.at(&Cut { prefix: 7, seed }, false).to_bytes();
            assert_eq!((&disk[..1024], &disk[8192..9216]), (&[3; 1024][..], &[4; 1024][..]));
        }
        assert!(kept > 50 && lost > 50 && torn > 5, "{kept} kept, {lost} lost, {torn} torn");
    }

    #[test]
    fn cuts_follow_from_their_seed_and_ascend() {
        let events = [event(0, 1), Event::Flush { device: 0, covers: 1 }, event(0, 2)];
        let cuts = Cut::choose(&events, 20, 7);
        assert_eq!(cuts, Cut::choose(&events, 20, 7));
        assert!(cuts.is_sorted() && cuts.len() == 21 && cuts.contains(&Cut { prefix: 2, seed: 0 }));
    }
}
