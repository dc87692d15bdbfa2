//! The privileges of a command, by its way to the filesystem: read-only bind mounts, other filesystems, users without a
//! way to the mount, other namespaces; and what clients that do not read cost.

mod common;
mod mounted;

use butterfs_control::{
    Attached, InodeRef, Message, Order, Question, Reply, Request, Response, StreamQuestion, VERSION, encode, question,
    read_reply,
};
use butterfs_testkit::kernel::{KernelMount, run};
use butterfs_testkit::requirement;
use common::{butterfs, butterfs_ok};
use mounted::{Bed, eventually, shell, text};
use rustix::fs::{Mode, OFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Gid, Uid};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

const BINARY: &str = env!("CARGO_BIN_EXE_butterfs");
const NOBODY: u32 = 54321;

/// A subvolume `s`, a read-only snapshot `ro` of it and one more, `ro2`; equal files `f` and `g`, a folder `d`.
fn filled(test: &str) -> Option<Bed> {
    let bed = Bed::for_root(test)?.with_image();
    bed.mount_ok("rw");
    butterfs_ok(&["subvolume", "create", "-q", text(&bed.path("s"))]);
    fs::write(bed.path("s/inner"), test).unwrap();
    for name in ["ro", "ro2"] {
        butterfs_ok(&["subvolume", "snapshot", "-q", "-r", text(&bed.path("s")), text(&bed.path(name))]);
    }
    for name in ["f", "g"] {
        fs::write(bed.path(name), vec![7; 1 << 16]).unwrap();
    }
    fs::create_dir(bed.path("d")).unwrap();
    Some(bed)
}

/// Mounts what `at` shows at a new folder as well.
fn bind(bed: &Bed, name: &str, at: &Path, options: &str) -> Bound {
    let to = bed.scratch.folder(name);
    shell(
        "mount --bind \"$at\" \"$to\" && mount -o remount,bind,$options \"$to\"",
        &[("at", at), ("to", &to), ("options", Path::new(options))],
    );
    Bound(to)
}

struct Bound(PathBuf);

impl Drop for Bound {
    fn drop(&mut self) {
        run(20, "umount", &[text(&self.0)]);
    }
}

/// Words in which `{a}` and `{b}` stand for folders.
fn with_folders(line: &str, a: &Path, b: &Path) -> Vec<String> {
    line.split(' ').map(|word| word.replace("{a}", text(a)).replace("{b}", text(b))).collect()
}

fn refused(line: &str, (a, b): (&Path, &Path), sentences: &[&str]) {
    let words = with_folders(line, a, b);
    let ran = butterfs(&words.iter().map(String::as_str).collect::<Vec<_>>());
    let said = sentences.iter().any(|sentence| ran.stderr.contains(sentence));
    assert!(ran.code == Some(1) && said && ran.stdout.is_empty(), "{line}: {ran:?}");
}

fn allowed(line: &str, (a, b): (&Path, &Path)) {
    let words = with_folders(line, a, b);
    butterfs_ok(&words.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn nothing_changes_through_a_read_only_mount() {
    const TEST: &str = "read_only_mounts";
    let Some(bed) = filled(TEST) else { return };
    let stream = bed.scratch.join("stream");
    butterfs_ok(&["send", "-q", "-f", text(&stream), text(&bed.path("ro"))]);
    let read_only = bind(&bed, "read-only", &bed.at, "ro");
    let before = names(&bed.at);
    let both = (bed.at.as_path(), read_only.0.as_path());
    let changes = [
        "subvolume create {b}/new",
        "subvolume snapshot {a}/s {b}/new",
        "subvolume delete -q {b}/s",
        "subvolume delete -q -i 256 {b}",
        "subvolume set-default {b}/s",
        "subvolume set-default 256 {b}",
        "property set {b}/s ro true",
        "property set -t f {b} label other",
        "filesystem defragment {b}/f",
        "dedupe {a}/f {b}/g",
        "reflink clone {a}/f {b}/new",
        "reflink range {a}/f {b}/g",
    ];
    let receive = format!("receive -q -f {} {{b}}/d", text(&stream));
    for line in changes.iter().copied().chain([receive.as_str()]) {
        refused(line, both, &["read-only", "Read-only"]);
        assert_eq!(names(&bed.at), before, "{line}");
    }
    // What is only read may lie there.
    for line in [
        "subvolume snapshot -q {b}/s {a}/new",
        "dedupe {b}/f {a}/g",
        "reflink clone {b}/f {a}/clone",
        "subvolume list {b}",
        "subvolume show {b}/s",
        "filesystem extents {b}/f",
        "send -q -f /dev/null -p {b}/ro {b}/ro2",
    ] {
        allowed(line, both);
    }
    shell("mount -o remount,bind,ro \"$at\"", &[("at", &bed.at)]);
    refused("subvolume create {a}/new2", both, &["read-only"]);
    shell("mount -o remount,bind,rw \"$at\"", &[("at", &bed.at)]);
    allowed("subvolume create -q {a}/new2", both);
    drop(read_only);
    bed.umount_ok();
    bed.judge(|root| assert!(root.join("new2").is_dir()));
    the_kernel_refuses_the_same(&bed);
}

fn the_kernel_refuses_the_same(bed: &Bed) {
    if !requirement::kernel_btrfs("read_only_mounts") {
        return;
    }
    let kernel = KernelMount::new(&bed.image, "");
    let read_only = bind(bed, "kernel", kernel.path(), "ro");
    for line in ["subvolume create {b}/k", "subvolume snapshot {a}/s {b}/k", "property set {b}/s ro true"] {
        let words = with_folders(line, kernel.path(), &read_only.0);
        let finished = run(20, "btrfs", &words.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(finished.code != Some(0) && finished.output.contains("Read-only"), "{line}: {}", finished.output);
    }
    let line = with_folders("subvolume snapshot {b}/s {a}/from-read-only", kernel.path(), &read_only.0);
    let finished = run(20, "btrfs", &line.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(finished.code, Some(0), "{}", finished.output);
    drop(read_only);
    assert_eq!(kernel.finish(), [""; 0]);
}

fn names(at: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(at).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names.into_iter().map(|name| name.into_string().unwrap()).collect()
}

#[test]
fn both_paths_of_a_command_are_on_one_filesystem() {
    let Some(a) = filled("two_filesystems_a") else { return };
    let Some(b) = filled("two_filesystems_b") else { return };
    let inside = a.path("tmpfs");
    fs::create_dir(&inside).unwrap();
    shell("mount -t tmpfs none \"$inside\"", &[("inside", &inside)]);
    let inside = Bound(inside);
    fs::write(inside.0.join("f"), vec![7; 1 << 16]).unwrap();
    let before = (names(&a.at), names(&b.at), names(&inside.0));
    let both = (a.at.as_path(), b.at.as_path());
    let elsewhere = ["another filesystem", "not on a butterfs mount"];
    for line in [
        "send -q -f /dev/null -p {b}/ro {a}/ro2",
        "send -q -f /dev/null -c {b}/ro {a}/ro2",
        "send -q -f /dev/null {a}/ro {b}/ro",
        "dedupe {a}/f {b}/f",
        "dedupe {a}/f {a}/tmpfs/f",
        "reflink clone {a}/f {b}/new",
        "reflink clone {a}/f {b}/g",
        "reflink range {a}/f {b}/new",
        "reflink clone {a}/f {a}/tmpfs/new",
        "reflink clone {a}/tmpfs/f {a}/new",
        "subvolume snapshot {a}/s {b}/new",
        "subvolume snapshot {a}/s {b}/d",
        "subvolume snapshot {a}/s {a}/tmpfs/new",
        "subvolume create {a}/tmpfs/new",
        "subvolume delete -q {a}/tmpfs",
        "filesystem extents {a}/tmpfs/f",
        "receive -q -f /dev/null -m {a} {b}/d",
    ] {
        refused(line, both, &elsewhere);
        assert_eq!((names(&a.at), names(&b.at), names(&inside.0)), before, "{line}");
    }
    // One filesystem, however it is reached.
    let again = bind(&a, "again", &a.at, "rw");
    let both = (a.at.as_path(), again.0.as_path());
    for line in [
        "send -q -f /dev/null -p {b}/ro {a}/ro2",
        "dedupe {a}/f {b}/g",
        "reflink clone {a}/f {b}/new",
        "subvolume snapshot -q {a}/s {b}/snapshot",
    ] {
        allowed(line, both);
    }
    drop((inside, again));
    a.umount_ok();
    b.umount_ok();
}

#[test]
fn a_clone_that_fails_leaves_nothing() {
    let Some(bed) = filled("failed_clone") else { return };
    // What is made there has no checksums.
    shell("chattr +C \"$d\"", &[("d", &bed.path("d"))]);
    let both = (bed.at.as_path(), bed.at.as_path());
    refused("reflink clone {a}/f {a}/d/new", both, &["checksums"]);
    refused("reflink range -s 1 {a}/f {a}/new", both, &["whole sectors"]);
    assert!(!bed.path("d/new").exists() && !bed.path("new").exists());
    fs::write(bed.path("d/old"), "kept").unwrap();
    refused("reflink clone {a}/f {a}/d/old", both, &["checksums"]);
    assert_eq!(fs::read(bed.path("d/old")).unwrap(), b"kept");
    bed.umount_ok();
}

/// A connection to the process that serves a mount, as of a program that keeps to no rules.
struct Raw(BufReader<UnixStream>);

impl Raw {
    fn new(socket: &Path) -> Raw {
        let mut raw = Raw(BufReader::new(UnixStream::connect(socket).unwrap()));
        // A server that does not want to talk may have closed before.
        let _ = raw.0.get_mut().write_all(format!("{}\n", Request::Hello(VERSION)).as_bytes());
        raw
    }

    /// The same, greeted by the server.
    fn greeted(socket: &Path) -> Raw {
        let mut raw = Raw::new(socket);
        assert_eq!(raw.response(), Response::Version(VERSION));
        raw
    }

    fn request(&mut self, request: Request) -> Response {
        self.send(format!("{request}\n").as_bytes(), &[]);
        self.response()
    }

    fn pose(&mut self, question: impl Into<Question>, descriptors: &[BorrowedFd<'_>]) {
        self.send(&bytes(&question.into(), Request::Question, descriptors.len()), descriptors);
    }

    /// The first reply to a question.
    fn ask(&mut self, question: impl Into<Question>, descriptors: &[BorrowedFd<'_>]) -> Reply {
        self.pose(question, descriptors);
        self.reply()
    }

    /// The number with which a question is refused.
    fn refused(&mut self, question: impl Into<Question>, descriptors: &[BorrowedFd<'_>]) -> i32 {
        errno(self.ask(question, descriptors))
    }

    fn send(&mut self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(descriptors.is_empty() || control.push(SendAncillaryMessage::ScmRights(descriptors)));
        let slices = [IoSlice::new(bytes)];
        assert_eq!(sendmsg(self.0.get_ref(), &slices, &mut control, SendFlags::NOSIGNAL), Ok(bytes.len()));
    }

    fn response(&mut self) -> Response {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        Response::parse(line.trim_end()).unwrap_or_else(|| panic!("'{line}'"))
    }

    fn reply(&mut self) -> Reply {
        read_reply(&mut self.0).unwrap()
    }
}

/// A question as it is sent.
fn bytes(question: &impl Message, request: fn(Attached) -> Request, descriptors: usize) -> Vec<u8> {
    let question = encode(question).unwrap();
    let line = request(Attached { descriptors, bytes: question.len() });
    [format!("{line}\n").as_bytes(), &question].concat()
}

fn errno(reply: Reply) -> i32 {
    match reply {
        Reply::Refused(refusal) => refusal.errno,
        other => panic!("{other:?}"),
    }
}

fn create(directory: InodeRef) -> question::CreateSubvolume {
    question::CreateSubvolume { directory, umask: 0o22, name: b"new".to_vec() }
}

const FIRST: InodeRef = InodeRef::Descriptor(0);

/// The socket for root.
fn socket(bed: &Bed) -> PathBuf {
    let device = fs::metadata(&bed.at).unwrap().dev();
    PathBuf::from(format!("/run/butterfs/{}:{}.owner.sock", rustix::fs::major(device), rustix::fs::minor(device)))
}

/// The socket for everybody else.
fn socket_for_guests(bed: &Bed) -> PathBuf {
    let own = socket(bed);
    PathBuf::from(text(&own).replace(".owner", ""))
}

/// Runs `act` on a thread of a user without privileges.
fn as_nobody(act: impl FnOnce() + Send) {
    let become_nobody = || {
        let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        rustix::thread::set_thread_groups(&[]).unwrap();
        rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
        rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
    };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            become_nobody();
            act();
        });
    });
}

/// A stream of nothing.
fn nothing_to_send() -> StreamQuestion {
    let send = question::SendSubvolumes {
        version: 1,
        contents: question::SentContents::Plain,
        streams: question::SentStreams::Separate,
        parent: None,
        clone_sources: Vec::new(),
        subvolumes: Vec::new(),
    };
    send.into()
}

fn refused_by_line(response: Response) -> i32 {
    match response {
        Response::Refused(refusal) => refusal.errno,
        other => panic!("{other:?}"),
    }
}

fn opened(path: impl AsRef<Path>, flags: OFlags) -> std::os::fd::OwnedFd {
    rustix::fs::open(path.as_ref(), flags | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

#[test]
fn users_who_cannot_reach_a_mount_cannot_use_it() {
    let Some(bed) = filled("unreachable") else { return };
    let (socket, own) = (socket_for_guests(&bed), socket(&bed));
    let (folder, there) = (fs::metadata("/run/butterfs").unwrap(), fs::symlink_metadata(&socket).unwrap());
    assert_eq!((folder.uid(), folder.mode() & 0o7777), (0, 0o755));
    assert!(there.uid() == 0 && there.file_type().is_socket());
    assert_eq!(fs::symlink_metadata(&own).unwrap().mode() & 0o777, 0o600);
    // Only root can get through it.
    shell("chmod 700 \"$folder\"", &[("folder", bed.scratch.path())]);
    as_nobody(|| {
        assert!(fs::metadata(&bed.at).is_err() && UnixStream::connect(&own).is_err());
        let mut raw = Raw::greeted(&socket);
        let number = |ino| InodeRef::Number { tree: 5, ino };
        let questions: [Question; 6] = [
            create(number(256)).into(),
            create(FIRST).into(),
            question::ListExtents { file: number(257) }.into(),
            question::ListExtents { file: FIRST }.into(),
            question::GetLabel {}.into(),
            question::SyncAll {}.into(),
        ];
        for question in questions {
            let errno = raw.refused(question.clone(), &[]);
            assert!([libc::EPERM, libc::EINVAL].contains(&errno), "{question:?}: {errno}");
        }
        let (elsewhere, opened) = (opened("/", OFlags::PATH), opened("/", OFlags::RDONLY));
        for descriptor in [&elsewhere, &opened] {
            assert_eq!(raw.refused(create(FIRST), &[descriptor.as_fd()]), libc::EXDEV);
            // Numbers are for images.
            assert_eq!(raw.refused(create(number(256)), &[descriptor.as_fd()]), libc::EXDEV);
        }
        raw.send(&bytes(&nothing_to_send(), Request::StreamQuestion, 1), &[opened.as_fd()]);
        assert_eq!(errno(raw.reply()), libc::EPERM);
        let not_permitted = Response::Failed("not permitted".into());
        assert_eq!(raw.request(Request::Order(Order::MakeReadOnly)), not_permitted);
        assert_eq!(raw.request(Request::Wait), not_permitted);
        // A command of another version, and one of version 2 with a question of its own.
        assert_eq!(raw.request(Request::Hello(77)), Response::Version(VERSION));
        raw.pose(question::GetLabel {}, &[]);
        assert_eq!(refused_by_line(raw.response()), libc::EPROTO);
        assert_eq!(raw.request(Request::Hello(2)), Response::Version(VERSION));
        raw.send(b"do 0 get-label\n", &[]);
        assert_eq!(refused_by_line(raw.response()), libc::EPROTO);
        assert_eq!(raw.request(Request::Status), Response::Serving);
    });
    // Whoever was handed the way may use it.
    let mount = opened(&bed.at, OFlags::PATH);
    as_nobody(|| {
        let mut raw = Raw::greeted(&socket);
        assert_eq!(raw.refused(create(FIRST), &[mount.as_fd()]), libc::EACCES, "root's folder");
        let number = InodeRef::Number { tree: 5, ino: 256 };
        assert_eq!(raw.refused(create(number), &[mount.as_fd()]), libc::EINVAL, "numbers are for images");
        assert!(matches!(raw.ask(question::GetLabel {}, &[mount.as_fd()]), Reply::Record(_)));
    });
    assert!(!bed.path("new").exists());
    drop(mount);
    bed.umount_ok();
    assert!(!socket.exists() && !own.exists(), "the names go with the mount");
}

#[test]
fn a_user_has_few_connections() {
    let Some(bed) = filled("few_connections") else { return };
    let socket = socket_for_guests(&bed);
    as_nobody(|| {
        let mut held: Vec<Raw> = (0..4).map(|_| Raw::new(&socket)).collect();
        held.iter_mut().for_each(|raw| assert_eq!(raw.response(), Response::Version(VERSION)));
        assert_eq!(refused_by_line(Raw::new(&socket).response()), libc::EAGAIN);
        held.pop();
        eventually(|| Raw::new(&socket).response() == Response::Version(VERSION));
    });
    butterfs_ok(&["subvolume", "list", text(&bed.at)]);
    bed.umount_ok();
}

#[test]
fn clients_that_do_not_read_cost_little() {
    let Some(bed) = filled("silent_clients") else { return };
    let extents = 20_000;
    let file = File::create(bed.path("many")).unwrap();
    for number in 0..extents {
        file.write_all_at(&[1; 4096], number * 8192).unwrap();
    }
    file.sync_all().unwrap();
    let listed = butterfs_ok(&["filesystem", "extents", text(&bed.path("many"))]);
    assert!(listed.lines().count() as u64 > extents, "pieces come together");
    let process = bed.serving_process().unwrap();
    let before = (resident(process), threads(process));
    let many = opened(bed.path("many"), OFlags::PATH);
    let socket = socket(&bed);
    let mut clients: Vec<Raw> = (0..32).map(|_| Raw::new(&socket)).collect();
    for client in &mut clients {
        assert_eq!(client.response(), Response::Version(VERSION));
        client.pose(question::ListExtents { file: FIRST }, &[many.as_fd()]);
    }
    // All answers are under way; nobody reads on.
    clients.iter_mut().for_each(|client| assert!(matches!(client.reply(), Reply::Record(_))));
    let grown = resident(process).saturating_sub(before.0);
    assert!(grown < 64 << 20, "{grown} bytes for 32 clients");
    drop(clients);
    eventually(|| threads(process) <= before.1);
    drop((many, file));
    bed.umount_ok();
}

fn status(process: i32, field: &str) -> u64 {
    let mut text = String::new();
    File::open(format!("/proc/{process}/status")).unwrap().read_to_string(&mut text).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap()
}

fn resident(process: i32) -> u64 {
    status(process, "VmRSS:") * 1024
}

fn threads(process: i32) -> u64 {
    status(process, "Threads:")
}

#[test]
fn other_namespaces_reach_the_server_or_are_told_why_not() {
    let Some(bed) = filled("namespaces") else { return };
    let variables: [(&str, &Path); 2] = [("binary", Path::new(BINARY)), ("at", &bed.at)];
    let listed = shell("unshare -n \"$binary\" subvolume list \"$at\"", &variables);
    assert_eq!(listed.lines().count(), 3, "{listed}");
    let script = "export binary at; unshare -m sh -c 'mount -t tmpfs none /run; \"$binary\" subvolume list \"$at\"' \
                  2>&1 || true";
    let said = shell(script, &variables);
    assert!(said.contains("nobody answers") && said.contains("mount namespace"), "{said}");
    shell("unshare -n \"$binary\" umount \"$at\"", &variables);
    assert_eq!(bed.serving_process(), None);
}

#[test]
fn a_killed_server_s_name_is_in_nobody_s_way() {
    let Some(bed) = filled("killed_server") else { return };
    let left = socket(&bed);
    bed.kill();
    // Another test's server may have removed it by now.
    assert!(UnixStream::connect(&left).is_err());
    bed.mount_ok("rw");
    butterfs_ok(&["subvolume", "list", text(&bed.at)]);
    bed.umount_ok();
    // Another test's mount may have got the number since.
    assert!(!left.exists() || UnixStream::connect(&left).is_ok(), "removed, or taken over");
}
