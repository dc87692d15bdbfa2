//! `restore` and `rescue` beside those of btrfs-progs.

mod common;

use butterfs_device::{FileDevice, FileOptions};
use butterfs_ondisk::TreeId;
use butterfs_testkit::editor::Editor;
use butterfs_testkit::kernel::{KernelMount, LoopDevice, mkfs, run, run_ok};
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use common::{butterfs, butterfs_ok};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are text")
}

/// A filesystem of the kernel with what `fill` puts into it.
fn filled(scratch: &Scratch, fill: impl FnOnce(&Path)) -> PathBuf {
    let image = scratch.sparse_file("made.img", 200 << 20);
    mkfs(&image, &["-m", "dup"]);
    let mount = KernelMount::new(&image, "noatime");
    fill(mount.path());
    mount.finish();
    image
}

/// A filesystem of the kernel with folders, links, a subvolume and a snapshot.
fn made(scratch: &Scratch) -> PathBuf {
    filled(scratch, |at| {
        fs::create_dir_all(at.join("dir/deep")).unwrap();
        for name in ["dir/f", "dir/deep/g", "top"] {
            fs::write(at.join(name), name.repeat(3000)).unwrap();
        }
        std::os::unix::fs::symlink("f", at.join("dir/link")).unwrap();
        let path = |name: &str| text(&at.join(name)).to_owned();
        run_ok(20, "btrfs", &["subvolume", "create", &path("sub")]);
        fs::write(at.join("sub/s"), "s").unwrap();
        run_ok(20, "btrfs", &["subvolume", "snapshot", &path("sub"), &path("snap")]);
    })
}

fn copy(image: &Path, to: &Path) -> PathBuf {
    run_ok(60, "cp", &["--sparse=always", text(image), text(to)]);
    to.to_owned()
}

/// All paths below a folder, and the contents of files.
fn below(folder: &Path) -> Vec<(String, Option<Vec<u8>>)> {
    let listed = run_ok(20, "find", &[text(folder), "-mindepth", "1", "-printf", "%P\n"]);
    let content = |path: PathBuf| path.is_file().then(|| fs::read(path).ok()).flatten();
    let mut found: Vec<_> = listed.lines().map(|line| (line.to_owned(), content(folder.join(line)))).collect();
    found.sort();
    found
}

/// The kernel's commits carry the time of the last change of each subvolume.
#[test]
fn a_time_leads_to_the_state_that_users_saw_then() {
    const TEST: &str = "restore_at_a_time";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let (mut then, mut then_in_utc) = (String::new(), String::new());
    let image = filled(&scratch, |at| {
        let wait = || std::thread::sleep(std::time::Duration::from_millis(1100));
        fs::write(at.join("first"), "1").unwrap();
        run_ok(20, "sync", &["-f", text(at)]);
        wait();
        then = run_ok(20, "date", &["+%Y-%m-%d %H:%M:%S"]);
        then_in_utc = run_ok(20, "date", &["-u", "+%Y-%m-%dT%H:%M:%SZ"]);
        wait();
        fs::write(at.join("second"), "2").unwrap();
        run_ok(20, "sync", &["-f", text(at)]);
    });
    let before = fs::read(&image).unwrap();

    for (time, names) in [(then.trim(), "first"), (then_in_utc.trim(), "first"), ("2100-01-01", "first second")] {
        let folder = scratch.folder(&format!("restored at {time}"));
        let said = butterfs(&["restore", "--time", time, text(&image), text(&folder)]);
        assert!(said.code == Some(0) && said.stderr.contains("restoring generation"), "{time}: {said:?}");
        let restored: Vec<String> = below(&folder).into_iter().map(|(name, _)| name).collect();
        assert_eq!(restored.join(" "), names, "{time}");
    }
    let said = butterfs(&["restore", "--time", "1980-01-01", text(&image), text(&scratch.folder("none"))]);
    assert!(said.stderr.contains("of that time or before is left"), "{said:?}");
    let said = butterfs(&["restore", "--time", "yesterday", text(&image), text(&scratch.folder("none"))]);
    assert!(said.code == Some(2) && said.stderr.contains("2026-11-27 10:00"), "{said:?}");

    if requirement::fuse(TEST) {
        let at = scratch.folder("mounted");
        for (time, names) in [(then.trim(), "first"), ("2100-01-01", "first second")] {
            let said = butterfs(&["mount", "-o", &format!("ro,at={time}"), text(&image), text(&at)]);
            assert!(said.code == Some(0), "{time}: {said:?}");
            let shown: Vec<String> = below(&at).into_iter().map(|(name, _)| name).collect();
            butterfs_ok(&["umount", text(&at)]);
            assert_eq!(shown.join(" "), names, "{time}");
        }
        let said = butterfs(&["mount", "-o", "ro,at=1980-01-01", text(&image), text(&at)]);
        assert!(said.stderr.contains("remembers no commit of that time"), "{said:?}");
    }
    assert!(fs::read(&image).unwrap() == before, "nothing is written");
}

#[test]
fn options_restore_what_those_of_btrfs_restore_do() {
    const TEST: &str = "options_of_restore";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let image = made(&scratch);
    let options: [&[&str]; 8] = [
        &[],
        &["-S"],
        &["-m", "-x"],
        &["-i", "-o"],
        &["--path-regex", "^/(|dir(|/deep(|/.*)))$"],
        &["-c", "--path-regex", "^/(|DIR(|/.*))$"],
        &["-r", "256"],
        &["-u", "1"],
    ];
    for (number, words) in options.iter().enumerate() {
        let (ours, theirs) = (scratch.folder(&format!("ours{number}")), scratch.folder(&format!("theirs{number}")));
        let said = butterfs(&[&["restore"], *words, &[text(&image), text(&ours)]].concat());
        let btrfs = run(60, "btrfs", &[&["restore"], *words, &[text(&image), text(&theirs)]].concat());
        assert_eq!(said.code, btrfs.code, "{words:?}: {said:?} {btrfs:?}");
        assert_eq!(below(&ours), below(&theirs), "{words:?}");
        assert_eq!(said.stdout, btrfs.output, "{words:?}");
    }
    // Listings, a dry run, refusals.
    let listed = butterfs_ok(&["restore", "-l", text(&image)]);
    assert_eq!(listed, run_ok(20, "btrfs", &["restore", "-l", text(&image)]));
    let empty = scratch.folder("empty");
    let dry = butterfs(&["restore", "-D", text(&image), text(&empty)]);
    assert_eq!(dry.stdout, run_ok(20, "btrfs", &["restore", "-D", text(&image), text(&empty)]));
    assert!(below(&empty).is_empty());
    for words in [["--path", "dir/gone"], ["--path", "dir/../dir"], ["--path-regex", "^/(|gone(|/.*))$"]] {
        let said = butterfs(&[&["restore", "-D"], &words[..], &[text(&image), text(&empty)]].concat());
        assert!(said.code == Some(1) && said.stderr.contains("path"), "{words:?}: {said:?}");
    }
    let refusals: [&[&str]; 4] = [&["-r", "999"], &["-u", "5"], &["--path-regex", "("], &["-f", "4096"]];
    for words in refusals {
        let said = butterfs(&[&["restore"], words, &[text(&image), text(&empty)]].concat());
        assert_eq!((said.code, said.stdout.as_str()), (Some(1), ""), "{words:?}: {said:?}");
        assert!(said.stderr.starts_with("ERROR: "), "{said:?}");
    }
    // Files that exist in the target stay as they are.
    fs::write(scratch.join("ours0/top"), "mine").unwrap();
    let again = butterfs(&["restore", text(&image), text(&scratch.join("ours0"))]);
    assert!(again.stdout.contains("Skipping existing file") && again.stdout.contains("use -o"), "{again:?}");
    assert_eq!(fs::read(scratch.join("ours0/top")).unwrap(), b"mine");
}

/// Files that are there already count as restored only where they are the same.
#[test]
fn what_was_there_before_is_compared() {
    const TEST: &str = "there_before";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let image = made(&scratch);
    let mount = KernelMount::new(&image, "noatime");
    run_ok(20, "mknod", &[text(&mount.path().join("null")), "c", "1", "3"]);
    fs::hard_link(mount.path().join("top"), mount.path().join("dir/other")).unwrap();
    run_ok(20, "setfattr", &["-n", "user.colour", "-v", "green", text(&mount.path().join("dir/f"))]);
    std::os::unix::fs::symlink("top", mount.path().join("owned")).unwrap();
    std::os::unix::fs::lchown(mount.path().join("owned"), Some(5), Some(6)).unwrap();
    run_ok(20, "mkfifo", &["-m", "640", text(&mount.path().join("pipe"))]);
    let sparse = fs::File::create(mount.path().join("sparse")).unwrap();
    sparse.write_all_at(b"in the middle", 1 << 20).and_then(|()| sparse.set_len(1 << 30)).unwrap();
    drop(sparse);
    mount.finish();
    let target = scratch.folder("target");
    let restore = || {
        let said = butterfs(&["--format", "json", "restore", "-a", text(&image), text(&target)]);
        let json: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
        let findings = json["restore"]["findings"].as_array().unwrap().iter();
        let mut found: Vec<String> = findings.map(|one| one["path"].as_str().unwrap().to_owned()).collect();
        found.sort();
        (said.code, found, json["restore"]["kept"].as_u64().unwrap())
    };
    assert_eq!(restore(), (Some(0), vec![], 0));
    let all = below(&target);
    let (code, found, kept) = restore();
    assert_eq!((code, found, below(&target)), (Some(0), vec![], all.clone()));
    assert!(kept >= 9, "{kept}");
    let wrong = |name: &str, make: &dyn Fn(&Path)| {
        fs::remove_file(target.join(name)).unwrap();
        make(&target.join(name));
    };
    wrong("top", &|at| fs::write(at, "another").unwrap());
    wrong("dir/link", &|at| std::os::unix::fs::symlink("g", at).unwrap());
    wrong("null", &|at| fs::write(at, "").unwrap());
    std::os::unix::fs::lchown(target.join("owned"), Some(0), Some(0)).unwrap();
    run_ok(20, "chmod", &["600", text(&target.join("pipe"))]);
    run_ok(20, "setfattr", &["-x", "user.colour", text(&target.join("dir/f"))]);
    fs::File::options().write(true).open(target.join("sparse")).unwrap().write_all_at(b"!", 1 << 29).unwrap();
    // Another time of the last change is another file.
    fs::write(target.join("sub/s"), "s").unwrap();
    let (code, found, _) = restore();
    // The other name of 'top' is still what it was.
    let expected = ["/dir/f", "/dir/link", "/null", "/owned", "/pipe", "/sparse", "/sub/s", "/top"].map(str::to_owned);
    assert_eq!((code, found), (Some(1), expected.to_vec()));
    assert_eq!(fs::read(target.join("top")).unwrap(), b"another");
    let said = butterfs(&["restore", "-a", "-o", text(&image), text(&target)]);
    assert_eq!((said.code, below(&target)), (Some(0), all), "{said:?}");
    assert_eq!(restore().0, Some(0));
}

/// A file of the filesystem with the name of its image, or of the map, takes the place of neither.
#[test]
fn what_is_read_is_not_overwritten() {
    const TEST: &str = "reads_itself";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let image = filled(&scratch, |at| {
        for name in ["made.img", "hard.img", "found.map", "other"] {
            fs::write(at.join(name), "inner").unwrap();
        }
    });
    fs::hard_link(&image, scratch.join("hard.img")).unwrap();
    std::os::unix::fs::symlink(&image, scratch.join("link.img")).unwrap();
    let (map, before) = (scratch.join("found.map"), fs::read(&image).unwrap());
    butterfs_ok(&["rescue", "scan", "-q", "--map", text(&map), text(&image)]);
    let device = LoopDevice::attach(&image, true);
    for source in [&image, &scratch.join("link.img"), &scratch.join("hard.img"), device.path()] {
        let said = butterfs(&["restore", "-a", "-o", "--map", text(&map), text(source), text(scratch.path())]);
        let told = said.stderr.matches("it is what is being read").count();
        assert_eq!((said.code, told), (Some(1), 3), "{}: {said:?}", source.display());
        assert!(fs::read(&image).unwrap() == before, "{}", source.display());
        assert_eq!(fs::read(scratch.join("other")).unwrap(), b"inner");
    }
    // A map is not of every filesystem of the same length.
    let other = scratch.sparse_file("other.img", 200 << 20);
    mkfs(&other, &[]);
    for words in [&["rescue", "scan", "-q"][..], &["restore", "-a", "-D"]] {
        let target = text(scratch.path());
        let end = if words[0] == "restore" { &[target][..] } else { &[] };
        let said = butterfs(&[words, &["--map", text(&map), text(&other)], end].concat());
        assert!(said.code == Some(1) && said.stderr.contains("is a map of another filesystem"), "{said:?}");
    }
}

/// A run that is killed leaves no part of a file under its name, so that the next one completes the rest.
#[test]
fn a_restore_that_is_killed_goes_on() {
    const TEST: &str = "restore_killed";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let mut whole = Vec::new();
    let image = filled(&scratch, |at| {
        for number in 0..12u8 {
            fs::write(at.join(format!("file{number}")), vec![number + 1; 8 << 20]).unwrap();
        }
        whole = below(at);
    });
    let (target, mut parts) = (scratch.folder("target"), 0);
    for wait in [10, 20, 30, 40, 60, 80] {
        let mut restore = std::process::Command::new(env!("CARGO_BIN_EXE_butterfs"));
        restore.args(["restore", "-a", text(&image), text(&target)]).stdout(std::process::Stdio::null());
        let mut child = restore.spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(wait));
        child.kill().and_then(|()| child.wait()).unwrap();
        let there = below(&target);
        assert!(there.iter().all(|one| whole.contains(one)), "after {wait} ms");
        parts += usize::from((1..whole.len()).contains(&there.len()));
    }
    println!("{parts} of 6 runs were killed in the middle");
    let said = butterfs(&["restore", "-a", text(&image), text(&target)]);
    assert_eq!((said.code, below(&target) == whole), (Some(0), true), "{said:?}");
}

/// A full target: the report says what was restored, and directories have their modes.
#[test]
fn a_full_target_ends_in_a_report() {
    use std::os::unix::fs::PermissionsExt;
    const TEST: &str = "full_target";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let image = filled(&scratch, |at| {
        fs::create_dir(at.join("folder")).unwrap();
        fs::set_permissions(at.join("folder"), fs::Permissions::from_mode(0o751)).unwrap();
        for number in 0..40u8 {
            fs::write(at.join(format!("folder/file{number}")), vec![number + 1; 100_000]).unwrap();
        }
    });
    let target = scratch.folder("target");
    run_ok(20, "mount", &["-t", "tmpfs", "-o", "size=2M", "none", text(&target)]);
    let said = butterfs(&["--format", "json", "restore", "-a", text(&image), text(&target)]);
    let files = below(&target);
    let mode = fs::metadata(target.join("folder")).unwrap().permissions().mode() & 0o7777;
    run_ok(20, "umount", &[text(&target)]);
    let json: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
    let restored = &json["restore"];
    assert_eq!((said.code, &restored["complete"], mode), (Some(1), &serde_json::Value::Bool(false), 0o751), "{said:?}");
    assert!(restored["ended"].as_str().is_some_and(|error| error.contains("No space left")), "{restored}");
    assert_eq!(restored["files"].as_u64().unwrap() as usize, files.len() - 1, "{restored}");
    assert!(files.iter().all(|(_, content)| content.as_ref().is_none_or(|content| content.len() == 100_000)));
    assert!(files.len() > 5 && said.stderr.contains("No space left"), "{said:?}");
    // Below a new filesystem too: its engine writes nothing any more, and says why.
    run_ok(20, "mount", &["-t", "tmpfs", "-o", "size=2M", "none", text(&target)]);
    let said = butterfs(&["--format", "json", "restore", "-a", "--image", text(&target.join("new")), text(&image)]);
    run_ok(20, "umount", &[text(&target)]);
    let json: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
    let restored = &json["restore"];
    assert_eq!((said.code, &restored["complete"]), (Some(1), &serde_json::Value::Bool(false)), "{said:?}");
    assert!(restored["ended"].as_str().is_some_and(|error| error.contains("No space left")), "{restored}");
}

/// Every name of a damaged file is named, links of `mkfs.btrfs --rootdir` come back, and no name steers a terminal.
#[test]
fn every_name_is_told_and_none_steers_a_terminal() {
    const TEST: &str = "names_of_files";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let (image, folder) = (scratch.sparse_file("image", 200 << 20), scratch.folder("tree"));
    fs::write(folder.join("first"), "damaged here".repeat(3000)).unwrap();
    for name in ["second", "\u{1b}[31mthird"] {
        fs::hard_link(folder.join("first"), folder.join(name)).unwrap();
    }
    std::os::unix::fs::symlink("first", folder.join("link")).unwrap();
    mkfs(&image, &["--rootdir", text(&folder)]);
    let target = scratch.folder("sound");
    let said = butterfs(&["restore", "-a", text(&image), text(&target)]);
    assert_eq!((said.code, below(&target)), (Some(0), below(&folder)), "{said:?}");
    assert_eq!(fs::read_link(target.join("link")).unwrap(), Path::new("first"));
    let bytes = fs::read(&image).unwrap();
    let place = bytes.windows(24).position(|part| part == b"damaged heredamaged here").unwrap() as u64;
    fs::OpenOptions::new().write(true).open(&image).unwrap().write_all_at(b"!", place).unwrap();
    let said = butterfs(&["restore", "-a", "-v", text(&image), text(&scratch.folder("damaged"))]);
    let told = ["/first: ", "/second: ", "/\\u{1b}[31mthird: "].map(|name| said.stderr.matches(name).count());
    assert_eq!((said.code, told), (Some(1), [1, 1, 1]), "{said:?}");
    assert!(!said.stderr.contains('\u{1b}') && !said.stdout.contains('\u{1b}'), "{said:?}");
}

/// Attributes that the target refuses make a restore incomplete; a second run recognises what is there.
#[test]
fn attributes_that_the_target_refuses_are_told() {
    const TEST: &str = "refused_attributes";
    if !requirement::kernel_btrfs(TEST) || !requirement::programs(TEST, &["setpriv"]) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let image = filled(&scratch, |at| {
        for name in ["both", "owned"] {
            fs::write(at.join(name), name).unwrap();
            std::os::unix::fs::chown(at.join(name), Some(7), Some(8)).unwrap();
        }
        std::os::unix::fs::symlink("both", at.join("link")).unwrap();
        std::os::unix::fs::lchown(at.join("link"), Some(7), Some(8)).unwrap();
        for (name, value) in [("user.one", "1"), ("user.two", "2")] {
            run_ok(20, "setfattr", &["-n", name, "-v", value, text(&at.join("both"))]);
        }
    });
    let restore = |program: &[&str], target: &Path| {
        let mut command = std::process::Command::new(program[0]);
        command.args(&program[1..]).args(["--format", "json", "restore", "-a", text(&image), text(target)]);
        let said = common::ran(command.output().unwrap());
        let json: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
        let restored = json["restore"].clone();
        let findings = restored["findings"].as_array().unwrap().iter();
        let mut found: Vec<String> = findings.map(|one| one["path"].as_str().unwrap().to_owned()).collect();
        found.sort();
        assert_eq!(restored["complete"], said.code.unwrap().eq(&0), "{said:?}");
        assert_eq!(restored["in_the_way"], 0, "{said:?}");
        (said, found, restored["kept"].as_u64().unwrap())
    };
    let program = env!("CARGO_BIN_EXE_butterfs");
    // A filesystem without extended attributes.
    let target = scratch.folder("ramfs");
    run_ok(20, "mount", &["-t", "ramfs", "none", text(&target)]);
    let ran: Vec<_> = (0..2).map(|_| restore(&[program], &target)).collect();
    run_ok(20, "umount", &[text(&target)]);
    for (number, (said, found, kept)) in ran.into_iter().enumerate() {
        assert_eq!((said.code, found, kept), (Some(1), vec!["/both".to_owned()], 3 * number as u64), "{said:?}");
        assert!(said.stderr.contains("/both: extended attribute user.one could not be set"), "{said:?}");
        assert!(said.stderr.contains("user.two"), "{said:?}");
    }
    // Root may set no owners here.
    let (target, bounded) = (scratch.folder("bounded"), ["setpriv", "--bounding-set", "-chown", program]);
    for number in 0..2 {
        let (said, found, kept) = restore(&bounded, &target);
        let expected = ["/both", "/link", "/owned"].map(str::to_owned);
        assert_eq!((said.code, found, kept), (Some(1), expected.to_vec(), 3 * number), "{said:?}");
        assert!(said.stderr.contains("/owned: owner could not be set"), "{said:?}");
    }
    let (said, found, _) = restore(&[program], &scratch.folder("whole"));
    assert_eq!((said.code, found), (Some(0), vec![]), "{said:?}");
    let said = butterfs(&["restore", "-a", text(&image), text(&target)]);
    assert!(said.code == Some(1) && said.stdout.contains("use -o"), "owners can be set now: {said:?}");
}

/// A user who cannot set the owner of a set-user-ID program gets no program of his own with that bit.
#[test]
fn nobody_gets_set_id_bits_of_others() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    const TEST: &str = "set_id_bits";
    if !requirement::kernel_btrfs(TEST) || !requirement::programs(TEST, &["setpriv"]) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let image = filled(&scratch, |at| {
        for (name, owner, mode) in [("other", 1234, 0o6755), ("own", 1000, 0o4755)] {
            fs::write(at.join(name), "program").unwrap();
            std::os::unix::fs::chown(at.join(name), Some(owner), Some(owner)).unwrap();
            fs::set_permissions(at.join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
    });
    // The build output need not be open to other users.
    let folder = std::env::temp_dir().join(format!("butterfs-{TEST}-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let at = |name: &str| folder.join(name);
    fs::copy(env!("CARGO_BIN_EXE_butterfs"), at("butterfs")).unwrap();
    fs::rename(&image, at("image")).or_else(|_| fs::copy(&image, at("image")).map(drop)).unwrap();
    fs::create_dir(at("target")).unwrap();
    std::os::unix::fs::chown(at("target"), Some(1000), Some(1000)).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(at("image"), fs::Permissions::from_mode(0o644)).unwrap();
    let user = ["--reuid", "1000", "--regid", "1000", "--clear-groups"];
    let (image, target) = (at("image"), at("target"));
    let words = ["restore", "-a", text(&image), text(&target)];
    run_ok(60, "setpriv", &[&user[..], &[text(&at("butterfs"))], &words].concat());
    let mode = |name: &str| fs::metadata(target.join(name)).map(|one| (one.uid(), one.mode() & 0o7777)).unwrap();
    assert_eq!((mode("other"), mode("own")), ((1000, 0o755), (1000, 0o4755)));
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_scan_lists_roots_and_restores_without_superblock_and_chunk_tree() {
    const TEST: &str = "scan_command";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let image = made(&scratch);
    let whole = scratch.folder("whole");
    butterfs(&["restore", "-a", text(&image), text(&whole)]);
    let broken = copy(&image, &scratch.join("broken.img"));
    // All superblocks.
    let file = fs::OpenOptions::new().write(true).open(&broken).unwrap();
    file.write_all_at(&[0; 4096], 64 << 10).unwrap();
    file.write_all_at(&[0; 4096], 64 << 20).unwrap();
    let before = fs::read(&broken).unwrap();
    let (map, bad) = (scratch.join("found.map"), scratch.join("bad.map"));
    let refused = butterfs(&["restore", "-a", text(&broken), text(&scratch.folder("none"))]);
    assert!(refused.code == Some(1) && refused.stderr.contains("rescue scan"), "{refused:?}");
    let words = ["rescue", "scan", "-q", "--map", text(&map), "--unreadable", text(&bad), text(&broken)];
    let listed = butterfs(&words);
    assert!(listed.code == Some(0) && listed.stdout.contains("FS_TREE"), "{listed:?}");
    assert!(fs::read_to_string(&bad).unwrap().contains("0x00000000  0x0C800000  +"));
    let json = butterfs(&[&["--format", "json"], &words[..]].concat());
    let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert!(
        json["rescue-scan"]["roots"].as_array().unwrap().iter().any(|root| root["tree"] == 5 && root["files"] == 3)
    );
    let saved = scratch.folder("saved");
    let restored = butterfs(&["restore", "-a", "--map", text(&map), text(&broken), text(&saved)]);
    assert_eq!(restored.code, Some(0), "{restored:?}");
    assert_eq!(below(&saved), below(&whole));
    assert!(fs::read(&broken).unwrap() == before, "nothing is written to the source");
}

/// Exit codes and JSON tell what is doubtful and what is older; no slip overwrites what is to be rescued.
#[test]
fn what_is_not_certain_is_told() {
    const TEST: &str = "not_certain";
    if !requirement::kernel_btrfs(TEST) || !requirement::programs(TEST, &["tar"]) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let image = filled(&scratch, |at| {
        run_ok(20, "btrfs", &["subvolume", "create", text(&at.join("sub"))]);
        for name in ["old", "sub/gone", "removed"] {
            fs::write(at.join(name), name.repeat(2000)).unwrap();
        }
        run_ok(20, "btrfs", &["filesystem", "sync", text(at)]);
        fs::write(at.join("new"), "new").unwrap();
        fs::remove_file(at.join("sub/gone")).unwrap();
        fs::remove_file(at.join("removed")).unwrap();
    });
    // Deleted files of two subvolumes, in one stream.
    let stream = scratch.join("deleted.tar");
    let deleted = butterfs(&["restore", "--deleted", "--tar", text(&stream), text(&image)]);
    assert_eq!(deleted.code, Some(0), "{deleted:?}");
    let listed = run_ok(20, "tar", &["-tf", text(&stream)]);
    let mut listed: Vec<&str> = listed.lines().collect();
    listed.sort_unstable();
    assert_eq!(listed, ["gone", "removed"]);
    // The newest root tree is lost: the state before it is told, with a failure.
    let shown = run_ok(20, "btrfs", &["inspect-internal", "dump-super", text(&image)]);
    let root = shown.lines().find_map(|line| line.strip_prefix("root\t")).unwrap().trim();
    let places = run_ok(20, "btrfs-map-logical", &["-l", root, text(&image)]);
    let file = fs::OpenOptions::new().write(true).open(&image).unwrap();
    let physical = places.lines().filter_map(|line| line.split("physical ").nth(1)?.split(' ').next());
    let mut copies = 0;
    for offset in physical {
        file.write_all_at(&[0xee; 16384], offset.parse().unwrap()).unwrap();
        copies += 1;
    }
    assert_eq!(copies, 2, "{places}");
    let restored = butterfs(&["--format", "json", "restore", "-a", text(&image), text(&scratch.folder("older"))]);
    let json: serde_json::Value = serde_json::from_str(&restored.stdout).unwrap();
    let said = &json["restore"];
    assert_eq!((restored.code, &said["complete"]), (Some(1), &serde_json::Value::Bool(false)), "{restored:?}");
    assert!(said["older_states"].as_array().unwrap().iter().any(|state| state["tree"] == 5), "{said}");
    assert!(scratch.join("older/old").exists() && restored.stderr.contains("that of the last commit is lost"));
    // With a scan all of it comes back.
    let map = scratch.join("map");
    for unreadable in [&image, &map.with_extension("notes")] {
        fs::write(map.with_extension("notes"), "notes").unwrap();
        let before = fs::read(&image).unwrap();
        let words = ["rescue", "scan", "-q", "--map", text(&map), "--unreadable", text(unreadable), text(&image)];
        let refused = butterfs(&words);
        assert!(refused.code == Some(1) && refused.stderr.contains("is not overwritten"), "{refused:?}");
        assert!(fs::read(&image).unwrap() == before && !map.exists());
    }
    let bad = scratch.join("bad");
    for _ in 0..2 {
        butterfs_ok(&["rescue", "scan", "-q", "--map", text(&map), "--unreadable", text(&bad), text(&image)]);
    }
    let scanned = butterfs(&["restore", "-a", "--map", text(&map), text(&image), text(&scratch.folder("newer"))]);
    assert!(scanned.code == Some(1) && scratch.join("newer/new").exists(), "{scanned:?}");
}

#[test]
fn commands_that_write_do_what_their_names_say() {
    const TEST: &str = "commands_that_write";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let image = made(&scratch);
    let sound = fs::read(&image).unwrap();
    let broken = scratch.join("broken.img");
    let check = |image: &Path| run_ok(60, "btrfs", &["check", text(image)]);
    // Superblocks: the same bytes come back; without consent nothing happens.
    copy(&image, &broken);
    let open = || fs::OpenOptions::new().write(true).open(&broken).unwrap();
    open().write_all_at(&[0; 4096], 64 << 10).unwrap();
    let damaged = fs::read(&broken).unwrap();
    let asked = butterfs(&["rescue", "super-recover", text(&broken)]);
    assert!(asked.code == Some(1) && asked.stdout.contains("Are you sure? [y/N]: Aborted"), "{asked:?}");
    assert!(fs::read(&broken).unwrap() == damaged);
    let recovered = butterfs(&["rescue", "super-recover", "-y", text(&broken)]);
    assert_eq!((recovered.code, &*recovered.stdout), (Some(0), "Recovered bad superblocks successful\n"));
    assert!(recovered.stderr.contains("only that names the log"), "{recovered:?}");
    assert!(fs::read(&broken).unwrap() == sound);
    let valid = "All supers are valid, no need to recover\n";
    assert_eq!(butterfs_ok(&["rescue", "super-recover", "-y", text(&broken)]), valid);
    assert_eq!(run_ok(60, "btrfs", &["rescue", "super-recover", "-y", text(&broken)]), valid);
    // Sizes: as btrfs-progs does it.
    let theirs = copy(&image, &scratch.join("theirs.img"));
    for path in [&broken, &theirs] {
        fs::OpenOptions::new().write(true).open(path).unwrap().set_len((200 << 20) - 4096 * 3).unwrap();
    }
    let ours = butterfs_ok(&["rescue", "fix-device-size", text(&broken)]);
    assert_eq!(ours, run_ok(60, "btrfs", &["rescue", "fix-device-size", text(&theirs)]));
    check(&broken);
    let fine = "No device size related problem found\n";
    assert_eq!(butterfs_ok(&["rescue", "fix-device-size", text(&broken)]), fine);
    assert_eq!(run_ok(60, "btrfs", &["rescue", "fix-device-size", text(&broken)]), fine);
    // The chunk tree, of which nothing is left in any generation.
    copy(&image, &broken);
    let shown = run_ok(20, "btrfs", &["inspect-internal", "dump-tree", "-t", "chunk", text(&image)]);
    let stripes = shown.split("type SYSTEM|DUP").nth(1).unwrap();
    let offsets = stripes.lines().filter_map(|line| line.split("offset ").nth(1)).take(2);
    for offset in offsets.map(|offset| offset.trim().parse::<u64>().unwrap()) {
        open().write_all_at(&vec![0; 8 << 20], offset).unwrap();
    }
    let recovered = butterfs_ok(&["rescue", "chunk-recover", "-y", text(&broken)]);
    assert!(recovered.ends_with("Chunk tree recovered successfully\n"), "{recovered}");
    check(&broken);
    // Its chunks name the devices as a mount wants it.
    assert!(KernelMount::new(&broken, "ro").finish().is_empty());
    let whole = fs::read(&broken).unwrap();
    let again = butterfs_ok(&["rescue", "chunk-recover", "-y", text(&broken)]);
    assert_eq!(again, "Check chunks successfully with no orphans\n");
    assert!(fs::read(&broken).unwrap() == whole, "what is sound is not written");
    // Checksums: listed with the file's name, then declared right.
    copy(&image, &broken);
    let place = sound.windows(9).position(|part| part == b"dir/fdir/").unwrap() as u64;
    for sector in 0..3 {
        open().write_all_at(b"DIR", place + 4096 * sector).unwrap();
    }
    let listed = butterfs_ok(&["rescue", "fix-data-checksum", text(&broken)]);
    assert!(listed.contains("corrupted mirrors=1") && listed.contains("  dir/f\n"), "{listed}");
    let saved = scratch.folder("saved");
    let restored = butterfs(&["restore", text(&broken), text(&saved)]);
    assert!(restored.code == Some(1) && restored.stderr.contains("/dir/f: 12288 bytes do not fit"), "{restored:?}");
    assert!(fs::read(saved.join("dir/f")).unwrap().starts_with(b"DIR"));
    let declared = butterfs_ok(&["rescue", "fix-data-checksum", "-m", "1", text(&broken)]);
    assert_eq!(declared.matches("updated using data from mirror 1").count(), 3, "{declared}");
    assert_eq!(butterfs_ok(&["rescue", "fix-data-checksum", text(&broken)]), "No data checksum mismatch found\n");
    run_ok(60, "btrfs", &["check", "--check-data-csum", text(&broken)]);
}

#[test]
fn a_log_is_shown_and_left_behind() {
    const TEST: &str = "zero_log";
    let Some(archive) = requirement::shared_data(TEST, "corpus/kernel-dirty-logs.tar.zst") else { return };
    if !requirement::kernel_btrfs(TEST) || !requirement::programs(TEST, &["zstd"]) {
        return;
    }
    let scratch = Scratch::new(TEST);
    run_ok(60, "tar", &["-S", "--zstd", "-xf", text(&archive), "-C", text(scratch.path()), "btrfs-056-1.img"]);
    let image = scratch.join("btrfs-056-1.img");
    let shown = butterfs_ok(&["rescue", "zero-log", "-n", text(&image)]);
    assert!(shown.contains("log: /foo (tree 5): 40960 bytes, new\n"), "{shown}");
    let without = butterfs(&["restore", "-a", text(&image), text(&scratch.folder("without"))]);
    assert!(without.code == Some(0) && without.stderr.contains("--with-log"), "{without:?}");
    // Replayed in memory: what was synced is restored, and the log stays.
    let saved = scratch.folder("saved");
    let restored = butterfs(&["restore", "-a", "--with-log", text(&image), text(&saved)]);
    assert_eq!((restored.code, fs::metadata(saved.join("foo")).unwrap().len()), (Some(0), 40960), "{restored:?}");
    assert_eq!(butterfs_ok(&["rescue", "zero-log", "-n", text(&image)]), shown);
    // The primary superblock alone names the log: it does so while it is damaged, too, if what it names is sound.
    let damaged = copy(&image, &scratch.join("damaged.img"));
    let write = |at: u64, bytes: &[u8]| {
        fs::OpenOptions::new().write(true).open(&damaged).unwrap().write_all_at(bytes, at).unwrap();
    };
    write((64 << 10) + 3500, b"x");
    let found = scratch.folder("found");
    let restored = butterfs(&["restore", "-a", "--with-log", text(&damaged), text(&found)]);
    assert_eq!((restored.code, below(&found) == below(&saved)), (Some(0), true), "{restored:?}");
    // Wrong levels in the superblock, of the roots of the log and of the root tree, hinder nothing.
    let wrong = copy(&image, &scratch.join("wrong.img"));
    let device = FileDevice::open(&wrong, &FileOptions::read_write()).unwrap();
    let editor = Editor::open(vec![Arc::new(device)]);
    editor.superblock(|sb| (sb.root_level, sb.log_root_level) = (3, 2));
    drop(editor);
    let levels = scratch.folder("levels");
    let restored = butterfs(&["restore", "-a", "--with-log", text(&wrong), text(&levels)]);
    assert_eq!((restored.code, below(&levels) == below(&saved)), (Some(0), true), "{restored:?}");
    // A log that cannot be replayed is laid over the last commit, as far as it can be read.
    let restored_from = |name: &str, spoil: &dyn Fn(&Editor)| {
        let spoiled = copy(&image, &scratch.join(&format!("{name}.img")));
        let device = FileDevice::open(&spoiled, &FileOptions::read_write()).unwrap();
        spoil(&Editor::open(vec![Arc::new(device)]));
        let folder = scratch.folder(name);
        let restored = butterfs(&["restore", "-a", "--with-log", text(&spoiled), text(&folder)]);
        assert!(restored.stderr.contains("as much of the log as can be read is laid over"), "{restored:?}");
        (restored, below(&folder))
    };
    let zeros = vec![0; 16384];
    let (restored, found) = restored_from("extents", &|editor| editor.write_raw(editor.root(TreeId::EXTENT), &zeros));
    assert_eq!(found, below(&saved), "{restored:?}");
    let log = |editor: &Editor| editor.write_raw(editor.log_of(TreeId::FS).unwrap(), &zeros);
    let (restored, found) = restored_from("torn", &log);
    assert_eq!((restored.code, found), (Some(1), below(&scratch.join("without"))), "{restored:?}");
    assert!(restored.stderr.contains("a block of the log of subvolume 5 cannot be read"), "{restored:?}");
    let lost = copy(&damaged, &scratch.join("lost.img"));
    butterfs_ok(&["rescue", "super-recover", "-y", text(&damaged)]);
    assert_eq!(butterfs_ok(&["rescue", "zero-log", "-n", text(&damaged)]), shown);
    fs::OpenOptions::new().write(true).open(&lost).unwrap().write_all_at(&[0; 4096], 64 << 10).unwrap();
    let restored = butterfs(&["restore", "-a", "--with-log", text(&lost), text(&scratch.folder("less"))]);
    assert!(restored.stderr.contains("only that names the log"), "{restored:?}");
    let cleared = butterfs_ok(&["rescue", "zero-log", text(&image)]);
    assert!(cleared.starts_with(&shown) && cleared.contains("Clearing log on "), "{cleared}");
    let again = butterfs_ok(&["rescue", "zero-log", text(&image)]);
    assert_eq!(again, run_ok(60, "btrfs", &["rescue", "zero-log", text(&image)]));
    run_ok(60, "btrfs", &["check", text(&image)]);
}

/// The superblock of a device that has missed commits is what tells so: nothing that writes the others' changes it, and
/// data without checksums is restored from the other device.
#[test]
fn a_device_that_missed_commits_keeps_telling_it() {
    const TEST: &str = "missed_commits";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let images = ["one", "two"].map(|name| scratch.sparse_file(name, 200 << 20));
    let [one, two] = images.each_ref().map(|image| text(image));
    run_ok(60, "mkfs.btrfs", &["-q", "-f", "-d", "raid1", "-m", "raid1", one, two]);
    let mount = KernelMount::several(&images, "noatime,nodatacow");
    fs::write(mount.path().join("file"), [b'o'; 200_000]).unwrap();
    assert!(mount.finish().is_empty());
    let mount = KernelMount::new(&images[1], "noatime,degraded");
    let file = fs::OpenOptions::new().write(true).open(mount.path().join("file")).unwrap();
    file.write_all_at(&[b'N'; 100_000], 0).unwrap();
    drop(file);
    fs::write(mount.path().join("summed"), [b's'; 100_000]).unwrap();
    mount.finish();
    let expected = [vec![b'N'; 100_000], vec![b'o'; 100_000]].concat();
    let old = images.each_ref().map(|image| fs::read(image).unwrap());
    let commands: [&[&str]; 7] = [
        &["restore", "-l"],
        &["rescue", "super-recover", "-y"],
        &["rescue", "zero-log"],
        &["rescue", "clear-uuid-tree"],
        &["check", "--repair", "--force"],
        &["rescue", "fix-data-checksum", "-m", "1"],
        &["rescue", "fix-data-checksum", "-m", "2"],
    ];
    for (number, words) in commands.into_iter().enumerate() {
        images.iter().zip(&old).for_each(|(image, bytes)| fs::write(image, bytes).unwrap());
        let said = butterfs(&[words, &[one, two]].concat());
        assert!(fs::read(one).unwrap()[64 << 10..][..4096] == old[0][64 << 10..][..4096], "{words:?}: {said:?}");
        let saved = scratch.folder(&format!("saved-{number}"));
        let restored = butterfs(&["restore", "-a", two, one, text(&saved)]);
        assert_eq!(restored.code, Some(0), "{words:?}: {said:?} {restored:?}");
        assert!(fs::read(saved.join("file")).unwrap() == expected, "{words:?}: {said:?}");
        assert!(fs::read(saved.join("summed")).unwrap() == [b's'; 100_000], "{words:?}: {said:?}");
        assert!(restored.stderr.contains("/one has missed commits"), "{restored:?}");
        if number == 4 {
            assert!(said.code == Some(1) && said.stderr.contains("scrub start"), "{said:?}");
        }
    }
}
