//! Root's commands on a path in a folder of another user, who plants other things there, and exchanges names while the
//! command runs.
//!
//! 1. On each thing that lies there the answer is the kernel's, and so are the trees afterwards.
//! 2. While names are exchanged, a command answers as with one of both things in place, and does the same to root's own
//!    things; or it refuses, and changes nothing.

use crate::common::butterfs_ok;
use crate::differences::{Difference, place_of, unseen};
use crate::mounted::{Bed, shell, text};
use crate::sides::{Side, is_unknown, umount};
use crate::state::FolderState;
use crate::{BINARY, make_image, on_both};
use butterfs_testkit::kernel::{KernelMount, mkfs};
use butterfs_testkit::requirement;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::process::{Gid, Uid};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

const USER: u32 = 54321;

/// The things in the user's folder `h`. Beside it lies `roots`.
const THINGS: [&str; 8] =
    ["subvolume", "folder", "file", "fifo", "link-subvolume", "link-folder", "link-file", "link-nowhere"];

/// The act on `{x}`, the thing that it is meant for, our command line, and the kernel's; an empty one: the same line.
const ACTS: &[(&str, &str, &str, &str)] = &[
    ("create", "folder", "{t} subvolume create {x}/new", ""),
    ("snapshot into", "folder", "{t} subvolume snapshot roots/s {x}/new", ""),
    ("receive", "folder", "{t} receive -q -f $stream {x}", ""),
    ("mount", "folder", "{mount} $aside/more.img {x} && {umount} {x}", ""),
    ("delete", "subvolume", "{t} subvolume delete {x}", ""),
    ("snapshot of", "subvolume", "{t} subvolume snapshot {x} roots/new", ""),
    ("set read-only", "subvolume", "{t} property set -t subvol {x} ro true", ""),
    ("set default", "subvolume", "{t} subvolume set-default {x}", ""),
    ("show", "subvolume", "{t} subvolume show {x}", ""),
    ("rootid", "file", "{t} inspect-internal rootid {x}", ""),
    ("sync", "file", "{t} filesystem sync {x}", ""),
    ("defragment", "file", "{t} filesystem defragment {x}", ""),
    ("send into", "file", "{t} send -q -f {x} roots/ro && truncate -s 0 {x}", ""),
    ("clone onto", "file", "{t} reflink clone roots/f {x}", "cp -T --reflink=always roots/f {x}"),
    ("clone of", "file", "{t} reflink clone {x} roots/new", "cp -T --reflink=always {x} roots/new"),
    (
        "dedupe",
        "file",
        "{t} dedupe roots/f {x}",
        "xfs_io -c 'dedupe roots/f 0 0 65536' {x} 2>&1 | tee $aside/out; grep -q ops $aside/out",
    ),
];

/// Act, thing, our answer, the kernel's, and the reason.
const DIFFERENCES: &[Difference] = &[("rootid", "fifo", "done", "EINVAL", "btrfs-progs wants a file or a folder")];

/// `btrfs` and `cp` open FIFOs and wait for the other end; they are not asked about some. A FIFO that a stream is
/// written to is for that, so ours waits there too.
const WAITS: &str = "waits";
const WAITING: [&str; 6] = ["receive", "set read-only", "set default", "sync", "clone onto", "clone of"];

/// Combinations that are left out.
fn is_left_out(act: &str, thing: &str) -> bool {
    (act, thing) == ("send into", "fifo")
}

const FILL: &str = "mkdir $top/$folder; cd $top/$folder; mkdir roots h roots/folder
    $tool subvolume create roots/s >/dev/null; $tool subvolume snapshot -r roots/s roots/ro >/dev/null
    for file in roots/f roots/g h/file; do head -c 65536 /dev/zero | tr '\\0' x > $file; done
    $tool subvolume create h/subvolume >/dev/null; mkdir h/folder; mkfifo h/fifo
    ln -s ../roots/s h/link-subvolume; ln -s ../roots/folder h/link-folder; ln -s ../roots/g h/link-file
    ln -s nowhere h/link-nowhere; chown -hR 54321:54321 h";

/// One side, and the folder that is as it was filled.
struct Ground {
    side: Side,
    number: u32,
    is_used: bool,
}

impl Ground {
    fn folder(&self) -> String {
        format!("f{}", self.number)
    }

    /// Fills a new folder when something has changed in the last one.
    fn renew(&mut self) {
        if std::mem::take(&mut self.is_used) {
            self.number += 1;
            let folder = self.folder();
            let variables =
                [("tool", Path::new(self.side.tool)), ("top", &self.side.top), ("folder", Path::new(&folder))];
            shell(FILL, &variables);
            shell("$tool subvolume set-default 5 $top >/dev/null", &variables[..2]);
        }
    }

    fn ask(&self, line: &str, thing: &str) -> String {
        let line = line.replace("{x}", &format!("h/{thing}"));
        self.side.ask(Path::new("/"), &self.folder(), &line, "cd $at; timeout -k 1 3 sh -c \"$act\"")
    }

    fn state(&self) -> FolderState {
        // Folders that were filled before are not looked at.
        FolderState::of(&self.side, &self.folder()).without_names()
    }
}

/// Exchanges names as the user, as long as `act` runs.
fn exchanging<T>(folder: &Path, names: [&str; 2], act: impl FnOnce() -> T) -> T {
    let ends = AtomicBool::new(false);
    let [one, other] = names.map(|name| folder.join(name));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (uid, gid) = (Uid::from_raw(USER), Gid::from_raw(USER));
            rustix::thread::set_thread_groups(&[]).unwrap();
            rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            while !ends.load(Ordering::Relaxed) {
                // One of both may be gone by now.
                let _ = renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE);
            }
        });
        let result = act();
        ends.store(true, Ordering::Relaxed);
        result
    })
}

/// The table of answers on things that stay, and all that is wrong.
#[derive(Default)]
struct Found {
    table: String,
    wrong: String,
    used: Vec<usize>,
}

#[test]
fn planted_objects_are_treated_as_by_the_kernel() {
    const TEST: &str = "everywhere_hostile";
    if !requirement::kernel_btrfs(TEST) || !requirement::programs(TEST, &["btrfs", "xfs_io", "unshare"]) {
        return;
    }
    let Some(bed) = Bed::for_root(TEST) else { return };
    let bed = bed.slow(TEST).with_image();
    bed.mount_ok("rw,allow_other");
    let image = bed.scratch.sparse_file("kernel.img", 512 << 20);
    mkfs(&image, &[]);
    let kernel = KernelMount::new(&image, "");
    let sides = [
        Side::new(BINARY, bed.scratch.folder("ours"), &bed.at, &bed.image),
        Side::new("btrfs", bed.scratch.folder("kernels"), kernel.path(), &image),
    ];
    let mut grounds = sides.map(|side| {
        make_image(side.tool, &side.aside.join("more.img"));
        let mut ground = Ground { side, number: 0, is_used: true };
        ground.renew();
        let source =
            [("tool", Path::new(ground.side.tool)), ("at", &ground.side.top), ("stream", &ground.side.stream())];
        shell(
            "$tool subvolume snapshot -r $at/f1/roots/s $at/sent >/dev/null; $tool send -q -f $stream $at/sent",
            &source,
        );
        ground
    });
    let mut found = Found::default();
    // How often names are exchanged for each pair of things.
    let tries = std::env::var("BUTTERFS_EXCHANGES").map_or(1, |tries| tries.parse().expect("a number"));
    for (act, good, ours, theirs) in ACTS {
        let things = THINGS.into_iter().filter(|thing| !is_left_out(act, thing));
        let mut meet = |thing| (thing, staying(&mut grounds, act, (ours, theirs), thing, &mut found));
        let outcomes: Vec<(&str, Outcome)> = things.map(&mut meet).collect();
        let outcome = |thing: &str| &outcomes.iter().find(|(known, _)| *known == thing).expect("it is in the list").1;
        // These look for a path twice.
        let exchanged = if ["mount", "send into"].contains(act) {
            Vec::new()
        } else {
            vec!["fifo".to_owned(), format!("link-{good}")]
        };
        for thing in &exchanged {
            let may = [outcome(good), outcome(thing)];
            for _ in 0..tries {
                meanwhile(&mut grounds[0], (act, ours), [good, thing], may, &mut found);
            }
        }
    }
    let wrong = found.wrong + &unseen(DIFFERENCES, &found.used);
    assert!(wrong.is_empty(), "{}\n{wrong}", found.table);
    butterfs_ok(&["subvolume", "set-default", "5", text(&bed.at)]);
    umount(&bed);
    bed.judge(|root| assert!(root.join("f1/roots").is_dir()));
    assert_eq!(kernel.finish(), [""; 0]);
}

/// Our answer, and what became of root's things.
type Outcome = (String, BTreeSet<String>);

fn changes_to_roots(ground: &Ground, before: &FolderState) -> BTreeSet<String> {
    let is_roots = |what: &String| what.starts_with("\"roots") || what.contains("subvolume roots");
    ground.state().differences(before).into_iter().filter(is_roots).collect()
}

/// An act on a thing that stays where it is.
fn staying(grounds: &mut [Ground; 2], act: &str, lines: (&str, &str), thing: &str, found: &mut Found) -> Outcome {
    std::thread::scope(|scope| grounds.iter_mut().for_each(|ground| drop(scope.spawn(|| ground.renew()))));
    let before = grounds[0].state();
    let [(mine, after), (kernels, kernels_after)] = on_both(grounds, |ground| {
        let line = if ground.side.is_ours() || lines.1.is_empty() { lines.0 } else { lines.1 };
        let waits = !ground.side.is_ours() && thing == "fifo" && WAITING.contains(&act);
        (if waits { WAITS.to_owned() } else { ground.ask(line, thing) }, ground.state())
    });
    let listed = place_of(DIFFERENCES, act, thing, &mine, &kernels);
    found.used.extend(listed);
    found.table += &format!("{act:16} {thing:16} {mine:10} {kernels}\n");
    let differs = mine != kernels && (kernels != WAITS || mine == "done");
    if is_unknown(&mine) || mine == WAITS || differs && listed.is_none() {
        found.wrong += &format!("{act} on {thing}: {mine}, kernel: {kernels}\n");
    }
    for difference in after.differences(&kernels_after) {
        found.wrong += &format!("{act} on {thing}: afterwards {difference}\n");
    }
    let changed = changes_to_roots(&grounds[0], &before);
    let is_used = [&mine, &kernels].iter().any(|answer| *answer == "done") || !after.differences(&before).is_empty();
    grounds.iter_mut().for_each(|ground| ground.is_used = is_used);
    (mine, changed)
}

/// The same while the user exchanges the thing that the act is meant for with another one.
fn meanwhile(ground: &mut Ground, (act, line): (&str, &str), things: [&str; 2], may: [&Outcome; 2], found: &mut Found) {
    ground.renew();
    let before = ground.state();
    let folder = ground.side.top.join(ground.folder()).join("h");
    let answer = exchanging(&folder, things, || ground.ask(line, things[0]));
    let changed = changes_to_roots(ground, &before);
    // A refusal that changes nothing is always in order.
    let is_refused = answer != "done" && answer != WAITS && !is_unknown(&answer);
    let is_known = |(known, outcome): &Outcome| *known == answer && *outcome == changed;
    if !(is_refused && changed.is_empty() || may.into_iter().any(is_known)) {
        found.wrong +=
            &format!("{act}, {things:?} exchanged: {answer}, root's things: {changed:?}; expected one of {may:?}\n");
    }
    ground.is_used = true;
}
