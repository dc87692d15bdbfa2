//! Several operations in one transaction, beside the model: what succeeds is there, what fails leaves nothing.

use butterfs_device::{BlockDevice, Fault, FaultRule, FaultyDevice, MemoryDevice, Operation};
use butterfs_fs::options::{Canary, Policies};
use butterfs_fs::{Caller, Env, Errno, Error, Filesystem, Options, Together, mkfs};
use butterfs_testkit::engine::{FORMATS, Format, device, open, tight};
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use butterfs_testkit::kernel::check_all;
use butterfs_testkit::library::{Library, ROOT};
use butterfs_testkit::model::ModelFs;
use butterfs_testkit::operation::Op;
use butterfs_testkit::requirement;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::watchdog::Watchdog;
use butterfs_testkit::workload::{Generator, Shape, run, step};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const IMAGE_BYTES: u64 = 512 << 20;

fn on_purpose() -> Error {
    Error::refused(Errno::EINTR, "on purpose")
}

fn shown(filesystem: &Filesystem) -> Fingerprint {
    Fingerprint::of_library(filesystem).unwrap_or_else(|error| panic!("{error}"))
}

/// Handles and making things durable are no matter of a transaction.
fn belongs(op: &Op) -> bool {
    !matches!(op, Op::Open { .. } | Op::Close { .. } | Op::Tmpfile { .. } | Op::Sync | Op::Fsync { .. })
}

/// Random operations in transactions, of which every other one fails; some operations between them. What is wrong after
/// one.
fn transactions(filesystem: &Filesystem, seed: u64, rounds: usize) -> Result<ModelFs, String> {
    let (mut model, mut library) = (ModelFs::default(), Library::new(filesystem));
    let (mut generator, mut rng) = (Generator::new(seed, Shape::ORDINARY), Rng::new(seed));
    for round in 0..rounds {
        let between = rng.index(40);
        run(&mut generator, between, &mut model, &mut library).map_err(|found| format!("{found:?}"))?;
        let (fails, mut after) = (rng.chance(50), model.clone());
        let count = 1 + rng.index(60);
        let mut wrong = None;
        let worked = filesystem.transaction(|_| {
            let mut left = count;
            while left > 0 {
                let op = generator.next_op(&after);
                if belongs(&op) {
                    wrong = wrong.take().or(step(&op, &mut after, &mut library).err().map(|differ| (op, differ)));
                    left -= 1;
                }
            }
            if fails { Err(on_purpose()) } else { Ok(()) }
        });
        if let Some(wrong) = wrong {
            return Err(format!("round {round}: {wrong:?}"));
        }
        match worked {
            Err(error) if fails && error.errno() == Errno::EINTR => {}
            Ok(()) if !fails => model = after,
            other => return Err(format!("round {round}: {other:?}")),
        }
        let found = differences(&Fingerprint::of_model(&model), &shown(filesystem), Compare::MODEL);
        if !found.is_empty() {
            return Err(format!("round {round}, {}: {found:#?}", if fails { "taken back" } else { "kept" }));
        }
    }
    Ok(model)
}

fn random_transactions(format: &Format, options: &Options) {
    for seed in 0..3 {
        println!("seed {seed}, {format:?}");
        let scratch = Scratch::new("together");
        let image = scratch.sparse_file("image", IMAGE_BYTES);
        format.make(&device(&image));
        let filesystem = open(&image, options.clone());
        let model = transactions(&filesystem, seed, 12).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        filesystem.shutdown().unwrap_or_else(|error| panic!("{error}"));
        drop(filesystem);
        check_all(&image);
        let found =
            differences(&Fingerprint::of_model(&model), &shown(&open(&image, Options::default())), Compare::MODEL);
        assert!(found.is_empty(), "after closing: {found:#?}");
    }
}

#[test]
fn a_failed_transaction_leaves_nothing() {
    if !requirement::kernel_btrfs("a_failed_transaction_leaves_nothing") {
        return;
    }
    let _watchdog = Watchdog::new("a_failed_transaction_leaves_nothing", 400);
    for format in [0, 3, 4, 5] {
        random_transactions(&FORMATS[format], &tight());
    }
    let mut in_place = tight();
    in_place.data.apply("nodatacow").expect("an option").expect("a value");
    random_transactions(&FORMATS[2], &in_place);
}

fn in_memory(options: Options) -> Filesystem {
    on(made(256 << 20), options)
}

#[test]
fn leaked_state_is_found() {
    let policies = Policies { canary: Some(Canary::LeftBehind), ..Policies::default() };
    let filesystem = in_memory(Options { policies, ..Options::default() });
    assert!((0..5).any(|seed| transactions(&filesystem, seed, 12).is_err()), "the test would not notice");
}

#[test]
fn nothing_is_durable_alone_and_none_is_in_another() {
    let filesystem = in_memory(Options::default());
    let root = filesystem.root();
    let busy = |result: butterfs_fs::Result<()>| assert_eq!(result.unwrap_err().errno(), Errno::EBUSY);
    let made = filesystem.transaction(|together| {
        let made = together.create(&ROOT, root, b"file", 0o644)?;
        busy(together.fsync(made.id, false));
        busy(together.sync());
        busy(together.transaction(|_| Ok(())));
        busy(together.commit_recorded());
        Ok(made)
    });
    // What was refused did not take the rest with it.
    let made = made.unwrap();
    assert_eq!(filesystem.getattr(made.id).unwrap().mode & 0o777, 0o644);
    filesystem.fsync(made.id, false).unwrap();
}

#[test]
fn subvolumes_and_snapshots_are_taken_back() {
    let filesystem = in_memory(Options::default());
    let (root, caller) = (filesystem.root(), ROOT);
    let old = filesystem.create_subvolume(&caller, root, b"old").unwrap();
    let before = (shown(&filesystem), filesystem.subvolumes().unwrap().len());
    let work = |together: &Together<'_>| {
        let new = together.create_subvolume(&caller, root, b"new")?;
        together.snapshot(new, root, b"of new", false)?;
        together.snapshot(old, root, b"of old", true)?;
        together.set_subvolume_readonly(old, true)?;
        together.delete_subvolume(root, b"old")?;
        together.set_label(b"together")
    };
    filesystem.transaction(|together| work(together).and(Err::<(), _>(on_purpose()))).unwrap_err();
    let after = (shown(&filesystem), filesystem.subvolumes().unwrap().len());
    assert_eq!(differences(&before.0, &after.0, Compare { atime: false, ..Compare::ALL }), [""; 0]);
    assert_eq!((before.1, filesystem.superblock().label), (after.1, [0; 256]));
    assert_eq!(filesystem.subvolume_info(old).unwrap().flags, 0);
    filesystem.transaction(work).unwrap();
    assert_eq!(&filesystem.superblock().label[..8], b"together");
    let names: Vec<_> = filesystem.subvolumes().unwrap().iter().map(|info| info.id).collect();
    assert!(names.len() == 4 && !names.contains(&old), "{names:?}");
}

fn on(device: Arc<dyn BlockDevice>, options: Options) -> Filesystem {
    Filesystem::open(vec![device], options, Env::system()).unwrap()
}

fn made(bytes: u64) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(bytes));
    let devices: Vec<Arc<dyn BlockDevice>> = vec![device.clone()];
    mkfs::mkfs(&devices, &mkfs::MkfsOptions::default(), &Env::system()).unwrap();
    device
}

fn taken_back(filesystem: &Filesystem, work: impl FnOnce(&Together<'_>) -> butterfs_fs::Result<()>) {
    let result = filesystem.transaction(|together| work(together).and(Err::<(), _>(on_purpose())));
    assert_eq!(result.unwrap_err().errno(), Errno::EINTR);
}

#[test]
fn operations_that_cannot_be_taken_back_are_refused_within() {
    let filesystem = in_memory(Options { commit_interval_secs: 1, ..Options::default() });
    let root = filesystem.root();
    let subvolume = filesystem.create_subvolume(&ROOT, root, b"subvolume").unwrap();
    filesystem
        .transaction(|together| {
            let busy = |result: Result<(), Error>| assert_eq!(result.unwrap_err().errno(), Errno::EBUSY);
            together.set_subvolume_readonly(subvolume, true)?;
            busy(together.read_snapshot(subvolume).map(drop));
            together.delete_subvolume(root, b"subvolume")?;
            busy(together.clean_subvolumes());
            busy(together.clean_once().map(drop));
            busy(together.set_read_only(true));
            // The thread that commits now and then waits to get in.
            std::thread::sleep(Duration::from_millis(1500));
            busy(together.shutdown());
            Ok(())
        })
        .unwrap();
    filesystem.clean_subvolumes().unwrap();
    filesystem.shutdown().unwrap();
}

#[test]
fn nothing_is_written_once_it_is_closed() {
    let _watchdog = Watchdog::new("nothing_is_written_once_it_is_closed", 60);
    for closes in [true, false] {
        let filesystem = in_memory(Options::default());
        let root = filesystem.root();
        std::thread::scope(|scope| {
            let works = || {
                filesystem.transaction(|together| {
                    together.mkdir(&ROOT, root, b"first", 0o755)?;
                    std::thread::sleep(Duration::from_millis(300));
                    Ok(())
                })
            };
            let first = scope.spawn(works);
            std::thread::sleep(Duration::from_millis(100));
            let close = || if closes { filesystem.shutdown() } else { filesystem.set_read_only(true) };
            let closing = scope.spawn(close);
            std::thread::sleep(Duration::from_millis(50));
            let late = filesystem.transaction(|together| {
                assert!(!together.is_read_only(), "it is closed");
                Ok(())
            });
            assert!(late.is_ok() || late.is_err_and(|error| error.errno() == Errno::EROFS));
            first.join().unwrap().unwrap();
            closing.join().unwrap().unwrap();
        });
    }
}

#[test]
fn data_that_a_device_refuses_takes_all_back() {
    let _watchdog = Watchdog::new("data_that_a_device_refuses_takes_all_back", 120);
    let faulty = Arc::new(FaultyDevice::new(made(512 << 20)));
    let filesystem = on(faulty.clone(), Options { dirty_data_bytes: 1 << 20, ..tight() });
    let root = filesystem.root();
    let result = filesystem.transaction(|together| {
        faulty.add_rule(FaultRule::always(Operation::Write, Fault::Fail));
        for number in 0u8..64 {
            let made = together.create(&ROOT, root, format!("file {number}").as_bytes(), 0o644)?;
            together.forget(made.id, 1);
            // Whoever goes on after an error finds it again at the end.
            let _ = together.write(made.id, 0, &vec![number; 128 << 10], false);
        }
        faulty.clear();
        Ok(())
    });
    match result {
        Ok(()) => {
            for number in 0u8..64 {
                let found = filesystem.lookup(root, format!("file {number}").as_bytes()).unwrap();
                let mut content = Vec::new();
                filesystem.read(found.id, 0, 128 << 10, &mut content).unwrap();
                assert!(content.is_empty() || content == vec![number; 128 << 10], "file {number} lacks data");
            }
        }
        Err(_) => assert_eq!(shown(&filesystem).entries.len(), 1),
    }
}

#[test]
fn files_without_a_name_are_what_they_were() {
    let filesystem = on(made(256 << 20), Options::default());
    let root = filesystem.root();
    let tmpfile = filesystem.tmpfile(&ROOT, root, 0o644).unwrap().id;
    filesystem.acquire(tmpfile);
    taken_back(&filesystem, |together| together.link(tmpfile, root, b"name").map(drop));
    filesystem.link(tmpfile, root, b"name").expect("it has no name, as before");
    filesystem.sync().unwrap();
    let free = filesystem.statfs().blocks_free;
    let open = filesystem.create(&ROOT, root, b"open", 0o644).unwrap().id;
    filesystem.acquire(open);
    filesystem.write(open, 0, &vec![7; 16 << 20], false).unwrap();
    filesystem.unlink(root, b"open").unwrap();
    filesystem.forget(open, 1);
    filesystem.sync().unwrap();
    // Closing is not taken back, so nobody has it any more.
    taken_back(&filesystem, |together| {
        together.release(open);
        Ok(())
    });
    (0..2).for_each(|_| filesystem.sync().unwrap());
    assert!(free - filesystem.statfs().blocks_free < 200, "its space stays");
    filesystem.shutdown().unwrap();
}

#[test]
fn answers_are_those_of_before() {
    let _watchdog = Watchdog::new("answers_are_those_of_before", 120);
    let filesystem = on(made(140 << 20), Options::default());
    let root = filesystem.root();
    let source = filesystem.create_subvolume(&ROOT, root, b"source").unwrap();
    let snapshot = filesystem.snapshot(source, root, b"snapshot", true).unwrap();
    let uuid = filesystem.subvolume_info(source).unwrap().uuid;
    assert_eq!(filesystem.snapshots_of(&uuid).unwrap(), [snapshot]);
    taken_back(&filesystem, |together| {
        together.delete_subvolume(root, b"snapshot")?;
        assert_eq!(together.snapshots_of(&uuid)?, []);
        Ok(())
    });
    assert_eq!(filesystem.snapshots_of(&uuid).unwrap(), [snapshot]);
    filesystem.sync().unwrap();
    let before = filesystem.statfs().blocks_available;
    taken_back(&filesystem, |together| {
        let fill = |number: u64| -> butterfs_fs::Result<()> {
            let made = together.create(&ROOT, root, format!("{number}").as_bytes(), 0o644)?;
            together.forget(made.id, 1);
            together.write(made.id, 0, &[7; 2000], false).map(drop)
        };
        let full = (0..).map(fill).find_map(Result::err);
        assert_eq!(full.map(|error| error.errno()), Some(Errno::ENOSPC));
        Ok(())
    });
    assert_eq!(filesystem.statfs().blocks_available, before);
}

#[test]
fn a_panic_takes_everything_back() {
    let filesystem = in_memory(Options::default());
    let root = filesystem.root();
    let panics = || {
        filesystem.transaction(|together| -> butterfs_fs::Result<()> {
            together.create(&ROOT, root, b"file", 0o644)?;
            panic!("of whoever uses the library")
        })
    };
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
    assert_eq!(filesystem.lookup(root, b"file").unwrap_err().errno(), Errno::ENOENT);
    filesystem.create(&ROOT, root, b"file", 0o644).unwrap();
    filesystem.shutdown().unwrap();
}

#[test]
fn too_much_is_refused_and_taken_back() {
    let _watchdog = Watchdog::new("too_much_is_refused_and_taken_back", 300);
    let filesystem = on(made(4 << 30), Options::default());
    let root = filesystem.root();
    let file = filesystem.create(&ROOT, root, b"file", 0o644).unwrap();
    let work = |together: &Together<'_>| -> butterfs_fs::Result<()> {
        for number in 0u64.. {
            let made = together.create(&ROOT, root, format!("{number:0200}").as_bytes(), 0o644)?;
            together.forget(made.id, 1);
        }
        Ok(())
    };
    assert_eq!(filesystem.transaction(work).unwrap_err().errno(), Errno::E2BIG);
    assert_eq!(shown(&filesystem).entries.len(), 2);
    filesystem.write(file.id, 0, b"goes on", false).unwrap();
    filesystem.shutdown().unwrap();
}

#[test]
fn others_see_all_or_nothing() {
    let _watchdog = Watchdog::new("others_see_all_or_nothing", 120);
    let filesystem = in_memory(Options::default());
    let (root, done) = (filesystem.root(), AtomicBool::new(false));
    let names = || {
        let mut names = Vec::new();
        let mut show = |entry: butterfs_fs::DirEntry<'_>| {
            names.push(entry.name.to_vec());
            true
        };
        filesystem.readdir(root, 2, &mut show).unwrap();
        names
    };
    std::thread::scope(|scope| {
        let look = || {
            while !done.load(Ordering::Relaxed) {
                let names = names();
                let has = |name: &[u8]| names.iter().any(|other| other == name);
                // The first is made first and removed first.
                assert!(has(b"second") || !has(b"first"), "half of a transaction is seen: {names:?}");
            }
        };
        (0..2).for_each(|_| drop(scope.spawn(look)));
        for round in 0..60 {
            let both = |together: &Together<'_>| {
                for name in [&b"first"[..], b"second"] {
                    let made = together.create(&Caller::default(), root, name, 0o644)?;
                    together.forget(made.id, 1);
                    std::thread::sleep(Duration::from_millis(1));
                }
                if round % 2 == 0 { Err(on_purpose()) } else { Ok(()) }
            };
            assert_eq!(filesystem.transaction(both).is_ok(), round % 2 == 1);
            if round % 2 == 1 {
                filesystem.unlink(root, b"first").unwrap();
                filesystem.unlink(root, b"second").unwrap();
            }
        }
        done.store(true, Ordering::Relaxed);
    });
}
