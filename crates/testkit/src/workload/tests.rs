//! The generator against the model alone, and against this machine's own filesystem.

use super::*;
use crate::operation::{Object, RelPath, Reply};
use crate::scratch::Scratch;

#[test]
fn a_seed_gives_one_list() {
    let list = |seed| {
        let (mut generator, mut model) = (Generator::new(seed, Shape::SMALL), ModelFs::default());
        let next = |_| {
            let op = generator.next_op(&model);
            let _ = model.apply(&op);
            op
        };
        (0..500).map(next).collect::<Vec<Op>>()
    };
    assert_eq!(list(5), list(5));
    assert_ne!(list(5), list(6));
}

#[test]
fn limits_hold_and_most_operations_succeed() {
    let mut model = ModelFs::default();
    let mut generator = Generator::new(1, Shape::ORDINARY);
    let mut good = 0;
    for _ in 0..20_000 {
        let op = generator.next_op(&model);
        good += usize::from(model.apply(&op).is_ok());
        assert!(model.len() <= Shape::ORDINARY.inodes_max);
    }
    assert!(good > 12_000, "{good} of 20000 succeeded");
    assert!(model.data_bytes() <= Shape::ORDINARY.data_max + Shape::ORDINARY.write_max + 8192);
    assert!(model.nodes().any(|(_, node)| node.links > 2));
}

/// A target that forgets one kind of change is found out, and the list that shows it is made short.
#[test]
fn a_wrong_target_is_found_and_shrunk() {
    struct Wrong(ModelFs);
    impl OperationTarget for Wrong {
        fn apply(&mut self, op: &Op) -> Outcome {
            match op {
                Op::Truncate { .. } => Ok(Reply::Done),
                op => self.0.apply(op),
            }
        }
    }
    let mut generator = Generator::new(3, Shape::SMALL);
    let found = run(&mut generator, 10_000, &mut ModelFs::default(), &mut Wrong(ModelFs::default()));
    let found = found.expect_err("the target is wrong");
    let mut generator = Generator::new(3, Shape::SMALL);
    let mut model = ModelFs::default();
    let mut ops = Vec::new();
    for _ in 0..=found.agreed {
        let op = generator.next_op(&model);
        let _ = model.apply(&op);
        ops.push(op);
    }
    let mut fails = |ops: &[Op]| {
        let (mut model, mut wrong) = (ModelFs::default(), Wrong(ModelFs::default()));
        ops.iter().any(|op| step(op, &mut model, &mut wrong).is_err())
    };
    let short = shrink(ops, &mut fails);
    assert!(short.len() <= 6 && short.iter().any(|op| matches!(op, Op::Truncate { .. })), "{short:#?}");
}

/// The model agrees with the kernel's own btrfs, so that it can serve as an oracle for ours.
#[test]
fn the_model_agrees_with_the_kernels_btrfs() {
    const TEST: &str = "the_model_agrees_with_the_kernels_btrfs";
    if !crate::requirement::kernel_btrfs(TEST) {
        return;
    }
    let _watchdog = crate::watchdog::Watchdog::new(TEST, 300);
    let scratch = Scratch::new("model");
    let image = scratch.sparse_file("image", 1 << 30);
    crate::kernel::mkfs(&image, &[]);
    let mount = crate::kernel::KernelMount::new(&image, "noatime");
    let mut model = ModelFs::default();
    let mut mounted = crate::mounted::Mounted::new(mount.path());
    let mut generator = Generator::new(2024, Shape::ORDINARY);
    run(&mut generator, 20_000, &mut model, &mut mounted).unwrap_or_else(|found| panic!("{found:?}"));
    drop(mounted);
    let root = Object::Path(RelPath::default());
    assert!(model.apply(&Op::Stat { object: root }).is_ok());
    let open: Vec<u32> = model.handles().keys().copied().collect();
    open.into_iter().for_each(|handle| drop(model.apply(&Op::Close { handle })));
    let expected = crate::fingerprint::Fingerprint::of_model(&model);
    let actual = crate::fingerprint::Fingerprint::of_tree(mount.path());
    let found = crate::fingerprint::differences(&expected, &actual, crate::fingerprint::Compare::MODEL);
    assert!(found.is_empty(), "{found:#?}");
    assert_eq!(mount.finish(), [""; 0]);
}
