//! Scrub while files are written, deleted and snapshotted: nothing that was freed is reported or written.

use crate::rig::{Quiet, make, noise, open_with, outcome, shared, write};
use butterfs_fs::env::Point;
use butterfs_fs::options::{Canary, Policies};
use butterfs_fs::scrub::Settings;
use butterfs_fs::{Env, Filesystem, Options};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Frees and fills space again between planning and reading. Returns the errors that scrub sees.
fn errors_with_reuse(options: Options) -> u64 {
    let disks = make(1, "dup", "single");
    let hook = Quiet::default();
    let filesystem = open_with(&shared(&disks), options, Env::new(hook.clone()));
    // So much of the space that the next files take it again.
    let fill = |filesystem: &Filesystem, round: u64| {
        for number in 0..100 {
            write(filesystem, &format!("file{round}-{number}"), &noise(1000 * round + number, 1 << 20));
        }
        filesystem.sync().unwrap();
    };
    fill(&filesystem, 0);
    let inside = filesystem.clone();
    let (mut round, mut windows) = (0, 0);
    *hook.0.lock().unwrap() = Some(Box::new(move |point| {
        windows += u64::from(point == Point::ScrubPlanned);
        // The first ones are of tree blocks.
        if point != Point::ScrubPlanned || windows < 8 || round == 3 {
            return;
        }
        for number in 0..100 {
            inside.unlink(inside.root(), format!("file{round}-{number}").as_bytes()).unwrap();
        }
        inside.sync().unwrap();
        inside.sync().unwrap();
        round += 1;
        fill(&inside, round);
    }));
    let scrub = filesystem.scrub(Settings::default(), Vec::new()).unwrap();
    *hook.0.lock().unwrap() = None;
    outcome(&scrub).0.errors()
}

#[test]
fn space_that_is_used_again_is_not_reported() {
    assert_eq!(errors_with_reuse(Options::default()), 0);
    let policies = Policies { canary: Some(Canary::ScrubUnheld), ..Policies::default() };
    assert!(
        errors_with_reuse(Options { policies, ..Options::default() }) > 0,
        "the test sees a scrub that holds nothing"
    );
}

#[test]
fn work_goes_on_beside_a_scrub() {
    let disks = make(2, "raid1", "raid1");
    let filesystem = open_with(&shared(&disks), Options::default(), Env::system());
    let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let worker = {
        let (filesystem, stop, rounds) = (filesystem.clone(), Arc::clone(&stop), Arc::clone(&rounds));
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let round = rounds.fetch_add(1, Ordering::Relaxed);
                let name = format!("file{}", round % 10);
                let _ = filesystem.unlink(filesystem.root(), name.as_bytes());
                write(&filesystem, &name, &noise(round, 700_000));
                let snapshot = format!("snapshot{}", round % 3);
                let _ = filesystem.delete_subvolume(filesystem.root(), snapshot.as_bytes());
                let root = filesystem.root();
                filesystem.snapshot(root.tree, root, snapshot.as_bytes(), true).unwrap();
            }
        })
    };
    for _ in 0..15 {
        let scrub = filesystem.start_scrub(Settings::default(), Vec::new()).unwrap();
        let second = filesystem.start_scrub(Settings::default(), Vec::new());
        assert!(second.is_err() || scrub.is_over(), "one at a time");
        while !scrub.is_over() {
            scrub.wait_for_news(std::time::Duration::from_millis(10));
        }
        let (counters, lines) = outcome(&scrub);
        assert_eq!((counters.errors(), counters.uncorrectable), (0, 0), "{lines:?}");
    }
    stop.store(true, Ordering::Relaxed);
    worker.join().unwrap();
    assert!(rounds.load(Ordering::Relaxed) > 3);
    filesystem.shutdown().unwrap();
}
