//! `check --repair` beside `btrfs check --repair`, `btrfs restore`, the kernel's rescue mounts and our restore: the
//! number of files that each has from the same damaged images.

use crate::damage::{CLASSES, Ground, LONGEST_S, explain, only_class};
use crate::made_by_kernel;
use crate::opened::{plain, scanned};
use crate::saved::{Contents, below, by_btrfs_restore, by_kernel, by_us};
use butterfs_device::BlockDevice;
use butterfs_testkit::kernel::{KernelMount, run, run_ok};
use butterfs_testkit::progress::Progress;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::watchdog::Watchdog;
use butterfs_testkit::{requirement, serve};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The ways, as the table names them.
const WAYS: [&str; 5] = ["restore", "repair", "btrfs restore", "kernel", "btrfs repair"];

/// Longest time for one repair. All but a few take less than a second, and some of `btrfs` have no end.
const LONGEST_REPAIR_S: u32 = 30;

/// Repairs a copy with `program check --repair` and reads the kernel's mount of it: entered by the primary superblock,
/// else by the second one.
fn by_repair(program: &Path, options: &[&str], image: &Path, scratch: &Scratch) -> Contents {
    let copy = scratch.join("repaired.img");
    let (from, to) = (image.to_str().unwrap(), copy.to_str().unwrap());
    for more in [&[][..], &["-s", "1"]] {
        run_ok(60, "cp", &["--sparse=always", from, to]);
        run(LONGEST_REPAIR_S, program, &[&["check", "--repair", "--force"], options, more, &[to]].concat());
        let Ok(mount) = KernelMount::try_new(&copy, "ro") else { continue };
        let found = below(mount.path());
        mount.finish();
        if !found.is_empty() {
            return found;
        }
    }
    Contents::new()
}

fn by_our_repair(image: &Path, scratch: &Scratch) -> Contents {
    let undo = scratch.join("undo");
    let _ = fs::remove_file(&undo);
    let options = ["--drop-log", "--undo-file", undo.to_str().unwrap()];
    by_repair(&serve::binary(), &options, image, scratch)
}

fn table(images: u64, first: u64) {
    const TEST: &str = "table_of_repairs";
    if !requirement::kernel_btrfs(TEST) || !serve::binary().is_file() {
        return;
    }
    let scratch = Scratch::new(TEST);
    let (image, earlier) = made_by_kernel(&scratch);
    let mount = KernelMount::new(&image, "ro");
    let all = below(mount.path());
    mount.finish();
    let ground = Ground::of(&image, &earlier);
    let sound = plain(&[Arc::new(ground.base.snapshot()) as Arc<dyn BlockDevice>]).unwrap();
    let truth = by_us(&sound).0;
    let only = only_class();
    let damaged = ground.file(&scratch);
    // Images differ from run to run, so a finding can be looked at only where its image stays.
    let keep = std::env::var_os("BUTTERFS_RESCUE_KEEP").map(PathBuf::from);
    let mut progress = Progress::new(TEST, images);
    let mut sums: BTreeMap<usize, (u64, [u64; 5])> = BTreeMap::new();
    for number in first..first + images {
        let _watchdog = Watchdog::new(&format!("{TEST}, seed {number}"), LONGEST_S);
        let class = only.unwrap_or((number % CLASSES.len() as u64) as usize);
        let damage = ground.damage(class, &mut Rng::new(number));
        let copy = Arc::new(ground.strike(&damage, &damaged));
        let wreck = scanned(&[copy as Arc<dyn BlockDevice>], &scratch);
        let found = [
            wreck.map(|wreck| by_us(&wreck).0.contents).unwrap_or_default(),
            by_our_repair(&damaged, &scratch),
            by_btrfs_restore(&damaged, &scratch),
            by_kernel(&damaged),
            by_repair(Path::new("btrfs"), &[], &damaged, &scratch),
        ];
        let kept = found.each_ref().map(|found| found.intersection(&all).count() as u64);
        let sum = sums.entry(class).or_default();
        sum.0 += all.len() as u64;
        kept.iter().zip(&mut sum.1).for_each(|(one, sum)| *sum += one);
        if kept[1] < kept[4] || kept[0] < kept[2..].iter().copied().max().unwrap_or(0) {
            progress.finding(&format!("seed {number}, {}: {WAYS:?} {kept:?}", CLASSES[class]));
            let union = |ways: &[Contents]| ways.iter().flatten().copied().collect::<Contents>();
            let (ours, others) = if kept[1] < kept[4] { (&found[1], &found[4..]) } else { (&found[0], &found[2..]) };
            explain(&ground, &damage, &truth, ours, &union(others));
            if let Some(folder) = &keep {
                let to = folder.join(format!("seed{number}.img"));
                run_ok(60, "cp", &["--sparse=always", damaged.to_str().unwrap(), to.to_str().unwrap()]);
            }
        }
        ground.mend(&damage, &damaged);
        progress.step();
        if (number + 1 - first).is_multiple_of(130) {
            show(&sums, number + 1 - first);
        }
    }
    show(&sums, images);
    for (class, (_, kept)) in sums {
        assert!(kept[0] >= kept[2].max(kept[3]).max(kept[4]), "{}: {WAYS:?} {kept:?}", CLASSES[class]);
        assert!(kept[1] >= kept[4], "{}: {WAYS:?} {kept:?}", CLASSES[class]);
    }
}

fn show(sums: &BTreeMap<usize, (u64, [u64; 5])>, images: u64) {
    println!("{:<30} {} {:>13}", format!("{images} images"), WAYS.map(|way| format!("{way:>13}")).join(" "), "of");
    for (class, (of, kept)) in sums {
        println!("{:<30} {} {of:>13}", CLASSES[*class], kept.map(|number| format!("{number:>13}")).join(" "));
    }
}

#[test]
#[ignore = "long: cargo xtask soak rescue-repairs"]
fn repairs_keep_at_least_as_many_files() {
    let number = |name, default| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    table(number("BUTTERFS_RESCUES", 2000), number("BUTTERFS_RESCUE_SEED", 2_000_000 / 13 * 13));
}
