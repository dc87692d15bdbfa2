//! How long another user waits: a small operation on another file, again and again, while each operation runs.

use crate::meter::{Meter, Operation};
use crate::scene::{Kind, Scene};
use crate::world::{ROOT, pattern};
use crate::{all_operations, sizes};
use butterfs_fs::{Filesystem, InodeId};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The longest wait in a long run, where each operation has several tries.
const LIMIT: Duration = Duration::from_millis(100);
/// The same in a test run, on a machine that does much else.
const LIMIT_UNDER_LOAD: Duration = Duration::from_secs(2);

/// The longest wait so far, and what waited.
type Wait = (Duration, &'static str);

/// Another user: looks a file up, makes one, writes into it, syncs it, removes it.
fn small_operations(fs: &Filesystem, folder: InodeId, longest: &mut Wait) {
    let mut timed = |what, work: &mut dyn FnMut()| {
        let start = Instant::now();
        work();
        *longest = (*longest).max((start.elapsed(), what));
    };
    let mut file = None;
    timed("lookup", &mut || fs.lookup(fs.root(), b"other").map(|found| fs.forget(found.id, 1)).expect("lookup"));
    timed("create", &mut || file = Some(fs.create(&ROOT, folder, b"small", 0o644).expect("create").id));
    let file = file.expect("a file");
    timed("write", &mut || assert_eq!(fs.write(file, 0, &pattern(1, 4096), false).expect("write"), 4096));
    timed("fsync", &mut || fs.fsync(file, false).expect("fsync"));
    timed("unlink", &mut || fs.unlink(folder, b"small").expect("unlink"));
    fs.forget(file, 1);
}

/// The longest wait while an operation and the sync after it run.
fn longest_wait(scene: &Scene, folder: InodeId, operation: &Operation) -> Wait {
    let done = AtomicBool::new(false);
    scene.prepare();
    let (fs, is_done) = (&scene.world.fs, &done);
    std::thread::scope(|scope| {
        let other = scope.spawn(move || {
            let mut longest = (Duration::ZERO, "");
            while !is_done.load(Ordering::Relaxed) {
                small_operations(fs, folder, &mut longest);
            }
            longest
        });
        (operation.run)(scene, &mut Meter::default());
        scene.world.fs.sync().expect("sync");
        done.store(true, Ordering::Relaxed);
        other.join().expect("the other user's work")
    })
}

fn too_long(kind: Kind, limit: Duration) -> Vec<String> {
    let size = sizes(kind)[2];
    let scene = Scene::new(kind, size, None);
    let folder = scene.world.fs.mkdir(&ROOT, scene.world.fs.root(), b"other", 0o755).expect("mkdir").id;
    let mut found = Vec::new();
    // A filesystem that is read-only refuses the other user's work.
    let operations = all_operations().into_iter().filter(|operation| operation.function != "set_read_only");
    for operation in operations {
        let tries = (0..4).map(|_| longest_wait(&scene, folder, &operation));
        let mut tries = tries.map_while(|wait| (wait.0 > limit).then_some(wait)).collect::<Vec<_>>();
        if tries.len() == 4 {
            tries.sort();
            let (name, how) = (operation.function, operation.how);
            found.push(format!("{name} ({how}) beside {size} {kind:?}: others waited for {tries:?}"));
        }
    }
    found
}

#[test]
fn others_do_not_wait_long() {
    let found = too_long(Kind::References, LIMIT_UNDER_LOAD);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// All scenes, a hundred milliseconds: `cargo xtask soak waits`.
#[test]
#[ignore = "long: cargo xtask soak waits"]
fn others_do_not_wait_anywhere() {
    let found: Vec<String> = crate::kinds().iter().flat_map(|kind| too_long(*kind, LIMIT)).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}
