//! The serving process killed while commands make snapshots and delete them, again and again on one image.
//!
//! Work that a command has reported (a snapshot was made, a deletion is on the disk) is there afterwards; of the one
//! that was cut short, either nothing or all is seen.

use butterfs_testkit::fingerprint::Fingerprint;
use butterfs_testkit::kernel::{KernelMount, check_all, run, run_ok};
use butterfs_testkit::requirement;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::serve::{self, Served};
use butterfs_testkit::watchdog::Watchdog;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

const KILLS: u64 = 12;
const FILES: u64 = 400;

fn butterfs(words: &[&str]) -> bool {
    run(60, serve::binary(), words).code == Some(0)
}

/// Makes and deletes snapshots until the server is dead. Returns what the snapshots hold that are known to be there,
/// and the name that may or may not be.
fn work(at: &Path, rng: &mut Rng, mut known: BTreeMap<String, u64>, first: u64) -> (BTreeMap<String, u64>, String) {
    let path = |name: &str| at.join(name).to_string_lossy().into_owned();
    for number in first.. {
        if rng.below(3) == 0 && known.len() > 2 {
            let name = known.keys().nth(rng.index(known.len())).expect("there are some").clone();
            known.remove(&name);
            if !butterfs(&["subvolume", "delete", "-C", &path(&name)]) {
                return (known, name);
            }
            continue;
        }
        let name = format!("snap{number}");
        for file in 0..FILES {
            if std::fs::write(at.join(format!("s/f{file}")), number.to_string()).is_err() {
                return (known, name);
            }
        }
        if !butterfs(&["subvolume", "snapshot", "-r", &path("s"), &path(&name)]) {
            return (known, name);
        }
        known.insert(name, number);
    }
    unreachable!("numbers do not end")
}

#[test]
fn killed_while_snapshots_come_and_go() {
    const TEST: &str = "killed_while_snapshots_come_and_go";
    if !requirement::kernel_btrfs(TEST) || !requirement::fuse(TEST) {
        return;
    }
    let _watchdog = Watchdog::new(TEST, 300);
    let scratch = Scratch::new(TEST);
    let image = scratch.sparse_file("image", 1 << 30);
    serve::mkfs(&image, &[]);
    let at = scratch.folder("mnt");
    let served = Served::mount(&image, &at, "");
    assert!(butterfs(&["subvolume", "create", &at.join("s").to_string_lossy()]));
    served.unmount();
    let mut rng = Rng::new(421);
    let mut known = BTreeMap::new();
    for kill in 0..KILLS {
        let served = Served::mount(&image, &at, "commit=1");
        let process = rustix::process::Pid::from_raw(served.id() as i32).expect("a process id");
        let delay = Duration::from_millis(50 + rng.below(900));
        let killer = std::thread::spawn(move || {
            std::thread::sleep(delay);
            rustix::process::kill_process(process, rustix::process::Signal::KILL).expect("our own child");
        });
        let uncertain;
        (known, uncertain) = work(&at, &mut rng, known, kill * 1000);
        killer.join().expect("it only waits and kills");
        served.dead();
        check_all(&image);
        let mount = KernelMount::new(&image, "ro");
        let shown = Fingerprint::of_tree(mount.path());
        let tops = |name: &[u8]| name.starts_with(b"snap") && !name.contains(&b'/');
        let found: Vec<String> =
            shown.entries.keys().filter(|name| tops(name)).map(|name| String::from_utf8_lossy(name).into()).collect();
        for (name, number) in &known {
            assert!(found.contains(name), "kill {kill}: {name} is gone");
            let expected = run_ok(60, "sh", &["-c", &format!("cat {}/{name}/* | wc -c", mount.path().display())]);
            let bytes = FILES as usize * number.to_string().len();
            assert_eq!(expected.trim(), bytes.to_string(), "kill {kill}: {name}");
        }
        let new: Vec<&String> = found.iter().filter(|name| !known.contains_key(*name)).collect();
        for name in new {
            assert_eq!(*name, uncertain, "kill {kill}");
            let print = super::inside(&shown, name);
            assert_eq!(print.entries.len() as u64, FILES + 1, "kill {kill}: {name} is there in part");
            known.insert(name.clone(), name["snap".len()..].parse().expect("a number"));
        }
        assert_eq!(mount.finish(), [""; 0]);
    }
    println!("{} snapshots after {KILLS} kills", known.len());
}
