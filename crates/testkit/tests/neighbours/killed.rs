//! fio and git while the serving process is killed: everything that was acknowledged as durable is there afterwards.

use crate::{can_run, factor, image};
use butterfs_testkit::kernel::{check_all, run, run_ok};
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::serve::Served;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Starts a script in the background, with words as its arguments. It ends by itself within two minutes.
fn start(script: &str, words: &[&str]) -> Child {
    let mut command = Command::new("timeout");
    command.args(["120", "bash", "-c", script, "neighbour"]).args(words);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("bash")
}

/// fio writes with an engine in two files until it kills the server ($2) itself, after it has saved which writes had
/// been acknowledged. The depth is 1: with more, fio 3.33 counts writes that are under way as acknowledged, which it
/// does also where the server only stops. A file has its size from the beginning: fio fills a shorter one before it
/// looks.
const FIO: &str = r#"
set -euo pipefail
cd "$1"; shift
truncate -s 64m m/f.0.0 m/f.1.0; sync -f m
words="--name=job --directory=m --filename_format=f.\$jobnum.\$filenum --numjobs=2
 --rw=randwrite --bs=4k --size=64m --iodepth=1 --fallocate=none --verify=crc32c --aux-path=$PWD"
case $1 in
  write) rm -f ./*.state; fio $words $3 --verify_state_save=1 --trigger-timeout=1 --trigger="kill -9 $2" || true
    ls ./*.state ;;
  verify) fio $words $3 --verify_state_load=1 --verify_only=1 --verify_fatal=1 --output=verified.txt
    cat verified.txt; ! grep -q 'verify: ' verified.txt ;;
esac
"#;

/// Bytes that fio's report says it has read.
fn blocks_read(report: &str) -> usize {
    let total = report.lines().find_map(|line| line.trim().strip_prefix("READ:"));
    let bytes = total.and_then(|line| line.split("io=").nth(1)?.split(['(', ')']).nth(1)?.split_once('B'));
    let (number, unit) =
        match bytes.map(|(number, _)| number.split_at(number.len() - usize::from(number.ends_with(['k', 'M'])))) {
            Some((number, unit)) => (number.parse::<f64>().unwrap_or(0.0), unit),
            None => (0.0, ""),
        };
    let factor = match unit {
        "k" => 1e3,
        "M" => 1e6,
        _ => 1.0,
    };
    (number * factor / 4096.0).round() as usize
}

fn fio_killed(test: &str, engines: &[&str], rounds: usize) {
    if !can_run(test, &["fio"]) {
        return;
    }
    let scratch = Scratch::new(test);
    let at = scratch.folder("m");
    let folder = scratch.path().display().to_string();
    let (mut kills, mut blocks) = (0, 0);
    for round in 0..rounds {
        for engine in engines {
            for how in ["--sync=1 --direct=0", "--sync=dsync --direct=1"] {
                let image = image(&scratch, "image");
                let served = Served::mount(&image, &at, "");
                let words = format!("--ioengine={engine} {how} --randseed={}", round + 1);
                let server = served.id().to_string();
                let wrote = run(60, "bash", &["-c", FIO, "fio", &folder, "write", &server, &words]);
                served.dead();
                assert_eq!(wrote.code, Some(0), "{words}: {}", wrote.output);
                let served = Served::mount(&image, &at, "");
                let verified = run(60, "bash", &["-c", FIO, "fio", &folder, "verify", "0", &words]);
                assert_eq!(verified.code, Some(0), "{words}: {}", verified.output);
                served.unmount();
                check_all(&image);
                (kills, blocks) = (kills + 1, blocks + blocks_read(&verified.output));
            }
        }
    }
    println!("fio: {kills} kills, {blocks} blocks were acknowledged and are there");
    assert!(blocks > 10 * kills);
}

#[test]
fn fio_and_two_kills() {
    fio_killed("fio_and_two_kills", &["psync"], 1);
}

#[test]
#[ignore = "long: cargo xtask soak fio-kills"]
fn fio_killed_with_each_engine() {
    let engines = ["psync", "sync", "pvsync2", "libaio", "io_uring", "posixaio"];
    fio_killed("fio_killed_with_each_engine", &engines, factor());
}

const REPOSITORY: &str = r#"
set -euo pipefail
export HOME="$2"; cd "$1"
git init -q --initial-branch=main all; cd all
git config user.name a; git config user.email a@b; git config gc.auto 0
git config core.fsync all; git config core.fsyncMethod fsync
seq 1 2000 > file; git add .; git commit -q -m first
for tree in 1 2 3; do git worktree add -q "../tree$tree" -b "branch$tree"; done
sync -f .
"#;

/// Commits in a work tree ($1), and says which commit is durable once `sync` has returned ($2).
const COMMITTER: &str = r#"
cd "$1"; export HOME="${2%/*}"; n=$(wc -l < "$2")
while n=$((n + 1)); do
  seq $n $((n + n % 700)) > "file$((n % 17))"; echo $n >> common
  [ $((n % 5)) != 0 ] || git rm -qf "file$(((n + 3) % 17))" 
  git add . && git commit -q -m "$n" || exit 0
  commit=$(git rev-parse HEAD) && sync -f . || exit 0
  echo $commit >> "$2"
done
"#;

/// Packs what the others have committed, again and again.
const PACKER: &str = r#"
cd "$1"; export HOME="$2"
while git repack -adq --write-bitmap-index && git pack-refs --all && git prune-packed -q; do
    git multi-pack-index write --no-progress || exit 0
done
"#;

/// Every durable commit is there with all that it refers to, each branch has one or a later commit, and from there on
/// nothing in the repository is damaged. A killed git leaves locks. What was not durable may lack objects: git syncs an
/// object before it gets its name and never the name, and on btrfs a name may reach the disk after a reference to it.
/// So an index of several packs may name a pack that still has its temporary name, on the kernel's btrfs too: a rename
/// enters the log only if the file was synced since the last commit. The script deletes such an index.
const LOOK: &str = r#"
set -euo pipefail
export HOME="$2"; cd "$1/all"
find .git -name '*.lock' -delete
if [ -e .git/objects/pack/multi-pack-index ]; then
  for pack in $(grep -ao 'pack-[0-9a-f]*[.]idx' .git/objects/pack/multi-pack-index); do
    [ -e ".git/objects/pack/$pack" ] || rm -f .git/objects/pack/multi-pack-index*
  done
fi
for tree in 1 2 3; do
  durable=$(tail -n 1 "$2/log$tree"); durable=${durable:-$(git rev-parse main)}
  git rev-list --objects "$durable" | cut -d' ' -f1 | git cat-file --batch-check | { ! grep missing; }
  tip=$(git rev-parse "branch$tree")
  ! git cat-file -e "$tip" || git merge-base --is-ancestor "$durable" "$tip"
  (cd "../tree$tree"; rm -f "$(git rev-parse --git-path index)"
    git update-ref "refs/heads/branch$tree" "$durable"; git reset -q --hard; git status --short -uno)
done
git fsck --full --strict --no-dangling --no-reflogs 2>&1
"#;

fn git_killed(test: &str, kills: usize) {
    if !can_run(test, &["git"]) {
        return;
    }
    let scratch = Scratch::new(test);
    let (image, at, home) = (image(&scratch, "image"), scratch.folder("mnt"), scratch.folder("home"));
    let text = |path: &Path| path.display().to_string();
    let logs: Vec<_> = (1..=3).map(|tree| home.join(format!("log{tree}"))).collect();
    logs.iter().for_each(|log| std::fs::write(log, "").expect("scratch space"));
    let look = || {
        let looked = run(120, "bash", &["-c", LOOK, "look", &text(&at), &text(&home)]);
        assert_eq!((looked.code, looked.output.trim()), (Some(0), ""), "after a kill");
    };
    for round in 0..kills {
        let served = Served::mount(&image, &at, "");
        match round {
            0 => drop(run_ok(60, "bash", &["-c", REPOSITORY, "make", &text(&at), &text(&home)])),
            _ => look(),
        }
        let committers =
            (1..=3).map(|tree| start(COMMITTER, &[&text(&at.join(format!("tree{tree}"))), &text(&logs[tree - 1])]));
        let mut workers: Vec<Child> = committers.collect();
        workers.push(start(PACKER, &[&text(&at.join("all")), &text(&home)]));
        std::thread::sleep(Duration::from_millis(1500 + 370 * (round as u64 % 9)));
        served.kill();
        for mut worker in workers {
            worker.wait().expect("our own child");
        }
    }
    let served = Served::mount(&image, &at, "");
    look();
    let commits: usize = logs.iter().map(|log| std::fs::read_to_string(log).expect("ours").lines().count()).sum();
    println!("git: {kills} kills, {commits} commits were durable and are there");
    assert!(commits > kills);
    served.unmount();
    check_all(&image);
}

#[test]
fn git_and_two_kills() {
    git_killed("git_and_two_kills", 2);
}

#[test]
#[ignore = "long: cargo xtask soak git-kills"]
fn git_killed_while_it_packs() {
    git_killed("git_killed_while_it_packs", 20 * factor());
}
