//! The `butterfs` command serving a mount.
//!
//! Invariants: (1) the serving process is a child of the test, in the foreground, so that its end is seen and it cannot
//! outlive the test; (2) it is killed when its value is dropped, and what is left of the mount is taken away.

use crate::kernel::{run, unmount};
use crate::object_server::{CREDENTIALS, Server};
use crate::{scratch, transport};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The command under test: `BUTTERFS_BIN`, or the one of the same build as the test.
pub fn binary() -> PathBuf {
    let built = || scratch::build_folder().join("butterfs");
    std::env::var_os("BUTTERFS_BIN").map_or_else(built, PathBuf::from)
}

/// The filesystem in memory of the FUSE tests, of the same build as the running program; none: it was not built.
pub fn memory_binary() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?.with_file_name("examples").join("memory");
    Some(program).filter(|program| program.exists())
}

/// The store of [`Served::volume`].
pub const VOLUME: &str = "s3://bucket/volume";

/// The command, for stores on the server with this URL.
pub fn on_server(endpoint: &str) -> Command {
    let mut command = Command::new(binary());
    command.envs(CREDENTIALS).env("AWS_ENDPOINT_URL", endpoint);
    command
}

/// A mounted image and its serving process.
#[derive(Debug)]
pub struct Served {
    process: Child,
    at: PathBuf,
    log: PathBuf,
}

const START_LIMIT: Duration = Duration::from_secs(20);
const END_LIMIT: Duration = Duration::from_secs(120);

impl Served {
    /// Mounts `image` at the folder `at`.
    pub fn mount(image: &Path, at: &Path, options: &str) -> Served {
        Served::try_mount(image, at, options).unwrap_or_else(|sentence| panic!("{sentence}"))
    }

    /// Mounts, or says what the command said.
    pub fn try_mount(image: &Path, at: &Path, options: &str) -> Result<Served, String> {
        let mut command = Command::new(binary());
        command.args(["mount", "--foreground"]);
        let options = transport::with_chosen(options);
        if !options.is_empty() {
            command.args(["-o", &options]);
        }
        command.arg(image).arg(at);
        Served::start(command, at)
    }

    /// Mounts the volume of a store on a server, which is made with 1 GiB.
    pub fn volume(server: &Server, at: &Path, options: &str) -> Served {
        let mut command = on_server(&server.endpoint);
        command.args(["mount", "--foreground", "--create", "1G", "-o", &transport::with_chosen(options), VOLUME]);
        command.arg(at);
        Served::start(command, at).unwrap_or_else(|sentence| panic!("{sentence}"))
    }

    /// Mounts the filesystem in memory as if it were in `image`.
    pub fn memory(program: &Path, image: &Path, at: &Path, options: &str) -> Served {
        let mut command = Command::new(program);
        command.arg(format!("--{}", transport::with_chosen(options))).arg(image).arg(at);
        Served::start(command, at).unwrap_or_else(|sentence| panic!("{sentence}"))
    }

    /// Starts what mounts at the folder `at` and serves, and waits until it does.
    fn start(mut command: Command, at: &Path) -> Result<Served, String> {
        let log = at.with_extension("log");
        let file = std::fs::File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        let second = file.try_clone().map_err(|error| format!("{}: {error}", log.display()))?;
        command.stdin(Stdio::null()).stdout(second).stderr(file);
        let before = device_of(at);
        let process =
            command.spawn().map_err(|error| format!("{}: {error}", command.get_program().to_string_lossy()))?;
        let mut served = Served { process, at: at.to_owned(), log };
        let end = Instant::now() + START_LIMIT;
        while device_of(at) == before {
            if let Ok(Some(status)) = served.process.try_wait() {
                return Err(format!("the mounting process ended with {status}: {}", served.said()));
            }
            if Instant::now() > end {
                return Err(format!("not mounted after {START_LIMIT:?}: {}", served.said()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        // Orders are taken before the first request is served. An error is the test's to see.
        let _ = rustix::fs::statfs(at);
        Ok(served)
    }

    /// The mounted root folder.
    pub fn path(&self) -> &Path {
        &self.at
    }

    /// The serving process's id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// The output of the command so far.
    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default().trim().to_owned()
    }

    /// Unmounts with the system's `umount` and waits for the serving process, which must end well.
    pub fn unmount(mut self) {
        let end = Instant::now() + END_LIMIT;
        let mut finished = run(60, "umount", &[&self.at.to_string_lossy()]);
        // Another test that starts a program holds what this one had open, until the program runs.
        while finished.output.contains("target is busy") && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
            finished = run(60, "umount", &[&self.at.to_string_lossy()]);
        }
        assert_eq!(finished.code, Some(0), "umount {}: {}", self.at.display(), finished.output);
        let status = self.wait_end();
        assert!(status.success(), "the serving process ended with {status}: {}", self.said());
    }

    fn wait_end(&mut self) -> ExitStatus {
        let end = Instant::now() + END_LIMIT;
        loop {
            if let Some(status) = self.process.try_wait().expect("our own child") {
                return status;
            }
            assert!(Instant::now() < end, "the serving process does not end: {}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills the serving process at once, as a power cut would, and takes the dead mount away.
    pub fn kill(self) {
        let id = rustix::process::Pid::from_raw(self.process.id() as i32).expect("a process id");
        rustix::process::kill_process(id, rustix::process::Signal::KILL).expect("our own child");
        self.dead();
    }

    /// Takes away the mount of a serving process that somebody killed.
    pub fn dead(mut self) {
        let status = self.wait_end();
        assert_eq!(status.signal(), Some(9), "the serving process had ended before: {status}: {}", self.said());
        unmount(&self.at);
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Ok(None) = self.process.try_wait() {
            unmount(&self.at);
            let end = Instant::now() + Duration::from_secs(5);
            while matches!(self.process.try_wait(), Ok(None)) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(10));
            }
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
        if run(5, "mountpoint", &["-q", &self.at.to_string_lossy()]).code == Some(0) {
            unmount(&self.at);
        }
    }
}

/// The device number of what is mounted at `path`, without asking its server.
fn device_of(path: &Path) -> String {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let at = path.to_string_lossy();
    let found = mounts.lines().rev().find(|line| line.split(' ').nth(4) == Some(&at));
    found.and_then(|line| line.split(' ').nth(2)).unwrap_or_default().to_owned()
}

/// Makes a filesystem with `butterfs mkfs`.
pub fn mkfs(image: &Path, options: &[&str]) {
    let image = image.to_str().expect("test paths are text");
    crate::kernel::run_ok(60, binary(), &[&["mkfs", "-q", "-f"], options, &[image]].concat());
}
