//! One filesystem, several mounts: what the kernel's btrfs does with the second mount of a device, ours does too.

#[allow(dead_code)]
mod common;
#[allow(dead_code)]
mod mounted;

use butterfs_testkit::kernel::{LoopDevice, mkfs};
use butterfs_testkit::requirement;
use common::{butterfs, butterfs_ok};
use mounted::{Bed, eventually, shell, text};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

const BINARY: &str = env!("CARGO_BIN_EXE_butterfs");

/// An image with two subvolumes in use on a root and a home, as distributions make them, and places for them.
struct Two {
    bed: Bed,
    root: PathBuf,
    home: PathBuf,
}

impl Two {
    fn new(test: &str) -> Option<Two> {
        let bed = Bed::for_root(test)?.with_image();
        let folder = |name| bed.scratch.folder(name).canonicalize().expect("just made");
        let (root, home) = (folder("root"), folder("home"));
        bed.mount_ok("rw");
        for name in ["@", "@home"] {
            butterfs_ok(&["subvolume", "create", text(&bed.path(name))]);
        }
        bed.umount_ok();
        Some(Two { bed, root, home })
    }

    fn mount(&self, options: &str, at: &Path) -> common::Ran {
        butterfs(&["mount", "-o", options, text(&self.bed.image), text(at)])
    }

    fn mount_ok(&self, options: &str, at: &Path) {
        let ran = self.mount(options, at);
        assert!(ran.code == Some(0) && ran.stderr.is_empty(), "{options}: {ran:?}");
    }

    fn both() -> [&'static str; 2] {
        ["subvol=@", "subvol=@home"]
    }

    fn mount_both(&self) {
        self.mount_ok(Two::both()[0], &self.root);
        self.mount_ok(Two::both()[1], &self.home);
    }

    fn servers(&self) -> usize {
        servers_of(&self.bed.image)
    }
}

impl Drop for Two {
    fn drop(&mut self) {
        for at in [&self.root, &self.home] {
            let _ = Command::new("umount").args(["-q", "-l", text(at)]).status();
        }
    }
}

/// The number of serving processes with this path on their command line.
fn servers_of(image: &Path) -> usize {
    let words = |entry: fs::DirEntry| fs::read(entry.path().join("cmdline")).unwrap_or_default();
    let is_server = |line: &Vec<u8>| {
        let has = |wanted: &[u8]| line.split(|byte| *byte == 0).any(|word| word == wanted);
        has(b"--serve") && has(text(image).as_bytes())
    };
    fs::read_dir("/proc").expect("/proc is there").flatten().map(words).filter(is_server).count()
}

/// Any root that is on the disk can be mounted by its address, and nobody joins a mount of another time unawares.
#[test]
fn a_mount_of_the_past_is_not_taken_for_the_present() {
    let Some(two) = Two::new("joined_past") else { return };
    two.bed.mount_ok("rw");
    fs::write(two.bed.path("@/file"), "inside").unwrap();
    two.bed.umount_ok();
    let listed = butterfs_ok(&["restore", "-l", text(&two.bed.image)]);
    let address = |tree: &str| {
        let line = listed.lines().find(|line| line.contains(tree)).expect("the tree is listed");
        line.split(") ").nth(1).and_then(|rest| rest.split(' ').next()).expect("it has an address").to_owned()
    };
    // The subvolume is shown then.
    let past = format!("ro,at=@{}", address("(256 ROOT_ITEM"));
    let mounted = two.mount(&past, &two.root);
    assert!(mounted.code == Some(0) && mounted.stderr.contains("subvolume 256 is shown"), "{mounted:?}");
    assert_eq!(fs::read_to_string(two.root.join("file")).unwrap(), "inside");
    for options in ["ro", "rw", "ro,at=backup0"] {
        let refused = two.mount(options, &two.home);
        assert!(refused.code == Some(1) && refused.stderr.contains("shows an older commit"), "{options}: {refused:?}");
    }
    let again = two.mount(&past, &two.home);
    assert!(again.code == Some(0) && two.home.join("file").exists() && two.servers() == 1, "{again:?}");
    for at in [&two.root, &two.home] {
        shell("umount \"$at\"", &[("at", at)]);
    }
    eventually(|| two.servers() == 0);
    two.mount_ok("ro", &two.root);
    let refused = two.mount(&past, &two.home);
    assert!(refused.code == Some(1) && refused.stderr.contains("shows the last commit"), "{refused:?}");
    let chunk_tree = two.mount("ro,at=@4096", &two.home);
    assert!(chunk_tree.code == Some(1), "{chunk_tree:?}");
}

/// Runs `script` on the kernel's btrfs and on ours, where `mount_at OPTIONS DIR` mounts, and compares what it prints.
#[test]
fn a_second_mount_is_as_on_the_kernel() {
    const TEST: &str = "joined_as_on_kernel";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let Some(two) = Two::new(TEST) else { return };
    let script = r#"
        say() { echo "$@"; }
        try() { "$@" > /dev/null 2> err && say ok || { sed 's/.*: //' err | head -1; }; }
        shows() { awk -v at="$1" '$5 == at { print $4, $6, substr($0, match($0, " - ")) }' /proc/self/mountinfo |
            sed -E 's/ - [^ ]+ [^ ]+ (r[ow]).*/ sb \1/'; }
        mount_at subvol=@ "$a"; mount_at subvol=@home,ro,nosuid,nodev,noatime "$b"
        shows "$a"; shows "$b"
        try touch "$b/no"; try touch "$a/yes"
        mount_at subvolid=5 "$c"
        say 1 > "$c/@home/seen"; cat "$b/seen"; say 2 > "$c/@home/seen"; cat "$b/seen"
        try ln "$a/yes" "$c/@/other"; try mv -n "$c/@home/seen" "$c/seen"; cat "$c/seen"; ls "$b"
        try mv "$c/seen" "$c/@home/seen"; try ln "$c/@home/seen" "$c/@home/second"; ls "$b"
        call() { python3 -c "import os,sys; os.$1(sys.argv[1], sys.argv[2])" "$2" "$3" 2>&1 |
            tail -1 | cut -d: -f2 || true; }
        call link "$c/@/yes" "$a/again" | cut -d"'" -f1; call rename "$c/@/yes" "$a/again" | cut -d"'" -f1
        try mount_at subvol=@,subvolid=5 "$d"; try mount_at subvol=nowhere "$d"; try mount_at subvolid=4711 "$d"
        mkdir "$c/dir"; try mount_at subvol=dir "$d"; ln -s ../@ "$c/dir/link"; try mount_at subvol=dir/link "$d"
        shows "$d"; umount "$d"
        try mount_at subvol=@ "$a"
        mount_at subvol=@,subvolid=256,compress=zstd "$d"; shows "$d"; ls "$d"
        mount -o remount,ro "$d"; shows "$d"; shows "$a"; shows "$c"; try touch "$c/no"
        mount_at subvol=@home "$e"; shows "$e"; shows "$d"; shows "$a"
        try touch "$e/written"; try touch "$a/written"; try touch "$d/no"
        umount "$d"; umount "$a"; ls "$c/@"; umount "$c"; say end >> "$e/seen"; sync -f "$e"; cat "$b/seen"
        umount "$b"; umount "$e"
        mount_at ro,subvol=@ "$a"; shows "$a"; mount_at rw,subvol=@home "$b"; shows "$a"; shows "$b"
        try touch "$a/no"; try touch "$b/late"; umount "$a"; umount "$b"
    "#;
    let places = ["a", "b", "c", "d", "e"].map(|name| two.bed.scratch.folder(name).canonicalize().unwrap());
    let image = two.bed.image.clone();
    let copy = two.bed.scratch.join("copy.img");
    fs::copy(&image, &copy).unwrap();
    let run = |mount: &str, device: &Path| {
        let variables: Vec<(&str, &Path)> =
            ["a", "b", "c", "d", "e"].into_iter().zip(places.iter().map(PathBuf::as_path)).collect();
        let more = [("device", device), ("binary", Path::new(BINARY)), ("scratch", two.bed.scratch.path())];
        let script = format!("cd \"$scratch\"; mount_at() {{ {mount}; }}\n{script}");
        shell(&script, &[&variables[..], &more].concat())
    };
    let device = LoopDevice::attach(&copy, false);
    let kernel = run("mount -t btrfs -o \"$1\" \"$device\" \"$2\"", device.path());
    let ours = run("\"$binary\" mount -o \"$1\" \"$device\" \"$2\" 2> said || { tail -1 said >&2; false; }", &image);
    // Both say why in words of their own.
    let alike = |text: &str| -> Vec<String> {
        const REASONS: [&str; 6] = [
            "No such file",
            "there is no subvolume",
            "wrong fs type",
            "not a subvolume",
            "does not match",
            "already mounted",
        ];
        let one =
            |line: &str| if REASONS.iter().any(|reason| line.contains(reason)) { "refused" } else { line }.to_owned();
        text.lines().map(one).collect()
    };
    let (kernel, ours) = (alike(&kernel), alike(&ours));
    assert!(kernel.len() > 40, "{kernel:#?}");
    assert_eq!(ours, kernel, "ours on the left");
    eventually(|| two.servers() == 0);
    two.bed.judge(|root| assert!(root.join("@home/late").exists() && !root.join("@/no").exists()));
}

#[test]
fn fstab_has_two_lines_for_one_device() {
    const TEST: &str = "joined_by_fstab";
    let Some(two) = Two::new(TEST) else { return };
    let script = r#"
        awk '/butterfs|btrfs/ { print $5 }' /proc/self/mountinfo | xargs -r -n 1 umount -l
        mount -t tmpfs none /usr/sbin && ln -s "$binary" /usr/sbin/mount.butterfs
        { echo "$image $root butterfs defaults,subvol=/@ 0 0"
          echo "$image $home butterfs noexec,subvol=@home 0 0"; } > "$fstab"
        mount -a -T "$fstab"; mount -a -T "$fstab"
        findmnt -n -l -o TARGET,FSTYPE,FSROOT "$root"; findmnt -n -l -o TARGET,FSTYPE,FSROOT "$home"
        grep -c "$image" /proc/self/mountinfo
        mount -o remount,nosuid "$home"
        umount "$root"; echo still > "$home/there"; umount "$home"
    "#;
    let script_file = two.bed.scratch.join("script");
    fs::write(&script_file, script).unwrap();
    let variables: [(&str, &Path); 6] = [
        ("script", &script_file),
        ("binary", Path::new(BINARY)),
        ("image", &two.bed.image),
        ("root", &two.root),
        ("home", &two.home),
        ("fstab", &two.bed.scratch.join("fstab")),
    ];
    let output = shell(
        "export binary image root home fstab; unshare -m --propagation slave bash -euo pipefail \"$script\"",
        &variables,
    );
    let words: Vec<&str> = output.split_whitespace().collect();
    let expected = [text(&two.root), "fuseblk.butterfs", "/@", text(&two.home), "fuseblk.butterfs", "/@home", "2"];
    assert_eq!(words, expected);
    eventually(|| two.servers() == 0);
    two.bed.judge(|root| assert_eq!(fs::read_to_string(root.join("@home/there")).unwrap(), "still\n"));
}

#[test]
fn mappings_and_caches_are_one() {
    const TEST: &str = "joined_caches";
    let Some(two) = Two::new(TEST) else { return };
    two.mount_ok("subvolid=5", &two.bed.at);
    two.mount_both();
    fs::write(two.home.join("file"), vec![1; 256 << 10]).unwrap();
    // Read, so that it is cached; mapped on one side, written by call and by mapping on the other.
    let above = two.bed.path("@home/file");
    assert_eq!(fs::read(&above).unwrap(), vec![1; 256 << 10]);
    let script = r#"
        import mmap, os, sys
        one, two = (os.open(path, os.O_RDWR) for path in sys.argv[1:3])
        ours, theirs = (mmap.mmap(fd, 0) for fd in (one, two))
        theirs[4096:4100] = b"maps"
        assert ours[4096:4100] == b"maps" and os.pread(one, 4, 4096) == b"maps"
        os.pwrite(one, b"call", 8192)
        assert theirs[8192:8196] == b"call"
        theirs[100000:100004] = b"late"
        os.ftruncate(one, 200000)
        assert os.fstat(two).st_size == 200000 and ours[100000:100004] == b"late"
        os.unlink(sys.argv[1])
        assert not os.path.exists(sys.argv[2]) and ours[4096:4100] == b"maps"
    "#;
    let script: String =
        script.lines().map(|line| format!("{}\n", line.strip_prefix("        ").unwrap_or(line))).collect();
    let ran =
        Command::new("python3").args(["-c", &script, text(&above), text(&two.home.join("file"))]).status().unwrap();
    assert!(ran.success());
    assert!(File::open(two.home.join("file")).is_err());
    // Names that are known not to be there.
    fs::create_dir(two.bed.path("@/folder")).unwrap();
    fs::write(two.root.join("folder/name"), "by @").unwrap();
    assert_eq!(fs::read_to_string(two.bed.path("@/folder/name")).unwrap(), "by @");
    fs::rename(two.bed.path("@/folder"), two.bed.path("@/renamed")).unwrap();
    assert!(two.root.join("renamed/name").exists() && !two.root.join("folder").exists());
    // One file by both mounts: one number on one device.
    let of = |path: PathBuf| fs::metadata(path).map(|found| (found.dev(), found.ino())).unwrap();
    assert_eq!(of(two.root.join("renamed/name")), of(two.bed.path("@/renamed/name")));
    for at in [&two.root, &two.bed.at, &two.home] {
        butterfs_ok(&["umount", text(at)]);
    }
    assert_eq!(two.servers(), 0);
}

#[test]
fn commands_work_by_any_mount() {
    const TEST: &str = "joined_commands";
    let Some(two) = Two::new(TEST) else { return };
    two.mount_both();
    let path = |at: &Path, name: &str| text(&at.join(name)).to_owned();
    butterfs_ok(&["subvolume", "create", &path(&two.home, "sub")]);
    for at in [&two.root, &two.home] {
        let listed = butterfs_ok(&["subvolume", "list", text(at)]);
        assert!(["path @\n", "path @home\n", "sub\n"].iter().all(|end| listed.contains(end)), "{listed}");
    }
    let shown = butterfs_ok(&["subvolume", "show", text(&two.home)]);
    assert!(shown.starts_with("@home\n"), "{shown}");
    // Across mounts, as the kernel's ioctl: the same filesystem, another mount.
    let across = butterfs(&["subvolume", "snapshot", &path(&two.home, "sub"), &path(&two.root, "snap")]);
    assert_eq!(across.code, Some(0), "{across:?}");
    // Through a read-only mount nothing changes, whatever the others are.
    let third = two.bed.at.clone();
    two.mount_ok("ro,subvolid=5", &third);
    let refused = butterfs(&["subvolume", "delete", &path(&third, "@home/sub")]);
    assert!(refused.code == Some(1) && refused.stderr.contains("ead-only"), "{refused:?}");
    butterfs_ok(&["subvolume", "delete", &path(&two.home, "sub")]);
    // The subvolume of a mount goes, as on the kernel, and so does what can be seen there.
    butterfs_ok(&["umount", text(&third)]);
    two.mount_ok("subvolid=5", &third);
    butterfs_ok(&["subvolume", "delete", &path(&third, "@/snap")]);
    butterfs_ok(&["subvolume", "delete", &path(&third, "@home")]);
    let gone = fs::write(two.home.join("new"), "").unwrap_err().raw_os_error();
    assert!(matches!(gone, Some(libc::ENOENT | libc::ESTALE)), "{gone:?}");
    let options = butterfs_ok(&["mount", "--show", text(&third)]);
    assert!(options.starts_with("rw,relatime,") && options.ends_with("subvolid=5,subvol=/\n"), "{options}");
    for at in [&two.root, &two.home, &third] {
        butterfs_ok(&["umount", text(at)]);
    }
    assert_eq!(two.servers(), 0);
}

#[test]
fn a_device_is_known_by_any_name() {
    const TEST: &str = "joined_names";
    let Some(bed) = Bed::for_root(TEST) else { return };
    let images = ["one.img", "two.img"].map(|name| bed.scratch.join(name));
    butterfs_ok(&["mkfs", "-q", "-b", "256M", "-d", "raid1", "-m", "raid1", text(&images[0]), text(&images[1])]);
    let all = format!("device={}", text(&images[1]));
    butterfs_ok(&["mount", "-o", &all, text(&images[0]), text(&bed.at)]);
    let link = bed.scratch.join("link");
    symlink(&images[1], &link).unwrap();
    let over = LoopDevice::attach(&images[1], false);
    // A copy has the same UUID and is another filesystem.
    let copy = bed.scratch.join("copy.img");
    fs::copy(&images[0], &copy).unwrap();
    let elsewhere = bed.scratch.folder("elsewhere").canonicalize().unwrap();
    for name in [&images[0], &images[1], &link, &over.path().to_owned()] {
        butterfs_ok(&["mount", text(name), text(&elsewhere)]);
        fs::write(elsewhere.join("file"), text(name)).unwrap();
        assert_eq!(fs::read_to_string(bed.path("file")).unwrap(), text(name));
        butterfs_ok(&["umount", text(&elsewhere)]);
    }
    // Also by one that it got since.
    let moved = bed.scratch.join("moved.img");
    fs::rename(&images[0], &moved).unwrap();
    butterfs_ok(&["mount", text(&moved), text(&elsewhere)]);
    assert_eq!(fs::read(elsewhere.join("file")).unwrap(), fs::read(bed.path("file")).unwrap());
    butterfs_ok(&["umount", text(&elsewhere)]);
    fs::rename(&moved, &images[0]).unwrap();
    let refused = butterfs(&["mount", text(&copy), text(&elsewhere)]);
    assert!(refused.code == Some(1) && refused.stderr.contains("device"), "{refused:?}");
    let ran = butterfs(&["mount", "-o", "ro,degraded", text(&copy), text(&elsewhere)]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(servers_of(&images[0]) == 1 && servers_of(&copy) == 1);
    butterfs_ok(&["umount", text(&elsewhere)]);
    // In the foreground nobody can be served twice.
    let refused = butterfs(&["mount", "-f", text(&images[0]), text(&elsewhere)]);
    assert!(refused.code == Some(1) && refused.stderr.contains("another process serves"), "{refused:?}");
    butterfs_ok(&["umount", text(&bed.at)]);
}

#[test]
fn mounts_at_the_same_moment_end_up_in_one_process() {
    const TEST: &str = "joined_race";
    let Some(two) = Two::new(TEST) else { return };
    let places: Vec<PathBuf> =
        (0..6).map(|n| two.bed.scratch.folder(&format!("at-{n}")).canonicalize().unwrap()).collect();
    for round in 0..3 {
        std::thread::scope(|scope| {
            for (number, at) in places.iter().enumerate() {
                let two = &two;
                scope.spawn(move || two.mount_ok(Two::both()[number % 2], at));
            }
        });
        assert_eq!(two.servers(), 1);
        fs::write(places[0].join("round"), round.to_string()).unwrap();
        assert_eq!(fs::read_to_string(places[2].join("round")).unwrap(), round.to_string());
        std::thread::scope(|scope| {
            for at in &places {
                scope.spawn(move || butterfs_ok(&["umount", text(at)]));
            }
        });
        eventually(|| two.servers() == 0);
    }
}

#[test]
fn a_crash_ends_all_mounts_and_a_signal_takes_them_away() {
    const TEST: &str = "joined_ends";
    let Some(two) = Two::new(TEST) else { return };
    two.mount_both();
    fs::write(two.home.join("file"), "durable").unwrap();
    butterfs_ok(&["filesystem", "sync", text(&two.root)]);
    let server = || two.bed.serving_process().and_then(rustix::process::Pid::from_raw).expect("it serves");
    rustix::process::kill_process(server(), rustix::process::Signal::KILL).unwrap();
    eventually(|| two.servers() == 0);
    assert!(fs::metadata(two.root.join("x")).is_err() && fs::metadata(two.home.join("x")).is_err());
    // What is left in sight stops nobody, and the next mount begins anew.
    eventually(|| is_taken_away(&two.root) && is_taken_away(&two.home));
    eventually(|| two.mount(Two::both()[1], &two.home).code == Some(0));
    assert_eq!(fs::read_to_string(two.home.join("file")).unwrap(), "durable");
    two.mount_ok(Two::both()[0], &two.root);
    // A lazy unmount, with a file open: the other mount goes on, and so does the file.
    let open = OpenOptions::new().read(true).write(true).open(two.home.join("file")).unwrap();
    shell("umount -l \"$home\"", &[("home", &two.home)]);
    open.write_all_at(b"D", 0).unwrap();
    fs::write(two.root.join("other"), "goes on").unwrap();
    two.mount_ok(Two::both()[1], &two.home);
    assert_eq!(fs::read_to_string(two.home.join("file")).unwrap(), "Durable");
    drop(open);
    let server = server();
    rustix::process::kill_process(server, rustix::process::Signal::TERM).unwrap();
    eventually(|| two.servers() == 0);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(text(&two.root)) && !mounts.contains(text(&two.home)), "{mounts}");
    two.bed.judge(|root| assert_eq!(fs::read_to_string(root.join("@/other")).unwrap(), "goes on"));
}

/// Unmounts what a killed server has left; it is said that nobody could be asked.
fn is_taken_away(at: &Path) -> bool {
    let ran = butterfs(&["umount", text(at)]);
    ran.code == Some(0) || ["nobody could be asked", "is not a mount point"].iter().any(|end| ran.stderr.contains(end))
}

#[test]
fn a_mount_is_made_in_the_namespace_of_whoever_asks() {
    const TEST: &str = "joined_namespace";
    let Some(two) = Two::new(TEST) else { return };
    two.mount_ok(Two::both()[0], &two.root);
    let script = r#"
        # The namespace holds what other tests have mounted.
        awk '/butterfs|btrfs/ { print $5 }' /proc/self/mountinfo | xargs -r -n 1 umount -l
        "$binary" mount -o subvol=@home "$image" "$home"
        echo inside > "$home/file"
        findmnt -n -o FSROOT "$home"
    "#;
    let script_file = two.bed.scratch.join("script");
    fs::write(&script_file, script).unwrap();
    let variables: [(&str, &Path); 4] =
        [("script", &script_file), ("binary", Path::new(BINARY)), ("image", &two.bed.image), ("home", &two.home)];
    let run = |more: &str| {
        let script =
            format!("export binary image home; unshare -m --propagation slave bash -euo pipefail \"$script\"{more}");
        shell(&script, &variables)
    };
    assert_eq!(run("").trim(), "/@home");
    assert!(!two.home.join("file").exists(), "it was mounted there, not here");
    // With a namespace that stays, the process serves on without a mount that we can see.
    fs::write(&script_file, format!("{script}\nsleep 4\n")).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| run(""));
        eventually(|| two.bed.image.exists() && count_mounts_everywhere(&two.home) > 0);
        let ran = butterfs(&["umount", text(&two.root)]);
        assert!(ran.code == Some(0) && ran.stderr.contains("still mounted elsewhere"), "{ran:?}");
        assert_eq!(two.servers(), 1);
    });
    eventually(|| two.servers() == 0);
    two.mount_ok(Two::both()[1], &two.home);
    assert_eq!(fs::read_to_string(two.home.join("file")).unwrap(), "inside\n");
    butterfs_ok(&["umount", text(&two.home)]);
}

/// The number of processes that see a mount there.
fn count_mounts_everywhere(at: &Path) -> usize {
    let mounts = |entry: fs::DirEntry| fs::read_to_string(entry.path().join("mountinfo")).unwrap_or_default();
    let sees = |mounts: &String| mounts.lines().any(|line| line.split(' ').nth(4) == Some(text(at)));
    fs::read_dir("/proc").expect("/proc is there").flatten().map(mounts).filter(sees).count()
}

/// Root of a user namespace gets type fuse, and one superblock as well. Ordinary users have one mount for each
/// filesystem.
#[test]
fn users_join_where_they_may_mount() {
    const TEST: &str = "joined_users";
    if !requirement::programs(TEST, &["fusermount3", "setpriv", "unshare"]) || Bed::for_root(TEST).is_none() {
        return;
    }
    let folder = std::env::temp_dir().join(format!("butterfs-{TEST}-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).unwrap();
    // By another process, so that no other test's child keeps it open for writing.
    shell("cp \"$binary\" \"$folder/\"", &[("binary", Path::new(BINARY)), ("folder", &folder)]);
    let script = r#"
        cd "$folder" && mkdir home && chown nobody home && cd home
        as_user() { setpriv --reuid=nobody --regid=nogroup --clear-groups "$@"; }
        as_user mkdir one two
        as_user ../butterfs mount --create 300M "$folder/home/disk.img" one
        as_user ../butterfs subvolume create one/sub > /dev/null
        ! as_user ../butterfs mount -o subvol=sub disk.img two 2> said; cat said
        ! ../butterfs mount -o subvol=sub disk.img two 2> said; cat said
        as_user ../butterfs umount one
        if as_user unshare -Urm true 2> /dev/null; then
            as_user unshare -Urm bash -euo pipefail -c '
                ../butterfs mount --create 300M own.img one; ../butterfs subvolume create one/sub > /dev/null
                ../butterfs mount -o subvol=sub,ro own.img two
                echo text > one/sub/file; cat two/file; ! touch two/file 2> /dev/null
                grep -c fuse.butterfs /proc/self/mountinfo; grep -o " /sub $PWD/two ro" /proc/self/mountinfo
                ../butterfs umount one; cat two/file; ../butterfs umount two'
        else
            echo skipped
        fi
    "#;
    let output = shell(script, &[("folder", &folder)]);
    let lines: Vec<&str> = output.lines().collect();
    assert!(lines[0].contains("an ordinary user's filesystem has one mount"), "{output}");
    assert!(output.contains("disk.img is in use"), "root cannot join a user's: {output}");
    match lines.last() {
        Some(&"skipped") => requirement::skip(TEST, "user namespaces are not allowed: type fuse is not tried"),
        _ => assert!(output.ends_with(&format!("text\n2\n /sub {}/home/two ro\ntext\n", text(&folder))), "{output}"),
    }
    butterfs_testkit::kernel::check_all(&folder.join("home/own.img"));
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_filesystem_of_the_kernel_s_tools_joins_over_dev_fuse() {
    const TEST: &str = "joined_classic";
    if !requirement::kernel_btrfs(TEST) {
        return;
    }
    let Some(bed) = Bed::for_root(TEST) else { return };
    mkfs_image(&bed.image);
    let second = bed.scratch.folder("second").canonicalize().unwrap();
    for transport in ["transport=classic", "transport=auto"] {
        butterfs_ok(&["mount", "-o", transport, text(&bed.image), text(&bed.at)]);
        butterfs_ok(&["mount", "-o", &format!("{transport},noexec"), text(&bed.image), text(&second)]);
        fs::write(second.join("file"), transport).unwrap();
        assert_eq!(fs::read_to_string(bed.path("file")).unwrap(), transport);
        butterfs_ok(&["umount", text(&bed.at)]);
        butterfs_ok(&["umount", text(&second)]);
        assert_eq!(bed.serving_process(), None);
    }
}

fn mkfs_image(image: &Path) {
    File::create(image).unwrap().set_len(300 << 20).unwrap();
    mkfs(image, &[]);
}

/// Neither a remount nor another mount makes it writable.
#[test]
fn a_rescue_mount_stays_read_only() {
    const TEST: &str = "rescue_joined";
    let Some(two) = Two::new(TEST) else { return };
    let generation = {
        // What is freed would be discarded, and older commits with it.
        two.mount_ok("subvol=@,nodiscard", &two.root);
        fs::write(two.root.join("later"), "later").unwrap();
        butterfs_ok(&["umount", text(&two.root)]);
        let dump = butterfs_ok(&["inspect-internal", "dump-super", text(&two.bed.image)]);
        let line = dump.lines().find(|line| line.starts_with("generation")).expect("it is shown");
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let before = fs::metadata(&two.bed.image).unwrap().modified().unwrap();
    let (ro_only, other_commit) = ("only possible with ro", "is served already and shows an older commit");
    for (options, shown, refusal) in [
        ("ro,rescue=all", "rescue=ignorebadroots:ignoredatacsums:ignoremetacsums:ignoresuperflags", ro_only),
        ("ro,usebackuproot", "rescue=usebackuproot", ro_only),
        (&format!("ro,at={generation}"), &format!("at={generation}"), other_commit),
    ] {
        let ran = two.mount(&format!("subvol=@,{options}"), &two.root);
        assert_eq!(ran.code, Some(0), "{options}: {ran:?}");
        let line = butterfs_ok(&["mount", "--show", text(&two.root)]);
        assert!(line.starts_with("ro,") && line.contains(shown), "{line}");
        let refused = butterfs(&["mount", "-o", "remount,rw", text(&two.bed.image), text(&two.root)]);
        assert!(refused.code == Some(1) && refused.stderr.contains("only possible with ro"), "{refused:?}");
        let refused = two.mount("subvol=@home", &two.home);
        assert!(refused.code == Some(1) && refused.stderr.contains(refusal), "{refused:?}");
        assert_eq!(fs::write(two.root.join("no"), "").unwrap_err().raw_os_error(), Some(libc::EROFS));
        butterfs_ok(&["umount", text(&two.root)]);
    }
    let ran = two.mount(&format!("subvol=@,ro,at={}", generation - 1), &two.root);
    assert!(ran.code == Some(0) && ran.stderr.contains(&format!("generation {} is shown", generation - 1)), "{ran:?}");
    butterfs_ok(&["umount", text(&two.root)]);
    let refused = two.mount("at=5000,ro", &two.root);
    assert!(refused.code == Some(1) && refused.stderr.contains("does not remember this commit"), "{refused:?}");
    let refused = two.mount("usebackuproot", &two.root);
    assert!(refused.code == Some(1) && refused.stderr.contains("only possible with ro"), "{refused:?}");
    assert_eq!(fs::metadata(&two.bed.image).unwrap().modified().unwrap(), before, "nothing was written");
}
