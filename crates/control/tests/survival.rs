//! Every variant of every message survives encoding and decoding. The tables are complete: their names are compared
//! with those of the types.

mod samples;

use butterfs_control::{Message, Reply, decode, encode};
use std::fmt::Debug;

fn survive<M: Message + PartialEq + Debug>(samples: &[M]) {
    let mut seen = vec![false; M::VARIANTS.len()];
    for sample in samples {
        let bytes = encode(sample).expect("short");
        assert_eq!(decode::<M>(&bytes).as_ref(), Ok(sample));
        seen[usize::from(bytes[0])] = true;
        assert!(format!("{sample:?}").starts_with(M::VARIANTS[usize::from(bytes[0])]), "{sample:?}");
    }
    let missing = M::VARIANTS.iter().zip(seen).filter(|(_, seen)| !seen);
    assert_eq!(missing.map(|(name, _)| *name).collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn messages_survive() {
    survive(&samples::questions());
    survive(&samples::stream_questions());
    survive(&samples::replies());
}

#[test]
fn replies_survive_a_stream() {
    let all = samples::replies();
    let bytes: Vec<u8> = all.iter().flat_map(|reply| reply.frame().expect("short")).collect();
    let mut stream = bytes.as_slice();
    for reply in &all {
        assert_eq!(&butterfs_control::read_reply(&mut stream).expect("a reply"), reply);
    }
    assert!(stream.is_empty() && butterfs_control::read_reply(&mut stream).is_err());
}

#[test]
fn records_lead_back_to_their_types() {
    use butterfs_control::{InodePath, Record, SubvolumeId};
    let record = Record::from(SubvolumeId(7));
    assert_eq!(SubvolumeId::try_from(record.clone()), Ok(SubvolumeId(7)));
    assert_eq!(InodePath::try_from(record.clone()), Err(record));
}

#[test]
fn messages_have_a_bound() {
    use butterfs_control::{InodePath, Question, REPLY_BYTES, Record, question};
    let label = |len| {
        let through = butterfs_control::InodeRef::Descriptor(0);
        Question::from(question::SetLabel { through, label: vec![0; len] })
    };
    assert!(encode(&label(4000)).is_ok());
    assert_eq!(encode(&label(4096)).expect_err("too long").most_bytes, 4096);
    let path = |len| Reply::Record(Record::from(InodePath(vec![0; len])));
    assert!(path(REPLY_BYTES - 100).frame().is_ok() && path(REPLY_BYTES).frame().is_err());
}
