//! Bytes from anybody: decoding never panics, and an error names what it is about.

mod samples;

use butterfs_control::{DecodeError, Message, Question, Reply, StreamQuestion, decode, encode, read_reply};
use butterfs_testkit::rng::Rng;
use std::fmt::Debug;

/// Numbers that are the same in every run.
struct Random(Rng);

impl Random {
    fn new(seed: u64) -> Random {
        Random(Rng::new(seed))
    }

    fn next(&mut self, below: usize) -> usize {
        self.0.index(below)
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.fill(&mut bytes);
        bytes
    }
}

/// Bytes that decode are encoded again, and decode to the same value.
fn digest<M: Message + PartialEq + Debug>(bytes: &[u8]) -> bool {
    let Ok(message) = decode::<M>(bytes) else { return false };
    assert_eq!(decode::<M>(&encode(&message).expect("not longer than what it came from")), Ok(message));
    true
}

fn digest_any(bytes: &[u8]) -> usize {
    [digest::<Question>(bytes), digest::<StreamQuestion>(bytes), digest::<Reply>(bytes)]
        .into_iter()
        .filter(|is| *is)
        .count()
}

#[test]
fn random_bytes_do_no_harm() {
    let mut random = Random::new(1);
    let mut decoded = 0;
    for _ in 0..200_000 {
        let len = random.next(40);
        let mut bytes = random.bytes(len);
        if let Some(first) = bytes.first_mut() {
            *first %= 32;
        }
        decoded += digest_any(&bytes);
        let _ = read_reply(&mut [&(len as u32).to_le_bytes()[..], &bytes].concat().as_slice());
        let _ = read_reply(&mut bytes.as_slice());
    }
    assert!(decoded > 1000, "only {decoded} were messages");
}

fn corrupt<M: Message + PartialEq + Debug>(samples: &[M], random: &mut Random) {
    for sample in samples {
        let whole = encode(sample).expect("short");
        for len in 0..whole.len() {
            assert!(decode::<M>(&whole[..len]).is_err(), "{sample:?} cut after {len}");
        }
        let longer = [&whole[..], &[0, 0]].concat();
        let variant = M::VARIANTS[usize::from(whole[0])];
        assert_eq!(decode::<M>(&longer), Err(DecodeError::TrailingBytes { variant, bytes: 2 }));
        for _ in 0..200 {
            let mut bytes = whole.clone();
            for _ in 0..=random.next(3) {
                let at = random.next(bytes.len());
                bytes[at] = random.next(256) as u8;
            }
            digest::<M>(&bytes);
        }
    }
}

#[test]
fn corrupt_messages_are_errors_or_other_messages() {
    let mut random = Random::new(2);
    corrupt(&samples::questions(), &mut random);
    corrupt(&samples::stream_questions(), &mut random);
    corrupt(&samples::replies(), &mut random);
}

#[test]
fn a_question_of_a_later_table_is_named() {
    let known = Question::VARIANTS.len();
    let mut later = vec![known as u8];
    later.extend([7; 20]);
    let error = decode::<Question>(&later).expect_err("nobody knows it");
    assert_eq!(error, DecodeError::Unknown { kind: "question", variant: known as u32, known });
    assert!(error.to_string().contains(&format!("number {known}")), "{error}");
}

#[test]
fn lengths_that_are_too_large_take_no_memory() {
    // SetLabel with a label of 4 GiB, StoreData with as many options, SendSubvolumes with as many clone sources.
    let huge = [0xff, 0xff, 0xff, 0xff, 0x0f];
    let verb = |name| Question::VARIANTS.iter().position(|known| *known == name).expect("a question") as u8;
    for start in [&[verb("SetLabel"), 0, 0][..], &[verb("StoreData")]] {
        assert!(decode::<Question>(&[start, &huge[..]].concat()).is_err());
    }
    assert!(decode::<StreamQuestion>(&[&[0, 1, 0, 0, 0][..], &huge].concat()).is_err());
    let mut stream = &[0xff, 0xff, 0xff, 0xff, 2][..];
    assert!(read_reply(&mut stream).expect_err("too long").to_string().contains("too long"));
    assert!(decode::<Question>(&vec![0; 5000]).expect_err("too long").to_string().contains("too long"));
}
