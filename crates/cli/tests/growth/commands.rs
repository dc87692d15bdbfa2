//! Questions over the control socket, and the two commands whose questions carry a stream.

use crate::common::butterfs_ok;
use crate::mounted::text;
use crate::operations::{Act, Operation, many, one};
use crate::scene::{BLOCK, ONE, OTHER, Scene};
use butterfs_control::question::*;
use butterfs_control::{Ask, NewSince};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use std::path::{Path, PathBuf};

/// The id of the top level.
const TOP_LEVEL: u64 = 5;

/// A new subvolume in the directory.
fn subvolume(scene: &Scene) -> PathBuf {
    let path = scene.name();
    scene.ask(CreateSubvolume { directory: ONE, umask: 0, name: last(&path) }, &[&scene.dir]);
    path
}

fn last(path: &Path) -> Vec<u8> {
    path.file_name().expect("a name").as_encoded_bytes().to_vec()
}

fn id(scene: &Scene, path: &Path) -> u64 {
    scene.ask(FindSubvolume { inode: ONE }, &[path])[0].0
}

/// A question about one path.
fn about<'a, Q: Ask + 'a>(scene: &'a Scene, question: Q, path: &'a Path) -> Act<'a> {
    Box::new(move || drop(scene.ask(question, &[path])))
}

fn generation(scene: &Scene) -> u64 {
    let NewSince::UpTo(generation) = scene.ask(FindNew { subvolume: ONE, since: 1 }, &[scene.at()])[0].clone() else {
        panic!("the generation comes first")
    };
    generation
}

pub const QUESTIONS: &[Operation] = &[
    one("subvolume create", &["CreateSubvolume"], |scene| Box::new(move || drop(subvolume(scene)))),
    one("snapshot", &["Snapshot"], |scene| {
        let name = last(&scene.name());
        let question = Snapshot { source: ONE, directory: OTHER, name, read_only: false };
        Box::new(move || drop(scene.ask(question, &[scene.at(), &scene.dir])))
    }),
    one("subvolume delete", &["DeleteSubvolume"], |scene| {
        let name = last(&subvolume(scene));
        about(scene, DeleteSubvolume { directory: ONE, name }, &scene.dir)
    }),
    one("subvolume delete by id", &["DeleteSubvolumeById"], |scene| {
        let id = id(scene, &subvolume(scene));
        about(scene, DeleteSubvolumeById { through: ONE, id }, &scene.dir)
    }),
    many("subvolume list", &["ListSubvolumes"], |scene| about(scene, ListSubvolumes {}, scene.at())),
    one("deleted subvolumes", &["ListDeleted"], |scene| about(scene, ListDeleted {}, scene.at())),
    one("info", &["DescribeSubvolume"], |scene| about(scene, DescribeSubvolume { subvolume: ONE }, &scene.snapshot)),
    one("info by id", &["DescribeSubvolumeById"], |scene| {
        about(scene, DescribeSubvolumeById { id: id(scene, &scene.snapshot) }, scene.at())
    }),
    one("info by UUID", &["DescribeSubvolumeByUuid"], |scene| {
        let uuid = scene.ask(DescribeSubvolume { subvolume: ONE }, &[&scene.snapshot])[0].uuid;
        about(scene, DescribeSubvolumeByUuid { uuid }, scene.at())
    }),
    many("snapshots of", &["ListSnapshots"], |scene| about(scene, ListSnapshots { of: TOP_LEVEL }, scene.at())),
    one("rootid", &["FindSubvolume"], |scene| about(scene, FindSubvolume { inode: ONE }, &scene.file)),
    one("default", &["GetDefault", "SetDefault"], |scene| {
        Box::new(move || {
            let id = scene.ask(GetDefault {}, &[scene.at()])[0].0;
            scene.ask(SetDefault { through: ONE, id }, &[scene.at()]);
        })
    }),
    one("read-only", &["GetReadOnly", "SetReadOnly"], |scene| {
        let path = subvolume(scene);
        Box::new(move || {
            scene.ask(SetReadOnly { subvolume: ONE, read_only: true }, &[&path]);
            scene.ask(GetReadOnly { subvolume: ONE }, &[&path]);
        })
    }),
    one("new since now", &["FindNew"], |scene| {
        about(scene, FindNew { subvolume: ONE, since: generation(scene) }, scene.at())
    }),
    many("new since ever", &["FindNew"], |scene| about(scene, FindNew { subvolume: ONE, since: 1 }, scene.at())),
    one("subvolume path", &["FindSubvolumePath"], |scene| {
        about(scene, FindSubvolumePath { id: id(scene, &scene.snapshot) }, scene.at())
    }),
    many("paths", &["FindPaths", "FindPathsById"], |scene| {
        let ino = statx(CWD, &scene.file, AtFlags::empty(), StatxFlags::INO).expect("a file").stx_ino;
        Box::new(move || {
            scene.ask(FindPaths { within: ONE, ino }, &[scene.at()]);
            scene.ask(FindPathsById { subvolume: TOP_LEVEL, ino }, &[scene.at()]);
        })
    }),
    many("users", &["FindUsers"], |scene| {
        let address = scene.ask(ListExtents { file: ONE }, &[&scene.file])[0].address;
        about(scene, FindUsers { address, scope: UserScope::WholeExtent }, scene.at())
    }),
    many("extents", &["ListExtents"], |scene| about(scene, ListExtents { file: ONE }, &scene.file)),
    one("may clone", &["AskToShare"], |scene| {
        let path = scene.another();
        Box::new(move || drop(scene.ask(AskToShare { source: ONE, into: OTHER }, &[&scene.file, &path])))
    }),
    one("dedupe", &["Dedupe"], |scene| {
        let (one, other) = (scene.another(), scene.another());
        let question = Dedupe { source: ONE, source_start: 0, into: OTHER, into_start: 0, len: BLOCK };
        Box::new(move || drop(scene.ask(question, &[&one, &other])))
    }),
    many("defragment", &["Defragment"], |scene| {
        let path = scene.name();
        std::fs::copy(&scene.file, &path).expect("room");
        let question = Defragment { file: ONE, start: 0, len: 1 << 20, threshold: 256 << 10, compress: None };
        Box::new(move || drop(scene.ask(question, &[&path])))
    }),
    one("label", &["GetLabel", "SetLabel"], |scene| {
        Box::new(move || {
            scene.ask(SetLabel { through: ONE, label: b"label".to_vec() }, &[scene.at()]);
            scene.ask(GetLabel {}, &[scene.at()]);
        })
    }),
    one("device statistics", &["CountDeviceErrors"], |scene| about(scene, CountDeviceErrors {}, scene.at())),
    one("reset device statistics", &["ResetDeviceErrors"], |scene| {
        about(scene, ResetDeviceErrors { through: ONE, device: None }, scene.at())
    }),
    one("health", &["GetHealth"], |scene| about(scene, GetHealth {}, scene.at())),
    many("scrub", &["StartScrub", "GetScrub", "CancelScrub", "LimitScrub"], |scene| {
        let question = StartScrub {
            through: ONE,
            read_only: true,
            devices: Vec::new(),
            priority_class: 0,
            priority_level: 0,
            limit: None,
            only: Vec::new(),
            ranges: Vec::new(),
            earlier: Vec::new(),
        };
        Box::new(move || {
            scene.ask(LimitScrub { through: ONE, device: None, bytes_per_sec: 0 }, &[scene.at()]);
            scene.ask(question.clone(), &[scene.at()]);
            scene.ask(GetScrub {}, &[scene.at()]);
        })
    }),
    one("sync by a question", &["SyncAll"], |scene| about(scene, SyncAll {}, scene.at())),
    many("send", &["SendSubvolumes"], |scene| {
        let stream = stream_of(scene);
        Box::new(move || drop(butterfs_ok(&["send", "-q", "-f", text(&stream), text(&scene.snapshot)])))
    }),
    many("receive", &["ReceiveSubvolumes"], |scene| {
        let (stream, into) = (stream_of(scene), scene.name());
        butterfs_ok(&["send", "-q", "-f", text(&stream), text(&scene.snapshot)]);
        std::fs::create_dir(&into).expect("room");
        Box::new(move || drop(butterfs_ok(&["receive", "-q", "-f", text(&stream), text(&into)])))
    }),
];

fn stream_of(scene: &Scene) -> PathBuf {
    scene.at().with_extension("stream")
}
