//! A good superblock for every checksum, one planted violation per rule, and damaged bytes.

use super::*;
use crate::chunk::{Chunk, ChunkStripe, append_sys_chunk};
use crate::superblock::OFFSETS;
use crate::units::{DeviceId, Logical};

const AT: Physical = OFFSETS[0];

fn good() -> Superblock {
    let mut sb: Superblock = zerocopy::FromZeros::new_zeroed();
    sb.magic = MAGIC;
    sb.bytenr = AT.0.into();
    sb.flags = 1.into();
    (sb.fsid, sb.dev_item.fsid) = ([7; 16], [7; 16]);
    sb.sectorsize = 4096.into();
    sb.stripesize = 4096.into();
    (sb.nodesize, sb.leafsize) = (16384.into(), 16384.into());
    (sb.root, sb.chunk_root) = (65536.into(), (1 << 20).into());
    sb.bytes_used = (6 * 16384).into();
    sb.num_devices = 1.into();
    sb.incompat_flags = 0x361.into();
    let stripe = ChunkStripe { device: DeviceId(1), physical: Physical(1 << 20), dev_uuid: [1; 16] };
    assert!(append_sys_chunk(&mut sb, &Chunk::new(Logical(1 << 20), 4 << 20, 2, 4096, vec![stripe])));
    sb
}

fn parse(mut sb: Superblock, at: Physical) -> Result<Superblock, SuperblockError> {
    sb.seal();
    Superblock::parse(sb.as_bytes(), at)
}

#[test]
fn a_sealed_superblock_parses_with_every_checksum() {
    for kind in 0..4 {
        let mut sb = good();
        sb.csum_type = kind.into();
        sb.seal();
        assert_eq!(Superblock::parse(sb.as_bytes(), AT), Ok(sb), "checksum kind {kind}");
    }
}

#[test]
fn with_a_metadata_uuid_the_device_carries_that() {
    let mut sb = good();
    sb.incompat_flags = (0x361 | incompat::METADATA_UUID).into();
    assert!(parse(sb, AT).is_err());
    (sb.metadata_uuid, sb.dev_item.fsid) = ([9; 16], [9; 16]);
    parse(sb, AT).unwrap();
}

#[test]
fn the_commit_before_is_the_last_one_that_had_a_superblock() {
    let mut sb = good();
    let previous = |sb: &Superblock| sb.previous_commit().0;
    sb.generation = 9.into();
    assert_eq!(previous(&sb), 8, "nothing is remembered");
    (sb.super_roots[0].tree_root_gen, sb.super_roots[1].tree_root_gen) = (9.into(), 5.into());
    (sb.super_roots[2].tree_root_gen, sb.super_roots[3].tree_root_gen) = (6.into(), 7.into());
    assert_eq!(previous(&sb), 7);
    sb.super_roots[3].tree_root_gen = 8.into();
    assert_eq!(previous(&sb), 8);
}

type Damage = fn(&mut Superblock);

#[test]
fn each_rule_is_checked() {
    let cases: &[(&str, Damage)] = &[
        ("sys_chunk_array: ", |sb| sb.sys_chunk_array_size = 0.into()),
        ("bytenr", |sb| sb.bytenr = OFFSETS[1].0.into()),
        ("invalid sectorsize 0", |sb| sb.sectorsize = 0.into()),
        ("invalid sectorsize 2048", |sb| sb.sectorsize = 2048.into()),
        ("invalid sectorsize 4097", |sb| sb.sectorsize = 4097.into()),
        ("invalid sectorsize 131072", |sb| sb.sectorsize = 131072.into()),
        ("invalid nodesize 2048", |sb| sb.nodesize = 2048.into()),
        ("invalid nodesize 12288", |sb| sb.nodesize = 12288.into()),
        ("invalid nodesize 131072", |sb| sb.nodesize = 131072.into()),
        ("invalid leafsize 4096", |sb| sb.leafsize = 4096.into()),
        ("invalid stripesize 0", |sb| sb.stripesize = 0.into()),
        ("differ with mixed block groups", |sb| sb.incompat_flags = 0x365.into()),
        ("tree_root level too big: 8", |sb| sb.root_level = 8),
        ("chunk_root level too big: 8", |sb| sb.chunk_root_level = 8),
        ("log_root level too big: 8", |sb| sb.log_root_level = 8),
        ("tree_root block unaligned", |sb| sb.root = 1.into()),
        ("chunk_root block unaligned", |sb| sb.chunk_root = 1.into()),
        ("log_root block unaligned", |sb| sb.log_root = 1.into()),
        ("tree_root block is 0", |sb| sb.root = 0.into()),
        ("dev_item UUID does not match", |sb| sb.dev_item.fsid = [8; 16]),
        ("bytes_used is too small", |sb| sb.bytes_used = (6 * 16384 - 1).into()),
        ("number of devices is 0", |sb| sb.num_devices = 0.into()),
    ];
    for (word, damage) in cases {
        let mut sb = good();
        damage(&mut sb);
        let error = parse(sb, AT).unwrap_err();
        assert!(error.to_string().contains(word) && error.is_corruption(), "{word}: {error}");
    }
}

#[test]
fn foreign_and_damaged_superblocks_are_distinguished() {
    let mut sb = good();
    sb.seal();
    let bytes = sb.as_bytes();
    assert_eq!(Superblock::parse(&bytes[..4095], AT), Err(SuperblockError::NotBtrfs));
    assert_eq!(Superblock::parse(&[0; 4096], AT), Err(SuperblockError::NotBtrfs));
    assert!(!SuperblockError::NotBtrfs.is_corruption());
    sb.csum_type = 4.into();
    assert_eq!(parse(sb, AT), Err(SuperblockError::UnknownChecksumKind(4)));
}

#[test]
fn every_flipped_bit_is_seen() {
    let mut sb = good();
    sb.seal();
    let mut bytes = sb.as_bytes().to_vec();
    for bit in 0..4096 * 8 {
        // With CRC-32C the checksum field has 4 bytes; what follows them is not compared.
        if (32..256).contains(&bit) {
            continue;
        }
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(Superblock::parse(&bytes, AT).is_err(), "bit {bit}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}
