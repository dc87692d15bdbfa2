//! Measuring operations in a scene.

use crate::scene::Scene;
use butterfs_fs::Filesystem;
use butterfs_fs::node_io::Work;
use std::time::Duration;

/// Times that an operation runs in a scene; the cheapest counts.
const ROUNDS: usize = 3;

/// How many of the objects of its scene an operation works with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// It touches one of them.
    One,
    /// It may touch all of them.
    All,
}

/// One way to call a public function.
#[derive(Clone, Copy)]
pub struct Operation {
    /// The function.
    pub function: &'static str,
    /// How it is called, where there is more than one row for it.
    pub how: &'static str,
    pub reach: Reach,
    /// Prepares, and has the meter measure the call itself.
    pub run: fn(&Scene, &mut Meter),
}

impl Operation {
    pub const fn new(
        function: &'static str,
        how: &'static str,
        reach: Reach,
        run: fn(&Scene, &mut Meter),
    ) -> Operation {
        Operation { function, how, reach, run }
    }
}

/// The cost of one or several calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    pub work: Work,
    pub time: Duration,
}

impl Cost {
    fn cheaper(self, other: Cost) -> Cost {
        let work = if other.work.steps() < self.work.steps() { other.work } else { self.work };
        Cost { work, time: self.time.min(other.time) }
    }
}

/// See [`Operation::run`].
#[derive(Default)]
pub struct Meter {
    cost: Cost,
    /// Whether no clean tree block is in memory when a call begins.
    is_cold: bool,
}

/// Time that this thread has spent on a processor. The engine has no other threads here.
fn processor_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

impl Meter {
    /// Each call begins without clean tree blocks in memory.
    pub fn cold() -> Meter {
        Meter { is_cold: true, ..Meter::default() }
    }

    /// The measured cost.
    pub fn cost(&self) -> Cost {
        self.cost
    }

    /// Measures a call, in addition to what was measured before.
    pub fn call<R>(&mut self, scene: &Scene, call: impl FnOnce() -> R) -> R {
        self.call_on(&scene.world.fs, call)
    }

    /// The same for a call on another filesystem.
    pub fn call_on<R>(&mut self, fs: &Filesystem, call: impl FnOnce() -> R) -> R {
        if self.is_cold {
            fs.forget_clean_blocks();
        }
        let (work, time) = (fs.work(), processor_time());
        let result = call();
        self.cost.time += processor_time() - time;
        self.add(fs.work().since(&work));
        result
    }

    /// Adds work that was done elsewhere.
    pub fn add(&mut self, done: Work) {
        self.cost.work.nodes += done.nodes;
        self.cost.work.items += done.items;
        self.cost.work.reads += done.reads;
    }
}

/// The costs of an operation in one scene.
#[derive(Clone, Debug)]
pub struct Row {
    pub name: String,
    pub reach: Reach,
    /// Of the call, and of making it durable.
    pub call: Cost,
    pub sync: Cost,
    /// The most steps and reads for which everybody waited in one go.
    pub stop: (u64, u64),
}

/// Runs each operation in the scene.
pub fn measure(scene: &Scene, operations: &[Operation]) -> Vec<Row> {
    let making = Row {
        name: "making the scene".to_owned(),
        reach: Reach::All,
        call: scene.making,
        sync: Cost::default(),
        stop: scene.world.fs.take_longest_stop(),
    };
    let rows = operations.iter().map(|operation| one(scene, operation));
    std::iter::once(making).chain(rows).collect()
}

fn one(scene: &Scene, operation: &Operation) -> Row {
    let mut best: Option<(Cost, Cost)> = None;
    scene.world.fs.take_longest_stop();
    for _ in 0..ROUNDS {
        scene.prepare();
        let mut call = Meter::default();
        (operation.run)(scene, &mut call);
        let mut sync = Meter::default();
        sync.call(scene, || scene.world.fs.sync()).expect("sync");
        best = Some(match best {
            None => (call.cost, sync.cost),
            Some((first, second)) => (first.cheaper(call.cost), second.cheaper(sync.cost)),
        });
    }
    let (call, sync) = best.expect("at least one round");
    let how = if operation.how.is_empty() { String::new() } else { format!(" ({})", operation.how) };
    let name = format!("{}{how}", operation.function);
    Row { name, reach: operation.reach, call, sync, stop: scene.world.fs.take_longest_stop() }
}
