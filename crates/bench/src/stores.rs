//! Object stores: a filesystem made of objects, and snapshots in a store, beside the plain client that puts and gets
//! objects of 8 MiB on four threads. Both talk to a small server of ours, which answers from memory as fast as can be,
//! and to one of others.

use crate::Scale;
use crate::subject::Sides;
use crate::table::Table;
use butterfs_store::{Settings, Store, each};
use butterfs_testkit::object_server::{CREDENTIALS, Fate, Server};
use butterfs_testkit::real_server::RealServer;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::{requirement, serve};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const OBJECT: usize = 8 << 20;
const THREADS: usize = 4;
/// Small puts and fsyncs whose median counts.
const SMALL: u64 = 300;
/// The words behind what is measured on the server of others, which is a program in Python, and the bytes of its file.
const REAL: &str = ", moto";
const MOST_REAL: usize = 256 << 20;
const SNAPSHOTS: &str = "s3://bucket/snapshots";
/// Bytes that change in one place.
const CHANGE: usize = 64 << 10;
/// Snapshots in the chain, and files in each directory of it.
const CHAIN: u64 = 50;
const FILES_PER_FOLDER: u64 = 1000;
/// Files that are copied into the image at once: a transaction has a limit.
const FILES_AT_ONCE: u64 = 100_000;

/// A server, and a file.
struct Bench<'c> {
    endpoint: String,
    folder: Scratch,
    content: &'c [u8],
}

/// Our server, which counts.
struct Counting<'c> {
    server: Server,
    bench: Bench<'c>,
}

/// Runs all of it.
pub fn run(scale: Scale, table: &mut Table) {
    if !serve::binary().is_file() || !requirement::fuse("bench of stores") {
        return;
    }
    let mut content = vec![0; scale.bytes as usize];
    Rng::new(1).fill(&mut content);
    let server = Server::start(|_| Fate::Served);
    let counting = Counting { bench: Bench::new(&server.endpoint, "bench-stores", &content), server };
    let near = &counting.bench;
    let plain = near.plain();
    near.volume("", &plain, table);
    near.files(scale, table);
    near.fsyncs("at once", table);
    let late = Server::start(|_| {
        std::thread::sleep(Duration::from_millis(2));
        Fate::Served
    });
    Bench::new(&late.endpoint, "bench-far", &[]).fsyncs("after 2 ms", table);
    let image = near.snapshot("", &plain, table);
    counting.changed(&image, table);
    counting.chain(scale, table);
    let Some(moto) = RealServer::moto("bench of stores") else { return };
    let real = Bench::new(&moto.endpoint, "bench-moto", &content[..content.len().min(MOST_REAL)]);
    let plain = real.plain();
    real.volume(REAL, &plain, table);
    real.snapshot(REAL, &plain, table);
}

/// The times of the plain client.
struct Plain {
    put: Duration,
    get: Duration,
}

impl<'c> Bench<'c> {
    fn new(endpoint: &str, name: &str, content: &'c [u8]) -> Bench<'c> {
        Bench { endpoint: endpoint.to_owned(), folder: Scratch::new(name), content }
    }

    fn store(&self, url: &str) -> Store {
        let variables = CREDENTIALS.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let endpoint = Some(self.endpoint.clone());
        Store::open(url, &Settings { endpoint, ..Settings::from_vars(variables) }).expect("a store")
    }

    fn butterfs(&self, words: &[&str]) -> Command {
        let mut command = serve::on_server(&self.endpoint);
        command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn ok(&self, words: &[&str]) {
        assert!(self.butterfs(words).status().expect("it starts").success(), "butterfs {words:?}");
    }

    fn plain(&self) -> Plain {
        let store = self.store("s3://bucket/plain");
        let parts: Vec<(usize, Vec<u8>)> = self.content.chunks(OBJECT).map(<[u8]>::to_vec).enumerate().collect();
        let put = timed(|| {
            let put = |(number, part): &(usize, Vec<u8>)| store.put(&format!("object{number}"), part.clone());
            each(&parts, THREADS, put).expect("the server serves");
        });
        let get = timed(|| {
            let get = |(number, _): &(usize, Vec<u8>)| store.get(&format!("object{number}"), OBJECT as u64);
            each(&parts, THREADS, get).expect("the server serves");
        });
        Plain { put, get }
    }

    /// Small fsyncs beside small puts, on a server that answers as `when` says.
    fn fsyncs(&self, when: &str, table: &mut Table) {
        let store = self.store("s3://bucket/small");
        let put = |number| timed(|| drop(store.put(&format!("small{number}"), vec![7; 4096]).expect("it serves")));
        let put = median((0..SMALL).map(put));
        let at = self.folder.folder("fsyncs");
        self.ok(&["mount", "--create", "1G", "-o", "noatime", "s3://bucket/fsyncs", text(&at)]);
        let file = File::create(at.join("small")).expect("room");
        file.write_all_at(&[1; 65536], 0).and_then(|()| file.sync_all()).expect("room");
        let sync = |number: u64| {
            timed(|| {
                let place = number % 16 * 4096;
                file.write_all_at(&[number as u8; 4096], place).and_then(|()| file.sync_data()).expect("it serves");
            })
        };
        let sides = Sides::two(median((0..SMALL).map(sync)), Some(put));
        drop(file);
        self.ok(&["umount", text(&at)]);
        let what = format!("volume: 4 KiB written, fsync, beside one put of 4 KiB, on a server that answers {when}");
        table.times(&what, sides, "<= 1.50x");
    }

    fn mount_volume(&self, at: &Path) {
        self.ok(&["mount", "--create", "64G", "-o", "noatime", "s3://bucket/volume", text(at)]);
    }

    /// A file in a volume; `server` stands behind each row.
    fn volume(&self, server: &str, plain: &Plain, table: &mut Table) {
        let at = self.folder.folder("mnt");
        self.mount_volume(&at);
        let write = timed(|| {
            let mut file = File::create(at.join("large")).expect("room");
            self.content.chunks(1 << 20).for_each(|part| file.write_all(part).expect("room"));
            file.sync_all().expect("the server serves");
        });
        let what = format!("volume: sequential write, fsync{server}");
        table.compared(&what, self.rates(write, plain.put), rate, false, ">= 0.60x");
        self.ok(&["umount", text(&at)]);
        self.mount_volume(&at);
        let mut read = vec![0; self.content.len()];
        let time = timed(|| {
            File::open(at.join("large")).and_then(|mut file| file.read_exact(&mut read)).expect("it is there")
        });
        assert!(read == self.content, "the volume has other data");
        let what = format!("volume: sequential read, cold{server}");
        table.compared(&what, self.rates(time, plain.get), rate, false, ">= 0.60x");
        self.ok(&["umount", text(&at)]);
    }

    /// Many files in the volume.
    fn files(&self, scale: Scale, table: &mut Table) {
        let at = self.folder.folder("mnt");
        self.mount_volume(&at);
        let ours = create_files(&at, scale.files);
        self.ok(&["umount", text(&at)]);
        let image = self.folder.join("local.img");
        self.ok(&["mount", "--create", "64G", "-o", "noatime", text(&image), text(&at)]);
        let local = create_files(&at, scale.files);
        self.ok(&["umount", text(&at)]);
        table.times(
            "volume: files created, beside a mount of an image file",
            Sides::two(ours, Some(local)),
            "<= 1.10x",
        );
    }

    /// A snapshot that is put and got; returns its image.
    fn snapshot(&self, server: &str, plain: &Plain, table: &mut Table) -> PathBuf {
        let (source, file) = (self.folder.join("source.img"), self.folder.join("content"));
        fs::write(&file, self.content).expect("room");
        let image = text(&source);
        self.ok(&["mkfs", "-q", "-b", "64G", image]);
        self.ok(&["subvolume", "create", "--image", image, "/live"]);
        self.ok(&["image", "cp-in", image, text(&file), "/live/content"]);
        self.ok(&["subvolume", "snapshot", "-r", "--image", image, "/live", "/snapshot"]);
        let put = timed(|| self.ok(&["stream", "put", "-q", "--image", image, "/snapshot", SNAPSHOTS]));
        table.compared(&format!("snapshot: put{server}"), self.rates(put, plain.put), rate, false, ">= 0.80x");
        let get = timed(|| self.ok(&["stream", "get", "-q", "-f", "-", SNAPSHOTS, "snapshot"]));
        let what = format!("snapshot: get, as a stream{server}");
        table.compared(&what, self.rates(get, plain.get), rate, false, ">= 0.80x");
        fs::remove_file(file).expect("our own file");
        source
    }

    fn rates(&self, ours: Duration, plain: Duration) -> Sides<f64> {
        let bytes = self.content.len() as f64 / 1e6;
        Sides::two(bytes / ours.as_secs_f64(), Some(bytes / plain.as_secs_f64()))
    }
}

impl Counting<'_> {
    /// A second snapshot, in which a sixteenth of a file changed in many places.
    fn changed(&self, image: &Path, table: &mut Table) {
        let (bench, image) = (&self.bench, text(image));
        let at = bench.folder.folder("changing");
        bench.ok(&["mount", "-o", "noatime", image, text(&at)]);
        let file = File::options().write(true).open(at.join("live/content")).expect("it is there");
        let places = bench.content.len() / CHANGE / 16;
        let mut rng = Rng::new(2);
        let mut fresh = vec![0; CHANGE];
        for place in 0..places {
            rng.fill(&mut fresh);
            let offset = place * 16 * CHANGE + rng.below(15) as usize * CHANGE;
            file.write_all_at(&fresh, offset as u64).expect("room");
        }
        drop(file);
        bench.ok(&["umount", text(&at)]);
        bench.ok(&["subvolume", "snapshot", "-r", "--image", image, "/live", "/changed"]);
        let before = self.server.received();
        bench.ok(&["stream", "put", "-q", "--image", image, "-p", "/snapshot", "/changed", SNAPSHOTS]);
        let sides = Sides::two((self.server.received() - before) as f64, Some((places * CHANGE) as f64));
        let what = "snapshot: bytes sent for a second one, beside those that changed";
        table.compared(what, sides, |bytes| format!("{:.2} MB", bytes / 1e6), true, "<= 1.05x");
    }

    /// One file out of a chain of many snapshots of many files.
    fn chain(&self, scale: Scale, table: &mut Table) {
        let bench = &self.bench;
        let (image, tree) = (bench.folder.join("chain.img"), bench.folder.folder("tree"));
        let (image, url) = (text(&image).to_owned(), "s3://bucket/chain");
        bench.ok(&["mkfs", "-q", "-b", "64G", &image]);
        bench.ok(&["subvolume", "create", "--image", &image, "/live"]);
        for number in 0..scale.library_files {
            let part = tree.join(format!("part-{}", number / FILES_AT_ONCE));
            let parent = part.join(format!("folder-{}", number / FILES_PER_FOLDER));
            if number % FILES_PER_FOLDER == 0 {
                fs::create_dir_all(&parent).expect("room");
            }
            fs::write(parent.join(format!("file-{number}")), number.to_string()).expect("room");
        }
        for part in 0..scale.library_files.div_ceil(FILES_AT_ONCE) {
            let part = format!("part-{part}");
            bench.ok(&["image", "cp-in", &image, text(&tree.join(&part)), &format!("/live/{part}")]);
        }
        let wanted = bench.folder.join("wanted");
        fs::write(&wanted, &bench.content[..1 << 20]).expect("room");
        bench.ok(&["image", "cp-in", &image, text(&wanted), "/live/wanted"]);
        let small = bench.folder.join("small");
        let mut names = Vec::new();
        for number in 0..CHAIN {
            fs::write(&small, number.to_string()).expect("room");
            bench.ok(&["image", "cp-in", &image, text(&small), &format!("/live/part-0/folder-0/changed-{number}")]);
            names.push(format!("/snapshot-{number}"));
            bench.ok(&["subvolume", "snapshot", "-r", "--image", &image, "/live", &names[number as usize]]);
        }
        let mut words = vec!["stream", "put", "-q", "--image", &image];
        words.extend(names.iter().map(String::as_str));
        words.push(url);
        let put = timed(|| bench.ok(&words));
        let what = format!("snapshot: {CHAIN} put, the first with {} files, a new one in each", scale.library_files);
        table.times(&what, Sides::two(put, None), "");
        for name in ["snapshot-0", "snapshot-25", "snapshot-49"] {
            let before = self.server.requests();
            let output = bench
                .butterfs(&["stream", "cat", url, name, "wanted"])
                .stdout(Stdio::piped())
                .output()
                .expect("it starts");
            assert!(output.stdout == bench.content[..1 << 20], "the store has other data");
            let requests = self.server.requests() - before;
            let what =
                format!("snapshot: requests for 1 MiB out of {name} of {CHAIN} with {} files", scale.library_files);
            table.value(&what, requests.to_string(), None, None, "<= 20");
        }
    }
}

fn create_files(at: &Path, count: u64) -> Duration {
    let folder = at.join("files");
    fs::create_dir(&folder).expect("room");
    timed(|| {
        for number in 0..count {
            File::create(folder.join(format!("file-{number}"))).expect("room");
        }
        File::open(&folder).and_then(|folder| folder.sync_all()).expect("it is durable");
    })
}

fn timed(work: impl FnOnce()) -> Duration {
    let began = Instant::now();
    work();
    began.elapsed()
}

fn median(times: impl Iterator<Item = Duration>) -> Duration {
    let mut times: Vec<Duration> = times.collect();
    times.sort_unstable();
    times[times.len() / 2]
}

fn rate(megabytes: f64) -> String {
    format!("{megabytes:.0} MB/s")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a scratch path is text")
}
