//! Neighbours that are one script each.

use crate::both;

/// Each engine times each way to ask for durability: writing with checksums, then a second look at them after a
/// remount. `$engines`, `$flags_asked` and `$size` say what is run.
const FIO: &str = r#"
job() {
  words="--name=job --filename=$at/$1 --ioengine=$2 --rw=randwrite --bs=4k --size=$size
    --iodepth=8 --fallocate=none --randseed=7
    --verify=crc32c --verify_state_save=0 --output=$scratch/$1.txt $3"
  case $4 in
    write) fio $words --do_verify=1 --verify_fatal=1 ;;
    verify) fio $words --verify_only=1 --verify_fatal=1 ;;
  esac
  # Checksums that are wrong do not change the exit code of every engine.
  ! grep -q 'verify: bad' "$scratch/$1.txt"
  echo "$1 $4 done"
}
each() {
  for engine in $engines; do
    for flags in $flags_asked; do
      for direct in 0 1; do
        [ "$engine$direct" != mmap1 ] || continue
        # With sync=dsync a mapping has no descriptor flag that would matter.
        job "$engine-$flags-$direct" $engine "--$flags --direct=$direct" $1
      done
    done
  done
}
"#;

fn fio(test: &str, engines: &str, flags: &str, size: &str) {
    let with = |pass: &str| format!("engines='{engines}' flags_asked='{flags}' size={size}\n{FIO}\neach {pass}\n");
    both(test, &["fio"], (&with("write"), &with("verify")), 3000);
}

#[test]
fn fio_with_the_usual_engine() {
    fio("fio_with_the_usual_engine", "psync", "sync=0 sync=dsync", "256k");
}

#[test]
#[ignore = "long: cargo xtask soak fio"]
fn fio_with_every_engine_and_flag() {
    let engines = "psync sync pvsync2 libaio io_uring mmap posixaio";
    fio("fio_with_every_engine_and_flag", engines, "sync=0 sync=1 sync=dsync fsync=1 fdatasync=1", "1m");
}

/// A tree with holes, hard links, attributes and ACLs goes in twice; the second time nothing is transferred.
const RSYNC: &str = r#"
source="$scratch/source"
if [ ! -d "$source" ]; then
  mkdir -p "$source"; cd "$source"
  for n in $(seq 1 $((400 * rounds))); do
    mkdir -p "d$((n % 40))"; head -c $((n * 97 % 30000)) /dev/zero | tr '\0' "$((n % 10))" > "d$((n % 40))/f$n"
    [ $((n % 7)) != 0 ] || ln "d$((n % 40))/f$n" "d$((n % 40))/link$n"
    [ $((n % 9)) != 0 ] || setfattr -n user.number -v "$n" "d$((n % 40))/f$n"
    [ $((n % 11)) != 0 ] || setfacl -m u:1234:r "d$((n % 40))/f$n"
    [ $((n % 13)) != 0 ] || ln -s "f$n" "d$((n % 40))/symlink$n"
  done
  truncate -s 20M sparse; printf end >> sparse
  cd "$at"
fi
copy() { rsync -aHAX --stats "$@" "$source/" "$at/$to/" | grep -E 'Number of (created|regular)|Total transferred'; }
for how in --whole-file --inplace --sparse '--inplace --no-whole-file'; do
  to="copy${how// /}"
  echo "$how"
  copy $how
  second=$(copy $how)
  echo "$second"
  echo "$second" | grep -q 'Number of regular files transferred: 0'
  # Another size: rsync does not look into a file that changed within a second.
  printf changed >> "$source/sparse"
  copy $how
  rsync -aHAXnc --itemize-changes --delete "$source/" "$at/$to/" | tee "$scratch/left"
  [ ! -s "$scratch/left" ]
done
"#;

const RSYNC_AGAIN: &str = r#"
for copy in copy*; do
  rsync -aHAXnc --itemize-changes --delete "$scratch/source/" "$at/$copy/" > "$scratch/left"
  # Another copy came after the last change of the source.
  grep -v sparse "$scratch/left" && exit 1 || true
  echo "$copy $(find $copy | wc -l)"
done
"#;

#[test]
#[ignore = "long: cargo xtask soak rsync"]
fn rsync_twice() {
    both("rsync_twice", &["rsync", "setfattr", "setfacl"], (RSYNC, RSYNC_AGAIN), 900);
}

/// Clone, parallel commits in work trees, packing, and a look at every object.
const GIT: &str = r#"
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b HOME="$scratch"
git init -q --initial-branch=main origin; cd origin
git config gc.auto 0; git config core.fsync all; git config core.fsyncMethod fsync
for n in $(seq 1 $((60 * rounds))); do
  mkdir -p "d$((n % 10))"; seq 1 $((n * 13 % 900)) > "d$((n % 10))/f$n"
  git add .; git commit -q -m "$n"
done
for tree in 1 2 3 4; do git worktree add -q "../tree$tree" -b "branch$tree"; done
for tree in 1 2 3 4; do
  (cd "../tree$tree"; for n in $(seq 1 $((20 * rounds))); do
    echo "$tree $n" >> "common"; git add .; git commit -q -m "$tree $n"
  done) &
done
wait
git gc -q --prune=now; git fsck --full --strict 2>&1
cd ..; git clone -q --no-hardlinks origin clone; git clone -q origin linked
for where in origin clone linked; do (cd $where; git fsck --full 2>&1
    git status --short; git rev-list --all --count); done
"#;

const GIT_AGAIN: &str = r#"
# The work trees refer to each other by the path of the mount, which is another one now.
for where in origin clone linked; do
  (cd $where; git fsck --full 2>&1; git status --short; git log --oneline --format=%s | md5sum)
done
"#;

#[test]
#[ignore = "long: cargo xtask soak git"]
fn git_in_parallel() {
    both("git_in_parallel", &["git"], (GIT, GIT_AGAIN), 1800);
}
