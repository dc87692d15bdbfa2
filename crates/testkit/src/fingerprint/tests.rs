//! Fingerprints of real folders and of models; each kind of difference is found.

use super::*;
use crate::model::ModelFs;
use crate::operation::{Content, Object, Op, OperationTarget, RelPath, Text};
use crate::scratch::Scratch;

fn sample() -> ModelFs {
    let path = RelPath::from;
    let mut model = ModelFs::default();
    let file = Object::Path(path("d/file"));
    for op in [
        Op::Mkdir { path: path("d"), mode: 0o750 },
        Op::Create { path: path("d/file"), mode: 0o640 },
        Op::Write { object: file.clone(), offset: 9000, content: Content { seed: 5, len: 100_000 } },
        Op::Truncate { object: file, size: 300_000 },
        Op::Link { from: path("d/file"), to: path("other") },
        Op::Symlink { path: path("s"), target: Text(b"d/file".to_vec()) },
    ] {
        model.apply(&op).expect("a valid operation");
    }
    model
}

#[test]
fn a_folder_equals_its_model() {
    let scratch = Scratch::new("fingerprint");
    let model = sample();
    let mut mounted = crate::mounted::Mounted::new(scratch.path());
    let path = RelPath::from;
    let file = Object::Path(path("d/file"));
    for op in [
        Op::Mkdir { path: path("d"), mode: 0o750 },
        Op::Create { path: path("d/file"), mode: 0o640 },
        Op::Write { object: file.clone(), offset: 9000, content: Content { seed: 5, len: 100_000 } },
        Op::Truncate { object: file, size: 300_000 },
        Op::Link { from: path("d/file"), to: path("other") },
        Op::Symlink { path: path("s"), target: Text(b"d/file".to_vec()) },
    ] {
        mounted.apply(&op).expect("a valid operation");
    }
    let mut actual = Fingerprint::of_tree(scratch.path());
    let mut expected = Fingerprint::of_model(&model);
    // Folders of other filesystems have their own sizes and links.
    for entry in actual.entries.values_mut().chain(expected.entries.values_mut()) {
        if entry.kind == Kind::Folder {
            (entry.size, entry.links, entry.mode) = (0, 1, 0);
        }
    }
    let none = Compare { holes: false, ..Compare::MODEL };
    let found = differences(&expected, &actual, none);
    let owners = |line: &String| line.contains(": uid is") || line.contains(": gid is");
    assert!(found.iter().all(owners), "{found:#?}");
}

#[test]
fn each_difference_is_found() {
    let print = Fingerprint::of_model(&sample());
    let change = |edit: &dyn Fn(&mut Fingerprint)| {
        let mut other = print.clone();
        edit(&mut other);
        differences(&print, &other, Compare::ALL).len()
    };
    let key = b"d/file".to_vec();
    let file = |edit: fn(&mut PathFingerprint)| change(&|print| edit(print.entries.get_mut(&key).expect("there")));
    assert_eq!(change(&|_| {}), 0);
    assert_eq!(change(&|print| drop(print.entries.remove(&key))), 1);
    assert_eq!(change(&|print| drop(print.entries.insert(b"new".to_vec(), print.entries[&key].clone()))), 1);
    assert_eq!(file(|entry| entry.mode ^= 1), 1);
    assert_eq!(file(|entry| entry.content = Some(1)), 1);
    assert_eq!(file(|entry| entry.first_path = None), 1);
    assert_eq!(file(|entry| drop(entry.xattrs.insert(b"user.x".to_vec(), vec![]))), 1);
    assert_eq!(file(|entry| entry.size += 1), 1);
}

#[test]
fn zeros_and_holes_are_the_same_content() {
    let mut written = ContentHash::default();
    written.update(0, &[0; 8192]);
    written.update(8192, b"x");
    let mut sparse = ContentHash::default();
    sparse.update(8192, &[b'x', 0, 0]);
    assert_eq!(written.finish(), sparse.finish());
}
