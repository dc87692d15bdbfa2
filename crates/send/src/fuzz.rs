//! Entry points for fuzzers: streams from any bytes, and the rules that must hold for them.
//!
//! Random bytes hardly ever have the right checksums, so [`sealed`] gives them; [`mutated`] disturbs a stream that
//! makes sense. Nothing here is random by itself.

use crate::apply::{self, Error, Observer, Options, StreamTarget, Summary};
use crate::wire::{COMMAND_HEADER_LEN, Command, Decoder, Event, STREAM_HEADER_LEN, Version, encode, encode_header};
use butterfs_ondisk::checksum::crc32c_raw;

/// Bytes as a stream come to an end, and what they decode to encodes to the same.
///
/// # Panics
/// When that does not hold.
pub fn wire(data: &[u8]) {
    let mut decoder = Decoder::new(data);
    let (mut version, mut again) = (Version::V1, Vec::new());
    loop {
        match decoder.next() {
            Ok(None) => return,
            Ok(Some(Event::Header(found))) => version = found,
            Ok(Some(Event::Command(_, command))) => {
                again.clear();
                encode_header(version, &mut again);
                encode(&command, version, &mut again).expect("what was decoded fits");
                let mut second = Decoder::new(&again[..]);
                assert!(matches!(second.next(), Ok(Some(Event::Header(_)))));
                match second.next() {
                    Ok(Some(Event::Command(_, same))) => assert_eq!(same, command),
                    other => panic!("{command:?} became {other:?}"),
                }
            }
            Err(error) if error.is_passable() => {}
            Err(_) => return,
        }
    }
}

/// Cuts bytes into commands with right lengths and checksums: two bytes say which command, one how long in units of
/// four bytes, and so on. The result is a stream of version 2 that begins a subvolume and has an end.
pub fn sealed(mut data: &[u8]) -> Vec<u8> {
    let mut stream = Vec::new();
    encode_header(Version::V2, &mut stream);
    let subvol = Command::Subvol { path: b"s", uuid: [1; 16], transid: 1 };
    encode(&subvol, Version::V2, &mut stream).expect("it is short");
    while let Some((&[number, len], rest)) = data.split_first_chunk::<2>() {
        let (payload, rest) = rest.split_at(rest.len().min(usize::from(len) * 4));
        seal(u16::from(number) % 30, payload, &mut stream);
        data = rest;
    }
    encode(&Command::End {}, Version::V2, &mut stream).expect("it is short");
    stream
}

/// Appends a command of these bytes.
fn seal(number: u16, payload: &[u8], stream: &mut Vec<u8>) {
    let start = stream.len();
    stream.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    stream.extend_from_slice(&number.to_le_bytes());
    stream.extend_from_slice(&[0; 4]);
    stream.extend_from_slice(payload);
    let crc = crc32c_raw(0, &stream[start..]);
    stream[start + 6..start + COMMAND_HEADER_LEN].copy_from_slice(&crc.to_le_bytes());
}

/// The commands of a stream without its header, each as its bytes.
pub fn commands(mut stream: &[u8]) -> Vec<Vec<u8>> {
    let mut parts = Vec::new();
    while let Some(len) = stream.first_chunk::<4>() {
        let len = (u32::from_le_bytes(*len) as usize).saturating_add(COMMAND_HEADER_LEN).min(stream.len());
        let (part, rest) = stream.split_at(len);
        parts.push(part.to_vec());
        stream = rest;
    }
    parts
}

/// A stream of version 2 of these commands, of which some are left out, repeated, exchanged or changed, with right
/// checksums and perhaps an end.
pub fn mutated(parts: &[Vec<u8>], random: &mut dyn FnMut() -> u64) -> Vec<u8> {
    let mut parts = parts.to_vec();
    for _ in 0..1 + random() % 8 {
        let (from, to) = (random() as usize % parts.len(), random() as usize % parts.len());
        match random() % 6 {
            0 => parts.swap(from, to),
            1 => parts.insert(to, parts[from].clone()),
            2 if parts.len() > 2 => drop(parts.remove(from)),
            3 => parts[from][4] = (random() % 28) as u8,
            _ => {
                let part = &mut parts[from];
                let at = COMMAND_HEADER_LEN + random() as usize % (part.len() - COMMAND_HEADER_LEN).max(1);
                if let Some(byte) = part.get_mut(at) {
                    *byte = [b'/', b'.', 0, 255, random() as u8][random() as usize % 5];
                }
            }
        }
    }
    let mut stream = Vec::with_capacity(STREAM_HEADER_LEN + parts.iter().map(Vec::len).sum::<usize>());
    encode_header(Version::V2, &mut stream);
    for part in parts {
        seal(u16::from(part[4]), &part[COMMAND_HEADER_LEN..], &mut stream);
    }
    if random().is_multiple_of(2) {
        seal(21, b"", &mut stream);
    }
    stream
}

/// A stream is applied to the end, whatever it is; every error is counted and says where it is.
///
/// # Panics
/// When that does not hold.
pub fn apply(stream: &[u8], target: &mut dyn StreamTarget, max_errors: u64) -> Summary {
    struct Count(u64);

    impl Observer for Count {
        fn error(&mut self, error: &Error) {
            self.0 += 1;
            let text = error.to_string();
            let placed = matches!(error, Error::Empty | Error::Sync(_)) || text.contains(" of the stream");
            assert!(placed, "an error without a place: {text}");
        }
    }

    let mut count = Count(0);
    let summary = apply::receive(stream, target, &Options { max_errors, first_stream_only: false }, &mut count);
    assert_eq!(summary.errors, count.0);
    assert!(max_errors == 0 || summary.errors <= max_errors + 1, "{summary:?}");
    summary
}
