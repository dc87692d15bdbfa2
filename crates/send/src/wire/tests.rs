//! Encoding and decoding are inverse; every cut, every flipped bit and every kind of nonsense is an error that names
//! its place.

use super::*;
use butterfs_ondisk::checksum::crc32c_raw;

const TIME: Timespec = Timespec { sec: -5, nsec: 7 };

/// Every command once, with values that show whether two attributes change places.
fn every_command<'a>(data: &'a [u8]) -> Vec<Command<'a>> {
    vec![
        Command::Subvol { path: b"s", uuid: [1; 16], transid: 2 },
        Command::Snapshot { path: b"t", uuid: [3; 16], transid: 4, parent_uuid: [5; 16], parent_transid: 6 },
        Command::Mkfile { path: b"a", ino: 257 },
        Command::Mkdir { path: b"d", ino: 258 },
        Command::Mknod { path: b"n", ino: 259, rdev: 0x501, mode: 0o20644 },
        Command::Mkfifo { path: b"f", ino: 260, rdev: 0, mode: 0o10600 },
        Command::Mksock { path: b"k", ino: 261, rdev: 0, mode: 0o140600 },
        Command::Symlink { path: b"l", ino: 262, target: b"../small" },
        Command::Rename { path: b"a", to: b"d/sp ace\nnl" },
        Command::Link { path: b"d/hard", existing: b"big" },
        Command::Unlink { path: b"u" },
        Command::Rmdir { path: b"r" },
        Command::SetXattr { path: b"", name: b"user.y", value: b"2 \0" },
        Command::RemoveXattr { path: b"x", name: b"user.x" },
        Command::Write { path: b"w", offset: 131072, data },
        Command::Clone {
            offset: 8192,
            len: 4096,
            path: b"to",
            source_uuid: [7; 16],
            source_transid: 8,
            source: b"from",
            source_offset: 16384,
        },
        Command::Truncate { path: b"t", size: 1 << 40 },
        Command::Chmod { path: b"c", mode: 0o4755 },
        Command::Chown { path: b"c", uid: 1, gid: 2 },
        Command::Utimes { path: b"", atime: TIME, mtime: Timespec { sec: 1, nsec: 2 }, ctime: TIME, otime: None },
        Command::Utimes { path: b"o", atime: TIME, mtime: TIME, ctime: TIME, otime: Some(TIME) },
        Command::UpdateExtent { path: b"e", offset: 3, len: 4 },
        Command::Fallocate { path: b"h", mode: 3, offset: 4096, len: 8192 },
        Command::Fileattr { path: b"g", flags: 16 },
        Command::EncodedWrite {
            path: b"z",
            offset: 4096,
            unencoded_file_len: 1,
            unencoded_len: 2,
            unencoded_offset: 3,
            compression: 2,
            encryption: 0,
            data,
        },
        Command::EnableVerity { path: b"v", algorithm: 1, block_size: 4096, salt: b"", signature: b"sig" },
        Command::End {},
    ]
}

fn stream(version: Version, commands: &[Command<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    encode_header(version, &mut out);
    commands.iter().for_each(|command| encode(command, version, &mut out).unwrap());
    out
}

/// A reader that gives one to three bytes at a time.
struct Trickle<'a>(&'a [u8]);

impl std::io::Read for Trickle<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let len = (1 + self.0.len() % 3).min(buffer.len()).min(self.0.len());
        buffer[..len].copy_from_slice(&self.0[..len]);
        self.0 = &self.0[len..];
        Ok(len)
    }
}

#[test]
fn decoding_inverts_encoding() {
    let data: Vec<u8> = (0..60_000u32).map(|at| at as u8).collect();
    let commands = every_command(&data);
    let numbers: std::collections::BTreeSet<u16> = commands.iter().map(Command::number).collect();
    assert_eq!(numbers, command::TABLE.iter().map(|(number, _)| *number).collect(), "a command is not tested");
    for version in [Version::V1, Version::V2, Version::V3] {
        let once = stream(version, &commands);
        let twice = [&once[..], &once[..]].concat();
        let mut decoder = Decoder::new(Trickle(&twice));
        for _ in 0..2 {
            assert_eq!(decoder.next().unwrap(), Some(Event::Header(version)));
            for wanted in &commands {
                let at = decoder.offset();
                let Some(Event::Command(position, command)) = decoder.next().unwrap() else { panic!("{wanted:?}") };
                assert_eq!((position.offset, position.command, command), (at, wanted.number(), *wanted));
            }
        }
        assert_eq!(decoder.next().unwrap(), None);
        assert_eq!(decoder.offset(), twice.len() as u64);
    }
}

#[test]
fn sizes_are_those_of_the_kernel() {
    let len = |command: &Command<'_>, version| {
        let mut out = Vec::new();
        encode(command, version, &mut out).unwrap();
        out.len()
    };
    let write = Command::Write { path: b"12345", offset: 0, data: b"123" };
    assert_eq!((len(&write, Version::V1), len(&write, Version::V2)), (30 + 5 + 3, 28 + 5 + 3));
    assert_eq!(len(&Command::Subvol { path: b"A1", uuid: [0; 16], transid: 0 }, Version::V1), 48);
    assert_eq!(len(&Command::Mkdir { path: b"123", ino: 0 }, Version::V1), 29);
    assert_eq!(len(&Command::End {}, Version::V1), 10);
    let times = |otime| Command::Utimes { path: b"", atime: TIME, mtime: TIME, ctime: TIME, otime };
    assert_eq!((len(&times(None), Version::V1), len(&times(Some(TIME)), Version::V2)), (62, 78));
}

#[test]
fn filling_equals_giving() {
    for version in [Version::V1, Version::V2] {
        let (mut given, mut filled) = (vec![9], vec![9]);
        encode(&Command::Write { path: b"p", offset: 5, data: b"content" }, version, &mut given).unwrap();
        let head = Command::Write { path: b"p", offset: 5, data: b"" };
        let fill = |out: &mut Vec<u8>| -> Result<(), Unencodable> {
            out.extend_from_slice(b"content");
            Ok(())
        };
        encode_filled(&head, version, &mut filled, fill).unwrap();
        assert_eq!(given, filled);
        let mut split = vec![9];
        encode_write_head(b"p", 5, b"content", version, &mut split).unwrap();
        split.extend_from_slice(b"content");
        assert_eq!(given, split);
    }
}

#[test]
fn an_attribute_that_does_not_fit_is_refused_and_appends_nothing() {
    let long = vec![b'x'; 1 << 16];
    let mut out = b"before".to_vec();
    for command in [Command::Unlink { path: &long }, Command::Write { path: b"", offset: 0, data: &long }] {
        assert!(encode(&command, Version::V1, &mut out).is_err());
    }
    let fill = |out: &mut Vec<u8>| -> Result<(), Unencodable> {
        out.extend_from_slice(&long);
        Ok(())
    };
    let head = Command::Write { path: b"", offset: 0, data: b"" };
    let error = encode_filled(&head, Version::V1, &mut out, fill).unwrap_err();
    assert_eq!(error.to_string(), "write: Data is too long for the stream");
    assert!(encode_write_head(b"", 0, &long, Version::V1, &mut out).is_err());
    assert_eq!(out, b"before");
    assert!(encode_filled(&head, Version::V2, &mut out, fill).is_ok());
}

/// Everything that the bytes decode to, up to the first error that cannot be passed.
fn drain(bytes: &[u8]) -> (usize, Vec<Error>) {
    let mut decoder = Decoder::new(bytes);
    let (mut commands, mut errors) = (0, Vec::new());
    loop {
        match decoder.next() {
            Ok(Some(_)) => commands += 1,
            Ok(None) => return (commands, errors),
            Err(error) => {
                let fatal = !error.is_passable();
                errors.push(error);
                if fatal {
                    assert!(decoder.next().is_err(), "a fatal error was passed");
                    return (commands, errors);
                }
            }
        }
    }
}

#[test]
fn every_cut_is_found() {
    let whole = stream(Version::V2, &every_command(b"content"));
    assert!(drain(&whole).1.is_empty());
    for len in 1..whole.len() {
        let (_, errors) = drain(&whole[..len]);
        assert_eq!(errors.len(), 1, "{len}");
        assert!(matches!(errors[0].kind, ErrorKind::Truncated | ErrorKind::NoEnd), "{len}: {}", errors[0]);
        assert!(errors[0].offset <= len as u64);
    }
}

#[test]
fn every_flipped_bit_is_found() {
    let whole = stream(Version::V1, &every_command(b"content"));
    for bit in 0..whole.len() * 8 {
        let mut flipped = whole.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let version = u32::from_le_bytes([flipped[13], flipped[14], flipped[15], flipped[16]]);
        // The version is the one thing without a checksum.
        let (_, errors) = drain(&flipped);
        let other_version = version != 1 && Version::from_raw(version).is_some();
        assert!(!errors.is_empty() || other_version, "{bit}");
    }
}

/// A command from a number and raw attributes, with the right length and checksum.
fn raw(number: u16, payload: &[u8]) -> Vec<u8> {
    let mut out = [&(payload.len() as u32).to_le_bytes()[..], &number.to_le_bytes(), &[0; 4], payload].concat();
    let crc = crc32c_raw(0, &out);
    out[6..10].copy_from_slice(&crc.to_le_bytes());
    out
}

fn attribute(number: u16, value: &[u8]) -> Vec<u8> {
    [&number.to_le_bytes()[..], &(value.len() as u16).to_le_bytes(), value].concat()
}

/// The only error that a version 1 stream with this command and END behind it gives.
fn refusal(number: u16, payload: &[u8]) -> String {
    let mut bytes = stream(Version::V1, &[]);
    bytes.extend(raw(number, payload));
    bytes.extend(raw(21, b""));
    let (commands, mut errors) = drain(&bytes);
    assert_eq!((commands, errors.len()), (2, 1), "header and END are decoded: {errors:?}");
    errors.remove(0).to_string()
}

#[test]
fn nonsense_is_named() {
    let cases: &[(u16, Vec<u8>, &str)] = &[
        (11, vec![], "unlink at byte 17 of the stream: attribute 15 (Path) requested but not present"),
        (11, vec![15], "unlink at byte 17 of the stream: an attribute reaches behind the end of the command"),
        (
            11,
            vec![15, 0, 5, 0, b'a'],
            "unlink at byte 17 of the stream: an attribute reaches behind the end of the command",
        ),
        (11, attribute(15, b"a\0b"), "unlink at byte 17 of the stream: attribute 15 (Path): text holds a NUL"),
        (11, attribute(0, b""), "unlink at byte 17 of the stream: attribute 0 is not known"),
        (11, attribute(36, b""), "unlink at byte 17 of the stream: attribute 36 is not known"),
        (
            17,
            [attribute(15, b"a"), attribute(4, b"1234")].concat(),
            "truncate at byte 17 of the stream: attribute 4 (Size): invalid size for attribute, expected = 8, got = 4",
        ),
    ];
    for (number, payload, sentence) in cases {
        assert_eq!(refusal(*number, payload), *sentence);
    }
}

#[test]
fn attributes_repeat_are_superfluous_and_change_places() {
    let mut bytes = stream(Version::V1, &[]);
    bytes.extend(raw(
        10,
        &[attribute(17, b"old"), attribute(15, b"x"), attribute(4, b"?"), attribute(15, b"y")].concat(),
    ));
    bytes.extend(raw(27, b"anything"));
    bytes.extend(raw(0, b""));
    let mut decoder = Decoder::new(&bytes[..]);
    let mut next = || match decoder.next() {
        Ok(Some(Event::Command(_, command))) => format!("{command:?}"),
        other => format!("{other:?}"),
    };
    next();
    assert_eq!(next(), format!("{:?}", Command::Link { path: b"y", existing: b"old" }));
    assert_eq!(next(), "Unknown { number: 27 }");
    assert_eq!(next(), "Unknown { number: 0 }");
    assert!(next().contains("NoEnd"));
}

#[test]
fn headers_that_are_none() {
    let error = |bytes: &[u8]| drain(bytes).1.remove(0).to_string();
    assert_eq!(drain(b"").0, 0);
    assert_eq!(error(b"tar"), "byte 0 of the stream: unexpected header, this is no send stream");
    assert_eq!(error(&MAGIC), "byte 0 of the stream: send stream is truncated");
    let of_version = |version: u8| [&MAGIC[..], &[version, 0, 0, 0]].concat();
    assert_eq!(error(&of_version(4)), "byte 0 of the stream: stream version 4 not supported, known are 1, 2 and 3");
    assert_eq!(error(&of_version(0)), "byte 17 of the stream: unexpected EOF in stream, it has no end command");
    let behind_end = [&stream(Version::V1, &[Command::End {}])[..], b"more"].concat();
    assert!(error(&behind_end).starts_with("byte 27 of the stream: unexpected header"));
}

#[test]
fn an_absurd_length_takes_no_memory() {
    /// A command that says it is as long as a stream may be, with little behind it.
    struct Endless(usize);
    impl std::io::Read for Endless {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            self.0 = self.0.max(buffer.len());
            Ok(0)
        }
    }
    let head = |len: u32| [&stream(Version::V1, &[])[..], &len.to_le_bytes(), &15u16.to_le_bytes(), &[0; 4]].concat();
    let too_long = drain(&head(u32::MAX)).1.remove(0).to_string();
    assert!(too_long.contains("write at byte 17") && too_long.contains("too long"), "{too_long}");
    let largest = head((MAX_COMMAND_LEN - COMMAND_HEADER_LEN) as u32);
    let mut input = std::io::Read::chain(&largest[..], Endless(0));
    let mut decoder = Decoder::new(&mut input);
    assert!(matches!(decoder.next(), Ok(Some(Event::Header(_)))));
    assert!(matches!(decoder.next(), Err(Error { kind: ErrorKind::Truncated, command: Some(15), .. })));
    assert!(input.get_ref().1.0 <= 1 << 20, "{} bytes of room for {} that arrived", input.get_ref().1.0, largest.len());
}

#[test]
fn random_bytes_are_commands_or_errors() {
    let mut rng = butterfs_testkit::rng::Rng::new(0x5eed);
    let mut random = move || rng.bits() as u32;
    let whole = stream(Version::V2, &every_command(b"content"));
    for _ in 0..20_000 {
        let mut bytes = stream([Version::V1, Version::V2][random() as usize % 2], &[]);
        for _ in 0..random() % 4 {
            let at = random() as usize % whole.len();
            let len = random() as usize % 64;
            let mut payload = whole[at..(at + len).min(whole.len())].to_vec();
            if let Some(byte) = payload.first_mut() {
                *byte = random() as u8 % 40;
            }
            bytes.extend(raw(random() as u16 % 30, &payload));
        }
        drain(&bytes);
    }
}

#[test]
fn lines_of_a_dump() {
    let commands = every_command(b"data");
    let east = |_: i64| 5400;
    let mut dump = dump::Dump::new(&east);
    let mut text = String::new();
    commands.iter().for_each(|command| dump.line(command, &mut text));
    let wanted = "\
subvol          ./s                             uuid=01010101-0101-0101-0101-010101010101 transid=2
snapshot        ./t                             uuid=03030303-0303-0303-0303-030303030303 transid=4 \
parent_uuid=05050505-0505-0505-0505-050505050505 parent_transid=6
mkfile          ./t/a
mkdir           ./t/d
mknod           ./t/n                           mode=20644 dev=0x501
mkfifo          ./t/f
mksock          ./t/k
symlink         ./t/l                           dest=../small
rename          ./t/a                           dest=./t/d/sp\\ ace\\nnl
link            ./t/d/hard                      dest=big
unlink          ./t/u
rmdir           ./t/r
set_xattr       ./t/                            name=user.y 2\\ \\000 len=3
remove_xattr    ./t/x                           name=user.x
write           ./t/w                           offset=131072 len=4
clone           ./t/to                          offset=8192 len=4096 from=./t/from clone_offset=16384
truncate        ./t/t                           size=1099511627776
chmod           ./t/c                           mode=4755
chown           ./t/c                           gid=2 uid=1
utimes          ./t/                            atime=1970-01-01T01:29:55+0130 mtime=1970-01-01T01:30:01+0130 \
ctime=1970-01-01T01:29:55+0130
utimes          ./t/o                           atime=1970-01-01T01:29:55+0130 mtime=1970-01-01T01:29:55+0130 \
ctime=1970-01-01T01:29:55+0130
update_extent   ./t/e                           offset=3 len=4
fallocate       ./t/h                           mode=3 offset=4096 len=8192
fileattr        ./t/g                           fileattr=0x16
encoded_write   ./t/z                           offset=4096 len=4 unencoded_file_len=1 unencoded_len=2 \
unencoded_offset=3 compression=2 encryption=0
enable_verity   ./t/v                           algorithm=1 block_size=4096 salt_len=0 sig_len=3
";
    assert_eq!(text, wanted);
}
