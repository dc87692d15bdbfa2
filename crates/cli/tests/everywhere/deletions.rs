//! Permission to delete subvolumes from the folders of others, with and without `user_subvol_rm_allowed`.

use crate::BINARY;
use crate::mounted::{Bed, shell, text};
use crate::sides::{answer, umount};
use butterfs_testkit::kernel::{KernelMount, mkfs, run};
use butterfs_testkit::requirement;
use std::path::Path;

/// Folders of root, of the user and of everybody, sticky and not; in each subvolumes of both, one for everybody and a
/// read-only one, and what is no subvolume.
const FILL: &str = "cd $top; mkdir root user sticky open search
    for folder in root user sticky open search; do
        for name in own roots wide; do $tool subvolume create $folder/$name >/dev/null; done
        chown 54321:54321 $folder/own; chmod 777 $folder/wide
        $tool subvolume snapshot -r $folder/own $folder/ro >/dev/null
        mkdir $folder/folder; touch $folder/file
    done
    chown 54321 user; chmod 1777 sticky; chmod 777 open; chmod 722 search";
const NAMES: [&str; 7] = ["own", "roots", "wide", "ro", "folder", "file", "missing"];
const USER: &str = "setpriv --reuid 54321 --regid 54321 --clear-groups";
const WEAK_ROOT: &str = "setpriv --bounding-set -all --inh-caps -all";

/// `btrfs` looks at more than the kernel does before it asks: here BTRFS_IOC_SNAP_DESTROY is asked itself.
const IOCTL: &str = "perl -e 'open(D, q(<), $ARGV[0]) && ioctl(D, 0x5000940f, pack(q(qa4088), 0, $ARGV[1])) or die $!'";

fn answers(tool: &str, top: &Path) -> Vec<String> {
    shell(FILL, &[("tool", Path::new(tool)), ("top", top)]);
    let mut answers = Vec::new();
    for (who, starter) in [("user", USER), ("root without capabilities", WEAK_ROOT)] {
        for (folder, name) in
            ["root", "user", "sticky", "open", "search"].into_iter().flat_map(|f| NAMES.map(|n| (f, n)))
        {
            let act = match tool {
                BINARY => format!("{BINARY} subvolume delete {folder}/{name}"),
                _ => format!("{IOCTL} {folder} {name}"),
            };
            let script = format!("cd {}; {starter} {act}", text(top));
            let finished = run(20, "bash", &["-c", &script]);
            answers.push(format!("{who}: {folder}/{name}: {}", answer(finished.code, &finished.output)));
        }
    }
    answers
}

#[test]
fn deletions_are_permitted_as_by_the_kernel() {
    const TEST: &str = "deletions";
    if !requirement::kernel_btrfs(TEST) || !requirement::programs(TEST, &["btrfs", "setpriv", "perl"]) {
        return;
    }
    for option in ["noatime", "user_subvol_rm_allowed"] {
        let Some(bed) = Bed::for_root(TEST) else { return };
        let bed = bed.with_image();
        bed.mount_ok(&format!("rw,allow_other,{option}"));
        let image = bed.scratch.sparse_file("kernel.img", 512 << 20);
        mkfs(&image, &[]);
        let kernel = KernelMount::new(&image, option);
        let (ours, theirs) = (answers(BINARY, &bed.at), answers("btrfs", kernel.path()));
        let differ = ours.iter().zip(&theirs).filter(|(ours, theirs)| ours != theirs);
        let wrong: Vec<String> = differ.map(|(ours, theirs)| format!("{ours}, kernel: {theirs}")).collect();
        assert!(wrong.is_empty(), "{option}: {wrong:#?}");
        let done = ours.iter().filter(|answer| answer.ends_with(": done")).count();
        assert_eq!(done > 0, option == "user_subvol_rm_allowed", "{ours:#?}");
        umount(&bed);
        assert_eq!(kernel.finish(), [""; 0]);
    }
}

/// Folders and subvolumes with and without flags of chattr, and where subvolumes are made and deleted.
const FLAGS: &str = "cd $top; mkdir immutable appending plain
    for name in immutable/one appending/one plain/immutable plain/appending plain/source; do
        $tool subvolume create $name >/dev/null
    done
    chattr +i immutable plain/immutable; chattr +a appending plain/appending";
const FLAGGED: [&str; 4] = ["immutable/one", "appending/one", "plain/immutable", "plain/appending"];

fn answers_to_flags(tool: &str, top: &Path) -> Vec<String> {
    shell(FLAGS, &[("tool", Path::new(tool)), ("top", top)]);
    let mut acts: Vec<String> = Vec::new();
    for folder in ["immutable", "appending", "plain/immutable", "plain/appending"] {
        acts.push(format!("{tool} subvolume create {folder}/new"));
        acts.push(format!("{tool} subvolume snapshot plain/source {folder}/snapshot"));
    }
    acts.extend(FLAGGED.map(|name| match (tool, name.split_once('/')) {
        (BINARY, _) => format!("{BINARY} subvolume delete {name}"),
        (_, Some((folder, name))) => format!("{IOCTL} {folder} {name}"),
        _ => unreachable!("each has a folder"),
    }));
    let mut answers: Vec<String> = acts
        .iter()
        .map(|act| {
            let finished = run(20, "bash", &["-c", &format!("cd {}; {act}", text(top))]);
            format!("{}: {}", act.replace(tool, "").replace(IOCTL, "delete"), answer(finished.code, &finished.output))
        })
        .collect();
    let left = run(20, "bash", &["-c", &format!("cd {}; find . | sort", text(top))]);
    answers.push(left.output);
    answers
}

#[test]
fn flags_of_chattr_hold_for_subvolumes() {
    const TEST: &str = "flags_of_chattr_hold_for_subvolumes";
    if !requirement::kernel_btrfs(TEST) || !requirement::programs(TEST, &["btrfs", "chattr", "perl"]) {
        return;
    }
    let Some(bed) = Bed::for_root(TEST) else { return };
    let bed = bed.with_image();
    bed.mount_ok("rw");
    let image = bed.scratch.sparse_file("kernel.img", 512 << 20);
    mkfs(&image, &[]);
    let kernel = KernelMount::new(&image, "noatime");
    let (ours, theirs) = (answers_to_flags(BINARY, &bed.at), answers_to_flags("btrfs", kernel.path()));
    let answer = |line: &String| line.rsplit(": ").next().unwrap_or_default().to_owned();
    let (ours_said, theirs_said): (Vec<_>, Vec<_>) =
        (ours.iter().map(answer).collect(), theirs.iter().map(answer).collect());
    assert_eq!(ours_said, theirs_said, "ours: {ours:#?}, the kernel's: {theirs:#?}");
    umount(&bed);
    assert_eq!(kernel.finish(), [""; 0]);
}
