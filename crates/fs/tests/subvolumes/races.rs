//! Operations on subvolumes that meet: while one is between its check and its act, another one runs. Each pair is tried
//! with the canary too, whose checks come too early: the meeting must do its harm then.

use crate::{World, caller};
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::env::{Point, Source, Time};
use butterfs_fs::options::{Canary, Policies};
use butterfs_fs::{Env, Errno, Filesystem, InodeId, Options, RenameMode, Result, TreeId, mkfs};
use butterfs_testkit::judge::{judge_memory, text};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const ROOT: InodeId = InodeId::root_of(TreeId::FS);

type Work = Box<dyn FnOnce() + Send>;

/// An environment in which something happens once at a point.
#[derive(Clone, Default)]
struct Meeting(Arc<Mutex<Option<(Point, Work)>>>);

impl Source for Meeting {
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
        let due = self.0.lock().unwrap().take_if(|(at, _)| *at == point);
        if let Some((_, work)) = due {
            work();
        }
    }
}

impl Meeting {
    /// Has `work` done by another thread when the next operation comes to `point`, which goes on when that is done or
    /// waits for it.
    fn at<R: Send + 'static>(&self, point: Point, work: impl FnOnce() -> R + Send + 'static) -> Receiver<R> {
        let (sender, receiver) = channel();
        let (done, wait) = channel();
        let thread = move || {
            let _ = sender.send(work());
            let _ = done.send(());
        };
        let met = move || {
            std::thread::spawn(thread);
            // What waits for a lock of the operation that has come here goes on behind it.
            let waited = wait.recv_timeout(Duration::from_millis(200));
            assert_ne!(waited, Err(RecvTimeoutError::Disconnected));
        };
        *self.0.lock().unwrap() = Some((point, Box::new(met)));
        receiver
    }
}

struct Scene {
    world: World,
    meeting: Meeting,
    outer: InodeId,
    inner: InodeId,
    dir: InodeId,
}

/// A filesystem with the subvolumes `outer` and `inner`, side by side, and `dir/third`.
fn scene(canary: Option<Canary>) -> Scene {
    let (device, meeting) = (Arc::new(MemoryDevice::new(256 << 20)), Meeting::default());
    let devices: Vec<Arc<dyn BlockDevice>> = vec![device.clone()];
    let env = Env::new(meeting.clone());
    mkfs::mkfs(&devices, &mkfs::MkfsOptions::default(), &env).unwrap();
    let options = Options { policies: Policies { canary, ..Policies::default() }, ..Options::default() };
    let fs = Filesystem::open(devices, options, env).unwrap();
    let make = |name: &[u8]| InodeId::root_of(fs.create_subvolume(&caller(), ROOT, name).unwrap());
    let (outer, inner) = (make(b"outer"), make(b"inner"));
    let dir = fs.mkdir(&caller(), ROOT, b"dir", 0o755).unwrap().id;
    fs.create_subvolume(&caller(), dir, b"third").unwrap();
    fs.sync().unwrap();
    Scene { world: World { device, fs }, meeting, outer, inner, dir }
}

fn errno<T>(result: Result<T>) -> std::result::Result<(), Errno> {
    result.map(|_| ()).map_err(|error| error.errno())
}

type Outcome = std::result::Result<(), Errno>;

/// The answers of both, with and without the canary; and that the disk is sound without.
fn meet(point: Point, first: fn(&Scene) -> Outcome, second: fn(&Filesystem) -> Outcome, want: (Outcome, Outcome)) {
    for canary in [None, Some(Canary::SubvolumeCheckedEarly)] {
        let scene = scene(canary);
        let fs = scene.world.fs.clone();
        let other = scene.meeting.at(point, move || second(&fs));
        let said = first(&scene);
        let said = (said, other.recv().unwrap());
        match canary {
            None => assert_eq!(said, want),
            Some(_) => {
                assert_eq!(said, (Ok(()), Ok(())), "the canary is not found");
                continue;
            }
        }
        scene.world.fs.sync().unwrap();
        scene.world.fs.clean_subvolumes().unwrap();
        scene.world.fs.shutdown().unwrap();
        let report = judge_memory(&scene.world.device);
        assert!(report.is_clean(), "{}", text(&report));
        Filesystem::open(vec![scene.world.device.clone()], Options::default(), Env::system()).unwrap();
    }
}

fn delete_outer(fs: &Filesystem) -> Outcome {
    errno(fs.delete_subvolume(ROOT, b"outer"))
}

#[test]
fn a_source_is_deleted_before_its_snapshot_is_made() {
    for read_only in [false, true] {
        let snapshot = match read_only {
            true => |scene: &Scene| errno(scene.world.fs.snapshot(scene.outer.tree, ROOT, b"copy", true)),
            false => |scene: &Scene| errno(scene.world.fs.snapshot(scene.outer.tree, ROOT, b"copy", false)),
        };
        meet(Point::SubvolumeAsked, snapshot, delete_outer, (Err(Errno::ENOENT), Ok(())));
    }
}

#[test]
fn the_place_of_a_snapshot_goes_before_it_is_made() {
    let scene = scene(None);
    let dir = scene.world.fs.mkdir(&caller(), ROOT, b"empty", 0o755).unwrap().id;
    let fs = scene.world.fs.clone();
    let gone = scene.meeting.at(Point::SubvolumeAsked, move || fs.rmdir(ROOT, b"empty"));
    let refused = scene.world.fs.snapshot(scene.inner.tree, dir, b"copy", true);
    gone.recv().unwrap().unwrap();
    assert_eq!(errno(refused), Err(Errno::ENOENT));
    let fs = scene.world.fs.clone();
    let gone = scene.meeting.at(Point::SubvolumeAsked, move || delete_outer(&fs));
    let refused = scene.world.fs.snapshot(scene.inner.tree, scene.outer, b"copy", true);
    gone.recv().unwrap().unwrap();
    assert_eq!(errno(refused), Err(Errno::ESTALE));
    scene.world.fs.forget(dir, 1);
    scene.world.check("place-of-a-snapshot");
}

#[test]
fn a_subvolume_is_deleted_while_it_becomes_the_default() {
    let set_default = |scene: &Scene| errno(scene.world.fs.set_default_subvolume(scene.outer.tree));
    meet(Point::SubvolumeChecked, set_default, delete_outer, (Ok(()), Err(Errno::EPERM)));
}

#[test]
fn a_subvolume_becomes_the_default_while_it_is_deleted() {
    let delete = |scene: &Scene| delete_outer(&scene.world.fs);
    let set_default = |fs: &Filesystem| {
        let id = fs.subvolumes().unwrap().iter().map(|info| info.id).find(|id| *id != TreeId::FS).unwrap();
        errno(fs.set_default_subvolume(id))
    };
    meet(Point::SubvolumeChecked, delete, set_default, (Ok(()), Err(Errno::ENOENT)));
}

#[test]
fn a_subvolume_is_deleted_while_another_one_is_made_in_it() {
    let create = |scene: &Scene| errno(scene.world.fs.create_subvolume(&caller(), scene.outer, b"new"));
    meet(Point::SubvolumeChecked, create, delete_outer, (Ok(()), Err(Errno::ENOTEMPTY)));
}

#[test]
fn a_subvolume_is_deleted_while_another_one_moves_into_it() {
    // From a directory of its own: what holds `outer` is not locked by the rename.
    let rename =
        |scene: &Scene| errno(scene.world.fs.rename(scene.dir, b"third", scene.outer, b"moved", RenameMode::Replace));
    meet(Point::SubvolumeChecked, rename, delete_outer, (Ok(()), Err(Errno::ENOTEMPTY)));
}

#[test]
fn names_are_exchanged_before_a_deletion() {
    let exchanged = |canary: Option<Canary>| {
        let scene = scene(canary);
        let fs = scene.world.fs.clone();
        let exchange = move || fs.rename(ROOT, b"inner", ROOT, b"outer", RenameMode::Exchange);
        let done = scene.meeting.at(Point::SubvolumeAsked, exchange);
        let said = errno(scene.world.fs.delete_expected_subvolume(ROOT, b"outer", scene.outer.tree));
        done.recv().unwrap().unwrap();
        let left: Vec<TreeId> = scene.world.fs.subvolumes().unwrap().iter().map(|info| info.id).skip(1).collect();
        let victims = (left.contains(&scene.outer.tree), left.contains(&scene.inner.tree));
        scene.world.check("exchanged");
        (said, victims)
    };
    assert_eq!(exchanged(None), (Err(Errno::ESTALE), (true, true)));
    assert_eq!(exchanged(Some(Canary::SubvolumeCheckedEarly)), (Ok(()), (true, false)), "the canary is not found");
}

#[test]
fn a_deletion_by_number_follows_the_subvolume() {
    let scene = scene(None);
    let fs = scene.world.fs.clone();
    let exchange = move || fs.rename(ROOT, b"inner", ROOT, b"outer", RenameMode::Exchange);
    let done = scene.meeting.at(Point::SubvolumeAsked, exchange);
    let (_, name) = scene.world.fs.delete_subvolume_by_id(scene.outer.tree).unwrap();
    done.recv().unwrap().unwrap();
    assert_eq!(name, b"inner");
    assert_eq!(scene.world.fs.lookup(ROOT, b"outer").unwrap().id, scene.inner);
    scene.world.fs.forget(scene.inner, 1);
    scene.world.check("deleted-by-number");
}

/// Nobody drops it meanwhile: what is deleted is still in memory and on disk.
#[test]
fn a_deleted_subvolume_is_not_there_any_more() {
    let scene = scene(None);
    let (fs, id) = (&scene.world.fs, scene.outer.tree);
    fs.delete_subvolume(ROOT, b"outer").unwrap();
    assert_eq!(errno(fs.snapshot(id, ROOT, b"copy", true)), Err(Errno::ENOENT));
    assert_eq!(errno(fs.set_default_subvolume(id)), Err(Errno::ENOENT));
    assert_eq!(errno(fs.set_subvolume_readonly(id, true)), Err(Errno::ENOENT));
    assert_eq!(errno(fs.finish_received(id, &[7; 16], 1, b"user.mark")), Err(Errno::ENOENT));
    assert_eq!(errno(fs.subvolume_info(id)), Err(Errno::ENOENT));
    assert_eq!(errno(fs.read_snapshot(id)), Err(Errno::ENOENT));
    assert_eq!(errno(fs.create_subvolume(&caller(), scene.outer, b"new")), Err(Errno::ESTALE));
    scene.world.check("deleted-is-gone");
}

/// Looks at a directory while a subvolume in it moves or goes: it is there or it is not, and never a placeholder.
fn looks_beside(change: impl Fn(&Filesystem, u64) + Send + 'static) {
    let world = World::new(16384);
    let fs = world.fs.clone();
    fs.create_subvolume(&caller(), ROOT, b"s").unwrap();
    let changing = std::thread::spawn({
        let fs = fs.clone();
        move || (0..400).for_each(|round| change(&fs, round))
    });
    let mut wrong = Vec::new();
    while !changing.is_finished() {
        for name in [b"s", b"t"] {
            match fs.lookup(ROOT, name) {
                Ok(found) if found.id.is_placeholder() => wrong.push("lookup: a placeholder".to_owned()),
                Ok(found) => fs.forget(found.id, 1),
                Err(error) if error.is(Errno::ENOENT) => {}
                Err(error) => wrong.push(format!("lookup: {error}")),
            }
        }
        let mut show = |entry: butterfs_fs::DirEntry<'_>| {
            wrong.extend(entry.id.is_placeholder().then(|| "readdir: a placeholder".to_owned()));
            true
        };
        fs.readdir(ROOT, 2, &mut show).unwrap();
    }
    changing.join().unwrap();
    assert!(wrong.is_empty(), "{} times: {}", wrong.len(), wrong[0]);
}

#[test]
fn a_subvolume_that_moves_is_no_placeholder() {
    looks_beside(|fs, round| {
        let (old, new) = if round % 2 == 0 { (b"s", b"t") } else { (b"t", b"s") };
        fs.rename(ROOT, old, ROOT, new, RenameMode::Replace).unwrap();
    });
    looks_beside(|fs, _| {
        fs.delete_subvolume(ROOT, b"s").unwrap();
        fs.create_subvolume(&caller(), ROOT, b"s").unwrap();
    });
}
