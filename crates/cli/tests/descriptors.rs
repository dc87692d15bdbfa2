//! Descriptors of a filesystem whose server never answers, which its user sends to the process that serves a mount:
//! nobody waits for them but what took them.

#[allow(dead_code)] // other tests use more of it
mod common;
#[allow(dead_code)] // the same
mod mounted;

use butterfs_control::{Attached, Label, Question, Reply, Request, VERSION, encode, question, read_reply};
use butterfs_testkit::kernel::run;
use butterfs_testkit::requirement;
use common::butterfs_ok;
use mounted::{Bed, eventually, text};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Gid, Uid};
use std::ffi::CString;
use std::fs;
use std::io::{BufRead, BufReader, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

const USER: u32 = 54321;

/// Serves FUSE on its standard input, with a file for each letter. It never answers a FLUSH of `f` and a WRITE of `w`.
const HOSTILE: &str = r#"
alarm 100;
open(my $fuse, '+<&=', 0) or die;
binmode $fuse;
sub attributes {
    my ($node) = @_;
    pack('Q6 L10', $node, 4096, 8, 0, 0, 0, 0, 0, 0, $node == 1 ? 040777 : 0100666, 1, 54321, 54321, 0, 4096, 0);
}
while (sysread($fuse, my $request, 1 << 20)) {
    my ($len, $code, $unique, $node) = unpack('L2 Q2', $request);
    my ($error, $answer) = (0, '');
    next if $code == 2 || $code == 36 || $code == 42;
    next if $code == 25 && $node == ord('f') || $code == 16 && $node == ord('w');
    # INIT, with the writeback cache.
    if ($code == 26) { $answer = pack('L4 S2 L2 S2 L8', 7, 31, 131072, 1 << 16, 16, 12, 131072, 1, 32, 0, (0) x 8) }
    elsif ($code == 1) {
        my $child = ord(substr($request, 40, 1));
        $answer = pack('Q4 L2', $child, (0) x 5) . attributes($child)
    }
    elsif ($code == 3 || $code == 4) { $answer = pack('Q L2', 0, 0, 0) . attributes($node) }
    elsif ($code == 14) { $answer = pack('Q L2', 0, 0, 0) }
    elsif ($code == 15) { my ($handle, $at, $size) = unpack('Q2 L', substr($request, 40)); $answer = 'x' x $size }
    elsif ($code != 18 && $code != 25) { $error = -38 }
    syswrite($fuse, pack('L l Q', 16 + length $answer, $error, $unique) . $answer);
}
"#;

/// A filesystem of an ordinary user, who serves it until this ends.
struct Hostile {
    at: PathBuf,
    server: Child,
    attacker: Option<Child>,
}

impl Hostile {
    fn mount(at: PathBuf) -> Hostile {
        let fuse = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let options = format!("fd={},rootmode=40000,user_id={USER},group_id={USER},allow_other", fuse.as_raw_fd());
        let options = CString::new(options).unwrap();
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        rustix::mount::mount("hostile", &at, "fuse", flags, Some(options.as_c_str())).unwrap();
        let mut perl = Command::new("perl");
        perl.args(["-e", HOSTILE]).stdin(fuse).uid(USER).gid(USER);
        Hostile { at, server: perl.spawn().unwrap(), attacker: None }
    }

    /// Has a process of its own send descriptors to a socket: whoever has them waits when it ends or starts a program.
    fn attack(&mut self, socket: &Path, how: &str) {
        let ready = self.at.with_extension("ready");
        let mut attacker = Command::new(std::env::current_exe().unwrap());
        attacker.args(["--ignored", "--exact", "attacker"]).env(ATTACK, how);
        attacker.env(SOCKET, socket).env(PLACE, &self.at).env(READY, &ready);
        self.attacker = Some(attacker.spawn().unwrap());
        eventually(|| ready.exists());
    }
}

const ATTACK: &str = "BUTTERFS_TEST_ATTACK";
const SOCKET: &str = "BUTTERFS_TEST_SOCKET";
const PLACE: &str = "BUTTERFS_TEST_PLACE";
const READY: &str = "BUTTERFS_TEST_READY";

/// The process that [`Hostile::attack`] starts.
#[test]
#[ignore = "for the other tests"]
fn attacker() {
    let Some(how) = std::env::var_os(ATTACK) else { return };
    let path = |name: &str| PathBuf::from(std::env::var_os(name).unwrap());
    let (socket, place) = (path(SOCKET), path(PLACE));
    let open = |name: &str| -> OwnedFd {
        rustix::fs::open(place.join(name), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap()
    };
    let sent = as_user(|| {
        // Closing it sends FLUSH.
        let flushed = open("f");
        let mut sent = Vec::new();
        if how == "unread" {
            sent.extend((0..4).map(|_| send(&socket, &half_a_question(), &flushed)));
            return (sent, flushed);
        }
        let mut asked = send(&socket, &whole_question(), &flushed);
        assert!(is_refused(&mut asked));
        sent.push(asked);
        // The rest of this question never comes, and nobody gets to see the descriptor.
        sent.push(send(&socket, &half_a_question(), &flushed));
        // The process that drops the last reference writes the changes back.
        let (written, other) = (open("w"), open("w"));
        let mut last = send(&socket, &whole_question(), &written);
        drop(written);
        rustix::io::write(&other, b"changed").unwrap();
        assert!(is_refused(&mut last));
        let _ = other.into_raw_fd();
        (sent, flushed)
    });
    fs::write(path(READY), "").unwrap();
    std::thread::sleep(Duration::from_secs(100));
    drop(sent);
}

impl Drop for Hostile {
    /// When its server is gone, nobody waits for it any more.
    fn drop(&mut self) {
        for process in [Some(&mut self.server), self.attacker.as_mut()].into_iter().flatten() {
            let _ = process.kill();
            let _ = process.wait();
        }
        let _ = rustix::mount::unmount(&self.at, UnmountFlags::DETACH);
    }
}

/// Runs `act` on a thread of an ordinary user.
fn as_user<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            let (uid, gid) = (Uid::from_raw(USER), Gid::from_raw(USER));
            rustix::thread::set_thread_groups(&[]).unwrap();
            rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            act()
        });
        thread.join().unwrap()
    })
}

/// A question as it is sent, about one descriptor.
fn whole_question() -> Vec<u8> {
    let question = encode(&Question::from(question::GetLabel {})).unwrap();
    let line = Request::Question(Attached { descriptors: 1, bytes: question.len() });
    [format!("{line}\n").as_bytes(), &question].concat()
}

/// The same without its last byte.
fn half_a_question() -> Vec<u8> {
    let mut half = whole_question();
    half.pop();
    half
}

/// Connects, and sends bytes with a descriptor once the server has said something.
fn send(socket: &Path, bytes: &[u8], descriptor: &OwnedFd) -> BufReader<UnixStream> {
    let mut stream = BufReader::new(UnixStream::connect(socket).unwrap());
    assert!(is_greeted(&mut stream));
    assert_eq!(send_now(stream.get_ref(), bytes, descriptor), Ok(bytes.len()));
    stream
}

fn is_greeted(stream: &mut BufReader<UnixStream>) -> bool {
    stream.get_ref().set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let greeting = format!("{}\n", Request::Hello(VERSION));
    stream.get_mut().write_all(greeting.as_bytes()).is_ok() && line(stream).starts_with("butterfs ")
}

fn send_now(stream: &UnixStream, bytes: &[u8], descriptor: &OwnedFd) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let (mut control, sent) = (SendAncillaryBuffer::new(&mut space), [descriptor.as_fd()]);
    assert!(control.push(SendAncillaryMessage::ScmRights(&sent)));
    sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
}

/// The next line; nothing where the other end has gone.
fn line(stream: &mut BufReader<UnixStream>) -> String {
    let mut line = String::new();
    stream.read_line(&mut line).unwrap_or_default();
    line
}

fn is_refused(stream: &mut BufReader<UnixStream>) -> bool {
    matches!(read_reply(stream).unwrap(), Reply::Refused(_))
}

/// Whether the answer is that there is no label.
fn is_answered(stream: &mut BufReader<UnixStream>) -> bool {
    read_reply(stream).is_ok_and(|reply| reply == Reply::Record(Label(Vec::new()).into()))
}

/// The socket for ordinary users, and the name of the mount in it.
fn socket(bed: &Bed) -> (PathBuf, String) {
    let device = fs::metadata(&bed.at).unwrap().dev();
    let name = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    (PathBuf::from(format!("/run/butterfs/{name}.sock")), name)
}

/// Processes that take connections for a mount.
fn proxies(of: &str) -> usize {
    let lines =
        fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.split(|byte| *byte == 0).eq([b"butterfs-control-proxy", of.as_bytes(), b""])).count()
}

fn bed(test: &str) -> Option<Bed> {
    let bed = Bed::for_root(test).filter(|_| requirement::programs(test, &["perl"]))?.with_image();
    bed.mount_ok("rw");
    Some(bed)
}

#[test]
fn nobody_waits_for_a_filesystem_that_never_answers() {
    const TEST: &str = "hostile_descriptors";
    let Some(bed) = bed(TEST) else { return };
    let mut hostile = Hostile::mount(bed.scratch.folder("hostile"));
    let (socket, name) = socket(&bed);
    hostile.attack(&socket, "all");
    let list = run(20, env!("CARGO_BIN_EXE_butterfs"), &["subvolume", "list", text(&bed.at)]);
    assert_eq!(list.code, Some(0), "root is served: {}", list.output);
    as_user(|| {
        let root = rustix::fs::open(&bed.at, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        assert!(is_answered(&mut send(&socket, &whole_question(), &root)), "so are users");
    });
    let umount = run(20, env!("CARGO_BIN_EXE_butterfs"), &["umount", text(&bed.at)]);
    let left = bed.serving_process();
    drop(hostile);
    assert!(umount.code == Some(0) && left.is_none(), "{left:?} {}", umount.output);
    eventually(|| proxies(&name) == 0);
    bed.mount_ok("rw");
    bed.umount_ok();
}

#[test]
fn a_killed_server_lets_go_of_its_image() {
    const TEST: &str = "hostile_descriptors_killed";
    let Some(bed) = bed(TEST) else { return };
    let mut hostile = Hostile::mount(bed.scratch.folder("hostile"));
    hostile.attack(&socket(&bed).0, "unread");
    bed.kill();
    let began = Instant::now();
    butterfs_ok(&["check", text(&bed.image)]);
    bed.mount_ok("rw");
    butterfs_ok(&["umount", text(&bed.at)]);
    // Its server ends after 100 s, and then everybody goes on.
    assert!(began.elapsed() < Duration::from_secs(60), "nobody waits for the hostile filesystem");
    drop(hostile);
}

#[test]
fn another_proxy_takes_the_place_of_one_that_ended() {
    const TEST: &str = "lost_proxy";
    let Some(bed) = bed(TEST) else { return };
    let (socket, name) = socket(&bed);
    let root = rustix::fs::open(&bed.at, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
    assert_eq!(proxies(&name), 1);
    run(20, "pkill", &["-KILL", "-x", "-f", &format!("butterfs-control-proxy {name}")]);
    // A connection that the old one had accepted is reset.
    eventually(|| as_user(|| UnixStream::connect(&socket).is_ok_and(|stream| is_greeted(&mut BufReader::new(stream)))));
    assert!(as_user(|| is_answered(&mut send(&socket, &whole_question(), &root))));
    drop(root);
    bed.umount_ok();
    eventually(|| proxies(&name) == 0);
    assert!(!socket.exists());
}

/// Connections that were not let in cannot send descriptors, on kernels that can refuse them.
#[test]
fn refused_clients_send_no_descriptors() {
    const TEST: &str = "early_descriptors";
    let Some(bed) = bed(TEST) else { return };
    let (socket, _) = socket(&bed);
    if !knows_refusals() {
        bed.umount_ok();
        return requirement::skip(TEST, "SO_PASSRIGHTS: Linux 6.16 and later");
    }
    let null = OwnedFd::from(fs::File::open("/dev/null").unwrap());
    as_user(|| {
        let mut held: Vec<_> = (0..4).map(|_| send(&socket, &half_a_question(), &null)).collect();
        let mut more = BufReader::new(UnixStream::connect(&socket).unwrap());
        // Whoever is refused may find the connection closed already.
        let sent = send_now(more.get_ref(), b"ask", &null);
        assert!(matches!(sent, Err(rustix::io::Errno::PERM | rustix::io::Errno::PIPE)), "{sent:?}");
        assert!(line(&mut more).starts_with("refused 11 "));
        held.clear();
    });
    bed.umount_ok();
}

fn knows_refusals() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(16))
}
