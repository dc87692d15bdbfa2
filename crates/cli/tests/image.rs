//! `butterfs image`, and `mkfs --rootdir` under its names: without root, without FUSE, without a mount.

mod common;

use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use common::{butterfs, butterfs_ok, ran};
use std::path::Path;
use std::process::Command;

fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are text")
}

fn tree(top: &Path) {
    std::fs::create_dir_all(top.join("etc")).unwrap();
    std::fs::create_dir_all(top.join("home/user")).unwrap();
    std::fs::write(top.join("etc/motd"), "hello\n").unwrap();
    std::fs::write(top.join("home/user/text"), "again and again\n".repeat(20_000)).unwrap();
}

#[test]
fn an_image_is_built_and_judged() {
    let scratch = Scratch::new("cli-image");
    let (source, image) = (scratch.folder("source"), scratch.join("disk.img"));
    tree(&source);
    let from = format!("@={}", text(&source));
    let arguments = [
        "image",
        "build",
        text(&image),
        "--from",
        &from,
        "--subvol",
        "default:@",
        "--subvol",
        "ro:@/home",
        "--all-root",
        "--compress",
        "zstd:9",
        "--compress",
        "@/etc=none",
        "--epoch",
        "1700000000",
        "-L",
        "built",
    ];
    let said = butterfs_ok(&arguments);
    assert!(said.contains("Subvolume:  257 @/home"), "{said}");
    butterfs_ok(&["check", text(&image)]);
    let list = butterfs_ok(&["subvolume", "list", "--image", text(&image), "/"]);
    assert_eq!(list.lines().count(), 2, "{list}");
    let bytes = std::fs::read(&image).unwrap();
    butterfs_ok(&[&arguments[..], &["--threads", "5"]].concat());
    assert!(std::fs::read(&image).unwrap() == bytes, "the same input gives the same bytes");
}

#[test]
fn what_makes_no_sense_is_refused_in_a_sentence() {
    let scratch = Scratch::new("cli-image-refused");
    let (source, image) = (scratch.folder("source"), scratch.join("disk.img"));
    tree(&source);
    std::fs::write(scratch.join("garbage"), vec![b'x'; 2000]).unwrap();
    let (from, garbage) = (text(&source), scratch.join("garbage"));
    for (arguments, part) in [
        (&["--from", "/nonexistent"][..], "cannot open /nonexistent"),
        (&["--from", text(&garbage)], "this is no archive of tar"),
        (&["--from", from, "--compress", "zstd:99"], "compression level 99 out of range [1..15]"),
        (&["--from", from, "--size", "1M"], "does not fit"),
        (&["--from", from, "--owner-map", "0:77777:1"], "is in no range of the owner map"),
        (&["--from", from, "--snapshot", "nothing=x"], "/nothing is no folder"),
        (&["--from", from, "--subvol", "default:a", "--subvol", "default:b"], "one default subvolume"),
        (&["--from", from, "-d", "dup"], "data profile DUP"),
    ] {
        let said = butterfs(&[&["image", "build", text(&image)], arguments].concat());
        assert_ne!(said.code, Some(0), "{arguments:?}");
        assert!(said.stderr.contains(part) && said.stderr.starts_with("ERROR: "), "{arguments:?}: {said:?}");
        assert!(!image.exists(), "{arguments:?}");
    }
}

#[test]
fn programs_that_call_mkfs_btrfs_get_what_they_ask_for() {
    let scratch = Scratch::new("cli-image-mkfs");
    let (source, image, program) = (scratch.folder("source"), scratch.join("disk.img"), scratch.join("mkfs.btrfs"));
    tree(&source);
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_butterfs"), &program).unwrap();
    let uuid = "12345678-1234-1234-1234-123456789abc";
    let call = |arguments: &[&str]| {
        let said = ran(Command::new(&program).args(arguments).env("SOURCE_DATE_EPOCH", "1700000000").output().unwrap());
        assert_eq!(said.code, Some(0), "{arguments:?}: {said:?}");
        butterfs_ok(&["check", text(&image)]);
        said.stdout
    };
    // systemd-repart, in an image of its size.
    std::fs::File::create(&image).unwrap().set_len(300 << 20).unwrap();
    assert_eq!(call(&["-q", "-L", "root-x86-64", "-U", uuid, text(&image), "--nodiscard", "-r", text(&source)]), "");
    assert_eq!(std::fs::metadata(&image).unwrap().len(), 300 << 20);
    // nixpkgs and others, into a file that is as large as it must be.
    let said =
        call(&["-f", "--rootdir", text(&source), "--shrink", "--compress", "zstd:5", "-u", "ro:home", text(&image)]);
    assert!(said.contains("Filesystem size:"), "{said}");
    let shrunk = std::fs::metadata(&image).unwrap().len();
    assert!(shrunk < 64 << 20, "{shrunk}");
    // A file that is too small grows.
    std::fs::write(&image, "").unwrap();
    call(&["-q", "--rootdir", text(&source), "--inode-flags", "nodatacow:home", text(&image)]);
    let refused = butterfs(&["mkfs", "--rootdir", text(&source), text(&image)]);
    assert!(refused.stderr.contains("existing filesystem"), "{refused:?}");
}

#[test]
fn a_user_without_any_privilege_builds_the_same_bytes() {
    if !requirement::programs("a_user_without_any_privilege_builds_the_same_bytes", &["setpriv"])
        || !rustix::process::geteuid().is_root()
    {
        return;
    }
    let scratch = Scratch::new("cli-image-user");
    // A folder that every user can reach.
    let open = std::env::temp_dir().join(format!("butterfs-image-user-{}", std::process::id()));
    std::fs::create_dir_all(&open).unwrap();
    let (source, image, program) = (open.join("source"), scratch.join("disk.img"), open.join("butterfs"));
    tree(&source);
    std::fs::copy(env!("CARGO_BIN_EXE_butterfs"), &program).unwrap();
    let build = |out: &Path| {
        ["image", "build", text(out), "--from", text(&source), "--all-root", "--compress", "zstd"].map(str::to_owned)
    };
    let said = ran(Command::new(&program).args(build(&image)).env("SOURCE_DATE_EPOCH", "1700000000").output().unwrap());
    assert_eq!(said.code, Some(0), "{said:?}");
    let out = open.join("out");
    std::fs::create_dir(&out).unwrap();
    std::os::unix::fs::chown(&out, Some(65534), Some(65534)).unwrap();
    let said = ran(Command::new("setpriv")
        .args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "--bounding-set=-all",
            "--inh-caps=-all",
            "--no-new-privs",
        ])
        .arg(&program)
        .args(build(&out.join("disk.img")))
        .envs([("SOURCE_DATE_EPOCH", "1700000000"), ("TZ", "Asia/Kathmandu"), ("LC_ALL", "C")])
        .output()
        .unwrap());
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(std::fs::read(out.join("disk.img")).unwrap() == std::fs::read(&image).unwrap());
    std::fs::remove_dir_all(open).unwrap();
}

/// Runs the command with something on its standard input.
fn fed(arguments: &[&str], input: &[u8]) -> common::Ran {
    use std::io::Write;
    let mut command = Command::new(env!("CARGO_BIN_EXE_butterfs"));
    let piped = std::process::Stdio::piped;
    let mut child = command.args(arguments).stdin(piped()).stdout(piped()).stderr(piped()).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        // A command that fails need not read all.
        scope.spawn(move || drop(pipe.write_all(input)));
        ran(child.wait_with_output().unwrap())
    })
}

#[test]
fn verbs_work_on_an_image_that_nobody_has_mounted() {
    let scratch = Scratch::new("cli-image-verbs");
    let (source, image) = (scratch.folder("source"), scratch.join("disk.img"));
    tree(&source);
    std::os::unix::fs::symlink("etc/motd", source.join("link")).unwrap();
    let img = text(&image);
    butterfs_ok(&["image", "build", img, "--from", text(&source), "--free", "64M", "--all-root", "-q"]);
    assert_eq!(butterfs_ok(&["image", "ls", img]), "etc\nhome\nlink\n");
    assert_eq!(butterfs_ok(&["image", "cat", img, "/link"]), "hello\n");
    let before = butterfs_ok(&["image", "verify", img]);
    // One bad line, and nothing has happened.
    let said = fed(&["image", "run", img], b"mkdir /new\nrm /etc/motd\nrm /nothing\n");
    assert!(said.code == Some(1) && said.stderr.contains("line 3"), "{said:?}");
    assert_eq!(butterfs_ok(&["image", "verify", img]), before);
    let script = b"# comment\nmkdir -p '/new dir/x' -m 700\nln -s ../etc \"/new dir/link\"\nln etc/motd second\n\
        chown 5:6 second\nchmod 4711 second\nsetfattr -n user.x -v 'a b' second\nmv link moved\nrm -r home\n";
    let said = fed(&["image", "run", img], script);
    assert_eq!(said.code, Some(0), "{said:?}");
    let listed = butterfs_ok(&["image", "verify", "--list", img]);
    for part in
        ["/new dir/x dir mode=0700", "/new dir/link link", "/etc/motd same as /second", "/moved link", "user.x=612062"]
    {
        assert!(listed.contains(part), "{part}: {listed}");
    }
    assert!(listed.contains("/second file mode=4711 uid=5 gid=6") && !listed.contains("/home"), "{listed}");
    butterfs_ok(&["image", "cp-in", "--all-root", img, text(&source.join("home")), "/home"]);
    butterfs_ok(&["image", "cp-out", img, "/home/user", text(&scratch.join("out"))]);
    let copied = std::fs::read(scratch.join("out/text")).unwrap();
    assert!(copied == std::fs::read(source.join("home/user/text")).unwrap());
    // Out of one folder and into another: the same archive comes out again.
    let first =
        Command::new(env!("CARGO_BIN_EXE_butterfs")).args(["image", "tar-out", img, "/"]).output().unwrap().stdout;
    let said = fed(&["image", "tar-in", img, "/again"], &first);
    assert_eq!(said.code, Some(0), "{said:?}");
    let second =
        Command::new(env!("CARGO_BIN_EXE_butterfs")).args(["image", "tar-out", img, "/again"]).output().unwrap().stdout;
    assert!(first.len() > 300_000 && first == second);
    butterfs_ok(&["check", img]);
    let usage = butterfs_ok(&["image", "df", img]);
    assert!(usage.starts_with("Total:"), "{usage}");
}

#[test]
fn images_are_compared_by_what_they_show() {
    let scratch = Scratch::new("cli-image-diff");
    let (source, one, other) = (scratch.folder("source"), scratch.join("one.img"), scratch.join("other.img"));
    tree(&source);
    let from = text(&source);
    butterfs_ok(&["image", "build", text(&one), "--from", from, "-q"]);
    butterfs_ok(&[
        "image",
        "build",
        text(&other),
        "--from",
        from,
        "-q",
        "--compress",
        "zlib",
        "-n",
        "4096",
        "--csum",
        "sha256",
    ]);
    assert_eq!(butterfs_ok(&["image", "diff", text(&one), text(&other)]), "");
    let digest = butterfs_ok(&["image", "verify", text(&one)]);
    butterfs_ok(&["image", "verify", text(&other), digest.trim()]);
    // Another image as a source.
    let third = scratch.join("third.img");
    butterfs_ok(&["image", "build", text(&third), "--from", &format!("btrfs:{}", text(&one)), "-q"]);
    butterfs_ok(&["image", "verify", text(&third), digest.trim()]);
    butterfs_ok(&["image", "chmod", text(&other), "600", "/etc/motd"]);
    let said = butterfs(&["image", "diff", text(&one), text(&other)]);
    assert_eq!((said.code, said.stdout.lines().count()), (Some(1), 2), "{said:?}");
    assert_eq!(butterfs(&["image", "verify", text(&other), digest.trim()]).code, Some(1));
}

#[test]
fn a_partition_of_a_disk_image_is_named_by_its_number() {
    let scratch = Scratch::new("cli-image-partition");
    let (source, disk) = (scratch.folder("source"), scratch.join("disk.img"));
    tree(&source);
    // An MBR with a second partition of 200 MiB at 1 MiB.
    let mut first = vec![0u8; 512];
    first[446 + 16 + 4] = 0x83;
    first[446 + 16 + 8..][..4].copy_from_slice(&2048u32.to_le_bytes());
    first[446 + 16 + 12..][..4].copy_from_slice(&(400u32 << 10).to_le_bytes());
    first[510..].copy_from_slice(&[0x55, 0xaa]);
    std::fs::write(&disk, &first).unwrap();
    std::fs::File::options().write(true).open(&disk).unwrap().set_len(201 << 20).unwrap();
    butterfs_ok(&["mkfs", "-q", "--offset", "1M", "-b", "200M", "--rootdir", text(&source), text(&disk)]);
    assert_eq!(std::fs::metadata(&disk).unwrap().len(), 201 << 20);
    let place = format!("{}@2", text(&disk));
    assert_eq!(butterfs_ok(&["image", "cat", &place, "/etc/motd"]), "hello\n");
    butterfs_ok(&["image", "mkdir", &place, "/new"]);
    let missing = butterfs(&["image", "ls", &format!("{}@3", text(&disk))]);
    assert!(missing.stderr.contains("has no partition 3"), "{missing:?}");
    assert_eq!(std::fs::read(&disk).unwrap()[..512], first);
}

#[test]
fn systemd_repart_formats_with_our_mkfs() {
    let test = "systemd_repart_formats_with_our_mkfs";
    if !requirement::kernel_btrfs(test) || !requirement::programs(test, &["systemd-repart"]) {
        return;
    }
    let scratch = Scratch::new("cli-image-repart");
    let (source, definitions, programs) = (scratch.folder("source"), scratch.folder("defs"), scratch.folder("bin"));
    tree(&source);
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_butterfs"), programs.join("mkfs.btrfs")).unwrap();
    let definition =
        format!("[Partition]\nType=root\nFormat=btrfs\nCopyFiles={}:/\nSizeMinBytes=200M\n", text(&source));
    std::fs::write(definitions.join("root.conf"), definition).unwrap();
    let disk = scratch.join("disk.img");
    // It holds the lock of the device while it calls mkfs.btrfs.
    let said = ran(Command::new("systemd-repart")
        .args(["--empty=create", "--size=400M", "--dry-run=no"])
        .arg(format!("--definitions={}", definitions.display()))
        .arg(&disk)
        .env("PATH", format!("{}:{}", programs.display(), std::env::var("PATH").unwrap()))
        .output()
        .unwrap());
    assert_eq!(said.code, Some(0), "{said:?}");
    let place = format!("{}@1", text(&disk));
    assert_eq!(butterfs_ok(&["image", "cat", &place, "/etc/motd"]), "hello\n");
}
