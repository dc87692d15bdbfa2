//! The serving side.

use super::address::Bound;
use super::parcel::Lines;
use super::{
    Asked, GUEST_DELAY, GUEST_PATIENCE, LINE_BYTES, MOST_DESCRIPTORS, MOST_GUESTS, MOST_OF_GUESTS_DESCRIPTORS,
    MOST_OF_ONE_GUEST, ORDERS, Powers, RECORD_BYTES, VERSION, is_trusted,
};
use crate::Log;
use crate::credentials;
use crate::subvolumes::{self, Capabilities, Peer, Record, Refusal};
use crate::system::{self, PeerCredentials};
use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::HashMap;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of an answer that are sent at once.
const BUFFER_BYTES: usize = 1 << 16;

/// See the [module](self).
pub struct Desk {
    shared: Arc<Shared>,
    // Its name goes with the desk.
    _bound: Bound,
}

struct Shared {
    powers: Powers,
    log: Log,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    ending: bool,
    outcome: Option<Result<(), String>>,
    /// Those who wait for the outcome and have not been told.
    waiting: usize,
    /// Connections of users who are not privileged, by user.
    guests: HashMap<u32, usize>,
}

impl Desk {
    /// Starts listening for orders about the mount with this device number.
    pub fn open(device: (u32, u32), powers: Powers, log: Log) -> io::Result<Desk> {
        let (bound, listener) = Bound::bind(device, powers.for_all)?;
        let shared = Arc::new(Shared { powers, log, state: Mutex::default(), changed: Condvar::new() });
        let for_thread = Arc::clone(&shared);
        std::thread::Builder::new().name("control".into()).spawn(move || for_thread.listen(&listener))?;
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

/// One of the connections that a user who is not privileged may have.
struct Guest {
    shared: Arc<Shared>,
    uid: u32,
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        if let Some(count) = state.guests.get_mut(&self.uid) {
            *count -= 1;
        }
        state.guests.retain(|_, count| *count > 0);
    }
}

impl Shared {
    fn listen(self: Arc<Self>, listener: &UnixListener) {
        for stream in listener.incoming() {
            if let Err(error) = stream.and_then(|stream| self.admit(stream)) {
                (self.log)(&format!("an order could not be taken: {error}"));
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }

    /// Serves a connection on a thread of its own, if whoever made it may have one more.
    fn admit(self: &Arc<Self>, stream: UnixStream) -> io::Result<()> {
        let (PeerCredentials { uid, gid, .. }, capabilities) = credentials::of_peer(&stream)?;
        let guest = match capabilities.include(Capabilities::ADMINISTRATION) {
            true => None,
            false => match self.guest(uid) {
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
            let is_ready = if guest.is_some() { set_patience(&stream) } else { Ok(()) };
            let peer = is_ready.and_then(|()| {
                let groups = system::peer_groups(stream.as_fd())?;
                Ok(Peer { uid, gid, groups, capabilities })
            });
            // An error is the peer's: it went, or took too long.
            let _ = peer.and_then(|peer| shared.talk(&stream, &peer));
            drop(guest);
        };
        std::thread::Builder::new().name("control".into()).spawn(serve).map(drop)
    }

    fn guest(self: &Arc<Self>, uid: u32) -> Result<Guest, Refusal> {
        if !self.powers.for_all && !is_trusted(uid, rustix::process::geteuid().as_raw()) {
            let sentence = "only root and the user who mounted the filesystem may ask";
            return Err(Refusal::new(libc::EACCES, sentence));
        }
        let mut state = self.state.lock();
        let (all, own) = (state.guests.values().sum::<usize>(), state.guests.get(&uid).copied().unwrap_or(0));
        if all >= MOST_GUESTS || own >= MOST_OF_ONE_GUEST {
            return Err(Refusal::new(libc::EAGAIN, "too many commands ask at the same time; try again later"));
        }
        *state.guests.entry(uid).or_default() += 1;
        Ok(Guest { shared: Arc::clone(self), uid })
    }

    fn talk(&self, stream: &UnixStream, peer: &Peer) -> io::Result<()> {
        let (bytes, descriptors) = match peer.has(Capabilities::ADMINISTRATION) {
            true => (RECORD_BYTES, MOST_DESCRIPTORS),
            false => (LINE_BYTES, MOST_OF_GUESTS_DESCRIPTORS),
        };
        let mut lines = Lines::new(stream, descriptors);
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
fn end_line(end: &Result<(), Refusal>) -> String {
    match end {
        Ok(()) => "done\n".to_owned(),
        Err(Refusal { errno, sentence }) => {
            subvolumes::joined(&["refused".to_owned(), errno.to_string(), sentence.clone()]) + "\n"
        }
    }
}
