//! Images with an interrupted balance of the kernel: finished here, and nothing changes its content.

use super::{scene::*, variant};
use butterfs_fs::{Filesystem, Options};
use butterfs_testkit::fingerprint::Fingerprint;
use butterfs_testkit::kernel::{KernelMount, check_all, mkfs, run, run_ok};
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Copies of the image at moments of a balance of the kernel, beside which somebody writes: what a power cut would
/// leave. The image lies on another filesystem that copies a file at one moment.
fn interrupted(image: &Path, host: &KernelMount, moments: usize, is_soak: bool) -> Vec<PathBuf> {
    let work = host.path().join("work.img");
    run_ok(60, "cp", &["--sparse=always", image.to_str().unwrap(), work.to_str().unwrap()]);
    let mount = KernelMount::new(&work, "noatime");
    let at = mount.path().to_str().unwrap().to_owned();
    // Some trees change while they are being moved, others do not.
    let writer =
        format!("cd {at}/s/busy && for i in $(seq 100000); do echo $i > f$((i % 50)); test -e stop && break; done");
    let writer = std::thread::spawn(move || run(300, "sh", &["-c", &writer]));
    let balance = {
        let at = at.clone();
        std::thread::spawn(move || run(300, "btrfs", &["balance", "start", "--full-balance", &at]))
    };
    let mut copies = Vec::new();
    let (pause, most) = if is_soak { (15, usize::MAX) } else { (60, 12) };
    while !balance.is_finished() && copies.len() < most {
        std::thread::sleep(Duration::from_millis(pause));
        let copy = host.path().join(format!("left{}.img", copies.len()));
        run_ok(60, "cp", &["--reflink=always", work.to_str().unwrap(), copy.to_str().unwrap()]);
        copies.push(copy);
    }
    if !is_soak {
        // It has been interrupted often enough.
        run(60, "btrfs", &["balance", "cancel", &at]);
    }
    balance.join().unwrap();
    std::fs::write(format!("{at}/s/busy/stop"), b"").unwrap();
    writer.join().unwrap();
    mount.finish();
    // Those with something to finish first, so that few are enough.
    copies.sort_by_key(|copy| std::cmp::Reverse(left_behind(copy)[1..].iter().filter(|is_there| **is_there).count()));
    copies.drain(moments.min(copies.len())..).for_each(|copy| std::fs::remove_file(copy).unwrap());
    copies
}

/// Whether an image has a balance, reloc trees, and copies of data of the kernel.
fn left_behind(image: &Path) -> [bool; 3] {
    let image = image.to_str().unwrap();
    let root = run(60, "btrfs", &["inspect-internal", "dump-tree", "-t", "root", image]).output;
    let copies = run(60, "btrfs", &["inspect-internal", "dump-tree", "-t", "data_reloc", image]).output;
    [root.contains("BALANCE"), root.contains("(TREE_RELOC ROOT_ITEM"), copies.contains("ORPHAN")]
}

/// Without what was being written.
fn quiet(mut print: Fingerprint) -> Fingerprint {
    print.entries.retain(|path, _| !path.windows(4).any(|part| part == b"busy"));
    print
}

/// Waits until the balance has ended, which goes on in the background.
fn finish(fs: &Filesystem) {
    while fs.balance_status().is_some() {
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn what_the_kernel_left_is_finished() {
    const TEST: &str = "what_the_kernel_left_is_finished";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let is_soak = std::env::var("BUTTERFS_SOAK").is_ok();
    let (moments, variants): (_, &[&str]) =
        if is_soak { (50, &["xxhash-4k", "default", "crc32c-4k-full"]) } else { (2, &["xxhash-4k"]) };
    let scratch = Scratch::new("balance-left");
    let host_image = scratch.sparse_file("host", 6 << 30);
    mkfs(&host_image, &[]);
    let host = KernelMount::new(&host_image, "noatime");
    let mut found = [0; 3];
    for name in variants {
        let image = filled(variant(name), &scratch);
        let mount = KernelMount::new(&image, "noatime");
        std::fs::create_dir(mount.path().join("s/busy")).unwrap();
        mount.finish();
        let before = quiet(prints(&image));
        for (number, left) in interrupted(&image, &host, moments, is_soak).into_iter().enumerate() {
            let state = left_behind(&left);
            found = [0, 1, 2].map(|kind| found[kind] + usize::from(state[kind]));
            // A balance that waits, so that nothing else moves what was left.
            let waiting = number % 2 == 0;
            let fs = open_with(&left, Options { skip_balance: waiting, ..Options::default() });
            if waiting && fs.balance_status().is_some() {
                fs.balance_cancel().unwrap();
            }
            finish(&fs);
            fs.shutdown().unwrap();
            drop(fs);
            let what = format!("{name}, moment {number}: {state:?}");
            assert_eq!(left_behind(&left), [false; 3], "{what}");
            check_all(&left);
            same(&before, &quiet(prints(&left)), &what);
            std::fs::remove_file(&left).unwrap();
        }
        std::fs::remove_file(&image).unwrap();
        std::fs::remove_file(host.path().join("work.img")).unwrap();
    }
    eprintln!("{} with a balance, {} with reloc trees, {} with copies of data", found[0], found[1], found[2]);
    assert!(found[1] > 0 && found[2] > 0, "nothing was left behind: {found:?}");
    host.finish();
}
