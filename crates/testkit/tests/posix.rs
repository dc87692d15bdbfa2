//! Other people's tests of a POSIX filesystem, run on our mount: pjdfstest and fsx.

use butterfs_testkit::kernel::{check_all, run};
use butterfs_testkit::object_server::{Fate, Server};
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::serve::{Served, VOLUME, mkfs, on_server};
use butterfs_testkit::watchdog::Watchdog;
use butterfs_testkit::{fsx, kernel::KernelMount, requirement};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Our mount of a new filesystem of 1 GiB, on an image or in a store on a server.
struct Fresh {
    scratch: Scratch,
    image: PathBuf,
    served: Served,
    server: Option<Server>,
}

fn fresh(name: &str, options: &str) -> Fresh {
    let scratch = Scratch::new(name);
    let image = scratch.sparse_file("image", 1 << 30);
    mkfs(&image, &[]);
    let served = Served::mount(&image, &scratch.folder("mnt"), options);
    Fresh { scratch, image, served, server: None }
}

fn fresh_volume(name: &str, options: &str) -> Fresh {
    let (scratch, server) = (Scratch::new(name), Server::start(|_| Fate::Served));
    let image = scratch.join("image");
    let served = Served::volume(&server, &scratch.folder("mnt"), options);
    Fresh { scratch, image, served, server: Some(server) }
}

/// Unmounts; every checker must find the image clean, or the one that a volume is exported to.
fn finish(fresh: Fresh) {
    fresh.served.unmount();
    if let Some(server) = &fresh.server {
        let export = on_server(&server.endpoint).args(["volume", "export", VOLUME, "main"]).arg(&fresh.image).output();
        assert!(export.as_ref().is_ok_and(|output| output.status.success()), "{export:?}");
    }
    check_all(&fresh.image);
    let mount = KernelMount::new(&fresh.image, "ro");
    assert_eq!(mount.finish(), [""; 0]);
}

/// With the length of its naps, after which programs that it starts end too.
const PJDFSTEST_SETTINGS: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = NAP
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

/// `name -> FAILED or skipped`, from lines whose first two words these are.
fn verdicts(text: &str) -> BTreeMap<String, String> {
    let words = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let tests =
        words.filter(|words| words.len() >= 2 && words[0].contains("::") && ["FAILED", "skipped"].contains(&words[1]));
    tests.map(|words| (words[0].to_owned(), words[1].to_owned())).collect()
}

#[test]
fn pjdfstest() {
    pjdfstest_on("pjdfstest", fresh);
}

#[test]
fn pjdfstest_on_a_volume() {
    pjdfstest_on("pjdfstest_on_a_volume", fresh_volume);
}

fn pjdfstest_on(test: &str, fresh: fn(&str, &str) -> Fresh) {
    if !requirement::kernel_btrfs(test) || !requirement::fuse(test) || !requirement::programs(test, &["pjdfstest"]) {
        return;
    }
    let _watchdog = Watchdog::new(test, 300);
    let fresh = fresh(test, "allow_other,default_permissions");
    let root = fresh.served.path();
    std::fs::set_permissions(root, std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("our own mount");
    let settings = fresh.scratch.join("settings.toml");
    let set_nap = |nap: &str| std::fs::write(&settings, PJDFSTEST_SETTINGS.replace("NAP", nap)).expect("scratch space");
    set_nap("0.02");
    let second = fresh.scratch.folder("second");
    let program = requirement::program("pjdfstest").expect("it was required");
    // A socket's address has room for 107 bytes of path: the mount is reached by a short one.
    let short = std::env::temp_dir().join(format!("bpj-{}-{}", std::process::id(), fresh.server.is_some()));
    std::os::unix::fs::symlink(root, &short).expect("nothing of this name is there");
    let text = |path: &std::path::Path| path.to_str().expect("test paths are text").to_owned();
    let [config, path, other] = [&settings, &short, &second].map(|path| text(path));
    let arguments = ["-c", &config, "-p", &path, "-s", &other];
    let finished = run(200, &program, &arguments);
    let expected = verdicts(include_str!("pjdfstest-expected.txt"));
    let mut found = verdicts(&finished.output);
    // A program that has ended by the time that it is looked at (`etxtbsy`) says more of the machine than of the
    // filesystem.
    set_nap("1");
    found.retain(|name, verdict| {
        verdict == "skipped"
            || expected.contains_key(name)
            || run(100, &program, &[&arguments[..], &["-e", name]].concat()).code != Some(0)
    });
    std::fs::remove_file(&short).expect("it was made above");
    let summary = finished.output.lines().rev().find(|line| line.starts_with("Summary"));
    let summary = summary.unwrap_or_else(|| panic!("no summary: {}", finished.output));
    println!("{summary}");
    assert!(summary.contains("398 total"), "{summary}");
    assert_eq!(found, expected, "{}", finished.output);
    finish(fresh);
}

#[test]
fn dbench_on_a_volume() {
    const TEST: &str = "dbench_on_a_volume";
    if !requirement::kernel_btrfs(TEST) || !requirement::fuse(TEST) || !requirement::programs(TEST, &["dbench"]) {
        return;
    }
    let _watchdog = Watchdog::new(TEST, 200);
    let fresh = fresh_volume(TEST, "cache_size=16M,write_back=8M");
    let folder = fresh.served.path().display().to_string();
    let program = requirement::program("dbench").expect("it was required");
    let finished = run(120, &program, &["-t", "8", "-s", "-D", &folder, "8"]);
    assert!(finished.code == Some(0) && finished.output.contains("Throughput"), "{}", finished.output);
    finish(fresh);
}

#[test]
fn fsx() {
    const TEST: &str = "fsx";
    const SEEDS: [u64; 4] = [1, 20, 300, 4000];
    if !requirement::kernel_btrfs(TEST) || !requirement::fuse(TEST) || !requirement::programs(TEST, &["fsx"]) {
        return;
    }
    let _watchdog = Watchdog::new(TEST, 500);
    let fresh = fresh(TEST, "");
    let settings = fresh.scratch.join("settings.toml");
    std::fs::write(&settings, fsx::settings("1", "4")).expect("scratch space");
    let program = requirement::program(TEST).expect("it was required");
    let artifacts = fresh.scratch.folder("artifacts").display().to_string();
    for seed in SEEDS {
        let (seed, file) = (seed.to_string(), fresh.served.path().join(format!("file-{seed}")).display().to_string());
        let settings = settings.display().to_string();
        let arguments = ["-q", "-q", "-N", "10000", "-S", &seed, "-P", &artifacts, "-f", &settings, &file];
        let finished = run(120, &program, &arguments);
        assert_eq!(finished.code, Some(0), "seed {seed}: {}", finished.output);
    }
    finish(fresh);
}
