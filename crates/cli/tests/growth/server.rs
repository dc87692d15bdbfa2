//! Measurements of the serving process.

use butterfs_control::{WorkCounts, question};
use butterfs_fuse::control::ControlClient;
use std::path::Path;
use std::time::Duration;

/// Counts since the server began, and of the longest stop since the last look.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Tree blocks and items.
    pub steps: u64,
    pub stop_steps: u64,
    pub stop_reads: u64,
    /// Time on processors, of all threads.
    pub busy: Duration,
}

/// A serving process and a connection to it.
pub struct Server {
    pub id: i32,
    client: std::cell::RefCell<ControlClient>,
}

impl Server {
    pub fn new(id: i32, at: &Path) -> Server {
        Server { id, client: std::cell::RefCell::new(connection(at)) }
    }

    pub fn counts(&self) -> Counts {
        let answer = self.client.borrow_mut().ask(question::CountWork {}, &[]);
        let records = answer.expect("the server answers").expect("root may ask");
        let WorkCounts { nodes, items, longest_stop_steps, longest_stop_reads, .. } = records[0];
        let (stop_steps, stop_reads) = (longest_stop_steps, longest_stop_reads);
        Counts { steps: nodes + items, stop_steps, stop_reads, busy: self.busy() }
    }

    /// The counts once nothing happens in the background any more.
    pub fn quiet(&self) -> Counts {
        let mut before = self.counts();
        for _ in 0..400 {
            std::thread::sleep(Duration::from_millis(2));
            let now = self.counts();
            if now.steps == before.steps {
                return Counts {
                    stop_steps: now.stop_steps.max(before.stop_steps),
                    stop_reads: now.stop_reads.max(before.stop_reads),
                    ..now
                };
            }
            before = now;
        }
        before
    }

    fn busy(&self) -> Duration {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.id)).expect("it runs").flatten();
        let of_task = |path: std::path::PathBuf| {
            let text = std::fs::read_to_string(path.join("schedstat")).ok()?;
            text.split(' ').next()?.parse::<u64>().ok()
        };
        Duration::from_nanos(tasks.filter_map(|task| of_task(task.path())).sum())
    }

    /// Its descriptors, without those of `/dev/fuse`: each thread that waits for requests has one, and a few of them
    /// stay.
    pub fn descriptors(&self) -> usize {
        let all = std::fs::read_dir(format!("/proc/{}/fd", self.id)).expect("it runs").flatten();
        let shown = all.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        shown.filter(|path| *path != Path::new("/dev/fuse")).count()
    }

    pub fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id)).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
        line.split_whitespace().next().and_then(|kib| kib.parse().ok()).expect("a number")
    }
}

/// A connection for questions about the mount at a folder.
pub fn connection(at: &Path) -> ControlClient {
    let stat = rustix::fs::statx(rustix::fs::CWD, at, rustix::fs::AtFlags::empty(), rustix::fs::StatxFlags::INO)
        .expect("a mount");
    butterfs_fuse::client::ask_about((stat.stx_dev_major, stat.stx_dev_minor)).expect("a server")
}
