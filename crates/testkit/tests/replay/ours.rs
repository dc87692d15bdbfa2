//! The scenarios of what an fsync promises, run by our engine with logs written wherever one can be: what a power cut
//! leaves is replayed by us and by the kernel, and both must keep the promise.

use super::scenarios::{broken, part};
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::options::Policies;
use butterfs_fs::{AccessTimes, Env, Filesystem, Options};
use butterfs_testkit::engine::{FORMATS, Format};
use butterfs_testkit::fingerprint::Fingerprint;
use butterfs_testkit::fsync_scenarios::{SCENARIOS, Scenario};
use butterfs_testkit::judge::{judge_memory, text};
use butterfs_testkit::kernel::check_all;
use butterfs_testkit::library::{Library, ROOT};
use butterfs_testkit::model::ModelFs;
use butterfs_testkit::operation::{
    AllocateHow, Content, Kind, Object, Op, OperationTarget, RelPath, RenameHow, Text, agree,
};
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::watchdog::Watchdog;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

const LEN: u64 = 512 << 20;
/// Scenarios on one image.
const TOGETHER: usize = 16;

/// A scenario in its subvolume, with the model beside it.
struct Actor {
    library: Library,
    model: ModelFs,
    /// Files that are open, by the path that they were opened under.
    open: HashMap<String, u32>,
}

/// Commands for which the library has no operation.
const UNKNOWN: &[&str] = &["subvol ", "snap ", "delsub ", "lnopen ", "btrfs.compression"];

impl Actor {
    fn run(&mut self, script: &str) {
        for line in script.split(';').map(str::trim).filter(|line| !line.is_empty()) {
            let words: Vec<&str> = line.split_whitespace().collect();
            for op in self.operations(&words) {
                let (expected, actual) = (self.model.apply(&op), self.library.apply(&op));
                assert!(
                    agree(&expected, &actual) && actual.is_ok(),
                    "{line}: expected {expected:?}, actual {actual:?}"
                );
            }
        }
    }

    fn object(&self, path: &str) -> Object {
        self.open.get(path).map_or_else(|| Object::Path(at(path)), |handle| Object::Handle(*handle))
    }

    /// Makes the file if it is not there.
    fn made(&mut self, path: &str) -> Vec<Op> {
        let there = self.model.apply(&Op::Stat { object: self.object(path) }).is_ok();
        if there { Vec::new() } else { vec![Op::Create { path: at(path), mode: 0o644 }] }
    }

    fn operations(&mut self, words: &[&str]) -> Vec<Op> {
        let next = self.open.len() as u32 + 1;
        match *words {
            ["evict"] => Vec::new(),
            ["sync"] => vec![Op::Sync],
            ["touch", path] => self.made(path),
            ["open", path] => {
                self.open.insert(path.to_owned(), next);
                vec![Op::Open { path: at(path), handle: next }]
            }
            ["tmpfile", folder, path] => {
                self.open.insert(path.to_owned(), next);
                vec![Op::Tmpfile { folder: at(folder), mode: 0o644, handle: next }]
            }
            ["links", from, to, first, last] => {
                each(first, last, &|n| Op::Link { from: at(from), to: at(&format!("{to}{n}")) })
            }
            ["touchs", path, first, last] => {
                each(first, last, &|n| Op::Create { path: at(&format!("{path}{n}")), mode: 0o644 })
            }
            ["rms", path, first, last] => each(first, last, &|n| Op::Unlink { path: at(&format!("{path}{n}")) }),
            ["xattrs", path, first, last] => each(first, last, &|n| attribute(path, &format!("user.number-{n}"), n)),
            ["clone", _, _, _, to, _] | ["fill" | "trunc" | "falloc" | "fallock" | "punch", to, ..] => {
                let mut all = self.made(to);
                all.push(self.single(words));
                all
            }
            _ => vec![self.single(words)],
        }
    }

    fn single(&self, words: &[&str]) -> Op {
        let allocate = |path: &str, how, offset: &str, len: &str| Op::Allocate {
            object: self.object(path),
            how,
            offset: number(offset),
            len: number(len),
        };
        match *words {
            ["mkdir", path] => Op::Mkdir { path: at(path), mode: 0o755 },
            ["fill", path, offset, len, byte] => Op::Write {
                object: self.object(path),
                offset: number(offset),
                content: Content { seed: number(byte), len: number(len) as usize },
            },
            ["trunc", path, size] => Op::Truncate { object: self.object(path), size: number(size) },
            ["falloc", path, offset, len] => allocate(path, AllocateHow::Extend, offset, len),
            ["fallock", path, offset, len] => allocate(path, AllocateHow::KeepSize, offset, len),
            ["punch", path, offset, len] => allocate(path, AllocateHow::PunchHole, offset, len),
            ["clone", from, from_offset, len, to, to_offset] => Op::CopyRange {
                from: at(from),
                from_offset: number(from_offset),
                to: at(to),
                to_offset: number(to_offset),
                len: number(len),
            },
            ["ln", from, to] => Op::Link { from: at(from), to: at(to) },
            ["mv", from, to] => Op::Rename { from: at(from), to: at(to), how: RenameHow::Replace },
            ["xchg", from, to] => Op::Rename { from: at(from), to: at(to), how: RenameHow::Exchange },
            ["whiteout", from, to] => Op::Rename { from: at(from), to: at(to), how: RenameHow::Whiteout },
            ["rm", path] => Op::Unlink { path: at(path) },
            ["rmdir", path] => Op::Rmdir { path: at(path) },
            ["symlink", target, path] => Op::Symlink { path: at(path), target: Text(target.into()) },
            ["fifo", path] => Op::Mknod { path: at(path), kind: Kind::Fifo, mode: 0o600, major: 0, minor: 0 },
            ["device", path] => Op::Mknod { path: at(path), kind: Kind::CharDevice, mode: 0o600, major: 1, minor: 3 },
            ["chmod", path, mode] => {
                Op::Chmod { object: self.object(path), mode: u32::from_str_radix(mode, 8).expect("an octal number") }
            }
            ["chown", path, uid] => Op::Chown { path: at(path), uid: number(uid) as u32, gid: 0 },
            ["setx", path, name, value] => attribute(path, name, number(value)),
            ["rmx", path, name] => Op::RemoveXattr { path: at(path), name: name.to_owned() },
            ["fsync", path] => Op::Fsync { object: self.object(path), data_only: false },
            ["fdatasync", path] => Op::Fsync { object: self.object(path), data_only: true },
            _ => panic!("{words:?} is no operation"),
        }
    }
}

fn at(path: &str) -> RelPath {
    RelPath::from(if path == "." { "" } else { path })
}

fn number(word: &str) -> u64 {
    let (digits, unit) = match word.strip_suffix(['K', 'M']) {
        Some(digits) => (digits, if word.ends_with('K') { 1 << 10 } else { 1 << 20 }),
        None => (word, 1),
    };
    digits.parse::<u64>().unwrap_or_else(|_| panic!("{word} is no number")) * unit
}

fn each(first: &str, last: &str, op: &dyn Fn(u64) -> Op) -> Vec<Op> {
    (number(first)..=number(last)).map(op).collect()
}

fn attribute(path: &str, name: &str, seed: u64) -> Op {
    let value = Content { seed: seed + 4, len: 12 };
    Op::SetXattr { path: at(path), name: name.to_owned(), value, create: false, replace: false }
}

/// The result of the scenarios: the disk as a power cut leaves it, and what each model holds.
struct Cut {
    disk: MemoryDevice,
    live: Fingerprint,
}

fn cut(format: &Format, scenarios: &[&Scenario], old_form: bool) -> Cut {
    let device = Arc::new(MemoryDevice::new(LEN));
    format.make(&(device.clone() as Arc<dyn BlockDevice>));
    let policies = Policies { log_at_any_cost: true, log_dir_items: old_form, ..Policies::default() };
    let options =
        Options { access_times: AccessTimes::Never, commit_interval_secs: 3600, policies, ..Options::default() };
    let filesystem = Filesystem::open(vec![device.clone()], options, Env::system()).expect("just made");
    let mut whole = Library::new(&filesystem);
    // Chunks that are added mean a commit.
    let large = Op::Write { object: Object::Path(at("large")), offset: 0, content: Content { seed: 2, len: 40 << 20 } };
    let warm = if scenarios.len() > 1 { large } else { Op::Sync };
    for op in [Op::Create { path: at("large"), mode: 0o644 }, warm, Op::Sync] {
        whole.apply(&op).expect("room");
    }
    let mut actors = Vec::new();
    for (number, scenario) in scenarios.iter().enumerate() {
        let name = format!("s{number}");
        filesystem.create_subvolume(&ROOT, filesystem.root(), name.as_bytes()).expect("a new name");
        let library = Library::below(&filesystem, &at(&name));
        let mut actor = Actor { library, model: ModelFs::default(), open: HashMap::new() };
        let (before, after) = scenario.script.rsplit_once("; sync;").unwrap_or(("", scenario.script));
        actor.run(before);
        actors.push((actor, after));
    }
    for op in [Op::Unlink { path: at("large") }, Op::Sync] {
        whole.apply(&op).expect("a good device");
    }
    let mut live = Fingerprint::default();
    for (number, (actor, after)) in actors.iter_mut().enumerate() {
        actor.run(after);
        let own = Fingerprint::of_model(&actor.model).entries.into_iter();
        live.entries.extend(own.map(|(path, entry)| ([format!("s{number}/").as_bytes(), &path].concat(), entry)));
    }
    Cut { disk: device.snapshot(), live }
}

/// The part of the promises that is broken in what `who` shows.
fn look(who: &str, scenarios: &[&Scenario], cut: &Cut, shown: &Fingerprint) -> Vec<String> {
    let each = scenarios.iter().enumerate().flat_map(|(number, scenario)| {
        let found = broken(scenario, &part(&cut.live, number), &part(shown, number));
        found.into_iter().map(|what| format!("{}: {who}: {what}", scenario.name))
    });
    each.collect()
}

/// The guarantees that are broken after our replay.
fn judge(what: &str, scenarios: &[&Scenario], cut: &Cut) -> Vec<String> {
    let ours = Arc::new(cut.disk.snapshot());
    let filesystem = Filesystem::open(
        vec![ours.clone()],
        Options { access_times: AccessTimes::Never, ..Options::default() },
        Env::system(),
    );
    let filesystem = filesystem.unwrap_or_else(|error| panic!("{what}: {error}"));
    let shown = Fingerprint::of_library(&filesystem).unwrap_or_else(|error| panic!("{what}: {error}"));
    filesystem.shutdown().unwrap_or_else(|error| panic!("{what}: {error}"));
    let report = judge_memory(&ours);
    assert!(report.is_clean(), "{what}: {}", text(&report));
    look("ours", scenarios, cut, &shown)
}

/// The guarantees that are broken after our replay or the kernel's, and how many logs there were.
fn judge_by_both(what: &str, scenarios: &[&Scenario], cut: &Cut) -> (Vec<String>, usize) {
    let scratch = Scratch::new("our-log");
    let image = scratch.image("image", &cut.disk);
    let logs = super::logs_in(&image);
    let mut wrong = judge(what, scenarios, cut);
    wrong.extend(look("kernel", scenarios, cut, &super::kernels_replay(&image)));
    check_all(&image);
    (wrong, logs)
}

fn format_of(scenario: &Scenario) -> &'static Format {
    match scenario.format {
        "" => &FORMATS[0],
        "4096" => &FORMATS[5],
        _ => &FORMATS[2],
    }
}

fn has_log(disk: &MemoryDevice) -> bool {
    Filesystem::has_log(vec![Arc::new(disk.snapshot())]).expect("a filesystem")
}

fn runnable() -> Vec<&'static Scenario> {
    SCENARIOS.iter().filter(|scenario| !UNKNOWN.iter().any(|word| scenario.script.contains(word))).collect()
}

/// Each on a filesystem of its own, so that the others' commits do not end its log.
#[test]
fn our_logs_of_scenarios() {
    let watchdog = Watchdog::new("our_logs_of_scenarios", 300);
    let mut wrong = Vec::new();
    let mut logs = 0;
    for (number, scenario) in runnable().into_iter().enumerate() {
        watchdog.note(scenario.name);
        // Every other one in the form of kernels before 5.17.
        let cut = cut(format_of(scenario), &[scenario], number % 2 == 1);
        logs += usize::from(has_log(&cut.disk));
        wrong.extend(judge(scenario.name, &[scenario], &cut));
    }
    println!("{logs} of {} scenarios left a log", runnable().len());
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(logs * 2 > runnable().len(), "only {logs} scenarios left a log");
}

/// Several on one filesystem, replayed by the kernel too.
#[test]
fn our_logs_of_scenarios_beside_the_kernel() {
    const TEST: &str = "our_logs_of_scenarios_beside_the_kernel";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let watchdog = Watchdog::new(TEST, 300);
    let (mut wrong, mut logs) = (Vec::new(), 0);
    let mut by_format: BTreeMap<u32, Vec<&Scenario>> = BTreeMap::new();
    for scenario in runnable() {
        by_format.entry(format_of(scenario).nodesize).or_default().push(scenario);
    }
    for scenarios in by_format.values().flat_map(|scenarios| scenarios.chunks(TOGETHER)) {
        let names: Vec<&str> = scenarios.iter().map(|scenario| scenario.name).collect();
        watchdog.note(&names.join(", "));
        let cut = cut(format_of(scenarios[0]), scenarios, false);
        let (found, own) = judge_by_both(&names.join(", "), scenarios, &cut);
        println!("{} scenarios, {own} logs", scenarios.len());
        wrong.extend(found);
        logs += own;
    }
    assert!(logs * 2 > runnable().len(), "only {logs} logs: a scenario that commits ends those before it");
    assert!(wrong.is_empty(), "{wrong:#?}");
}
