//! The suites of git and of SQLite, with their working folders on our mount. `cargo xtask soak git-suite` and
//! `sqlite-suite` fetch and build them. What fails here is asked again; it counts when it fails again and not on the
//! kernel's btrfs.

use crate::{can_run, image};
use butterfs_testkit::kernel::{Finished, KernelMount, check_all, run};
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::serve::Served;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Runs the tests in `$tests` of a suite, with `one` (which runs test `$1`), and prints the names of those that fail.
const EACH: &str = r#"
export -f one; export suite at
echo "$tests" | xargs -P4 -I{} bash -c 'name={}; one {} > "$at/${name//\//-}.log" 2>&1 < /dev/null || echo "failed {}"'
"#;

/// A suite: how its tests are listed, and how one is run in `$at`.
struct Suite {
    name: &'static str,
    list: &'static str,
    one: &'static str,
}

/// Without those of the bridges to other systems (9000 and up).
const GIT: Suite = Suite {
    name: "git",
    list: "cd \"$suite/t\"; ls t[0-8]*.sh",
    one: "one() { cd \"$suite/t\"; TEST_OUTPUT_DIRECTORY=\"$at/out-$1\" timeout 3600 bash \"$1\" \
          --root=\"$at/trash-$1\" && rm -rf \"$at/trash-$1\"; }",
};

/// The multi-process tester, whose clients are killed and change journal modes, and those test files that are about
/// files.
const SQLITE: Suite = Suite {
    name: "sqlite",
    list: "cd \"$suite\"; ls mptest/*.test; cd test; ls -d wal*.test *lock*.test journal*.test jrnlmode*.test \
           crash*.test *ioerr*.test thread*.test *sync*.test atomic*.test *vacuum*.test pager*.test mmap*.test \
           backup*.test tempdb*.test exclusive*.test savepoint*.test shared*.test temptable*.test symlink*.test \
           notify*.test multiplex*.test superlock*.test",
    one: "one() { mkdir -m 777 \"$at/d-${1##*/}\"; cd \"$at/d-${1##*/}\"
          case $1 in
            mptest/*) timeout 3600 \"$suite/mptester\" db \"$suite/$1\" --timeout 300000 ;;
            *) timeout 3600 setpriv --reuid 65534 --regid 65534 \
            --clear-groups \"$suite/testfixture\" \"$suite/test/$1\" ;;
          esac; }",
};

fn folder_of(suite: &Suite) -> Option<PathBuf> {
    let folder = PathBuf::from(std::env::var_os("BUTTERFS_TOOLS")?).join("suites").join(suite.name);
    folder.is_dir().then_some(folder)
}

/// Runs a script about a suite with `$at` in a new folder on a filesystem.
fn ask(suite: &Suite, root: &Path, tests: &str, text: &str) -> Finished {
    let (at, folder) = (root.join("work"), folder_of(suite).expect("asked before"));
    let (at, folder) = (at.display(), folder.display());
    let one = suite.one;
    let all = format!("rm -rf '{at}'; mkdir -m 777 '{at}'\nat='{at}' suite='{folder}' tests='{tests}'\n{one}\n{text}");
    run(4 * 3600, "bash", &["-c", &all])
}

/// Of the tests, those that fail on the filesystem.
fn failing(suite: &Suite, root: &Path, tests: &BTreeSet<String>) -> BTreeSet<String> {
    let list: Vec<&str> = tests.iter().map(String::as_str).collect();
    let done = ask(suite, root, &list.join("\n"), EACH);
    done.output.lines().filter_map(|line| line.strip_prefix("failed ")).map(str::to_owned).collect()
}

fn suite(test: &str, suite: &Suite) {
    if !can_run(test, &["git", "make", "gcc", "setpriv"]) {
        return;
    }
    if folder_of(suite).is_none() {
        requirement::skip(test, "the suite is not there; `cargo xtask soak` fetches it");
        return;
    }
    let scratch = Scratch::new(test);
    let image = image(&scratch, "ours");
    let served = Served::mount(&image, &scratch.folder("mnt"), "allow_other");
    let listed = ask(suite, served.path(), "", suite.list);
    let mut all: BTreeSet<String> = listed.output.split_whitespace().map(str::to_owned).collect();
    if let Ok(filter) = std::env::var("BUTTERFS_SUITE") {
        all.retain(|name| name.starts_with(&filter));
    }
    assert!(!all.is_empty(), "{}", listed.output);
    let first = failing(suite, served.path(), &all);
    let twice = if first.is_empty() { first.clone() } else { failing(suite, served.path(), &first) };
    println!("{}: {} test programs, failed {first:?}, again {twice:?}", suite.name, all.len());
    let theirs = crate::image(&scratch, "theirs");
    let kernel = KernelMount::new(&theirs, "");
    let expected = if twice.is_empty() { twice.clone() } else { failing(suite, kernel.path(), &twice) };
    kernel.finish();
    let worse: Vec<&String> = twice.difference(&expected).collect();
    assert!(
        worse.is_empty(),
        "fail here and not on the kernel's btrfs: {worse:?}; logs in {}",
        served.path().display()
    );
    served.unmount();
    check_all(&image);
}

#[test]
#[ignore = "long: cargo xtask soak git-suite"]
fn the_suite_of_git() {
    suite("the_suite_of_git", &GIT);
}

#[test]
#[ignore = "long: cargo xtask soak sqlite-suite"]
fn the_suite_of_sqlite() {
    suite("the_suite_of_sqlite", &SQLITE);
}
