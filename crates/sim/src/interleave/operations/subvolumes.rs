//! Operations on subvolumes and snapshots.

use super::{Operation, done};
use crate::interleave::scene::{Scene, View, caller, root_path};
use crate::step::Step;
use butterfs_fs::RenameMode;
use butterfs_testkit::operation::{Op, Outcome, RelPath, RenameHow, Reply};
use butterfs_testkit::promise::Promise;
use rustix::io::Errno;

fn snapshot(scene: &Scene, from: &'static str, to: &'static str, name: &[u8], read_only: bool) -> Outcome {
    done(scene.fs.snapshot(scene.id(from).tree, scene.id(to), name, read_only))
}

fn snapshotted(view: &mut View, from: &str, to: &str, name: &str, read_only: bool) -> Option<Outcome> {
    let (from, to) = (view.path(from)?, view.inside(to, name)?);
    view.step(Some(Step::Snapshot { from, to, read_only }))
}

/// Deletes the subvolume that is called `name` now.
fn deleted_by_name(view: &mut View, name: &str) -> Option<Outcome> {
    let path = root_path(name);
    let Ok(node) = view.model.resolve(&path) else { return Some(Err(Errno::NOENT)) };
    if view.default == Some(node) {
        return Some(Err(Errno::PERM));
    }
    view.step(Some(Step::DeleteSubvolume { path }))
}

/// Deletes the subvolume that was called `name`, where that is the one at `path`.
fn deleted(view: &mut View, name: &str, path: Option<RelPath>) -> Option<Outcome> {
    let (path, node) = (path?, view.node(name)?);
    if view.model.resolve(&path) != Ok(node) {
        return None;
    }
    if view.default == Some(node) {
        return Some(Err(Errno::PERM));
    }
    view.step(Some(Step::DeleteSubvolume { path }))
}

fn set_read_only(view: &mut View, name: &str, read_only: bool) -> Option<Outcome> {
    let node = view.node(name)?;
    view.model.set_read_only(node, read_only);
    Some(Ok(Reply::Done))
}

pub(super) fn all() -> Vec<Operation> {
    let mut all = snapshots();
    all.extend(changes());
    all
}

fn snapshots() -> Vec<Operation> {
    let everything = |_: &View| Some(Promise::All);
    vec![
        Operation::new(
            "create_subvolume A/new",
            &["create_subvolume"],
            |s| done(s.fs.create_subvolume(&caller(), s.id("A"), b"new")),
            |v| v.step(v.inside("A", "new").map(|path| Step::Subvolume { path })),
        ),
        Operation::new(
            "create_subvolume S/new",
            &["create_subvolume"],
            |s| done(s.fs.create_subvolume(&caller(), s.id("S"), b"new")),
            |v| v.step(v.inside("S", "new").map(|path| Step::Subvolume { path })),
        ),
        Operation::new(
            "snapshot S A/new",
            &["snapshot"],
            |s| snapshot(s, "S", "A", b"new", false),
            |v| snapshotted(v, "S", "A", "new", false),
        )
        .promises(everything),
        Operation::new(
            "snapshot S B/copy, read-only",
            &["snapshot"],
            |s| snapshot(s, "S", "B", b"copy", true),
            |v| snapshotted(v, "S", "B", "copy", true),
        )
        .promises(everything),
        Operation::new(
            "snapshot T A/C/copy",
            &["snapshot"],
            |s| snapshot(s, "T", "A/C", b"copy", false),
            |v| snapshotted(v, "T", "A/C", "copy", false),
        )
        .promises(everything),
    ]
}

fn changes() -> Vec<Operation> {
    vec![
        Operation::new(
            "delete_subvolume S",
            &["delete_subvolume"],
            |s| done(s.fs.delete_subvolume(s.id(""), b"S")),
            |v| deleted_by_name(v, "S"),
        ),
        Operation::new(
            "delete_subvolume T",
            &["delete_subvolume"],
            |s| done(s.fs.delete_subvolume(s.id(""), b"T")),
            |v| deleted_by_name(v, "T"),
        ),
        Operation::new(
            "delete_expected S",
            &["delete_expected_subvolume"],
            |s| done(s.fs.delete_expected_subvolume(s.id(""), b"S", s.id("S").tree)),
            |v| deleted(v, "S", Some(root_path("S"))),
        ),
        Operation::new(
            "delete_by_id R",
            &["delete_subvolume_by_id"],
            |s| done(s.fs.delete_subvolume_by_id(s.id("R").tree)),
            |v| deleted(v, "R", v.path("R")),
        )
        .refused_beside(super::READS_R),
        Operation::new(
            "rename S A/moved",
            &["rename"],
            |s| done(s.fs.rename(s.id(""), b"S", s.id("A"), b"moved", RenameMode::Replace)),
            |v| {
                let (from, to) = (v.inside("", "S")?, v.inside("A", "moved")?);
                if v.model.resolve(&from).is_ok_and(|id| v.model.is_read_only(id)) {
                    return Some(Err(Errno::ROFS));
                }
                v.op(Some(Op::Rename { from, to, how: RenameHow::Replace }))
            },
        ),
        Operation::new(
            "exchange S T",
            &["rename"],
            |s| done(s.fs.rename(s.id(""), b"S", s.id(""), b"T", RenameMode::Exchange)),
            |v| {
                let (from, to) = (v.inside("", "S")?, v.inside("", "T")?);
                let both = v.model.resolve(&from).is_ok() && v.model.resolve(&to).is_ok();
                let step = Step::Op(Op::Rename { from, to, how: RenameHow::Exchange });
                // The model leaves exchanges of subvolumes to others in general; of these it knows the outcome.
                both.then(|| step.apply(&mut v.model))
            },
        ),
        Operation::new(
            "set_default S",
            &["set_default_subvolume"],
            |s| done(s.fs.set_default_subvolume(s.id("S").tree)),
            |v| {
                let Some(node) = v.node("S") else { return Some(Err(Errno::NOENT)) };
                v.default = Some(node);
                Some(Ok(Reply::Done))
            },
        ),
        Operation::new(
            "set_readonly S",
            &["set_subvolume_readonly"],
            |s| done(s.fs.set_subvolume_readonly(s.id("S").tree, true)),
            |v| set_read_only(v, "S", true),
        ),
        Operation::new(
            "set_writable R",
            &["set_subvolume_readonly"],
            |s| done(s.fs.set_subvolume_readonly(s.id("R").tree, false)),
            |v| set_read_only(v, "R", false),
        )
        .refused_beside(super::READS_R),
        Operation::new(
            "finish_received T",
            &["finish_received"],
            |s| done(s.fs.finish_received(s.id("T").tree, &[7; 16], 1, b"user.mark")),
            |v| match v.node("T") {
                Some(node) if v.model.is_read_only(node) => Some(Err(Errno::ROFS)),
                _ => set_read_only(v, "T", true),
            },
        ),
        Operation::asks("repair_uuid_tree", &["repair_uuid_tree"], |s| done(s.fs.repair_uuid_tree())),
    ]
}
