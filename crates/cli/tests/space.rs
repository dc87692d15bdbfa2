//! Commands about space beside btrfs-progs: the same filesystems, shown from the kernel's mount, from devices that
//! nobody has mounted, and from a mount of ours.

mod common;

use butterfs_testkit::kernel::{LoopDevice, run, run_ok, unmount};
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use common::{butterfs, butterfs_ok};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const MIB: usize = 1 << 20;

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are UTF-8")
}

/// Loop devices, and a folder to mount on.
struct Lab {
    at: PathBuf,
    devices: Vec<LoopDevice>,
    _scratch: Scratch,
}

impl Lab {
    fn new(test: &str, sizes_mib: &[u64]) -> Option<Lab> {
        if !requirement::kernel_btrfs(test) || !requirement::fuse(test) {
            return None;
        }
        let scratch = Scratch::new(test);
        let image = |(number, size): (usize, &u64)| scratch.sparse_file(&format!("disk{number}.img"), size << 20);
        let images: Vec<PathBuf> = sizes_mib.iter().enumerate().map(image).collect();
        let devices = images.iter().map(|image| LoopDevice::attach(image, false)).collect();
        Some(Lab { at: scratch.folder("at"), devices, _scratch: scratch })
    }

    fn paths(&self, count: usize) -> Vec<&str> {
        self.devices[..count].iter().map(|device| text(device.path())).collect()
    }

    fn make(&self, options: &[&str], count: usize) {
        run_ok(60, "mkfs.btrfs", &[&["-q", "-f", "-K"], options, &self.paths(count)].concat());
    }

    fn mount(&self, options: &str) {
        run_ok(60, "mount", &["-t", "btrfs", "-o", options, self.paths(1)[0], text(&self.at)]);
    }

    /// The kernel lets go of the devices, also where another mount namespace has got a copy of the mount.
    fn unmount(&self) {
        unmount(&self.at);
        for device in &self.devices {
            let opens = || {
                let mut options = fs::OpenOptions::new();
                options.write(true).custom_flags(libc::O_EXCL).open(device.path()).is_ok()
            };
            let free = (0..600).any(|turn| {
                std::thread::sleep(std::time::Duration::from_millis(if turn == 0 { 0 } else { 100 }));
                opens()
            });
            assert!(free, "{} is in use", device.path().display());
        }
    }

    fn file(&self, name: &str, mib: usize) {
        let bytes: Vec<u8> = (0..mib * MIB).map(|at| (at * 31 % 251) as u8).collect();
        fs::write(self.at.join(name), bytes).expect("there is room");
    }

    fn sync(&self) {
        run_ok(60, "btrfs", &["filesystem", "sync", text(&self.at)]);
    }
}

/// The standard output of btrfs-progs.
fn btrfs(arguments: &[&str]) -> String {
    let output = std::process::Command::new("btrfs").args(arguments).output().expect("it is installed");
    assert!(output.status.success(), "btrfs {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("output is UTF-8")
}

/// The output of `filesystem show`. On this machine there may be mounts that do not answer, of which it warns.
fn shown(options: &[&str], which: &[&str]) -> String {
    let ran = butterfs(&[options, &["filesystem", "show"], which].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    ran.stdout
}

const SHOWN: &[&str] = &[
    "filesystem usage",
    "filesystem usage -T",
    "filesystem usage -b",
    "filesystem usage -T -k",
    "filesystem usage -H",
    "filesystem usage --mbytes",
    "filesystem df",
    "filesystem df -g --si",
    "device usage",
    "device usage -b",
    "device usage --si",
    "filesystem show",
    "filesystem show --raw",
];

/// The kernel's estimate of what data can still take is not compared here, but in the tests of `statfs`.
fn comparable(shown: &str) -> String {
    shown.lines().filter(|line| !line.contains("Free (statfs")).map(|line| format!("{line}\n")).collect()
}

fn words<'a>(command: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    command.split(' ').chain(more.iter().copied()).collect()
}

#[test]
fn space_is_shown_as_by_btrfs_progs() {
    const TEST: &str = "space_is_shown_as_by_btrfs_progs";
    let Some(lab) = Lab::new(TEST, &[700, 700, 700, 1000]) else { return };
    let profiles: &[(&[&str], usize)] = &[
        (&["-d", "raid1", "-m", "raid1c3", "-L", "a label"], 4),
        (&["-d", "raid0", "-m", "raid10"], 4),
        (&["-d", "raid5", "-m", "raid6"], 4),
        (&["-d", "single", "-m", "dup"], 1),
        (&["-M", "-d", "dup", "-m", "dup"], 1),
    ];
    for (options, count) in profiles {
        lab.make(options, *count);
        lab.mount("nodiscard");
        lab.file("file", 60);
        fs::write(lab.at.join("small"), b"small").expect("there is room");
        if *count == 1 && !options.contains(&"-M") {
            // Several profiles of one type.
            run_ok(60, "btrfs", &["balance", "start", "-f", "-dconvert=dup,limit=1", text(&lab.at)]);
            lab.file("more", 30);
        }
        lab.sync();
        let theirs: Vec<String> =
            SHOWN.iter().map(|shown| comparable(&btrfs(&words(shown, &[text(&lab.at)])))).collect();
        let json: Value =
            serde_json::from_str(&btrfs(&["--format", "json", "filesystem", "df", text(&lab.at)])).expect("JSON");
        lab.unmount();
        let devices = lab.paths(*count);
        let images: Vec<&str> = devices.iter().flat_map(|device| ["--image", device]).collect();
        for (shown, theirs) in SHOWN.iter().zip(&theirs) {
            let ours = match shown.contains("show") {
                true => butterfs_ok(&words(shown, &devices[..1])),
                false => butterfs_ok(&words(shown, &images)),
            };
            assert_eq!(comparable(&ours), *theirs, "{options:?}: {shown}, not mounted");
        }
        let ours = butterfs_ok(&[&["--format", "json", "filesystem", "df"], &images[..]].concat());
        let ours: Value = serde_json::from_str(&ours).expect("JSON");
        assert_eq!(ours["__header"], json["__header"]);
        assert_eq!(as_text(&ours["filesystem-df"]), as_text(&json["filesystem-df"]), "{options:?}");
        if options.contains(&"raid6") {
            continue;
        }
        butterfs_ok(&[&["mount"], &devices[..], &[text(&lab.at)]].concat());
        for (shown, theirs) in SHOWN.iter().zip(&theirs) {
            let ours = butterfs_ok(&words(shown, &[text(&lab.at)]));
            assert_eq!(comparable(&ours), *theirs, "{options:?}: {shown}, mounted");
        }
        butterfs_ok(&["umount", text(&lab.at)]);
    }
}

/// btrfs-progs 6.2 shows numbers as text.
fn as_text(rows: &Value) -> Vec<Vec<String>> {
    let cell = |cell: &Value| cell.as_str().map_or_else(|| cell.to_string(), str::to_owned);
    let row = |row: &Value| ["bg-type", "bg-profile", "total", "used"].map(|name| cell(&row[name])).to_vec();
    rows.as_array().expect("an array").iter().map(row).collect()
}

#[test]
fn a_missing_device_is_shown_as_by_btrfs_progs() {
    const TEST: &str = "a_missing_device_is_shown_as_by_btrfs_progs";
    let Some(mut lab) = Lab::new(TEST, &[500, 500, 500]) else { return };
    lab.make(&["-d", "raid1", "-m", "raid1", "-L", "lost"], 3);
    lab.mount("nodiscard");
    lab.file("file", 40);
    lab.unmount();
    let lost = lab.devices.pop().expect("there are three");
    run_ok(10, "btrfs", &["device", "scan", "--forget", text(lost.path())]);
    drop(lost);
    lab.mount("degraded,nodiscard");
    let shown = ["filesystem usage", "filesystem usage -T", "device usage", "filesystem df"];
    let theirs = shown.map(|shown| comparable(&btrfs(&words(shown, &[text(&lab.at)]))));
    lab.unmount();
    let devices = lab.paths(2);
    let images: Vec<&str> = devices.iter().flat_map(|device| ["--image", device]).collect();
    for (shown, theirs) in shown.iter().zip(&theirs) {
        let ran = butterfs(&words(shown, &images));
        assert_eq!((ran.code, &comparable(&ran.stdout)), (Some(0), theirs), "{shown}: {}", ran.stderr);
    }
    let unmounted = butterfs_ok(&["filesystem", "show", devices[0]]);
    assert!(
        unmounted.contains("\tTotal devices 3 ") && unmounted.contains("\t*** Some devices missing\n"),
        "{unmounted}"
    );
    let ran = butterfs(&["mount", "-o", "degraded", devices[0], devices[1], text(&lab.at)]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let mounted = butterfs_ok(&["filesystem", "show", text(&lab.at)]);
    assert!(mounted.contains("\tdevid    3 size 0 used 0 path <missing disk> MISSING\n"), "{mounted}");
    butterfs_ok(&["umount", text(&lab.at)]);
}

/// Extents that other files and snapshots use, inside a file, in snapshots that are gone, behind hard links and
/// symbolic ones.
fn fill(at: &Path) {
    let sh = "set -e
        dd if=/dev/urandom of=a bs=1M count=20 status=none; cp --reflink=always a b; mkdir d; cp --reflink=always a d/c
        dd if=/dev/urandom of=d/own bs=1M count=7 status=none; ln d/own d/link; ln d/own otherlink
        head -c 1000 /dev/urandom >small; truncate -s 5M hole; fallocate -l 3M pre
        btrfs -q subvolume create sub; dd if=/dev/urandom of=sub/x bs=1M count=9 status=none; sync -f .
        btrfs -q subvolume snapshot sub snap; dd if=/dev/urandom of=sub/x bs=1M count=3 conv=notrunc status=none
        btrfs -q subvolume snapshot sub gone; sync -f .; btrfs -q subvolume delete gone; btrfs -q subvolume sync .
        mkdir z; btrfs property set z compression zstd; yes hello | head -c 3000000 > z/comp || true
        cp --reflink=always z/comp z/comp2; dd if=a of=self bs=1M status=none; sync -f .
        xfs_io -c 'reflink self 0 8m 1m' self >/dev/null
        xfs_io -f -c 'pwrite 0 1m' -c sync -c 'pwrite 256k 4k' -c sync split >/dev/null
        xfs_io -f -c 'pwrite 0 1m' -c sync part >/dev/null; xfs_io -f -c 'reflink part 256k 0 128k' part2 >/dev/null
        mkfifo fifo; ln -s a symbolic; mkdir empty; sync -f .";
    run_ok(60, "sh", &["-c", &format!("cd {}; {sh}", text(at))]);
}

#[test]
fn shared_and_exclusive_space_is_measured_as_by_btrfs_progs() {
    const TEST: &str = "shared_and_exclusive_space_is_measured_as_by_btrfs_progs";
    if !requirement::programs(TEST, &["xfs_io"]) {
        return;
    }
    let Some(lab) = Lab::new(TEST, &[700]) else { return };
    lab.make(&[], 1);
    lab.mount("nodiscard");
    fill(&lab.at);
    let at = text(&lab.at).to_owned();
    let several: Vec<String> = ["a", "d", "sub", "snap", "z", "self", "part", "split", "pre", "symbolic", "fifo"]
        .map(|name| format!("{at}/{name}"))
        .into();
    let several: Vec<&str> = several.iter().map(String::as_str).collect();
    let all: [Vec<&str>; 3] = [vec![&at], vec!["-s", "--raw", &at], several];
    let theirs = all.clone().map(|arguments| btrfs(&[&["filesystem", "du"], &arguments[..]].concat()));
    lab.unmount();
    let image = lab.paths(1)[0];
    // Inside an image paths begin at the top level.
    let ours = butterfs_ok(&["filesystem", "du", "--image", image, "/"]);
    assert_eq!(ours.replace("  /", &format!("  {at}/")).replace(&format!("{at}/\n"), &format!("{at}\n")), theirs[0]);
    butterfs_ok(&["mount", image, &at]);
    for (arguments, theirs) in all.iter().zip(&theirs) {
        assert_eq!(butterfs_ok(&[&["filesystem", "du"], &arguments[..]].concat()), *theirs, "{arguments:?}");
    }
    let json = butterfs_ok(&["--format", "json", "filesystem", "du", "-s", &at]);
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let row = &json["filesystem-du"][0];
    let cells: Vec<&str> = theirs[1].lines().nth(1).expect("one row").split_whitespace().collect();
    let ours = ["total", "exclusive", "set-shared"].map(|name| row[name].to_string());
    assert_eq!(ours.as_slice(), &cells[..3]);
    let ran = butterfs(&["filesystem", "du", &format!("{at}/nowhere")]);
    assert!(ran.code == Some(1) && ran.stderr.contains("cannot check space of"), "{ran:?}");
    butterfs_ok(&["umount", &at]);
}

#[test]
fn filesystems_are_found_by_name_and_labelled() {
    const TEST: &str = "filesystems_are_found_by_name_and_labelled";
    let Some(lab) = Lab::new(TEST, &[200, 200]) else { return };
    let label = format!("butterfs-{}", std::process::id());
    lab.make(&["-L", &label], 2);
    let devices = lab.paths(2);
    let by_device = butterfs_ok(&["filesystem", "show", devices[1]]);
    let uuid = by_device.split("uuid: ").nth(1).and_then(|rest| rest.lines().next()).expect("a UUID").to_owned();
    assert_eq!(shown(&[], &[&label]), by_device);
    assert_eq!(shown(&[], &[&uuid]), by_device);
    assert!(shown(&[], &[]).contains(&uuid));
    let json: Value = serde_json::from_str(&shown(&["--format", "json"], &[&uuid])).expect("JSON");
    assert_eq!(json["filesystem-show"][0]["devices"].as_array().map(Vec::len), Some(2));
    let ran = butterfs(&["filesystem", "show", "no such label"]);
    assert!(
        ran.stderr.ends_with("ERROR: not a valid btrfs filesystem: no such label\n") && ran.code == Some(1),
        "{ran:?}"
    );
    assert_eq!(butterfs_ok(&["filesystem", "label", devices[0]]), format!("{label}\n"));
    lab.mount("nodiscard");
    assert!(butterfs_ok(&["filesystem", "show", text(&lab.at)]).contains(&uuid), "the kernel's mount");
    let ran = butterfs(&["filesystem", "label", devices[0], "other"]);
    assert_eq!(ran.code, Some(255), "{ran:?}");
    assert!(ran.stderr.contains("is mounted, use mount point"), "{ran:?}");
    lab.unmount();
    butterfs_ok(&["mount", devices[0], devices[1], text(&lab.at)]);
    butterfs_ok(&["filesystem", "label", text(&lab.at), "other"]);
    assert_eq!(butterfs_ok(&["filesystem", "label", text(&lab.at)]), "other\n");
    assert!(shown(&[], &["other"]).contains(&uuid));
    butterfs_ok(&["umount", text(&lab.at)]);
    let long = "x".repeat(256);
    let ran = butterfs(&["filesystem", "label", devices[0], &long]);
    assert!(ran.code == Some(1) && ran.stderr.contains("is too long (max 255)"), "{ran:?}");
}

#[test]
fn a_label_is_changed_on_an_image() {
    const TEST: &str = "a_label_is_changed_on_an_image";
    let Some(lab) = Lab::new(TEST, &[200]) else { return };
    lab.make(&[], 1);
    let device = lab.paths(1)[0];
    butterfs_ok(&["filesystem", "label", device, "new one"]);
    assert_eq!(run_ok(10, "btrfs", &["filesystem", "label", device]), "new one\n");
    run_ok(60, "btrfs", &["check", device]);
}

#[test]
fn swap_files_are_those_of_btrfs_progs() {
    const TEST: &str = "swap_files_are_those_of_btrfs_progs";
    if !requirement::programs(TEST, &["swapon", "lsattr"]) {
        return;
    }
    let Some(lab) = Lab::new(TEST, &[400]) else { return };
    const UUID: &str = "12345678-1234-1234-1234-123456789abc";
    lab.make(&["-d", "single"], 1);
    lab.mount("nodiscard");
    let [theirs, ours] = ["theirs", "ours"].map(|name| lab.at.join(name));
    let made = run_ok(30, "btrfs", &["filesystem", "mkswapfile", "-s", "1000001", "-U", UUID, text(&theirs)]);
    lab.unmount();
    let device = lab.paths(1)[0];
    butterfs_ok(&["mount", device, text(&lab.at)]);
    let said = butterfs_ok(&["filesystem", "mkswapfile", "-s", "1000001", "-U", UUID, text(&ours)]);
    assert_eq!(said.replace("ours", "theirs"), made);
    assert_eq!(fs::read(&ours).expect("it is there"), fs::read(&theirs).expect("it is there"));
    let ran = butterfs(&["filesystem", "mkswapfile", text(&ours)]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(1), "ERROR: cannot create new swapfile: File exists\n"));
    let ran = butterfs(&["filesystem", "mkswapfile", "-s", "10k", text(&lab.at.join("tiny"))]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(1), "ERROR: swapfile needs to be at least 40 KiB\n"));
    let ran = butterfs(&["filesystem", "mkswapfile", "-s", "100g", text(&lab.at.join("huge"))]);
    assert!(ran.code == Some(1) && ran.stderr.contains("cannot fallocate file: No space left"), "{ran:?}");
    assert!(!lab.at.join("huge").exists() && !lab.at.join("tiny").exists());
    fs::write(lab.at.join("plain"), b"plain").expect("there is room");
    let mapped = [&theirs, &ours].map(|file| butterfs_ok(&["inspect-internal", "map-swapfile", text(file)]));
    let offset = butterfs_ok(&["inspect-internal", "map-swapfile", "-r", text(&ours)]);
    // On a FUSE mount no file can be swapped to.
    let refused = run(10, "swapon", &[text(&ours)]);
    assert_ne!(refused.code, Some(0), "{}", refused.output);
    butterfs_ok(&["umount", text(&lab.at)]);
    let inside = butterfs_ok(&["inspect-internal", "map-swapfile", "--image", device, "/ours"]);
    assert_eq!(inside, mapped[1]);
    lab.mount("nodiscard");
    for (file, ours) in [&theirs, &ours].into_iter().zip(&mapped) {
        assert_eq!(run_ok(10, "btrfs", &["inspect-internal", "map-swapfile", text(file)]), *ours);
    }
    assert_eq!(run_ok(10, "btrfs", &["inspect-internal", "map-swapfile", "-r", text(&ours)]), offset);
    assert!(run_ok(10, "lsattr", &[text(&ours)]).starts_with("---------------C------ "));
    run_ok(10, "swapon", &[text(&ours)]);
    run_ok(10, "swapoff", &[text(&ours)]);
    lab.unmount();
    let ran = butterfs(&["inspect-internal", "map-swapfile", "--image", device, "/plain"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(1), "ERROR: file is not NOCOW\n"));
}

/// Time is not compared, and neither is the histogram, which is not shown.
fn without_time(shown: &str) -> String {
    let is_fixed = |line: &&str| !line.contains("read time") && !line.contains(" - ") && !line.contains("histogram");
    shown.lines().filter(is_fixed).map(|line| format!("{line}\n")).collect()
}

#[test]
fn trees_and_least_sizes_are_those_of_btrfs_progs() {
    const TEST: &str = "trees_and_least_sizes_are_those_of_btrfs_progs";
    let Some(lab) = Lab::new(TEST, &[400]) else { return };
    lab.make(&["-n", "4096"], 1);
    lab.mount("nodiscard");
    for round in 0..3 {
        for number in 0..60 {
            fs::write(lab.at.join(format!("f{round}-{number}")), vec![b'x'; number * 37]).expect("there is room");
        }
        lab.sync();
    }
    (0..60).step_by(2).for_each(|number| fs::remove_file(lab.at.join(format!("f1-{number}"))).expect("it is there"));
    lab.sync();
    let least = btrfs(&["inspect-internal", "min-dev-size", text(&lab.at)]);
    lab.unmount();
    let device = lab.paths(1)[0];
    for option in [&["-b"][..], &[]] {
        let theirs = btrfs(&[&["inspect-internal", "tree-stats"], option, &[device]].concat());
        let ours = butterfs_ok(&[&["inspect-internal", "tree-stats"], option, &[device]].concat());
        assert_eq!(without_time(&ours), without_time(&theirs), "{option:?}");
    }
    assert_eq!(butterfs_ok(&["inspect-internal", "min-dev-size", "--image", device]), least);
    let json = butterfs_ok(&["--format", "json", "inspect-internal", "tree-stats", "-t", "fs", device]);
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["inspect-internal-tree-stats"][0]["tree"], "fs");
}

#[test]
fn json_is_refused_where_there_is_none() {
    let ran = butterfs(&["--format", "json", "subvolume", "delete", "/"]);
    assert_eq!(ran.code, Some(1));
    assert_eq!(ran.stderr, "ERROR: output format json is unsupported for this command\n");
    assert_eq!(butterfs(&["--format", "xml", "filesystem", "df", "/"]).code, Some(2));
}

#[test]
fn damaged_images_end_in_a_sentence() {
    let scratch = Scratch::new("damaged_images_end_in_a_sentence");
    let image = scratch.join("disk.img");
    butterfs_ok(&["mkfs", "-q", "-b", "100M", text(&image)]);
    let whole = fs::read(&image).expect("it is there");
    // The superblock, with a right checksum or not, and the first chunks.
    for (at, len) in [(65536, 4096), (65536 + 0x68, 8), (65536 + 0x32b, 97), (1 << 20, 1 << 20), (6 << 20, 20 << 20)] {
        let mut bytes = whole.clone();
        bytes[at..at + len].fill(0xff);
        fs::write(&image, &bytes).expect("there is room");
        for command in ["filesystem usage --image", "device usage --image", "filesystem df --image", "filesystem show"]
        {
            let ran = butterfs(&words(command, &[text(&image)]));
            let is_sentence = ran.stderr.starts_with("ERROR: ") && !ran.stderr.contains("panicked");
            assert!(ran.code == Some(0) || ran.code == Some(1) && is_sentence, "{command} at {at}: {ran:?}");
        }
    }
    fs::write(&image, b"short").expect("there is room");
    assert_eq!(butterfs(&["filesystem", "show", text(&image)]).code, Some(1));
    // The device behind an image of another name is not needed, and nothing was changed.
    fs::write(&image, &whole).expect("there is room");
    butterfs_ok(&["filesystem", "usage", "--image", text(&image)]);
    assert_eq!(fs::read(&image).expect("it is there"), whole);
}
