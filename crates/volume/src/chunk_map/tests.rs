//! Looking up, inserting, overlaps, hostile chunks.

use super::*;
use butterfs_ondisk::chunk::ChunkStripe;
use butterfs_ondisk::items::block_group_flags as bits;
use butterfs_ondisk::{DeviceId, Physical};

const MIB: u64 = 1 << 20;

fn single(start: u64, length: u64) -> Chunk {
    let stripe = ChunkStripe { device: DeviceId(1), physical: Physical(start), dev_uuid: [1; 16] };
    Chunk::new(Logical(start), length, bits::DATA, 4096, vec![stripe])
}

fn starts(map: &ChunkMap) -> Vec<u64> {
    map.iter().map(|chunk| chunk.start.0 / MIB).collect()
}

#[test]
fn an_address_finds_the_chunk_around_it() {
    let map = ChunkMap::from_chunks([single(8 * MIB, MIB), single(MIB, 2 * MIB), single(3 * MIB, MIB)]).unwrap();
    let cases = [
        (0, None),
        (MIB - 1, None),
        (MIB, Some(1)),
        (3 * MIB - 1, Some(1)),
        (3 * MIB, Some(3)),
        (4 * MIB, None),
        (8 * MIB, Some(8)),
        (9 * MIB, None),
        (u64::MAX, None),
    ];
    for (at, expected) in cases {
        assert_eq!(map.get(Logical(at)).map(|chunk| chunk.start.0 / MIB), expected, "{at}");
    }
}

#[test]
fn a_range_lies_in_one_chunk_or_in_none() {
    let map = ChunkMap::from_chunks([single(MIB, MIB), single(2 * MIB, MIB)]).unwrap();
    let cases = [(MIB, MIB, true), (MIB, MIB + 1, false), (2 * MIB - 1, 1, true), (2 * MIB - 1, 2, false)];
    for (at, len, expected) in cases {
        assert_eq!(map.get_range(Logical(at), len).is_some(), expected, "{at} {len}");
    }
    assert!(map.get_range(Logical(MIB), u64::MAX).is_none());
}

#[test]
fn overlaps_are_refused_and_change_nothing() {
    let mut map = ChunkMap::from_chunks([single(2 * MIB, MIB), single(5 * MIB, MIB)]).unwrap();
    let before = map.clone();
    for (start, length) in [(2 * MIB, MIB), (MIB, MIB + 4096), (2 * MIB + 4096, MIB), (MIB, 8 * MIB), (5 * MIB, 4096)] {
        assert!(map.insert(single(start, length)).is_err(), "{start}");
        assert_eq!(map, before);
    }
    for start in [MIB, 3 * MIB, 6 * MIB, 4 * MIB] {
        map.insert(single(start, MIB)).unwrap();
    }
    assert_eq!(starts(&map), [1, 2, 3, 4, 5, 6]);
    assert_eq!(map.remove(Logical(3 * MIB)).map(|chunk| chunk.length), Some(MIB));
    assert!(map.remove(Logical(3 * MIB)).is_none() && map.remove(Logical(4 * MIB + 1)).is_none());
    assert_eq!(starts(&map), [1, 2, 4, 5, 6]);
}

#[test]
fn a_list_with_overlaps_makes_no_map() {
    assert!(ChunkMap::from_chunks([single(MIB, 2 * MIB), single(2 * MIB, MIB)]).is_err());
    assert!(ChunkMap::from_chunks([single(MIB, MIB), single(MIB, 2 * MIB)]).is_err());
    assert_eq!(ChunkMap::from_chunks([single(MIB, MIB), single(MIB, MIB)]).unwrap().len(), 1);
}

#[test]
fn hostile_chunks_are_refused() {
    let broken = [
        Chunk { length: 0, ..single(MIB, MIB) },
        Chunk { stripes: Vec::new(), ..single(MIB, MIB) },
        Chunk { kind: bits::DATA | bits::RAID1, ..single(MIB, MIB) },
        Chunk { kind: bits::DATA | bits::RAID0 | bits::DUP, ..single(MIB, MIB) },
        Chunk { start: Logical(u64::MAX), ..single(MIB, MIB) },
        Chunk { stripe_len: 0, ..single(MIB, MIB) },
    ];
    for chunk in broken {
        assert!(ChunkMap::new().insert(chunk.clone()).is_err(), "{chunk:?}");
        assert!(ChunkMap::from_chunks([chunk]).is_err());
    }
}
