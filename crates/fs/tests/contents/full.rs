//! A nearly full disk: what is refused changes nothing, what was taken is kept, and what gives space back works.

use super::world::{ROOT, World, pattern};
use butterfs_fs::mkfs::MkfsOptions;
use butterfs_fs::{Errno, InodeId, Options, Result, SetAttr};
use butterfs_testkit::rng::Rng;

const FILES: usize = 5;
const LARGEST: u64 = 3 << 20;

struct Run {
    world: World,
    ids: Vec<InodeId>,
    models: Vec<Vec<u8>>,
    rng: Rng,
    refusals: u64,
}

impl Run {
    fn new(seed: u64) -> Run {
        let world = World::with(&MkfsOptions::default(), Options::default(), 116 << 20);
        let ids = (0..FILES).map(|i| world.file(&format!("file{i}"))).collect();
        Run { world, ids, models: vec![Vec::new(); FILES], rng: Rng::new(seed), refusals: 0 }
    }

    /// Leaves about `left` bytes of data space.
    fn fill(&self, left: u64) {
        let filler = self.world.file("filler");
        let free = self.world.fs.statfs().blocks_available * 4096;
        let mut at = 0;
        while at + left < free && self.world.fs.fallocate(filler, 0, at, 1 << 20, false).is_ok() {
            at += 1 << 20;
        }
        self.world.fs.sync().unwrap();
    }

    /// True when the operation was done, false when the disk is full.
    fn allowed<T>(&mut self, result: Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                assert!(error.is(Errno::ENOSPC), "{error}");
                self.refusals += 1;
                None
            }
        }
    }

    fn step(&mut self, number: u64) {
        let file = self.rng.index(FILES);
        let id = self.ids[file];
        let (at, len) = (self.rng.below(LARGEST), 1 + self.rng.below(200_000));
        let (from, to) = (at as usize, (at + len) as usize);
        let fs = self.world.fs.clone();
        match self.rng.below(20) {
            0..9 => {
                let data = pattern(number, len as usize);
                if self.allowed(fs.write(id, at, &data, false)).is_some() {
                    let model = &mut self.models[file];
                    model.resize(model.len().max(to), 0);
                    model[from..to].copy_from_slice(&data);
                }
            }
            9..11 => {
                let grows = from > self.models[file].len();
                let done = fs.setattr(&ROOT, id, &SetAttr { size: Some(at), ..SetAttr::default() });
                assert!(grows || done.is_ok(), "shrinking: {}", done.unwrap_err());
                if self.allowed(done).is_some() {
                    self.models[file].resize(from, 0);
                }
            }
            11..13 => {
                // Zeros at the ends of the hole are written like other data.
                if self.allowed(fs.fallocate(id, 3, at, len, false)).is_some() {
                    let end = to.min(self.models[file].len());
                    self.models[file][from.min(end)..end].fill(0);
                }
            }
            13..15 => drop(self.allowed(fs.fallocate(id, 1, at, len, false))),
            15 => {
                if self.allowed(fs.fallocate(id, 17, at, len, false)).is_some() {
                    let end = to.min(self.models[file].len());
                    self.models[file][from.min(end)..end].fill(0);
                }
            }
            16 => fs.fsync(id, false).unwrap_or_else(|error| panic!("fsync: {error}")),
            17 => fs.sync().unwrap_or_else(|error| panic!("sync: {error}")),
            _ => {
                let mut out = Vec::new();
                fs.read(id, at, len as usize, &mut out).unwrap();
                let model = &self.models[file];
                assert!(out == model[from.min(model.len())..to.min(model.len())]);
            }
        }
    }

    fn check(&self) {
        for (id, model) in self.ids.iter().zip(&self.models) {
            assert!(self.world.content(*id) == *model);
        }
    }
}

#[test]
fn a_nearly_full_disk_agrees_with_byte_arrays() {
    for seed in 0..4 {
        let mut run = Run::new(seed);
        run.fill(4 << 20);
        for number in 0..1200 {
            run.step(number);
            if number % 200 == 0 {
                run.check();
            }
        }
        run.check();
        assert!(run.refusals > 20, "the disk was full: {}", run.refusals);
        run.world.fs.unlink(run.world.fs.root(), b"filler").unwrap();
        let Run { world, models, .. } = run;
        let world = world.reopen();
        for (i, model) in models.iter().enumerate() {
            assert!(world.content(world.id(&format!("file{i}"))) == *model);
        }
        world.finish("nearly-full");
    }
}

/// Fills a filesystem of `mib` MiB with files of `len` bytes; how many it took, and the MiB that `statfs` called
/// available then.
fn filled(made: &MkfsOptions, mib: u64, len: usize) -> (usize, u64) {
    let world = World::with(made, Options::default(), mib << 20);
    let (fs, data) = (&world.fs, pattern(1, len));
    let put = |number: usize| -> Result<()> {
        let id = fs.create(&ROOT, fs.root(), format!("file{number}").as_bytes(), 0o644)?.id;
        fs.write(id, 0, &data, false).map(drop)
    };
    let error = |number: &usize| put(*number).err();
    let (count, refused) = (0..).find_map(|number| error(&number).map(|error| (number, error))).unwrap();
    assert!(refused.is(Errno::ENOSPC), "{refused}");
    fs.sync().unwrap();
    let left = (fs.statfs().blocks_available * 4096) >> 20;
    // What was taken is there, and can be deleted.
    assert!(world.content(world.id(&format!("file{}", count - 1))) == data);
    (count, left)
}

/// Without background threads, so with all buffered data unwritten. The kernel's counts are those of Linux 6.18, which
/// `mkfs.btrfs` with default options or `-M` made the filesystem for.
#[test]
fn a_filesystem_takes_as_much_as_the_kernels() {
    let cases = [
        (256, 20_000, true, 12_332),
        (120, 20_000, true, 5_586),
        (256, 20_000, false, 8_960),
        (120, 20_000, false, 1_996),
        (512, 600_000, false, 750),
        (512, 20_000, false, 22_067),
        (1024, 600_000, true, 1_767),
        (1024, 20_000, false, 46_316),
    ];
    let most = if std::env::var_os("BUTTERFS_FILL_ALL").is_some() { cases.len() } else { 4 };
    let mut short = Vec::new();
    for (mib, len, mixed, kernel) in cases.into_iter().take(most) {
        let mut made = MkfsOptions::default();
        if mixed {
            made.features.set_mixed();
        }
        let (count, left) = filled(&made, mib, len);
        let what = format!("{mib} MiB, files of {len}, mixed {mixed}: {count} of {kernel}, {left} MiB left");
        println!("{what}");
        if count * 100 < kernel * 95 || left > 3 {
            short.push(what);
        }
    }
    assert!(short.is_empty(), "{short:#?}");
}

const PIECE: usize = 4096;

/// Many threads write small pieces into preallocated space, in a filesystem that is seven tenths preallocated.
#[test]
fn preallocated_space_never_fails_for_data() {
    const FILES: usize = 64;
    let mut made = MkfsOptions::default();
    made.features.set_mixed();
    let world = World::with(&made, Options::default(), 240 << 20);
    let (fs, each) = (&world.fs, (168 << 20) / FILES / PIECE * PIECE);
    let files: Vec<InodeId> = (0..FILES).map(|number| world.file(&format!("file{number}"))).collect();
    files.iter().for_each(|&id| fs.fallocate(id, 0, 0, each as u64, false).unwrap());
    fs.sync().unwrap();
    let write = |file: usize| {
        let mut pieces: Vec<usize> = (0..each / PIECE).collect();
        let mut rng = Rng::new(file as u64);
        (0..pieces.len()).for_each(|at| pieces.swap(at, rng.index(each / PIECE)));
        for piece in pieces {
            let data = pattern((file * 100_000 + piece) as u64, PIECE);
            let written = fs.write(files[file], (piece * PIECE) as u64, &data, false);
            written.unwrap_or_else(|error| panic!("file {file}, piece {piece}: {error}"));
        }
        fs.fsync(files[file], false).unwrap_or_else(|error| panic!("fsync of file {file}: {error}"));
    };
    std::thread::scope(|scope| (0..FILES).for_each(|file| drop(scope.spawn(move || write(file)))));
    fs.sync().unwrap();
    let world = world.reopen();
    for file in (0..FILES).step_by(7) {
        let content = world.content(world.id(&format!("file{file}")));
        let right = |(piece, data): (usize, &[u8])| data == pattern((file * 100_000 + piece) as u64, PIECE);
        assert!(content.chunks(PIECE).enumerate().all(right), "file {file}");
    }
    world.finish("preallocated-full");
}
