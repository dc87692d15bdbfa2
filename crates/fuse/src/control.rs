//! How other commands talk to the process that serves a mount: over a socket named after the mount's device number, in a
//! folder that belongs to whoever made the mount; see [`address`].
//!
//! | request | answer |
//! |---|---|
//! | `hello VERSION` | `butterfs VERSION`, the server's own |
//! | `state` | `serving`, or `ending` once the mount is gone |
//! | `sync` | `ok` when everything is durable, or `failed REASON` |
//! | `writable`, `readonly` | the same, after switching |
//! | `do COUNT QUESTION` | `record` and words, any number of times; then `done`, or `refused ERRNO SENTENCE`; see [`subvolumes`](crate::subvolumes) |
//! | `with COUNT QUESTION` | the same for a question about a stream; also `report` and words, any number of times |
//! | `wait` | `waiting`, and when the process is done: `ok` when everything is durable, or `failed REASON` |
//!
//! Lines, in order. COUNT descriptors come with a question: first, for `with`, the one that the stream is written to or
//! read from, then those of the places that the question names. A place is a descriptor opened with `O_PATH`: whoever
//! has it could get there, and it shows through which mount.
//!
//! Root and the user who made the mount connect to the serving process, everybody else to a [proxy]. What those two send is
//! held here, so a command passes nothing on that could keep this process: paths, and pipes.
//!
//! # Invariants
//! 1. Both sides check whose process the other end is: root, or the user who made the mount. Where other users may enter
//!    the mount, they may ask questions, each of which has its own conditions, but give no orders; so may root without
//!    CAP_SYS_ADMIN, or of another user namespace (see `credentials`).
//! 2. Questions are answered only between equals in version; orders are the same in every version.
//! 3. An answer is never whole in memory, and ends when nobody reads it any more.
//! 4. A user who is not privileged holds at most [`MOST_OF_ONE_GUEST`] connections, all of them [`MOST_GUESTS`], each of
//!    which is given up when it says or takes nothing for [`GUEST_PATIENCE`].

mod address;
mod admission;
mod caller;
pub mod descriptors;
mod desk;
mod parcel;
pub mod proxy;

pub use address::shown as shown_address;
pub use caller::{Caller, Waiter};
pub use desk::Desk;
pub use proxy::Proxy;

use crate::subvolumes::{Answer, Peer, Refusal, Sink};
use std::io::{self, BufRead};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// The version of questions and answers.
const VERSION: u32 = 2;

/// The longest line that is read.
const LINE_BYTES: u64 = 4096;
/// The longest line of an answer: paths can be long.
const RECORD_BYTES: u64 = 1 << 24;
/// Descriptors that one question may bring along; the kernel passes 253 at once.
pub const MOST_DESCRIPTORS: usize = 250;
/// Connections of users who are not privileged, at a time.
const MOST_GUESTS: usize = 32;
/// Connections of one such user.
const MOST_OF_ONE_GUEST: usize = 4;
/// Connections that wait for ever, or are being served, where ordinary users connect.
const MOST_CONNECTIONS: usize = 128;
/// Descriptors that such a user may bring along with a question.
const MOST_OF_GUESTS_DESCRIPTORS: usize = 4;
/// How long such a user may say or take nothing.
const GUEST_PATIENCE: Duration = Duration::from_secs(10);
/// How long an answer may wait for such a user in total.
const GUEST_DELAY: Duration = Duration::from_secs(60);

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

/// A question and the descriptors of the places that it names.
pub struct Asked<'a> {
    /// Who asks.
    pub peer: &'a Peer,
    /// The question.
    pub words: &'a [Vec<u8>],
    /// The places.
    pub places: Vec<OwnedFd>,
}

/// Answers questions.
pub type Respond = Arc<dyn Fn(Asked<'_>, Sink<'_>) -> Result<(), Refusal> + Send + Sync>;

/// Tells whoever asked how far the work is; false when nobody listens any more.
pub type Report<'a> = &'a mut dyn FnMut(&[Vec<u8>]) -> bool;

/// Answers questions about the stream of a descriptor.
pub type Carry = Arc<dyn Fn(Asked<'_>, OwnedFd, Report<'_>) -> Answer + Send + Sync>;

/// What a desk can do.
#[derive(Clone)]
pub struct Powers {
    /// Carries out orders.
    pub obey: Obey,
    /// Answers questions.
    pub respond: Respond,
    /// Answers questions about streams.
    pub carry: Carry,
    /// Whether other users than root and the one who made the mount may ask.
    pub for_all: bool,
    /// What takes their connections.
    pub proxy: Proxy,
}

fn is_trusted(uid: u32, owner: u32) -> bool {
    uid == 0 || uid == owner
}

fn read_line(stream: &mut impl BufRead, most: u64) -> io::Result<Option<String>> {
    let mut line = String::new();
    let len = io::Read::take(stream, most).read_line(&mut line)?;
    Ok((len > 0).then(|| line.trim_end().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// A device number that no mount has, different in each test.
    fn device(minor: u32) -> (u32, u32) {
        (std::process::id(), minor)
    }

    fn powers(obey: fn(Order) -> Result<(), String>) -> Powers {
        let respond: Respond = Arc::new(|asked, sink| match asked.words {
            [verb, ..] if verb == b"refuse" => Err(Refusal::new(7, "not today, %\n")),
            _ => {
                sink(asked.words.to_vec())?;
                sink(vec![asked.peer.uid.to_string().into_bytes(), asked.places.len().to_string().into_bytes()])
            }
        });
        let carry: Carry = Arc::new(|asked, descriptor, report| {
            assert!(report(&[b"begun".to_vec(), Vec::new()]));
            let written = std::fs::File::from(descriptor).write_all(&asked.words.concat());
            written.map(|()| vec![asked.words.to_vec()]).map_err(|error| Refusal::new(5, error.to_string()))
        });
        Powers { obey: Arc::new(obey), respond, carry, for_all: true, proxy: Proxy::Thread }
    }

    fn desk(minor: u32, obey: fn(Order) -> Result<(), String>) -> (Desk, (u32, u32)) {
        (Desk::open(device(minor), powers(obey), Arc::new(|_| {})).unwrap(), device(minor))
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
        let mut waiter = caller(device).wait().unwrap().unwrap();
        assert!(!asker.is_ending().unwrap());
        assert_eq!(waiter.end_within(Duration::from_millis(1)).unwrap(), None);
        desk.ending();
        assert!(asker.is_ending().unwrap());
        desk.end(Err("disk on fire".into()));
        // This process serves the desk, and does not end.
        waiter.forget_process();
        assert_eq!(waiter.end_within(Duration::from_secs(5)).unwrap(), Some(Err("disk on fire".into())));
    }

    #[test]
    fn questions_are_answered_with_records() {
        let (_desk, device) = desk(4, |_| Ok(()));
        let mut caller = caller(device);
        let question = vec![b"list".to_vec(), b"a b\n\xff".to_vec(), Vec::new()];
        let me = rustix::process::geteuid().as_raw().to_string().into_bytes();
        let place = std::fs::File::open("/").unwrap();
        for count in [0, 1, MOST_DESCRIPTORS] {
            let records = vec![question.clone(), vec![me.clone(), count.to_string().into_bytes()]];
            assert_eq!(caller.question(&question, &vec![place.as_fd(); count]).unwrap(), Ok(records));
        }
        assert!(caller.question(&question, &vec![place.as_fd(); MOST_DESCRIPTORS + 1]).is_err());
        let refusal = Refusal::new(7, "not today, %\n");
        assert_eq!(caller.question(&[b"refuse".to_vec()], &[]).unwrap(), Err(refusal));
        assert_eq!(caller.order(Order::Sync).unwrap(), Ok(()));
    }

    #[test]
    fn a_stream_comes_with_a_question() {
        let (_desk, device) = desk(5, |_| Ok(()));
        let mut caller = caller(device);
        let long = vec![b'x'; 10_000];
        let question = vec![b"send".to_vec(), long.clone()];
        for _ in 0..3 {
            let (reader, writer) = std::io::pipe().unwrap();
            let mut reports = Vec::new();
            let mut report = |words: &[Vec<u8>]| reports.push(words.to_vec());
            let answer = caller.question_with(&question, writer.as_fd(), &[reader.as_fd()], &mut report);
            drop(writer);
            assert_eq!(answer.unwrap(), Ok(vec![question.clone()]));
            assert_eq!(reports, [[b"begun".to_vec(), Vec::new()]]);
            let mut written = Vec::new();
            io::Read::read_to_end(&mut { reader }, &mut written).unwrap();
            assert_eq!(written, question.concat());
        }
        for malformed in ["with 1 nothing", "with", "with x y", "do 3 nothing"] {
            assert!(caller.ask(malformed).unwrap().starts_with("refused 22 "), "{malformed}");
        }
        assert_eq!(caller.order(Order::Sync).unwrap(), Ok(()));
    }

    #[test]
    fn another_version_is_refused_by_a_sentence() {
        let (_desk, device) = desk(6, |_| Ok(()));
        let mut caller = caller(device);
        caller.pretend_version(VERSION + 1);
        let error = caller.question(&[b"list".to_vec()], &[]).unwrap_err();
        assert!(error.to_string().contains("version"), "{error}");
        assert_eq!(caller.ask(&format!("hello {}", VERSION + 1)).unwrap(), format!("butterfs {VERSION}"));
        assert!(caller.ask("do 0 list").unwrap().starts_with("refused 71 "));
        assert_eq!(caller.order(Order::Sync).unwrap(), Ok(()));
    }

    #[test]
    fn an_answer_ends_when_nobody_reads_it() {
        static ENDED: AtomicBool = AtomicBool::new(false);
        let respond: Respond = Arc::new(|_, sink| {
            while sink(vec![vec![b'x'; 1000]]).is_ok() {}
            ENDED.store(true, Ordering::SeqCst);
            Ok(())
        });
        let powers = Powers { respond, ..powers(|_| Ok(())) };
        let _desk = Desk::open(device(7), powers, Arc::new(|_| {})).unwrap();
        let mut caller = caller(device(7));
        caller.send("do 0 list\n", &[]).unwrap();
        assert!(caller.line(RECORD_BYTES).unwrap().starts_with("record "));
        drop(caller);
        let end = std::time::Instant::now() + Duration::from_secs(20);
        while !ENDED.load(Ordering::SeqCst) {
            assert!(std::time::Instant::now() < end, "the answer goes on");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_dead_server_s_socket_is_replaced_and_a_living_one_s_stays() {
        let path = |device| address::path_of(device).unwrap();
        let (first, at) = desk(8, |_| Ok(()));
        drop(first);
        assert!(!path(at).exists(), "it goes with its desk");
        let stale = std::os::unix::net::UnixListener::bind(path(at)).unwrap();
        drop(stale);
        assert!(UnixStream::connect(path(at)).is_err());
        assert!(Caller::find(at, rustix::process::geteuid().as_raw()).unwrap().is_none());
        let (second, _) = desk(8, |_| Ok(()));
        let mut early = caller(at);
        let (third, _) = desk(8, |_| Err("the third".into()));
        drop(second);
        assert_eq!(caller(at).order(Order::Sync).unwrap(), Err("the third".into()));
        assert_eq!(early.order(Order::Sync).unwrap(), Ok(()), "who is connected stays so");
        drop(third);
        assert!(!path(at).exists());
    }

    #[test]
    fn nobody_there_is_no_error() {
        assert!(Caller::find(device(3), 0).unwrap().is_none());
    }
}
