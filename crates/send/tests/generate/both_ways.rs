//! Every way a stream can go: made by us or by the kernel, received by `btrfs receive`, by our engine, into a
//! directory, and by a mount; of random work, of sequences of changes of names, and of the cases that streams get
//! wrong. What is received equals what was sent.
//!
//! `BUTTERFS_SEND_PAIRS=N` tries batches of new pairs until there were N of each kind.

use crate::kernel::{received, same_tree};
use crate::namespace::{Bench, NAMES, universe};
use crate::random::work;
use crate::scenarios::{CASES, with_cases, without_subvolumes};
use crate::world::{TOP, World, job, same};
use butterfs_fs::TreeId;
use butterfs_send::apply::{self, Directory, Engine};
use butterfs_send::wire::Version;
use butterfs_testkit::fingerprint::Fingerprint;
use butterfs_testkit::kernel::{KernelMount, mkfs, run_ok};
use butterfs_testkit::operation::Op;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::serve::{Served, binary};
use butterfs_testkit::watchdog::Watchdog;
use butterfs_testkit::workload::Shape;
use butterfs_testkit::{engine, requirement};
use std::fmt::Write;
use std::path::Path;

/// Little data, because there are many pairs.
const SHAPE: Shape = Shape { data_max: 1 << 20, file_max: 200 << 10, write_max: 60 << 10, ..crate::random::SHAPE };

/// Cases that the kernel's streams lose on the way, so that no receiver can have them: a directory that once held a
/// subvolume stays under a temporary name, and an attribute named like the beginning of a capability is not sent.
const LOST_BY_THE_KERNEL: [&str; 2] =
    ["a removed directory that held a subvolume", "an attribute named like the beginning of a capability"];

/// The longest stream of the kernel that is received.
fn stream_kib() -> u64 {
    if std::env::var_os("BUTTERFS_SEND_TREE").is_some() { 4 << 20 } else { 64 << 10 }
}

/// How streams are made.
#[derive(Clone, Copy)]
pub struct How {
    pub version: Version,
    pub compressed: bool,
}

/// A snapshot that is sent, from the one it grew from or in full.
struct Sent {
    what: String,
    name: String,
    id: TreeId,
    parent: Option<(String, TreeId)>,
    by_the_kernel: bool,
    print: Fingerprint,
}

/// A filesystem with snapshots.
pub struct Source {
    pub world: World,
    sent: Vec<Sent>,
}

impl Source {
    fn new(image: &Path) -> Source {
        engine::FORMATS[0].make(&engine::device(image));
        Source::of(image)
    }

    /// Of a filesystem that was made.
    pub fn of(image: &Path) -> Source {
        Source { world: World::open(engine::device(image)), sent: Vec::new() }
    }

    fn add(&mut self, what: String, name: &str, id: TreeId, parent: Option<(&str, TreeId)>) {
        let print = without_subvolumes(self.world.print(name));
        let parent = parent.map(|(name, id)| (name.to_owned(), id));
        let by_the_kernel = !LOST_BY_THE_KERNEL.contains(&what.as_str());
        self.sent.push(Sent { what, name: name.to_owned(), id, parent, by_the_kernel, print });
    }

    pub fn add_pair(&mut self, what: String, (old, old_id): (&str, TreeId), (new, new_id): (&str, TreeId)) {
        self.add(what.clone(), old, old_id, None);
        self.add(what, new, new_id, Some((old, old_id)));
    }

    fn random(&mut self, seeds: std::ops::Range<u64>) {
        for seed in seeds {
            let (old, new) = work(&self.world, seed, SHAPE, &format!("r{seed}"));
            self.add_pair(format!("seed {seed}"), (&format!("oldr{seed}"), old), (&format!("newr{seed}"), new));
        }
    }

    fn cases(&mut self) {
        let mut pairs = Vec::new();
        with_cases(&self.world, |name, number, old, new| pairs.push((name.to_owned(), number, old, new)));
        for (name, number, old, new) in pairs {
            self.add_pair(name, (&format!("old{number}"), old), (&format!("new{number}"), new));
        }
    }

    /// Sequences of changes of names; those that cannot be carried out are none.
    fn sequences(self, sequences: &[Vec<&Op>]) -> Source {
        let Source { world, sent } = self;
        let mut bench = Bench::of(world);
        let mut made = Vec::new();
        for ops in sequences {
            if let Some(id) = bench.run(ops) {
                made.push((format!("{ops:?}"), bench.name(), id));
            }
        }
        let base = bench.base;
        let mut source = Source { world: bench.world, sent };
        source.add("the tree of sequences".to_owned(), "base", base, None);
        for (what, name, id) in made {
            source.add(what, &name, id, Some(("base", base)));
        }
        source
    }

    /// Entries of all snapshots.
    pub fn files(&self) -> usize {
        self.sent.iter().map(|sent| sent.print.entries.len()).sum()
    }

    fn stream(&self, how: How) -> Vec<u8> {
        let of = |sent: &Sent| {
            let mut job = job(sent.id, sent.parent.as_ref().map(|(_, id)| *id), how.version);
            job.options.compressed_data = how.compressed;
            self.world.send(&job)
        };
        self.sent.iter().flat_map(of).collect()
    }
}

/// The streams of the kernel, made of the image that nobody has open any more, and what is in them. The kernel may send
/// holes and preallocated space as zeros; a stream beyond the limit is left out.
fn kernels_stream<'s>(scratch: &Scratch, image: &Path, sent: &'s [Sent], how: How) -> (Vec<u8>, Vec<&'s Sent>) {
    let mount = KernelMount::new(image, "noatime");
    let [script, stream, made] = ["script", "kernels", "made"].map(|name| scratch.join(name));
    let mut text = format!("set -e; cd '{}'; mkdir '{}'\n", mount.path().display(), made.display());
    let proto = match how {
        How { compressed: true, .. } => "--compressed-data",
        How { version: Version::V1, .. } => "",
        _ => "--proto 2",
    };
    let kib = stream_kib();
    let (whole, done) = (stream.display(), made.display());
    for (number, sent) in sent.iter().enumerate().filter(|(_, sent)| sent.by_the_kernel) {
        let (name, parent) = (&sent.name, sent.parent.as_ref().map_or("", |(name, _)| name));
        let from = if parent.is_empty() { String::new() } else { format!("-p {parent}") };
        writeln!(
            text,
            "if [ -z '{parent}' ] || [ -e '{done}/{parent}' ]; then \
             if (ulimit -f {kib}; trap '' XFSZ; btrfs send -q {proto} {from} {name} > '{done}/part'); \
             then cat '{done}/part' >> '{whole}'; echo {number} >> '{done}/list'; : > '{done}/{name}'; \
             else [ $(stat -c %s '{done}/part') -ge {} ] || exit 1; fi; fi",
            kib << 9
        )
        .expect("text");
    }
    std::fs::write(&script, text).expect("room");
    run_ok(600, "bash", &[script.to_str().expect("test paths are text")]);
    mount.finish();
    let bytes = std::fs::read(&stream).expect("it was made");
    let numbers = std::fs::read_to_string(made.join("list")).expect("it was made");
    let kept: Vec<&Sent> = numbers.lines().map(|number| &sent[number.parse::<usize>().expect("a number")]).collect();
    let _ = (std::fs::remove_file(&stream), std::fs::remove_dir_all(&made));
    (bytes, kept)
}

struct Strict<'a>(&'a str);

impl apply::Observer for Strict<'_> {
    fn error(&mut self, error: &apply::Error) {
        panic!("{}: {error}", self.0);
    }
}

/// All three of our targets.
fn received_by_ours(scratch: &Scratch, whose: &str, stream: &[u8], sent: &[&Sent]) {
    let options = apply::Options::default();
    let world = World::new(4 << 30);
    let mut engine = Engine::new(world.fs.clone(), TOP);
    apply::receive(stream, &mut engine, &options, &mut Strict(&format!("{whose}, in an image")));
    for sent in sent {
        same(&format!("{whose}, {}, {}, in an image", sent.what, sent.name), &sent.print, &world.print(&sent.name));
    }
    drop((engine, world));

    let look = |at: &Path, how: &str| {
        sent.iter().for_each(|sent| {
            same_tree(&format!("{whose}, {}, {}, {how}", sent.what, sent.name), &sent.print, &at.join(&sent.name));
        });
    };
    let image = scratch.sparse_file("target.img", 4 << 30);
    mkfs(&image, &[]);
    let mount = KernelMount::new(&image, "noatime");
    let mut directory = Directory::open(mount.path()).expect("a directory");
    apply::receive(stream, &mut directory, &options, &mut Strict(&format!("{whose}, into a directory")));
    assert_eq!(directory.losses(), []);
    look(mount.path(), "in a directory");
    drop(directory);
    mount.finish();
    std::fs::remove_file(&image).expect("our own file");

    let image = scratch.sparse_file("target.img", 4 << 30);
    engine::FORMATS[0].make(&engine::device(&image));
    let file = scratch.join("stream");
    std::fs::write(&file, stream).expect("room");
    let mount = Served::mount(&image, &scratch.folder("mnt"), "noatime");
    let words = [&file, mount.path()].map(|path| path.to_str().expect("test paths are text").to_owned());
    run_ok(600, binary(), &["receive", "-q", "-f", &words[0], &words[1]]);
    look(mount.path(), "on a mount");
    mount.unmount();
    let _ = (std::fs::remove_file(&image), std::fs::remove_file(&file));
}

/// Sends everything both ways and compares.
pub fn travel(scratch: &Scratch, image: &Path, source: Source, how: How, watchdog: &Watchdog) -> usize {
    watchdog.note("our stream");
    let stream = source.stream(how);
    let Source { world, sent } = source;
    world.fs.shutdown().expect("a good device");
    drop(world);
    watchdog.note("our stream, btrfs receive");
    received(scratch, &stream, |top| {
        sent.iter().for_each(|sent| {
            let what = format!("ours, {}, {}, by btrfs receive", sent.what, sent.name);
            same_tree(&what, &sent.print, &top.join(&sent.name));
        });
    });
    watchdog.note("our stream, our receivers");
    received_by_ours(scratch, "ours", &stream, &sent.iter().collect::<Vec<_>>());
    watchdog.note("the kernel's stream");
    let (stream, kept) = kernels_stream(scratch, image, &sent, how);
    assert!(
        kept.len() + LOST_BY_THE_KERNEL.len() * 2 + sent.len() / 20 >= sent.len(),
        "{} of {}",
        kept.len(),
        sent.len()
    );
    received_by_ours(scratch, "the kernel's", &stream, &kept);
    sent.iter().filter(|sent| sent.parent.is_some()).count()
}

fn pairs() -> Option<u64> {
    std::env::var("BUTTERFS_SEND_PAIRS").ok().and_then(|count| count.parse().ok())
}

#[test]
fn every_way_every_kind() {
    const TEST: &str = "every_way_every_kind";
    if !requirement::kernel_btrfs(TEST) || !requirement::fuse(TEST) {
        return;
    }
    let count = pairs().unwrap_or(0);
    let watchdog = Watchdog::new(TEST, 400 + 30 * count);
    let scratch = Scratch::new("both-ways");
    let ops = universe(&NAMES);
    let all: Vec<Vec<&Op>> = ops.iter().flat_map(|first| ops.iter().map(move |second| vec![first, second])).collect();
    let mut rng = Rng::new(77);
    let (mut seed, mut at, mut travelled) = (20_000, 0, 0);
    loop {
        let many = count > 0;
        let image = scratch.sparse_file("source.img", 4 << 30);
        let mut source = Source::new(&image);
        if seed == 20_000 {
            source.cases();
        }
        let batch = if many { 40 } else { 6 };
        source.random(seed..seed + batch);
        seed += batch;
        // All pairs of changes in the long form, some in the short one.
        let sequences: Vec<Vec<&Op>> = match many {
            true => all.iter().skip(at).take(2000).cloned().collect(),
            false => (0..160).map(|_| (0..1 + rng.below(3)).map(|_| rng.pick(&ops)).collect()).collect(),
        };
        at += sequences.len();
        let version = if seed / batch % 2 == 0 { Version::V1 } else { Version::V2 };
        travelled +=
            travel(&scratch, &image, source.sequences(&sequences), How { version, compressed: false }, &watchdog);
        std::fs::remove_file(&image).expect("our own file");
        println!("{travelled} pairs, each 7 ways; random work up to seed {seed}, {at} of {} sequences", all.len());
        if seed - 20_000 >= count {
            break;
        }
    }
    assert!(travelled >= 20 + CASES.len(), "{travelled} pairs");
}
