//! A process of its own between ordinary users and the serving process. It takes their connections, says who is at the
//! other end, and passes on bytes both ways, and of descriptors only what is [harmless](super::descriptors).
//!
//! # Why
//! A client can send descriptors of a filesystem whose server, its own, never answers. Whoever lets go of such a
//! descriptor may wait for ever, cannot be killed, and keeps everything that is open in the same process. That is so
//! also when the receiver has no room for descriptors, and when it never reads them and closes the socket or ends. What
//! a client has sent can therefore only be held by a process that nobody needs.
//!
//! # Invariants
//! 1. Sockets that ordinary users can connect to, or have connected to, and what they send are in no process but this
//!    one.
//! 2. This process has nothing open that others wait for. It ends with the serving process, and nobody waits for that.
//! 3. A connection that waits for ever is a thread here, of which there are at most [`MOST_CONNECTIONS`]. Where the
//!    kernel knows SO_PASSRIGHTS (Linux 6.16), only connections that were let in can, so a user has at most
//!    [`MOST_OF_ONE_GUEST`](super::MOST_OF_ONE_GUEST).
//!
//! # To the serving process
//! Over the link, a line for each connection with one descriptor, a socket; or a line of the log:
//!
//! | line | |
//! |---|---|
//! | `connection` | comes with the socket, on which `peer UID GID CAPABILITIES GROUP,…` comes first, then what the client says |
//! | `trouble SENTENCE` | for the log |

use super::{GUEST_PATIENCE, MOST_CONNECTIONS, admission::Admission, descriptors, parcel};
use crate::credentials;
use crate::subvolumes::{Capabilities, Peer};
use crate::system::{self, PeerCredentials};
use butterfs_control::{Refusal, Response};
use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// How long answers that are under way may take when the serving process has ended.
const FAREWELL: Duration = Duration::from_secs(2);
/// How long no connection is taken after one could not be.
const PAUSE: Duration = Duration::from_millis(100);
/// The polling interval while no connection can be accepted.
const PAUSE_BETWEEN_LOOKS: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The proxy that accepts connections for the serving process.
#[derive(Clone, Debug)]
pub enum Proxy {
    /// A program that calls [`run`] with its arguments after the first, which is `name`.
    Program {
        /// The program.
        program: PathBuf,
        /// The name.
        name: OsString,
    },
    /// A thread of this process, for where nobody can connect who means harm.
    Thread,
}

impl Proxy {
    /// Hands over the listener and one end of the link.
    pub(super) fn start(
        &self,
        (listener, link): (UnixListener, UnixStream),
        device: (u32, u32),
    ) -> io::Result<Option<Child>> {
        match self {
            Proxy::Program { program, name } => {
                let mut command = Command::new(program);
                command.arg0(name).arg(format!("{}:{}", device.0, device.1));
                command.stdin(OwnedFd::from(listener)).stdout(OwnedFd::from(link)).stderr(Stdio::null());
                // What ends the serving process by a terminal is not to end this one first.
                command.current_dir("/").process_group(0);
                command.spawn().map(Some)
            }
            Proxy::Thread => {
                let relay = Relay::new(device, link)?;
                std::thread::Builder::new().name("proxy".into()).spawn(move || relay.serve(&listener))?;
                Ok(None)
            }
        }
    }
}

/// The work of [`Proxy::Program`], with the listener as its standard input and the link as its standard output, until
/// the serving process has ended.
pub fn run(arguments: &[OsString]) -> io::Result<()> {
    let malformed = || io::Error::from(io::ErrorKind::InvalidInput);
    let [device] = arguments else { return Err(malformed()) };
    let (major, minor) = device.to_str().and_then(|device| device.split_once(':')).ok_or_else(malformed)?;
    let number = |text: &str| text.parse().map_err(|_| malformed());
    let device = (number(major)?, number(minor)?);
    // Cannot fail, and it is only for people who look at processes.
    let _ = rustix::thread::set_name(c"butterfs-proxy");
    // It ends with the serving process, which has to tell how it ended.
    system::hold_termination();
    let listener = UnixListener::from(rustix::stdio::stdin().try_clone_to_owned()?);
    let link = UnixStream::from(rustix::stdio::stdout().try_clone_to_owned()?);
    Relay::new(device, link)?.serve(&listener);
    Ok(())
}

struct Relay {
    device: (u32, u32),
    link: UnixStream,
    admission: Arc<Admission>,
    /// Stands for a descriptor that is not passed on: nothing that is asked can be about it.
    stand_in: OwnedFd,
    /// Threads that have a client's socket.
    connections: Mutex<usize>,
    ended: Condvar,
}

/// A client's socket. Letting go of it may wait for ever, so it has a thread of its own.
struct Connection {
    stream: Option<UnixStream>,
    relay: Arc<Relay>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        // What the client has sent and nobody has read goes here.
        drop(self.stream.take());
        *self.relay.connections.lock() -= 1;
        self.relay.ended.notify_all();
    }
}

impl Relay {
    fn new(device: (u32, u32), link: UnixStream) -> io::Result<Arc<Relay>> {
        let stand_in = eventfd(0, EventfdFlags::CLOEXEC)?;
        let (connections, ended) = (Mutex::new(0), Condvar::new());
        Ok(Arc::new(Relay { device, link, admission: Admission::for_all(), stand_in, connections, ended }))
    }

    /// Takes connections until the serving process has ended.
    fn serve(self: Arc<Self>, listener: &UnixListener) {
        while self.waits_for_more(listener) {
            if let Err(error) = listener.accept().and_then(|(stream, _)| self.take(stream)) {
                let line = format!("trouble an order could not be taken: {error}\n");
                // Without the serving process it is over anyway.
                let _ = (&self.link).write_all(line.as_bytes());
                std::thread::sleep(PAUSE);
            }
        }
        let mut connections = self.connections.lock();
        self.ended.wait_while_for(&mut connections, |connections| *connections > 0, FAREWELL);
    }

    /// Waits for a connection that there is a thread for; false when the serving process has ended.
    fn waits_for_more(&self, listener: &UnixListener) -> bool {
        loop {
            let is_full = *self.connections.lock() >= MOST_CONNECTIONS;
            let mut ready = [PollFd::new(&self.link, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
            let (watched, patience) = if is_full { (1, Some(&PAUSE_BETWEEN_LOOKS)) } else { (2, None) };
            let waited = poll(&mut ready[..watched], patience);
            // The serving process says nothing over the link.
            if !ready[0].revents().is_empty() {
                return false;
            }
            if waited.is_ok() && !ready[1].revents().is_empty() {
                return true;
            }
        }
    }

    fn take(self: &Arc<Self>, stream: UnixStream) -> io::Result<()> {
        *self.connections.lock() += 1;
        let mut connection = Connection { stream: Some(stream), relay: Arc::clone(self) };
        let serve = move || {
            if let Some(stream) = &connection.stream {
                // An error is the client's: it went, or took too long.
                let _ = connection.relay.serve_client(stream);
            }
            drop(connection.stream.take());
        };
        std::thread::Builder::new().name("client".into()).spawn(serve).map(drop)
    }

    /// Serves a connection, if whoever made it may have one more.
    fn serve_client(&self, client: &UnixStream) -> io::Result<()> {
        client.set_write_timeout(Some(GUEST_PATIENCE))?;
        let (PeerCredentials { uid, gid, .. }, capabilities) = credentials::of_peer(client)?;
        let is_trusted = capabilities.include(Capabilities::ADMINISTRATION);
        let admitted = if is_trusted { Ok(None) } else { self.admission.admit(uid).map(Some) };
        let _guest = match admitted {
            Ok(guest) => guest,
            Err(refusal) => return refuse(client, refusal),
        };
        let peer = Peer { uid, gid, groups: system::peer_groups(client.as_fd())?, capabilities };
        let (ours, theirs) = UnixStream::pair()?;
        parcel::send(&self.link, b"connection\n", &[theirs.as_fd()])?;
        drop(theirs);
        (&ours).write_all(peer_line(&peer).as_bytes())?;
        system::refuse_descriptors(client.as_fd(), false);
        self.pass_on(client, &ours, is_trusted);
        Ok(())
    }

    /// Passes on what both sides say, until one of them is gone.
    fn pass_on(&self, client: &UnixStream, server: &UnixStream, is_trusted: bool) {
        std::thread::scope(|scope| {
            let answers = std::thread::Builder::new().name("answers".into());
            let answers = answers.spawn_scoped(scope, || {
                // An error is a client that is gone or too slow.
                let _ = pass_answers(server, client);
                let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
            });
            if answers.is_ok() && self.pass_questions(client, server, is_trusted).is_ok() {
                // A client that says no more may still listen.
                let _ = server.shutdown(Shutdown::Write);
                let mut state = [PollFd::new(client, PollFlags::empty())];
                let _ = rustix::io::retry_on_intr(|| poll(&mut state, None));
            }
            let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
        });
    }

    fn pass_questions(&self, client: &UnixStream, server: &UnixStream, is_trusted: bool) -> io::Result<()> {
        loop {
            let (bytes, descriptors) = parcel::receive(client)?;
            if bytes.is_empty() {
                return Ok(());
            }
            let passed = descriptors.iter().map(|descriptor| self.vetted(descriptor, is_trusted)).collect::<Vec<_>>();
            parcel::send(server, &bytes, &passed)?;
        }
    }

    /// A descriptor where it is harmless, and the stand-in otherwise.
    fn vetted<'d>(&'d self, descriptor: &'d OwnedFd, is_trusted: bool) -> BorrowedFd<'d> {
        let is_path = descriptors::is_path_on(descriptor, self.device);
        let is_harmless = is_path || is_trusted && descriptors::is_pipe(descriptor);
        if is_harmless { descriptor.as_fd() } else { self.stand_in.as_fd() }
    }
}

fn refuse(mut client: &UnixStream, refusal: Refusal) -> io::Result<()> {
    client.write_all(format!("{}\n", Response::Refused(refusal)).as_bytes())
}

fn pass_answers(mut server: &UnixStream, mut client: &UnixStream) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    loop {
        match server.read(&mut buffer)? {
            0 => return Ok(()),
            len => client.write_all(&buffer[..len])?,
        }
    }
}

/// The identity of a client, as a line.
fn peer_line(peer: &Peer) -> String {
    let groups: Vec<String> = peer.groups.iter().map(u32::to_string).collect();
    format!("peer {} {} {} {}\n", peer.uid, peer.gid, peer.capabilities.bits(), groups.join(","))
}

/// Reads such a line.
pub(super) fn peer_of(line: &str) -> Option<Peer> {
    let mut words = line.strip_prefix("peer ")?.split(' ');
    let (uid, gid) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let capabilities = Capabilities::from_bits(words.next()?.parse().ok()?);
    let groups = words.next().unwrap_or_default().split(',').filter(|group| !group.is_empty());
    let groups = groups.map(|group| group.parse().ok()).collect::<Option<_>>()?;
    Some(Peer { uid, gid, groups, capabilities })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_survive() {
        for groups in [vec![], vec![7], vec![1, 2, u32::MAX]] {
            let peer = Peer { uid: 5, gid: u32::MAX, groups, capabilities: Capabilities::ADMINISTRATION };
            assert_eq!(peer_of(peer_line(&peer).trim_end()), Some(peer));
        }
        assert_eq!(peer_of("peer 1 2"), None);
        assert_eq!(peer_of("peer 1 2 3 x"), None);
    }
}
