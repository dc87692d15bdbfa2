//! The formulae of the format, and every logical sector of small chunks against a model.

use super::*;
use crate::layout::Layout;
use butterfs_ondisk::chunk::ChunkStripe;
use butterfs_ondisk::profile::{PROFILES, Profile};
use butterfs_ondisk::{DeviceId, Physical};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const START: u64 = 7 * GIB;

fn chunk(profile: &str, stripe_length: u64, physical: &[u64]) -> Chunk {
    let profile = Profile::named(profile).unwrap();
    let stripes: Vec<ChunkStripe> = physical
        .iter()
        .enumerate()
        .map(|(i, &at)| ChunkStripe { device: DeviceId(i as u64), physical: Physical(at), dev_uuid: [0; 16] })
        .collect();
    let length = stripe_length * profile.data_stripes(stripes.len()) as u64;
    Chunk::new(Logical(START), length, bits::DATA | profile.bit, 4096, stripes)
}

fn excluded(chunk: &Chunk) -> Vec<(u64, u64)> {
    let ranges = ChunkMap::new().superblock_exclusions(chunk);
    ranges.iter().map(|range| (range.start.0 - chunk.start.0, range.end.0 - range.start.0)).collect()
}

#[test]
fn the_formulae() {
    // Profile, stripe length, first byte of each stripe, expected (offset in the chunk, length).
    type Case = (&'static str, u64, &'static [u64], &'static [(u64, u64)]);
    let cases: [Case; 15] = [
        ("single", 8 * MIB, &[60 * MIB], &[(4 * MIB, 64 * KIB)]),
        ("single", 8 * MIB, &[64 * MIB], &[(0, 64 * KIB)]),
        ("single", 8 * MIB, &[56 * MIB], &[]),
        ("single", 8 * MIB, &[64 * MIB + 4096], &[]),
        ("single", GIB, &[256 * GIB - MIB], &[(MIB, 64 * KIB)]),
        ("single", GIB, &[0], &[(64 * KIB, 64 * KIB), (64 * MIB, 64 * KIB)]),
        ("single", 64 * KIB, &[64 * MIB - 4 * KIB], &[(4 * KIB, 60 * KIB)]),
        ("DUP", 32 * MIB, &[40 * MIB, 72 * MIB], &[(24 * MIB, 64 * KIB)]),
        ("DUP", 40 * MIB, &[30 * MIB, 64 * MIB], &[(0, 64 * KIB), (34 * MIB, 64 * KIB)]),
        ("RAID1", 40 * MIB, &[60 * MIB, 60 * MIB + 64 * KIB], &[(4 * MIB - 64 * KIB, 128 * KIB)]),
        (
            "RAID0",
            8 * MIB,
            &[60 * MIB, 100 * MIB, 62 * MIB],
            &[(96 * 64 * KIB + 128 * KIB, 64 * KIB), (12 * MIB, 64 * KIB)],
        ),
        ("RAID0", 8 * MIB, &[64 * MIB - 4 * KIB, GIB], &[(4 * KIB, 64 * KIB)]),
        (
            "RAID10",
            8 * MIB,
            &[GIB, 60 * MIB, GIB, 61 * MIB],
            &[(48 * 128 * KIB + 64 * KIB, 64 * KIB), (8 * MIB, 64 * KIB)],
        ),
        ("RAID5", 8 * MIB, &[GIB, GIB, 60 * MIB], &[(8 * MIB, 128 * KIB)]),
        ("RAID6", 8 * MIB, &[64 * MIB, GIB, 2 * GIB, GIB], &[(0, 128 * KIB)]),
    ];
    for (profile, length, physical, expected) in cases {
        assert_eq!(excluded(&chunk(profile, length, physical)), expected, "{profile} {physical:?}");
    }
}

#[test]
fn low_logical_addresses_are_excluded() {
    let mut low = chunk("single", 4 * MIB, &[MIB]);
    low.start = Logical(0);
    assert_eq!(ChunkMap::new().superblock_exclusions(&low), [Logical(0)..Logical(64 * KIB)]);
    low.start = Logical(60 * KIB);
    assert_eq!(ChunkMap::new().superblock_exclusions(&low), [Logical(60 * KIB)..Logical(64 * KIB)]);
    low.start = Logical(64 * KIB);
    assert_eq!(ChunkMap::new().superblock_exclusions(&low), []);
}

/// With elements aligned on disk: what is excluded is exactly the elements on which a copy lies, and with parity all
/// of their row.
#[test]
fn small_chunks_agree_with_a_model() {
    let mut excluded_elements = 0;
    for profile in &PROFILES {
        for stripes in (1..7).filter(|&count| Layout::of(&chunk(profile.name, MIB, &vec![0; count])).is_ok()) {
            for shift in 0..16 {
                let first = |i: usize| 64 * MIB - (shift + i as u64 * 3) % 17 * 64 * KIB;
                let physical: Vec<u64> = (0..stripes).map(first).collect();
                excluded_elements += check_against_model(&chunk(profile.name, MIB, &physical));
            }
        }
    }
    assert!(excluded_elements > 500, "{excluded_elements}");
}

fn check_against_model(chunk: &Chunk) -> usize {
    let layout = Layout::of(chunk).unwrap();
    let ranges = ChunkMap::new().superblock_exclusions(chunk);
    let mut hits = 0;
    for at in (0..chunk.length / STRIPE_LEN).map(|element| chunk.start.plus(element * STRIPE_LEN)) {
        let piece = layout.pieces(at, 1).next().unwrap();
        let mut addresses: Vec<u64> = match layout.parity() {
            0 => (0..layout.mirrors()).map(|mirror| layout.stripe_address(&piece, mirror).physical.0).collect(),
            _ => (0..layout.columns()).map(|column| layout.column_address(&piece, column).physical.0).collect(),
        };
        addresses.extend((0..layout.parity()).map(|which| layout.parity_address(&piece, which).physical.0));
        let expected = addresses
            .iter()
            .any(|&address| OFFSETS.iter().any(|copy| (address..address + STRIPE_LEN).contains(&copy.0)));
        let found = ranges.iter().any(|range| range.contains(&at));
        assert_eq!(found, expected, "{} at {at} of {chunk:?}", chunk.profile().name);
        hits += usize::from(found);
    }
    hits
}

#[test]
fn chunks_that_end_at_the_address_limit_do_not_overflow() {
    let mut last = chunk("RAID6", 8 * MIB, &[60 * MIB; 5]);
    last.start = Logical(u64::MAX - last.length);
    assert!(!ChunkMap::new().superblock_exclusions(&last).is_empty());
}
