//! `butterfs volume`, and mounts of volumes in object stores: used, killed, taken over, cloned, exported; on a server
//! that fails; and images that are read by ranges.

mod common;
#[allow(dead_code)] // other programs use the rest
mod mounted;

use butterfs_testkit::kernel::{KernelMount, check_all};
use butterfs_testkit::object_server::{CREDENTIALS, Fate, Server};
use butterfs_testkit::real_server::{Ceph, RealServer};
use butterfs_testkit::{fsx, requirement};
use common::{Ran, ran};
use mounted::{Bed, eventually, text};
use std::fs;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const BINARY: &str = env!("CARGO_BIN_EXE_butterfs");

/// A store on a server, and a folder to mount on.
struct Cloud {
    bed: Bed,
    url: String,
    endpoint: String,
}

impl Cloud {
    /// On a server of our own, which treats requests as `fates` says.
    fn new(test: &str, fates: impl Fn(u64) -> Fate + Send + Sync + 'static) -> Option<Cloud> {
        Cloud::on(test, &Server::start(fates).endpoint)
    }

    /// On the server at a URL.
    fn on(test: &str, endpoint: &str) -> Option<Cloud> {
        let mut bed = Bed::for_root(test)?;
        let url = format!("s3://bucket/{test}");
        bed.image = url.clone().into();
        Some(Cloud { bed, url, endpoint: endpoint.to_owned() })
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command.args(words).envs(CREDENTIALS).env("AWS_ENDPOINT_URL", &self.endpoint).stdin(Stdio::null());
        command
    }

    fn run(&self, words: &[&str]) -> Ran {
        ran(self.command(words).output().unwrap())
    }

    fn ok(&self, words: &[&str]) -> String {
        let ran = self.run(words);
        assert!(ran.code == Some(0) && ran.stderr.is_empty(), "{words:?}: {ran:?}");
        ran.stdout
    }

    fn mount_at(&self, at: &Path, options: &str) -> Ran {
        self.run(&["mount", "--create", "2G", "-o", options, &self.url, text(at)])
    }

    fn mount(&self, options: &str) {
        let ran = self.mount_at(&self.bed.at, options);
        assert!(ran.code == Some(0) && ran.stderr.is_empty(), "{ran:?}");
    }

    fn export(&self, volume: &str) -> std::path::PathBuf {
        let image = self.bed.scratch.join(&format!("{volume}.img"));
        let _ = fs::remove_file(&image);
        self.ok(&["volume", "export", &self.url, volume, text(&image)]);
        image
    }
}

/// The output of `script`, which must succeed.
fn shell(at: &Path, script: &str) -> String {
    let output = Command::new("sh")
        .args(["-ec", script])
        .env("butterfs", BINARY)
        .current_dir(at)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

const FILL: &str = r#"mkdir -p d; seq 1 200000 > d/text; head -c 3000000 /dev/urandom > d/noise; ln d/text hard
    ln -s d/text link
    setfattr -n user.x -v y d/noise; truncate -s 1G sparse; echo end >> sparse; "$butterfs" filesystem sync ."#;
const DIGEST: &str = "find . -type f -size -100M | sort | xargs sha256sum; stat -c '%n %s %h' sparse hard";

#[test]
fn a_volume_is_used_cloned_listed_exported_and_removed() {
    const TEST: &str = "a_volume_is_used_cloned_listed_exported_and_removed";
    let Some(cloud) = Cloud::new(TEST, |_| Fate::Served) else { return };
    story(&cloud);
}

#[test]
fn moto_serves_volumes_and_snapshots() {
    const TEST: &str = "moto_serves_volumes_and_snapshots";
    let Some(server) = RealServer::moto(TEST) else { return };
    let Some(cloud) = Cloud::on(TEST, &server.endpoint) else { return };
    story(&cloud);
    snapshots(&cloud);
    takeover(&cloud);
}

#[test]
#[ignore = "needs the packages of Ceph; cargo xtask soak ceph"]
fn ceph_serves_volumes_and_snapshots() {
    const TEST: &str = "ceph_serves_volumes_and_snapshots";
    let Some(ceph) = Ceph::start(TEST) else { return };
    let Some(mut cloud) = Cloud::on(TEST, &ceph.endpoint) else { return };
    cloud.bed = cloud.bed.slow(TEST);
    story(&cloud);
    snapshots(&cloud);
    takeover(&cloud);
}

/// Snapshots of an image are put, verified, and got as they were; a second put of an equal one sends nothing.
fn snapshots(cloud: &Cloud) {
    let (image, other) = (cloud.bed.scratch.join("source.img"), cloud.bed.scratch.join("other.img"));
    let (image, other) = (text(&image), text(&other));
    cloud.ok(&["mkfs", "-q", "-b", "1G", image]);
    cloud.ok(&["mkfs", "-q", "-b", "1G", other]);
    cloud.ok(&["subvolume", "create", "--image", image, "/live"]);
    cloud.ok(&["image", "cp-in", image, "/bin/bash", "/live/program"]);
    cloud.ok(&["subvolume", "snapshot", "-r", "--image", image, "/live", "/one"]);
    cloud.ok(&["image", "cp-in", image, "/etc/passwd", "/live/passwd"]);
    cloud.ok(&["subvolume", "snapshot", "-r", "--image", image, "/live", "/two"]);
    let url = format!("{}-snapshots", cloud.url);
    cloud.ok(&["stream", "put", "-q", "--image", image, "/one", "/two", &url]);
    cloud.ok(&["stream", "verify", "--deep", "-q", &url]);
    assert_eq!(cloud.ok(&["stream", "cat", &url, "two", "passwd"]), fs::read_to_string("/etc/passwd").unwrap());
    cloud.ok(&["stream", "get", "-q", "--image", other, &url, "one", "two", "/"]);
    for name in ["/one", "/two"] {
        let tar = |image| cloud.command(&["image", "tar-out", image, name]).output().unwrap().stdout;
        assert!(tar(image) == tar(other), "{name} is another one");
    }
}

/// A volume is used from the first mount to its removal.
fn story(cloud: &Cloud) {
    let at = &cloud.bed.at;
    cloud.mount("noatime");
    shell(at, FILL);
    let first = shell(at, DIGEST);
    // While it is mounted.
    cloud.ok(&["volume", "clone", "-r", &cloud.url, "main", "monday"]);
    cloud.ok(&["volume", "clone", &cloud.url, "main", "copy"]);
    shell(at, r#"seq 5 > d/text; echo more > new; "$butterfs" filesystem sync ."#);
    let second = shell(at, DIGEST);
    let listed = cloud.ok(&["volume", "ls", &cloud.url]);
    let words: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words[0], ["NAME", "SIZE", "USED", "MADE", "WRITER"]);
    assert_eq!(words[1..].iter().map(|line| line[0]).collect::<Vec<_>>(), ["copy", "main", "monday"]);
    assert!(listed.contains(&format!("process {} on ", cloud.bed.serving_process().unwrap())), "{listed}");
    assert!(listed.contains("it is a snapshot"), "{listed}");
    cloud.bed.umount_ok();

    for (volume, wanted) in [("monday", &first), ("copy", &first), ("main", &second)] {
        let image = cloud.export(volume);
        check_all(&image);
        let mount = KernelMount::new(&image, "ro");
        assert_eq!(shell(mount.path(), DIGEST), **wanted, "{volume} as the kernel sees it");
        assert_eq!(mount.finish(), [""; 0]);
        cloud.mount(&format!("ro,volume={volume}"));
        assert_eq!(shell(at, DIGEST), **wanted, "{volume}");
        cloud.bed.umount_ok();
    }
    // A snapshot is mounted read-only, and says so.
    let ran = cloud.mount_at(at, "volume=monday");
    assert!(ran.code == Some(0) && ran.stderr.contains("is a snapshot, which nobody can write to"), "{ran:?}");
    assert!(fs::write(cloud.bed.path("x"), "x").is_err());
    cloud.bed.umount_ok();
    cloud.mount("volume=copy");
    shell(at, r#"echo other > d/text; "$butterfs" filesystem sync ."#);
    cloud.bed.umount_ok();

    let json = cloud.ok(&["--format", "json", "volume", "gc", "-n", "--older-than", "0", &cloud.url]);
    assert!(json.contains("\"deleted\": false"), "{json}");
    cloud.ok(&["volume", "gc", "--older-than", "0", &cloud.url]);
    cloud.mount("ro");
    assert_eq!(shell(at, DIGEST), second);
    cloud.bed.umount_ok();
    cloud.ok(&["volume", "rm", &cloud.url, "monday", "copy", "main"]);
    cloud.ok(&["volume", "gc", "--older-than", "0", &cloud.url]);
    assert_eq!(cloud.ok(&["volume", "ls", &cloud.url]).lines().count(), 1);
}

#[test]
fn what_was_synced_is_there_after_kills_on_a_server_that_fails() {
    const TEST: &str = "what_was_synced_is_there_after_kills_on_a_server_that_fails";
    let fates = |number: u64| match number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 59 {
        0 => Fate::Throttled,
        1 => Fate::Failed,
        2 => Fate::Lost,
        3 => Fate::Cut,
        _ => Fate::Served,
    };
    let rounds: u32 = std::env::var("BUTTERFS_VOLUME_ROUNDS").map_or(4, |rounds| rounds.parse().unwrap());
    let Some(mut cloud) = Cloud::new(TEST, fates) else { return };
    cloud.bed = cloud.bed.within(TEST, 200 + 20 * u64::from(rounds));
    for round in 0..rounds {
        let ran = cloud.mount_at(&cloud.bed.at, "noatime");
        let is_known = |line: &str| line.contains("was recovered from the log tree");
        assert!(ran.code == Some(0) && ran.stderr.lines().all(is_known), "{ran:?}");
        for before in round.saturating_sub(20)..round {
            let found = shell(&cloud.bed.at, &format!("cat synced{before} renamed{before}; wc -c < big{before}"));
            assert_eq!(found, format!("{before}\n{before}\n2000000\n"), "round {round}");
        }
        let script = format!(
            "rm -f big$(({round} - 20)); echo {round} > synced{round}; sync synced{round}
             echo {round} > tmp; mv tmp renamed{round}
             sync renamed{round}; head -c 2000000 /dev/urandom > big{round}; sync big{round}
             (while :; do head -c 300000 /dev/urandom > noise$((n = (n + 1) % 7)); done) & sleep 0.$(({round} % 5 + 1))
             kill $!"
        );
        shell(&cloud.bed.at, &script);
        cloud.bed.kill();
    }
    check_all(&cloud.export("main"));
}

#[test]
fn a_second_mount_is_refused_or_takes_over() {
    const TEST: &str = "a_second_mount_is_refused_or_takes_over";
    let Some(cloud) = Cloud::new(TEST, |_| Fate::Served) else { return };
    takeover(&cloud);
}

/// A mount of a volume that another one writes to is refused; with `takeover` the other one ends.
fn takeover(cloud: &Cloud) {
    let at = &cloud.bed.at;
    cloud.mount("");
    shell(at, "echo first > file; sync file");
    let other = cloud.bed.scratch.folder("other");
    let ran = cloud.mount_at(&other, "");
    let process = cloud.bed.serving_process().unwrap();
    let refused = format!("ERROR: {}/volumes/main is mounted by process {process} on ", cloud.url);
    assert!(ran.code == Some(1) && ran.stderr.starts_with(&refused), "{refused}: {ran:?}");
    assert!(ran.stderr.contains("-o takeover"), "{ran:?}");
    let ran = cloud.mount_at(&other, "takeover");
    assert!(ran.code == Some(0) && ran.stderr.contains("was recovered from the log tree"), "{ran:?}");
    assert_eq!(shell(&other, "cat file; echo second > file; sync file; cat file"), "first\nsecond\n");
    // The first mount writes nothing any more, and what it has not written yet does not appear.
    let script = "echo late > late; sync late";
    let late = Command::new("sh").args(["-ec", script]).current_dir(at).stderr(Stdio::null()).status().unwrap();
    assert!(!late.success());
    shell(&other, "echo third > file; sync file");
    let umount = |at: &Path| cloud.run(&["umount", text(at)]);
    umount(at);
    eventually(|| !cloud.bed.is_mounted());
    assert_eq!(umount(&other).code, Some(0));
    cloud.mount("ro");
    assert_eq!(shell(at, "ls; cat file"), "file\nthird\n");
    cloud.bed.umount_ok();
    check_all(&cloud.export("main"));
}

#[test]
fn a_mount_that_follows_shows_what_the_writer_makes_durable() {
    const TEST: &str = "a_mount_that_follows_shows_what_the_writer_makes_durable";
    let fails = Arc::new(AtomicBool::new(false));
    let for_server = Arc::clone(&fails);
    let fates = move |_| if for_server.load(Ordering::Relaxed) { Fate::Failed } else { Fate::Served };
    let Some(cloud) = Cloud::new(TEST, fates) else { return };
    let at = &cloud.bed.at;
    cloud.mount("noatime");
    shell(
        at,
        "mkdir d gone; echo one > d/file; echo here > gone/file; seq 100000 > large; sync d/file large gone/file",
    );
    let other = cloud.bed.scratch.folder("other");
    let ran = cloud.run(&["mount", "-o", "follow=1,give_up_after=1", &cloud.url, text(&other)]);
    assert!(ran.code == Some(0) && ran.stderr.is_empty(), "{ran:?}");
    let seen = |path: &str| fs::read_to_string(other.join(path)).unwrap_or_default();
    assert_eq!((seen("d/file").as_str(), seen("gone/file").as_str(), seen("new")), ("one\n", "here\n", String::new()));
    let mut open = fs::File::open(other.join("large")).unwrap();
    let mut begin = [0; 4];
    open.read_exact(&mut begin).unwrap();
    // Of the same length, with times that say nothing.
    let script = r#"echo two > d/file; echo more > new; rm -r gone; setfattr -n user.x -v y d; touch -r large then
        dd if=/dev/zero of=large bs=2 count=1 conv=notrunc status=none; touch -r then large
        "$butterfs" filesystem sync ."#;
    shell(at, script);
    eventually(|| seen("new") == "more\n");
    assert_eq!(seen("d/file"), "two\n");
    eventually(|| !other.join("gone").exists());
    eventually(|| shell(&other, "ls") == shell(at, "ls"));
    assert_eq!(shell(&other, "getfattr --only-values -n user.x d"), "y");
    open.read_at(&mut begin, 0).unwrap();
    assert_eq!(&begin, b"\0\x002\n", "a file that is open");
    drop(open);
    // A removed file, and another one with its number, are not what was open.
    shell(at, "echo mine > mine; mkdir own; sync mine own");
    eventually(|| seen("mine") == "mine\n" && other.join("own").exists());
    let (mine, own) = (fs::File::open(other.join("mine")).unwrap(), fs::File::open(other.join("own")).unwrap());
    let number = mine.metadata().unwrap().ino();
    shell(at, "rm mine; rmdir own");
    cloud.ok(&["umount", text(at)]);
    cloud.mount("noatime");
    shell(at, "umask 077; echo secret > secret; mkdir hidden; touch hidden/name; sync secret hidden/name");
    eventually(|| seen("secret") == "secret\n");
    assert_eq!(
        fs::metadata(other.join("secret")).unwrap().ino(),
        number,
        "the test is about numbers that are used again"
    );
    let stale = |result: std::io::Result<usize>| assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ESTALE));
    stale(mine.read_at(&mut begin, 0));
    stale(mine.metadata().map(|_| 0));
    stale(
        fs::read_dir(format!("/proc/self/fd/{}", own.as_raw_fd()))
            .and_then(|mut list| list.next().map_or(Ok(0), |entry| entry.map(|_| 0))),
    );
    drop((mine, own));
    // The follower also shows what the writer has fsynced without a commit.
    shell(at, "echo three > d/file; sync d/file");
    eventually(|| seen("d/file") == "three\n");
    assert!(fs::write(other.join("x"), "x").is_err());

    // While the store is away the mount shows what it has.
    fails.store(true, Ordering::Relaxed);
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(seen("d/file"), "three\n");
    fails.store(false, Ordering::Relaxed);
    shell(at, "echo four > d/file; sync d/file");
    eventually(|| seen("d/file") == "four\n");

    // Another writer; then the one that has followed becomes it.
    cloud.ok(&["umount", text(at)]);
    cloud.mount("noatime");
    shell(at, "echo five > d/file; rm d/file; mkdir d/file; echo six > d/file/inside; sync d/file/inside");
    eventually(|| seen("d/file/inside") == "six\n");
    cloud.ok(&["umount", text(at)]);
    cloud.ok(&["mount", "-o", "remount,rw", &cloud.url, text(&other)]);
    shell(&other, "echo seven > d/file/inside; sync d/file/inside");
    cloud.ok(&["umount", text(&other)]);
    cloud.mount("ro");
    assert_eq!(fs::read_to_string(at.join("d/file/inside")).unwrap(), "seven\n");
    cloud.bed.umount_ok();
    check_all(&cloud.export("main"));
}

#[test]
fn random_operations_on_a_file_of_a_volume() {
    const TEST: &str = "random_operations_on_a_file_of_a_volume";
    let Some(cloud) = Cloud::new(TEST, |_| Fate::Served) else { return };
    if !requirement::programs(TEST, &["fsx"]) {
        return;
    }
    let (settings, artifacts) = (cloud.bed.scratch.join("fsx.toml"), cloud.bed.scratch.folder("artifacts"));
    fs::write(&settings, fsx::settings("10", "4")).unwrap();
    cloud.mount(&format!("compress=zstd,cache_dir={},cache_size=4M,write_back=1M", cloud.bed.scratch.path().display()));
    let mut fsx = Command::new("fsx");
    fsx.args(["-q", "-q", "-N", "1500", "-S", "7", "-P", text(&artifacts), "-f", text(&settings)]);
    let output = fsx.arg(cloud.bed.path("file")).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    cloud.bed.umount_ok();
    check_all(&cloud.export("main"));
}

#[test]
fn images_in_stores_and_on_web_servers_are_mounted_read_only() {
    const TEST: &str = "images_in_stores_and_on_web_servers_are_mounted_read_only";
    let server = Server::start(|_| Fate::Served);
    let Some(cloud) = Cloud::on(TEST, &server.endpoint) else { return };
    cloud.mount("");
    shell(&cloud.bed.at, FILL);
    let wanted = shell(&cloud.bed.at, DIGEST);
    cloud.bed.umount_ok();
    let image = cloud.export("main");
    server.put("/bucket/images/disk.img", fs::read(&image).unwrap());
    for url in ["s3://bucket/images/disk.img".to_owned(), format!("{}/bucket/images/disk.img", server.endpoint)] {
        let ran = cloud.run(&["mount", "-o", "ro,cache_size=8M", &url, text(&cloud.bed.at)]);
        assert!(ran.code == Some(0) && ran.stderr.is_empty(), "{url}: {ran:?}");
        assert_eq!(shell(&cloud.bed.at, DIGEST), wanted);
        assert!(fs::write(cloud.bed.path("x"), "x").is_err());
        cloud.ok(&["umount", text(&cloud.bed.at)]);
    }
}

#[test]
fn words_that_make_no_sense_are_sentences() {
    const TEST: &str = "words_that_make_no_sense_are_sentences";
    let Some(cloud) = Cloud::new(TEST, |_| Fate::Served) else { return };
    let at = text(&cloud.bed.at);
    let refused = [
        (vec!["mount", &cloud.url, at], "has no volume 'main' and is no image"),
        (vec!["mount", "-o", "volume=a/b", &cloud.url, at], "cannot be the name of a volume"),
        (vec!["mount", "-o", "cache_size=many", &cloud.url, at], "the mount option 'cache_size=many' is not possible"),
        (vec!["mount", "-o", "follow=0", &cloud.url, at], "it takes at least one second"),
        (vec!["mount", "nfs://bucket/x", at], "no store has the scheme 'nfs'"),
        (vec!["mount", "s3://bucket/", at], "s3://bucket/ has no volume 'main' and is no image"),
        (vec!["mount", &cloud.url, "/dev/null", at], "is on one device, not on 2"),
        (vec!["volume", "clone", &cloud.url, "main", "new"], "has no volume 'main'"),
        (vec!["volume", "rm", &cloud.url, "main"], "has no volume 'main'"),
        (vec!["volume", "export", &cloud.url, "main", "/dev/null/x"], "has no volume 'main'"),
    ];
    for (words, sentence) in refused {
        let ran = cloud.run(&words);
        assert!(ran.code != Some(0) && ran.stderr.contains(sentence), "{words:?}: {ran:?}");
        assert!(ran.stderr.starts_with("ERROR: "), "{ran:?}");
    }
    assert_eq!(cloud.ok(&["volume", "ls", &cloud.url]).lines().count(), 1);
}

#[test]
fn a_folder_for_volumes_is_empty_and_a_slash_at_its_end_is_nothing() {
    const TEST: &str = "a_folder_for_volumes_is_empty_and_a_slash_at_its_end_is_nothing";
    let Some(cloud) = Cloud::new(TEST, |_| Fate::Served) else { return };
    let at = text(&cloud.bed.at);
    let folder = cloud.bed.scratch.folder("folder");
    fs::write(folder.join("letter"), "to whom it may concern").unwrap();
    let (path, url) = (text(&folder).to_owned(), format!("file://{}", folder.display()));
    let new = format!("{path}/new.img/");
    let refused = [
        (url.as_str(), "has other files, such as 'letter', and no volume is made among them", "an empty folder"),
        (path.as_str(), "is a directory", "file://"),
        (new.as_str(), "its name ends with a slash", "without the slash"),
    ];
    for (source, sentence, hint) in refused {
        let ran = cloud.run(&["mount", "--create", "2G", source, at]);
        let lines: Vec<&str> = ran.stderr.lines().collect();
        assert!(ran.code == Some(1) && lines.len() >= 2, "{source}: {ran:?}");
        assert!(lines[0].starts_with("ERROR: ") && lines[0].contains(sentence), "{source}: {ran:?}");
        assert!(lines.iter().any(|line| line.contains("hint: ") && line.contains(hint)), "{source}: {ran:?}");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "{source} made something");
    }
    fs::remove_file(folder.join("letter")).unwrap();
    let slashes = [format!("{url}/"), format!("{}/", cloud.url), format!("{}//", cloud.url)];
    let plain = [&url, &cloud.url, &cloud.url];
    for (with, without) in slashes.iter().zip(plain) {
        for (source, option) in [(with, "rw"), (without, "rw"), (with, "ro")] {
            let ran = cloud.run(&["mount", "--create", "2G", "-o", option, source, at]);
            assert!(ran.code == Some(0) && ran.stderr.is_empty(), "{source}: {ran:?}");
            if option == "rw" {
                shell(&cloud.bed.at, r#"echo line >> file; "$butterfs" filesystem sync ."#);
            }
            let lines = fs::read_to_string(cloud.bed.path("file")).unwrap().lines().count();
            assert!(lines > usize::from(source == without), "{source} is another place");
            cloud.ok(&["umount", at]);
        }
        assert_eq!(cloud.ok(&["volume", "ls", with]), cloud.ok(&["volume", "ls", without]));
        assert_eq!(cloud.ok(&["volume", "ls", with]).lines().count(), 2);
    }
}

/// Peak of the memory that the process of the mount has used, with its caches in memory, while 8 readers were at work.
fn peak_with_eight_readers(cloud: &Cloud) -> u64 {
    let process = cloud.bed.serving_process().unwrap();
    let readers: Vec<_> = (0..8)
        .map(|number| Command::new("cat").arg(cloud.bed.path(&format!("file{number}"))).stdout(Stdio::null()).spawn())
        .collect();
    readers.into_iter().for_each(|reader| assert!(reader.unwrap().wait().unwrap().success()));
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[test]
fn memory_of_a_mount_with_many_readers_is_as_documented() {
    const TEST: &str = "memory_of_a_mount_with_many_readers_is_as_documented";
    const MIB: u64 = 1 << 20;
    let Some(mut cloud) = Cloud::new(TEST, |_| Fate::Served) else { return };
    cloud.mount("");
    shell(&cloud.bed.at, "for n in $(seq 0 7); do head -c 40M /dev/urandom > file$n; done");
    cloud.bed.umount_ok();
    let image = cloud.export("main");
    cloud.ok(&["mount", "-o", "ro", text(&image), text(&cloud.bed.at)]);
    let url = std::mem::replace(&mut cloud.bed.image, image);
    let local = peak_with_eight_readers(&cloud);
    cloud.bed.umount_ok();
    cloud.bed.image = url;
    for cache in [32, 128] {
        cloud.mount(&format!("ro,cache_size={cache}M"));
        let remote = peak_with_eight_readers(&cloud);
        cloud.bed.umount_ok();
        println!("{TEST}: {} MiB, {} MiB with a cache of {cache} MiB", local / MIB, remote / MIB);
        // The cache and what is on its way as documented; connections, threads and their heaps.
        assert!(remote <= local + (cache + 32 + 48) * MIB, "{remote} bytes, a local mount {local}");
    }
}

#[test]
fn a_mount_ends_although_the_store_trickles() {
    const TEST: &str = "a_mount_ends_although_the_store_trickles";
    let trickles = Arc::new(AtomicBool::new(false));
    let for_server = Arc::clone(&trickles);
    let fates = move |_| if for_server.load(Ordering::Relaxed) { Fate::Trickled } else { Fate::Served };
    let Some(cloud) = Cloud::new(TEST, fates) else { return };
    cloud.mount("");
    shell(&cloud.bed.at, "head -c 30M /dev/urandom > file");
    cloud.bed.umount_ok();
    cloud.mount("ro,cache_size=64M,give_up_after=3");
    let process = cloud.bed.serving_process().unwrap();
    // Two reads in a row, so that the rest is read ahead.
    let file = fs::File::open(cloud.bed.path("file")).unwrap();
    let mut buf = vec![0; 256 << 10];
    file.read_exact_at(&mut buf, 0).unwrap();
    trickles.store(true, Ordering::Relaxed);
    let reader = Command::new("dd")
        .args([&format!("if={}", text(&cloud.bed.path("file"))), "of=/dev/null", "bs=64k", "status=none"])
        .spawn();
    std::thread::sleep(Duration::from_secs(1));
    let mut reader = reader.unwrap();
    reader.kill().unwrap();
    reader.wait().unwrap();
    drop(file);
    trickles.store(false, Ordering::Relaxed);
    // Answers that have begun go on trickling. The kernel's reads end at their limit; those of the threads that read
    // ahead would take minutes.
    let begun = Instant::now();
    // It may warn that the kernel still holds a read.
    cloud.run(&["umount", text(&cloud.bed.at)]);
    while Path::new(&format!("/proc/{process}")).exists() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the process stays");
        std::thread::sleep(Duration::from_millis(50));
    }
}
