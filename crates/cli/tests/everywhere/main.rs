//! Every command that acts on a mount, and system calls beside them, in every situation: the answer must be the one of
//! the kernel's btrfs in the same situation, or stand in [`DIFFERENCES`] with its reason.
//!
//! 1. Each subcommand of the program is in [`ACTS`] or in [`ELSEWHERE`].
//! 2. In the situation `plain` every act succeeds on both sides.
//! 3. A listed difference that does not occur is a failure too.

mod across;
mod acts;
#[path = "../common/mod.rs"]
mod common;
mod deletions;
mod differences;
mod hostile;
#[allow(dead_code)] // other tests of mounts need the rest
#[path = "../mounted/mod.rs"]
mod mounted;
mod remounts;
mod sides;
mod situations;
mod state;

use acts::{ACTS, ELSEWHERE, is_asked};
use differences::{DIFFERENCES, place_of, unseen};
use sides::{Side, is_unknown, umount};
use situations::SITUATIONS;
use state::FolderState;
use std::os::unix::fs::PermissionsExt;

use butterfs_testkit::kernel::{KernelMount, mkfs};
use butterfs_testkit::requirement;
use common::butterfs_ok;
use mounted::Bed;
use std::path::Path;

const BINARY: &str = env!("CARGO_BIN_EXE_butterfs");

/// Both sides, with a stream of a subvolume that lies in no folder of theirs.
fn sides(bed: &Bed, kernel: &KernelMount, kernel_image: &Path) -> [Side; 2] {
    let sides = [
        Side::new(BINARY, bed.scratch.folder("ours"), &bed.at, &bed.image),
        Side::new("btrfs", bed.scratch.folder("kernels"), kernel.path(), kernel_image),
    ];
    for side in &sides {
        side.fill("source");
        make_image(side.tool, &side.aside.join("more.img"));
        let script = "mv $top/source/ro $top/source/sent; $tool send -q -f $stream $top/source/sent; chmod 644 $stream";
        let (tool, stream) = (Path::new(side.tool), side.stream());
        mounted::shell(script, &[("tool", tool), ("top", &side.top), ("stream", &stream)]);
    }
    sides
}

/// An image that every user may write to.
fn make_image(tool: &str, path: &Path) {
    match tool {
        BINARY => drop(butterfs_ok(&["mkfs", "-q", "-b", "128M", mounted::text(path)])),
        _ => {
            std::fs::File::create(path).unwrap().set_len(128 << 20).unwrap();
            mkfs(path, &[]);
        }
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).unwrap();
}

/// Does the same on both sides at a time.
fn on_both<S: Sync, T: Send>(sides: &[S; 2], act: impl Fn(&S) -> T + Sync) -> [T; 2] {
    std::thread::scope(|scope| {
        let ours = scope.spawn(|| act(&sides[0]));
        let kernels = act(&sides[1]);
        [ours.join().expect("it does not panic"), kernels]
    })
}

#[test]
fn every_act_in_every_situation_is_answered_as_by_the_kernel() {
    const TEST: &str = "everywhere";
    if !requirement::kernel_btrfs(TEST) || !requirement::programs(TEST, &["btrfs", "xfs_io", "setpriv", "unshare"]) {
        return;
    }
    let Some(bed) = Bed::for_root(TEST) else { return };
    let bed = bed.slow(TEST).with_image();
    bed.mount_ok("rw,allow_other");
    let image = bed.scratch.sparse_file("kernel.img", 512 << 20);
    mkfs(&image, &[]);
    let kernel = KernelMount::new(&image, "");
    let other = bed.scratch.folder("other");
    let sides = sides(&bed, &kernel, &image);
    let (mut table, mut wrong, mut used) = (String::new(), String::new(), Vec::new());
    for (number, (situation, shell)) in SITUATIONS.iter().enumerate() {
        let folder = format!("w{number}");
        on_both(&sides, |side| side.fill(&folder));
        let [ours, kernels] = on_both(&sides, |side| FolderState::of(side, &folder));
        let mut differ = ours.differences(&kernels);
        for (act, ours, theirs) in ACTS.iter().filter(|act| is_asked(act.0, situation)) {
            let [(mine, state), (kernels, kernels_state)] = on_both(&sides, |side| {
                let line = if side.is_ours() || theirs.is_empty() { ours } else { theirs };
                (side.ask(&other, &folder, line, shell), FolderState::of(side, &folder))
            });
            table += &format!("{situation:28} {act:34} {mine:10} {kernels}\n");
            let is_plain = *situation == "plain" && (mine != "done" || kernels != "done");
            let listed = place_of(DIFFERENCES, act, situation, &mine, &kernels);
            if is_unknown(&mine) || listed.is_none() && (mine != kernels || is_plain) {
                wrong += &format!("{situation}: {act}: {mine}, kernel: {kernels}\n");
            }
            used.extend(listed);
            // An answer that differs leaves different trees; acts behind it add nothing to that.
            let now = state.differences(&kernels_state);
            if mine == kernels {
                now.difference(&differ).for_each(|new| wrong += &format!("{situation}: {act}: afterwards {new}\n"));
            }
            differ.extend(now);
        }
    }
    wrong += &unseen(DIFFERENCES, &used);
    assert!(wrong.is_empty(), "{table}\n{wrong}");
    butterfs_ok(&["subvolume", "set-default", "5", mounted::text(&bed.at)]);
    umount(&bed);
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
