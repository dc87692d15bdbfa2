//! Every command that acts on a mount, and system calls beside them, in every situation: the answer must be the one of
//! the kernel's btrfs in the same situation, or stand in [`DIFFERENCES`] with its reason.
//!
//! 1. Each subcommand of the program is in [`ACTS`] or in [`ELSEWHERE`].
//! 2. In the situation `plain` every act succeeds on both sides.
//! 3. A listed difference that does not occur is a failure too.

mod common;
#[allow(dead_code)] // other tests of mounts need the rest
mod mounted;

use butterfs_testkit::kernel::{KernelMount, mkfs, run};
use butterfs_testkit::requirement;
use common::butterfs_ok;
use mounted::{Bed, text};
use std::path::Path;

const BINARY: &str = env!("CARGO_BIN_EXE_butterfs");

/// The act, our command line, and the kernel's; `{t}` stands for `butterfs` or `btrfs`. An empty one: the same line.
/// Where the kernel's tools lack the command, another one that needs the same rights stands beside it.
const ACTS: &[(&str, &str, &str)] = &[
    ("subvolume create", "{t} subvolume create new1", ""),
    ("subvolume snapshot", "{t} subvolume snapshot s new2", ""),
    ("subvolume delete", "{t} subvolume delete victim", ""),
    ("subvolume list", "{t} subvolume list .", ""),
    ("subvolume show", "{t} subvolume show s", ""),
    ("subvolume get-default", "{t} subvolume get-default .", ""),
    ("subvolume set-default", "{t} subvolume set-default 5 .", ""),
    ("subvolume find-new", "{t} subvolume find-new s 0", ""),
    ("subvolume sync", "{t} subvolume sync .", ""),
    ("property get", "{t} property get -t subvol s ro", ""),
    ("property set", "{t} property set -t subvol p ro true", ""),
    ("property list", "{t} property list -t subvol s", ""),
    ("filesystem sync", "{t} filesystem sync .", ""),
    ("filesystem defragment", "{t} filesystem defragment f", ""),
    ("filesystem extents", "{t} filesystem extents f", "cat f"),
    ("device stats", "{t} device stats .", ""),
    ("send", "{t} send -q -f /dev/null ro", ""),
    ("receive", "{t} receive -q . < $stream", ""),
    ("reflink clone", "{t} reflink clone f clone", "cp --reflink=always f clone"),
    ("reflink range", "{t} reflink range f g", "xfs_io -c 'reflink f' g"),
    ("dedupe", "{t} dedupe f h", "xfs_io -c 'dedupe f 0 0 65536' h"),
    ("inspect-internal rootid", "{t} inspect-internal rootid .", ""),
    ("inspect-internal subvolid-resolve", "{t} inspect-internal subvolid-resolve 256 .", ""),
    ("inspect-internal inode-resolve", "{t} inspect-internal inode-resolve 257 .", ""),
    ("write", "echo more >> f2", ""),
    ("unlink", "rm -f gone", ""),
    ("rename", "mv from to", ""),
    ("setxattr", "setfattr -n user.a -v b f", ""),
    ("chattr", "chattr +d f", ""),
];

/// Subcommands that are asked elsewhere.
const ELSEWHERE: &[(&str, &str)] = &[
    ("check", "of devices that are not mounted"),
    ("mkfs", "of devices that are not mounted"),
    ("mount", "tests/mount.rs"),
    ("umount", "tests/mount.rs"),
    ("inspect-internal dump-super", "of devices"),
    ("inspect-internal dump-tree", "of devices"),
    ("inspect-internal logical-resolve", "needs an address: tests/inspect_internal.rs"),
];

/// The situation, and the shell line that runs `$act` in it, in the folder `$at`; `$other` is another place of the mount.
const SITUATIONS: &[(&str, &str)] = &[
    ("plain", "cd $at; sh -c \"$act\""),
    ("bind mount", "mount --bind $at $other; cd $other; sh -c \"$act\""),
    ("read-only bind mount", "mount --bind $at $other; mount -o remount,bind,ro $other; cd $other; sh -c \"$act\""),
    ("user", "cd $at; setpriv --reuid 54321 --regid 54321 --clear-groups sh -c \"$act\""),
    ("network namespace", "cd $at; unshare -n sh -c \"$act\""),
    ("root in a user namespace", "cd $at; unshare -Ur sh -c \"$act\""),
    (
        "user in a user namespace",
        "cd $at; setpriv --reuid 54321 --regid 54321 --clear-groups unshare -Ur sh -c \"$act\"",
    ),
    ("covered by another mount", "cd $at; mount -t tmpfs none $top; sh -c \"$act\""),
    ("path to a covered place", "mount -t tmpfs none $top; mkdir $at; cd $at; sh -c \"$act\""),
    ("deleted working directory", "mkdir $at/left; cd $at/left; rmdir $at/left; sh -c \"$act\""),
];

/// Act, situation, our answer, the kernel's, and the reason. `*` is any.
const DIFFERENCES: &[(&str, &str, &str, &str, &str)] = &[
    ("*", "root in a user namespace", "done", "EPERM", "a socket shows its peer's user and not its capabilities"),
    ("subvolume delete", "user", "EACCES", "EPERM", "the directory's permissions are looked at first"),
    (
        "subvolume delete",
        "user in a user namespace",
        "EACCES",
        "EPERM",
        "the directory's permissions are looked at first",
    ),
    ("subvolume show", "user", "done", "EPERM", "btrfs-progs searches trees for it, ours asks about one subvolume"),
    ("subvolume show", "user in a user namespace", "done", "EPERM", "the same"),
    (
        "subvolume show",
        "covered by another mount",
        "done",
        "ENOENT",
        "btrfs-progs looks for the path in the list of mounts",
    ),
    ("send", "covered by another mount", "done", "ENOENT", "btrfs-progs looks for the path in the list of mounts"),
    ("receive", "covered by another mount", "done", "ENOENT", "btrfs-progs looks for the path in the list of mounts"),
    ("filesystem defragment", "user", "EACCES", "EPERM", "the error of a file that may not be written"),
    ("filesystem defragment", "user in a user namespace", "EACCES", "EPERM", "the same"),
    ("device stats", "user", "done", "EPERM", "the counts are for every user of the mount"),
    ("device stats", "user in a user namespace", "done", "EPERM", "the same"),
    (
        "property list",
        "path to a covered place",
        "ENOENT",
        "done",
        "btrfs-progs lists names without looking at the object",
    ),
    ("property list", "deleted working directory", "ENOENT", "done", "the same"),
];

/// Words in messages, and the error that they stand for.
const ERRORS: &[(&str, &str)] = &[
    ("read-only", "EROFS"),
    ("only its owner", "EPERM"),
    ("only root", "EPERM"),
    ("not permitted", "EPERM"),
    ("permission denied", "EACCES"),
    ("no such file", "ENOENT"),
    ("not on a butterfs mount", "ENOTTY"),
    ("not a btrfs", "ENOTTY"),
    ("not on a btrfs", "ENOTTY"),
    ("belong to btrfs mount point", "ENOTTY"),
    ("unable to resolve", "ENOENT"),
    ("file exists", "EEXIST"),
    ("inappropriate ioctl", "ENOTTY"),
];

fn answer(code: Option<i32>, output: &str) -> String {
    if code == Some(0) {
        return "done".into();
    }
    let lower = output.to_lowercase();
    let known = ERRORS.iter().find(|(words, _)| lower.contains(words));
    known.map_or_else(|| format!("({})", output.trim().replace('\n', "; ")), |(_, error)| (*error).into())
}

/// The stream of a side, outside of its mount.
fn stream(tool: &str, top: &Path) -> std::path::PathBuf {
    top.with_file_name(if tool == BINARY { "stream-ours" } else { "stream-kernel" })
}

/// Fills a new folder for a situation on one side.
fn fill(tool: &str, top: &Path, folder: &str) {
    let script = "mkdir $top/$folder; cd $top/$folder
        for name in s p victim; do $tool subvolume create $name; done >/dev/null
        $tool subvolume snapshot -r s ro >/dev/null
        for name in f g h f2; do head -c 65536 /dev/zero | tr '\\0' x > $name; done; touch gone from; sync -f .";
    mounted::shell(script, &[("tool", Path::new(tool)), ("top", top), ("folder", Path::new(folder))]);
}

fn ask(tool: &str, top: &Path, other: &Path, folder: &str, line: &str, situation: &str) -> String {
    let act = line.replace("{t}", tool).replace("$stream", text(&stream(tool, top)));
    let at = top.join(folder);
    let script = format!("export act=\"{act}\" top={} at={} other={}; {situation}", text(top), text(&at), text(other));
    let finished = run(20, "unshare", &["-m", "bash", "-c", &script]);
    answer(finished.code, &finished.output)
}

fn is_listed(act: &str, situation: &str, ours: &str, theirs: &str) -> Option<usize> {
    let is = |pattern: &str, what: &str| pattern == "*" || pattern == what;
    DIFFERENCES.iter().position(|&(a, s, o, t, _)| is(a, act) && is(s, situation) && is(o, ours) && is(t, theirs))
}

#[test]
fn every_act_in_every_situation_is_answered_as_by_the_kernel() {
    const TEST: &str = "everywhere";
    if !requirement::kernel_btrfs(TEST) || !requirement::programs(TEST, &["btrfs", "xfs_io", "setpriv", "unshare"]) {
        return;
    }
    let Some(bed) = Bed::for_root(TEST) else { return };
    let bed = bed.with_image();
    bed.mount_ok("rw,allow_other");
    let image = bed.scratch.join("kernel.img");
    std::fs::File::create(&image).unwrap().set_len(512 << 20).unwrap();
    mkfs(&image, &[]);
    let kernel = KernelMount::new(&image, "");
    let other = bed.scratch.folder("other");
    let (mut table, mut wrong, mut used) = (String::new(), String::new(), Vec::new());
    for (tool, top) in [(BINARY, bed.at.as_path()), ("btrfs", kernel.path())] {
        fill(tool, top, "source");
        // Received under another name than the one that lies in each folder.
        let script = "mv $top/source/ro $top/source/sent; $tool send -q -f $stream $top/source/sent; chmod 644 $stream";
        mounted::shell(script, &[("tool", Path::new(tool)), ("top", top), ("stream", &stream(tool, top))]);
    }
    for (number, (situation, shell)) in SITUATIONS.iter().enumerate() {
        let folder = format!("w{number}");
        fill(BINARY, &bed.at, &folder);
        fill("btrfs", kernel.path(), &folder);
        for (act, ours, theirs) in ACTS {
            let mine = ask(BINARY, &bed.at, &other, &folder, ours, shell);
            let line = if theirs.is_empty() { ours } else { theirs };
            let kernels = ask("btrfs", kernel.path(), &other, &folder, line, shell);
            table += &format!("{situation:28} {act:34} {mine:10} {kernels}\n");
            let is_plain = *situation == "plain" && (mine != "done" || kernels != "done");
            match is_listed(act, situation, &mine, &kernels) {
                Some(difference) => used.push(difference),
                None if mine != kernels || is_plain => {
                    wrong += &format!("{situation}: {act}: {mine}, kernel: {kernels}\n")
                }
                None => {}
            }
        }
    }
    for (number, difference) in DIFFERENCES.iter().enumerate() {
        if !used.contains(&number) {
            wrong += &format!("listed and not seen: {difference:?}\n");
        }
    }
    assert!(wrong.is_empty(), "{table}\n{wrong}");
    bed.umount_ok();
    bed.judge(|root| assert!(root.join("w0/new1").is_dir()));
    assert_eq!(kernel.finish(), [""; 0]);
}

fn subcommands(of: &[&str]) -> Vec<String> {
    let help = butterfs_ok(&[of, &["--help"]].concat());
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").map(str::to_owned).collect()
}

#[test]
fn every_command_is_in_the_table() {
    let known = |name: &str| ACTS.iter().any(|act| act.0 == name) || ELSEWHERE.iter().any(|other| other.0 == name);
    let mut count = 0;
    for group in subcommands(&[]) {
        let inner = subcommands(&[&group]);
        let names = if inner.is_empty() {
            vec![group.clone()]
        } else {
            inner.iter().map(|name| format!("{group} {name}")).collect()
        };
        for name in names {
            assert!(known(&name), "'{name}' is not in the table of acts");
            count += 1;
        }
    }
    assert!(count > 25, "only {count} commands were found");
}
