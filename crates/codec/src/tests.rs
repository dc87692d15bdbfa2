//! Vectors and hostile input for the codecs.

use super::*;

const SECTOR: u32 = 4096;
const ALL: [Algorithm; 3] = [Algorithm::Zlib, Algorithm::Lzo, Algorithm::Zstd];

/// Words with stretches of noise: the content of the files that the kernel compressed for `tests/data/codec`.
fn text(len: usize) -> Vec<u8> {
    const WORDS: [&str; 13] =
        ["extent", "leaf", "node", "tree", "generation", "checksum", "inode", "a", "the", "of", "and", "root", "log"];
    let mut noise = Noise(1);
    let mut out = Vec::new();
    while out.len() < len {
        let r = noise.next();
        if r.is_multiple_of(16) {
            out.extend((0..64).map(|_| noise.next() as u8));
        } else {
            out.extend_from_slice(WORDS[r as usize % 13].as_bytes());
            out.push(b' ');
        }
    }
    out.truncate(len);
    out
}

/// The generator that the content of the stored streams was made with.
struct Noise(u32);

impl Noise {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(1664525).wrapping_add(1013904223);
        self.0 >> 16
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

fn compress(algorithm: Algorithm, level: i32, input: &[u8], sector: u32) -> Option<Vec<u8>> {
    Encoder::default().compress(Method { algorithm, level }, input, sector)
}

fn compress_inline(algorithm: Algorithm, level: i32, input: &[u8], limit: usize, sector: u32) -> Option<Vec<u8>> {
    Encoder::default().compress_inline(Method { algorithm, level }, input, limit, sector)
}

macro_rules! vector {
    ($name:literal) => {
        include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/codec/", $name)).as_slice()
    };
}

/// Streams that Linux 6.18 wrote: of files of 1500 bytes (inline), 5000 and 40000 bytes.
const KERNEL: [(Algorithm, &[u8], usize); 9] = [
    (Algorithm::Zlib, vector!("inline.zlib"), 1500),
    (Algorithm::Zlib, vector!("short.zlib"), 5000),
    (Algorithm::Zlib, vector!("long.zlib"), 40000),
    (Algorithm::Lzo, vector!("inline.lzo"), 1500),
    (Algorithm::Lzo, vector!("short.lzo"), 5000),
    (Algorithm::Lzo, vector!("long.lzo"), 40000),
    (Algorithm::Zstd, vector!("inline.zstd"), 1500),
    (Algorithm::Zstd, vector!("short.zstd"), 5000),
    (Algorithm::Zstd, vector!("long.zstd"), 40000),
];

#[test]
fn the_kernels_streams_decode() {
    for (algorithm, stream, len) in KERNEL {
        let mut out = vec![0xaa; len.next_multiple_of(4096)];
        let produced = decompress(algorithm, stream, &mut out, SECTOR).unwrap();
        assert!(produced >= len, "{algorithm:?} {len}: {produced}");
        assert!(out[..len] == text(len), "{algorithm:?} {len}");
        assert!(out[len..].iter().all(|&b| b == 0), "{algorithm:?} {len}: the tail is zero");
    }
}

#[test]
fn output_is_cut_at_the_buffers_end() {
    for (algorithm, stream, len) in KERNEL {
        for want in [1, len / 2, len - 1] {
            let mut out = vec![0xaa; want];
            assert_eq!(decompress(algorithm, stream, &mut out, SECTOR).as_ref(), Ok(&want));
            assert!(out == text(want));
        }
    }
}

#[test]
fn a_truncated_stream_is_an_error() {
    for (algorithm, stream, len) in KERNEL {
        for keep in [0, 1, 3, 4, 7, 8, len / 8] {
            let mut out = vec![0xaa; len];
            assert!(decompress(algorithm, &stream[..keep], &mut out, SECTOR).is_err(), "{algorithm:?} {keep}");
        }
    }
}

/// Damaged streams give an error or some content, within the buffer, without a panic.
#[test]
fn hostile_streams_are_bounded() {
    let mut noise = Noise(99);
    let mut errors = 0;
    for round in 0..3000 {
        let (algorithm, stream, len) = KERNEL[round % KERNEL.len()];
        let mut stream = stream[..stream.len().min(6000)].to_vec();
        for _ in 0..1 + noise.next() % 8 {
            let at = noise.next() as usize % stream.len();
            stream[at] = noise.next() as u8;
        }
        let mut out = vec![0; len];
        errors += usize::from(decompress(algorithm, &stream, &mut out, SECTOR).is_err());
    }
    for round in 0..3000 {
        let len = noise.next() as usize % 300;
        let stream = noise.bytes(len);
        errors += usize::from(decompress(ALL[round % 3], &stream, &mut [0; 8192], SECTOR).is_err());
        let _ = lzo1x::decompress(&stream, &mut [0; 4096]);
    }
    assert!(errors > 3000, "{errors}");
}

#[test]
fn compressed_data_decodes_to_the_original() {
    let mut noise = Noise(5);
    let inputs = [
        text(131072),
        text(100_001),
        text(4097),
        text(8192),
        vec![0; 131072],
        vec![7; 12289],
        [vec![1; 5000], noise.bytes(9000), text(9000)].concat(),
        [text(20000), noise.bytes(30), text(20000)].concat(),
        noise.bytes(300).repeat(100),
    ];
    for input in &inputs {
        for algorithm in ALL {
            for sector in [4096, 16384, 65536] {
                for level in [1, 3, 9] {
                    round_trip(algorithm, level, input, sector);
                }
            }
        }
    }
}

fn round_trip(algorithm: Algorithm, level: i32, input: &[u8], sector: u32) {
    let whole = input.len().next_multiple_of(sector as usize);
    let Some(mut stream) = compress(algorithm, level, input, sector) else {
        assert!(whole <= 2 * sector as usize || algorithm == Algorithm::Lzo, "{algorithm:?} {}", input.len());
        return;
    };
    assert!(stream.len() <= whole - sector as usize);
    stream.resize(stream.len().next_multiple_of(sector as usize), 0);
    let mut out = vec![0xaa; whole];
    assert_eq!(decompress(algorithm, &stream, &mut out, sector).as_ref(), Ok(&input.len()), "{algorithm:?}");
    assert!(out[..input.len()] == *input && out[input.len()..].iter().all(|&b| b == 0));
}

#[test]
fn noise_and_single_sectors_stay_uncompressed() {
    for algorithm in ALL {
        assert_eq!(compress(algorithm, 3, &Noise(3).bytes(20000), SECTOR), None);
        assert_eq!(compress(algorithm, 3, &[0; 4096], SECTOR), None);
        assert_eq!(compress_inline(algorithm, 3, &Noise(3).bytes(900), 2048, SECTOR), None);
        let stream = compress_inline(algorithm, 3, &text(1500), 2048, SECTOR).unwrap();
        let mut out = [0; 1500];
        assert_eq!(decompress(algorithm, &stream, &mut out, SECTOR).as_ref(), Ok(&1500));
        assert!(out == *text(1500));
    }
}

#[test]
fn an_encoder_that_failed_works_on() {
    let mut encoder = Encoder::default();
    for algorithm in ALL {
        let method = Method { algorithm, level: 5 };
        for _ in 0..2 {
            assert_eq!(encoder.compress(method, &Noise(3).bytes(20000), SECTOR), None);
            assert_eq!(encoder.compress(method, &text(20000), SECTOR), compress(algorithm, 5, &text(20000), SECTOR));
        }
        assert!(encoder.compress(method, &text(20000), SECTOR).is_some());
    }
}

/// Another implementation of LZO reads our blocks, and we read its.
#[test]
fn lzo_blocks_agree_with_another_implementation() {
    let mut noise = Noise(17);
    let mut matcher = lzo1x::Matcher::default();
    for round in 0..400 {
        let from = noise.next() as usize % 30000;
        let mut input = text(40000)[from..from + noise.next() as usize % 10000].to_vec();
        if round % 3 == 0 {
            let repeat = input[..input.len() / 3].to_vec();
            input.extend_from_slice(&noise.bytes(round * 3));
            input.extend_from_slice(&repeat);
        }
        if input.is_empty() {
            continue;
        }
        let mut ours = Vec::new();
        matcher.compress(&input, &mut ours);
        assert!(lzokay_native::decompress_all(&ours, None).unwrap() == input);
        let theirs = lzokay_native::compress(&input).unwrap();
        let mut out = vec![0; input.len() + 10];
        assert_eq!(lzo1x::decompress(&theirs, &mut out), Ok(input.len()));
        assert!(out[..input.len()] == input);
    }
}

/// Matches farther than 16 KiB have an instruction of their own; long runs extend their lengths.
#[test]
fn lzo_far_matches_and_long_runs() {
    let mut noise = Noise(23);
    let far = noise.bytes(64);
    for gap in [16000, 16383, 16384, 16385, 30000, 49000, 49151, 49152, 60000] {
        let mut input = far.clone();
        input.extend(noise.bytes(gap - 64));
        input.extend_from_slice(&far);
        input.extend(vec![3; 3000]);
        let mut block = Vec::new();
        lzo1x::Matcher::default().compress(&input, &mut block);
        let mut out = vec![0; input.len()];
        assert_eq!(lzo1x::decompress(&block, &mut out), Ok(input.len()));
        assert!(out == input, "{gap}");
        assert!(lzokay_native::decompress_all(&block, None).unwrap() == input, "{gap}");
    }
}
