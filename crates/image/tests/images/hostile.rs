//! Archives that somebody made to do harm: each ends in a sentence, soon and with bounded memory, or in a sound image.

use crate::oci::entry;
use butterfs_image::{Builder, Limits, TarSource};
use butterfs_testkit::memory::peak_kib;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use std::io::{Cursor, Read};

const LIMITS: Limits = Limits { memory: 16 << 20, size: 256 << 20 };

fn built(archive: impl Read + Send + 'static, scratch: &Scratch) -> Result<u64, String> {
    let image = scratch.join("image");
    let builder = Builder::new().source("/", TarSource::new("archive", archive)).unwrap().limits(LIMITS).threads(1);
    let report = builder.build(&image).map_err(|error| error.to_string())?;
    butterfs_testkit::judge::assert_clean(&image);
    Ok(report.inodes)
}

fn with_size(mut entry: Vec<u8>, size: &[u8; 12]) -> Vec<u8> {
    entry[124..136].copy_from_slice(size);
    entry[148..156].copy_from_slice(b"        ");
    let sum: u32 = entry[..512].iter().map(|byte| u32::from(*byte)).sum();
    entry[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    entry
}

/// An extended header with these records, and a file behind it.
fn extended(records: &[(&str, &str)], content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (key, value) in records {
        let rest = key.len() + value.len() + 3;
        let len = (rest..).find(|len| *len == rest + len.to_string().len()).unwrap();
        bytes.extend_from_slice(format!("{len} {key}={value}\n").as_bytes());
    }
    [entry("x", b'x', "", &bytes), entry("file", b'0', "", content)].concat()
}

/// Many extended headers before one file, each with an attribute of so many bytes.
fn many_extended(count: usize, len: usize) -> Vec<u8> {
    let header = |number: usize| {
        let mut both = extended(&[(&format!("SCHILY.xattr.user.{number}"), &"x".repeat(len))], b"");
        // Without the file.
        both.truncate(both.len() - 512);
        both
    };
    [(0..count).flat_map(header).collect(), entry("file", b'0', "", b"")].concat()
}

#[test]
fn hostile_archives_end_in_a_sentence() {
    let scratch = Scratch::new("image-hostile");
    let long = format!("{}/x", "d/".repeat(45));
    let table: Vec<(&str, Vec<u8>, &str)> = vec![
        ("escape", entry("../outside", b'0', "", b"x"), "leads out"),
        ("escape in the middle", entry("a/../../outside", b'0', "", b"x"), "leads out"),
        (
            "through a link",
            [entry("link", b'2', "/etc", b""), entry("link/passwd", b'0', "", b"x")].concat(),
            "is no folder",
        ),
        ("link to nothing", entry("a", b'1', "b", b""), "does not exist"),
        ("link to itself", entry("a", b'1', "a", b""), "does not exist"),
        ("links in a circle", [entry("a", b'1', "b", b""), entry("b", b'1', "a", b"")].concat(), "does not exist"),
        ("link to a folder", [entry("a", b'5', "", b""), entry("b", b'1', "a", b"")].concat(), "second name"),
        ("link that leads out", entry("a", b'1', "../../etc/passwd", b""), "leads out"),
        ("file over a full folder", [entry("a/b", b'0', "", b""), entry("a", b'0', "", b"")].concat(), "not empty"),
        ("the root as a file", entry(".", b'0', "", b""), "the root of an image is a folder"),
        (
            "absurd size",
            with_size(entry("a", b'0', "", b""), b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff"),
            "ends early",
        ),
        (
            "negative size",
            with_size(entry("a", b'0', "", b""), b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
            "below zero",
        ),
        ("absurd name", with_size(entry("a", b'L', "", b""), b"77777777777\0"), "a name has"),
        ("absurd extended header", with_size(entry("a", b'x', "", b""), b"77777777777\0"), "an extended header has"),
        ("absurd global header", entry("a", b'g', "", &vec![b'x'; 300 << 10]), "a global header has"),
        ("extended headers without end", many_extended(20, 1 << 20), "extended headers have more than"),
        ("much that means nothing", extended(&[("unknown", &"x".repeat(3 << 20))], b""), ""),
        ("attribute of no kind", extended(&[("SCHILY.xattr.foo", "x")], b""), "of no kind that Linux has"),
        ("broken ACL", extended(&[("SCHILY.xattr.system.posix_acl_access", "zz")], b""), "is no ACL"),
        ("no compression", extended(&[("SCHILY.xattr.btrfs.compression", "garbage")], b""), "is 'garbage'"),
        ("compression", extended(&[("SCHILY.xattr.btrfs.compression", "zstd")], b""), ""),
        ("notes of an overlay", extended(&[("SCHILY.xattr.trusted.overlay.opaque", "y")], b""), ""),
        ("deeper than can be", extended(&[("path", &"d/".repeat(9000))], b""), "at most 16384 are possible"),
        ("type that nobody knows", entry("a", b'?', "", b""), "is not known"),
        ("absurd device", entry("a", b'3', "", b""), ""),
        (
            "sparse beyond its end",
            extended(&[("GNU.sparse.map", "0,10,100,5"), ("GNU.sparse.size", "50")], &[1; 15]),
            "does not fit",
        ),
        (
            "sparse ranges that overlap",
            extended(&[("GNU.sparse.map", "0,10,5,10"), ("GNU.sparse.size", "50")], &[1; 20]),
            "does not fit",
        ),
        (
            "sparse of the largest size",
            extended(&[("GNU.sparse.map", "0,15"), ("GNU.sparse.size", "18446744073709551615")], &[1; 15]),
            "larger than any",
        ),
        (
            "sparse with a map that overflows",
            extended(&[("GNU.sparse.map", "18446744073709551615,15"), ("GNU.sparse.size", "5")], &[1; 15]),
            "damaged",
        ),
        (
            "sparse with a map without end",
            extended(&[("GNU.sparse.major", "1"), ("GNU.sparse.realsize", "5")], &[b'9'; 600]),
            "damaged",
        ),
        ("size that is no number", extended(&[("size", "-1")], b""), "is no number"),
        ("time that is none", extended(&[("mtime", "1e9")], b""), "is no time"),
        ("attribute without a name", extended(&[("SCHILY.xattr.", "x")], b""), "the attribute"),
        ("attribute that is too large", extended(&[("SCHILY.xattr.user.x", &"x".repeat(17000))], b""), "the attribute"),
        ("deep folders", entry(&long, b'0', "", b"x"), ""),
        ("twice the same", [entry("a", b'0', "", b"one"), entry("a", b'0', "", b"two")].concat(), ""),
        ("empty", Vec::new(), ""),
    ];
    for (name, archive, part) in table {
        let said = built(Cursor::new(archive), &scratch);
        match part {
            "" => assert!(said.is_ok(), "{name}: {said:?}"),
            part => assert!(said.as_ref().is_err_and(|said| said.contains(part)), "{name}: {said:?}"),
        }
    }
}

#[test]
fn bombs_meet_a_limit() {
    let scratch = Scratch::new("image-bombs");
    let before = peak_kib();
    // 8 GiB of zeros in some kilobytes.
    let head = with_size(entry("zeros", b'0', "", b""), b"77777777777\0");
    let zeros = head.chain_zeros(8 << 30);
    let said = built(zeros, &scratch);
    assert!(said.as_ref().is_err_and(|said| said.contains("does not fit")), "{said:?}");
    // Names without end.
    let mut number = 0u64;
    let names = Endless {
        next: Box::new(move || {
            number += 1;
            entry(&format!("f/{number}"), b'0', "", b"")
        }),
        rest: Cursor::default(),
    };
    let said = built(names, &scratch);
    assert!(said.as_ref().is_err_and(|said| said.contains("which is the limit")), "{said:?}");
    // Targets of links without end.
    let mut number = 0u64;
    let links = Endless {
        next: Box::new(move || {
            number += 1;
            let target = format!("{number}{}", "x".repeat(4000));
            let mut both = extended(&[("path", &number.to_string()), ("linkpath", &target)], b"");
            let at = both.len() - 512;
            both.truncate(at);
            [both, entry("x", b'2', "", b"")].concat()
        }),
        rest: Cursor::default(),
    };
    let said = built(links, &scratch);
    assert!(said.as_ref().is_err_and(|said| said.contains("which is the limit")), "{said:?}");
    assert!(peak_kib() - before < 300 << 10, "{} KiB", peak_kib() - before);
}

trait ChainZeros {
    fn chain_zeros(self, count: u64) -> Box<dyn Read + Send>;
}

impl ChainZeros for Vec<u8> {
    fn chain_zeros(self, count: u64) -> Box<dyn Read + Send> {
        Box::new(Cursor::new(self).chain(std::io::repeat(0).take(count)))
    }
}

/// Entries without end.
struct Endless {
    next: Box<dyn FnMut() -> Vec<u8> + Send>,
    rest: Cursor<Vec<u8>>,
}

impl Read for Endless {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if self.rest.position() == self.rest.get_ref().len() as u64 {
            self.rest = Cursor::new((self.next)());
        }
        self.rest.read(out)
    }
}

#[test]
fn damaged_archives_never_panic() {
    let scratch = Scratch::new("image-damaged");
    let sound = [
        entry("folder", b'5', "", b""),
        extended(&[("path", "folder/long"), ("SCHILY.xattr.user.a", "b"), ("mtime", "1.5")], b"content"),
        extended(&[("GNU.sparse.map", "0,5,4096,5"), ("GNU.sparse.size", "9000")], b"0123456789"),
        entry("folder/link", b'1', "folder/long", b""),
        entry("name", b'L', "", b"another long name\0"),
        entry("a", b'0', "", &[7; 3000]),
    ]
    .concat();
    let mut rng = Rng::new(23);
    let (mut good, mut bad) = (0, 0);
    let count = std::env::var("BUTTERFS_ARCHIVES").ok().and_then(|count| count.parse().ok()).unwrap_or(100);
    for _ in 0..count {
        let mut archive = sound.clone();
        let block = rng.index(archive.len() / 512) * 512;
        let at = (block + rng.index(512)).min(archive.len() - 1);
        archive[at] = rng.bits() as u8;
        // The checksum is made good, so that the damage counts.
        archive[block + 148..block + 156].copy_from_slice(b"        ");
        let sum: u32 = archive[block..block + 512].iter().map(|byte| u32::from(*byte)).sum();
        archive[block + 148..block + 155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        if rng.chance(10) {
            archive.truncate(rng.index(archive.len()));
        }
        match built(Cursor::new(archive), &scratch) {
            Ok(_) => good += 1,
            Err(sentence) => {
                assert!(sentence.starts_with("archive: "), "{sentence}");
                bad += 1;
            }
        }
    }
    println!("{good} {bad}");
    assert!(good > 10 && bad > 10);
}

/// A header without content.
fn header(path: &str, kind: u8, target: &str) -> Vec<u8> {
    entry(path, kind, target, b"")
}

#[test]
#[ignore = "long: cargo xtask soak images"]
fn ten_million_entries_take_bounded_memory() {
    const COUNT: u64 = 10_000_000;
    const LIMIT: u64 = 64 << 20;
    let scratch = Scratch::new("image-entries");
    type Make = fn(u64) -> Vec<u8>;
    let kinds: [(&str, Make); 6] = [
        ("files", |number| header(&format!("{}/{number}", number / 1000), b'0', "")),
        ("one name", |number| entry("file", b'0', "", &number.to_le_bytes())),
        ("folders", |number| header(&format!("{}/{number}/", number / 1000), b'5', "")),
        ("links", |number| match number {
            1 => header("file", b'0', ""),
            number => header(&format!("{}/{number}", number / 1000), b'1', "file"),
        }),
        ("symbolic links", |number| header(&format!("{}/{number}", number / 1000), b'2', &"t".repeat(99))),
        ("attributes", |number| {
            extended(&[("path", &format!("f/{number}")), ("SCHILY.xattr.user.a", &"x".repeat(3000))], b"")
        }),
    ];
    for (what, make) in kinds {
        let mut number = 0u64;
        let next = move || {
            number += 1;
            if number > COUNT { Vec::new() } else { make(number) }
        };
        let measured = butterfs_testkit::memory::start_measuring();
        let started = std::time::Instant::now();
        let archive = Endless { next: Box::new(next), rest: Cursor::default() };
        let builder = Builder::new().source("/", TarSource::new("archive", archive)).unwrap();
        let limits = Limits { memory: LIMIT, size: 1 << 40 };
        let said = builder.limits(limits).build(scratch.join("image")).map(|report| report.inodes);
        let taken = measured.taken_kib() >> 10;
        println!("{what}: {taken} MiB, {:.0} s: {said:?}", started.elapsed().as_secs_f64());
        assert!(said.is_err_and(|error| error.to_string().contains("which is the limit")), "{what}");
        // The decoder, what waits for threads, and vectors that double.
        assert!(taken < ((2 * LIMIT) >> 20) + 64, "{what}: {taken} MiB");
    }
}
