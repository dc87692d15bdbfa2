//! Operations on the contents of files.

use super::{Operation, answer, done};
use crate::interleave::scene::{Scene, View, caller};
use butterfs_fs::file::{Defragment, Encoded};
use butterfs_fs::{Algorithm, InodeId, SetAttr};
use butterfs_testkit::operation::{AllocateHow, Content, Object, Op, Outcome, Reply};
use butterfs_testkit::promise::Promise;

fn write(scene: &Scene, name: &'static str, seed: u64, offset: u64, len: usize) -> Outcome {
    let bytes = Content { seed, len }.bytes();
    answer(scene.fs.write(scene.id(name), offset, &bytes, false), |count| Reply::Count(count as u64))
}

fn written(view: &mut View, name: &str, seed: u64, offset: u64, len: usize) -> Option<Outcome> {
    let op = |object| Op::Write { object, offset, content: Content { seed, len } };
    view.op(view.object(name).map(op))
}

/// Bytes that fill what one of the files left.
const FILLING: Content = Content { seed: 26, len: 65_536 };

/// Works with the file that `create B/fill` makes.
fn with_fill<T>(scene: &Scene, work: impl FnOnce(InodeId) -> butterfs_fs::Result<T>) -> butterfs_fs::Result<T> {
    let attr = scene.fs.lookup(scene.id("B"), b"fill")?;
    let worked = work(attr.id);
    scene.fs.forget(attr.id, 1);
    worked
}

fn truncate(scene: &Scene, name: &'static str, size: u64) -> Outcome {
    done(scene.fs.setattr(&caller(), scene.id(name), &SetAttr { size: Some(size), ..SetAttr::default() }))
}

fn allocated(view: &mut View, name: &str, how: AllocateHow, offset: u64, len: u64) -> Option<Outcome> {
    view.op(view.object(name).map(|object| Op::Allocate { object, how, offset, len }))
}

macro_rules! write {
    ($label:literal, $name:literal, $seed:literal, $offset:literal, $len:literal) => {
        Operation::new(
            $label,
            &["write"],
            |s| write(s, $name, $seed, $offset, $len),
            |v| written(v, $name, $seed, $offset, $len),
        )
    };
}

macro_rules! truncate {
    ($label:literal, $name:literal, $size:literal) => {
        Operation::new(
            $label,
            &["setattr"],
            |s| truncate(s, $name, $size),
            |v| v.op(v.object($name).map(|object| Op::Truncate { object, size: $size })),
        )
    };
}

macro_rules! allocate {
    ($label:literal, $name:literal, $mode:literal, $how:ident, $offset:literal, $len:literal) => {
        Operation::new(
            $label,
            &["fallocate"],
            |s| done(s.fs.fallocate(s.id($name), $mode, $offset, $len, false)),
            |v| allocated(v, $name, AllocateHow::$how, $offset, $len),
        )
    };
}

pub(super) fn all() -> Vec<Operation> {
    let mut all = writes();
    all.extend(sharing());
    all
}

fn writes() -> Vec<Operation> {
    vec![
        Operation::new(
            "write B/fill",
            &["write"],
            |s| done(with_fill(s, |id| s.fs.write(id, 0, &FILLING.bytes(), false))),
            |v| {
                let object = Object::Path(v.inside("B", "fill")?);
                let written = v.op(Some(Op::Write { object, offset: 0, content: FILLING }))?;
                Some(written.map(|_| Reply::Done))
            },
        ),
        Operation::asks("fsync B/fill", &["fsync"], |s| done(with_fill(s, |id| s.fs.fsync(id, false))))
            .promises(|v| v.model.resolve(&v.inside("B", "fill")?).ok().map(Promise::Logged)),
        write!("write A/foo", "A/foo", 10, 4096, 8192),
        write!("write A/foo, unaligned", "A/foo", 11, 1000, 9000),
        write!("append A/bar", "A/bar", 14, 20_000, 5000),
        write!("write S/pre", "S/pre", 15, 40_960, 8192),
        write!("write S/nocow", "S/nocow", 18, 8192, 8192),
        Operation::new(
            "write_mapped A/foo",
            &["write_mapped"],
            |s| {
                let bytes = Content { seed: 19, len: 4096 }.bytes();
                answer(s.fs.write_mapped(s.id("A/foo"), 8192, &bytes), |count| Reply::Count(count as u64))
            },
            |v| written(v, "A/foo", 19, 8192, 4096),
        ),
        truncate!("truncate A/foo 0", "A/foo", 0),
        truncate!("truncate A/bar 5000", "A/bar", 5000),
        truncate!("truncate A/foo 30000", "A/foo", 30_000),
        truncate!("truncate S/pre 4096", "S/pre", 4096),
        allocate!("allocate A/foo", "A/foo", 0, Extend, 20_000, 9000),
        allocate!("allocate S/pre", "S/pre", 0, Extend, 98_304, 65_536),
        allocate!("allocate A/bar, size kept", "A/bar", 1, KeepSize, 20_000, 9000),
        allocate!("punch A/bar", "A/bar", 3, PunchHole, 3000, 9000),
        allocate!("punch S/pre", "S/pre", 3, PunchHole, 36_864, 8192),
        allocate!("zero A/foo", "A/foo", 0x10, ZeroRange, 3000, 9000),
        Operation::new(
            "write_encoded A/twin",
            &["write_encoded"],
            |s| {
                let data = Content { seed: 22, len: 4096 }.bytes();
                let encoded = Encoded {
                    algorithm: Algorithm::Zstd,
                    sectorsize: 4096,
                    data: &zstd_of(&data),
                    unencoded_len: 4096,
                    unencoded_offset: 0,
                    file_len: 4096,
                };
                done(s.fs.write_encoded(s.id("A/twin"), 0, &encoded, true))
            },
            |v| written(v, "A/twin", 22, 0, 4096).map(|outcome| outcome.map(|_| Reply::Done)),
        ),
    ]
}

fn zstd_of(data: &[u8]) -> Vec<u8> {
    // A frame of one raw block: magic, a header of one segment with two bytes of size, the block's header, the data.
    let size = data.len() as u32;
    let mut frame = 0xfd2f_b528_u32.to_le_bytes().to_vec();
    frame.push(0x60);
    frame.extend(((size - 256) as u16).to_le_bytes());
    frame.extend(&(size << 3 | 1).to_le_bytes()[..3]);
    frame.extend(data);
    frame
}

fn shared(view: &mut View, from: &str, to: &str, offset: u64, len: u64) -> Option<Outcome> {
    // What has lost its name can be copied from, but the model has no way to it.
    view.unknown |= view.path(from).is_none();
    let (from, to) = (view.path(from)?, view.path(to)?);
    let enough = view.model.resolve(&from).is_ok_and(|id| view.model.node(id).size() >= len);
    let op = Op::CopyRange { from, from_offset: 0, to, to_offset: offset, len };
    if enough { view.op(Some(op)) } else { None }
}

fn sharing() -> Vec<Operation> {
    vec![
        Operation::new(
            "clone A/twin A/bar",
            &["clone_range"],
            |s| done(s.fs.clone_range((s.id("A/twin"), 0), (s.id("A/bar"), 4096), 8192)),
            |v| shared(v, "A/twin", "A/bar", 4096, 8192).map(|outcome| outcome.map(|_| Reply::Done)),
        ),
        Operation::new(
            "copy A/twin A/bar",
            &["copy_range"],
            |s| answer(s.fs.copy_range((s.id("A/twin"), 0), (s.id("A/bar"), 8192), 4096), Reply::Count),
            |v| shared(v, "A/twin", "A/bar", 8192, 4096),
        ),
        Operation::new(
            "copy_as A/twin A/bar",
            &["copy_range_as"],
            |s| answer(s.fs.copy_range_as((s.id("A/twin"), 0), (s.id("A/bar"), 0), 4096, true), Reply::Count),
            |v| shared(v, "A/twin", "A/bar", 0, 4096),
        ),
        Operation::new(
            "copy_privileged A/twin S/nocow",
            &["copy_range_privileged"],
            |s| answer(s.fs.copy_range_privileged((s.id("A/twin"), 0), (s.id("S/nocow"), 0), 4096), Reply::Count),
            |v| shared(v, "A/twin", "S/nocow", 0, 4096),
        ),
        Operation::asks("dedupe A/twin A/foo", &["dedupe_range"], |s| {
            done(s.fs.dedupe_range((s.id("A/twin"), 0), (s.id("A/foo"), 0), 16_384))
        }),
        Operation::asks("defragment A/foo", &["defragment"], |s| {
            done(s.fs.defragment(s.id("A/foo"), &Defragment::default()))
        }),
        Operation::asks("defragment S/pre", &["defragment"], |s| {
            done(s.fs.defragment(s.id("S/pre"), &Defragment::default()))
        }),
        Operation::new(
            "read A/foo",
            &["read"],
            |s| {
                let mut bytes = Vec::new();
                answer(s.fs.read(s.id("A/foo"), 8192, 4096, &mut bytes), |_| Reply::Bytes(bytes))
            },
            |v| v.op(v.object("A/foo").map(|object| Op::Read { object, offset: 8192, len: 4096 })),
        ),
        Operation::new(
            "read_unnoticed S/pre",
            &["read_unnoticed"],
            |s| {
                let mut bytes = Vec::new();
                answer(s.fs.read_unnoticed(s.id("S/pre"), 40_960, 4096, &mut bytes), |_| Reply::Bytes(bytes))
            },
            |v| v.op(v.object("S/pre").map(|object| Op::Read { object, offset: 40_960, len: 4096 })),
        ),
        // Of a read of several blocks each may be of another moment, as in the kernel.
        Operation::asks("read all of A/foo", &["read"], |s| done(s.fs.read(s.id("A/foo"), 0, 40_000, &mut Vec::new()))),
    ]
}
