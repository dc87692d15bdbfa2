//! How other commands talk to the process that serves a mount: over an abstract socket named after the mount's device
//! number.
//!
//! | request | answer |
//! |---|---|
//! | `state` | `serving`, or `ending` once the mount is gone |
//! | `sync` | `ok` when everything is durable, or `failed REASON` |
//! | `writable`, `readonly` | the same, after switching |
//! | `do QUESTION` | `records N` and N lines, or `refused ERRNO SENTENCE`; see [`subvolumes`](crate::subvolumes) |
//! | `with QUESTION` | with a descriptor, for what a stream is written to or read from: `report` and words, any number of times, then as to `do` |
//! | `wait` | `waiting`, and when the process is done: `ok` when everything is durable, or `failed REASON` |
//!
//! Lines, in order. Both sides check whose process the other end is: root, or the user who made the mount. Where other
//! users may enter the mount, they may ask questions, each of which has its own conditions, but give no orders.
//! Abstract sockets leave nothing behind when a process dies; they belong to a network namespace, and from another one
//! a mount looks as if nobody served it.

mod parcel;

use crate::Log;
use crate::subvolumes::{self, Answer, Peer, Record, Refusal};
use crate::system;
use parcel::Lines;
use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, pidfd_open};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest line that is read.
const LINE_BYTES: u64 = 4096;
/// The longest line of an answer: paths can be long.
const RECORD_BYTES: u64 = 1 << 24;
/// Connections of users who are not trusted, at a time.
const MOST_GUESTS: usize = 32;
/// How long such a user may say nothing.
const GUEST_PATIENCE: Duration = Duration::from_secs(10);
/// How long the process that served a mount before, under the same device number, may take to end.
const SUCCESSION: Duration = Duration::from_secs(5);

/// What a process that serves a mount can be asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Make everything durable.
    Sync,
    /// Allow writing.
    MakeWritable,
    /// Make everything durable and refuse writing.
    MakeReadOnly,
}

const ORDERS: [(&str, Order); 3] =
    [("sync", Order::Sync), ("writable", Order::MakeWritable), ("readonly", Order::MakeReadOnly)];

/// Carries out orders; the error is a sentence.
pub type Obey = Arc<dyn Fn(Order) -> Result<(), String> + Send + Sync>;

/// Answers questions.
pub type Respond = Arc<dyn Fn(&Peer, &[Vec<u8>]) -> Answer + Send + Sync>;

/// Tells whoever asked how far the work is; false when nobody listens any more.
pub type Report<'a> = &'a mut dyn FnMut(&[Vec<u8>]) -> bool;

/// Answers questions that come with a descriptor.
pub type Carry = Arc<dyn Fn(&Peer, &[Vec<u8>], OwnedFd, Report<'_>) -> Answer + Send + Sync>;

/// What a desk can do.
#[derive(Clone)]
pub struct Powers {
    /// Carries out orders.
    pub obey: Obey,
    /// Answers questions.
    pub respond: Respond,
    /// Answers questions that come with a descriptor.
    pub carry: Carry,
    /// Whether other users than root and the one who made the mount may ask.
    pub for_all: bool,
}

fn address(device: (u32, u32)) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("butterfs/{}:{}", device.0, device.1))
}

/// The serving side.
pub struct Desk {
    shared: Arc<Shared>,
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
    /// Connections of users who are not trusted.
    guests: usize,
}

impl Desk {
    /// Starts listening for orders about the mount with this device number.
    pub fn open(device: (u32, u32), powers: Powers, log: Log) -> io::Result<Desk> {
        let listener = bind(device)?;
        let shared = Arc::new(Shared { powers, log, state: Mutex::default(), changed: Condvar::new() });
        let for_thread = Arc::clone(&shared);
        std::thread::Builder::new().name("control".into()).spawn(move || for_thread.listen(&listener))?;
        Ok(Desk { shared })
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

/// Takes the address for a device number. Who still has it served a mount that is gone, or the number would not be
/// free for this one, and is about to end.
fn bind(device: (u32, u32)) -> io::Result<UnixListener> {
    let end = Instant::now() + SUCCESSION;
    loop {
        match UnixListener::bind_addr(&address(device)?) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(2));
            }
            outcome => return outcome,
        }
    }
}

impl Shared {
    fn listen(self: Arc<Self>, listener: &UnixListener) {
        for stream in listener.incoming() {
            let shared = Arc::clone(&self);
            let served = stream.and_then(|stream| {
                std::thread::Builder::new().name("control".into()).spawn(move || shared.serve(stream).unwrap_or(()))
            });
            if let Err(error) = served {
                (self.log)(&format!("an order could not be taken: {error}"));
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }

    fn serve(&self, stream: UnixStream) -> io::Result<()> {
        let peer = socket_peercred(&stream)?;
        let (uid, gid) = (peer.uid.as_raw(), peer.gid.as_raw());
        if is_trusted(uid, rustix::process::geteuid().as_raw()) {
            return self.talk(&stream, &Peer::privileged(uid, gid));
        }
        if !self.powers.for_all || self.state.lock().guests >= MOST_GUESTS {
            return Ok(());
        }
        let groups = system::peer_groups(stream.as_fd())?;
        stream.set_read_timeout(Some(GUEST_PATIENCE))?;
        stream.set_write_timeout(Some(GUEST_PATIENCE))?;
        self.state.lock().guests += 1;
        let served = self.talk(&stream, &Peer { uid, gid, groups, privileged: false });
        self.state.lock().guests -= 1;
        served
    }

    fn talk(&self, stream: &UnixStream, peer: &Peer) -> io::Result<()> {
        let mut lines = Lines::new(stream);
        let most = if peer.privileged { RECORD_BYTES } else { LINE_BYTES };
        while let Some(line) = lines.next(most as usize)? {
            match line.strip_prefix("with ") {
                Some(question) => self.carry(question, peer, lines.descriptor(), stream)?,
                None => self.answer(&line, peer, stream)?,
            }
        }
        Ok(())
    }

    fn carry(
        &self,
        question: &str,
        peer: &Peer,
        descriptor: Option<OwnedFd>,
        mut stream: &UnixStream,
    ) -> io::Result<()> {
        let answer = match (subvolumes::split(question), descriptor) {
            (Some(words), Some(descriptor)) => {
                let mut report = |words: &[Vec<u8>]| {
                    stream.write_all(format!("report {}\n", subvolumes::joined(words)).as_bytes()).is_ok()
                };
                (self.powers.carry)(peer, &words, descriptor, &mut report)
            }
            _ => Err(Refusal::new(libc::EINVAL, "the question makes no sense")),
        };
        stream.write_all(answer_lines(&answer).as_bytes())
    }

    fn answer(&self, line: &str, peer: &Peer, mut stream: &UnixStream) -> io::Result<()> {
        if let Some(question) = line.strip_prefix("do ") {
            let answer = match subvolumes::split(question) {
                Some(words) => (self.powers.respond)(peer, &words),
                None => Err(Refusal::new(libc::EINVAL, "the question makes no sense")),
            };
            return stream.write_all(answer_lines(&answer).as_bytes());
        }
        let order = ORDERS.iter().find(|(name, _)| *name == line);
        match (line, order) {
            _ if !peer.privileged => stream.write_all(b"failed not permitted\n"),
            (_, Some((_, order))) => stream.write_all(outcome_line(&(self.powers.obey)(*order)).as_bytes()),
            ("state", _) => stream.write_all(if self.state.lock().ending { b"ending\n" } else { b"serving\n" }),
            ("wait", _) => self.report_end(stream),
            _ => stream.write_all(b"failed unknown order\n"),
        }
    }

    fn report_end(&self, mut stream: &UnixStream) -> io::Result<()> {
        self.state.lock().waiting += 1;
        stream.write_all(b"waiting\n")?;
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| state.outcome.is_none());
        let line = state.outcome.as_ref().map(outcome_line).unwrap_or_default();
        drop(state);
        let sent = stream.write_all(line.as_bytes());
        self.state.lock().waiting -= 1;
        self.changed.notify_all();
        sent
    }
}

fn is_trusted(uid: u32, owner: u32) -> bool {
    uid == 0 || uid == owner
}

fn outcome_line(outcome: &Result<(), String>) -> String {
    match outcome {
        Ok(()) => "ok\n".to_owned(),
        Err(why) => format!("failed {}\n", why.replace('\n', " ")),
    }
}

fn answer_lines(answer: &Answer) -> String {
    match answer {
        Ok(records) => {
            let mut text = format!("records {}\n", records.len());
            for record in records {
                text.push_str(&subvolumes::joined(record));
                text.push('\n');
            }
            text
        }
        Err(Refusal { errno, sentence }) => {
            let words = ["refused".to_owned(), errno.to_string(), sentence.clone()];
            subvolumes::joined(&words) + "\n"
        }
    }
}

fn read_line(stream: &mut impl BufRead, most: u64) -> io::Result<Option<String>> {
    let mut line = String::new();
    let len = io::Read::take(stream, most).read_line(&mut line)?;
    Ok((len > 0).then(|| line.trim_end().to_owned()))
}

/// The asking side: a connection to the process that serves a mount.
#[derive(Debug)]
pub struct Caller {
    stream: BufReader<UnixStream>,
    /// The process; none where its number means nothing here.
    process: Option<OwnedFd>,
}

impl Caller {
    /// Finds the process that serves the mount with this device number, made by `user`. `None`: nobody listens.
    pub fn find(device: (u32, u32), user: u32) -> io::Result<Option<Caller>> {
        let stream = match UnixStream::connect_addr(&address(device)?) {
            Ok(stream) => stream,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(None),
            Err(error) => return Err(error),
        };
        let peer = socket_peercred(&stream)?;
        if !is_trusted(peer.uid.as_raw(), user) {
            return Ok(None);
        }
        let process = pidfd_open(peer.pid, PidfdFlags::empty()).ok();
        Ok(Some(Caller { stream: BufReader::new(stream), process }))
    }

    /// Whether the mount is gone, also from every other place it was visible at.
    pub fn is_ending(&mut self) -> io::Result<bool> {
        Ok(self.ask("state")? != "serving")
    }

    /// Gives an order. The inner error is the server's reason.
    pub fn order(&mut self, order: Order) -> io::Result<Result<(), String>> {
        let name = ORDERS.iter().find(|(_, known)| *known == order).map_or("", |(name, _)| *name);
        self.ask(name).map(|answer| outcome(&answer))
    }

    /// Begins to wait for the end. From here on the process does not end without telling.
    pub fn wait(mut self) -> io::Result<Waiter> {
        self.ask("wait")?;
        Ok(Waiter(self))
    }

    fn ask(&mut self, line: &str) -> io::Result<String> {
        self.stream.get_mut().write_all(format!("{line}\n").as_bytes())?;
        self.line(LINE_BYTES)
    }

    fn line(&mut self, most: u64) -> io::Result<String> {
        read_line(&mut self.stream, most)?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Asks a question.
    pub fn question(&mut self, words: &[Vec<u8>]) -> io::Result<Answer> {
        self.stream.get_mut().write_all(format!("do {}\n", subvolumes::joined(words)).as_bytes())?;
        let line = self.line(RECORD_BYTES)?;
        self.rest_of_answer(&line)
    }

    /// Asks a question that a descriptor belongs to; `report` is told how far the work is.
    pub fn question_with(
        &mut self,
        words: &[Vec<u8>],
        descriptor: BorrowedFd<'_>,
        report: &mut dyn FnMut(&[Vec<u8>]),
    ) -> io::Result<Answer> {
        let question = format!("with {}\n", subvolumes::joined(words));
        parcel::send(self.stream.get_ref(), &question, descriptor)?;
        loop {
            let line = self.line(RECORD_BYTES)?;
            match line.strip_prefix("report ") {
                Some(words) => report(&subvolumes::split(words).unwrap_or_default()),
                None => return self.rest_of_answer(&line),
            }
        }
    }

    /// The answer that begins with this line.
    fn rest_of_answer(&mut self, line: &str) -> io::Result<Answer> {
        let malformed = || io::Error::new(io::ErrorKind::InvalidData, "the answer makes no sense");
        let head = subvolumes::split(line).ok_or_else(malformed)?;
        let text: Vec<_> = head.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        let number = |text: &str| text.parse().map_err(|_| malformed());
        match text.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["records", count] => {
                let count = number(count)?;
                let record = |_| subvolumes::split(&self.line(RECORD_BYTES)?).ok_or_else(malformed);
                Ok(Ok((0..count).map(record).collect::<io::Result<Vec<Record>>>()?))
            }
            ["refused", errno, sentence] => Ok(Err(Refusal::new(number(errno)?, sentence))),
            _ => Err(malformed()),
        }
    }
}

/// Waits for the process that serves a mount to end.
#[derive(Debug)]
pub struct Waiter(Caller);

impl Waiter {
    /// Whether the process has ended within this time. The inner error says why not everything is durable.
    pub fn end_within(&mut self, patience: Duration) -> io::Result<Option<Result<(), String>>> {
        let Caller { stream, process } = &mut self.0;
        stream.get_ref().set_read_timeout(Some(patience))?;
        let outcome = match read_line(stream, LINE_BYTES) {
            Ok(Some(answer)) => outcome(&answer),
            Ok(None) => Err("the process that served it ended without a word".to_owned()),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        if let Some(process) = process {
            rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(process, PollFlags::IN)], None))?;
        }
        Ok(Some(outcome))
    }
}

fn outcome(answer: &str) -> Result<(), String> {
    match answer.strip_prefix("failed ") {
        Some(why) => Err(why.to_owned()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device number that no mount has, different in each test.
    fn desk(minor: u32, obey: fn(Order) -> Result<(), String>) -> (Desk, (u32, u32)) {
        let device = (std::process::id(), minor);
        let respond: Respond = Arc::new(|peer, question| match question {
            [verb, ..] if verb == b"refuse" => Err(Refusal::new(7, "not today, %\n")),
            _ => Ok(vec![question.to_vec(), vec![peer.uid.to_string().into_bytes()]]),
        });
        let carry: Carry = Arc::new(|_, question, descriptor, report| {
            assert!(report(&[b"begun".to_vec(), Vec::new()]));
            let written = std::fs::File::from(descriptor).write_all(&question.concat());
            written.map(|()| vec![question.to_vec()]).map_err(|error| Refusal::new(5, error.to_string()))
        });
        let powers = Powers { obey: Arc::new(obey), respond, carry, for_all: true };
        (Desk::open(device, powers, Arc::new(|_| {})).unwrap(), device)
    }

    fn caller(device: (u32, u32)) -> Caller {
        Caller::find(device, rustix::process::geteuid().as_raw()).unwrap().unwrap()
    }

    #[test]
    fn orders_are_carried_out_and_reasons_come_back() {
        let (_desk, device) = desk(1, |order| match order {
            Order::Sync => Ok(()),
            _ => Err("not\ntoday".into()),
        });
        let mut caller = caller(device);
        assert_eq!(caller.order(Order::Sync).unwrap(), Ok(()));
        assert_eq!(caller.order(Order::MakeWritable).unwrap(), Err("not today".into()));
        assert_eq!(caller.ask("nonsense").unwrap(), "failed unknown order");
    }

    #[test]
    fn the_end_reaches_those_who_wait() {
        let (desk, device) = desk(2, |_| Ok(()));
        let mut asker = caller(device);
        let mut waiter = caller(device).wait().unwrap();
        assert!(!asker.is_ending().unwrap());
        assert_eq!(waiter.end_within(Duration::from_millis(1)).unwrap(), None);
        desk.ending();
        assert!(asker.is_ending().unwrap());
        desk.end(Err("disk on fire".into()));
        // This process serves the desk, and does not end.
        waiter.0.process = None;
        assert_eq!(waiter.end_within(Duration::from_secs(5)).unwrap(), Some(Err("disk on fire".into())));
    }

    #[test]
    fn questions_are_answered_with_records() {
        let (_desk, device) = desk(4, |_| Ok(()));
        let mut caller = caller(device);
        let question = vec![b"list".to_vec(), b"a b\n\xff".to_vec(), Vec::new()];
        let me = rustix::process::geteuid().as_raw().to_string().into_bytes();
        assert_eq!(caller.question(&question).unwrap(), Ok(vec![question.clone(), vec![me]]));
        let refusal = Refusal::new(7, "not today, %\n");
        assert_eq!(caller.question(&[b"refuse".to_vec()]).unwrap(), Err(refusal));
        assert_eq!(caller.order(Order::Sync).unwrap(), Ok(()));
    }

    #[test]
    fn a_descriptor_comes_with_a_question() {
        let (_desk, device) = desk(5, |_| Ok(()));
        let mut caller = caller(device);
        let long = vec![b'x'; 10_000];
        let question = vec![b"send".to_vec(), long.clone()];
        for _ in 0..3 {
            let (reader, writer) = std::io::pipe().unwrap();
            let mut reports = Vec::new();
            let answer = caller.question_with(&question, writer.as_fd(), &mut |words| reports.push(words.to_vec()));
            drop(writer);
            assert_eq!(answer.unwrap(), Ok(vec![question.clone()]));
            assert_eq!(reports, [[b"begun".to_vec(), Vec::new()]]);
            let mut written = Vec::new();
            io::Read::read_to_end(&mut { reader }, &mut written).unwrap();
            assert_eq!(written, question.concat());
        }
        caller.stream.get_mut().write_all(b"with nothing\n").unwrap();
        assert!(caller.line(LINE_BYTES).unwrap().starts_with("refused 22 "));
        assert_eq!(caller.order(Order::Sync).unwrap(), Ok(()));
    }

    #[test]
    fn nobody_there_is_no_error() {
        assert!(Caller::find((std::process::id(), 3), 0).unwrap().is_none());
    }
}
