//! Operations that make something durable, and the work that a mounted filesystem does by itself.

use super::{Operation, done};
use crate::interleave::scene::{Scene, View, caller};
use butterfs_testkit::operation::{Op, Outcome, Reply};
use butterfs_testkit::promise::Promise;

fn logged(view: &View, name: &str) -> Option<Promise> {
    view.node(name).map(Promise::Logged)
}

macro_rules! fsync {
    ($label:literal, $name:literal, $data_only:literal) => {
        Operation::asks($label, &["fsync"], |s| done(s.fs.fsync(s.id($name), $data_only)))
            .promises(|v| logged(v, $name))
    };
}

macro_rules! write_back {
    ($label:literal, $name:literal) => {
        Operation::asks($label, &["write_back"], |s| done(s.fs.write_back(s.id($name))))
    };
}

/// Files that are made together, or neither.
const TWO: [(&str, &str); 2] = [("B", "alone"), ("A", "new")];

fn together(scene: &Scene) -> Outcome {
    done(scene.fs.transaction(|together| {
        for (folder, name) in TWO {
            let made = together.create(&caller(), scene.id(folder), name.as_bytes(), 0o644)?;
            together.forget(made.id, 1);
        }
        Ok(())
    }))
}

fn together_told(view: &mut View) -> Option<Outcome> {
    let mut after = view.clone();
    for (folder, name) in TWO {
        let path = after.inside(folder, name)?;
        let outcome = after.op(Some(Op::Create { path, mode: 0o644 }))?;
        if outcome.is_err() {
            return Some(outcome);
        }
    }
    *view = after;
    Some(Ok(Reply::Done))
}

pub(super) fn all() -> Vec<Operation> {
    vec![
        fsync!("fsync A/foo", "A/foo", false),
        fsync!("fsync A/bar", "A/bar", false),
        fsync!("fsync S/pre", "S/pre", false),
        fsync!("fdatasync S/nocow", "S/nocow", true),
        fsync!("fsync A", "A", false),
        fsync!("fsync A/C", "A/C", false),
        fsync!("fsync B", "B", false),
        Operation::new("two together", &["transaction"], together, together_told).promises(|_| Some(Promise::All)),
        Operation::asks("sync", &["sync"], |s| done(s.fs.sync())).promises(|_| Some(Promise::All)),
        Operation::asks("commit", &["commit_recorded"], |s| done(s.fs.commit_recorded()))
            .promises(|_| Some(Promise::Names)),
        write_back!("write back A/bar", "A/bar"),
        write_back!("write back S/pre", "S/pre"),
        write_back!("write back S/nocow", "S/nocow"),
        Operation::asks("clean once", &["clean_once"], |s| done(s.fs.clean_once())),
        Operation::asks("clean", &["clean_subvolumes"], |s| done(s.fs.clean_subvolumes())),
        Operation::asks("forget blocks", &["forget_clean_blocks"], |s| {
            s.fs.forget_clean_blocks();
            done(Ok(()))
        }),
        Operation::asks("resync", &["resync"], |s| done(s.fs.resync())),
    ]
}
