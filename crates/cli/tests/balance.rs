//! `butterfs balance` on mounts and images: stopped, interrupted and killed balances, full filesystems, other profiles.
//! Afterwards the kernel shows the same content, and all checkers find the image clean.

mod common;
#[allow(dead_code)] // other programs use the rest
mod mounted;

use butterfs_testkit::kernel::{KernelMount, check_all, check_several, mkfs, run, run_ok};
use butterfs_testkit::requirement;
use butterfs_testkit::rng::Rng;
use common::{Ran, butterfs, butterfs_ok};
use mounted::{Bed, eventually, shell, text};
use std::fs;
use std::path::{Path, PathBuf};

/// A bed with a filesystem that the kernel has made.
fn bed(test: &str) -> Option<Bed> {
    let bed = Bed::for_root(test)?;
    requirement::kernel_btrfs(test).then_some(bed)
}

fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut content = vec![0; len];
    Rng::new(seed).fill(&mut content);
    content
}

/// Fills a folder with files of several sizes, and with a snapshot.
fn fill(folder: &Path) {
    run_ok(20, "btrfs", &["-q", "subvolume", "create", text(&folder.join("s"))]);
    for number in 0..24 {
        fs::write(folder.join(format!("s/large{number}")), content(number, 4 << 20)).unwrap();
    }
    for number in 0..600 {
        fs::write(folder.join(format!("s/small{number}")), content(number, 700 + 9 * number as usize)).unwrap();
    }
    run_ok(20, "btrfs", &["-q", "subvolume", "snapshot", "-r", text(&folder.join("s")), text(&folder.join("r"))]);
    fs::write(folder.join("s/small0"), b"changed").unwrap();
}

/// The bed's image, made and filled by the kernel.
fn kernel_made(bed: &Bed) {
    fs::File::create(&bed.image).unwrap().set_len(768 << 20).unwrap();
    mkfs(&bed.image, &["-n", "4096"]);
    let mount = KernelMount::new(&bed.image, "noatime");
    fill(mount.path());
    assert_eq!(mount.finish(), [""; 0]);
}

/// A digest of everything below a folder.
fn digest(folder: &Path) -> String {
    let script = "cd \"$folder\" && find . -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum";
    shell(script, &[("folder", folder)])
}

fn status(bed: &Bed) -> Ran {
    butterfs(&["balance", "status", text(&bed.at)])
}

/// Starts a balance that has much to do, and returns when it runs.
fn start(bed: &Bed) {
    for _ in 0..20 {
        butterfs_ok(&["balance", "start", "--full-balance", "--background", text(&bed.at)]);
        for _ in 0..400 {
            if status(bed).stdout.contains("is running") {
                return;
            }
        }
    }
    panic!("no balance was ever seen running");
}

/// The result of `refused` while a balance ran. Where it succeeded, the balance was over before.
fn while_running(bed: &Bed, refused: impl Fn() -> Ran) -> Ran {
    let mut tries = (0..20).map(|_| {
        start(bed);
        refused()
    });
    tries.find(|ran| ran.code != Some(0)).expect("it is refused while a balance runs")
}

/// Starts a balance and stops it in the middle: `pause` or `cancel`.
fn start_and(verb: &str, bed: &Bed) {
    for _ in 0..20 {
        start(bed);
        // Otherwise it was over before.
        if butterfs(&["balance", verb, text(&bed.at)]).code == Some(0) {
            return;
        }
    }
    panic!("no balance was ever stopped in the middle");
}

/// Leaves a paused balance, and unmounts.
fn leave_paused(bed: &Bed) {
    start_and("pause", bed);
    // The process in the background ends soon after.
    eventually(|| butterfs(&["umount", text(&bed.at)]).code == Some(0));
}

fn is_over(bed: &Bed) -> bool {
    status(bed).stdout.starts_with("No balance found")
}

/// Images are clean, and the kernel shows the content.
fn judged(bed: &Bed, before: &str) {
    bed.judge(|at| assert_eq!(digest(at), before));
}

#[test]
fn a_balance_is_paused_resumed_and_cancelled() {
    let Some(bed) = bed("balance_states") else { return };
    kernel_made(&bed);
    bed.mount_ok("noatime");
    let at = text(&bed.at);
    let before = digest(&bed.at);
    assert!(is_over(&bed));
    for (verb, said) in [("pause", "Not running"), ("cancel", "Not in progress"), ("resume", "Not in progress")] {
        let ran = butterfs(&["balance", verb, at]);
        assert!(ran.code == Some(2) && ran.stderr.contains(said), "{ran:?}");
    }
    let second = while_running(&bed, || butterfs(&["balance", "start", "-dusage=0", at]));
    assert!(second.code == Some(1) && second.stderr.contains("balance' in progress"), "{second:?}");
    start_and("pause", &bed);
    let ran = status(&bed);
    assert!(ran.code == Some(1) && ran.stdout.contains("is paused"), "{ran:?}");
    let second = butterfs(&["balance", "start", "-dusage=0", at]);
    assert!(second.code == Some(1) && second.stderr.contains("balance paused' in progress"), "{second:?}");
    fs::write(bed.path("beside"), b"paused").unwrap();
    fs::remove_file(bed.path("beside")).unwrap();
    assert!(butterfs_ok(&["balance", "resume", at]).starts_with("Done, had to relocate"));
    assert!(is_over(&bed));
    start_and("cancel", &bed);
    assert!(is_over(&bed));
    assert!(
        butterfs_ok(&["balance", "start", "-dusage=100,limit=1", at]).starts_with("Done, had to relocate 1 out of")
    );
    assert_eq!(digest(&bed.at), before);
    bed.umount_ok();
    judged(&bed, &before);
}

#[test]
fn the_next_mount_goes_on() {
    let Some(bed) = bed("balance_next_mount") else { return };
    kernel_made(&bed);
    bed.mount_ok("noatime");
    let before = digest(&bed.at);
    // As with the kernel.
    let refused = while_running(&bed, || match butterfs(&["umount", text(&bed.at)]) {
        ran if ran.code == Some(0) => {
            bed.mount_ok("noatime");
            ran
        }
        ran => ran,
    });
    assert!(refused.code == Some(1) && refused.stderr.contains("is in use"), "{refused:?}");
    leave_paused(&bed);
    check_all(&bed.image);
    // Here it runs while it is unmounted.
    bed.mount_ok("noatime");
    bed.umount_ok();
    check_all(&bed.image);
    // It is shown and can be ended, and nothing happens before.
    bed.mount_ok("skip_balance");
    if is_over(&bed) {
        // It was faster than the unmount.
        leave_paused(&bed);
        bed.mount_ok("skip_balance");
    }
    assert!(status(&bed).stdout.contains("is paused"));
    bed.umount_ok();
    bed.mount_ok("ro");
    assert_eq!(digest(&bed.at), before);
    bed.umount_ok();
    bed.mount_ok("noatime");
    eventually(|| is_over(&bed));
    leave_paused(&bed);
    // The kernel goes on with ours, and we with the kernel's.
    let mount = KernelMount::new(&bed.image, "noatime");
    eventually(|| run(20, "btrfs", &["balance", "status", text(mount.path())]).output.contains("No balance found"));
    let path = text(mount.path());
    let mut paused = false;
    for _ in 0..20 {
        let _ = run(20, "btrfs", &["balance", "start", "--full-balance", "--background", path]);
        paused = run(60, "btrfs", &["balance", "pause", path]).code == Some(0);
        if paused {
            break;
        }
    }
    assert!(paused, "the kernel's balances were too short to be paused");
    assert_eq!(mount.finish(), [""; 0]);
    bed.mount_ok("noatime");
    eventually(|| is_over(&bed));
    assert_eq!(digest(&bed.at), before);
    bed.umount_ok();
    judged(&bed, &before);
}

#[test]
fn a_killed_balance_is_resumed() {
    let Some(bed) = bed("balance_killed") else { return };
    kernel_made(&bed);
    bed.mount_ok("noatime");
    let before = digest(&bed.at);
    for delay_ms in [0, 40] {
        start(&bed);
        std::thread::sleep(std::time::Duration::from_millis(delay_ms));
        bed.kill();
        bed.mount_after_kill("skip_balance,noatime");
        assert_eq!(digest(&bed.at), before, "killed after {delay_ms} ms");
        butterfs(&["balance", "cancel", text(&bed.at)]);
        bed.umount_ok();
        check_all(&bed.image);
        bed.mount_ok("noatime");
    }
    start(&bed);
    bed.kill();
    // The kernel resumes it.
    let mount = KernelMount::new(&bed.image, "noatime");
    eventually(|| run(20, "btrfs", &["balance", "status", text(mount.path())]).output.contains("No balance found"));
    assert_eq!(mount.finish(), [""; 0]);
    judged(&bed, &before);
}

/// A filesystem without unallocated space, whose data chunks are two thirds empty: the files that stay.
fn fragmented(bed: &Bed) {
    fs::File::create(&bed.image).unwrap().set_len(256 << 20).unwrap();
    mkfs(&bed.image, &["-m", "single"]);
    let mount = KernelMount::new(&bed.image, "noatime");
    let file = |number: u64| mount.path().join(format!("f{number}"));
    let mut files = 0;
    while fs::write(file(files), content(files, 1 << 20)).is_ok() && sync(mount.path()) {
        files += 1;
    }
    fs::remove_file(file(files)).unwrap();
    (0..files).filter(|number| number % 3 != 0).for_each(|number| fs::remove_file(file(number)).unwrap());
    assert_eq!(mount.finish(), [""; 0]);
}

fn sync(folder: &Path) -> bool {
    run(60, "sync", &["-f", text(folder)]).code == Some(0)
}

/// Bytes that no chunk has.
fn unallocated(image: &Path) -> u64 {
    let mount = KernelMount::new(image, "ro");
    let usage = run_ok(20, "btrfs", &["filesystem", "usage", "-b", text(mount.path())]);
    let line = usage.lines().find(|line| line.contains("Device unallocated:")).unwrap();
    line.split_whitespace().last().unwrap().parse().unwrap()
}

#[test]
fn a_full_filesystem_gets_its_space_back() {
    let Some(bed) = bed("balance_full") else { return };
    fragmented(&bed);
    let (copy, before) = (bed.scratch.join("copy"), unallocated(&bed.image));
    assert!(before < 32 << 20, "{before} bytes are unallocated");
    let print = {
        let mount = KernelMount::new(&bed.image, "ro");
        digest(mount.path())
    };
    run_ok(60, "cp", &["--sparse=always", text(&bed.image), text(&copy)]);
    // While it is mounted.
    bed.mount_ok("noatime");
    butterfs_ok(&["balance", "start", "-dusage=80", text(&bed.at)]);
    bed.umount_ok();
    let freed = unallocated(&bed.image);
    assert!(freed > 64 << 20, "{freed} bytes are unallocated");
    judged(&bed, &print);
    // While it is not.
    fs::rename(&copy, &bed.image).unwrap();
    butterfs_ok(&["balance", "start", "-dusage=80", "--image", text(&bed.image)]);
    let freed = unallocated(&bed.image);
    assert!(freed > 64 << 20, "{freed} bytes are unallocated");
    judged(&bed, &print);
}

#[test]
fn profiles_are_converted_on_a_mount() {
    let Some(bed) = bed("balance_convert") else { return };
    kernel_made(&bed);
    bed.mount_ok("noatime");
    let (at, before) = (text(&bed.at), digest(&bed.at));
    for filters in [["-dconvert=dup", "-mconvert=single"], ["-dconvert=single,soft", "-mconvert=dup,soft"]] {
        let ran = butterfs(&[&["balance", "start", "-f"], &filters[..], &[at]].concat());
        assert!(ran.code == Some(0) && ran.stdout.starts_with("Done, had to relocate"), "{filters:?}: {ran:?}");
        assert_eq!(digest(&bed.at), before);
    }
    bed.umount_ok();
    judged(&bed, &before);
}

#[test]
fn profiles_are_converted_on_several_devices() {
    let Some(bed) = bed("balance_devices") else { return };
    let images: Vec<PathBuf> = (1..=4).map(|id| bed.image.with_file_name(format!("disk{id}.img"))).collect();
    let paths: Vec<&str> = images.iter().map(|image| text(image)).collect();
    butterfs_ok(&[&["mkfs", "-q", "-b", "400M", "-d", "single", "-m", "raid1"], &paths[..]].concat());
    let mount = KernelMount::several(&images, "noatime");
    fill(mount.path());
    let before = digest(mount.path());
    assert_eq!(mount.finish(), [""; 0]);
    let profiles = [("raid5", "raid1c3"), ("raid0", "raid6"), ("raid10", "raid1c4"), ("raid1", "raid10")];
    for (data, trees) in profiles {
        butterfs_ok(&[&["mount"], &paths[..], &[text(&bed.at)]].concat());
        let filters = [format!("-dconvert={data}"), format!("-mconvert={trees}")];
        let ran = butterfs(&["balance", "start", "-f", &filters[0], &filters[1], text(&bed.at)]);
        assert!(ran.code == Some(0) && ran.stdout.starts_with("Done, had to relocate"), "{filters:?}: {ran:?}");
        butterfs_ok(&["umount", text(&bed.at)]);
        check_several(&images);
        let mount = KernelMount::several(&images, "ro,noatime");
        assert_eq!(digest(mount.path()), before, "{filters:?}");
        let usage = run_ok(20, "btrfs", &["filesystem", "df", text(mount.path())]).to_lowercase();
        for wanted in [format!("data, {data}:"), format!("metadata, {trees}:"), format!("system, {trees}:")] {
            assert!(usage.contains(&wanted) && usage.matches("total").count() == 4, "{wanted} {usage}");
        }
        // It reads parity too.
        let scrubbed = run_ok(60, "btrfs", &["scrub", "start", "-B", "-r", text(mount.path())]);
        assert!(scrubbed.contains("no errors found"), "{filters:?}: {scrubbed}");
        assert_eq!(mount.finish(), [""; 0]);
        let features = run_ok(20, "btrfs", &["inspect-internal", "dump-super", paths[0]]);
        let is = |feature: &str, profiles: &[&str]| {
            let wanted = profiles.iter().any(|profile| [data, trees].contains(profile));
            assert_eq!(features.contains(feature), wanted, "{feature} after {filters:?}");
        };
        is("RAID56", &["raid5", "raid6"]);
        is("RAID1C34", &["raid1c3", "raid1c4"]);
    }
}
