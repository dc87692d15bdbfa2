//! Every way of asking for durability, with a power cut right after the kernel reported completion: what was written is
//! there. A process that is killed would prove nothing, because what it wrote to an image stays in the page cache; so
//! the filesystem stands on a device that forgets whatever no flush has covered.

#[path = "../engine/mod.rs"]
mod engine;
mod server;
mod volatile;

use butterfs_testkit::requirement::skip;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::transport;
use butterfs_testkit::watchdog::Watchdog;
use engine::{Block, Engine, LEN};
use rustix::fs::{FallocateFlags, IFlags, OFlags};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// How a program asks for durability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    /// Flags of open(2).
    Open(&'static str, OFlags),
    /// Flags of pwritev2(2) and of the other engines' writes.
    Write(i32),
    /// A call after the write.
    Fsync,
    Fdatasync,
    Syncfs,
    /// sync_file_range(2), which promises nothing, and then fdatasync(2).
    RangeAndFdatasync,
}

const ASKS: [Ask; 8] = [
    Ask::Open("O_SYNC", OFlags::SYNC),
    Ask::Open("O_DSYNC", OFlags::DSYNC),
    Ask::Write(libc::RWF_SYNC),
    Ask::Write(libc::RWF_DSYNC),
    Ask::Fsync,
    Ask::Fdatasync,
    Ask::Syncfs,
    Ask::RangeAndFdatasync,
];

/// How a file is stored.
const KINDS: [&str; 3] = ["cow", "nocow", "preallocated"];
/// Blocks of a file; the one behind them makes it longer.
const BLOCKS: u64 = 4;

/// The serving process.
struct Server {
    process: Child,
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    at: PathBuf,
    /// How often the content changed.
    written: u8,
}

impl Server {
    fn start(scratch: &Scratch, transport: &str) -> Server {
        let (at, image) = (scratch.folder("mnt").canonicalize().unwrap(), scratch.sparse_file("image", 1 << 20));
        let values = [at.as_os_str(), image.as_os_str(), transport.as_ref()];
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "serving_process", "--nocapture"]);
        command.envs(server::VARIABLES.into_iter().zip(values)).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let (questions, answers) = (process.stdin.take(), BufReader::new(process.stdout.take().unwrap()));
        let mut server = Server { process, questions, answers, at, written: 0 };
        assert_eq!(server.answer(), "serving");
        server
    }

    fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.answers.read_line(&mut line).unwrap() > 0, "the serving process ended");
            if let Some(answer) = line.trim_end().strip_prefix(server::ANSWER) {
                return answer.to_owned();
            }
        }
    }

    fn after_power_cut(&mut self, name: &str, offset: u64) -> String {
        writeln!(self.questions.as_mut().unwrap(), "{name} {offset}").unwrap();
        self.answer()
    }

    fn next_block(&mut self) -> Box<Block> {
        self.written = self.written % 250 + 1;
        Block::of(self.written)
    }

    fn finish(mut self) {
        rustix::mount::unmount(&self.at, rustix::mount::UnmountFlags::empty()).unwrap();
        drop(self.questions.take());
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.process.kill();
            let _ = rustix::mount::unmount(&self.at, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

fn make(path: &Path, kind: &str) {
    let file = File::create_new(path).unwrap();
    match kind {
        "nocow" => rustix::fs::ioctl_setflags(&file, IFlags::NOCOW).unwrap(),
        "preallocated" => {
            rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 256 << 10).unwrap();
        }
        _ => {}
    }
    (0..BLOCKS).for_each(|number| Engine::Calls.write(&file, &Block::of(255), number * LEN as u64, 0));
    file.sync_all().unwrap();
    rustix::fs::syncfs(&file).unwrap();
}

fn open(path: &Path, direct: bool, ask: Option<Ask>) -> File {
    let of_ask = if let Some(Ask::Open(_, flags)) = ask { flags } else { OFlags::empty() };
    let flags = if direct { of_ask | OFlags::DIRECT } else { of_ask };
    OpenOptions::new().read(true).write(true).custom_flags(flags.bits() as i32).open(path).unwrap()
}

fn write_durably(engine: Engine, file: &File, block: &Block, offset: u64, ask: Ask) {
    engine.write(file, block, offset, if let Ask::Write(flags) = ask { flags } else { 0 });
    match ask {
        Ask::Open(..) | Ask::Write(_) => {}
        Ask::Fsync => engine.sync(file, false),
        Ask::Fdatasync => engine.sync(file, true),
        Ask::Syncfs => rustix::fs::syncfs(file).unwrap(),
        Ask::RangeAndFdatasync => {
            engine::sync_file_range(file, offset);
            engine.sync(file, true);
        }
    }
}

/// Rounds of all combinations; returns those whose content a power cut took.
fn lost(server: &mut Server, kind: &str) -> Vec<String> {
    let mut lost = Vec::new();
    let mut name = String::new();
    for (round, ask) in ASKS.into_iter().enumerate() {
        for (engine, direct) in Engine::ALL.into_iter().flat_map(|engine| [(engine, false), (engine, true)]) {
            name = format!("{kind}-{round}-{engine:?}-{direct}");
            let path = server.at.join(&name);
            make(&path, kind);
            for (what, number) in [("overwritten", 1), ("grown", BLOCKS)] {
                let (block, offset) = (server.next_block(), number * LEN as u64);
                // Closed only after the power cut: closing a file promises nothing, and must not help.
                let file = open(&path, direct, Some(ask));
                write_durably(engine, &file, &block, offset, ask);
                let left = server.after_power_cut(&name, offset);
                if left != format!("{LEN}*{}", block.0[0]) {
                    lost.push(format!("{kind}, {what}, {engine:?}, direct {direct}, {ask:?}: {left}"));
                }
            }
        }
    }
    let (block, file) = (server.next_block(), open(&server.at.join(&name), false, None));
    engine::write_mapped(&file, &block, 0);
    let left = server.after_power_cut(&name, 0);
    if left != format!("{LEN}*{}", block.0[0]) {
        lost.push(format!("{kind}, msync: {left}"));
    }
    lost
}

/// The device does forget: what nobody made durable is gone.
fn assert_the_device_forgets(server: &mut Server) {
    let path = server.at.join("forgotten");
    make(&path, "cow");
    Engine::Calls.write(&open(&path, true, None), &Block::of(1), 0, 0);
    assert_eq!(server.after_power_cut("forgotten", 0), format!("{LEN}*255"));
}

fn every_way(test: &str, transport: &str) {
    if !rustix::process::geteuid().is_root() || File::open("/dev/fuse").is_err() {
        return skip(test, "needs root and /dev/fuse");
    }
    let _watchdog = Watchdog::new(test, 120);
    let scratch = Scratch::new(test);
    let mut server = Server::start(&scratch, transport);
    assert_the_device_forgets(&mut server);
    let lost: Vec<String> = KINDS.iter().flat_map(|kind| lost(&mut server, kind)).collect();
    assert!(lost.is_empty(), "{} ways lose what was acknowledged: {lost:#?}", lost.len());
    server.finish();
}

#[test]
fn acknowledged_writes_survive_a_power_cut_over_dev_fuse() {
    every_way("durable_over_dev_fuse", "classic");
}

#[test]
fn acknowledged_writes_survive_a_power_cut_over_io_uring() {
    const TEST: &str = "durable_over_io_uring";
    if transport::io_uring(TEST) {
        every_way(TEST, "uring");
    }
}

/// Not a test: what the tests start as another process.
#[test]
#[ignore = "the tests start it"]
fn serving_process() {
    server::serve();
}
