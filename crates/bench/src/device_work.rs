//! Work on devices and chunks, beside the kernel on loop devices: balance, conversion, replacement, shrinking, RAID5,
//! discarding free space; and the share of its rate that a writer keeps meanwhile.
//!
//! Both sides begin with a filesystem that the same program has made, and fill it themselves. Commands return when
//! everything is durable.

use crate::Scale;
use crate::subject::{Mount, Side, Sides, empty_caches};
use crate::table::Table;
use butterfs_testkit::kernel::{LoopDevice, run, run_ok};
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::serve::binary;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SNAPSHOTS: usize = 20;
const PIECE: usize = 4 << 20;
/// A balance moves so many times the bytes of the other work, beside the small files.
const BALANCED: u64 = 4;
/// The time for which a writer is watched alone.
const ALONE: Duration = Duration::from_secs(3);

/// The results of one side: seconds, or MB/s.
struct Measured {
    balance: f64,
    convert: f64,
    replace: f64,
    shrink: f64,
    trim: f64,
    sequential: f64,
    random: f64,
    /// The part of its rate that a writer keeps during a balance.
    share: f64,
}

/// Runs everything on both sides.
pub fn run_all(scale: Scale, table: &mut Table) {
    let folder = Scratch::new("bench-device-work");
    let ours = measure(Side::OnDevice, scale, &folder);
    let kernel = measure(Side::Kernel, scale, &folder);
    let mut row = |what: &str, part: fn(&Measured) -> f64, show: fn(f64) -> String, less_is_better, bar| {
        table.compared(what, Sides::two(part(&ours), Some(part(&kernel))), show, less_is_better, bar);
    };
    let seconds = |seconds: f64| format!("{seconds:.2} s");
    let rate = |rate: f64| format!("{rate:.0} MB/s");
    let what = format!("balance, {SNAPSHOTS} snapshots, {} files, {} MiB", scale.files, (BALANCED * scale.bytes) >> 20);
    row(&what, |m| m.balance, seconds, true, "<= 0.50x");
    row("conversion from single to RAID1", |m| m.convert, seconds, true, "<= 0.80x");
    row("replacement of a device", |m| m.replace, seconds, true, "<= 0.80x");
    row("shrinking a device by half", |m| m.shrink, seconds, true, "<= 0.50x");
    row("fstrim", |m| m.trim, seconds, true, "<= 1.00x");
    row("RAID5: sequential write, MB/s", |m| m.sequential, rate, false, ">= 1.00x");
    row("RAID5: random writes of 4 KiB, MB/s", |m| m.random, |rate| format!("{rate:.1} MB/s"), false, ">= 0.80x");
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    row("rate that a writer keeps during a balance", |m| m.share, percent, false, ">= 60 %");
}

fn measure(side: Side, scale: Scale, folder: &Scratch) -> Measured {
    let scene = Scene { side, folder, at: folder.folder("mnt"), bytes: scale.bytes };
    Measured {
        balance: Scene { bytes: BALANCED * scale.bytes, at: scene.at.clone(), ..scene }.balance(scale.files),
        convert: scene.convert(),
        replace: scene.replace(),
        shrink: scene.shrink(),
        trim: scene.trim(),
        sequential: scene.sequential(),
        random: scene.random(),
        share: scene.share(),
    }
}

struct Scene<'a> {
    side: Side,
    folder: &'a Scratch,
    at: PathBuf,
    bytes: u64,
}

fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are text")
}

fn sync(at: &Path) {
    run_ok(600, "sync", &["-f", text(at)]);
}

fn timed(work: impl FnOnce()) -> f64 {
    let started = Instant::now();
    work();
    started.elapsed().as_secs_f64()
}

impl Scene<'_> {
    /// Runs `work` on a mount of a new filesystem on `count` devices.
    fn on<R>(&self, count: usize, options: &[&str], work: impl FnOnce(&Path) -> R) -> R {
        let len = 3 * self.bytes + (2 << 30);
        let images: Vec<PathBuf> =
            (1..=count).map(|number| self.folder.sparse_file(&format!("disk{number}"), len)).collect();
        let paths: Vec<&str> = images.iter().map(|image| text(image)).collect();
        run_ok(60, binary(), &[&["mkfs", "-q", "-f"], options, &paths[..]].concat());
        let mount = Mount::new(self.side, &images, &self.at, "noatime");
        let result = work(mount.path());
        mount.end();
        images.iter().for_each(|image| std::fs::remove_file(image).expect("our own file"));
        empty_caches();
        result
    }

    fn command(&self, words: &[&str]) {
        let program = if self.side == Side::Kernel { PathBuf::from("btrfs") } else { binary() };
        run_ok(3600, program, words);
    }

    /// Files of random bytes.
    fn fill(&self, at: &Path, bytes: u64) {
        let mut noise = vec![0; PIECE];
        for number in 0..bytes / PIECE as u64 {
            Rng::new(number + 1).fill(&mut noise);
            std::fs::write(at.join(format!("large{number}")), &noise).expect("room");
        }
        sync(at);
    }

    fn balance(&self, files: u64) -> f64 {
        self.on(1, &["-m", "single"], |at| {
            let source = at.join("s");
            self.command(&["subvolume", "create", text(&source)]);
            self.fill(&source, self.bytes);
            let mut noise = [0; 3000];
            for number in 0..files {
                Rng::new(number).fill(&mut noise);
                let len = (number * 37 % 3000) as usize;
                std::fs::write(source.join(format!("small{number:07}")), &noise[..len]).expect("room");
            }
            for snapshot in 0..SNAPSHOTS as u64 {
                let name = at.join(format!("snapshot{snapshot}"));
                self.command(&["subvolume", "snapshot", "-r", text(&source), text(&name)]);
                for number in (snapshot..files).step_by(200) {
                    std::fs::write(source.join(format!("small{number:07}")), b"changed").expect("room");
                }
            }
            sync(at);
            timed(|| self.command(&["balance", "start", "--full-balance", text(at)]))
        })
    }

    fn convert(&self) -> f64 {
        self.on(2, &["-d", "single", "-m", "raid1"], |at| {
            self.fill(at, self.bytes);
            timed(|| self.command(&["balance", "start", "-dconvert=raid1", text(at)]))
        })
    }

    fn replace(&self) -> f64 {
        let target = self.folder.sparse_file("target", 3 * self.bytes + (2 << 30));
        let device = LoopDevice::attach_direct(&target);
        let seconds = self.on(1, &["-d", "single", "-m", "dup"], |at| {
            self.fill(at, self.bytes);
            timed(|| self.command(&["replace", "start", "-B", "-f", "1", text(device.path()), text(at)]))
        });
        drop(device);
        std::fs::remove_file(target).expect("our own file");
        seconds
    }

    /// Half of the data lies behind the new end.
    fn shrink(&self) -> f64 {
        self.on(1, &["-d", "single", "-m", "dup"], |at| {
            let filler = at.join("filler");
            let len = (3 * self.bytes + (2 << 30)) / 2;
            self.fill(at, self.bytes / 2);
            // The filler reaches beyond the new end, so the rest of the data lies behind it, in another chunk.
            run_ok(60, "fallocate", &["-l", &(len + (300 << 20)).to_string(), text(&filler)]);
            let late = at.join("late");
            std::fs::create_dir(&late).expect("a new name");
            self.fill(&late, self.bytes / 2);
            std::fs::remove_file(filler).expect("our own file");
            sync(at);
            let half = format!("1:{}", len / 4096 * 4096);
            timed(|| self.command(&["filesystem", "resize", &half, text(at)]))
        })
    }

    fn trim(&self) -> f64 {
        self.on(1, &["-d", "single", "-m", "dup"], |at| {
            self.fill(at, self.bytes);
            for number in (0..self.bytes / PIECE as u64).step_by(2) {
                std::fs::remove_file(at.join(format!("large{number}"))).expect("our own file");
            }
            sync(at);
            timed(|| drop(run_ok(600, "fstrim", &[text(at)])))
        })
    }

    fn sequential(&self) -> f64 {
        self.on(3, &["-d", "raid5", "-m", "raid1"], |at| self.bytes as f64 / 1e6 / timed(|| self.fill(at, self.bytes)))
    }

    /// Into a file that is there, each at the multiple of 4 KiB.
    fn random(&self) -> f64 {
        self.on(3, &["-d", "raid5", "-m", "raid1"], |at| {
            self.fill(at, PIECE as u64 * 16);
            let path = at.join("random");
            let (len, writes) = (self.bytes / 4, (self.bytes / 4 / 4096 / 4).max(512));
            std::fs::write(&path, vec![1; len as usize]).expect("room");
            sync(at);
            let file = File::options().write(true).open(&path).expect("it is there");
            let mut rng = Rng::new(5);
            let seconds = timed(|| {
                for number in 0..writes {
                    let offset = rng.below(len / 4096) * 4096;
                    file.write_all_at(&[number as u8; 4096], offset).expect("room");
                    if number % 256 == 255 {
                        file.sync_data().expect("a good device");
                    }
                }
                file.sync_all().expect("a good device");
            });
            (writes * 4096) as f64 / 1e6 / seconds
        })
    }

    fn share(&self) -> f64 {
        self.on(1, &["-d", "single", "-m", "dup"], |at| {
            self.fill(at, self.bytes);
            let (written, stop) = (AtomicU64::new(0), AtomicBool::new(false));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let file = File::create(at.join("foreground")).expect("room");
                    let noise = vec![3; 256 << 10];
                    for turn in 0u64.. {
                        file.write_all_at(&noise, turn % 256 * noise.len() as u64).expect("room");
                        file.sync_data().expect("a good device");
                        written.fetch_add(noise.len() as u64, Ordering::Relaxed);
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                });
                let rate = |watched: &mut dyn FnMut()| {
                    let before = written.load(Ordering::Relaxed);
                    let seconds = timed(watched);
                    (written.load(Ordering::Relaxed) - before) as f64 / seconds
                };
                std::thread::sleep(Duration::from_millis(300));
                let alone = rate(&mut || std::thread::sleep(ALONE));
                let beside = rate(&mut || {
                    let program = if self.side == Side::Kernel { PathBuf::from("btrfs") } else { binary() };
                    run(3600, program, &["balance", "start", "-d", text(at)]);
                });
                stop.store(true, Ordering::Relaxed);
                beside / alone
            })
        })
    }
}
