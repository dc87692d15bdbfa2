//! Questions over the control socket, and the two commands whose questions carry a stream.

use crate::common::butterfs_ok;
use crate::mounted::text;
use crate::operations::{Act, Operation, many, one};
use crate::scene::{BLOCK, Scene};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use std::path::{Path, PathBuf};

/// A new subvolume in the directory.
fn subvolume(scene: &Scene) -> PathBuf {
    let path = scene.name();
    scene.ask(&["create", "@0", "0", last(&path)], &[&scene.dir]);
    path
}

fn last(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).expect("a name")
}

fn id(scene: &Scene, path: &Path) -> String {
    scene.ask(&["rootid", "@0"], &[path])[0][0].clone()
}

/// A question about one place.
fn about<'a>(scene: &'a Scene, words: &'static [&'static str], path: &'a Path) -> Act<'a> {
    Box::new(move || drop(scene.ask(words, &[path])))
}

pub const QUESTIONS: &[Operation] = &[
    one("subvolume create", &["create"], |scene| Box::new(move || drop(subvolume(scene)))),
    one("snapshot", &["snapshot"], |scene| {
        let path = scene.name();
        Box::new(move || drop(scene.ask(&["snapshot", "@0", "@1", last(&path), "rw"], &[scene.at(), &scene.dir])))
    }),
    one("subvolume delete", &["delete"], |scene| {
        let path = subvolume(scene);
        Box::new(move || drop(scene.ask(&["delete", "@0", last(&path)], &[&scene.dir])))
    }),
    one("subvolume delete by id", &["delete-id"], |scene| {
        let id = id(scene, &subvolume(scene));
        Box::new(move || drop(scene.ask(&["delete-id", "@0", &id], &[&scene.dir])))
    }),
    many("subvolume list", &["list"], |scene| about(scene, &["list", "@0"], scene.at())),
    one("deleted subvolumes", &["deleted"], |scene| about(scene, &["deleted"], scene.at())),
    one("info", &["info"], |scene| about(scene, &["info", "@0"], &scene.snapshot)),
    one("info by id", &["info-id"], |scene| {
        let id = id(scene, &scene.snapshot);
        Box::new(move || drop(scene.ask(&["info-id", &id], &[scene.at()])))
    }),
    one("info by UUID", &["info-uuid"], |scene| {
        let shown = butterfs_ok(&["subvolume", "show", text(&scene.snapshot)]);
        let uuid = shown.lines().find_map(|line| line.trim().strip_prefix("UUID:")).expect("a UUID").trim().to_owned();
        Box::new(move || drop(scene.ask(&["info-uuid", &uuid], &[scene.at()])))
    }),
    many("snapshots of", &["snapshots-of"], |scene| about(scene, &["snapshots-of", "5"], scene.at())),
    one("rootid", &["rootid"], |scene| about(scene, &["rootid", "@0"], &scene.file)),
    one("default", &["get-default", "set-default"], |scene| {
        Box::new(move || {
            let id = scene.ask(&["get-default"], &[scene.at()])[0][0].clone();
            scene.ask(&["set-default", "@0", &id], &[scene.at()]);
        })
    }),
    one("read-only", &["get-readonly", "set-readonly"], |scene| {
        let path = subvolume(scene);
        Box::new(move || {
            scene.ask(&["set-readonly", "@0", "true"], &[&path]);
            scene.ask(&["get-readonly", "@0"], &[&path]);
        })
    }),
    one("new since now", &["new"], |scene| {
        let now = scene.ask(&["new", "@0", "1"], &[scene.at()])[0][0].clone();
        Box::new(move || drop(scene.ask(&["new", "@0", &now], &[scene.at()])))
    }),
    many("new since ever", &["new"], |scene| about(scene, &["new", "@0", "1"], scene.at())),
    one("subvolume path", &["subvolume-path"], |scene| {
        let id = id(scene, &scene.snapshot);
        Box::new(move || drop(scene.ask(&["subvolume-path", &id], &[scene.at()])))
    }),
    many("paths", &["paths", "paths-in"], |scene| {
        let ino = statx(CWD, &scene.file, AtFlags::empty(), StatxFlags::INO).expect("a file").stx_ino.to_string();
        Box::new(move || {
            scene.ask(&["paths", "@0", &ino], &[scene.at()]);
            scene.ask(&["paths-in", "5", &ino], &[scene.at()]);
        })
    }),
    many("users", &["users"], |scene| {
        let extents = scene.ask(&["extents", "@0"], &[&scene.file]);
        let address = extents[0].get(2).cloned().expect("an address");
        Box::new(move || drop(scene.ask(&["users", &address, "whole"], &[scene.at()])))
    }),
    many("extents", &["extents"], |scene| about(scene, &["extents", "@0"], &scene.file)),
    one("may clone", &["may-clone"], |scene| {
        let path = scene.another();
        Box::new(move || drop(scene.ask(&["may-clone", "@0", "@1"], &[&scene.file, &path])))
    }),
    one("dedupe", &["dedupe"], |scene| {
        let (one, other, block) = (scene.another(), scene.another(), BLOCK.to_string());
        Box::new(move || drop(scene.ask(&["dedupe", "@0", "0", "@1", "0", &block], &[&one, &other])))
    }),
    many("defragment", &["defragment"], |scene| {
        let path = scene.name();
        std::fs::copy(&scene.file, &path).expect("room");
        Box::new(move || drop(scene.ask(&["defragment", "@0", "0", "1048576", "262144", "-"], &[&path])))
    }),
    one("label", &["get-label", "set-label"], |scene| {
        Box::new(move || {
            scene.ask(&["set-label", "@0", "label"], &[scene.at()]);
            scene.ask(&["get-label"], &[scene.at()]);
        })
    }),
    one("device statistics", &["device-stats"], |scene| about(scene, &["device-stats"], scene.at())),
    one("sync by a question", &["sync"], |scene| about(scene, &["sync"], scene.at())),
    many("send", &["send"], |scene| {
        let stream = stream_of(scene);
        Box::new(move || drop(butterfs_ok(&["send", "-q", "-f", text(&stream), text(&scene.snapshot)])))
    }),
    many("receive", &["receive"], |scene| {
        let (stream, into) = (stream_of(scene), scene.name());
        butterfs_ok(&["send", "-q", "-f", text(&stream), text(&scene.snapshot)]);
        std::fs::create_dir(&into).expect("room");
        Box::new(move || drop(butterfs_ok(&["receive", "-q", "-f", text(&stream), text(&into)])))
    }),
];

fn stream_of(scene: &Scene) -> PathBuf {
    scene.at().with_extension("stream")
}
