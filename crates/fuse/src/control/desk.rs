//! The serving side.

use super::address::{Bound, Whom};
use super::admission::Admission;
use super::parcel::Lines;
use super::{
    Asked, GUEST_DELAY, GUEST_PATIENCE, LINE_BYTES, MOST_DESCRIPTORS, MOST_OF_GUESTS_DESCRIPTORS, ORDERS, Powers,
    RECORD_BYTES, VERSION, proxy,
};
use crate::Log;
use crate::credentials;
use crate::subvolumes::{self, Capabilities, Peer, Record, Refusal};
use crate::system::{self, PeerCredentials};
use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Child;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Bytes of an answer that are sent at once.
const BUFFER_BYTES: usize = 1 << 16;
/// The longest line about a peer, who can be in 65,536 groups.
const PEER_BYTES: usize = 1 << 20;
/// How long it takes until something is tried again that did not work.
const PAUSE: Duration = Duration::from_millis(100);

/// See the [module](self).
pub struct Desk {
    shared: Arc<Shared>,
    // Its name goes with the desk.
    _bound: Bound,
}

struct Shared {
    device: (u32, u32),
    powers: Powers,
    log: Log,
    admission: Arc<Admission>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    ending: bool,
    outcome: Option<Result<(), String>>,
    /// Those who wait for the outcome and have not been told.
    waiting: usize,
    /// Where ordinary users connect; none once the desk is gone.
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

impl Desk {
    /// Starts listening for orders about the mount with this device number.
    pub fn open(device: (u32, u32), powers: Powers, log: Log) -> io::Result<Desk> {
        let mut listener = None;
        let whom = if powers.for_all { Whom::Owners } else { Whom::OwnersAlone };
        let bound = Bound::bind(device, whom, powers.for_all, |fresh| {
            listener = Some(fresh);
            Ok(())
        })?;
        let (state, changed, admission) = (Mutex::default(), Condvar::new(), Admission::for_owners());
        let shared = Arc::new(Shared { device, powers, log, admission, state, changed });
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
        Ok(Desk { shared, _bound: bound })
    }

    /// The mount is gone; the rest is being made durable.
    pub fn ending(&self) {
        self.shared.state.lock().ending = true;
    }

    /// Tells everybody who waits how it ended, and returns when they know.
    pub fn end(&self, outcome: Result<(), String>) {
        let mut state = self.shared.state.lock();
        state.outcome = Some(outcome);
        self.shared.changed.notify_all();
        // A listener that does not read must not keep the process.
        self.shared.changed.wait_while_for(&mut state, |state| state.waiting > 0, Duration::from_secs(2));
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let for_guests = self.shared.state.lock().for_guests.take();
        drop(for_guests);
    }
}

/// Takes the connections of ordinary users from the proxy; starts another one when it has ended, until the desk is gone.
fn keep_proxy(shared: &Weak<Shared>, mut link: UnixStream) {
    loop {
        // It ends with an error or without one, and that is all there is to know.
        let _ = take_connections(shared, &link);
        std::thread::sleep(PAUSE);
        let Some(shared) = shared.upgrade().filter(|shared| shared.state.lock().for_guests.take().is_some()) else {
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
    let mut lines = Lines::new(link, 1);
    while let Some(line) = lines.next(LINE_BYTES as usize)? {
        let Some(shared) = shared.upgrade() else { return Ok(()) };
        match (line.strip_prefix("trouble "), lines.descriptors(1).and_then(|mut all| all.pop())) {
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
        self.state.lock().for_guests = Some(for_guests);
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
                    let _ = stream
                        .set_nonblocking(true)
                        .and_then(|()| (&stream).write_all(end_line(&Err(refusal)).as_bytes()));
                    return Ok(());
                }
            },
        };
        let shared = Arc::clone(self);
        let serve = move || {
            let peer = system::peer_groups(stream.as_fd()).map(|groups| Peer { uid, gid, groups, capabilities });
            // An error is the peer's: it went, or took too long.
            let _ = peer.and_then(|peer| shared.talk(&stream, Lines::new(&stream, MOST_DESCRIPTORS), &peer));
            drop(guest);
        };
        std::thread::Builder::new().name("control".into()).spawn(serve).map(drop)
    }

    /// Serves a connection that the proxy has let in.
    fn serve_proxied(self: &Arc<Self>, stream: UnixStream) -> io::Result<()> {
        let shared = Arc::clone(self);
        let serve = move || {
            let mut lines = Lines::new(&stream, MOST_DESCRIPTORS);
            let peer = lines.next(PEER_BYTES).ok().flatten().and_then(|line| proxy::peer_of(&line));
            // An error is the peer's, as above.
            let _ = peer.map(|peer| shared.talk(&stream, lines, &peer));
        };
        std::thread::Builder::new().name("control".into()).spawn(serve).map(drop)
    }

    fn talk(&self, stream: &UnixStream, mut lines: Lines<'_>, peer: &Peer) -> io::Result<()> {
        let (bytes, descriptors) = match peer.has(Capabilities::ADMINISTRATION) {
            true => (RECORD_BYTES, MOST_DESCRIPTORS),
            false => {
                set_patience(stream)?;
                (LINE_BYTES, MOST_OF_GUESTS_DESCRIPTORS)
            }
        };
        lines.limit(descriptors);
        let mut version = 0;
        while let Some(line) = lines.next(bytes as usize)? {
            let (head, rest) = line.split_once(' ').unwrap_or((&line, ""));
            match head {
                "hello" => {
                    version = rest.parse().unwrap_or(0);
                    (&*stream).write_all(format!("butterfs {VERSION}\n").as_bytes())?;
                }
                "do" | "with" => {
                    let end = match version {
                        VERSION => self.question(&line, peer, &mut lines, stream)?,
                        other => Err(wrong_version(other)),
                    };
                    (&*stream).write_all(end_line(&end).as_bytes())?;
                }
                _ => self.order(&line, peer, stream)?,
            }
        }
        Ok(())
    }

    /// Answers a question but for the end of the answer, which is returned.
    fn question(
        &self,
        line: &str,
        peer: &Peer,
        lines: &mut Lines<'_>,
        stream: &UnixStream,
    ) -> io::Result<Result<(), Refusal>> {
        let malformed = || Err(Refusal::new(libc::EINVAL, "the question makes no sense"));
        let mut parts = line.splitn(3, ' ');
        let (verb, count) = (parts.next(), parts.next().and_then(|count| count.parse().ok()));
        let Some((words, count)) = parts.next().and_then(subvolumes::split).zip(count) else { return Ok(malformed()) };
        let Some(mut places) = lines.descriptors(count) else { return Ok(malformed()) };
        let mut reader = Reader::new(stream, !peer.has(Capabilities::ADMINISTRATION));
        if verb == Some("do") {
            let asked = Asked { peer, words: &words, places };
            let end = (self.powers.respond)(asked, &mut |record| reader.record(&record));
            reader.flush()?;
            return Ok(end);
        }
        if places.is_empty() {
            return Ok(malformed());
        }
        let carried = places.remove(0);
        let asked = Asked { peer, words: &words, places };
        let answer = self.carry(asked, carried, &mut reader);
        let end = answer.and_then(|records| records.iter().try_for_each(|record| reader.record(record)));
        reader.flush()?;
        Ok(end)
    }

    fn carry(&self, asked: Asked<'_>, carried: OwnedFd, reader: &mut Reader<'_>) -> Result<Vec<Record>, Refusal> {
        let mut report = |words: &[Vec<u8>]| {
            reader.line("report", words);
            reader.flush().is_ok()
        };
        (self.powers.carry)(asked, carried, &mut report)
    }

    fn order(&self, line: &str, peer: &Peer, mut stream: &UnixStream) -> io::Result<()> {
        let order = ORDERS.iter().find(|(name, _)| *name == line);
        match (line, order) {
            ("state", _) => stream.write_all(if self.state.lock().ending { b"ending\n" } else { b"serving\n" }),
            _ if !peer.has(Capabilities::ADMINISTRATION) => stream.write_all(b"failed not permitted\n"),
            (_, Some((_, order))) => stream.write_all(outcome_line(&(self.powers.obey)(*order)).as_bytes()),
            ("wait", _) => self.report_end(stream),
            _ => stream.write_all(b"failed unknown order\n"),
        }
    }

    fn report_end(&self, mut stream: &UnixStream) -> io::Result<()> {
        self.state.lock().waiting += 1;
        let told = stream.write_all(b"waiting\n").and_then(|()| {
            let mut state = self.state.lock();
            self.changed.wait_while(&mut state, |state| state.outcome.is_none());
            let line = state.outcome.as_ref().map(outcome_line).unwrap_or_default();
            drop(state);
            stream.write_all(line.as_bytes())
        });
        self.state.lock().waiting -= 1;
        self.changed.notify_all();
        told
    }
}

fn set_patience(stream: &UnixStream) -> io::Result<()> {
    stream.set_read_timeout(Some(GUEST_PATIENCE))?;
    stream.set_write_timeout(Some(GUEST_PATIENCE))
}

/// Whoever reads an answer, which goes out in pieces. Once they are gone or too slow, nothing more is wanted.
struct Reader<'a> {
    stream: &'a UnixStream,
    buffer: String,
    /// How long the answer may still wait for them; none where they may take their time.
    patience: Option<Duration>,
    is_lost: bool,
}

impl<'a> Reader<'a> {
    fn new(stream: &'a UnixStream, is_guest: bool) -> Reader<'a> {
        Reader { stream, buffer: String::new(), patience: is_guest.then_some(GUEST_DELAY), is_lost: false }
    }

    fn line(&mut self, kind: &str, words: &[Vec<u8>]) {
        self.buffer.push_str(kind);
        self.buffer.push(' ');
        self.buffer.push_str(&subvolumes::joined(words));
        self.buffer.push('\n');
    }

    fn record(&mut self, record: &[Vec<u8>]) -> Result<(), Refusal> {
        self.line("record", record);
        if self.buffer.len() < BUFFER_BYTES && !self.is_gone() {
            return Ok(());
        }
        self.flush().map_err(|error| Refusal::new(libc::EPIPE, format!("the answer is not read: {error}")))
    }

    /// Cheap enough to be asked for each record.
    fn is_gone(&self) -> bool {
        let mut state = [PollFd::new(self.stream, PollFlags::empty())];
        poll(&mut state, Some(&Default::default())).is_ok_and(|ready| ready > 0)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.is_lost {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let began = Instant::now();
        let buffer = std::mem::take(&mut self.buffer);
        let mut written = Ok(());
        // A piece at a time, so that a slow reader's time is counted.
        for piece in buffer.as_bytes().chunks(BUFFER_BYTES) {
            let is_late = self.patience.is_some_and(|patience| began.elapsed() > patience);
            written = if is_late { Err(io::ErrorKind::TimedOut.into()) } else { (&mut &*self.stream).write_all(piece) };
            if written.is_err() {
                self.is_lost = true;
                break;
            }
        }
        self.patience = self.patience.map(|patience| patience.saturating_sub(began.elapsed()));
        written
    }
}

fn wrong_version(theirs: u32) -> Refusal {
    let sentence = format!(
        "the command is another version of butterfs (it speaks version {theirs} of the protocol, the process that serves the \
         mount {VERSION})"
    );
    Refusal::new(libc::EPROTO, sentence)
}

fn outcome_line(outcome: &Result<(), String>) -> String {
    match outcome {
        Ok(()) => "ok\n".to_owned(),
        Err(why) => format!("failed {}\n", why.replace('\n', " ")),
    }
}

/// The last line of an answer.
pub(super) fn end_line(end: &Result<(), Refusal>) -> String {
    match end {
        Ok(()) => "done\n".to_owned(),
        Err(Refusal { errno, sentence }) => {
            subvolumes::joined(&["refused".to_owned(), errno.to_string(), sentence.clone()]) + "\n"
        }
    }
}
