//! The system chunk array: round trips, and every way in which it can be malformed.

use super::*;

fn chunk(start: u64) -> Chunk {
    let stripe = |n: u64| ChunkStripe { device: DeviceId(1), physical: Physical(start + (n << 23)), dev_uuid: [3; 16] };
    Chunk::new(Logical(start), 8 << 20, bits::SYSTEM | bits::DUP, 4096, (0..2).map(stripe).collect())
}

fn superblock(chunks: &[Chunk]) -> Superblock {
    let mut sb: Superblock = zerocopy::FromZeros::new_zeroed();
    sb.sectorsize = 4096.into();
    for chunk in chunks {
        assert!(append_sys_chunk(&mut sb, chunk));
    }
    sb
}

#[test]
fn parsing_and_encoding_are_inverse() {
    let limits = ChunkLimits { sectorsize: 4096, incompat: 0 };
    let chunk = chunk(1 << 24);
    assert_eq!(Chunk::parse(chunk.start, &chunk.encode(), &limits), Ok(chunk.clone()));
    assert_eq!(chunk.stripe_length(), 8 << 20);
    assert_eq!(chunk.end(), Logical((1 << 24) + (8 << 20)));
}

#[test]
fn chunks_are_appended_and_removed() {
    let all = [chunk(1 << 24), chunk(2 << 24), chunk(3 << 24)];
    let mut sb = superblock(&all);
    assert_eq!(parse_sys_chunk_array(&sb).unwrap(), all);
    assert!(remove_sys_chunk(&mut sb, all[1].start));
    assert!(!remove_sys_chunk(&mut sb, all[1].start));
    assert_eq!(sb, superblock(&[all[0].clone(), all[2].clone()]), "the gap is closed and zeroed");
}

#[test]
fn a_full_array_takes_no_more() {
    let mut sb = superblock(&[]);
    let count = (1..).take_while(|n| append_sys_chunk(&mut sb, &chunk(n << 24))).count();
    assert_eq!(count, SYS_CHUNK_ARRAY_LEN / (KEY_LEN + 112));
    assert_eq!(parse_sys_chunk_array(&sb).unwrap().len(), count);
}

type Damage = fn(&mut Superblock);

#[test]
fn malformed_arrays_are_refused() {
    let cases: [(&str, Damage); 8] = [
        ("too big 2049", |sb| sb.sys_chunk_array_size = 2049.into()),
        ("too small 96", |sb| sb.sys_chunk_array_size = 96.into()),
        ("short system chunk array, 5 bytes", |sb| sb.sys_chunk_array_size = (129 + 5).into()),
        ("short system chunk array, 128 bytes", |sb| sb.sys_chunk_array_size = 128.into()),
        ("unexpected key", |sb| sb.sys_chunk_array[8] = 227),
        ("num_stripes, have 0", |sb| sb.sys_chunk_array[17 + 44] = 0),
        ("not SYSTEM", |sb| sb.sys_chunk_array[17 + 24] = bits::METADATA as u8 | bits::DUP as u8),
        ("invalid chunk stripe length", |sb| sb.sys_chunk_array[17 + 16] = 1),
    ];
    for (word, damage) in cases {
        let mut sb = superblock(&[chunk(1 << 24)]);
        damage(&mut sb);
        let error = parse_sys_chunk_array(&sb).unwrap_err();
        assert!(error.contains(word), "{word}: {error}");
    }
}
