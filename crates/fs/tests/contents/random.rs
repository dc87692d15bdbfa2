//! Random operations on files against byte arrays.

use super::world::{World, pattern, text};
use butterfs_fs::file::Whence;
use butterfs_fs::mkfs::MkfsOptions;
use butterfs_fs::{DataPolicy, Errno, InodeId, Options, SetAttr};
use butterfs_ondisk::ChecksumKind;
use butterfs_testkit::kernel::{self, KernelMount};
use butterfs_testkit::requirement;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;

const FILES: usize = 4;
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;

struct Run {
    world: World,
    ids: Vec<InodeId>,
    models: Vec<Vec<u8>>,
    rng: Rng,
    largest: u64,
}

impl Run {
    fn new(seed: u64, world: World, largest: u64) -> Run {
        let ids = (0..FILES).map(|i| world.file(&format!("file{i}"))).collect();
        Run { world, ids, models: vec![Vec::new(); FILES], rng: Rng::new(seed), largest }
    }

    fn range(&mut self) -> (u64, u64) {
        let mut at = self.rng.below(self.largest);
        let longest = *self.rng.pick(&[1, 100, 5000, 70_000]);
        let mut len = 1 + self.rng.below(longest);
        if self.rng.chance(40) {
            (at, len) = (at / 4096 * 4096, len.next_multiple_of(4096));
        }
        (at, len.min(self.largest - at).max(1))
    }

    fn step(&mut self, number: u64) {
        let file = self.rng.index(FILES);
        let (id, (at, len)) = (self.ids[file], self.range());
        let fs = self.world.fs.clone();
        let model = &mut self.models[file];
        let (from, to) = (at as usize, (at + len) as usize);
        match self.rng.below(100) {
            0..35 => {
                let data = if number.is_multiple_of(3) { pattern } else { text }(number, len as usize);
                self.world.write(id, at, &data);
                model.resize(model.len().max(to), 0);
                model[from..to].copy_from_slice(&data);
            }
            35..55 => {
                let mut out = Vec::new();
                fs.read(id, at, len as usize, &mut out).unwrap();
                let expected = &model[from.min(model.len())..to.min(model.len())];
                assert!(out == expected, "read {at}+{len} of file {file}: {}", difference(&out, expected));
            }
            55..65 => {
                let set = SetAttr { size: Some(at), ..SetAttr::default() };
                fs.setattr(&super::world::ROOT, id, &set).unwrap();
                model.resize(from, 0);
            }
            65..75 => {
                fs.fallocate(id, PUNCH_HOLE | KEEP_SIZE, at, len, false).unwrap();
                let end = to.min(model.len());
                model[from.min(end)..end].fill(0);
            }
            75..82 => {
                let keep = self.rng.chance(50);
                fs.fallocate(id, if keep { KEEP_SIZE } else { 0 }, at, len, false).unwrap();
                if !keep {
                    model.resize(model.len().max(to), 0);
                }
            }
            82..87 => {
                let keep = self.rng.chance(50);
                fs.fallocate(id, ZERO_RANGE | if keep { KEEP_SIZE } else { 0 }, at, len, false).unwrap();
                if !keep {
                    model.resize(model.len().max(to), 0);
                }
                let end = to.min(model.len());
                model[from.min(end)..end].fill(0);
            }
            87..90 => self.seek(file, at),
            90..94 => self.copy(file, at, len),
            94..97 => fs.fsync(id, false).unwrap(),
            _ => fs.sync().unwrap(),
        }
        let size = fs.getattr(id).unwrap().size;
        assert_eq!(size, self.models[file].len() as u64, "size of file {file}");
    }

    /// Every reported hole is zero.
    fn seek(&self, file: usize, at: u64) {
        let (fs, id, model) = (&self.world.fs, self.ids[file], &self.models[file]);
        match fs.seek(id, at, Whence::Data) {
            Ok(data) => {
                assert!(data >= at && model[at as usize..data as usize].iter().all(|&byte| byte == 0));
                let hole = fs.seek(id, data, Whence::Hole).unwrap();
                assert!(hole > data && hole <= model.len() as u64);
            }
            Err(error) => {
                assert!(error.is(Errno::ENXIO), "{error}");
                assert!(model.get(at as usize..).is_none_or(|rest| rest.iter().all(|&byte| byte == 0)));
            }
        }
    }

    fn copy(&mut self, file: usize, at: u64, len: u64) {
        let target = self.rng.index(FILES);
        let to = self.rng.below(self.largest);
        let to = if self.rng.chance(60) { to / 4096 * 4096 } else { to };
        let copied = self.world.fs.copy_range((self.ids[file], at), (self.ids[target], to), len);
        let source = &self.models[file];
        let data = source[(at as usize).min(source.len())..((at + len) as usize).min(source.len())].to_vec();
        match copied {
            Ok(copied) => {
                assert_eq!(copied, data.len() as u64);
                let model = &mut self.models[target];
                if !data.is_empty() {
                    model.resize(model.len().max(to as usize + data.len()), 0);
                    model[to as usize..to as usize + data.len()].copy_from_slice(&data);
                }
            }
            Err(error) => assert!(file == target && error.is(Errno::EINVAL), "{error}"),
        }
    }

    fn check(&self) {
        for (file, (id, model)) in self.ids.iter().zip(&self.models).enumerate() {
            let content = self.world.content(*id);
            assert!(content == *model, "content of file {file}: {}", difference(&content, model));
        }
    }

    fn reopen(mut self) -> Run {
        self.world = self.world.reopen();
        self.ids = (0..FILES).map(|i| self.world.id(&format!("file{i}"))).collect();
        self
    }
}

fn difference(got: &[u8], expected: &[u8]) -> String {
    let at = got.iter().zip(expected).position(|(a, b)| a != b);
    format!("{} bytes and {}, first difference at {at:?}", got.len(), expected.len())
}

#[derive(Clone)]
struct Shape {
    name: &'static str,
    made: MkfsOptions,
    options: Options,
}

fn shapes() -> Vec<Shape> {
    let made = |features: &str, nodesize: u32, checksum| {
        let mut made = MkfsOptions { nodesize: Some(nodesize), checksum, ..MkfsOptions::default() };
        made.features.apply(features).unwrap();
        made
    };
    let shape = |name, made, max_inline| Shape { name, made, options: Options { max_inline, ..Options::default() } };
    vec![
        shape("default", made("", 16384, ChecksumKind::Crc32c), 2048),
        shape("holes", made("^no-holes", 4096, ChecksumKind::Sha256), 4095),
        shape("xxhash", made("", 65536, ChecksumKind::Xxhash64), 0),
        shape("old", made("^no-holes,^free-space-tree,^block-group-tree", 16384, ChecksumKind::Blake2b), 2048),
        shape("mixed", made("mixed-bg", 4096, ChecksumKind::Crc32c), 2048),
    ]
}

/// Ways to store data, each on a format of its own.
fn modes() -> Vec<Shape> {
    let mode = |name, features: &str, nodesize, options: &[&str], max_inline| {
        let mut made = MkfsOptions { nodesize: Some(nodesize), ..MkfsOptions::default() };
        made.features.apply(features).unwrap();
        let mut data = DataPolicy::default();
        options.iter().for_each(|option| data.apply(option).expect("an option").expect("a value"));
        Shape { name, made, options: Options { max_inline, data, ..Options::default() } }
    };
    vec![
        mode("zstd", "", 16384, &["compress=zstd"], 2048),
        mode("zstd-forced", "^no-holes", 4096, &["compress-force=zstd:1"], 4095),
        mode("lzo-forced", "", 16384, &["compress-force=lzo"], 2048),
        mode("zlib-forced", "^no-holes,^free-space-tree,^block-group-tree", 16384, &["compress-force=zlib:1"], 2048),
        mode("mixed-lzo", "mixed-bg", 4096, &["compress-force=lzo"], 2048),
        mode("nodatasum", "", 16384, &["nodatasum"], 2048),
        mode("nodatacow", "^no-holes", 4096, &["nodatacow"], 2048),
    ]
}

fn run(shape: &Shape, seed: u64, steps: u64, largest: u64) -> (Run, String) {
    let world = World::with(&shape.made, shape.options.clone(), 256 << 20);
    let mut run = Run::new(seed, world, largest);
    for number in 0..steps {
        run.step(number);
        if number % 400 == 399 {
            run.check();
        }
        if number % 900 == 899 {
            run = run.reopen();
            run.check();
        }
    }
    run.check();
    (run, format!("contents-{}-{seed}", shape.name))
}

#[test]
fn random_operations_agree_with_byte_arrays_and_leave_a_clean_image() {
    for shape in shapes() {
        for (seed, largest) in [(1, 300_000), (2, 9000), (3, 3_000_000)] {
            println!("{} seed {seed}", shape.name);
            let (run, name) = run(&shape, seed, 1500, largest);
            run.world.finish(&name);
        }
    }
}

#[test]
fn random_operations_in_each_mode_of_storing() {
    for shape in modes() {
        for (seed, largest) in [(1, 300_000), (2, 9000), (3, 3_000_000)] {
            println!("{} seed {seed}", shape.name);
            let (run, name) = run(&shape, seed, 900, largest);
            run.world.finish(&name);
        }
    }
}

#[test]
fn the_kernel_reads_what_random_operations_left() {
    if !requirement::kernel_btrfs("the_kernel_reads_what_random_operations_left") {
        return;
    }
    for shape in shapes().into_iter().chain(modes()) {
        let (run, name) = run(&shape, 77, 1200, 200_000);
        let models = run.models.clone();
        let (_scratch, image) = run.world.finish(&name);
        let mount = KernelMount::new(&image, "ro");
        for (i, model) in models.iter().enumerate() {
            let content = std::fs::read(mount.path().join(format!("file{i}"))).unwrap();
            assert!(content == *model, "{} file {i}: {}", shape.name, difference(&content, model));
        }
        let complaints = mount.finish();
        assert!(complaints.is_empty(), "{complaints:#?}");
    }
}

/// Data covered by a returned `sync` is there after a power cut, whatever was buffered since.
#[test]
fn a_power_cut_shows_what_was_synced() {
    for shape in shapes().into_iter().chain(modes()) {
        let world = World::with(&shape.made, shape.options.clone(), 256 << 20);
        let mut run = Run::new(5, world, 100_000);
        for round in 0..15 {
            (0..60).for_each(|number| run.step(round * 100 + number));
            run.world.fs.sync().unwrap();
            let cut = run.world.after_power_cut();
            for (i, model) in run.models.iter().enumerate() {
                assert!(cut.content(cut.id(&format!("file{i}"))) == *model, "{} file {i}", shape.name);
            }
        }
    }
}

/// Data covered by a returned `fsync` is there after a power cut, whatever logs came before: the files are a few long
/// extents when they are committed, and are cut to pieces from then on.
#[test]
fn a_power_cut_shows_what_was_fsynced() {
    const TEST: &str = "a_power_cut_shows_what_was_fsynced";
    let long = 200_000;
    for (shape, seed) in shapes().into_iter().chain(modes()).flat_map(|shape| [(shape.clone(), 6), (shape, 7)]) {
        let world = World::with(&shape.made, shape.options.clone(), 256 << 20);
        let mut run = Run::new(seed, world, long);
        for round in 0..60 {
            if round % 20 == 0 {
                for file in 0..FILES {
                    run.models[file] = pattern(round + file as u64, long as usize);
                    run.world.write(run.ids[file], 0, &run.models[file]);
                }
                run.world.fs.sync().unwrap();
            }
            (0..1 + run.rng.below(12)).for_each(|number| run.step(round * 100 + number));
            let file = run.rng.index(FILES);
            run.world.fs.fsync(run.ids[file], run.rng.chance(50)).unwrap();
            let (cut, name) = (run.world.after_power_cut(), format!("file{file}"));
            let (found, expected) = (cut.content(cut.id(&name)), &run.models[file]);
            let place = format!("{} seed {seed} round {round} {name}", shape.name);
            assert!(found == *expected, "{place}: {}", difference(&found, expected));
            if round == 39 && requirement::kernel_btrfs(TEST) {
                let scratch = Scratch::new(TEST);
                let mount = KernelMount::new(&scratch.image("image", &run.world.device.snapshot()), "");
                let found = std::fs::read(mount.path().join(&name)).unwrap();
                assert!(found == *expected, "{place}, by the kernel: {}", difference(&found, expected));
                assert!(mount.finish().is_empty(), "{place}: the kernel complains");
                kernel::check_all(&scratch.join("image"));
            }
            if round == 59 {
                cut.finish(TEST);
            }
        }
    }
}

/// As long as `BUTTERFS_SOAK_SECONDS` says (60), each time with other seeds than the last.
#[test]
#[ignore = "runs until it is stopped by its own clock; for long runs by hand"]
fn soak() {
    let seconds = std::env::var("BUTTERFS_SOAK_SECONDS").map_or(60, |text| text.parse().expect("a number of seconds"));
    let begun = std::time::Instant::now();
    let mut seed = u64::from(std::process::id()) << 20;
    while begun.elapsed().as_secs() < seconds {
        for shape in shapes().into_iter().chain(modes()) {
            seed += 1;
            let largest = [5000, 50_000, 500_000, 5_000_000][seed as usize % 4];
            println!("{} seed {seed}", shape.name);
            let (run, name) = run(&shape, seed, 1000, largest);
            run.world.finish(&name);
        }
    }
}
