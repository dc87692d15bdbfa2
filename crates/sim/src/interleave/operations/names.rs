//! Operations on names.

use super::{Operation, made};
use crate::interleave::scene::{Scene, View, caller};
use butterfs_fs::RenameMode;
use butterfs_testkit::operation::{Kind, Op, Outcome, RenameHow, Text};

type ParentAndName = (&'static str, &'static str);

fn rename(scene: &Scene, from: ParentAndName, to: ParentAndName, mode: RenameMode) -> Outcome {
    super::done(scene.fs.rename(scene.id(from.0), from.1.as_bytes(), scene.id(to.0), to.1.as_bytes(), mode))
}

fn renamed(view: &mut View, from: ParentAndName, to: ParentAndName, how: RenameHow) -> Option<Outcome> {
    let (from, to) = (view.inside(from.0, from.1)?, view.inside(to.0, to.1)?);
    // The system refuses these before it asks a filesystem.
    if from.is_above(&to) || to.is_above(&from) {
        return None;
    }
    view.op(Some(Op::Rename { from, to, how }))
}

macro_rules! rename {
    ($name:literal, $from:expr, $to:expr, $mode:expr, $how:ident) => {
        Operation::new(
            $name,
            &["rename"],
            |s| rename(s, $from, $to, $mode),
            |v| renamed(v, $from, $to, RenameHow::$how),
        )
    };
}

/// Unlinks a file of `S` and forgets it, so that nothing keeps its space.
fn drop_file(scene: &Scene, file: &'static str, name: &[u8]) -> Outcome {
    let unlinked = super::done(scene.fs.unlink(scene.id("S"), name));
    scene.forget(file);
    unlinked
}

pub(super) fn all() -> Vec<Operation> {
    let mut all = creations();
    all.extend(removals());
    all.extend(renames());
    all
}

fn creations() -> Vec<Operation> {
    vec![
        Operation::new(
            "create A/new",
            &["create"],
            |s| made(s, s.fs.create(&caller(), s.id("A"), b"new", 0o644)),
            |v| v.op(v.inside("A", "new").map(|path| Op::Create { path, mode: 0o644 })),
        ),
        Operation::new(
            "create A/foo",
            &["create"],
            |s| made(s, s.fs.create(&caller(), s.id("A"), b"foo", 0o644)),
            |v| v.op(v.inside("A", "foo").map(|path| Op::Create { path, mode: 0o644 })),
        ),
        Operation::new(
            "create B/fill",
            &["create"],
            |s| made(s, s.fs.create(&caller(), s.id("B"), b"fill", 0o644)),
            |v| v.op(v.inside("B", "fill").map(|path| Op::Create { path, mode: 0o644 })),
        ),
        Operation::new(
            "create A/C/new",
            &["create"],
            |s| made(s, s.fs.create(&caller(), s.id("A/C"), b"new", 0o644)),
            |v| v.op(v.inside("A/C", "new").map(|path| Op::Create { path, mode: 0o644 })),
        ),
        Operation::new(
            "create S/new",
            &["create"],
            |s| made(s, s.fs.create(&caller(), s.id("S"), b"new", 0o644)),
            |v| v.op(v.inside("S", "new").map(|path| Op::Create { path, mode: 0o644 })),
        ),
        Operation::new(
            "mkdir A/new",
            &["mkdir"],
            |s| made(s, s.fs.mkdir(&caller(), s.id("A"), b"new", 0o755)),
            |v| v.op(v.inside("A", "new").map(|path| Op::Mkdir { path, mode: 0o755 })),
        ),
        Operation::new(
            "symlink A/new",
            &["symlink"],
            |s| made(s, s.fs.symlink(&caller(), s.id("A"), b"new", b"foo")),
            |v| v.op(v.inside("A", "new").map(|path| Op::Symlink { path, target: Text(b"foo".to_vec()) })),
        ),
        Operation::new(
            "mknod A/new",
            &["mknod"],
            |s| made(s, s.fs.mknod(&caller(), s.id("A"), b"new", 0o010644, (0, 0))),
            |v| {
                let op = |path| Op::Mknod { path, kind: Kind::Fifo, mode: 0o644, major: 0, minor: 0 };
                v.op(v.inside("A", "new").map(op))
            },
        ),
        Operation::new(
            "make_bare B/new",
            &["make_bare"],
            |s| made(s, s.fs.make_bare(s.id("B"), b"new", 0o100600, (0, 0), b"")),
            |v| v.op(v.inside("B", "new").map(|path| Op::Create { path, mode: 0o600 })),
        ),
        Operation::new(
            "link A/foo A/new",
            &["link"],
            |s| made(s, s.fs.link(s.id("A/foo"), s.id("A"), b"new")),
            |v| v.op(v.path("A/foo").zip(v.inside("A", "new")).map(|(from, to)| Op::Link { from, to })),
        ),
        Operation::new(
            "tmpfile A, forgotten",
            &["tmpfile"],
            |s| made(s, s.fs.tmpfile(&caller(), s.id("A"), 0o600)),
            |_| None,
        ),
    ]
}

fn removals() -> Vec<Operation> {
    vec![
        Operation::new(
            "unlink A/foo",
            &["unlink"],
            |s| super::done(s.fs.unlink(s.id("A"), b"foo")),
            |v| v.op(v.inside("A", "foo").map(|path| Op::Unlink { path })),
        ),
        Operation::new(
            "drop A/bar",
            &["unlink", "forget"],
            |s| {
                let unlinked = super::done(s.fs.unlink(s.id("A"), b"bar"));
                s.forget("A/bar");
                unlinked
            },
            |v| v.op(v.inside("A", "bar").map(|path| Op::Unlink { path })),
        ),
        Operation::new(
            "unlink B/link",
            &["unlink"],
            |s| super::done(s.fs.unlink(s.id("B"), b"link")),
            |v| v.op(v.inside("B", "link").map(|path| Op::Unlink { path })),
        ),
        Operation::new(
            "drop S/pre",
            &["unlink", "forget"],
            |s| drop_file(s, "S/pre", b"pre"),
            |v| v.op(v.inside("S", "pre").map(|path| Op::Unlink { path })),
        ),
        Operation::new(
            "drop S/nocow",
            &["unlink", "forget"],
            |s| drop_file(s, "S/nocow", b"nocow"),
            |v| v.op(v.inside("S", "nocow").map(|path| Op::Unlink { path })),
        ),
        Operation::new(
            "rmdir A/C",
            &["rmdir"],
            |s| super::done(s.fs.rmdir(s.id("A"), b"C")),
            |v| v.op(v.inside("A", "C").map(|path| Op::Rmdir { path })),
        ),
    ]
}

fn renames() -> Vec<Operation> {
    use RenameMode::{Exchange, Replace};
    vec![
        rename!("rename A/foo A/new", ("A", "foo"), ("A", "new"), Replace, Replace),
        rename!("rename A/foo A/bar", ("A", "foo"), ("A", "bar"), Replace, Replace),
        rename!("rename A/foo B/new", ("A", "foo"), ("B", "new"), Replace, Replace),
        rename!("rename A/bar B/link", ("A", "bar"), ("B", "link"), Replace, Replace),
        rename!("exchange A/foo A/bar", ("A", "foo"), ("A", "bar"), Exchange, Exchange),
        rename!(
            "whiteout A/bar A/new",
            ("A", "bar"),
            ("A", "new"),
            RenameMode::Whiteout { caller: caller(), replace: true },
            Whiteout
        ),
        rename!("rename A/C B/new", ("A", "C"), ("B", "new"), Replace, Replace),
        rename!("rename B A/C/B", ("", "B"), ("A/C", "B"), Replace, Replace),
        rename!("exchange A/C B", ("A", "C"), ("", "B"), Exchange, Exchange),
        Operation::new(
            "rename_expected A/twin A/new",
            &["rename_expected"],
            |s| super::done(s.fs.rename_expected(s.id("A"), b"twin", b"new", s.id("A/twin"))),
            |v| {
                let free = v.model.resolve(&v.inside("A", "new")?).is_err();
                if free { renamed(v, ("A", "twin"), ("A", "new"), RenameHow::NoReplace) } else { None }
            },
        ),
    ]
}
