//! The server is killed while devices are resized, removed and replaced beneath a mount: everything that was there is
//! there afterwards, here and in the kernel, and the work can be begun again.

use super::common::{butterfs, butterfs_ok};
use super::factor;
use super::mounted::{Bed, eventually, text};
use butterfs_testkit::kernel::{KernelMount, check_several, run_ok, unmount};
use butterfs_testkit::requirement;
use butterfs_testkit::rng::Rng;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Bytes of a device.
const SIZE: &str = "512M";

/// The work on the mount.
struct Work {
    name: &'static str,
    /// Arguments of the command.
    arguments: &'static dyn Fn(&Scene) -> Vec<String>,
    /// Devices that the mount is made of.
    devices: usize,
}

struct Scene {
    bed: Bed,
    images: Vec<PathBuf>,
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

const WORKS: [Work; 3] = [
    Work {
        name: "resize",
        arguments: &|scene| owned(&["filesystem", "resize", "1:300M", text(&scene.bed.at)]),
        devices: 1,
    },
    Work { name: "remove", arguments: &|scene| owned(&["device", "remove", "1", text(&scene.bed.at)]), devices: 2 },
    Work {
        name: "replace",
        arguments: &|scene| owned(&["replace", "start", "-B", "-f", "1", text(&scene.images[2]), text(&scene.bed.at)]),
        devices: 2,
    },
];

impl Scene {
    fn new(test: &str) -> Option<Scene> {
        let bed = Bed::for_root(test)?.slow(test);
        let images = (1..=3).map(|id| bed.image.with_file_name(format!("disk{id}.img"))).collect();
        Some(Scene { bed, images })
    }

    /// The devices that still belong to the filesystem or take one over.
    fn given(&self) -> Vec<PathBuf> {
        let belongs = |image: &&PathBuf| butterfs(&["inspect-internal", "dump-super", text(image)]).code == Some(0);
        self.images.iter().filter(belongs).cloned().collect()
    }

    /// Mounts what is there. Devices that a finished removal has not wiped yet are left out.
    fn mount(&self) -> Vec<PathBuf> {
        let given = self.given();
        let sets = [given.clone(), given.iter().skip(1).cloned().collect(), given.iter().take(1).cloned().collect()];
        let mut refused = Vec::new();
        for set in sets.into_iter().filter(|set: &Vec<PathBuf>| !set.is_empty()) {
            let paths = set.iter().map(|image| text(image)).chain([text(&self.bed.at)]);
            let ran = butterfs(&["mount"].into_iter().chain(paths).collect::<Vec<_>>());
            if ran.code == Some(0) {
                return set;
            }
            refused.push(ran.stderr);
        }
        panic!("it cannot be mounted: {refused:?}");
    }

    /// The process that serves the mount.
    fn server(&self) -> Option<Pid> {
        let at = text(&self.bed.at).as_bytes();
        fs::read_dir("/proc").expect("/proc is there").flatten().find_map(|entry| {
            let line = fs::read(entry.path().join("cmdline")).ok()?;
            let mut words = line.split(|byte| *byte == 0);
            let serves = words.any(|word| word == b"--serve") && words.any(|word| word == at);
            entry.file_name().to_str()?.parse().ok().filter(|_| serves).and_then(Pid::from_raw)
        })
    }

    fn make(&self, devices: usize) {
        unmount_quietly(&self.bed.at);
        self.images.iter().for_each(|image| drop(fs::remove_file(image)));
        let images: Vec<&str> = self.images[..devices].iter().map(|image| text(image)).collect();
        butterfs_ok(&[&["mkfs", "-q", "-b", SIZE, "-d", "single", "-m", "dup"], &images[..]].concat());
        fs::File::create(&self.images[2]).unwrap().set_len(600 << 20).unwrap();
        let paths: Vec<&str> = ["mount"].into_iter().chain(images).chain([text(&self.bed.at)]).collect();
        butterfs_ok(&paths);
        let noise = |seed: u64| (0..4u64 << 20).map(|at| (at.wrapping_mul(seed | 1) >> 9) as u8).collect::<Vec<u8>>();
        // What is written behind it has to move when the device shrinks.
        run_ok(60, "fallocate", &["-l", "250M", text(&self.bed.path("filler"))]);
        for number in 0..24 {
            fs::write(self.bed.path(&format!("file{number}")), noise(0x9E37_79B9 * (number + 1))).unwrap();
        }
        run_ok(60, "sync", &["-f", text(&self.bed.at)]);
        fs::remove_file(self.bed.path("filler")).unwrap();
        run_ok(60, "sync", &["-f", text(&self.bed.at)]);
    }

    fn seen(&self, at: &Path) -> String {
        let script = format!("cd '{}' && find . -type f -name 'file*' | sort | xargs sha256sum", at.display());
        run_ok(60, "bash", &["-c", &script])
    }
}

fn unmount_quietly(at: &Path) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    if mounts.lines().any(|line| line.split(' ').nth(4) == Some(text(at))) {
        unmount(at);
    }
}

/// Runs the work and kills the server `after` it began; true where the work had not ended.
fn kill_during(scene: &Scene, work: &Work, after: Duration) -> bool {
    let mut command = Command::new(super::BINARY);
    let command = command.args((work.arguments)(scene)).stdout(Stdio::null()).stderr(Stdio::null());
    let mut running = command.spawn().unwrap();
    let writer =
        fs::OpenOptions::new().create(true).truncate(false).write(true).open(scene.bed.path("written")).unwrap();
    let began = Instant::now();
    let mut version = 0u64;
    while began.elapsed() < after {
        version += 1;
        writer.write_all_at(&version.to_le_bytes().repeat(512), 0).unwrap();
        writer.sync_data().unwrap();
    }
    let is_running = running.try_wait().unwrap().is_none();
    kill_process(scene.server().expect("it is mounted in the background"), Signal::KILL).unwrap();
    eventually(|| scene.server().is_none());
    drop(writer);
    unmount(&scene.bed.at);
    let _ = running.wait();
    let mounted = scene.mount();
    let found = fs::read(scene.bed.path("written")).unwrap();
    assert!(
        found == version.to_le_bytes().repeat(512),
        "what was synced last, version {version}, is there: {mounted:?}"
    );
    is_running
}

fn must_survive(scene: &Scene, work: &Work, after: Duration) -> bool {
    scene.make(work.devices);
    let before = scene.seen(&scene.bed.at);
    let was_running = kill_during(scene, work, after);
    assert!(scene.seen(&scene.bed.at) == before, "{}, killed after {after:?}", work.name);
    // A replacement goes on by itself; it is over before the others look.
    if work.name == "replace" {
        let status = || butterfs_ok(&["replace", "status", "-1", text(&scene.bed.at)]);
        eventually(|| !status().contains("% done"));
        let shown = status();
        assert!(shown.contains("finished on") || shown.contains("Never started"), "{shown}");
    }
    butterfs_ok(&["umount", text(&scene.bed.at)]);
    let images = scene.given();
    let images: Vec<PathBuf> = if work.name == "replace" && images.len() == 3 { images[1..].to_vec() } else { images };
    check_several(&images);
    let mount = KernelMount::several(&images, "ro");
    assert!(scene.seen(mount.path()) == before, "{}, killed after {after:?}, seen by the kernel", work.name);
    assert_eq!(mount.finish(), [""; 0]);
    was_running
}

#[test]
fn work_on_devices_survives_kills_of_the_server() {
    const TEST: &str = "kills_device_work";
    let Some(scene) = Scene::new(TEST) else { return };
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().subsec_nanos();
    let mut rng = Rng::new(u64::from(seed));
    for work in &WORKS {
        let mut struck = 0;
        for _ in 0..2 * factor() {
            let after = Duration::from_millis(rng.below(400));
            eprintln!("{}: killed after {after:?}", work.name);
            struck += u64::from(must_survive(&scene, work, after));
        }
        eprintln!("{}: {struck} kills came before the end", work.name);
    }
}
