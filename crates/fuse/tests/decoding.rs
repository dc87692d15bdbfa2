//! Requests with wrong lengths, missing ends and random content are refused or decoded, and nothing else happens.

use butterfs_fuse::protocol::request::{DecodeError, opcode};
use butterfs_fuse::protocol::wire::*;
use butterfs_fuse::protocol::{Operation, Request};
use butterfs_testkit::rng::Rng;
use zerocopy::IntoBytes;

/// A request with a right header around `body`.
fn request(opcode: u32, body: &[u8]) -> Vec<u8> {
    let len = (size_of::<InHeader>() + body.len()) as u32;
    let header = InHeader { len, opcode, unique: 77, nodeid: 5, ..InHeader::default() };
    [header.as_bytes(), body].concat()
}

/// One whole request of every shape: its operation and body.
fn whole() -> Vec<(u32, Vec<u8>)> {
    let write = WriteIn { size: 4, offset: 9, ..WriteIn::default() };
    let setxattr = SetxattrIn { size: 3, ..SetxattrIn::default() };
    let ioctl = IoctlIn { in_size: 2, ..IoctlIn::default() };
    let forget = BatchForgetIn { count: 2, dummy: 0 };
    let pair = [ForgetOne { nodeid: 1, nlookup: 2 }, ForgetOne { nodeid: 3, nlookup: 4 }];
    vec![
        (opcode::Lookup, b"name\0".to_vec()),
        (opcode::Forget, vec![0; 8]),
        (opcode::Setattr, vec![0; 88]),
        (opcode::Symlink, b"name\0target\0".to_vec()),
        (opcode::Mknod, [&[0; 16][..], b"n\0"].concat()),
        (opcode::Mkdir, [&[0; 8][..], b"n\0"].concat()),
        (opcode::Rename, [&[0; 8][..], b"a\0b\0"].concat()),
        (opcode::Rename2, [&[0; 16][..], b"a\0b\0"].concat()),
        (opcode::Link, [&[0; 8][..], b"a\0"].concat()),
        (opcode::Write, [write.as_bytes(), b"data"].concat()),
        (opcode::Setxattr, [setxattr.as_bytes(), b"user.x\0", b"val"].concat()),
        (opcode::Getxattr, [&[0; 8][..], b"user.x\0"].concat()),
        (opcode::Create, [&[0; 16][..], b"n\0"].concat()),
        (opcode::Ioctl, [ioctl.as_bytes(), b"in"].concat()),
        (opcode::BatchForget, [forget.as_bytes(), pair.as_bytes()].concat()),
        (opcode::CopyFileRange, vec![0; 56]),
        (opcode::Statx, vec![0; 24]),
    ]
}

#[test]
fn whole_requests_decode_and_shorter_ones_are_refused() {
    for (opcode, body) in whole() {
        let bytes = request(opcode, &body);
        assert_eq!(Request::decode(&bytes).unwrap().operation.opcode(), opcode);
        for len in 0..body.len() {
            let error = Request::decode(&request(opcode, &body[..len])).unwrap_err();
            assert_eq!(error, DecodeError::Malformed { unique: 77 }, "operation {opcode} cut to {len}");
        }
    }
}

#[test]
fn names_data_and_lists_are_what_was_sent() {
    let bytes = request(opcode::Symlink, b"name\0target\0");
    assert!(matches!(
        Request::decode(&bytes).unwrap().operation,
        Operation::Symlink { name: b"name", target: b"target" }
    ));
    let all = whole();
    let (_, body) = all.iter().find(|(opcode, _)| *opcode == opcode::Write).unwrap();
    let bytes = request(opcode::Write, body);
    assert!(matches!(
        Request::decode(&bytes).unwrap().operation,
        Operation::Write { arguments: WriteIn { offset: 9, .. }, data: b"data" }
    ));
    let (_, body) = all.iter().find(|(opcode, _)| *opcode == opcode::BatchForget).unwrap();
    let bytes = request(opcode::BatchForget, body);
    let Operation::BatchForget { nodes } = Request::decode(&bytes).unwrap().operation else { panic!() };
    assert_eq!(nodes.iter().map(|one| (one.nodeid, one.nlookup)).collect::<Vec<_>>(), [(1, 2), (3, 4)]);
}

#[test]
fn headers_that_lie_are_refused() {
    assert_eq!(Request::decode(&[0; 39]).unwrap_err(), DecodeError::NoHeader);
    let mut bytes = request(opcode::Getattr, &[0; 16]);
    bytes.push(0);
    assert_eq!(Request::decode(&bytes).unwrap_err(), DecodeError::Malformed { unique: 77 });
    assert_eq!(Request::decode(&request(4096, &[])).unwrap_err(), DecodeError::Unknown { unique: 77 });
    let header =
        InHeader { len: 40, opcode: opcode::Statfs, unique: 77, total_extlen: u16::MAX, ..InHeader::default() };
    assert_eq!(Request::decode(header.as_bytes()).unwrap_err(), DecodeError::Malformed { unique: 77 });
}

#[test]
fn extensions_are_no_part_of_the_data() {
    let body = [&[0; 16][..], b"n\0", &[0xff; 6], &[0xee; 16]].concat();
    let mut bytes = request(opcode::Create, &body);
    bytes[36..38].copy_from_slice(&2u16.to_ne_bytes());
    assert!(matches!(Request::decode(&bytes).unwrap().operation, Operation::Create { name: b"n", .. }));
}

#[test]
fn random_bytes_neither_panic_nor_hang() {
    let mut random = Rng::new(1);
    let (mut decoded, mut refused) = (0, 0);
    for _ in 0..200_000 {
        let body: Vec<u8> = (0..random.bits() % 160).map(|_| random.bits() as u8 & 0x83).collect();
        let bytes = request((random.bits() % 60) as u32, &body);
        match Request::decode(&bytes) {
            Ok(request) => {
                decoded += 1;
                if let Operation::BatchForget { nodes } = request.operation {
                    assert!(nodes.iter().count() * 16 <= body.len());
                }
            }
            Err(_) => refused += 1,
        }
    }
    assert!(decoded > 10_000 && refused > 10_000, "{decoded} decoded, {refused} refused: too one-sided to mean much");
}
