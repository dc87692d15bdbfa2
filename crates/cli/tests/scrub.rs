//! `butterfs scrub`, `health` and `device stats -z` as users call them: on mounts, and on images that nobody has
//! mounted.

mod common;
#[allow(dead_code)] // other programs use the rest
mod mounted;

use butterfs_device::{FileDevice, FileOptions};
use butterfs_fs::{Caller, Env, Filesystem, Options};
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use common::{Ran, butterfs, butterfs_ok, ran};
use mounted::{Bed, eventually, text};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A command whose state lies beside the test's images.
fn scrub(state: &Path, arguments: &[&str]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_butterfs"));
    command.arg("scrub").args(arguments).env("BUTTERFS_STATE_DIR", state).env("TZ", "UTC0");
    ran(command.output().expect("it runs"))
}

fn out(ran: &Ran) -> String {
    ran.stdout.clone()
}

fn err(ran: &Ran) -> String {
    ran.stderr.clone()
}

fn code(ran: &Ran) -> i32 {
    ran.code.expect("no signal")
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

/// An image of one device whose data lies there twice, with one file.
fn made(scratch: &Scratch, content: &[u8]) -> PathBuf {
    let image = scratch.path().join("disk.img");
    butterfs_ok(&["mkfs", "-q", "-b", "300M", "-d", "dup", text(&image)]);
    let device = FileDevice::open(&image, &FileOptions::read_write()).unwrap();
    let filesystem = Filesystem::open(vec![Arc::new(device)], Options::default(), Env::system()).unwrap();
    let caller = Caller { uid: 0, gid: 0, umask: 0, privileged: true };
    let file = filesystem.create(&caller, filesystem.root(), b"file", 0o644).unwrap();
    filesystem.write(file.id, 0, content, false).unwrap();
    filesystem.shutdown().unwrap();
    image
}

fn places(image: &Path, sector: &[u8]) -> Vec<u64> {
    let bytes = std::fs::read(image).unwrap();
    let starts = (0..bytes.len()).step_by(4096);
    starts.filter(|at| bytes[*at..*at + 4096] == sector[..4096]).map(|at| at as u64).collect()
}

fn flip(image: &Path, at: u64) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(image).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

#[test]
fn an_image_is_scrubbed_and_repaired_and_says_how() {
    let scratch = Scratch::new("scrub-image");
    let content = noise(1, 3 << 20);
    let image = made(&scratch, &content);
    let state = scratch.path().join("state");
    let damaged = places(&image, &content[8192..]);
    assert_eq!(damaged.len(), 2);
    flip(&image, damaged[1] + 77);
    let looked = scrub(&state, &["start", "-B", "-r", text(&image)]);
    assert_eq!(code(&looked), 0, "{}", err(&looked));
    assert!(out(&looked).contains("Error summary:    csum=1\n  Correctable:    1\n"), "{}", out(&looked));
    let repaired = scrub(&state, &["start", "-B", "--image", text(&image)]);
    assert_eq!(code(&repaired), 0, "{}", err(&repaired));
    assert!(out(&repaired).contains("Error summary:    csum=1\n  Corrected:      1\n"), "{}", out(&repaired));
    let said = err(&repaired);
    assert!(said.contains("'/file' (inode 257 of tree 5) at offset 8192 length 4096"), "{said}");
    assert!(said.ends_with("WARNING: errors detected during scrubbing, corrected\n"), "{said}");
    assert_eq!(places(&image, &content[8192..]), damaged);
    let status = scrub(&state, &["status", text(&image)]);
    assert!(out(&status).contains("Status:           finished\n"), "{}", out(&status));
    let files = scrub(&state, &["status", "--files", text(&image)]);
    assert!(out(&files).contains("repaired from copy 0"), "{}", out(&files));
    let json: serde_json::Value =
        serde_json::from_str(&scrub(&state, &["status", "--json", text(&image)]).stdout).unwrap();
    let damage = &json["scrub-status"]["damage"][0];
    assert_eq!((&damage["files"][0]["path"], &damage["outcome"]), (&"file".into(), &"repaired".into()));
    assert_eq!(json["scrub-status"]["devices"][0]["counters"]["csum_errors"], 1);
    // What is bad twice is lost.
    damaged.iter().for_each(|at| flip(&image, at + 5));
    let lost = scrub(&state, &["start", "-B", text(&image)]);
    assert_eq!(code(&lost), 3, "{}", err(&lost));
    assert!(err(&lost).ends_with("ERROR: there are uncorrectable errors\n"), "{}", err(&lost));
    // The errors of both runs that could write are counted, as the next mount tells.
    let counted = butterfs_ok(&["device", "stats", text(&image)]);
    assert!(counted.contains(".corruption_errs  3\n"), "{counted}");
    let again = scrub(&state, &["start", "-B", "--errors-of", "LAST", text(&image)]);
    assert_eq!(code(&again), 3);
    assert!(out(&again).contains("Uncorrectable:  2\n"), "{}", out(&again));
    let resumed = scrub(&state, &["resume", "-B", text(&image)]);
    assert!(out(&resumed).starts_with("scrub: nothing to resume for "), "{}", out(&resumed));
    assert_eq!(code(&resumed), 2);
    let cancelled = scrub(&state, &["cancel", text(&image)]);
    assert_eq!(code(&cancelled), 2);
    assert_eq!(err(&cancelled), format!("ERROR: scrub cancel failed on {}: not running\n", image.display()));
}

#[test]
fn a_scrub_of_an_image_in_the_background_is_cancelled_and_resumed() {
    let scratch = Scratch::new("scrub-background");
    let image = made(&scratch, &noise(2, 40 << 20));
    let state = scratch.path().join("state");
    let started = scrub(&state, &["start", "--limit", "6m", text(&image)]);
    assert!(out(&started).starts_with(&format!("scrub started on {}, fsid ", image.display())), "{started:?}");
    let status = scrub(&state, &["status", text(&image)]);
    assert!(out(&status).contains("Status:           running\n"), "{}", out(&status));
    let second = scrub(&state, &["start", "-B", text(&image)]);
    assert_eq!(code(&second), 1);
    assert!(err(&second).starts_with("ERROR: Scrub is already running.\n"), "{}", err(&second));
    let cancelled = scrub(&state, &["cancel", text(&image)]);
    assert_eq!(out(&cancelled), "scrub cancelled\n", "{}", err(&cancelled));
    let status = scrub(&state, &["status", text(&image)]);
    assert!(out(&status).contains("Status:           aborted\n"), "{}", out(&status));
    let resumed = scrub(&state, &["resume", "-BR", text(&image)]);
    assert_eq!(code(&resumed), 0, "{}", err(&resumed));
    let whole = scrub(&state, &["start", "-BR", text(&image)]);
    let counters =
        |text: &str| text.lines().filter(|line| line.starts_with('\t')).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(counters(&out(&resumed)), counters(&out(&whole)));
    assert!(out(&resumed).contains("Scrub resumed:    "), "{}", out(&resumed));
}

/// A scrub that is killed at random moments and resumed verifies and repairs as if it never had been.
#[test]
fn a_killed_scrub_is_resumed() {
    let kills = std::env::var("BUTTERFS_TORTURE").ok().and_then(|count| count.parse().ok()).unwrap_or(4);
    let scratch = Scratch::new("scrub-killed");
    let content = noise(3, 24 << 20);
    let image = made(&scratch, &content);
    let state = scratch.path().join("state");
    let damaged: Vec<Vec<u64>> = [1, 11, 22].map(|mib| places(&image, &content[mib << 20..])).to_vec();
    damaged.iter().for_each(|places| flip(&image, places[0] + 9));
    let mut rng = Rng::new(4);
    for kill in 0..kills {
        let word = if kill == 0 { "start" } else { "resume" };
        let started = scrub(&state, &[word, "--limit", "20m", text(&image)]);
        let pid = out(&started).split("pid=").nth(1).and_then(|rest| rest.split(')').next()).map(str::to_owned);
        let pid = pid.unwrap_or_else(|| panic!("{started:?}"));
        std::thread::sleep(std::time::Duration::from_millis(rng.below(300)));
        assert!(Command::new("kill").args(["-9", &pid]).status().expect("kill runs").success());
        eventually(|| !out(&scrub(&state, &["status", text(&image)])).contains("running"));
        let status = scrub(&state, &["status", text(&image)]);
        assert!(out(&status).contains("Status:           interrupted\n"), "{}", out(&status));
    }
    let resumed = scrub(&state, &["resume", "-BR", text(&image)]);
    assert_eq!(code(&resumed), 0, "{}", err(&resumed));
    for (number, mib) in [1, 11, 22].into_iter().enumerate() {
        assert_eq!(places(&image, &content[mib << 20..]), damaged[number], "everything is repaired");
    }
    let whole = scrub(&state, &["start", "-BR", text(&image)]);
    assert_eq!(code(&whole), 0, "{}", err(&whole));
    let verified = |ran: &Ran| -> Vec<String> {
        let text = out(ran);
        let lines = text.lines().filter(|line| line.contains("_scrubbed") || line.contains("last_physical"));
        lines.map(str::to_owned).collect()
    };
    assert!(verified(&whole).len() == 5 && verified(&resumed) == verified(&whole), "{resumed:?}\n{whole:?}");
    assert!(out(&whole).contains("csum_errors: 0"), "{}", out(&whole));
}

#[test]
fn a_mount_is_scrubbed_limited_and_healthy() {
    let Some(bed) = Bed::for_root("scrub_mount") else { return };
    let state = bed.image.with_extension("state");
    let content = noise(3, 24 << 20);
    butterfs_ok(&["mkfs", "-q", "-b", "300M", "-d", "dup", text(&bed.image)]);
    butterfs_ok(&["mount", text(&bed.image), text(&bed.at)]);
    std::fs::write(bed.path("file"), &content).unwrap();
    butterfs_ok(&["subvolume", "snapshot", text(&bed.at), text(&bed.path("snap"))]);
    let at = text(&bed.at);
    assert!(out(&butterfs(&["health", at])).contains("       state: ONLINE\n"));
    let never = scrub(&state, &["status", at]);
    assert!(out(&never).contains("\n\tno stats available\n"), "{}", out(&never));
    butterfs_ok(&["umount", at]);
    let damaged = places(&bed.image, &content[4096 * 9..]);
    flip(&bed.image, damaged[1] + 9);
    butterfs_ok(&["mount", text(&bed.image), at]);
    let done = scrub(&state, &["start", "-B", at]);
    assert_eq!(code(&done), 0, "{}", err(&done));
    for name in ["'/file'", "'/snap/file'"] {
        assert!(err(&done).contains(name), "{}", err(&done));
    }
    let health = butterfs(&["health", at]);
    assert_eq!(code(&health), 3, "{}", out(&health));
    assert!(out(&health).contains("has counted errors"), "{}", out(&health));
    let stats = butterfs_ok(&["device", "stats", "-z", at]);
    assert!(stats.contains(".corruption_errs  1\n"), "{stats}");
    let stats = butterfs_ok(&["device", "stats", "-T", at]);
    assert!(stats.starts_with("Id Path ") && stats.lines().count() == 3, "{stats}");
    assert_eq!(code(&butterfs(&["device", "stats", "-c", at])), 0);
    assert_eq!(code(&butterfs(&["health", at])), 0);
    // Slow enough to be caught at work.
    assert_eq!(code(&scrub(&state, &["limit", "-a", "-l", "4m", at])), 0);
    assert!(out(&scrub(&state, &["limit", at])).contains(" 1    4.00MiB "), "{}", out(&scrub(&state, &["limit", at])));
    let started = scrub(&state, &["start", at]);
    assert!(out(&started).contains("(pid="), "{}", err(&started));
    let running = out(&scrub(&state, &["status", at]));
    assert!(running.contains("Status:           running\n") && running.contains("(limit 4.00MiB/s)"), "{running}");
    assert!(running.contains("\nBytes scrubbed:   ") && running.contains("\nETA:              "), "{running}");
    assert_eq!(code(&scrub(&state, &["start", "-B", at])), 1);
    assert_eq!(out(&scrub(&state, &["cancel", at])), "scrub cancelled\n");
    eventually(|| out(&scrub(&state, &["status", at])).contains("Status:           aborted\n"));
    assert_eq!(code(&scrub(&state, &["limit", "-a", "-l", "0", at])), 0);
    let only = scrub(&state, &["start", "-B", "--only", text(&bed.path("file")), at]);
    assert_eq!(code(&only), 0, "{}", err(&only));
    let resumed = scrub(&state, &["resume", "-B", at]);
    assert_eq!(code(&resumed), 0, "{}", err(&resumed));
    bed.umount_ok();
}

/// A scrub in the foreground, and what it has said when it ends.
fn foreground(state: &Path, arguments: &[&str], meanwhile: impl FnOnce(u32)) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_butterfs"));
    command.args(["scrub", "start", "-B"]).args(arguments).env("BUTTERFS_STATE_DIR", state).env("TZ", "UTC0");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    let at = arguments.last().expect("the mount is the last one");
    eventually(|| out(&scrub(state, &["status", at])).contains("Status:           running\n"));
    meanwhile(child.id());
    ran(child.wait_with_output().expect("it ends"))
}

#[test]
fn a_scrub_in_the_foreground_hears_signals_and_new_limits() {
    let Some(bed) = Bed::for_root("scrub_foreground") else { return };
    let (state, at) = (bed.image.with_extension("state"), text(&bed.at));
    butterfs_ok(&["mkfs", "-q", "-b", "300M", "-d", "dup", text(&bed.image)]);
    butterfs_ok(&["mount", text(&bed.image), at]);
    std::fs::write(bed.path("file"), noise(5, 24 << 20)).unwrap();
    butterfs_ok(&["filesystem", "sync", at]);
    // With this limit the first window is paid for in 40 s.
    let begun = Instant::now();
    let done = foreground(&state, &["--limit", "100k", at], |_| {
        assert_eq!(code(&scrub(&state, &["limit", "-a", "-l", "0", at])), 0);
    });
    assert_eq!(code(&done), 0, "{}", err(&done));
    assert!(begun.elapsed() < Duration::from_secs(30), "the old limit went on");
    let ended = foreground(&state, &["--limit", "100k", at], |process| {
        let process = rustix::process::Pid::from_raw(process as i32).unwrap();
        rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    });
    assert_eq!((code(&ended), err(&ended).as_str()), (1, ""), "{}", out(&ended));
    assert!(out(&scrub(&state, &["status", at])).contains("Status:           aborted\n"));
    bed.umount_ok();
}

/// A user whose home cannot be written has the record of a scrub elsewhere.
#[test]
fn a_user_without_a_home_scrubs_an_image() {
    if !rustix::process::geteuid().is_root() || !butterfs_testkit::requirement::programs("homeless", &["setpriv"]) {
        return;
    }
    let scratch = Scratch::new("scrub-homeless");
    let image = made(&scratch, &noise(6, 1 << 20));
    // The build output need not be open to other users.
    let folder = std::env::temp_dir().join(format!("butterfs-homeless-{}", std::process::id()));
    let at = |name: &str| folder.join(name);
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o1777)).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_butterfs"), at("butterfs")).unwrap();
    std::fs::copy(&image, at("image")).unwrap();
    std::fs::set_permissions(at("image"), std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let run = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65533", "--regid", "65533", "--clear-groups", text(&at("butterfs")), "scrub"]);
        command.args(words).args(["--image", text(&at("image"))]).env("HOME", "/nonexistent").env("TMPDIR", &folder);
        for name in ["BUTTERFS_STATE_DIR", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"] {
            command.env_remove(name);
        }
        ran(command.output().expect("it runs"))
    };
    let done = run(&["start", "-B", "-r"]);
    assert_eq!((code(&done), err(&done).as_str()), (0, ""), "{}", out(&done));
    let status = run(&["status"]);
    assert!(out(&status).contains("Status:           finished\n"), "{status:?}");
    // A folder of somebody else is not used.
    std::fs::rename(at("butterfs-65533"), at("elsewhere")).unwrap();
    std::os::unix::fs::symlink(at("elsewhere"), at("butterfs-65533")).unwrap();
    let refused = run(&["start", "-B", "-r"]);
    assert!(code(&refused) == 1 && err(&refused).contains("/nonexistent/.local/state/butterfs"), "{refused:?}");
    std::fs::remove_dir_all(&folder).unwrap();
}
