//! Operations on attributes and extended attributes.

use super::{Operation, answer, done};
use crate::interleave::scene::{View, caller};
use butterfs_fs::env::Time;
use butterfs_fs::{SetAttr, SetTime, inode_flags};
use butterfs_testkit::operation::{Content, Moment, Op, Outcome, Reply};

const VALUE: Content = Content { seed: 23, len: 300 };

fn set_xattr(view: &mut View, name: &str, create: bool) -> Option<Outcome> {
    let op = |path| Op::SetXattr { path, name: "user.two".to_owned(), value: VALUE, create, replace: false };
    view.op(view.path(name).map(op))
}

pub(super) fn all() -> Vec<Operation> {
    vec![
        Operation::new(
            "chmod A/foo",
            &["setattr"],
            |s| done(s.fs.setattr(&caller(), s.id("A/foo"), &SetAttr { mode: Some(0o600), ..SetAttr::default() })),
            |v| v.op(v.object("A/foo").map(|object| Op::Chmod { object, mode: 0o600 })),
        ),
        Operation::new(
            "chown A/bar",
            &["setattr"],
            |s| {
                let owner = SetAttr { uid: Some(7), gid: Some(8), ..SetAttr::default() };
                done(s.fs.setattr(&caller(), s.id("A/bar"), &owner))
            },
            |v| v.op(v.path("A/bar").map(|path| Op::Chown { path, uid: 7, gid: 8 })),
        ),
        Operation::new(
            "times A/foo",
            &["setattr"],
            |s| {
                let at = Some(SetTime::At(Time { sec: 1_600_000_000, nsec: 5 }));
                done(s.fs.setattr(&caller(), s.id("A/foo"), &SetAttr { atime: at, mtime: at, ..SetAttr::default() }))
            },
            |v| {
                let at = Moment { sec: 1_600_000_000, nsec: 5 };
                v.op(v.path("A/foo").map(|path| Op::SetTimes { path, atime: at, mtime: at }))
            },
        ),
        Operation::asks("nodump A/foo", &["set_flags"], |s| {
            done(s.fs.set_flags(s.id("A/foo"), inode_flags::NODUMP, inode_flags::NODUMP))
        }),
        Operation::new(
            "set_xattr A/foo",
            &["set_xattr"],
            |s| done(s.fs.set_xattr(&caller(), s.id("A/foo"), b"user.two", &VALUE.bytes(), 0)),
            |v| set_xattr(v, "A/foo", false),
        ),
        Operation::new(
            "create_xattr A/foo",
            &["set_xattr"],
            |s| done(s.fs.set_xattr(&caller(), s.id("A/foo"), b"user.two", &VALUE.bytes(), 1)),
            |v| set_xattr(v, "A/foo", true),
        ),
        Operation::new(
            "remove_xattr A/foo",
            &["remove_xattr"],
            |s| done(s.fs.remove_xattr(&caller(), s.id("A/foo"), b"user.one")),
            |v| v.op(v.path("A/foo").map(|path| Op::RemoveXattr { path, name: "user.one".to_owned() })),
        ),
        Operation::new(
            "get_xattr A/foo",
            &["get_xattr"],
            |s| answer(s.fs.get_xattr(s.id("A/foo"), b"user.two"), Reply::Bytes),
            |v| v.op(v.path("A/foo").map(|path| Op::GetXattr { path, name: "user.two".to_owned() })),
        ),
    ]
}
