//! A forest of subvolumes in which we and the kernel work in turn. Each subvolume has a model; a snapshot's model is a
//! clone of its source's. After each turn `btrfs check` is clean and every subvolume shows what its model holds.

use super::{inside, open_top, same};
use butterfs_fs::{Caller, Filesystem, InodeId, TreeId};
use butterfs_testkit::engine::{FORMATS, Format, device};
use butterfs_testkit::fingerprint::{Compare, Fingerprint};
use butterfs_testkit::kernel::{KernelMount, check_all, run_ok};
use butterfs_testkit::library::Library;
use butterfs_testkit::model::ModelFs;
use butterfs_testkit::mounted::Mounted;
use butterfs_testkit::operation::{Op, OperationTarget, RelPath};
use butterfs_testkit::requirement;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::watchdog::Watchdog;
use butterfs_testkit::workload::{Generator, Shape, run};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const TURNS: usize = 6;
const STEPS: usize = 14;
const MOST_SUBVOLUMES: usize = 8;

/// A subvolume as it must be.
struct Grown {
    model: ModelFs,
    read_only: bool,
}

/// Somebody who works in the forest.
trait Worker {
    fn create(&self, name: &str);
    fn snapshot(&self, source: &str, name: &str, read_only: bool);
    fn delete(&self, name: &str);
    fn rename(&self, from: &str, to: &str);
    fn enter(&self, name: &str) -> Box<dyn OperationTarget>;
    fn shown(&self, name: &str) -> Fingerprint;
}

struct Us(Filesystem);

const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0o022, privileged: true };
const TOP: InodeId = InodeId::root_of(TreeId::FS);

impl Us {
    fn id(&self, name: &str) -> TreeId {
        let found = self.0.lookup(TOP, name.as_bytes()).unwrap_or_else(|error| panic!("{name}: {error}")).id;
        self.0.forget(found, 1);
        found.tree
    }
}

impl Worker for Us {
    fn create(&self, name: &str) {
        self.0.create_subvolume(&CALLER, TOP, name.as_bytes()).unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    fn snapshot(&self, source: &str, name: &str, read_only: bool) {
        let made = self.0.snapshot(self.id(source), TOP, name.as_bytes(), read_only);
        made.unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    fn delete(&self, name: &str) {
        self.0.delete_subvolume(TOP, name.as_bytes()).unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    fn rename(&self, from: &str, to: &str) {
        let how = butterfs_fs::RenameMode::NoReplace;
        self.0.rename(TOP, from.as_bytes(), TOP, to.as_bytes(), how).unwrap_or_else(|error| panic!("{from}: {error}"));
    }

    fn enter(&self, name: &str) -> Box<dyn OperationTarget> {
        Box::new(Library::below(&self.0, &RelPath(name.as_bytes().to_vec())))
    }

    fn shown(&self, name: &str) -> Fingerprint {
        inside(&Fingerprint::of_library(&self.0).unwrap_or_else(|error| panic!("{error}")), name)
    }
}

struct Kernel(PathBuf);

impl Kernel {
    fn btrfs(&self, arguments: &[&str]) {
        let script = format!("umask 022; cd {} && exec btrfs {}", self.0.display(), arguments.join(" "));
        run_ok(60, "sh", &["-c", &script]);
    }
}

impl Worker for Kernel {
    fn create(&self, name: &str) {
        self.btrfs(&["subvolume", "create", name]);
    }

    fn snapshot(&self, source: &str, name: &str, read_only: bool) {
        self.btrfs(&["subvolume", "snapshot", if read_only { "-r" } else { "" }, source, name]);
    }

    fn delete(&self, name: &str) {
        self.btrfs(&["subvolume", "delete", name]);
    }

    fn rename(&self, from: &str, to: &str) {
        std::fs::rename(self.0.join(from), self.0.join(to)).unwrap_or_else(|error| panic!("{from}: {error}"));
    }

    fn enter(&self, name: &str) -> Box<dyn OperationTarget> {
        Box::new(Mounted::new(&self.0.join(name)))
    }

    fn shown(&self, name: &str) -> Fingerprint {
        Fingerprint::of_tree(&self.0.join(name))
    }
}

/// All subvolumes, and the seed's course.
struct Forest {
    all: BTreeMap<String, Grown>,
    rng: Rng,
    made: usize,
    operations: usize,
}

impl Forest {
    fn new(seed: u64) -> Forest {
        Forest { all: BTreeMap::new(), rng: Rng::new(seed), made: 0, operations: 0 }
    }

    fn pick(&mut self, fits: impl Fn(&Grown) -> bool) -> Option<String> {
        let names: Vec<String> =
            self.all.iter().filter(|(_, grown)| fits(grown)).map(|(name, _)| name.clone()).collect();
        (!names.is_empty()).then(|| names[self.rng.index(names.len())].clone())
    }

    fn name(&mut self) -> String {
        self.made += 1;
        format!("s{}", self.made)
    }

    fn step(&mut self, worker: &dyn Worker) {
        let full = self.all.len() >= MOST_SUBVOLUMES;
        match self.rng.below(10) {
            0 | 1 if !full => {
                let name = self.name();
                worker.create(&name);
                self.all.insert(name, Grown { model: ModelFs::new(0o755), read_only: false });
            }
            2..=4 if !full => {
                let (Some(source), read_only) = (self.pick(|_| true), self.rng.below(3) == 0) else { return };
                let name = self.name();
                worker.snapshot(&source, &name, read_only);
                let model = self.all[&source].model.clone();
                self.all.insert(name, Grown { model, read_only });
            }
            5 => {
                let Some(name) = self.pick(|_| true) else { return };
                worker.delete(&name);
                self.all.remove(&name);
            }
            6 => {
                let Some(from) = self.pick(|grown| !grown.read_only) else { return };
                let to = self.name();
                worker.rename(&from, &to);
                let grown = self.all.remove(&from).expect("it was picked");
                self.all.insert(to, grown);
            }
            _ => self.work(worker),
        }
    }

    /// Ordinary operations inside one subvolume.
    fn work(&mut self, worker: &dyn Worker) {
        let Some(name) = self.pick(|grown| !grown.read_only) else { return };
        let mut generator = Generator::new(self.rng.below(u64::MAX), Shape::SMALL);
        let mut target = worker.enter(&name);
        let model = &mut self.all.get_mut(&name).expect("it was picked").model;
        let done = run(&mut generator, 150, model, &mut *target);
        done.unwrap_or_else(|found| panic!("in {name}: {found:?}"));
        let open: Vec<u32> = model.handles().keys().copied().collect();
        for handle in open {
            let close = Op::Close { handle };
            assert_eq!(model.apply(&close), target.apply(&close));
        }
        self.operations += 150;
    }

    fn compare(&self, worker: &dyn Worker, what: &str) {
        for (name, grown) in &self.all {
            let expected = Fingerprint::of_model(&grown.model);
            same(&format!("{what}, {name}"), &expected, &worker.shown(name), Compare::MODEL);
        }
    }
}

/// One image through all turns; the kernel takes the odd ones.
fn turns(seed: u64, format: &Format, image: &Path) {
    let mut forest = Forest::new(seed);
    format.make(&device(image));
    for turn in 0..TURNS {
        let what = format!("seed {seed}, turn {turn}");
        if turn % 2 == 0 {
            let us = Us(open_top(image));
            forest.compare(&us, &what);
            (0..STEPS).for_each(|_| forest.step(&us));
            us.0.sync().unwrap_or_else(|error| panic!("{error}"));
            forest.compare(&us, &what);
            assert_eq!(us.0.repair_uuid_tree().unwrap_or_else(|error| panic!("{error}")), 0, "{what}");
            us.0.shutdown().unwrap_or_else(|error| panic!("{error}"));
        } else {
            let mount = KernelMount::new(image, "");
            let kernel = Kernel(mount.path().to_owned());
            forest.compare(&kernel, &what);
            (0..STEPS).for_each(|_| forest.step(&kernel));
            forest.compare(&kernel, &what);
            assert_eq!(mount.finish(), [""; 0], "{what}");
        }
        check_all(image);
    }
    println!("seed {seed}: {} subvolumes made, {} operations inside", forest.made, forest.operations);
}

macro_rules! forests {
    ($($name:ident: $seed:literal, $format:literal;)*) => { $(
        #[test]
        fn $name() {
            if !requirement::kernel_btrfs(stringify!($name)) {
                return;
            }
            let _watchdog = Watchdog::new(stringify!($name), 400);
            let scratch = Scratch::new(stringify!($name));
            turns($seed, &FORMATS[$format], &scratch.sparse_file("image", 1 << 30));
        }
    )* };
}

forests! {
    forest_default: 401, 0;
    forest_small_nodes: 402, 1;
    forest_large_nodes: 403, 2;
    forest_without_free_space_tree: 404, 4;
    forest_small_nodes_again: 405, 5;
}
