//! The command beside other programs: systemd, umount(8), fsck(8), shells, and readers of JSON.

mod common;
#[allow(dead_code)] // another test uses the rest
mod listings;
#[allow(dead_code)] // the other tests need more of it
mod mounted;

use common::{butterfs, butterfs_ok};
use listings::LISTINGS;
use mounted::{Bed, eventually, text};
use serde_json::Value;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const BINARY: &str = env!("CARGO_BIN_EXE_butterfs");

/// A link to the command under another name, as a package installs it.
fn helper(bed: &Bed, name: &str) -> PathBuf {
    let link = bed.image.with_file_name(name);
    symlink(BINARY, &link).expect("a scratch folder takes links");
    link
}

fn call(program: &Path, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).output().expect("the command starts")
}

/// The next message that is not a status line.
fn next(socket: &UnixDatagram) -> String {
    let mut buffer = [0; 512];
    let len = socket.recv(&mut buffer).expect("a message in time");
    String::from_utf8_lossy(&buffer[..len]).into_owned()
}

#[test]
fn systemd_learns_that_a_mount_is_ready_and_alive() {
    let Some(bed) = Bed::for_root("systemd_notify") else { return };
    let bed = bed.with_image();
    let path = bed.image.with_file_name("notify");
    let socket = UnixDatagram::bind(&path).expect("a scratch folder takes sockets");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket takes timeouts");
    let mut server = Command::new(BINARY)
        .args(["mount", "--foreground", "-o", "rw", "--", text(&bed.image), text(&bed.at)])
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "200000")
        .stdin(Stdio::null())
        .spawn()
        .expect("the command starts");
    assert!(next(&socket).contains("READY=1"));
    assert!(bed.is_mounted(), "ready means usable");
    for _ in 0..3 {
        assert_eq!(next(&socket).trim(), "WATCHDOG=1");
    }
    bed.umount_ok();
    assert!(server.wait().expect("it ends").success());
}

#[test]
fn umount_and_fsck_find_their_helpers() {
    let Some(bed) = Bed::for_root("helpers") else { return };
    let bed = bed.with_image();
    let (umount, fsck) = (helper(&bed, "umount.butterfs"), helper(&bed, "fsck.butterfs"));
    for options in [&[][..], &["-l", "-v"], &["-n", "-f"]] {
        bed.mount_ok("rw");
        std::fs::write(bed.path("file"), "content").expect("it is mounted");
        let output = call(&umount, &[options, &[text(&bed.at)]].concat());
        assert!(output.status.success(), "{options:?}: {output:?}");
        assert!(!bed.is_mounted(), "{options:?}");
        eventually(|| butterfs(&["check", text(&bed.image)]).code == Some(0));
    }
    assert_eq!(call(&umount, &[text(&bed.at)]).status.code(), Some(32), "nothing is mounted there");
    assert_eq!(call(&umount, &["-r", text(&bed.at)]).status.code(), Some(1));

    assert_eq!(call(&fsck, &[text(&bed.image)]).status.code(), Some(0));
    let file = std::fs::OpenOptions::new().write(true).open(&bed.image).expect("it is ours");
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xff; 64], (64 << 10) + 256).expect("it can be written");
    assert_eq!(call(&fsck, &["-a", text(&bed.image)]).status.code(), Some(0), "nothing is checked at boot");
    assert!(matches!(call(&fsck, &[text(&bed.image)]).status.code(), Some(4 | 8)), "a damaged superblock");
    assert_eq!(call(&fsck, &["/does/not/exist"]).status.code(), Some(8));
}

#[test]
fn listings_are_json_where_it_is_asked_for() {
    let Some(bed) = Bed::new("json_listings") else { return };
    let bed = bed.with_image();
    let image = text(&bed.image);
    butterfs_ok(&["subvolume", "create", "--image", image, "/sub"]);
    butterfs_ok(&["subvolume", "snapshot", "-r", "--image", image, "/sub", "/snap"]);
    let json = |words: &[&str]| -> Value {
        let printed = butterfs_ok(&[&["--format", "json"], words].concat());
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{words:?}: {error}: {printed}"))
    };
    let listed = json(&["subvolume", "list", "--image", image, "/"]);
    assert_eq!(listed["__header"]["version"], "1");
    let paths: Vec<&str> =
        listed["subvolume-list"].as_array().expect("a list").iter().flat_map(|s| s["path"].as_str()).collect();
    assert_eq!(paths, ["sub", "snap"]);
    let shown = &json(&["subvolume", "show", "--image", image, "/sub"])["subvolume-show"];
    assert_eq!((&shown["id"], &shown["snapshots"][0]), (&256.into(), &"snap".into()));
    assert_eq!(shown["parent_uuid"], Value::Null);
    assert_eq!(json(&["subvolume", "get-default", "--image", image, "/"])["subvolume-get-default"]["id"], 5);
    assert_eq!(json(&["property", "get", "--image", image, "/snap"])["property-get"]["ro"], "true");
    let refused = butterfs(&["--format", "json", "subvolume", "create", "--image", image, "/other"]);
    assert_eq!(refused.code, Some(1));
    assert!(
        !butterfs_ok(&["subvolume", "list", "--image", image, "/"]).contains("other"),
        "refused before anything is done"
    );
    let all = |on: &'static str| LISTINGS.iter().filter(move |(_, arguments, _)| arguments.contains(on));
    bed.mount_ok("rw");
    std::fs::write(bed.path("file"), vec![7; 1 << 20]).expect("there is room");
    butterfs_ok(&["filesystem", "mkswapfile", "-s", "1m", text(&bed.path("swap"))]);
    all("{at}").for_each(|listing| must_be_a_document(listing, &bed, ""));
    bed.umount_ok();
    let extents = json(&["filesystem", "extents", "--image", image, "/file"]);
    let address = extents["filesystem-extents"][0]["address"].to_string();
    butterfs_ok(&["stream", "put", "-q", "--image", image, "/snap", text(&bed.scratch.join("store"))]);
    all("{store}").for_each(|listing| must_be_a_document(listing, &bed, ""));
    butterfs_ok(&["mount", "--create", "1G", &volumes(&bed), text(&bed.at)]);
    butterfs_ok(&["umount", text(&bed.at)]);
    all("{volumes}").for_each(|listing| must_be_a_document(listing, &bed, ""));
    all("{image}").for_each(|listing| must_be_a_document(listing, &bed, &address));
}

/// The URL of a store of volumes.
fn volumes(bed: &Bed) -> String {
    format!("file://{}", text(&bed.scratch.join("volumes")))
}

/// Exit codes may tell of a state, such as a balance that is not there.
fn must_be_a_document((command, arguments, key): &(&str, &str, &str), bed: &Bed, address: &str) {
    let arguments = arguments.replace("{image}", text(&bed.image)).replace("{at}", text(&bed.at));
    let arguments = arguments.replace("{address}", address).replace("{store}", text(&bed.scratch.join("store")));
    let arguments = arguments.replace("{volumes}", &volumes(bed));
    let words: Vec<&str> =
        ["--format", "json"].into_iter().chain(command.split(' ')).chain(arguments.split(' ')).collect();
    let ran = butterfs(&words);
    let document: Value =
        serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{command}: {error}: {ran:?}"));
    assert_eq!(document["__header"]["version"], "1", "{command}");
    assert!(document.get(key).is_some() && document.as_object().is_some_and(|keys| keys.len() == 2), "{document}");
}
