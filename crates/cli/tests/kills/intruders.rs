//! Somebody else writes to an image that is served, and the server is killed around the moment in which it notices.
//!
//! 1. Once the intruder has finished, the server changes no byte of the image any more.
//! 2. The filesystem that the intruder left is clean and holds nothing of ours.
//! 3. Data that was synced before is still on the image, except where the intruder has written.
//!
//! A write that is under way while the intruder begins may end behind it: nothing prevents that. `mkfs.btrfs` first
//! removes the superblock, so that nothing of ours is under way when it writes its trees.

use super::common::butterfs_ok;
use super::mounted::{Bed, shell, text};
use super::{BINARY, factor};
use butterfs_testkit::kernel::{KernelMount, check_all};
use butterfs_testkit::requirement;
use butterfs_testkit::rng::Rng;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const BLOCK: usize = 4096;
const OLD_BLOCKS: usize = 4000;
const LEN: usize = 144 << 20;
const LEN_TEXT: &str = "144M";
const CUT: usize = 100 << 20;
/// Milliseconds from the beginning of the intrusion, or of the sync behind it, to the kill.
const DELAYS: [u64; 2] = [3, 25];

#[derive(Clone, Copy, PartialEq, Debug)]
enum Intruder {
    Mkfs,
    Truncate,
    Kernel,
}

impl Intruder {
    /// Leaves a copy of the image as it is then.
    fn script(self) -> String {
        let work = match self {
            Intruder::Mkfs => r#"mkfs.btrfs -q -f -L foreign "$image""#,
            Intruder::Truncate => r#"truncate -s 100M "$image""#,
            Intruder::Kernel => {
                r#"node=$(losetup --find --show "$image"); mount "$node" "$other"
                   head -c 3000000 /dev/zero > "$other/kernel"
                   umount "$other"; losetup -d "$node""#
            }
        };
        format!("{work}\ncp \"$image\" \"$after\"\n")
    }
}

/// When the server is killed.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Moment {
    /// While files are written and the intruder is at work.
    Busy,
    /// While a sync meets what the intruder has left.
    Quiet,
}

fn old_content() -> Vec<u8> {
    let mut content = vec![0; OLD_BLOCKS * BLOCK];
    Rng::new(6).fill(&mut content);
    content
}

/// The addresses of the old file's blocks on the image.
fn places(image: &[u8], old: &[u8]) -> Vec<(usize, usize)> {
    let blocks: BTreeMap<&[u8], usize> = old.chunks(BLOCK).enumerate().map(|(number, block)| (block, number)).collect();
    let found = image.chunks(BLOCK).enumerate().filter_map(|(at, block)| Some((at * BLOCK, *blocks.get(block)?)));
    found.collect()
}

/// Whether the intruder writes to each block, by what it does to an image that has no zeros.
fn touched(bed: &Bed, intruder: Intruder) -> Vec<bool> {
    if intruder != Intruder::Mkfs {
        return (0..LEN / BLOCK).map(|block| intruder == Intruder::Truncate && block * BLOCK >= CUT).collect();
    }
    let full = bed.scratch.join("full");
    fs::write(&full, vec![0xff; LEN]).unwrap();
    shell(&intruder.script(), &[("image", &full), ("after", &bed.scratch.join("after"))]);
    fs::read(&full).unwrap().chunks(BLOCK).map(|block| block.iter().any(|byte| *byte != 0xff)).collect()
}

/// Writes files until the server is dead or refuses.
fn work(folder: &Path, worker: u64) {
    let step = |number: u64| -> std::io::Result<()> {
        let mut file = File::create(folder.join(format!("ours-{worker}-{}", number % 40)))?;
        file.write_all(&b"of ours "[..].repeat(2000 + 500 * (number as usize % 9)))?;
        if number % 4 == worker { file.sync_all() } else { Ok(()) }
    };
    let _ = (0..).try_for_each(step);
}

/// The intruder comes and the server is killed.
fn intrude(bed: &Bed, intruder: Intruder, moment: Moment, delay: Duration) {
    let (other, after) = (bed.scratch.folder("other"), bed.scratch.join("after"));
    let variables = [("image", bed.image.as_path()), ("other", &other), ("after", &after)];
    let come = || shell(&intruder.script(), &variables);
    if moment == Moment::Quiet {
        work_unsynced(bed);
        come();
        let mut sync = Command::new(BINARY);
        sync.args(["filesystem", "sync", text(&bed.at)]).stdout(Stdio::null()).stderr(Stdio::null());
        let mut sync = sync.spawn().unwrap();
        std::thread::sleep(delay);
        bed.kill();
        sync.wait().unwrap();
        return;
    }
    std::thread::scope(|scope| {
        for worker in 0..2 {
            scope.spawn(move || work(&bed.at, worker));
        }
        std::thread::sleep(Duration::from_millis(60));
        scope.spawn(come);
        std::thread::sleep(delay);
        bed.kill();
    });
}

fn work_unsynced(bed: &Bed) {
    for number in 0..20 {
        fs::write(bed.path(&format!("ours-{number}")), b"of ours ".repeat(3000)).unwrap();
    }
}

fn round(bed: &Bed, (intruder, touched): (Intruder, &[bool]), moment: Moment, delay: u64) {
    let what = format!("{intruder:?}, {moment:?}, killed after {delay} ms");
    let _ = fs::remove_file(&bed.image);
    butterfs_ok(&["mkfs", "-q", "-b", LEN_TEXT, text(&bed.image)]);
    let old = old_content();
    bed.mount_ok("commit=300");
    fs::write(bed.path("old"), &old).unwrap();
    butterfs_ok(&["filesystem", "sync", text(&bed.at)]);
    let before = places(&fs::read(&bed.image).unwrap(), &old);
    assert_eq!(before.len(), OLD_BLOCKS, "{what}");
    intrude(bed, intruder, moment, Duration::from_millis(delay));
    let (now, after) = (fs::read(&bed.image).unwrap(), fs::read(bed.scratch.join("after")).unwrap());
    assert_eq!(now.len(), after.len(), "{what}");
    let changed: Vec<usize> =
        (0..now.len()).step_by(BLOCK).filter(|at| now[*at..][..BLOCK] != after[*at..][..BLOCK]).collect();
    assert!(changed.is_empty(), "{what}: written behind the intruder at {changed:?}");
    let mut left = 0;
    for (at, number) in before.into_iter().filter(|(at, _)| !touched[at / BLOCK]) {
        assert!(now[at..][..BLOCK] == old[number * BLOCK..][..BLOCK], "{what}: old data at {at}");
        left += 1;
    }
    assert!(left > OLD_BLOCKS / 2, "{what}: {left} blocks of old data were compared");
    match intruder {
        Intruder::Truncate => must_stay_cut(&now, moment, &what),
        _ => must_be_the_intruders(bed, intruder, &old, &what),
    }
}

/// The image is as short as the intruder has left it. Writes that were under way at that moment may lie behind the cut.
fn must_stay_cut(image: &[u8], moment: Moment, what: &str) {
    const UNDER_WAY: usize = 1 << 20;
    let written =
        image[CUT.min(image.len())..].chunks(BLOCK).filter(|block| block.iter().any(|byte| *byte != 0)).count();
    assert!(image.len() >= CUT && written * BLOCK <= UNDER_WAY, "{what}: {written} blocks behind the cut");
    assert!(moment == Moment::Busy || image.len() == CUT, "{what}: {} bytes", image.len());
}

/// The intruder's content is whole, and holds nothing of ours.
fn must_be_the_intruders(bed: &Bed, intruder: Intruder, old: &[u8], what: &str) {
    check_all(&bed.image);
    let mount = KernelMount::new(&bed.image, "ro");
    let names = fs::read_dir(mount.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    if intruder == Intruder::Mkfs {
        assert_eq!(names, [""; 0], "{what}");
    } else {
        assert_eq!(names, ["kernel", "old"], "{what}");
        assert!(fs::read(mount.path().join("old")).unwrap() == old, "{what}");
        assert!(fs::read(mount.path().join("kernel")).unwrap() == vec![0; 3_000_000], "{what}");
    }
    assert_eq!(mount.finish(), [""; 0], "{what}");
}

fn rounds(test: &str, moment: Moment, intruders: &[Intruder]) {
    let Some(bed) = Bed::for_root(test).map(|bed| bed.slow(test)) else { return };
    if !requirement::kernel_btrfs(test) {
        return;
    }
    for &intruder in intruders {
        let touched = touched(&bed, intruder);
        for number in 0..factor() {
            let delays = DELAYS.map(|delay| delay * (number + 2) / (number % 7 + 2));
            delays.into_iter().for_each(|delay| round(&bed, (intruder, &touched), moment, delay));
        }
    }
}

#[test]
fn killed_while_an_intruder_comes_among_writers() {
    rounds("kills_intruder_busy", Moment::Busy, &[Intruder::Mkfs, Intruder::Truncate]);
}

#[test]
fn killed_while_a_sync_meets_what_an_intruder_left() {
    rounds("kills_intruder_quiet", Moment::Quiet, &[Intruder::Mkfs, Intruder::Truncate, Intruder::Kernel]);
}
