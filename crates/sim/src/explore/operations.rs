//! The operations that the explorer tries, each with what it needs to be there and what it is about.

use crate::step::Step;
use butterfs_testkit::operation::{AllocateHow, Content, Object, Op, RelPath, RenameHow, Text};

/// Something that must hold before an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Need {
    /// Nothing is there.
    Free(RelPath),
    /// A file with some data.
    File(RelPath),
    /// A file with the extended attribute [`ATTRIBUTE`].
    Attribute(RelPath),
    Subvolume(RelPath),
}

impl Need {
    /// The path.
    pub fn path(&self) -> &RelPath {
        match self {
            Need::Free(path) | Need::File(path) | Need::Attribute(path) | Need::Subvolume(path) => path,
        }
    }
}

/// One operation, as the steps that make it up.
#[derive(Clone, Debug)]
pub struct Operation {
    /// The work.
    pub steps: Vec<Step>,
    /// The preconditions.
    pub needs: Vec<Need>,
    /// The paths that may be made durable afterwards, with parents and siblings.
    pub about: Vec<RelPath>,
}

/// The extended attribute that is set and removed.
pub const ATTRIBUTE: &str = "user.explored";
/// Bytes of a file that is there before.
pub const FILE_BYTES: u64 = 20_000;
const FOLDERS: &[&str] = &["", "A", "B", "A/C"];
const NAMES: &[&str] = &["foo", "bar"];

/// The folders that are always there.
pub fn skeleton() -> Vec<Step> {
    FOLDERS[1..].iter().map(|path| Step::Op(Op::Mkdir { path: RelPath::from(*path), mode: 0o755 })).collect()
}

/// The path in the same folder with the other name, for one that the explorer uses.
pub fn sibling(path: &RelPath) -> Option<RelPath> {
    let (folder, name) = path.split()?;
    let other = NAMES.iter().position(|known| known.as_bytes() == name)?;
    Some(folder.join(NAMES[1 - other].as_bytes()))
}

/// All operations. With `canonical` only those whose first name is the first of the two: exchanging the names
/// everywhere makes the others of them.
pub fn operations(canonical: bool) -> Vec<Operation> {
    let all: Vec<RelPath> = FOLDERS
        .iter()
        .flat_map(|folder| NAMES.iter().map(|name| RelPath::from(*folder).join(name.as_bytes())))
        .collect();
    let first = all.iter().filter(|path| !canonical || path.0.ends_with(NAMES[0].as_bytes()));
    let mut made = Vec::new();
    for path in first {
        made.extend(names(path));
        made.extend(contents(path));
        for other in all.iter().filter(|other| *other != path) {
            made.extend(pairs(path, other));
        }
    }
    made.extend(folders());
    made
}

fn operation(steps: Vec<Step>, needs: Vec<Need>, about: &[&RelPath]) -> Operation {
    Operation { steps, needs, about: about.iter().map(|path| (*path).clone()).collect() }
}

/// Operations that create, remove and describe one name.
fn names(at: &RelPath) -> Vec<Operation> {
    let path = || at.clone();
    let free = |step: Step| operation(vec![step], vec![Need::Free(path())], &[at]);
    let file = |op: Op| operation(vec![Step::Op(op)], vec![Need::File(path())], &[at]);
    let (folder, _) = at.split().expect("not the root");
    let name = ATTRIBUTE.to_owned();
    let value = Content { seed: 3, len: 40 };
    let nameless = vec![
        Step::Op(Op::Tmpfile { folder, mode: 0o600, handle: 9 }),
        Step::Op(Op::Write { object: Object::Handle(9), offset: 0, content: Content { seed: 6, len: 5000 } }),
        Step::LinkHandle { handle: 9, to: path() },
        Step::Op(Op::Close { handle: 9 }),
    ];
    vec![
        free(Step::Op(Op::Create { path: path(), mode: 0o644 })),
        free(Step::Op(Op::Mkdir { path: path(), mode: 0o755 })),
        free(Step::Op(Op::Symlink { path: path(), target: Text(b"A/foo".to_vec()) })),
        free(Step::Subvolume { path: path() }),
        free(Step::Snapshot { from: RelPath::default(), to: path(), read_only: false }),
        operation(vec![Step::DeleteSubvolume { path: path() }], vec![Need::Subvolume(path())], &[at]),
        operation(nameless, vec![Need::Free(path())], &[at]),
        file(Op::Unlink { path: path() }),
        file(Op::SetXattr { path: path(), name: name.clone(), value, create: false, replace: false }),
        operation(vec![Step::Op(Op::RemoveXattr { path: path(), name })], vec![Need::Attribute(path())], &[at]),
        file(Op::Chmod { object: Object::Path(path()), mode: 0o600 }),
    ]
}

/// Operations that change the content of one file.
fn contents(at: &RelPath) -> Vec<Operation> {
    let object = || Object::Path(at.clone());
    let write = |seed, offset, len| Op::Write { object: object(), offset, content: Content { seed, len } };
    let allocate = |how, offset, len| Op::Allocate { object: object(), how, offset, len };
    let ops = [
        write(7, FILE_BYTES, 5000),
        write(10, 4096, 8192),
        write(11, 1000, 3000),
        allocate(AllocateHow::Extend, FILE_BYTES, 9000),
        allocate(AllocateHow::KeepSize, FILE_BYTES, 9000),
        allocate(AllocateHow::PunchHole, 3000, 9000),
        allocate(AllocateHow::ZeroRange, 3000, 9000),
        Op::Truncate { object: object(), size: 0 },
        Op::Truncate { object: object(), size: 5000 },
        Op::Truncate { object: object(), size: 30_000 },
    ];
    let plain = ops.into_iter().map(|op| vec![Step::Op(op)]);
    // As the pages of a mapping: written back before anybody asks for it.
    let mapped = [write(14, 1000, 9000), write(15, FILE_BYTES, 5000)]
        .map(|op| vec![Step::Op(op), Step::WriteBack { object: object() }]);
    plain.chain(mapped).map(|steps| operation(steps, vec![Need::File(at.clone())], &[at])).collect()
}

/// Operations on two names.
fn pairs(at: &RelPath, other: &RelPath) -> Vec<Operation> {
    let (from, to) = (|| at.clone(), || other.clone());
    let rename = |how| Step::Op(Op::Rename { from: from(), to: to(), how });
    let onto_free = || vec![Need::File(from()), Need::Free(to())];
    let onto_file = || vec![Need::File(from()), Need::File(to())];
    let clone = Step::CloneRange { from: from(), from_offset: 0, to: to(), to_offset: 4096, len: 8192 };
    let about = [other, at];
    let mut made = vec![
        operation(vec![Step::Op(Op::Link { from: from(), to: to() })], onto_free(), &about),
        operation(vec![rename(RenameHow::Replace)], onto_free(), &about),
        operation(vec![rename(RenameHow::Replace)], onto_file(), &about),
        operation(vec![rename(RenameHow::Whiteout)], onto_free(), &about),
        operation(vec![clone], onto_file(), &about),
    ];
    // The other way round it is the same.
    if at < other {
        made.push(operation(vec![rename(RenameHow::Exchange)], onto_file(), &about));
    }
    made
}

/// Operations on the folders themselves.
fn folders() -> Vec<Operation> {
    let path = |path: &str| RelPath::from(path);
    let rename = |from: &str, to: &str, how| {
        let step = Step::Op(Op::Rename { from: path(from), to: path(to), how });
        operation(vec![step], vec![], &[&path(to), &path(from)])
    };
    let one = |op: Op, about: &str| operation(vec![Step::Op(op)], vec![], &[&path(about)]);
    let name = ATTRIBUTE.to_owned();
    let value = Content { seed: 3, len: 40 };
    vec![
        rename("A", "D", RenameHow::Replace),
        rename("B", "A/B", RenameHow::Replace),
        rename("A/C", "C", RenameHow::Replace),
        rename("A/C", "B", RenameHow::Replace),
        rename("A", "B", RenameHow::Exchange),
        rename("A/C", "B", RenameHow::Exchange),
        one(Op::Rmdir { path: path("B") }, "B"),
        one(Op::Rmdir { path: path("A/C") }, "A/C"),
        one(Op::SetXattr { path: path("A"), name, value, create: false, replace: false }, "A"),
        one(Op::Chmod { object: Object::Path(path("A")), mode: 0o700 }, "A"),
    ]
}
