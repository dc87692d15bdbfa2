//! A user who exchanges names while a subvolume is deleted: only what was checked goes.

use butterfs_control::{InodeRef, Record, Refusal, SubvolumeId, question};
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::env::{Point, Source, Time};
use butterfs_fs::{Caller, Env, Errno, Filesystem, InodeId, Options, RenameMode, TreeId};
use butterfs_fuse::subvolumes::{Capabilities, Inodes, Peer, Stage, perform};
use butterfs_testkit::engine::FORMATS;
use std::sync::{Arc, Mutex};

const TOP: InodeId = InodeId::root_of(TreeId::FS);
const ROOT: Caller = Caller { uid: 0, gid: 0, umask: 0o022, privileged: true };
const USER: Caller = Caller { uid: 1000, gid: 1000, umask: 0o022, privileged: false };

type Work = Box<dyn FnOnce() + Send>;

/// Does something once when a deletion has been checked by whoever asks for it.
#[derive(Clone, Default)]
struct Meanwhile(Arc<Mutex<Option<Work>>>);

impl Source for Meanwhile {
    fn now(&self) -> Time {
        Time { sec: 1_700_000_000, nsec: 0 }
    }

    fn random(&self) -> [u8; 16] {
        Env::system().uuid()
    }

    fn threads(&self) -> usize {
        1
    }

    fn background(&self) -> bool {
        false
    }

    fn reached(&self, point: Point) {
        let work = (point == Point::SubvolumeAsked).then(|| self.0.lock().unwrap().take()).flatten();
        work.into_iter().for_each(|work| work());
    }
}

fn delete(fs: &Filesystem, directory: InodeId, name: &str) -> Result<Vec<Record>, Refusal> {
    let peer = Peer { uid: USER.uid, gid: USER.gid, groups: Vec::new(), capabilities: Capabilities::NONE };
    let inodes = Inodes::Numbered;
    let stage = Stage { filesystem: fs, peer: &peer, inodes, changed: &|_, _| {}, closed: &|_, _, _| {} };
    let directory = InodeRef::Number { tree: directory.tree.0, ino: directory.ino.0 };
    let question = question::DeleteSubvolume { directory, name: name.into() };
    let mut records = Vec::new();
    let sink = &mut |record| {
        records.push(record);
        Ok(())
    };
    perform(&stage, &question.into(), sink).map(|()| records)
}

#[test]
fn a_user_deletes_nobody_elses_subvolume_by_exchanging_names() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(256 << 20));
    FORMATS[0].make(&device);
    let meanwhile = Meanwhile::default();
    let options = Options { user_subvol_rm_allowed: true, ..Options::default() };
    let fs = Filesystem::open(vec![device], options, Env::new(meanwhile.clone())).unwrap();
    let shared = fs.mkdir(&Caller { umask: 0, ..ROOT }, TOP, b"shared", 0o777).unwrap().id;
    let own = fs.create_subvolume(&USER, shared, b"own").unwrap();
    let roots = fs.create_subvolume(&ROOT, shared, b"roots").unwrap();
    assert_eq!(delete(&fs, shared, "roots").unwrap_err().errno, Errno::EACCES.0);
    let exchange = {
        let fs = fs.clone();
        move || fs.rename(shared, b"own", shared, b"roots", RenameMode::Exchange).unwrap()
    };
    *meanwhile.0.lock().unwrap() = Some(Box::new(exchange));
    // The user may delete what was checked, and what has the name now is root's.
    assert_eq!(delete(&fs, shared, "own").unwrap_err().errno, Errno::EACCES.0);
    assert!(fs.subvolume_info(own).is_ok() && fs.subvolume_info(roots).is_ok());
    assert_eq!(delete(&fs, shared, "roots").unwrap(), vec![Record::from(SubvolumeId(own.0))]);
    fs.forget(shared, 1);
    fs.shutdown().unwrap();
}
