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
