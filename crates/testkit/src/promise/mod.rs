//! The states that a filesystem may show after a crash.
//!
//! The states since the last `sync` are kept, one after each operation. Allowed is:
//! 1. Names, attributes and links are exactly those of one of these states, not before the last `fsync`: until there is
//!    a tree log, an `fsync` commits all names.
//! 2. The content of a file is that of one of these states, or each 4 KiB block and the size is of one of them: data
//!    that nobody promised reaches the disk in any order. Of a file that was fsynced, states before that do not count.
//!
//! Data covered by a `sync` is in every state, so it must be in the content that is shown.
//!
//! Where an `fsync` writes a log instead of committing, its promise is about one inode; see [`logged`].

pub mod logged;

use crate::fingerprint::{Compare, Fingerprint, PathFingerprint, differences};
use crate::model::{Body, ModelFs, NodeId, Sparse};
use crate::operation::{Kind, Object, Op, OperationTarget, RelPath, Reply};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

const BLOCK: u64 = 4096;
/// The unit that is never torn.
const SECTOR: u64 = 512;

/// Up to so many bytes of a shown file from an offset; files with holes are too large to be read whole. None where the
/// device has lost them and the reader was told so.
pub type Read<'a> = dyn Fn(&RelPath, u64, usize) -> Option<Vec<u8>> + 'a;

/// Reads through a target that has lost nothing.
pub fn through(target: impl OperationTarget) -> impl Fn(&RelPath, u64, usize) -> Option<Vec<u8>> {
    let target = RefCell::new(target);
    move |path, offset, len| {
        let read = Op::Read { object: Object::Path(path.clone()), offset, len };
        match target.borrow_mut().apply(&read) {
            Ok(Reply::Bytes(bytes)) => Some(bytes),
            other => panic!("{path:?}: {other:?}"),
        }
    }
}

/// A state of the model, and what is compared of it, which is made once and when it is needed.
#[derive(Debug)]
pub struct ModelState {
    /// The state.
    pub model: ModelFs,
    bare: OnceLock<Fingerprint>,
}

impl ModelState {
    /// A state to be kept.
    pub fn new(model: &ModelFs) -> Arc<ModelState> {
        Arc::new(ModelState { model: model.clone(), bare: OnceLock::new() })
    }

    fn bare(&self) -> &Fingerprint {
        self.bare.get_or_init(|| bare(Fingerprint::of_model_without_content(&self.model)))
    }
}

/// The states that may be shown: the one that `sync` promised first, then one after each later operation. They are
/// numbered from 0, the first of all.
#[derive(Clone, Debug)]
pub struct History {
    /// From `first` on; earlier ones can be shown by nothing.
    states: Vec<Arc<ModelState>>,
    /// Everything is of this state or of a later one.
    first: usize,
    /// Names are of this state or of a later one.
    names_from: usize,
    /// The content of a file is of this state or of a later one.
    content_from: BTreeMap<NodeId, usize>,
    /// The logged inodes, and the state as of which they were logged.
    logged: Vec<(usize, NodeId)>,
    /// A block of a file may be torn, at sectors: files are written in place.
    torn_blocks: bool,
}

/// The durability that a returned operation guarantees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// Everything before it.
    All,
    /// All names, and the content of one file.
    File(NodeId),
    /// All names.
    Names,
    /// The inode, its names, and its entries if it is a folder: it was logged.
    Logged(NodeId),
}

impl Promise {
    /// The durability that `op` guarantees when it returns; asked before it is applied to `model`.
    pub fn of(op: &Op, model: &ModelFs) -> Option<Promise> {
        match op {
            Op::Sync => Some(Promise::All),
            Op::Fsync { object, .. } => model.find(object).map(Promise::File),
            _ => None,
        }
    }
}

impl History {
    /// Starts with a state that is durable.
    pub fn new(durable: &ModelFs) -> History {
        History::of(ModelState::new(durable))
    }

    /// Starts with a state that is durable.
    pub fn of(durable: Arc<ModelState>) -> History {
        History {
            states: vec![durable],
            first: 0,
            names_from: 0,
            content_from: BTreeMap::new(),
            logged: Vec::new(),
            torn_blocks: false,
        }
    }

    /// From now on each sector of 512 bytes of a file may be of another state, as where it is written in place.
    pub fn tears_blocks(&mut self) {
        self.torn_blocks = true;
    }

    /// An operation was started whose result would be this state.
    pub fn push(&mut self, state: &ModelFs) {
        self.add(ModelState::new(state));
    }

    /// An operation was started whose result would be this state.
    pub fn add(&mut self, state: Arc<ModelState>) {
        self.states.push(state);
    }

    /// The number of the newest state.
    pub fn last(&self) -> usize {
        self.first + self.states.len() - 1
    }

    /// The last operation returned and made this promise.
    pub fn promise(&mut self, promise: Promise) {
        self.promise_at(self.last(), promise);
    }

    /// An operation returned that made this promise about the state with this number; later operations may have been
    /// done beside it.
    pub fn promise_at(&mut self, number: usize, promise: Promise) {
        if !matches!(promise, Promise::Logged(_)) {
            self.names_from = self.names_from.max(number);
        }
        match promise {
            Promise::All => {
                self.states.drain(..number.saturating_sub(self.first));
                self.first = self.first.max(number);
                self.content_from.retain(|_, from| *from > number);
            }
            Promise::Names => {}
            Promise::File(id) | Promise::Logged(id) => {
                if let Promise::Logged(_) = promise {
                    self.logged.push((number, id));
                }
                let from = self.content_from.entry(id).or_default();
                *from = number.max(*from);
            }
        }
    }

    fn from(&self, number: usize) -> &[Arc<ModelState>] {
        &self.states[number.saturating_sub(self.first)..]
    }

    /// The number of the state that `shown` comes from, or why it comes from none. `read` returns bytes of a shown
    /// file.
    pub fn explain(&self, shown: &Fingerprint, read: &Read<'_>) -> Result<usize, String> {
        let bare_shown = bare(shown.clone());
        let mut nearest: Option<Vec<String>> = None;
        for (index, state) in self.from(self.names_from).iter().enumerate().rev() {
            let mut found = differences(state.bare(), &bare_shown, Compare::MODEL);
            if found.is_empty() {
                found = self.wrong_files(&state.model, shown, read);
                if found.is_empty() {
                    return Ok(self.names_from + index);
                }
            }
            if nearest.as_ref().is_none_or(|other| found.len() < other.len()) {
                nearest = Some(found);
            }
        }
        let (nearest, count) = (nearest.unwrap_or_default(), self.from(self.names_from).len());
        Err(format!("none of {count} states; the nearest differs by {:#?}", &nearest[..nearest.len().min(20)]))
    }

    fn wrong_files(&self, state: &ModelFs, shown: &Fingerprint, read: &Read<'_>) -> Vec<String> {
        let files = shown.entries.iter().filter(|(_, entry)| entry.kind == Kind::File);
        let wrong = files.filter_map(|(path, entry)| {
            let path = RelPath(path.clone());
            let id = state.resolve(&path).expect("the names agree");
            self.wrong_file(&path, id, entry, read)
        });
        wrong.collect()
    }

    /// Explains why the content of a shown file is wrong.
    fn wrong_file(&self, path: &RelPath, id: NodeId, entry: &PathFingerprint, read: &Read<'_>) -> Option<String> {
        let from = self.content_from.get(&id).copied().unwrap_or(self.first);
        let versions = versions(self.from(from), id);
        if versions.iter().any(|file| is_whole(file, entry)) {
            return None;
        }
        let unit = if self.torn_blocks { SECTOR } else { BLOCK };
        let what = unmixed(&versions, entry, unit as usize, &|offset| read(path, offset, BLOCK as usize));
        what.map(|what| format!("{path:?}: size {} and content are of no state: {what}", entry.size))
    }
}

/// Without what data that is still on its way to the disk decides.
fn bare(mut print: Fingerprint) -> Fingerprint {
    for entry in print.entries.values_mut().filter(|entry| entry.kind == Kind::File) {
        (entry.size, entry.mtime, entry.content, entry.blocks, entry.data) = (0, None, None, None, None);
    }
    print
}

/// The contents of a file in all states that have it.
fn versions(states: &[Arc<ModelState>], id: NodeId) -> Vec<&Sparse> {
    let nodes = states.iter().filter_map(|state| state.model.get(id));
    nodes.filter_map(|node| if let Body::File(file) = &node.body { Some(file) } else { None }).collect()
}

fn is_whole(file: &Sparse, shown: &PathFingerprint) -> bool {
    let mut hash = crate::fingerprint::ContentHash::default();
    file.written().for_each(|(offset, bytes)| hash.update(offset, bytes));
    file.size() == shown.size && Some(hash.finish()) == shown.content
}

/// Each unit is that of some version, cut off at the shown size; zeros are allowed where a version has none. What is
/// not so, otherwise.
///
/// Only blocks that a version or the shown file has data in are looked at: the others are holes in all of them.
fn unmixed(
    versions: &[&Sparse],
    shown: &PathFingerprint,
    unit: usize,
    read: &dyn Fn(u64) -> Option<Vec<u8>>,
) -> Option<String> {
    let sizes = || versions.iter().map(|file| file.size());
    // A large write reaches the disk in pieces that end at blocks.
    let part_of_write =
        shown.size.is_multiple_of(BLOCK) && sizes().min() <= Some(shown.size) && Some(shown.size) <= sizes().max();
    if !part_of_write && !sizes().any(|size| size == shown.size) {
        return Some(format!("sizes were {:?}", sizes().collect::<BTreeSet<u64>>()));
    }
    let is_known = |offset: u64, block: &[u8]| {
        let zeros = block.iter().all(|byte| *byte == 0);
        zeros && versions.iter().any(|file| file.size() <= offset)
            || versions.iter().any(|file| is_version(file, offset, block))
    };
    let block_known = |offset: u64| {
        let Some(block) = read(offset) else { return true };
        let mut units = block.chunks(unit).enumerate();
        units.all(|(number, part)| is_known(offset + (number * unit) as u64, part))
    };
    let written = versions.iter().flat_map(|file| file.written().map(|(offset, _)| offset));
    let data =
        shown.data.iter().flatten().flat_map(|(start, end)| (start / BLOCK..end.div_ceil(BLOCK)).map(|at| at * BLOCK));
    let offsets: BTreeSet<u64> = written.chain(data).filter(|offset| *offset < shown.size).collect();
    let unknown = offsets.into_iter().find(|offset| !block_known(*offset))?;
    let (sizes, zeros) = (sizes().collect::<Vec<u64>>(), read(unknown)?.iter().all(|byte| *byte == 0));
    Some(format!("the block at {unknown}, {}; sizes were {sizes:?}", if zeros { "zeros" } else { "data" }))
}

fn is_version(file: &Sparse, offset: u64, block: &[u8]) -> bool {
    let mut expected = file.read(offset, block.len());
    expected.resize(block.len(), 0);
    expected == block
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::Content;

    fn grow(model: &mut ModelFs, history: &mut History, op: Op) {
        model.apply(&op).expect("a valid operation");
        history.push(model);
    }

    #[test]
    fn durable_content_may_not_be_missing() {
        let (mut model, path) = (ModelFs::default(), RelPath::from);
        let mut history = History::new(&model);
        grow(&mut model, &mut history, Op::Create { path: path("a"), mode: 0o644 });
        grow(&mut model, &mut history, Op::Create { path: path("b"), mode: 0o644 });
        let object = Object::Path(path("a"));
        grow(&mut model, &mut history, Op::Write { object, offset: 0, content: Content { seed: 2, len: 9000 } });
        let show = |history: &History, shown: &ModelFs| {
            history.explain(&Fingerprint::of_model(shown), &through(shown.clone()))
        };
        for (index, state) in history.states.iter().enumerate().rev() {
            // The write changes no name, so the state before it is explained by the state after it.
            assert_eq!(show(&history, &state.model), Ok(if index == 2 { 3 } else { index }));
        }
        let old = history.states[1].model.clone();
        let mut wrong = model.clone();
        let object = Object::Path(path("a"));
        wrong.apply(&Op::Write { object, offset: 4096, content: Content { seed: 3, len: 10 } }).expect("written");
        assert!(show(&history, &wrong).is_err());
        history.promise(Promise::All);
        assert!(show(&history, &old).is_err());
        assert_eq!(show(&history, &model), Ok(3));
    }
}
