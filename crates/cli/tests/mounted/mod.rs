//! An image, a folder to mount it on, and what a test does with them.

use crate::common::{Ran, butterfs, butterfs_ok};
use butterfs_testkit::kernel::{KernelMount, check_all, run, unmount};
use butterfs_testkit::requirement::skip;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::transport;
use butterfs_testkit::watchdog::Watchdog;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// See the [module](self). What is still mounted at the end is taken away.
pub struct Bed {
    pub scratch: Scratch,
    pub image: PathBuf,
    pub at: PathBuf,
    _watchdog: Watchdog,
}

impl Bed {
    /// `None`, said: this machine cannot do it. The image does not exist yet.
    pub fn new(test: &str) -> Option<Bed> {
        if let Err(error) = std::fs::File::open("/dev/fuse") {
            skip(test, &format!("/dev/fuse: {error}"));
            return None;
        }
        let scratch = Scratch::new(test);
        let at = scratch.folder("mnt").canonicalize().expect("just made");
        let image = at.with_file_name("disk.img");
        Some(Bed { scratch, image, at, _watchdog: Watchdog::new(test, 120) })
    }

    /// The same for a test that needs root. Users may mount too, as on every distribution: where no udev has seen to
    /// that, this does.
    pub fn for_root(test: &str) -> Option<Bed> {
        if !rustix::process::geteuid().is_root() {
            skip(test, "needs root");
            return None;
        }
        let bed = Bed::new(test)?;
        let mode = |path: &str| std::fs::metadata(path).expect("it opens").permissions().mode();
        if mode("/dev/fuse") & 0o006 != 0o006 {
            std::fs::set_permissions("/dev/fuse", PermissionsExt::from_mode(0o666)).expect("root may");
        }
        Some(bed)
    }

    /// For tests of hundreds of commands, which a busy machine makes slow.
    #[allow(dead_code)] // only some tests are
    pub fn slow(self, test: &str) -> Bed {
        self.within(test, 600)
    }

    /// For a test that may take so many seconds.
    #[allow(dead_code)] // only some tests are
    pub fn within(mut self, test: &str, seconds: u64) -> Bed {
        self._watchdog = Watchdog::new(test, seconds);
        self
    }

    /// With a new filesystem on the image.
    pub fn with_image(self) -> Bed {
        butterfs_ok(&["mkfs", "-q", "-b", "512M", text(&self.image)]);
        self
    }

    /// `butterfs mount`, in the background.
    pub fn mount(&self, options: &str) -> Ran {
        butterfs(&["mount", "-o", &transport::with_chosen(options), text(&self.image), text(&self.at)])
    }

    pub fn mount_ok(&self, options: &str) {
        let ran = self.mount(options);
        assert!(ran.code == Some(0) && ran.stderr.is_empty(), "{ran:?}");
    }

    /// After a kill, which may have come between the superblock copies of a commit: the mount says so.
    #[allow(dead_code)] // only tests that kill need it
    pub fn mount_after_kill(&self, options: &str) {
        let ran = self.mount(options);
        let is_known = |line: &str| line.contains("the commit between them did not finish");
        assert!(ran.code == Some(0) && ran.stderr.lines().all(is_known), "{ran:?}");
    }

    pub fn umount_ok(&self) {
        butterfs_ok(&["umount", text(&self.at)]);
        assert!(!self.is_mounted());
        assert_eq!(self.serving_process(), None, "it has ended when umount returns");
    }

    /// A path below the mount.
    pub fn path(&self, name: &str) -> PathBuf {
        self.at.join(name)
    }

    /// The line of mountinfo for the mount.
    pub fn mountinfo(&self) -> Option<String> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("/proc is there");
        mounts.lines().rev().find(|line| line.split(' ').nth(4) == Some(text(&self.at))).map(str::to_owned)
    }

    pub fn is_mounted(&self) -> bool {
        self.mountinfo().is_some()
    }

    /// The process that serves the mount in the background.
    pub fn serving_process(&self) -> Option<i32> {
        let image = text(&self.image).as_bytes();
        std::fs::read_dir("/proc").expect("/proc is there").flatten().find_map(|entry| {
            let process = entry.file_name().to_str()?.parse().ok()?;
            let line = std::fs::read(entry.path().join("cmdline")).ok()?;
            let mut words = line.split(|byte| *byte == 0);
            (words.any(|word| word == b"--serve") && words.any(|word| word == image)).then_some(process)
        })
    }

    /// A power cut, as far as the filesystem can tell.
    pub fn kill(&self) {
        let process = self.serving_process().expect("it is mounted in the background");
        let process = rustix::process::Pid::from_raw(process).expect("a process's number");
        rustix::process::kill_process(process, rustix::process::Signal::KILL).expect("it is ours");
        eventually(|| self.serving_process().is_none());
        unmount(&self.at);
    }

    /// Every available checker finds the image clean, and the kernel shows the content that `look` expects.
    pub fn judge(&self, look: impl FnOnce(&Path)) {
        check_all(&self.image);
        let mount = KernelMount::new(&self.image, "ro");
        look(mount.path());
        assert_eq!(mount.finish(), [""; 0]);
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if self.is_mounted() {
            unmount(&self.at);
        }
    }
}

/// A path as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are text")
}

/// Waits for what happens soon.
pub fn eventually(mut happened: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !happened() {
        assert!(Instant::now() < end, "it did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a shell script that stops at the first failure; returns what it printed.
pub fn shell(script: &str, variables: &[(&str, &Path)]) -> String {
    let variables = variables.iter().map(|(name, path)| format!("{name}='{}'\n", path.display()));
    let script: String = variables.chain([script.to_owned()]).collect();
    let finished = run(60, "bash", &["-euo", "pipefail", "-c", &script]);
    assert_eq!(finished.code, Some(0), "{script}\n{}", finished.output);
    finished.output
}
