//! Workloads: what is there before, one or two operations, and what makes something durable after each.
//!
//! The preconditions of an operation are committed before the first one where that changes nothing for the others, and
//! made just before it otherwise.

use super::operations::{ATTRIBUTE, FILE_BYTES, Need, Operation, sibling, skeleton};
use crate::step::Step;
use butterfs_testkit::model::ModelFs;
use butterfs_testkit::operation::{Content, Kind, Object, Op, RelPath};

/// A workload to try.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Done and committed before.
    pub base: Vec<Step>,
    /// The operations, and what makes them durable.
    pub steps: Vec<Step>,
}

/// A workload that is being made, and where its steps lead.
#[derive(Clone)]
struct Draft {
    base: Vec<Step>,
    before: ModelFs,
    steps: Vec<Step>,
    after: ModelFs,
    /// The paths that the operations so far concern.
    touched: Vec<RelPath>,
}

/// All workloads of one operation, made durable by everything that can.
pub fn of_one(first: &Operation) -> Vec<Workload> {
    let Some(draft) = Draft::new().with(first) else { return Vec::new() };
    let ways = persistences(&draft.after, first, true);
    ways.into_iter().filter_map(|way| draft.clone().then(way)).map(Draft::done).collect()
}

/// All workloads of two operations. Nothing, or something, is made durable between them.
pub fn of_two(first: &Operation, second: &Operation) -> Vec<Workload> {
    let Some(draft) = Draft::new().with(first) else { return Vec::new() };
    let mut between: Vec<Option<Step>> = vec![None];
    let ways = persistences(&draft.after, first, false);
    // The first object, its folder, and everything.
    let last = ways.len().saturating_sub(1);
    let chosen = ways.into_iter().enumerate().filter(|(index, _)| *index < 2 || *index == last);
    between.extend(chosen.map(|(_, way)| Some(way)));
    let drafts = between.into_iter().filter_map(|way| match way {
        Some(way) => draft.clone().then(way),
        None => Some(draft.clone()),
    });
    let whole = drafts.filter_map(|draft| draft.with(second));
    whole
        .flat_map(|draft| {
            let ways = persistences(&draft.after, second, false);
            ways.into_iter().filter_map(move |way| draft.clone().then(way))
        })
        .map(Draft::done)
        .collect()
}

impl Draft {
    fn new() -> Draft {
        let (base, mut before) = (skeleton(), ModelFs::default());
        base.iter().for_each(|step| drop(step.apply(&mut before).expect("the skeleton is valid")));
        Draft { base, after: before.clone(), before, steps: Vec::new(), touched: Vec::new() }
    }

    fn done(self) -> Workload {
        Workload { base: self.base, steps: self.steps }
    }

    /// Goes on with a step that must succeed.
    fn then(mut self, step: Step) -> Option<Draft> {
        if !step.is_certain(&self.after)
            || copies_beyond_end(&step, &self.after)
            || step.apply(&mut self.after).is_err()
        {
            return None;
        }
        self.steps.push(step);
        Some(self)
    }

    /// Goes on with an operation, and what it needs; none when that cannot be.
    fn with(self, operation: &Operation) -> Option<Draft> {
        let mut draft = operation.needs.iter().try_fold(self, |draft, need| draft.satisfy(need))?;
        draft.touched.extend(operation.needs.iter().map(|need| need.path().clone()));
        draft.touched.extend(operation.about.iter().cloned());
        operation.steps.iter().try_fold(draft, |draft, step| draft.then(step.clone()))
    }

    fn satisfy(self, need: &Need) -> Option<Draft> {
        let found = self.after.resolve(need.path()).ok();
        let kind = found.map(|id| self.after.node(id).kind);
        match (need, found) {
            (Need::Free(_), None) => Some(self),
            (Need::Free(_), Some(_)) => None,
            (Need::Subvolume(_), Some(id)) => self.after.is_subvolume(id).then_some(self),
            (Need::Attribute(path), Some(id)) if kind == Some(Kind::File) => {
                match self.after.node(id).xattrs.contains_key(ATTRIBUTE) {
                    true => Some(self),
                    false => self.beforehand(path, vec![attribute(path)]),
                }
            }
            (Need::File(_), Some(_)) if kind == Some(Kind::File) => Some(self),
            (Need::File(_) | Need::Attribute(_), Some(_)) => None,
            (Need::File(path), None) => self.beforehand(path, file(path)),
            (Need::Attribute(path), None) => {
                self.beforehand(path, file(path).into_iter().chain([attribute(path)]).collect())
            }
            (Need::Subvolume(path), None) => self.beforehand(path, vec![Step::Subvolume { path: path.clone() }]),
        }
    }

    /// Has steps about `path` done: before everything, when nothing was about it yet.
    fn beforehand(self, path: &RelPath, steps: Vec<Step>) -> Option<Draft> {
        let moved = |touched: &RelPath| touched == path || touched.is_above(path);
        if self.touched.iter().any(moved) {
            return steps.into_iter().try_fold(self, Draft::then);
        }
        let Draft { mut base, mut before, steps: later, touched, .. } = self;
        for step in steps {
            step.apply(&mut before).ok()?;
            base.push(step);
        }
        let draft = Draft { base, after: before.clone(), before, steps: Vec::new(), touched };
        later.into_iter().try_fold(draft, Draft::then)
    }
}

/// Whether extents are to be shared that the first file does not have.
fn copies_beyond_end(step: &Step, model: &ModelFs) -> bool {
    match step {
        Step::CloneRange { from, from_offset, len, .. } => {
            model.resolve(from).is_ok_and(|id| model.node(id).size() < from_offset + len)
        }
        _ => false,
    }
}

fn file(path: &RelPath) -> Vec<Step> {
    let object = Object::Path(path.clone());
    vec![
        Step::Op(Op::Create { path: path.clone(), mode: 0o644 }),
        Step::Op(Op::Write { object, offset: 0, content: Content { seed: 2, len: FILE_BYTES as usize } }),
    ]
}

fn attribute(path: &RelPath) -> Step {
    let (path, name, value) = (path.clone(), ATTRIBUTE.to_owned(), Content { seed: 2, len: 30 });
    Step::Op(Op::SetXattr { path, name, value, create: false, replace: false })
}

/// The objects that can be made durable after an operation: its paths, their folders and siblings; and everything.
fn persistences(model: &ModelFs, operation: &Operation, data_too: bool) -> Vec<Step> {
    let about = || operation.about.iter().cloned();
    let folders = operation.about.iter().filter_map(|path| path.split()).map(|(folder, _)| folder);
    let siblings = operation.about.iter().filter_map(sibling);
    let mut known = Vec::new();
    let mut steps = Vec::new();
    let mut one = |path: RelPath| {
        let Some(id) = model.resolve(&path).ok().filter(|id| !known.contains(id)) else { return };
        let node = model.node(id);
        if !matches!(node.kind, Kind::File | Kind::Folder) || node.placeholder {
            return;
        }
        known.push(id);
        let ways = if data_too { &[false, true][..] } else { &[false] };
        let fsync =
            |data_only: &bool| Step::Op(Op::Fsync { object: Object::Path(path.clone()), data_only: *data_only });
        steps.extend(ways.iter().map(fsync));
    };
    about().take(1).for_each(&mut one);
    folders.for_each(&mut one);
    about().skip(1).chain(siblings).for_each(&mut one);
    steps.push(Step::Op(Op::Sync));
    steps
}
