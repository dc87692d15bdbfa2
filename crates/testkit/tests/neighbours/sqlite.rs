//! SQLite: several writers on one database, in each journal mode, while the serving process is killed.
//!
//! Each writer prints a number after the commit that stored it, so everything printed must be there afterwards. That
//! asks for `synchronous=EXTRA`: with `FULL` SQLite does not sync the folder after it has removed the journal of a
//! commit.

use crate::{can_run, factor, image};
use butterfs_testkit::kernel::{check_all, run, run_ok};
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::serve::Served;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const WRITERS: usize = 4;

/// Inserts numbers, one a transaction, and prints each once it is stored.
fn writer(database: &Path, number: usize, log: &Path) -> Child {
    let script = "n=$3; while n=$((n + 1)); do
        sqlite3 -cmd '.timeout 5000' \"$1\" \"PRAGMA synchronous=EXTRA; INSERT INTO t VALUES($n, randomblob(3000));\" \
        || exit 0
        echo $n >> \"$2\"
    done";
    let log = log.display().to_string();
    let first = (number * 10_000_000).to_string();
    let database = database.display().to_string();
    let mut command = Command::new("timeout");
    command.args(["60", "bash", "-c", script, "writer", &database, &log, &first]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("bash")
}

/// Everything that was acknowledged is there, and the database is whole.
fn look(database: &Path, logs: &[std::path::PathBuf]) -> usize {
    let database = database.display().to_string();
    let ask = |sql: &str| run_ok(60, "sqlite3", &[&database, sql]);
    assert_eq!(ask("PRAGMA integrity_check;"), "ok\n");
    let stored: std::collections::HashSet<String> = ask("SELECT n FROM t;").lines().map(str::to_owned).collect();
    let mut acknowledged = 0;
    for log in logs {
        for line in std::fs::read_to_string(log).unwrap_or_default().lines() {
            assert!(stored.contains(line), "{line} was acknowledged and is not in the database");
            acknowledged += 1;
        }
    }
    acknowledged
}

fn torture(test: &str, mode: &str, kills: usize) {
    if !can_run(test, &["sqlite3"]) {
        return;
    }
    let scratch = Scratch::new(test);
    let image = image(&scratch, "image");
    let at = scratch.folder("mnt");
    let database = at.join("database");
    let logs: Vec<_> = (0..WRITERS * kills).map(|number| scratch.join(&format!("log-{number}"))).collect();
    for round in 0..kills {
        let served = Served::mount(&image, &at, "");
        if round == 0 {
            let make = format!("PRAGMA journal_mode={mode}; CREATE TABLE t(n INTEGER PRIMARY KEY, b BLOB);");
            assert_eq!(run(60, "sqlite3", &[&database.display().to_string(), &make]).code, Some(0));
            assert_eq!(run(60, "sync", &["-f", &at.display().to_string()]).code, Some(0));
        }
        look(&database, &logs);
        let of_round = round * WRITERS..(round + 1) * WRITERS;
        let writers: Vec<Child> = of_round.map(|number| writer(&database, number + 1, &logs[number])).collect();
        std::thread::sleep(Duration::from_millis(400 + 130 * (round as u64 % 7)));
        served.kill();
        for mut writer in writers {
            writer.wait().expect("our own child");
        }
    }
    let served = Served::mount(&image, &at, "");
    let acknowledged = look(&database, &logs);
    println!("{mode}: {kills} kills, {acknowledged} transactions were acknowledged and are there");
    assert!(acknowledged > kills);
    served.unmount();
    check_all(&image);
}

#[test]
fn sqlite_and_two_kills() {
    torture("sqlite_and_two_kills", "WAL", 2);
}

#[test]
#[ignore = "long: cargo xtask soak sqlite"]
fn sqlite_in_each_journal_mode() {
    for mode in ["WAL", "DELETE", "TRUNCATE", "PERSIST"] {
        torture("sqlite_in_each_journal_mode", mode, 10 * factor());
    }
}
