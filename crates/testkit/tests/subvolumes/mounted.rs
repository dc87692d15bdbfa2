//! Commands on a mount: what the kernel caches, what users without privileges may do, what is refused, and programs
//! that look for links across subvolumes.

use butterfs_testkit::kernel::{Finished, KernelMount, check_all, run, run_ok};
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::serve::{self, Served};
use butterfs_testkit::watchdog::Watchdog;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

const NOBODY: &str = "54321";

struct World {
    scratch: Scratch,
    image: PathBuf,
    served: Option<Served>,
}

fn butterfs(arguments: &[&str]) -> Finished {
    run(60, serve::binary(), arguments)
}

fn text(path: &Path) -> String {
    path.to_str().expect("test paths are text").to_owned()
}

impl World {
    fn new(name: &str, options: &str) -> Option<World> {
        if !requirement::kernel_btrfs(name) || !requirement::fuse(name) {
            return None;
        }
        let scratch = Scratch::new(name);
        let image = scratch.sparse_file("image", 1 << 30);
        serve::mkfs(&image, &[]);
        let served = Some(Served::mount(&image, &scratch.folder("mnt"), options));
        Some(World { scratch, image, served })
    }

    fn at(&self, path: &str) -> PathBuf {
        self.scratch.join("mnt").join(path)
    }

    fn path(&self, path: &str) -> String {
        text(&self.at(path))
    }

    fn ok(&self, arguments: &[&str]) -> String {
        let finished = butterfs(arguments);
        assert_eq!(finished.code, Some(0), "{arguments:?}: {}", finished.output);
        finished.output
    }

    fn refused(&self, arguments: &[&str], sentence: &str) {
        let finished = butterfs(arguments);
        assert_eq!(finished.code, Some(1), "{arguments:?}: {}", finished.output);
        assert!(finished.output.contains(sentence), "{arguments:?}: {}", finished.output);
    }

    /// As a user without privileges.
    fn user(&self, arguments: &[&str]) -> Finished {
        let ids = ["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"];
        let program = self.scratch.join("butterfs");
        if !program.exists() {
            fs::copy(serve::binary(), &program).expect("room");
        }
        let program = text(&program);
        run(60, "setpriv", &[&ids[..], &[&program], arguments].concat())
    }

    fn finish(mut self) {
        self.served.take().expect("mounted").unmount();
        check_all(&self.image);
        let mount = KernelMount::new(&self.image, "ro");
        run_ok(60, "find", &[&text(mount.path())]);
        assert_eq!(mount.finish(), [""; 0]);
    }
}

#[test]
fn data_in_the_kernels_cache_is_in_a_snapshot() {
    let Some(world) = World::new("data_in_the_kernels_cache_is_in_a_snapshot", "") else { return };
    let _watchdog = Watchdog::new("data_in_the_kernels_cache_is_in_a_snapshot", 120);
    world.ok(&["subvolume", "create", &world.path("s")]);
    let mut open = fs::File::create(world.at("s/open")).expect("room");
    for round in 0..20u8 {
        open.write_all(&vec![round; 100_001]).expect("room");
        fs::write(world.at("s/closed"), vec![round; 5000]).expect("room");
        open.write_all_at(&[255; 10], u64::from(round) * 10).expect("room");
        let name = world.path(&format!("snap{round}"));
        // Nothing of this name is there, and the kernel knows it.
        assert!(!Path::new(&name).exists());
        let kind: &[&str] = if round % 2 == 0 { &["-r"] } else { &[] };
        world.ok(&[&["subvolume", "snapshot"], kind, &[&world.path("s"), &name]].concat());
        let content = fs::read(format!("{name}/open")).expect("it is there");
        assert_eq!(content, fs::read(world.at("s/open")).expect("it is there"), "round {round}");
        assert_eq!(content.len(), (usize::from(round) + 1) * 100_001);
        assert_eq!(fs::read(format!("{name}/closed")).expect("it is there"), vec![round; 5000]);
        let time = |path: String| {
            let meta = fs::metadata(path).expect("it is there");
            (meta.mtime(), meta.mtime_nsec())
        };
        assert_eq!(time(format!("{name}/closed")), time(world.path("s/closed")), "round {round}");
    }
    drop(open);
    world.finish();
}

#[test]
fn entries_come_and_go() {
    let Some(world) = World::new("entries_come_and_go", "") else { return };
    let _watchdog = Watchdog::new("entries_come_and_go", 120);
    let size = || fs::metadata(world.at("")).expect("the root").len();
    for name in ["a", "b"] {
        assert!(!world.at(name).exists());
        let before = size();
        world.ok(&["subvolume", "create", &world.path(name)]);
        assert!(world.at(name).is_dir());
        assert_eq!(size(), before + 2);
    }
    fs::write(world.at("b/file"), "content").expect("room");
    // Into each other, out again, with content; rmdir takes an empty one.
    fs::rename(world.at("b"), world.at("a/inner")).expect("a subvolume moves");
    assert_eq!(fs::read(world.at("a/inner/file")).expect("moved along"), b"content");
    world.refused(&["subvolume", "delete", &world.path("a")], "the subvolume holds other subvolumes");
    assert_eq!(fs::remove_dir(world.at("a/inner")).unwrap_err().raw_os_error(), Some(39));
    // A snapshot shows an empty directory in place of the nested one.
    world.ok(&["subvolume", "snapshot", &world.path("a"), &world.path("c")]);
    let stand_in = fs::metadata(world.at("c/inner")).expect("it is shown");
    assert_eq!((stand_in.ino(), stand_in.nlink(), stand_in.len()), (2, 1, 0));
    assert_eq!(fs::write(world.at("c/inner/new"), "").unwrap_err().raw_os_error(), Some(13));
    fs::remove_dir(world.at("c/inner")).expect("a stand-in goes");
    fs::remove_file(world.at("a/inner/file")).expect("it is there");
    fs::remove_dir(world.at("a/inner")).expect("an empty subvolume goes");
    let open = fs::File::open(world.at("a")).expect("it is there");
    world.ok(&["subvolume", "delete", &world.path("a"), &world.path("c")]);
    for name in ["a", "b", "c"] {
        assert!(!world.at(name).exists(), "{name}");
    }
    assert_eq!(size(), 0);
    drop(open);
    world.ok(&["subvolume", "sync", &world.path("")]);
    assert_eq!(world.ok(&["subvolume", "list", "-d", &world.path("")]), "");
    world.finish();
}

#[test]
fn senseless_arguments_are_refused() {
    let Some(world) = World::new("senseless_arguments_are_refused", "subvol=/") else { return };
    let _watchdog = Watchdog::new("senseless_arguments_are_refused", 120);
    let path = |name: &str| world.path(name);
    world.ok(&["subvolume", "create", &path("s")]);
    world.ok(&["subvolume", "snapshot", "-r", &path("s"), &path("ro")]);
    fs::write(world.at("file"), "").expect("room");
    fs::create_dir(world.at("dir")).expect("room");
    let long = "n".repeat(256);
    world.refused(&["subvolume", "create", &path("s")], "already exists");
    world.refused(&["subvolume", "create", &path("none/x")], "No such file");
    world.refused(&["subvolume", "create", &path("ro/x")], "read-only");
    world.refused(&["subvolume", "create", &path(&long)], "");
    world.refused(&["subvolume", "create", &path("file/x")], "");
    world.refused(&["subvolume", "snapshot", &path("dir"), &path("x")], "not a subvolume");
    world.refused(&["subvolume", "snapshot", &path("s"), &path("file")], "not a directory");
    world.refused(&["subvolume", "snapshot", &path("s"), &path("ro")], "read-only");
    world.refused(&["subvolume", "snapshot", "-i", "0/5", &path("s"), &path("x")], "quota groups");
    world.refused(&["subvolume", "delete", &path("dir")], "not a subvolume");
    world.refused(&["subvolume", "delete", &path("none")], "No such file");
    world.refused(&["subvolume", "delete", "-i", "5", &path("")], "top-level");
    world.refused(&["subvolume", "delete", "-i", "999", &path("")], "999");
    world.refused(&["subvolume", "set-default", "999", &path("")], "999");
    world.refused(&["subvolume", "set-default", &path("dir")], "not a subvolume");
    world.refused(&["subvolume", "show", &path("dir")], "not a subvolume");
    world.refused(&["property", "set", &path("s"), "ro", "maybe"], "invalid value");
    world.refused(&["property", "set", &path("dir"), "ro", "true"], "not a subvolume");
    world.refused(&["inspect-internal", "inode-resolve", "999", &path("s")], "no such inode");
    world.refused(&["inspect-internal", "logical-resolve", "12345", &path("")], "no file data");
    world.refused(&["subvolume", "list", "/proc"], "not on a butterfs mount");
    world.ok(&["subvolume", "set-default", &path("s")]);
    world.refused(&["subvolume", "delete", &path("s")], "default subvolume");
    world.ok(&["property", "set", &path("ro"), "ro", "false"]);
    fs::write(world.at("ro/now"), "writable").expect("no longer read-only");
    world.ok(&["property", "set", &path("ro"), "ro", "true"]);
    assert_eq!(fs::write(world.at("ro/now"), "not").unwrap_err().raw_os_error(), Some(30));
    assert_eq!(fs::remove_file(world.at("ro/now")).unwrap_err().raw_os_error(), Some(30));
    let count = world.ok(&["subvolume", "list", &path("")]).lines().count();
    assert_eq!(count, 2);
    world.finish();
}

#[test]
fn users_may_do_what_the_kernel_lets_them() {
    let Some(mut world) = World::new("users_may_do_what_the_kernel_lets_them", "") else { return };
    let _watchdog = Watchdog::new("users_may_do_what_the_kernel_lets_them", 120);
    let mut above = world.scratch.path().to_owned();
    while above.parent().is_some() {
        let reachable = fs::metadata(&above).is_ok_and(|meta| meta.permissions().mode() & 1 == 1);
        if !reachable {
            fs::set_permissions(&above, fs::Permissions::from_mode(0o755)).expect("our own folder");
        }
        above.pop();
    }
    for (name, mode) in [("open", 0o777), ("closed", 0o755), ("hidden", 0o700), ("sticky", 0o1777)] {
        fs::create_dir(world.at(name)).expect("room");
        fs::set_permissions(world.at(name), fs::Permissions::from_mode(mode)).expect("our own");
    }
    fs::create_dir(world.at("hidden/open")).expect("room");
    fs::set_permissions(world.at("hidden/open"), fs::Permissions::from_mode(0o777)).expect("our own");
    world.ok(&["subvolume", "create", &world.path("roots")]);
    world.ok(&["subvolume", "create", &world.path("sticky/roots")]);
    let may = |world: &World, arguments: &[&str]| {
        let finished = world.user(arguments);
        assert_eq!(finished.code, Some(0), "{arguments:?}: {}", finished.output);
    };
    let may_not = |world: &World, arguments: &[&str]| {
        let finished = world.user(arguments);
        assert_eq!(finished.code, Some(1), "{arguments:?}: {}", finished.output);
    };
    let path = |world: &World, name: &str| world.path(name);
    may(&world, &["subvolume", "create", &path(&world, "open/s")]);
    assert_eq!(fs::metadata(world.at("open/s")).expect("made").uid().to_string(), NOBODY);
    may(&world, &["subvolume", "snapshot", &path(&world, "open/s"), &path(&world, "open/t")]);
    may_not(&world, &["subvolume", "show", &path(&world, "open/s")]);
    may(&world, &["property", "set", &path(&world, "open/s"), "ro", "true"]);
    may(&world, &["property", "set", &path(&world, "open/s"), "ro", "false"]);
    may_not(&world, &["subvolume", "create", &path(&world, "closed/s")]);
    may_not(&world, &["subvolume", "create", &path(&world, "hidden/open/s")]);
    may_not(&world, &["subvolume", "snapshot", &path(&world, "roots"), &path(&world, "open/r")]);
    may_not(&world, &["property", "set", &path(&world, "roots"), "ro", "true"]);
    may_not(&world, &["subvolume", "list", &path(&world, "")]);
    may_not(&world, &["subvolume", "set-default", &path(&world, "open/s")]);
    may_not(&world, &["subvolume", "delete", &path(&world, "open/t")]);
    assert!(world.at("open/t").exists());
    world.served.take().expect("mounted").unmount();
    world.served = Some(Served::mount(&world.image, &world.scratch.join("mnt"), "user_subvol_rm_allowed"));
    may(&world, &["subvolume", "delete", &path(&world, "open/t")]);
    may_not(&world, &["subvolume", "delete", &path(&world, "sticky/roots")]);
    may_not(&world, &["subvolume", "delete", &path(&world, "roots")]);
    may_not(&world, &["subvolume", "delete", "-i", "256", &path(&world, "")]);
    world.finish();
}

#[test]
fn a_subvolume_is_mounted_by_name_by_number_and_as_the_default() {
    let Some(mut world) = World::new("a_subvolume_is_mounted", "") else { return };
    let _watchdog = Watchdog::new("a_subvolume_is_mounted", 120);
    world.ok(&["subvolume", "create", &world.path("s")]);
    fs::write(world.at("s/file"), "in s").expect("room");
    let again = |world: &mut World, options: &str| {
        world.served.take().expect("mounted").unmount();
        world.served = Some(Served::mount(&world.image, &world.scratch.join("mnt"), options));
    };
    for options in ["subvol=s", "subvol=/s", "subvolid=256", "subvolid=0x100"] {
        again(&mut world, options);
        assert_eq!(fs::read(world.at("file")).expect("it is shown"), b"in s", "{options}");
    }
    world.ok(&["subvolume", "set-default", &world.path("")]);
    again(&mut world, "");
    assert_eq!(fs::read(world.at("file")).expect("it is the default"), b"in s");
    again(&mut world, "subvolid=5");
    world.ok(&["subvolume", "set-default", "5", &world.path("")]);
    assert_eq!(world.ok(&["subvolume", "get-default", &world.path("")]), "ID 5 (FS_TREE)\n");
    again(&mut world, "rescan_uuid_tree");
    world.ok(&["subvolume", "delete", "-C", &world.path("s")]);
    world.served.take().expect("mounted").unmount();
    let at = world.scratch.join("mnt");
    for options in ["subvol=none", "subvolid=256", "subvolid=6"] {
        assert!(Served::try_mount(&world.image, &at, options).is_err(), "{options}");
    }
    world.served = Some(Served::mount(&world.image, &at, ""));
    world.finish();
}

#[test]
fn programs_see_no_links_across_subvolumes() {
    const TEST: &str = "programs_see_no_links_across_subvolumes";
    let Some(world) = World::new(TEST, "") else { return };
    let _watchdog = Watchdog::new(TEST, 120);
    world.ok(&["subvolume", "create", &world.path("s")]);
    for number in 0..20u8 {
        fs::write(world.at(&format!("s/file{number}")), vec![number; 5000]).expect("room");
        fs::hard_link(world.at(&format!("s/file{number}")), world.at(&format!("s/link{number}"))).expect("room");
    }
    for name in ["t", "u"] {
        world.ok(&["subvolume", "snapshot", &world.path("s"), &world.path(name)]);
        fs::write(world.at(name).join("file3"), name).expect("room");
    }
    let all = world.path("");
    let numbers = run_ok(60, "find", &[&all, "-type", "f", "-printf", "%D:%i\n"]);
    let mut numbers: Vec<&str> = numbers.lines().collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 60, "inodes that find tells apart");
    let copy = world.scratch.folder("copies");
    let target = |name: &str| text(&copy.join(name));
    run_ok(60, "cp", &["-a", &all, &target("cp")]);
    let script = format!("mkdir {0} && tar -C {all} -cf - . | tar -C {0} -xf -", target("tar"));
    run_ok(60, "sh", &["-c", &script]);
    let mut tools = vec!["cp", "tar"];
    if requirement::programs(TEST, &["rsync"]) {
        run_ok(60, "rsync", &["-aH", &format!("{all}/"), &target("rsync")]);
        tools.push("rsync");
    }
    for tool in tools {
        run_ok(60, "diff", &["-r", &all, &target(tool)]);
        for folder in ["s", "t", "u"] {
            let meta = fs::metadata(copy.join(tool).join(folder).join("file3")).expect("copied");
            assert_eq!(meta.nlink(), 2, "{tool}, {folder}");
        }
    }
    // Each subvolume's blocks count where they are seen, and links once.
    let kib = |path: &str| run_ok(60, "du", &["-sk", path]).split('\t').next().map(str::to_owned).expect("a number");
    let parts: u64 = ["s", "t", "u"].iter().map(|name| kib(&world.path(name)).parse::<u64>().expect("a number")).sum();
    let own = fs::metadata(world.at("")).expect("the root").blocks() / 2;
    assert_eq!(kib(&all).parse::<u64>().expect("a number"), own + parts, "du");
    world.finish();
}
