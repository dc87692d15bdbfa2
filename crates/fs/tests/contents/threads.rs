//! Many threads in few files, with the background threads at work.

use super::world::{ROOT, World, pattern};
use butterfs_fs::{Env, InodeId, Options, SetAttr};
use butterfs_testkit::rng::Rng;
use butterfs_testkit::watchdog::Watchdog;
use std::time::{Duration, Instant};

/// Bytes that each thread has to itself in the file that all share, in turns of one sector.
const OWN_BYTES: usize = 1 << 20;
const THREADS: u64 = 6;
const STRIPE: usize = 3000;

struct Worker<'a> {
    world: &'a World,
    shared: InodeId,
    number: u64,
    own: InodeId,
    scrap: InodeId,
    sink: InodeId,
    model: Vec<u8>,
    stripes: Vec<u8>,
    rng: Rng,
}

impl Worker<'_> {
    fn run(mut self, until: Instant) {
        let mut step = self.number << 32;
        while Instant::now() < until {
            step += 1;
            self.step(step);
        }
        assert!(self.world.content(self.own) == self.model);
        self.check_stripes();
    }

    fn step(&mut self, step: u64) {
        let fs = &self.world.fs;
        let at = self.rng.below(600_000);
        match self.rng.below(20) {
            0..6 => {
                let data = pattern(step, 1 + self.rng.below(60_000) as usize);
                self.world.write(self.own, at, &data);
                let end = at as usize + data.len();
                self.model.resize(self.model.len().max(end), 0);
                self.model[at as usize..end].copy_from_slice(&data);
            }
            6..9 => {
                let mut out = Vec::new();
                fs.read(self.own, at, 50_000, &mut out).unwrap();
                let end = self.model.len().min(at as usize + 50_000);
                assert!(out == self.model[end.min(at as usize)..end]);
            }
            9 | 11..14 => {
                let stripe = self.rng.index(OWN_BYTES / STRIPE);
                let data = pattern(step, STRIPE);
                self.world.write(self.shared, self.stripe_at(stripe), &data);
                self.stripes[stripe * STRIPE..][..STRIPE].copy_from_slice(&data);
            }
            14 => self.check_stripes(),
            15 => {
                fs.setattr(&ROOT, self.own, &SetAttr { size: Some(at), ..SetAttr::default() }).unwrap();
                self.model.resize(at as usize, 0);
            }
            16 => {
                fs.fallocate(self.own, 3, at, 30_000, false).unwrap();
                let end = self.model.len().min(at as usize + 30_000);
                self.model[end.min(at as usize)..end].fill(0);
            }
            17 => fs.fallocate(self.own, 1, at, 100_000, false).unwrap(),
            10 => self.copy_around(at / 4096 * 4096),
            18 => fs.fsync(if self.rng.chance(50) { self.own } else { self.shared }, false).unwrap(),
            _ if self.rng.chance(20) => fs.sync().unwrap(),
            _ => {}
        }
    }

    /// Copies between files in both directions; nobody looks at the content.
    fn copy_around(&mut self, at: u64) {
        let (fs, sink) = (&self.world.fs, self.sink);
        let way = if self.rng.chance(50) { ((self.own, at), (sink, 0)) } else { ((sink, at), (self.scrap, 4096)) };
        fs.copy_range(way.0, way.1, 300_000).unwrap();
        fs.copy_range((self.scrap, 0), (sink, at), 100_000).unwrap();
        fs.copy_range((sink, 0), (sink, 1 << 20), 50_000).unwrap();
    }

    /// Stripes of all threads alternate, and do not keep to sectors.
    fn stripe_at(&self, stripe: usize) -> u64 {
        (stripe as u64 * THREADS + self.number) * STRIPE as u64
    }

    fn check_stripes(&mut self) {
        let mut out = Vec::new();
        for stripe in 0..OWN_BYTES / STRIPE {
            let expected = &self.stripes[stripe * STRIPE..][..STRIPE];
            if expected.iter().any(|&byte| byte != 0) {
                self.world.fs.read(self.shared, self.stripe_at(stripe), STRIPE, &mut out).unwrap();
                assert!(out == expected, "stripe {stripe} of thread {}", self.number);
            }
        }
    }
}

#[test]
fn many_threads_see_their_own_writes_and_leave_a_clean_image() {
    let _watchdog = Watchdog::new("many_threads_see_their_own_writes_and_leave_a_clean_image", 120);
    for dirty_data_bytes in [2 << 20, 256 << 20] {
        let options = Options { dirty_data_bytes, commit_interval_secs: 1, ..Options::default() };
        let world = World::of_env(options, 512 << 20, Env::system());
        let (shared, sink) = (world.file("shared"), world.file("sink"));
        let until = Instant::now() + Duration::from_secs(4);
        std::thread::scope(|scope| {
            for number in 0..THREADS {
                let (own, scrap) = (world.file(&format!("own{number}")), world.file(&format!("scrap{number}")));
                let worker = Worker {
                    world: &world,
                    shared,
                    number,
                    own,
                    scrap,
                    sink,
                    model: Vec::new(),
                    stripes: vec![0; OWN_BYTES / STRIPE * STRIPE],
                    rng: Rng::new(number + 1),
                };
                scope.spawn(move || worker.run(until));
            }
        });
        world.finish("threads");
    }
}
