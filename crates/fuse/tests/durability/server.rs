//! The other process: serves a filesystem whose device forgets what was not flushed, and says what a power cut leaves.
//!
//! It reads questions from its standard input, one a line (`NAME OFFSET`), and answers each with the bytes that the
//! file has there after a power cut at this moment, as runs of one byte. A process of its own can be killed whatever
//! hangs.

use crate::engine::LEN;
use crate::volatile::VolatileDevice;
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::env::Env;
use butterfs_fs::mkfs::{MkfsOptions, mkfs};
use butterfs_fs::{Filesystem, Ino, InodeId, Options, TreeId};
use butterfs_fuse::adaptor::Adaptor;
use butterfs_fuse::mount::{self, Backing, Flags};
use butterfs_fuse::session::{Session, connect};
use butterfs_fuse::transport::Transport;
use std::io::BufRead;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

const DEVICE_BYTES: u64 = 512 << 20;
/// The first character of the lines that are answers.
pub const ANSWER: &str = "@";
/// The variables for the mount point, the source name, and the transport.
pub const VARIABLES: [&str; 3] = ["DURABILITY_AT", "DURABILITY_IMAGE", "DURABILITY_TRANSPORT"];

/// The server's life; nothing where nobody asked for it.
pub fn serve() {
    let [Some(at), Some(image), Some(transport)] = VARIABLES.map(std::env::var_os) else { return };
    let transport = if transport == "classic" { Transport::Classic } else { Transport::Uring };
    let device = fresh_device();
    let filesystem = open(device.clone());
    let image = PathBuf::from(image);
    let claimed = OwnedFd::from(std::fs::OpenOptions::new().read(true).write(true).open(&image).unwrap());
    let request = mount::Request {
        source: image.into(),
        mountpoint: at.into(),
        flags: Flags::default(),
        allow_other: false,
        backing: Backing::ImageFile(claimed),
        sector_bytes: 4096,
    };
    let mounted = mount::mount(&request).unwrap();
    mounted.place.show(&request).unwrap();
    let connected = connect(&mounted.device, transport).unwrap();
    let adaptor = Arc::new(Adaptor::new(
        (filesystem, Box::new(|| Err("it is writable".to_owned()))),
        None,
        mounted.device.another().unwrap(),
        InodeId { tree: TreeId::FS, ino: Ino::ROOT_DIR },
        TreeId::FS,
    ));
    let log: butterfs_fuse::Log = Arc::new(|line: &str| eprintln!("{line}"));
    let session = Session::over(mounted.device, connected.rings, adaptor.clone(), 2, log).unwrap();
    println!("\n{ANSWER}serving");
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let (name, offset) = line.split_once(' ').unwrap();
        println!("{ANSWER}{}", left_by_power_cut(&device, name, offset.parse().unwrap()));
    }
    session.wait();
    adaptor.close().unwrap();
}

fn fresh_device() -> Arc<VolatileDevice> {
    let content = Arc::new(MemoryDevice::new(DEVICE_BYTES));
    let devices: [Arc<dyn BlockDevice>; 1] = [content.clone()];
    mkfs(&devices, &MkfsOptions::default(), &Env::system()).unwrap();
    Arc::new(VolatileDevice::new(&content))
}

/// No commit comes by itself while the test runs.
fn open(device: Arc<dyn BlockDevice>) -> Filesystem {
    let options = Options { commit_interval_secs: 3600, ..Options::default() };
    Filesystem::open(vec![device], options, Env::system()).unwrap()
}

fn left_by_power_cut(device: &VolatileDevice, name: &str, offset: u64) -> String {
    let left = open(Arc::new(device.after_power_cut()));
    let Ok(attr) = left.lookup(left.root(), name.as_bytes()) else { return "no such file".to_owned() };
    let mut content = Vec::new();
    left.read(attr.id, offset, LEN, &mut content).unwrap();
    let runs = content.chunk_by(|one, next| one == next);
    let shown = runs.map(|run| format!("{}*{}", run.len(), run[0])).collect::<Vec<_>>().join(" ");
    left.forget(attr.id, 1);
    shown
}
