//! Runs a workload again that failed, and makes it short: `reproduce SEED FORMAT COUNT [tight] [check]`.
//!
//! FORMAT is an index into `engine::FORMATS`. A list of operations fails when engine and model disagree, when a
//! reopened image shows something else, or, with `check`, when `btrfs check` is not clean.

use butterfs_fs::Options;
use butterfs_testkit::engine::{FORMATS, Format, device, open, tight};
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::kernel::judge_all;
use butterfs_testkit::library::Library;
use butterfs_testkit::model::ModelFs;
use butterfs_testkit::operation::{Op, OperationTarget};
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::workload::{Generator, Shape, shrink, step};
use std::panic::{AssertUnwindSafe, catch_unwind};

struct Case {
    format: Format,
    options: Options,
    check: bool,
    scratch: Scratch,
}

impl Case {
    /// Why these operations fail.
    fn failure(&self, ops: &[Op]) -> Option<String> {
        catch_unwind(AssertUnwindSafe(|| self.try_failure(ops))).unwrap_or(Some("panicked".to_owned()))
    }

    fn try_failure(&self, ops: &[Op]) -> Option<String> {
        // Made anew: `create` empties what an earlier list left.
        let image = self.scratch.sparse_file("image", 1 << 30);
        self.format.make(&device(&image));
        let filesystem = open(&image, self.options.clone());
        let (mut model, mut library) = (ModelFs::default(), Library::new(&filesystem));
        for op in ops {
            if let Err((expected, actual)) = step(op, &mut model, &mut library) {
                return Some(format!("{op:?}: expected {expected:?}, actual {actual:?}"));
            }
        }
        let open_handles: Vec<u32> = model.handles().keys().copied().collect();
        for handle in open_handles {
            let _ = (model.apply(&Op::Close { handle }), library.apply(&Op::Close { handle }));
        }
        drop(library);
        if let Err(error) = filesystem.shutdown() {
            return Some(format!("shutdown: {error}"));
        }
        drop(filesystem);
        if self.check
            && let Some(verdict) = judge_all(&image).into_iter().find(|verdict| !verdict.clean)
        {
            return Some(format!("check: {:?}", verdict.findings));
        }
        let filesystem = open(&image, Options { read_only: true, ..Options::default() });
        let shown = match Fingerprint::of_library(&filesystem) {
            Ok(shown) => shown,
            Err(error) => return Some(error),
        };
        let found = differences(&Fingerprint::of_model(&model), &shown, Compare::MODEL);
        found.into_iter().next()
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments[at].parse::<u64>().expect("reproduce SEED FORMAT COUNT [tight] [check]");
    let has = |word: &str| arguments.iter().any(|argument| argument == word);
    let options = if has("tight") { tight() } else { Options::default() };
    let format = FORMATS[number(1) as usize];
    let case = Case { format, options, check: has("check"), scratch: Scratch::new("reproduce") };
    let (mut generator, mut model) = (Generator::new(number(0), Shape::ORDINARY), ModelFs::default());
    let next = |_| {
        let op = generator.next_op(&model);
        let _ = model.apply(&op);
        op
    };
    let ops: Vec<Op> = (0..number(2)).map(next).collect();
    std::panic::set_hook(Box::new(|info| eprintln!("{info}")));
    let Some(failure) = case.failure(&ops) else { return println!("no failure in {} operations", ops.len()) };
    println!("{failure}");
    let short = shrink(ops, &mut |ops| case.failure(ops).is_some());
    short.iter().for_each(|op| println!("{op:?}"));
    println!("{}", case.failure(&short).unwrap_or_default());
}
