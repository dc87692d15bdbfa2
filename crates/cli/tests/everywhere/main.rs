//! Every command that acts on a mount, and system calls beside them, in every situation: the answer must be the one of
//! the kernel's btrfs in the same situation, or stand in [`DIFFERENCES`] with its reason.
//!
//! 1. Each subcommand of the program is in [`ACTS`] or in [`ELSEWHERE`].
//! 2. In the situation `plain` every act succeeds on both sides.
//! 3. A listed difference that does not occur is a failure too.

mod acts;
#[path = "../common/mod.rs"]
mod common;
mod deletions;
mod differences;
#[allow(dead_code)] // other tests of mounts need the rest
#[path = "../mounted/mod.rs"]
mod mounted;
mod sides;
mod situations;

use acts::{ACTS, ELSEWHERE};
use differences::{DIFFERENCES, is_listed};
use sides::{ask, fill, stream};
use situations::SITUATIONS;

use butterfs_testkit::kernel::{KernelMount, mkfs};
use butterfs_testkit::requirement;
use common::butterfs_ok;
use mounted::Bed;
use std::path::Path;

const BINARY: &str = env!("CARGO_BIN_EXE_butterfs");

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
