//! The serving side.

use super::address::{Bound, Whom};
use super::admission::Admission;
use super::conversation::{Conversation, respond};
use super::parcel::Incoming;
use super::{Powers, proxy};
use crate::Log;
use crate::credentials;
use crate::subvolumes::{Capabilities, Peer};
use crate::system::{self, PeerCredentials};
use butterfs_control::{LINE_BYTES, MOST_DESCRIPTORS, Response};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Child;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The longest line about a peer, who can be in 65,536 groups.
const PEER_BYTES: usize = 1 << 20;
/// How long it takes until something is tried again that did not work.
const PAUSE: Duration = Duration::from_millis(100);

/// See the [module](self).
pub struct ControlServer {
    shared: Arc<Shared>,
    // Its name goes with the server.
    _bound: Bound,
}

/// The state that the threads of a server share.
pub(super) struct Shared {
    device: (u32, u32),
    pub(super) powers: Powers,
    log: Log,
    admission: Arc<Admission>,
    status: Mutex<ServerStatus>,
    changed: Condvar,
}

#[derive(Default)]
struct ServerStatus {
    ending: bool,
    outcome: Option<Result<(), String>>,
    /// Those who wait for the outcome and have not been told.
    waiting: usize,
    /// The socket for ordinary users; none once the server is gone.
    for_guests: Option<ForGuests>,
}

/// The name where ordinary users connect, and the proxy that takes their connections.
struct ForGuests {
    _bound: Bound,
    link: UnixStream,
    program: Option<Child>,
}

impl Drop for ForGuests {
    fn drop(&mut self) {
        // The proxy ends when the link does. It may be kept from that by a user's filesystem; then nobody waits for it.
        let _ = self.link.shutdown(Shutdown::Both);
        let _ = self.program.as_mut().map(Child::try_wait);
    }
}

impl ControlServer {
    /// Starts listening for orders about the mount with this device number.
    pub fn open(device: (u32, u32), powers: Powers, log: Log) -> io::Result<ControlServer> {
        let mut listener = None;
        let whom = if powers.for_all { Whom::Owners } else { Whom::OwnersAlone };
        let bound = Bound::bind(device, whom, powers.for_all, |fresh| {
            listener = Some(fresh);
            Ok(())
        })?;
        let (status, changed, admission) = (Mutex::default(), Condvar::new(), Admission::for_owners());
        let shared = Arc::new(Shared { device, powers, log, admission, status, changed });
        if shared.powers.for_all {
            let link = shared.start_proxy()?;
            let for_guests = Arc::downgrade(&shared);
            std::thread::Builder::new().name("guests".into()).spawn(move || keep_proxy(&for_guests, link))?;
        }
        let for_thread = Arc::clone(&shared);
        let listen = move || {
            if let Some(listener) = listener {
                for_thread.listen(&listener);
            }
        };
        std::thread::Builder::new().name("control".into()).spawn(listen)?;
        Ok(ControlServer { shared, _bound: bound })
    }

    /// The mount is gone; the rest is being made durable.
    pub fn ending(&self) {
        self.shared.status.lock().ending = true;
    }

    /// Tells everybody who waits how it ended, and returns when they know.
    pub fn end(&self, outcome: Result<(), String>) {
        let mut status = self.shared.status.lock();
        status.outcome = Some(outcome);
        self.shared.changed.notify_all();
        // A listener that does not read must not keep the process.
        self.shared.changed.wait_while_for(&mut status, |status| status.waiting > 0, Duration::from_secs(2));
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        let for_guests = self.shared.status.lock().for_guests.take();
        drop(for_guests);
    }
}

/// Takes the connections of ordinary users from the proxy; starts another one when it has ended, until the server is
/// gone.
fn keep_proxy(shared: &Weak<Shared>, mut link: UnixStream) {
    loop {
        // It ends with an error or without one, and that is all there is to know.
        let _ = take_connections(shared, &link);
        std::thread::sleep(PAUSE);
        let Some(shared) = shared.upgrade().filter(|shared| shared.status.lock().for_guests.take().is_some()) else {
            return;
        };
        (shared.log)("the process that takes the connections of ordinary users has ended; another one is started");
        match shared.start_proxy() {
            Ok(another) => link = another,
            Err(error) => {
                (shared.log)(&format!("ordinary users cannot ask any more: {error}"));
                return;
            }
        }
    }
}

fn take_connections(shared: &Weak<Shared>, link: &UnixStream) -> io::Result<()> {
    let mut incoming = Incoming::new(link, 1);
    while let Some(line) = incoming.line(LINE_BYTES)? {
        let Some(shared) = shared.upgrade() else { return Ok(()) };
        match (line.strip_prefix("trouble "), incoming.descriptors(1).and_then(|mut all| all.pop())) {
            (Some(sentence), _) => (shared.log)(sentence),
            (None, Some(stream)) => shared.serve_proxied(UnixStream::from(stream))?,
            (None, None) => {}
        }
    }
    Ok(())
}

impl Shared {
    /// Starts a proxy for ordinary users; returns this end of the link to it.
    fn start_proxy(&self) -> io::Result<UnixStream> {
        let (link, theirs) = UnixStream::pair()?;
        let mut program = None;
        let bound = Bound::bind(self.device, Whom::Guests, true, |listener| {
            // Before anybody can connect, and until they are let in.
            system::refuse_descriptors(listener.as_fd(), true);
            program = self.powers.proxy.start((listener, theirs), self.device)?;
            Ok(())
        })?;
        let for_guests = ForGuests { _bound: bound, link: link.try_clone()?, program };
        self.status.lock().for_guests = Some(for_guests);
        Ok(link)
    }

    fn listen(self: Arc<Self>, listener: &UnixListener) {
        for stream in listener.incoming() {
            if let Err(error) = stream.and_then(|stream| self.serve(stream)) {
                (self.log)(&format!("an order could not be taken: {error}"));
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Serves a connection on a thread of its own, if whoever made it may have one more.
    fn serve(self: &Arc<Self>, stream: UnixStream) -> io::Result<()> {
        let (PeerCredentials { uid, gid, .. }, capabilities) = credentials::of_peer(&stream)?;
        let guest = match capabilities.include(Capabilities::ADMINISTRATION) {
            true => None,
            false => match self.admission.admit(uid) {
                Ok(guest) => Some(guest),
                Err(refusal) => {
                    // A fresh socket has room for it; whoever does not read it learns nothing.
                    let _ = stream.set_nonblocking(true).and_then(|()| respond(&stream, &Response::Refused(refusal)));
                    return Ok(());
                }
            },
        };
        let shared = Arc::clone(self);
        let serve = move || {
            let peer = system::peer_groups(stream.as_fd()).map(|groups| Peer { uid, gid, groups, capabilities });
            // An error is the peer's: it went, or took too long.
            let _ = peer.and_then(|peer| shared.talk(&stream, Incoming::new(&stream, MOST_DESCRIPTORS), &peer));
            drop(guest);
        };
        std::thread::Builder::new().name("control".into()).spawn(serve).map(drop)
    }

    /// Serves a connection that the proxy has let in.
    fn serve_proxied(self: &Arc<Self>, stream: UnixStream) -> io::Result<()> {
        let shared = Arc::clone(self);
        let serve = move || {
            let mut incoming = Incoming::new(&stream, MOST_DESCRIPTORS);
            let peer = incoming.line(PEER_BYTES).ok().flatten().and_then(|line| proxy::peer_of(&line));
            // An error is the peer's, as above.
            let _ = peer.map(|peer| shared.talk(&stream, incoming, &peer));
        };
        std::thread::Builder::new().name("control".into()).spawn(serve).map(drop)
    }

    fn talk(&self, stream: &UnixStream, incoming: Incoming<'_>, peer: &Peer) -> io::Result<()> {
        Conversation::new(self, stream, incoming, peer)?.run()
    }

    /// Whether the mount is gone.
    pub(super) fn state(&self) -> Response {
        if self.status.lock().ending { Response::Ending } else { Response::Serving }
    }

    /// Tells how it ends, once it does.
    pub(super) fn report_end(&self, respond: impl Fn(Response) -> io::Result<()>) -> io::Result<()> {
        self.status.lock().waiting += 1;
        let told = respond(Response::Waiting).and_then(|()| {
            let mut status = self.status.lock();
            self.changed.wait_while(&mut status, |status| status.outcome.is_none());
            let end = status.outcome.as_ref().map(Response::of_outcome);
            drop(status);
            end.map_or(Ok(()), respond)
        });
        self.status.lock().waiting -= 1;
        self.changed.notify_all();
        told
    }
}
