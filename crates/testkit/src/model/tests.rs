//! The model against a list of operations with known answers.

use super::*;
use crate::operation::{AllocateHow, Content, RenameHow};

fn path(text: &str) -> RelPath {
    RelPath::from(text)
}

fn run(model: &mut ModelFs, script: &[(Op, Outcome)]) {
    for (op, expected) in script {
        assert_eq!(&model.apply(op), expected, "{op:?}");
    }
}

fn rename(from: &str, to: &str, how: RenameHow) -> Op {
    Op::Rename { from: path(from), to: path(to), how }
}

#[test]
fn names() {
    let done = || Ok(Reply::Done);
    let mut model = ModelFs::default();
    run(
        &mut model,
        &[
            (Op::Mkdir { path: path("d"), mode: 0o755 }, done()),
            (Op::Mkdir { path: path("d/e"), mode: 0o755 }, done()),
            (Op::Mkdir { path: path("d"), mode: 0o755 }, Err(Errno::EXIST)),
            (Op::Create { path: path("d/f"), mode: 0o644 }, done()),
            (Op::Create { path: path("d/f/x"), mode: 0o644 }, Err(Errno::NOTDIR)),
            (Op::Create { path: path("no/x"), mode: 0o644 }, Err(Errno::NOENT)),
            (Op::Link { from: path("d"), to: path("l") }, Err(Errno::PERM)),
            (Op::Link { from: path("d/f"), to: path("l") }, done()),
            (rename("d/f", "l", RenameHow::Replace), done()),
            (Op::Stat { object: Object::Path(path("d/f")) }, Ok(Reply::Attributes(model_file_attributes(2)))),
            (rename("d", "d/e/x", RenameHow::Replace), Err(Errno::INVAL)),
            (rename("d/e", "d", RenameHow::Replace), Err(Errno::NOTEMPTY)),
            (rename("d/e", "l", RenameHow::Replace), Err(Errno::NOTDIR)),
            (rename("l", "d/e", RenameHow::Replace), Err(Errno::ISDIR)),
            (rename("l", "d", RenameHow::NoReplace), Err(Errno::EXIST)),
            (rename("l", "d/e", RenameHow::Exchange), done()),
            (Op::ReadFolder { path: path("l") }, Ok(Reply::Entries(vec![]))),
            (Op::Rmdir { path: path("d") }, Err(Errno::NOTEMPTY)),
            (Op::Rmdir { path: path("l") }, done()),
            (Op::Unlink { path: path("d") }, Err(Errno::ISDIR)),
            (rename("d/e", "w", RenameHow::Whiteout), done()),
            (
                Op::ReadFolder { path: path("d") },
                Ok(Reply::Entries(vec![(b"e".to_vec(), Kind::CharDevice), (b"f".to_vec(), Kind::File)])),
            ),
        ],
    );
}

fn model_file_attributes(links: u32) -> Attributes {
    Attributes { kind: Kind::File, mode: 0o644, links, uid: 0, gid: 0, size: 0, device: (0, 0), mtime: None }
}

#[test]
fn unlinked_files_live_while_open() {
    let mut model = ModelFs::default();
    let file = Object::Handle(7);
    let content = Content { seed: 3, len: 5000 };
    run(
        &mut model,
        &[
            (Op::Create { path: path("f"), mode: 0o600 }, Ok(Reply::Done)),
            (Op::Open { path: path("f"), handle: 7 }, Ok(Reply::Done)),
            (Op::Unlink { path: path("f") }, Ok(Reply::Done)),
            (Op::Write { object: file.clone(), offset: 0, content }, Ok(Reply::Count(5000))),
            (Op::Read { object: file, offset: 0, len: 9000 }, Ok(Reply::Bytes(content.bytes()))),
        ],
    );
    assert_eq!(model.len(), 2);
    run(&mut model, &[(Op::Close { handle: 7 }, Ok(Reply::Done))]);
    assert_eq!(model.len(), 1);
}

#[test]
fn content_equals_a_flat_array() {
    let mut rng = crate::rng::Rng::new(99);
    let (mut sparse, mut flat) = (Sparse::default(), Vec::new());
    for _ in 0..2000 {
        let (offset, len) = (rng.below(30000), rng.below(9000));
        match rng.below(3) {
            0 => {
                let bytes = Content { seed: rng.bits(), len: len as usize }.bytes();
                sparse.write(offset, &bytes);
                if !bytes.is_empty() {
                    flat.resize(flat.len().max((offset + len) as usize), 0);
                    flat[offset as usize..(offset + len) as usize].copy_from_slice(&bytes);
                }
            }
            1 => {
                sparse.zero(offset, len);
                let end = flat.len().min((offset + len) as usize);
                flat[(offset as usize).min(end)..end].fill(0);
            }
            _ => {
                sparse.truncate(offset);
                flat.resize(offset as usize, 0);
            }
        }
        assert_eq!(sparse.read(0, 100_000), flat);
    }
}

#[test]
fn a_clone_is_a_kept_state() {
    let mut model = ModelFs::default();
    model.apply(&Op::Create { path: path("f"), mode: 0o600 }).expect("created");
    let kept = model.clone();
    let object = Object::Path(path("f"));
    let allocate = Op::Allocate { object: object.clone(), how: AllocateHow::Extend, offset: 0, len: 10 };
    model.apply(&allocate).expect("allocated");
    let size = |model: &ModelFs| model.node(model.resolve(&path("f")).expect("there")).size();
    assert_eq!((size(&kept), size(&model)), (0, 10));
}
