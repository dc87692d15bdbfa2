//! btrbk, as Debian packages it, on a mount: a run that is interrupted in the middle of a stream is made good by the
//! next one, and meanwhile nothing looks like a backup that is none.
//!
//! btrbk runs `btrfs`, which is the command under test here, and reads the mount table with `cat`, which says here that
//! the mount is of type btrfs.

mod common;
#[allow(dead_code)] // what other tests of mounts need
mod mounted;

use butterfs_testkit::kernel::{Finished, run, unmount};
use butterfs_testkit::requirement;
use common::butterfs_ok;
use mounted::{Bed, eventually, shell, text};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const BINARY: &str = env!("CARGO_BIN_EXE_butterfs");
/// The bytes of a stream before it is interrupted: less than the snapshot has.
const CUT: usize = 150_000;

/// How a receive ends too early.
const INTERRUPTIONS: [&str; 3] = ["pipe", "command", "server"];

struct Backup {
    bed: Bed,
    programs: PathBuf,
    settings: PathBuf,
}

fn program(path: &Path, script: &str) {
    fs::write(path, script).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

impl Backup {
    fn new(test: &str) -> Option<Backup> {
        if !requirement::programs(test, &["btrbk", "bash", "sed"]) {
            return None;
        }
        let bed = Bed::for_root(test)?.with_image();
        let (programs, settings) = (bed.scratch.folder("programs"), bed.scratch.join("btrbk.conf"));
        let (at, scratch) = (text(&bed.at), text(bed.scratch.path()));
        let mount_table = format!(
            "#!/bin/bash\n[ \"$1\" = /proc/self/mountinfo ] || exec /bin/cat \"$@\"\n\
             sed -E 's#^(.* {at} .* - )[^ ]+ ([^ ]+) .*#\\1btrfs \\2 rw,subvolid=5,subvol=/#' /proc/self/mountinfo\n"
        );
        program(&programs.join("cat"), &mount_table);
        // A receive is interrupted as the file says: the stream ends early, the command is killed while its sender
        // hangs, or the process that serves the mount is killed.
        let wrapper = format!(
            "#!/bin/bash\nhow=$(/bin/cat '{scratch}/how' 2>/dev/null)\n\
             if [ \"$1\" != receive ] || [ -z \"$how\" ]; then exec '{BINARY}' \"$@\"; fi\n\
             if [ \"$how\" = pipe ]; then head -c {CUT} | '{BINARY}' \"$@\"; exit 1; fi\n\
             exec 4< <(head -c {CUT}; sleep 3)\n\
             '{BINARY}' \"$@\" <&4 & receiver=$!\n\
             until ls '{at}/backup' | grep -q partial; do sleep 0.05; done\n\
             if [ \"$how\" = server ]; then '{BINARY}' filesystem sync '{at}'; kill -9 $(/bin/cat '{scratch}/server'); \
             fi\n\
             kill -9 $receiver; exit 1\n"
        );
        program(&programs.join("btrfs"), &wrapper);
        let lines = format!("volume {at}\n snapshot_dir snaps\n subvolume src\n  target send-receive {at}/backup\n");
        fs::write(&settings, lines).unwrap();
        Some(Backup { bed, programs, settings })
    }

    fn btrbk(&self, arguments: &str) -> Finished {
        let script =
            format!("PATH='{}':$PATH btrbk -c '{}' {arguments}", self.programs.display(), self.settings.display());
        run(60, "bash", &["-c", &script])
    }

    fn how(&self, how: &str) {
        fs::write(self.bed.scratch.join("how"), how).unwrap();
        let server = self.bed.serving_process().unwrap();
        fs::write(self.bed.scratch.join("server"), server.to_string()).unwrap();
    }

    fn backups(&self) -> Vec<String> {
        let names = fs::read_dir(self.bed.path("backup")).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }
}

#[test]
fn the_next_run_of_btrbk_succeeds() {
    let Some(backup) = Backup::new("the_next_run_of_btrbk_succeeds") else { return };
    let bed = &backup.bed;
    bed.mount_ok("noatime");
    let script =
        r#"cd "$at"; mkdir snaps backup; "$butterfs" subvolume create src; head -c 400000 /dev/urandom > src/first"#;
    shell(script, &[("at", &bed.at), ("butterfs", Path::new(BINARY))]);
    for (number, how) in INTERRUPTIONS.into_iter().enumerate() {
        let complete = backup.backups().len();
        shell(r#"cd "$at/src"; head -c 400000 /dev/urandom > $RANDOM-more"#, &[("at", &bed.at)]);
        backup.how(how);
        let interrupted = backup.btrbk("run");
        assert_ne!(interrupted.code, Some(0), "{how}: {}", interrupted.output);
        if how == "server" {
            eventually(|| bed.serving_process().is_none());
            unmount(&bed.at);
            bed.mount_ok("noatime");
        }
        let left = backup.backups();
        assert_eq!(left.iter().filter(|name| name.ends_with(".partial")).count(), 1, "{how}: {left:?}");
        // What is left is no backup, for this tool and for any that asks.
        eventually(|| {
            fs::metadata(bed.path("backup").join(left.iter().find(|name| name.ends_with("partial")).unwrap())).is_ok()
        });
        backup.how("");
        let listed = backup.btrbk("list backups --format=raw");
        assert!(!listed.output.contains("partial"), "{how}: {}", listed.output);
        let shown = butterfs_ok(&["subvolume", "list", "-R", text(&bed.at)]);
        let partial = shown.lines().find(|line| line.ends_with(".partial")).unwrap();
        assert!(partial.contains("received_uuid -"), "{how}: {shown}");
        let next = backup.btrbk("run");
        assert_eq!(next.code, Some(0), "{how}: {}", next.output);
        let now = backup.backups();
        assert!(!now.iter().any(|name| name.ends_with(".partial")), "{how}: {now:?}");
        assert!(now.len() > complete, "{how}: {now:?}");
        let newest = bed.path("backup").join(now.last().unwrap());
        assert_eq!(fs::read_dir(&newest).unwrap().count(), number + 2, "{how}");
        assert!(fs::write(newest.join("new"), b"").is_err(), "{how}: it is read-only");
    }
    bed.umount_ok();
    butterfs_ok(&["check", "-q", text(&bed.image)]);
}

/// Kills the server at any moment of a run, again and again: what then looks like a backup is one, and the next run
/// succeeds.
#[test]
#[ignore = "long: cargo xtask soak btrbk"]
fn btrbk_with_kills() {
    let factor: u64 = std::env::var("BUTTERFS_NEIGHBOURS").map_or(1, |text| text.parse().expect("a number"));
    (0..factor).for_each(|part| six_kills(10 * part));
}

fn six_kills(first_delay: u64) {
    let Some(backup) = Backup::new("btrbk_with_kills") else { return };
    let bed = &backup.bed;
    let variables = [("at", bed.at.as_path()), ("butterfs", Path::new(BINARY))];
    bed.mount_ok("noatime");
    shell(
        r#"cd "$at"; mkdir snaps backup; "$butterfs" subvolume create src; seq 90000 > src/first; sync -f ."#,
        &variables,
    );
    backup.how("");
    let settings = fs::read_to_string(&backup.settings).unwrap();
    fs::write(&backup.settings, format!("timestamp_format long-iso\n{settings}")).unwrap();
    let mut unfinished = 0;
    for round in 0..6 {
        shell(CHANGE, &variables);
        let server = bed.serving_process().unwrap();
        let delay = std::time::Duration::from_millis(20 + first_delay + round * 60);
        std::thread::scope(|scope| {
            let run = scope.spawn(|| backup.btrbk("run"));
            std::thread::sleep(delay);
            assert_eq!(bed.serving_process(), Some(server));
            bed.kill();
            unfinished += u64::from(run.join().unwrap().code != Some(0));
        });
        bed.mount_after_kill("noatime");
        shell(COMPARE, &variables);
        // Two snapshots of one second would have one name.
        std::thread::sleep(std::time::Duration::from_millis(1000));
        let next = backup.btrbk("run");
        assert_eq!(next.code, Some(0), "round {round}: {}", next.output);
        let left = backup.backups();
        assert!(!left.iter().any(|name| name.ends_with(".partial")), "round {round}: {left:?}");
        shell(COMPARE, &variables);
    }
    println!("6 kills, {unfinished} in the middle of a run");
    assert!(unfinished > 1);
    bed.umount_ok();
    butterfs_ok(&["check", "-q", text(&bed.image)]);
}

/// A change of every kind in the source.
const CHANGE: &str = r#"
cd "$at/src"; n=$RANDOM$RANDOM; mkdir "d$n"; seq $RANDOM > "d$n/f"; ln "d$n/f" "link$n"
head -c 300000 /dev/urandom > "big$((n % 7))"
mv "d$n" "moved$((n % 50))" 2> /dev/null || true; ls -d link* | sort -R | tail -n +20 | xargs -r rm
"#;

/// Each snapshot and its backup are the same, and so is what belongs to them.
const COMPARE: &str = r#"
cd "$at/backup"
for one in *; do
  case $one in "*" | *.partial) continue ;; esac
  [ "$("$butterfs" property get -ts "$one" ro)" = ro=true ]
  [ ! -d "../snaps/$one" ] || rsync -aHAXnci --delete "../snaps/$one/" "$one/" | { ! grep .; }
done
"#;
