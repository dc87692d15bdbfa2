//! `butterfs image`, and `mkfs --rootdir` under its names: without root, without FUSE, without a mount.

mod common;

use butterfs_testkit::kernel::run_ok;
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use common::{butterfs, butterfs_ok, ran};
use std::os::unix::fs::{FileExt, PermissionsExt};
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
    for part in [
        "/new\\x20dir/x dir mode=0700",
        "/new\\x20dir/link link",
        "/second same as /etc/motd",
        "/moved link",
        "user.x=612062",
    ] {
        assert!(listed.contains(part), "{part}: {listed}");
    }
    assert!(listed.contains("/etc/motd file mode=4711 uid=5 gid=6") && !listed.contains("/home"), "{listed}");
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

/// Runs the command with an editor.
fn edited(editor: &str, arguments: &[&str]) -> common::Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_butterfs"));
    ran(command.args(arguments).env_remove("VISUAL").env("EDITOR", editor).output().unwrap())
}

#[test]
fn a_file_is_edited_in_one_transaction() {
    let scratch = Scratch::new("cli-image-edit");
    let (source, image) = (scratch.folder("source"), scratch.join("disk.img"));
    tree(&source);
    std::os::unix::fs::symlink("etc/motd", source.join("link")).unwrap();
    // Only root sets capabilities.
    let mut capability = [0; 20];
    capability[..6].copy_from_slice(&[0, 0, 0, 2, 0, 0x20]);
    let flags = rustix::fs::XattrFlags::empty();
    let has_capability =
        rustix::fs::lsetxattr(source.join("etc/motd"), "security.capability", &capability, flags).is_ok();
    let img = text(&image);
    butterfs_ok(&["image", "build", img, "--from", text(&source), "--free", "16M", "--owner", "7:8", "-q"]);
    let script = b"chmod 6751 /etc/motd\nsetfattr -n user.x -v y /etc/motd\n";
    let said = fed(&["image", "run", img], script);
    assert_eq!(said.code, Some(0), "{said:?}");
    let before = std::fs::read(&image).unwrap();
    // Nothing is written without a change, or after an editor that fails.
    for (editor, code) in [
        ("true", Some(0)),
        ("sed -i s/hello/hello/", Some(0)),
        ("false", Some(1)),
        ("sed -i s/hello/x/ \"$1\"; false", Some(1)),
    ] {
        let said = edited(editor, &["image", "edit", img, "/etc/motd"]);
        assert_eq!(said.code, code, "{editor}: {said:?}");
        assert!(std::fs::read(&image).unwrap() == before, "{editor}");
    }
    let said = edited("sed -i -e s/hello/changed/ -e '$a more'", &["image", "edit", img, "/link"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(butterfs_ok(&["image", "cat", img, "/etc/motd"]), "changed\nmore\n");
    let listed = butterfs_ok(&["image", "verify", "--list", img]);
    let line = listed.lines().find(|line| line.starts_with("/etc/motd ")).unwrap();
    assert!(line.contains("mode=6751 uid=7 gid=8") && line.contains("user.x=79"), "{line}");
    assert_eq!(line.contains("security.capability=000000020020"), has_capability, "{line}");
    // A file that becomes shorter, and one that becomes empty.
    for (editor, content) in [("sed -i 1q", "changed\n"), ("truncate -s 0", "")] {
        assert_eq!(edited(editor, &["image", "edit", img, "/etc/motd"]).code, Some(0));
        assert_eq!(butterfs_ok(&["image", "cat", img, "/etc/motd"]), content);
    }
    // Somebody else is faster: the text is kept.
    let other = format!(
        "{} image chmod {img} 600 /etc/motd; {0} image cp-in {img} {1} /etc/motd; sed -i '$a x'",
        env!("CARGO_BIN_EXE_butterfs"),
        text(&source.join("etc/motd"))
    );
    std::fs::write(scratch.join("editor"), format!("#!/bin/sh\n{other} \"$1\"; echo mine > \"$1\"\n")).unwrap();
    let said = edited(&format!("sh {}", text(&scratch.join("editor"))), &["image", "edit", img, "/etc/motd"]);
    assert!(said.code == Some(1) && said.stderr.contains("changed by somebody else"), "{said:?}");
    let kept = said.stderr.split("the edited text is in ").nth(1).expect("a hint says where").trim();
    assert_eq!(std::fs::read_to_string(kept).unwrap(), "mine\n");
    std::fs::remove_dir_all(Path::new(kept).parent().unwrap()).unwrap();
    for (path, part) in [("/etc", "no regular file"), ("/none", "no such file")] {
        let said = edited("true", &["image", "edit", img, path]);
        assert!(said.code == Some(1) && said.stderr.to_lowercase().contains(part), "{said:?}");
    }
    butterfs_ok(&["check", img]);
}

#[test]
fn verbs_read_images_in_containers() {
    let test = "verbs_read_images_in_containers";
    if !requirement::programs(test, &["qemu-img", "img2simg"]) {
        return;
    }
    let scratch = Scratch::new("cli-image-containers");
    let (source, image) = (scratch.folder("source"), scratch.join("disk.img"));
    tree(&source);
    butterfs_ok(&["image", "build", text(&image), "--from", text(&source), "-q"]);
    let digest = butterfs_ok(&["image", "verify", text(&image)]);
    let mut containers = Vec::new();
    for form in ["qcow2", "vmdk", "vpc", "vhdx"] {
        let out = scratch.join(&format!("disk.{form}"));
        let converted = Command::new("qemu-img").args(["convert", "-O", form]).args([&image, &out]).status().unwrap();
        assert!(converted.success());
        containers.push(out);
    }
    containers.push(scratch.join("disk.simg"));
    assert!(Command::new("img2simg").args([&image, &scratch.join("disk.simg")]).status().unwrap().success());
    containers.push(scratch.join("disk.raw.zst"));
    butterfs_ok(&["image", "build", text(&scratch.join("disk.raw.zst")), "--from", text(&image), "-q"]);
    for container in &containers {
        let container = text(container);
        assert_eq!(butterfs_ok(&["image", "verify", container]), digest, "{container}");
        assert_eq!(butterfs_ok(&["image", "ls", container, "/etc"]), "motd\n");
        assert_eq!(butterfs_ok(&["image", "cat", container, "/etc/motd"]), "hello\n");
        butterfs_ok(&["image", "diff", container, text(&image)]);
        butterfs_ok(&["image", "df", container]);
        for arguments in [&["image", "mkdir", container, "/new"][..], &["image", "edit", container, "/etc/motd"]] {
            let said = edited("false", arguments);
            assert!(said.code == Some(1) && said.stderr.contains("containers are only read"), "{said:?}");
            assert!(said.stderr.contains("hint: 'qemu-img convert"), "{said:?}");
        }
        let again = scratch.join("again.img");
        butterfs_ok(&["image", "build", text(&again), "--from", container, "-q"]);
        assert_eq!(butterfs_ok(&["image", "verify", text(&again)]), digest, "{container}");
    }
    // A fixed VHD is an image with something behind it, which stays.
    let fixed = scratch.join("fixed.vhd");
    let arguments = ["convert", "-O", "vpc", "-o", "subformat=fixed,force_size=on"];
    assert!(Command::new("qemu-img").args(arguments).args([&image, &fixed]).status().unwrap().success());
    butterfs_ok(&["image", "mkdir", text(&fixed), "/new"]);
    let bytes = std::fs::read(&fixed).unwrap();
    assert!(bytes[bytes.len() - 512..].starts_with(b"conectix"));
    // A partition in a container.
    let mut disk = vec![0u8; 1 << 20];
    disk[446 + 4] = 0x83;
    disk[446 + 8..][..4].copy_from_slice(&2048u32.to_le_bytes());
    let raw = std::fs::read(&image).unwrap();
    disk[446 + 12..][..4].copy_from_slice(&((raw.len() / 512) as u32).to_le_bytes());
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk.extend(raw);
    std::fs::write(scratch.join("parts.raw"), disk).unwrap();
    let (raw, packed) = (scratch.join("parts.raw"), scratch.join("parts.qcow2"));
    assert!(
        Command::new("qemu-img")
            .args(["convert", "-c", "-O", "qcow2"])
            .args([&raw, &packed])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(butterfs_ok(&["image", "verify", &format!("{}@1", text(&packed))]), digest);
    let said = butterfs(&["image", "ls", &format!("{}@2", text(&packed))]);
    assert!(said.stderr.contains("has no partition 2"), "{said:?}");
}

#[test]
fn streams_and_dumps_are_recognised() {
    let scratch = Scratch::new("cli-image-streams");
    let (source, first, image) = (scratch.folder("source"), scratch.join("first.img"), scratch.join("disk.img"));
    tree(&source);
    let from = format!("@={}", text(&source));
    butterfs_ok(&["image", "build", text(&first), "--from", &from, "--subvol", "@", "--free", "16M", "-q"]);
    let snapshot = |name: &str| {
        butterfs_ok(&["subvolume", "snapshot", "-r", "--image", text(&first), "/@", name]);
    };
    snapshot("/one");
    butterfs_ok(&["image", "mkdir", text(&first), "/@/new"]);
    snapshot("/two");
    let (one, two) = (scratch.join("one.send"), scratch.join("two.send"));
    butterfs_ok(&["send", "-q", "--image", text(&first), "-f", text(&one), "/one"]);
    butterfs_ok(&["send", "-q", "--image", text(&first), "-f", text(&two), "-p", "/one", "/two"]);
    let said = butterfs_ok(&["image", "build", text(&image), "--from", text(&one), "--from", text(&two)]);
    assert!(said.contains("Subvolume:  256 one") && said.contains("Subvolume:  257 two"), "{said}");
    assert_eq!(butterfs_ok(&["image", "ls", text(&image), "/two"]), "etc\nhome\nnew\n");
    butterfs_ok(&["check", text(&image)]);
    // The other way round, the first one has nothing to go on from.
    let said = butterfs(&["image", "build", text(&image), "--from", text(&two), "-q"]);
    assert!(said.code == Some(1) && said.stderr.contains("two.send"), "{said:?}");
    let dump = scratch.join("dump");
    let digest = "3d248ca542a24fc62d1c43b916eae5016878e2533c88238480b26128a1f1af95";
    let lines = format!(
        "/ 0 40755 1 0 0 0 0.0 - - -\n/f 0 100644 1 0 0 0 0.0 empty - {digest}\n/g 2 100644 1 0 0 0 0.0 - hi -\n"
    );
    std::fs::write(&dump, lines).unwrap();
    let said = butterfs(&["image", "build", text(&image), "--from", text(&dump), "-q"]);
    assert!(said.stderr.contains("no folder of objects is given"), "{said:?}");
    std::fs::write(scratch.folder("objects").join("empty"), "").unwrap();
    let objects = scratch.join("objects");
    butterfs_ok(&["image", "build", text(&image), "--from", text(&dump), "--objects", text(&objects), "-q"]);
    assert_eq!(butterfs_ok(&["image", "cat", text(&image), "/g"]), "hi");
}

#[test]
fn listings_of_images_are_json() {
    let scratch = Scratch::new("cli-image-json");
    let (source, image) = (scratch.folder("source"), scratch.join("disk.img"));
    tree(&source);
    std::os::unix::fs::symlink("etc/motd", source.join("link")).unwrap();
    let img = text(&image);
    butterfs_ok(&["image", "build", img, "--from", text(&source), "--free", "16M", "-q", "--all-root", "--epoch", "5"]);
    butterfs_ok(&["image", "setfattr", "-n", "user.x", "-v", "y", img, "/etc/motd"]);
    let json = |arguments: &[&str]| -> serde_json::Value {
        let said = butterfs(&[&["--format", "json", "image"], arguments].concat());
        serde_json::from_str(&said.stdout).unwrap_or_else(|error| panic!("{error}: {said:?}"))
    };
    let listed = &json(&["ls", img, "/"])["image-ls"];
    let paths: Vec<&str> = listed.as_array().unwrap().iter().map(|entry| entry["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/etc", "/home", "/link"]);
    assert_eq!((&listed[0]["type"], &listed[2]["target"]), (&"folder".into(), &"etc/motd".into()));
    let stat = &json(&["stat", img, "/etc/motd"])["image-stat"];
    assert_eq!((&stat["size"], &stat["mode"], &stat["links"]), (&6.into(), &"0644".into(), &1.into()));
    assert_eq!((&stat["attributes"][0]["name"], &stat["attributes"][0]["value"]), (&"user.x".into(), &"79".into()));
    assert_eq!((&stat["modified"]["seconds"], &stat["device"]), (&5.into(), &serde_json::Value::Null));
    assert_eq!(json(&["tree", img, "/"])["image-tree"].as_array().unwrap().len(), 7);
    let digest = json(&["verify", img])["image-verify"]["digest"].as_str().unwrap().to_owned();
    assert_eq!(json(&["verify", img, &digest])["image-verify"]["matches"], true);
    assert_eq!(json(&["verify", "-l", img, "sha256:0"])["image-verify"]["matches"], false);
    assert!(json(&["df", img])["image-df"]["data_total"].as_u64().unwrap() > 0);
    let other = scratch.join("other.img");
    std::fs::copy(&image, &other).unwrap();
    butterfs_ok(&["image", "rm", text(&other), "/link"]);
    let found = &json(&["diff", img, text(&other)])["image-diff"];
    let gone: Vec<_> = found.as_array().unwrap().iter().filter(|it| it["other"].is_null()).collect();
    assert!(gone.len() == 1 && gone[0]["path"] == "/link", "{found}");
    let refused = butterfs(&["--format", "json", "image", "mkdir", img, "/no"]);
    assert!(refused.code == Some(1) && !butterfs_ok(&["image", "ls", img]).contains("no\n"), "{refused:?}");
}

#[test]
fn mkfs_shares_content_with_its_folder() {
    let test = "mkfs_shares_content_with_its_folder";
    if !requirement::kernel_btrfs(test) || !requirement::programs(test, &["filefrag"]) {
        return;
    }
    let scratch = Scratch::new("cli-image-reflink");
    let host = scratch.sparse_file("host.img", 400 << 20);
    butterfs_testkit::kernel::mkfs(&host, &[]);
    let mount = butterfs_testkit::kernel::KernelMount::new(&host, "rw");
    let (source, image) = (mount.path().join("source"), mount.path().join("disk.img"));
    std::fs::create_dir(&source).unwrap();
    tree(&source);
    let noise: Vec<u8> = (0..30_000_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    std::fs::write(source.join("large"), &noise).unwrap();
    std::fs::File::open(&source).unwrap().sync_all().unwrap();
    assert!(Command::new("sync").arg("-f").arg(&source).status().unwrap().success());
    let arguments = ["mkfs", "-q", "-b", "200M", "--reflink", "--rootdir", text(&source)];
    butterfs_ok(&[&arguments[..], &[text(&image)]].concat());
    butterfs_ok(&["check", text(&image)]);
    let extents = Command::new("filefrag").arg("-v").arg(&image).output().unwrap().stdout;
    assert!(String::from_utf8(extents).unwrap().contains("shared"));
    // Written again over the old image, and into the image beside it.
    butterfs_ok(&[&arguments[..], &["-f", text(&image)]].concat());
    let other = mount.path().join("other.img");
    butterfs_ok(&["image", "build", text(&other), "--from", text(&source), "--reflink", "-q"]);
    let digest = butterfs_ok(&["image", "verify", text(&other)]);
    butterfs_ok(&["image", "verify", text(&image), digest.trim()]);
    assert_eq!(butterfs_ok(&["image", "cat", text(&image), "/etc/motd"]), "hello\n");
    for (arguments, part) in [
        (&["mkfs", "--reflink", text(&image)][..], "--rootdir"),
        (&["mkfs", "--reflink", "--compress", "zstd", "--rootdir", text(&source), text(&image)], "cannot be used with"),
        (
            &["mkfs", "-f", "--reflink", "--offset", "1M", "--rootdir", text(&source), text(&image)],
            "only be shared with a file that is the image as a whole",
        ),
        (&["image", "build", "x.zst", "--reflink", "--from", text(&source)], "cannot share content"),
        (
            &["mkfs", "-b", "200M", "--reflink", "--rootdir", text(&source), text(&scratch.join("elsewhere"))],
            "one filesystem that shares blocks",
        ),
    ] {
        let said = butterfs(arguments);
        assert!(said.code != Some(0) && said.stderr.contains(part), "{arguments:?}: {said:?}");
    }
    assert!(!scratch.join("elsewhere").exists());
    assert!(mount.finish().is_empty());
}

/// A server that exports a disk, ended when it is dropped.
struct Server(std::process::Child);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn all_verbs_work_on_what_qemu_exports() {
    let test = "all_verbs_work_on_what_qemu_exports";
    if !requirement::programs(test, &["qemu-nbd", "qemu-img"]) {
        return;
    }
    let scratch = Scratch::new("cli-image-nbd");
    let (source, image) = (scratch.folder("source"), scratch.join("disk.img"));
    tree(&source);
    butterfs_ok(&["image", "build", text(&image), "--from", text(&source), "--free", "16M", "-q"]);
    let digest = butterfs_ok(&["image", "verify", text(&image)]);
    // With a backing file, which is read because the user starts the server.
    let overlay = scratch.join("overlay.qcow2");
    let arguments = ["create", "-q", "-f", "qcow2", "-F", "raw", "-b", text(&image), text(&overlay)];
    assert!(Command::new("qemu-img").args(arguments).status().unwrap().success());
    let refused = butterfs(&["image", "ls", text(&overlay)]);
    assert!(refused.stderr.contains("needs the backing file"), "{refused:?}");
    let socket = std::env::temp_dir().join(format!("butterfs-nbd-cli-{}", std::process::id()));
    let start = |options: &[&str]| {
        let server = Server(
            Command::new("qemu-nbd")
                .args(["-t", "-f", "qcow2", "-k"])
                .arg(&socket)
                .args(options)
                .arg(&overlay)
                .spawn()
                .unwrap(),
        );
        for _ in 0..500 {
            if socket.exists() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        server
    };
    let place = format!("nbd:unix:{}", text(&socket));
    let server = start(&[]);
    assert_eq!(butterfs_ok(&["image", "verify", &place]), digest);
    butterfs_ok(&["image", "mkdir", &place, "/new"]);
    assert_eq!(fed(&["image", "run", &place], b"rm /etc/motd\nln -s x /y\n").code, Some(0));
    butterfs_ok(&["image", "cp-in", &place, text(&source.join("home")), "/again"]);
    assert_eq!(butterfs_ok(&["image", "ls", &place]), "again\netc\nhome\nnew\ny\n");
    let copy = scratch.join("copy.img");
    butterfs_ok(&["image", "build", text(&copy), "--from", &place, "-q"]);
    butterfs_ok(&["image", "diff", text(&copy), &place]);
    drop(server);
    let _ = std::fs::remove_file(&socket);
    assert_eq!(butterfs_ok(&["image", "verify", text(&image)]), digest, "the backing file is as it was");
    let flat = scratch.join("flat.img");
    let arguments = ["convert", "-O", "raw", text(&overlay), text(&flat)];
    assert!(Command::new("qemu-img").args(arguments).status().unwrap().success());
    butterfs_ok(&["check", text(&flat)]);
    butterfs_ok(&["image", "diff", text(&copy), text(&flat)]);
    let server = start(&["-r"]);
    let said = butterfs(&["image", "mkdir", &place, "/no"]);
    assert!(said.code == Some(1) && said.stderr.contains("read-only"), "{said:?}");
    drop(server);
    let _ = std::fs::remove_file(&socket);
    let said = butterfs(&["image", "ls", &place]);
    assert!(said.code == Some(1) && said.stderr.contains("cannot use nbd:unix:"), "{said:?}");
}

#[test]
fn a_verb_that_fails_has_done_nothing() {
    let scratch = Scratch::new("cli-image-one-commit");
    let (source, image) = (scratch.folder("source"), scratch.join("disk.img"));
    tree(&source);
    std::fs::create_dir_all(source.join("full/2/sub")).unwrap();
    let img = text(&image);
    butterfs_ok(&["image", "build", img, "--from", text(&source), "--free", "32M", "-q"]);
    let before = butterfs_ok(&["image", "verify", img]);
    let (archive, new) = (scratch.join("archive"), scratch.folder("new"));
    for number in 1..4 {
        std::fs::write(new.join(number.to_string()), vec![number; 200_000]).unwrap();
    }
    butterfs_testkit::kernel::run_ok(20, "tar", &["-C", text(&new), "-cf", text(&archive), "1", "2", "3"]);
    let whole = std::fs::read(&archive).unwrap();
    std::fs::write(&archive, &whole[..450_000]).unwrap();
    for (arguments, part) in [
        (&["tar-in", img, "/etc", text(&archive)][..], "/3: cannot read the content"),
        (&["cp-in", img, text(&new), "/full"], "the directory is not empty"),
        (&["rm", img, "/etc/motd", "/missing"], "/missing"),
        (&["rm", "-r", img, "/etc", "/missing"], "/missing"),
    ] {
        let said = butterfs(&[&["image"], arguments].concat());
        assert!(said.code == Some(1) && said.stderr.contains(part), "{arguments:?}: {said:?}");
        assert_eq!(butterfs_ok(&["image", "verify", img]), before, "{arguments:?}");
    }
    butterfs_ok(&["check", img]);
}

#[test]
fn a_full_image_can_be_emptied() {
    let scratch = Scratch::new("cli-image-full");
    let (source, image) = (scratch.folder("source"), scratch.join("disk.img"));
    for number in 0..6000 {
        let folder = source.join(format!("all/{}", number / 500));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(number.to_string()), vec![b'x'; 1500]).unwrap();
    }
    std::fs::write(source.join("kept"), "").unwrap();
    let img = text(&image);
    butterfs_ok(&["image", "build", img, "--from", text(&source), "-q"]);
    butterfs_ok(&["image", "rm", "-r", img, "/all"]);
    assert_eq!(butterfs_ok(&["image", "ls", img]), "kept\n");
    butterfs_ok(&["check", img]);
}

#[test]
fn a_default_subvolume_hides_nothing_from_a_comparison() {
    let scratch = Scratch::new("cli-image-default");
    let source = scratch.folder("source");
    std::fs::create_dir_all(source.join("@home")).unwrap();
    std::fs::create_dir_all(source.join("@")).unwrap();
    let build = |name: &str, content: &str| {
        std::fs::write(source.join("@home/file"), content).unwrap();
        let image = scratch.join(name);
        let subvolumes = ["--subvol", "default:@", "--subvol", "@home", "-q"];
        butterfs_ok(&[&["image", "build", text(&image), "--from", text(&source)], &subvolumes[..]].concat());
        image
    };
    let (one, other) = (build("one", "1"), build("other", "2"));
    let said = butterfs(&["image", "diff", text(&one), text(&other)]);
    assert!(said.code == Some(1) && said.stdout.contains("/@home/file"), "{said:?}");
    // A copy has everything, and paths of verbs begin where a mount does, unless they are to begin above.
    let copy = scratch.join("copy");
    butterfs_ok(&["image", "build", text(&copy), "--from", &format!("btrfs:{}", text(&one)), "-q"]);
    assert_eq!(butterfs_ok(&["image", "cat", text(&copy), "/@home/file"]), "1");
    assert_eq!(butterfs_ok(&["image", "ls", text(&one)]), "");
    assert_eq!(butterfs_ok(&["image", "cat", "--top", text(&one), "/@home/file"]), "1");
    let said = fed(&["image", "run", "--top", text(&one)], b"rm @home/file\n");
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(butterfs_ok(&["image", "ls", "--top", text(&one), "@home"]), "");
}

#[test]
fn mkfs_in_a_partition_leaves_the_others_alone() {
    let scratch = Scratch::new("cli-image-neighbours");
    let (source, disk) = (scratch.folder("source"), scratch.join("disk.img"));
    tree(&source);
    // An MBR with partitions of 128 MiB at 1 MiB and of 16 MiB behind it, which is full of something.
    let mut first = vec![0u8; 512];
    for (number, start, count) in [(0, 2048u32, 256u32 << 10), (1, 2048 + (256 << 10), 32 << 10)] {
        let entry = &mut first[446 + 16 * number..][..16];
        entry[4] = 0x83;
        entry[8..12].copy_from_slice(&start.to_le_bytes());
        entry[12..].copy_from_slice(&count.to_le_bytes());
    }
    first[510..].copy_from_slice(&[0x55, 0xaa]);
    let neighbour = vec![b'n'; 16 << 20];
    let make = || {
        std::fs::write(&disk, &first).unwrap();
        let file = std::fs::File::options().write(true).open(&disk).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &neighbour, 129 << 20).unwrap();
    };
    let from = text(&source);
    for (options, is_good) in [
        (&[][..], true),
        (&["--rootdir", from], true),
        (&["--rootdir", from, "--shrink"], true),
        (&["--rootdir", from, "-b", "100M"], true),
        (&["-b", "128M"], true),
        (&["-b", "129M"], false),
        (&["--rootdir", from, "-b", "140M"], false),
    ] {
        make();
        let said = butterfs(&[&["mkfs", "-q", "--offset", "1M"], options, &[text(&disk)]].concat());
        assert_eq!(said.code, Some(if is_good { 0 } else { 1 }), "{options:?}: {said:?}");
        let after = std::fs::read(&disk).unwrap();
        assert!(after[..512] == first && after[129 << 20..] == neighbour, "{options:?}");
        let listed = butterfs(&["image", "ls", &format!("{}@1", text(&disk))]);
        assert_eq!(listed.code == Some(0), is_good, "{options:?}: {listed:?}");
    }
    // An offset at which no partition begins needs a size.
    let said = butterfs(&["mkfs", "-q", "--offset", "2M", text(&disk)]);
    assert!(said.stderr.contains("no partition") && said.stderr.contains("--byte-count"), "{said:?}");
}

/// The file before `mkfs.btrfs` is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Before {
    Missing,
    Empty,
    Mebibytes(u64),
}

/// The calls of image builders, word for word; `DIR`, `IMG` and `UUID` stand for ours. Those of systemd-repart and
/// mkosi were recorded, the others are what their sources say.
const CALLS: &[(&str, Before, &str)] = &[
    ("systemd-repart 252, loop device", Before::Mebibytes(300), "-q -L root -U UUID IMG"),
    (
        "systemd-repart 262 --offline, Minimize=guess, Subvolumes=, Compression=",
        Before::Mebibytes(1024),
        "-L root -U UUID -r DIR --compress zstd:5 --sectorsize=4096 IMG --subvol default:/home --shrink",
    ),
    (
        "systemd-repart 262 --offline",
        Before::Mebibytes(300),
        "-L root -U UUID -r DIR --compress zstd:5 --sectorsize=4096 IMG --subvol /home",
    ),
    ("mkosi 14, loop device", Before::Mebibytes(300), "-L root -d single -m single IMG"),
    ("nixpkgs make-btrfs-fs", Before::Empty, "-L root -U UUID -r DIR --shrink IMG"),
    ("mobile-nixos", Before::Mebibytes(200), "-r DIR -L root -U UUID --shrink IMG"),
    ("kiwi", Before::Mebibytes(300), "-L root -U UUID --byte-count 268435456 IMG"),
    (
        "buildroot",
        Before::Missing,
        "-f -r DIR -L root --byte-count 200m --nodesize 16k --sectorsize 4k --features extref,skinny-metadata IMG",
    ),
    ("yocto", Before::Mebibytes(200), "-r DIR IMG"),
    ("osbuild", Before::Mebibytes(300), "--uuid UUID --label root --metadata dup IMG"),
];

#[test]
fn the_calls_of_image_builders_are_understood() {
    let scratch = Scratch::new("cli-image-calls");
    let (source, image, program) = (scratch.folder("source"), scratch.join("disk.img"), scratch.join("mkfs.btrfs"));
    tree(&source);
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_butterfs"), &program).unwrap();
    let uuid = "12345678-1234-1234-1234-123456789abc";
    for (who, before, call) in CALLS {
        let _ = std::fs::remove_file(&image);
        if *before != Before::Missing {
            let len = if let Before::Mebibytes(count) = before { count << 20 } else { 0 };
            std::fs::File::create(&image).unwrap().set_len(len).unwrap();
        }
        let word = |word: &str| match word {
            "DIR" => text(&source).to_owned(),
            "IMG" => text(&image).to_owned(),
            word => word.replace("UUID", uuid),
        };
        let said = ran(Command::new(&program).args(call.split(' ').map(word)).output().unwrap());
        assert_eq!(said.code, Some(0), "{who}: {said:?}");
        butterfs_ok(&["check", text(&image)]);
        let mut superblock = [0; 4096];
        FileExt::read_exact_at(&std::fs::File::open(&image).unwrap(), &mut superblock, 64 << 10).unwrap();
        if call.contains("UUID") {
            assert_eq!(
                superblock[32..48],
                [0x12, 0x34, 0x56, 0x78, 0x12, 0x34, 0x12, 0x34, 0x12, 0x34, 0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc],
                "{who}"
            );
        }
        if call.contains("root") {
            assert_eq!(&superblock[299..304], b"root\0", "{who}");
        }
        if call.contains("DIR") && !call.contains("default:") {
            assert_eq!(butterfs_ok(&["image", "cat", text(&image), "/etc/motd"]), "hello\n", "{who}");
        }
    }
}

/// The files of the example, which users copy.
fn example(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/image-without-root").join(name)
}

/// The command without what only debuggers need, at `to`.
fn stripped(to: &Path) {
    run_ok(60, "strip", &["-o", text(to), env!("CARGO_BIN_EXE_butterfs")]);
}

fn example_tree(folder: &Path) {
    tree(&folder.join("rootfs"));
    std::fs::create_dir(folder.join("out")).unwrap();
    std::os::unix::fs::chown(folder.join("out"), Some(65534), Some(65534)).unwrap();
}

fn assert_example(folder: &Path, said: &str) {
    let image = folder.join("out/disk.img");
    let digest = std::fs::read_to_string(folder.join("out/disk.img.digest")).unwrap();
    assert!(said.ends_with(&digest), "{said}");
    butterfs_ok(&["image", "verify", text(&image), digest.trim()]);
    assert_eq!(butterfs_ok(&["image", "cat", text(&image), "/etc/motd"]), "hello\n");
}

/// As a user without capabilities, in namespaces in which /dev has next to nothing.
#[test]
fn the_example_needs_no_privilege() {
    const TEST: &str = "the_example_needs_no_privilege";
    if !rustix::process::geteuid().is_root() || !requirement::programs(TEST, &["unshare", "setpriv", "strip"]) {
        return;
    }
    // A folder that every user can reach.
    let open = std::env::temp_dir().join(format!("butterfs-example-{}", std::process::id()));
    example_tree(&open);
    stripped(&open.join("butterfs"));
    std::fs::copy(example("build.sh"), open.join("build.sh")).unwrap();
    let script = "mount --make-rprivate / && mount -t tmpfs tmpfs /dev && touch /dev/null && chmod 666 /dev/null && \
        cd \"$1\" && exec setpriv --reuid=65534 --regid=65534 --clear-groups --bounding-set=-all --inh-caps=-all \
        --no-new-privs env PATH=\"$1:/usr/bin:/bin\" SOURCE_DATE_EPOCH=1700000000 sh build.sh rootfs out/disk.img";
    let said = run_ok(120, "unshare", &["--mount", "--net", "--ipc", "sh", "-c", script, "sh", text(&open)]);
    assert_example(&open, &said);
    std::fs::remove_dir_all(open).unwrap();
}

/// The container file, built and run by podman on a base of a few packages of Debian.
#[test]
#[ignore = "long: cargo xtask soak images"]
fn the_example_runs_in_a_container() {
    const TEST: &str = "the_example_runs_in_a_container";
    if !rustix::process::geteuid().is_root() || !requirement::programs(TEST, &["unshare", "podman", "strip"]) {
        return;
    }
    let scratch = Scratch::new("cli-image-container");
    let (base, build, work) = (scratch.folder("base"), scratch.folder("build"), scratch.folder("work"));
    let packages = butterfs_testkit::scratch::tools().join("debian-packages");
    let Ok(packages) = std::fs::read_dir(packages) else {
        return requirement::skip(TEST, "needs some packages of Debian (cargo xtask test fetches them)");
    };
    for package in
        packages.map(|entry| entry.unwrap().path()).filter(|path| path.extension().is_some_and(|it| it == "deb"))
    {
        run_ok(60, "dpkg-deb", &["-x", text(&package), text(&base)]);
    }
    stripped(&build.join("butterfs"));
    for name in ["Containerfile", "build.sh"] {
        std::fs::copy(example(name), build.join(name)).unwrap();
    }
    example_tree(&work);
    let archive = scratch.join("base.tar");
    run_ok(60, "tar", &["-C", text(&base), "-cf", text(&archive), "."]);
    // crun cannot work where version 2 of cgroups is mounted beside version 1.
    let script = "mount --make-rprivate /; umount /sys/fs/cgroup/unified 2> /dev/null
        cd \"$1\"; run=/tmp/example-$$
        pod() {
            podman --root \"$PWD/store\" --runroot \"$run\" --storage-driver vfs --events-backend=none \
                --cgroup-manager=cgroupfs \"$@\"
        }
        pod import -q base.tar base:1 > /dev/null &&
            pod build -q --isolation=chroot --build-arg BASE=localhost/base:1 -t butterfs build > /dev/null &&
            pod run --rm --cgroups=disabled --ulimit nofile=1024:1024 --ulimit nproc=1000:1000 --user 65534 \
                --cap-drop all --security-opt no-new-privileges --network none --read-only \
                --env SOURCE_DATE_EPOCH=1700000000 \
                --volume \"$PWD/work:/work\" butterfs rootfs out/disk.img
        code=$?; pod rmi -a -f > /dev/null 2>&1; rm -rf \"$run\"; exit $code";
    let said = run_ok(300, "unshare", &["--mount", "sh", "-c", script, "sh", text(scratch.path())]);
    assert_example(&work, &said);
}

/// mkosi of the distribution with our `mkfs.btrfs` before theirs: a Debian from its mirror in a partition.
#[test]
#[ignore = "long: cargo xtask soak images"]
fn mkosi_builds_with_our_mkfs() {
    const TEST: &str = "mkosi_builds_with_our_mkfs";
    let needed = ["mkosi", "debootstrap", "systemd-nspawn", "unshare"];
    if !requirement::kernel_btrfs(TEST) || !requirement::programs(TEST, &needed) {
        return;
    }
    let scratch = Scratch::new("cli-image-mkosi");
    let (programs, calls) = (scratch.folder("bin"), scratch.join("calls"));
    let program = |name: &str, script: String| {
        std::fs::write(programs.join(name), script).unwrap();
        std::fs::set_permissions(programs.join(name), PermissionsExt::from_mode(0o755)).unwrap();
    };
    let ours = scratch.join("mkfs.btrfs");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_butterfs"), &ours).unwrap();
    program("mkfs.btrfs", format!("#!/bin/sh\necho \"$@\" >> {}\nexec {} \"$@\"\n", calls.display(), ours.display()));
    // Without a running systemd there is nobody to ask for a scope.
    program("systemd-nspawn", "#!/bin/sh\nexec /usr/bin/systemd-nspawn --keep-unit \"$@\"\n".to_owned());
    let release = std::fs::read_to_string("/etc/os-release").unwrap();
    let codename = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME=")).unwrap_or("stable");
    let script = "mount --make-rprivate / && mount -t tmpfs tmpfs /run && cd \"$1\" && PATH=\"$1/bin:$PATH\" \
        exec mkosi -d debian -r \"$2\" -t gpt_btrfs --bootable no --output disk.img --force build 2>&1";
    run_ok(1800, "unshare", &["--mount", "sh", "-c", script, "sh", text(scratch.path()), codename]);
    let call = std::fs::read_to_string(calls).unwrap();
    assert!(call.starts_with("-L root -d single -m single /dev/loop"), "{call}");
    let place = format!("{}@1", text(&scratch.join("disk.img")));
    assert!(butterfs_ok(&["image", "cat", &place, "/etc/os-release"]).contains("ID=debian"));
}
