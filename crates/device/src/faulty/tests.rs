//! Every row of the fault table, seeds, broken sectors, and devices pulled out.

use super::*;
use crate::MemoryDevice;

const LEN: u64 = 64 << 10;

fn faulty(rule: Option<FaultRule>) -> (Arc<MemoryDevice>, FaultyDevice) {
    let memory = Arc::new(MemoryDevice::new(LEN));
    let device = FaultyDevice::new(memory.clone());
    rule.into_iter().for_each(|rule| device.add_rule(rule));
    (memory, device)
}

/// The content of sectors 0 to 11 after a write of 4 sectors of ones at sector 2, or `Err`.
fn outcome(fault: Fault) -> (bool, [u8; 12]) {
    let (memory, device) = faulty(Some(FaultRule::always(Operation::Write, fault)));
    let result = device.write_at(2 * SECTOR, &[1; 4 * SECTOR as usize]);
    assert_eq!(device.counts().writes, 1);
    let bytes = memory.to_bytes();
    (result.is_ok(), std::array::from_fn(|sector| bytes[sector * SECTOR as usize]))
}

#[test]
fn writes_go_wrong_as_the_table_says() {
    let cases = [
        (Fault::Fail, false, [0; 12]),
        (Fault::Lost, true, [0; 12]),
        (Fault::Torn { sectors: 3 }, true, [0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0]),
        (Fault::Torn { sectors: 4 }, true, [0; 12]),
        (Fault::TornFail { sectors: 1 }, false, [0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        (Fault::Misdirect { distance: 5 * SECTOR }, true, [0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 0]),
        (Fault::Flip { bit: 1 }, true, [0, 0, 3, 1, 1, 1, 0, 0, 0, 0, 0, 0]),
    ];
    for (fault, ok, sectors) in cases {
        assert_eq!(outcome(fault), (ok, sectors), "{fault:?}");
    }
}

#[test]
fn reads_go_wrong_and_the_stored_bytes_stay_right() {
    let (memory, device) = faulty(None);
    memory.write_at(0, &[0xaa; 1024]).unwrap();
    device.add_rule(FaultRule::always(Operation::Read, Fault::Flip { bit: 8 * 700 }).after(0, 1));
    device.add_rule(FaultRule::always(Operation::Read, Fault::Misdirect { distance: 1024 }).after(0, 1));
    device.add_rule(FaultRule::always(Operation::Read, Fault::Fail).after(0, 1));
    let mut buf = [0; 1024];
    device.read_at(0, &mut buf).unwrap();
    assert_eq!((buf[699], buf[700]), (0xaa, 0xab));
    device.read_at(0, &mut buf).unwrap();
    assert_eq!(buf, [0; 1024]);
    assert!(device.read_at(0, &mut buf).is_err());
    device.read_at(0, &mut buf).unwrap();
    assert_eq!(buf, [0xaa; 1024]);
    assert_eq!(device.counts().reads, 3);
}

#[test]
fn a_rule_counts_only_operations_in_its_range() {
    let rule = FaultRule::always(Operation::Write, Fault::Fail).within(4096..8192).after(1, 1);
    let (_, device) = faulty(Some(rule));
    let results: Vec<bool> =
        [0, 4096, 0, 8192, 4000, 4096].iter().map(|&at| device.write_at(at, &[1; 512]).is_ok()).collect();
    assert_eq!(results, [true, true, true, true, false, true]);
}

#[test]
fn broken_sectors_are_repaired_by_writing_them_whole() {
    let (_, device) = faulty(None);
    device.break_range(1000..1030);
    let mut buf = [0; 512];
    let reads = |device: &FaultyDevice, buf: &mut [u8]| [512, 1024, 1536].map(|at| device.read_at(at, buf).is_ok());
    assert_eq!(reads(&device, &mut buf), [false, false, true]);
    device.write_at(512, &[1; 513]).unwrap();
    assert_eq!(reads(&device, &mut buf), [true, false, true]);
    device.write_at(1024, &[1; 512]).unwrap();
    assert_eq!(reads(&device, &mut buf), [true, true, true]);
}

#[test]
fn a_pulled_device_fails_until_cleared() {
    let (_, device) = faulty(None);
    device.fail_writes();
    assert!(device.write_at(0, &[1]).is_err());
    assert!(device.flush().is_err());
    assert!(device.read_at(0, &mut [0]).is_ok());
    device.fail_reads();
    assert!(device.read_at(0, &mut [0]).is_err());
    device.clear();
    assert!(device.write_at(0, &[1]).is_ok() && device.flush().is_ok());
}

#[test]
fn a_lost_flush_does_not_reach_the_device_beneath() {
    let recorder = crate::Recorder::new();
    let device = FaultyDevice::new(Arc::new(recorder.record(Arc::new(MemoryDevice::new(LEN)))));
    device.add_rule(FaultRule::always(Operation::Flush, Fault::Lost).after(0, 1));
    device.write_at(0, &[1]).unwrap();
    device.flush().unwrap();
    assert_eq!(recorder.pending(recorder.len()), [0]);
    device.flush().unwrap();
    assert_eq!(recorder.pending(recorder.len()), [] as [usize; 0]);
}

/// The content and the results after 2000 writes with faults of `seed`.
fn seeded_run(seed: u64) -> (Vec<u8>, Vec<bool>, FaultCounts) {
    let memory = Arc::new(MemoryDevice::new(LEN));
    let tenth = 20_000;
    let rates = FaultRates {
        write_fails: tenth,
        write_torn: tenth,
        write_lost: tenth,
        write_misdirected: tenth,
        write_flips: tenth,
        ..FaultRates::default()
    };
    let device = FaultyDevice::seeded(memory.clone(), seed, rates);
    let results = (0..2000u64).map(|i| device.write_at(i * 97 % 60_000, &[i as u8; 1500]).is_ok()).collect();
    (memory.to_bytes(), results, device.counts())
}

#[test]
fn a_seed_decides_everything() {
    let first = seeded_run(7);
    assert_eq!(first, seeded_run(7));
    assert_ne!(first.0, seeded_run(8).0);
    assert!((100..400).contains(&first.2.writes), "about a tenth of 2000, not {}", first.2.writes);
}

#[test]
fn ranges_outside_are_refused_before_any_fault() {
    let (_, device) = faulty(Some(FaultRule::always(Operation::Write, Fault::Misdirect { distance: 1 })));
    assert!(device.write_at(LEN - 1, &[1, 2]).is_err());
    assert!(device.write_at(0, &vec![1; LEN as usize + 1]).is_err());
    assert_eq!(device.counts(), FaultCounts::default());
    assert!(device.write_at(0, &vec![1; LEN as usize]).is_ok());
}
