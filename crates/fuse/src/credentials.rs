//! The privileges of a process in the user namespace of this one, as its entries in `/proc` show it.
//!
//! Root of another user namespace has capabilities there and none here, and root can be without them: a user number
//! alone proves nothing. Where something cannot be found out (no `/proc`, one that hides processes, a process of a pid
//! namespace that is not visible here), the process has no capabilities.
//!
//! # Peers of a socket
//! 1. The process that connected counts, not whoever holds the connection later: who passes on a connection passes on
//!    what it permits.
//! 2. A process can gain capabilities after it has connected, by executing a program that lends them. So only those
//!    count whose user was root, or the user of this process, when they connected; root gains none that it could not
//!    have had.
//! 3. A descriptor of the process is held while its entries are read, and its number is the one that this `/proc` shows
//!    for the descriptor. The process must be alive afterwards, so nobody else had the number meanwhile. (Before Linux
//!    6.5 the descriptor comes from the number; if the process ended and its number was taken before that, another
//!    process counts.)

use crate::subvolumes::Capabilities;
use crate::system::{self, PeerCredentials};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};
use std::fs::{read_link, read_to_string};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// The process at the other end of a connection, when it connected.
pub fn of_peer(stream: &UnixStream) -> io::Result<(PeerCredentials, Capabilities)> {
    let peer = system::peer_credentials(stream.as_fd())?;
    let owner = geteuid().as_raw();
    if peer.uid != 0 && peer.uid != owner {
        return Ok((peer, Capabilities::NONE));
    }
    let capabilities = process_of_peer(stream).ok().and_then(|process| {
        let number = number_of(&process)?;
        let found = match peer.uid == owner && owner != 0 {
            // The owner could open the image as well.
            true if is_in_our_namespace(&number) => Capabilities::ALL,
            _ => of_process(&number),
        };
        is_alive(&process).then_some(found)
    });
    Ok((peer, capabilities.unwrap_or(Capabilities::NONE)))
}

/// A descriptor of the process at the other end of a connection.
pub fn process_of_peer(stream: &UnixStream) -> io::Result<OwnedFd> {
    system::peer_process(stream.as_fd()).or_else(|error| {
        let number = system::peer_credentials(stream.as_fd())?.process;
        let process = Pid::from_raw(number).ok_or(error)?;
        Ok(pidfd_open(process, PidfdFlags::empty())?)
    })
}

/// The effective capabilities of a process, given by its number in `/proc`.
pub fn of_process(number: &str) -> Capabilities {
    let status = read_to_string(format!("/proc/{number}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = line.and_then(|value| u64::from_str_radix(value.trim(), 16).ok());
    match effective {
        Some(bits) if is_in_our_namespace(number) => Capabilities::from_bits(bits),
        _ => Capabilities::NONE,
    }
}

/// Whether a process is in the user namespace of this one.
fn is_in_our_namespace(number: &str) -> bool {
    let namespace = |process: &str| read_link(format!("/proc/{process}/ns/user"));
    match (namespace(number), namespace("self")) {
        (Ok(theirs), Ok(ours)) => theirs == ours,
        // A user may not look at root's processes. Their mapping is that of our namespace, or of one that root has made
        // with the very same mapping.
        (Err(error), _) if error.kind() == io::ErrorKind::PermissionDenied && !geteuid().is_root() => {
            let mapping = |process: &str| read_to_string(format!("/proc/{process}/uid_map")).ok();
            mapping(number).is_some_and(|theirs| Some(theirs) == mapping("self"))
        }
        _ => false,
    }
}

/// The number of a process in the `/proc` of this one. A process that is not visible there has none.
fn number_of(process: &OwnedFd) -> Option<String> {
    let about = read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd())).ok()?;
    let number = about.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim();
    number.parse::<u32>().is_ok_and(|number| number > 0).then(|| number.to_owned())
}

/// Whether a process has not ended, so that its number is still its own.
fn is_alive(process: &OwnedFd) -> bool {
    let mut state = [PollFd::new(process, PollFlags::IN)];
    poll(&mut state, Some(&Default::default())) == Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_testkit::kernel::run_ok;
    use butterfs_testkit::requirement;
    use butterfs_testkit::scratch::Scratch;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;
    use std::path::Path;
    use std::process::{Child, Command, Stdio};

    const ADMINISTRATION: Capabilities = Capabilities::ADMINISTRATION;
    const OVERRIDE: Capabilities = Capabilities::OVERRIDE;

    /// How somebody is who connects: the program that starts them, and what they are granted.
    const PEERS: [(&str, &str, bool, bool); 8] = [
        ("root", "env", true, true),
        ("a user", "setpriv --reuid 54321 --regid 54321 --clear-groups", false, false),
        (
            "a user who may administrate",
            "setpriv --reuid 54321 --inh-caps +sys_admin --ambient-caps +sys_admin",
            false,
            false,
        ),
        ("root without CAP_SYS_ADMIN", "setpriv --bounding-set -sys_admin --inh-caps -sys_admin", false, true),
        ("root without capabilities", "setpriv --bounding-set -all --inh-caps -all", false, false),
        ("root of a user namespace", "unshare -Ur", false, false),
        (
            "a user who is root of a user namespace",
            "setpriv --reuid 54321 --regid 54321 --clear-groups unshare -Ur",
            false,
            false,
        ),
        ("root in a process namespace", "unshare --pid --fork --mount-proc", true, true),
    ];

    /// Starts somebody who connects, and then does what a perl script says.
    fn connected(socket: &Path, starter: &str, script: &str) -> Child {
        let mut words = starter.split(' ');
        let mut command = Command::new(words.next().expect("a program"));
        let connect = "socket($s, 1, 1, 0) && connect($s, pack('S a108', 1, $ARGV[0])) or die $!;";
        command.args(words).args(["perl", "-e", &format!("{connect} {script}")]).arg(socket);
        command.stdin(Stdio::piped()).spawn().expect("the system has it")
    }

    fn is_ready(test: &str) -> bool {
        let is_root = geteuid().is_root();
        if !is_root {
            requirement::skip(test, "needs root");
        }
        is_root && requirement::programs(test, &["setpriv", "unshare", "perl"])
    }

    fn listen(scratch: &Scratch) -> (std::path::PathBuf, UnixListener) {
        let socket = scratch.join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        for (path, mode) in [(&socket, 0o666), (&scratch.path().to_owned(), 0o755)] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        (socket, listener)
    }

    #[test]
    fn capabilities_count_in_our_user_namespace() {
        const TEST: &str = "capabilities_count_in_our_user_namespace";
        if !is_ready(TEST) {
            return;
        }
        let scratch = Scratch::new(TEST);
        let (socket, listener) = listen(&scratch);
        for (who, starter, administrates, overrides) in PEERS {
            // Stays until its input ends.
            let mut peer = connected(&socket, starter, "<STDIN>");
            let found = of_peer(&listener.accept().unwrap().0).unwrap().1;
            assert_eq!((found.include(ADMINISTRATION), found.include(OVERRIDE)), (administrates, overrides), "{who}");
            drop(peer.stdin.take());
            assert!(peer.wait().unwrap().success());
        }
    }

    #[test]
    fn a_peer_that_has_ended_has_none() {
        const TEST: &str = "a_peer_that_has_ended_has_none";
        if !is_ready(TEST) {
            return;
        }
        let scratch = Scratch::new(TEST);
        let (socket, listener) = listen(&scratch);
        assert!(connected(&socket, "env", "1").wait().unwrap().success());
        assert_eq!(of_peer(&listener.accept().unwrap().0).unwrap().1, Capabilities::NONE);
    }

    /// A program that lends root's rights runs as root while a user who started it holds the connection.
    #[test]
    fn a_program_executed_later_brings_none() {
        const TEST: &str = "a_program_executed_later_brings_none";
        if !is_ready(TEST) {
            return;
        }
        let scratch = Scratch::new(TEST);
        let (socket, listener) = listen(&scratch);
        let lending = scratch.join("lending");
        run_ok(10, "install", &["-m", "4755", "/bin/cat", &lending.to_string_lossy()]);
        for starter in [PEERS[1].1, PEERS[6].1, PEERS[5].1] {
            let mut peer = connected(&socket, starter, &format!("$^F = 99; exec '{}'", lending.display()));
            let (stream, _) = listener.accept().unwrap();
            let number = system::peer_credentials(stream.as_fd()).unwrap().process;
            let name = || std::fs::read_to_string(format!("/proc/{number}/comm")).unwrap();
            while name().trim() != "lending" {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            assert_eq!(of_peer(&stream).unwrap().1, Capabilities::NONE, "{starter}");
            drop(peer.stdin.take());
            assert!(peer.wait().unwrap().success());
        }
    }
}
