//! The operations that are run inside each other: every public operation of a filesystem, on objects that overlap.

mod asks;
mod attributes;
mod contents;
mod durability;
mod names;
mod subvolumes;

use super::scene::{Base, NAMED, Scene, Uses, View};
use butterfs_fs::Error;
use butterfs_testkit::operation::{Outcome, Reply};
use butterfs_testkit::promise::Promise;
use rustix::io::Errno;
use std::cell::RefCell;

/// One of them.
pub struct Operation {
    /// In a few words; no two have the same.
    pub name: &'static str,
    /// The public functions of `Filesystem` that it calls.
    pub functions: &'static [&'static str],
    /// Does it.
    pub run: fn(&Scene) -> Outcome,
    /// Does it to a model; none where anything may come of it, except a change.
    pub told: fn(&mut View) -> Option<Outcome>,
    /// The promise that its success makes; asked before it is done.
    pub promise: fn(&View) -> Option<Promise>,
    /// While this other operation runs it may be refused (`EPERM`).
    pub refused_beside: Option<&'static str>,
}

/// A public function of `Filesystem` that no operation calls, and why.
pub const LEFT_OUT: &[(&str, &str)] = &[
    ("open", "there is no filesystem before it"),
    ("has_log", "there is no filesystem before it"),
    ("append", "a write whose place depends on the others; tests with threads (crates/butterfs/tests/handles.rs)"),
    ("shutdown", "each run ends with it"),
    ("abort", "nothing is true after it; tests of their own"),
    ("halt_switch", "nothing is true after it; tests of their own"),
    ("go_down", "nothing is true after it; tests of their own"),
    ("set_read_only", "what comes after it is refused; tests of mounts"),
    ("adopt_references", "of two filesystems; tests of mounts"),
    ("compare_references", "of two filesystems; tests of mounts"),
    ("release", "each run ends with it"),
    ("forget", "each thread ends with it"),
    ("booking_cost", "a count for tests"),
    ("work", "a count for tests"),
    ("has_room_to_start", "it changes nothing; the simulator asks it"),
    ("take_longest_stop", "a count for tests"),
    ("snapshot_recorded", "a snapshot without its commit, for tests"),
    ("is_in_place_stopped", "for tests"),
    ("set_data_policy", "an option"),
    ("data_policy", "an option"),
    ("age_caches", "it needs a minute"),
    ("start_scrub", "it has threads of its own; what they do, 'scrub' does"),
    ("cancel_scrub", "it waits for those threads"),
    ("limit_scrub", "a number"),
    ("scrub_limits", "numbers"),
    ("scrub_totals", "a sum of block groups"),
    ("scrub_selection", "a scan of a tree"),
    ("device_conditions", "numbers"),
    ("missing_devices", "a number"),
    ("stopped", "nothing is true after it; tests of their own"),
    ("add_device", "one device here; tests of devices"),
    ("add_device_at", "the same"),
    ("is_seed", "a flag"),
    ("sprouted", "one device here; tests of devices"),
    ("remove_device", "one device here; tests of devices"),
    ("resize_device", "it moves chunks for longer than a run; tests of devices"),
    ("migrate_chunk", "the same"),
    ("begin_replace", "one device here; tests of devices"),
    ("begin_replace_at", "the same"),
    ("cancel_replace", "the same"),
    ("continue_replace", "the same"),
    ("replace_status", "numbers"),
    ("device_at", "it looks at paths of the host"),
    ("device_usage", "numbers"),
    ("chunk_usage", "numbers"),
    ("space_usage", "numbers"),
    ("global_reserve", "a number"),
    ("begin_exclusive", "held by an operation; tests of its own"),
    ("cancel_exclusive", "a flag"),
    ("exclusive_operation", "a flag"),
    ("balance_start", "it has a thread of its own; tests of balance"),
    ("balance_begin", "the same"),
    ("balance_begin_again", "the same"),
    ("balance_drive", "it moves chunks for longer than a run; tests of balance"),
    ("balance_step", "the same"),
    ("balance_resume", "the same"),
    ("balance_pause", "a flag"),
    ("balance_cancel", "it waits for that thread"),
    ("balance_ask_to_cancel", "a flag"),
    ("balance_status", "numbers"),
    ("trim", "it looks at all space for longer than a run; the simulator's runs with discards"),
    ("discard_freed", "the simulator's runs with discards"),
    ("freed_waiting", "a flag"),
    ("discard_mode", "an option"),
    ("set_discard_mode", "an option"),
    ("has_other_users", "referrers, which another operation asks for"),
    ("find_subvolume", "a path, looked up by 'lookup'"),
];

/// All operations, and what each uses.
pub struct Operations {
    /// The operations.
    pub list: Vec<Operation>,
    uses: Vec<Uses>,
}

impl Operations {
    /// All of them; each is done once, alone, to see what it uses.
    pub fn new(base: &Base) -> Operations {
        let (list, everything) = (all(), Uses::from_iter(NAMED.iter().copied()));
        let used = |operation: &Operation| {
            let (stage, _) = base.open(std::slice::from_ref(&everything));
            let scene = Scene::new(&stage);
            let _ = (operation.run)(&scene);
            scene.used()
        };
        Operations { uses: list.iter().map(used).collect(), list }
    }

    /// The objects that a program uses.
    pub fn uses(&self, program: &[usize]) -> Uses {
        program.iter().flat_map(|operation| self.uses[*operation].iter().copied()).collect()
    }

    /// The number of the operation with this name.
    pub fn number(&self, name: &str) -> usize {
        let number = self.list.iter().position(|operation| operation.name == name);
        number.unwrap_or_else(|| panic!("there is no operation {name:?}"))
    }
}

/// Programs of several operations that are run beside each single one: what was freed is used again at once.
pub const SEQUENCES: &[&[&str]] = &[
    &["drop S/pre", "commit", "create B/fill", "write B/fill", "fsync B/fill"],
    &["drop S/nocow", "commit", "create B/fill", "write B/fill", "fsync B/fill"],
    &["delete_subvolume S", "clean", "commit", "create B/fill", "write B/fill", "fsync B/fill"],
    &["truncate S/pre 4096", "commit", "create B/fill", "write B/fill", "fsync B/fill"],
    &["snapshot S A/new", "write S/pre", "fsync S/pre"],
    &["unlink A/foo", "create A/foo", "fsync A"],
];

/// All of them.
pub fn all() -> Vec<Operation> {
    let groups = [names::all(), contents::all(), attributes::all(), durability::all(), subvolumes::all(), asks::all()];
    groups.into_iter().flatten().collect()
}

impl Operation {
    fn new(
        name: &'static str,
        functions: &'static [&'static str],
        run: fn(&Scene) -> Outcome,
        told: fn(&mut View) -> Option<Outcome>,
    ) -> Operation {
        Operation { name, functions, run, told, promise: |_| None, refused_beside: None }
    }

    /// One that shows something and changes nothing; what it shows is not compared.
    fn asks(name: &'static str, functions: &'static [&'static str], run: fn(&Scene) -> Outcome) -> Operation {
        Operation::new(name, functions, run, |_| None)
    }

    fn refused_beside(mut self, other: &'static str) -> Operation {
        self.refused_beside = Some(other);
        self
    }

    fn promises(mut self, promise: fn(&View) -> Option<Promise>) -> Operation {
        self.promise = promise;
        self
    }
}

/// Reads a read-only subvolume as a tree, which must not change meanwhile.
pub(super) const READS_R: &str = "read_snapshot R";

thread_local! {
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

/// The sentence of the last error in this thread.
pub fn said() -> String {
    SAID.take()
}

fn errno(error: &Error) -> Errno {
    SAID.set(error.to_string());
    Errno::from_raw_os_error(error.errno().0)
}

/// The result of a call that answers nothing of interest.
fn done<T>(result: butterfs_fs::Result<T>) -> Outcome {
    answer(result, |_| Reply::Done)
}

fn answer<T>(result: butterfs_fs::Result<T>, reply: impl FnOnce(T) -> Reply) -> Outcome {
    result.map(reply).map_err(|error| errno(&error))
}

/// A call that made an inode, whose reference is given back.
fn made(scene: &Scene, result: butterfs_fs::Result<butterfs_fs::Attr>) -> Outcome {
    done(result.map(|attr| scene.fs.forget(attr.id, 1)))
}
