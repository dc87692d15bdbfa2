//! Balance beside the kernel's: what is shown before and after is the same, snapshots stay shared, and all
//! checkers find the image clean.

mod left;
mod panics;
mod scene;

use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::mkfs::mkfs;
use butterfs_fs::{BalanceEnd, BalanceProgress, Env, Filesystem, Options};
use butterfs_ondisk::Logical;
use butterfs_ondisk::balance::{SINGLE, args_flags, balance_flags};
use butterfs_ondisk::items::{BalanceArgs, BalanceItem, block_group_flags as bits};
use butterfs_testkit::images::{VARIANTS, Variant};
use butterfs_testkit::kernel::check_all;
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use scene::*;
use std::sync::Arc;

/// All chunks, without filters.
fn everything() -> BalanceItem {
    BalanceItem { flags: balance_flags::TYPES.into(), ..BalanceItem::default() }
}

/// All chunks, with a filter that takes all of them, and that asks for their content to move.
fn all_content() -> BalanceItem {
    let flags = args_flags::VRANGE.into();
    let args = BalanceArgs { flags, vend: u64::MAX.into(), ..BalanceArgs::default() };
    BalanceItem { data: args, metadata: args, system: args, ..everything() }
}

/// Converts all chunks to these profiles, even to fewer copies.
fn converting(data: u64, trees: u64) -> BalanceItem {
    let to = |target: u64| BalanceArgs {
        flags: args_flags::CONVERT.into(),
        target: target.into(),
        ..BalanceArgs::default()
    };
    let flags = (balance_flags::TYPES | balance_flags::FORCE).into();
    BalanceItem { flags, data: to(data), metadata: to(trees), system: to(trees), ..BalanceItem::default() }
}

fn variant(name: &str) -> &'static Variant {
    VARIANTS.iter().find(|variant| variant.name == name).unwrap()
}

#[test]
fn everything_moves_and_stays_what_it_was() {
    if !requirement::kernel_btrfs("everything_moves_and_stays_what_it_was") {
        return;
    }
    for name in ["default", "xxhash-4k", "crc32c-4k-full", "bgt-4k-sha256", "mixed", "cache-v1"] {
        let scratch = Scratch::new("balance-all");
        let image = filled(variant(name), &scratch);
        let (before, used) = (prints(&image), used_bytes(&image));
        let fs = open(&image);
        let chunks = fs.chunks().iter().count() as u64;
        let moved = BalanceProgress { expected: chunks, considered: chunks, completed: chunks };
        let end = fs.balance_start(all_content()).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(end, BalanceEnd::Completed { progress: moved, no_space: 0 }, "{name}");
        let end = fs.balance_start(everything()).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(matches!(end, BalanceEnd::Completed { no_space: 0, .. }), "{name}: {end:?}");
        fs.shutdown().unwrap();
        drop(fs);
        check_all(&image);
        same(&before, &prints(&image), name);
        // What was shared still is: nothing but a few blocks of the global trees was added.
        let grown = used_bytes(&image).saturating_sub(used);
        assert!(grown < 1 << 20, "{name}: {grown} bytes more are in use");
        kernel_balances(&image, &["--full-balance"]);
        check_all(&image);
        same(&before, &prints(&image), name);
    }
}

#[test]
fn profiles_are_converted() {
    if !requirement::kernel_btrfs("profiles_are_converted") {
        return;
    }
    let scratch = Scratch::new("balance-convert");
    let image = filled(variant("xxhash-4k"), &scratch);
    let before = prints(&image);
    for (data, trees, force) in [(bits::DUP, SINGLE, balance_flags::FORCE), (SINGLE, bits::DUP, 0)] {
        let fs = open(&image);
        let control = BalanceItem { flags: (balance_flags::TYPES | force).into(), ..converting(data, trees) };
        if force != 0 {
            let unforced = BalanceItem { flags: balance_flags::TYPES.into(), ..control };
            let refused = fs.balance_start(unforced).unwrap_err().to_string();
            assert!(refused.contains("reduces metadata redundancy"), "{refused}");
        }
        assert!(matches!(fs.balance_start(control).unwrap(), BalanceEnd::Completed { no_space: 0, .. }));
        for chunk in fs.chunks().iter() {
            let wanted = if chunk.kind & bits::DATA != 0 { data } else { trees };
            assert_eq!(chunk.kind & bits::PROFILE_MASK, wanted & bits::PROFILE_MASK, "chunk {}", chunk.start);
        }
        fs.shutdown().unwrap();
        drop(fs);
        check_all(&image);
        same(&before, &prints(&image), "converted");
    }
    // Of data alone: nodes move and leaves stay.
    kernel_balances(&image, &["-d"]);
    check_all(&image);
}

/// The kernel refuses a profile for which there are too few devices whatever types are balanced, at the start and at a
/// mount that would resume the balance.
#[test]
fn a_profile_that_needs_more_devices_is_refused_for_each_type() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(512 << 20));
    mkfs(&[Arc::clone(&device)], &Default::default(), &Env::system()).unwrap();
    let fs = Filesystem::open(vec![device], Options::default(), Env::system()).unwrap();
    for types in [balance_flags::DATA, balance_flags::SYSTEM, balance_flags::METADATA, balance_flags::TYPES] {
        let flags = (types | balance_flags::FORCE).into();
        let asked = converting(bits::RAID1C3, bits::RAID1C3);
        let none = BalanceItem { flags, ..BalanceItem::default() };
        for (name, control) in [
            ("data", BalanceItem { data: asked.data, ..none }),
            ("metadata", BalanceItem { metadata: asked.metadata, ..none }),
            ("system", BalanceItem { system: asked.system, ..none }),
        ] {
            let refused = fs.balance_start(control).unwrap_err().to_string();
            assert!(refused.contains(&format!("invalid convert {name} profile raid1c3")), "{types}: {refused}");
        }
    }
}

/// Address and place of each chunk of data.
fn data_chunks(fs: &Filesystem) -> Vec<(Logical, u64)> {
    let chunks = fs.chunks();
    let data = chunks.iter().filter(|chunk| chunk.kind & bits::DATA != 0);
    data.map(|chunk| (chunk.start, chunk.stripes[0].physical.0)).collect()
}

#[test]
fn a_chunk_is_emptied_where_there_is_one_less_then() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(1 << 30));
    mkfs(&[Arc::clone(&device)], &Default::default(), &Env::system()).unwrap();
    let fs = Filesystem::open(vec![device], Options::default(), Env::system()).unwrap();
    let caller = butterfs_fs::Caller { uid: 0, gid: 0, umask: 0o022, privileged: true };
    let write = |range: std::ops::Range<u32>| {
        for number in range {
            let name = number.to_string();
            let file = fs.create(&caller, fs.root(), name.as_bytes(), 0o644).unwrap().id;
            fs.write(file, 0, &vec![number as u8; 1 << 20], false).unwrap();
            fs.forget(file, 1);
        }
        fs.sync().unwrap();
    };
    let of_data = |control: BalanceItem| {
        let only = BalanceItem { flags: balance_flags::DATA.into(), ..control };
        assert!(matches!(fs.balance_start(only).unwrap(), BalanceEnd::Completed { no_space: 0, .. }));
    };
    write(0..5);
    let before = data_chunks(&fs);
    let [(start, place)] = before[..] else { panic!("one chunk has room for everything: {before:?}") };
    of_data(everything());
    let whole = data_chunks(&fs);
    assert!(matches!(whole[..], [(at, to)] if at == start && to != place), "{before:?}, {whole:?}");
    of_data(all_content());
    let emptied = data_chunks(&fs);
    assert!(matches!(emptied[..], [(at, _)] if at > start), "{whole:?}, {emptied:?}");
    // Chunks of which each is a third full.
    write(5..150);
    let before = data_chunks(&fs).len();
    for number in (0..150u32).filter(|number| number % 3 != 0) {
        fs.unlink(fs.root(), number.to_string().as_bytes()).unwrap();
    }
    fs.sync().unwrap();
    of_data(everything());
    assert!(data_chunks(&fs).len() < before, "{before}, {}", data_chunks(&fs).len());
    fs.shutdown().unwrap();
}

#[test]
fn work_goes_on_beside_it() {
    let device = std::sync::Arc::new(butterfs_device::MemoryDevice::new(768 << 20));
    let devices: Vec<std::sync::Arc<dyn butterfs_device::BlockDevice>> = vec![device.clone()];
    let made = butterfs_fs::mkfs::MkfsOptions { nodesize: Some(4096), ..Default::default() };
    butterfs_fs::mkfs::mkfs(&devices, &made, &butterfs_fs::Env::system()).unwrap();
    let fs = butterfs_fs::Filesystem::open(devices, Default::default(), butterfs_fs::Env::system()).unwrap();
    let workers: Vec<Worker> = (0..3).map(|number| Worker::new(&fs, number)).collect();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let running: Vec<_> = workers.into_iter().map(|worker| scope.spawn(|| worker.run(&stop))).collect();
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                fs.trim(&butterfs_fs::Trim::ALL, &|| false).unwrap();
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        });
        let doubled = converting(bits::DUP, SINGLE);
        for control in [everything(), all_content(), doubled, all_content(), converting(SINGLE, bits::DUP)] {
            let end = fs.balance_start(control).unwrap();
            assert!(matches!(end, BalanceEnd::Completed { .. }), "{end:?}");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        running.into_iter().map(|thread| thread.join().unwrap()).for_each(|worker| worker.verify());
    });
    fs.shutdown().unwrap();
    let report = butterfs_testkit::judge::judge_memory(&device);
    assert!(report.is_clean(), "{}", butterfs_testkit::judge::text(&report));
}

/// A balance, and some work after it, with this bug; whether the engine and the checker find nothing wrong.
fn clean_with(canary: Option<butterfs_fs::options::Canary>) -> bool {
    let device = std::sync::Arc::new(butterfs_device::MemoryDevice::new(512 << 20));
    let devices: Vec<std::sync::Arc<dyn butterfs_device::BlockDevice>> = vec![device.clone()];
    let made = butterfs_fs::mkfs::MkfsOptions { nodesize: Some(4096), ..Default::default() };
    butterfs_fs::mkfs::mkfs(&devices, &made, &butterfs_fs::Env::system()).unwrap();
    let mut options = butterfs_fs::Options::default();
    options.policies.canary = canary;
    let fs = butterfs_fs::Filesystem::open(devices, options, butterfs_fs::Env::system()).unwrap();
    let mut worker = Worker::new(&fs, 1);
    worker.write_all(40).unwrap();
    worker.snapshot("kept");
    fs.sync().unwrap();
    fs.balance_start(all_content()).unwrap();
    let written = worker.write_all(5);
    // The engine refuses to read data without checksums, and ends the filesystem where references contradict each
    // other.
    let ended = fs.shutdown();
    drop((worker, fs));
    written.is_ok() && ended.is_ok() && butterfs_testkit::judge::judge_memory(&device).is_clean()
}

#[test]
fn bugs_are_found() {
    use butterfs_fs::options::Canary;
    assert!(clean_with(None));
    assert!(!clean_with(Some(Canary::RelocationUnmarked)), "blocks that are shared and do not say so");
    assert!(!clean_with(Some(Canary::RelocationWithoutChecksums)), "data without checksums");
}
