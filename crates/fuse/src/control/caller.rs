//! The asking side: a connection to the process that serves a mount.

use super::{LINE_BYTES, ORDERS, Order, RECORD_BYTES, VERSION, address, parcel, read_line};
use crate::credentials::process_of_peer;
use crate::subvolumes::{self, Answer, Record, Refusal};
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{self, BufReader};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// See the [module](self).
#[derive(Debug)]
pub struct Caller {
    stream: BufReader<UnixStream>,
    /// The process; none where it cannot be had.
    process: Option<OwnedFd>,
    /// The version that the process speaks.
    version: u32,
}

/// What to do with each record of an answer; an error ends it.
pub type Take<'a> = &'a mut dyn FnMut(Record) -> io::Result<()>;

impl Caller {
    /// Finds the process that serves the mount with this device number, made by `user`. `None`: nobody listens.
    pub fn find(device: (u32, u32), user: u32) -> io::Result<Option<Caller>> {
        let Some(stream) = address::connect(device, user)? else { return Ok(None) };
        let process = process_of_peer(&stream).ok();
        let mut caller = Caller { stream: BufReader::new(stream), process, version: 0 };
        // A server that does not want to talk says so and closes, maybe before it is greeted.
        let greeted = caller.send(&format!("hello {VERSION}\n"), &[]);
        let answer = caller.line(LINE_BYTES).or_else(|error| greeted.and(Err(error)))?;
        caller.version = match answer.split_once(' ') {
            Some(("butterfs", version)) => version.parse().map_err(|_| malformed())?,
            Some(("refused", _)) => return Err(refused(&answer)),
            _ => return Err(malformed()),
        };
        Ok(Some(caller))
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

    /// Begins to wait for the end. From here on the process does not end without telling. `None`: it does not tell us.
    pub fn wait(mut self) -> io::Result<Option<Waiter>> {
        let answer = self.ask("wait")?;
        Ok((answer == "waiting").then_some(Waiter(self)))
    }

    pub(super) fn ask(&mut self, line: &str) -> io::Result<String> {
        self.send(&format!("{line}\n"), &[])?;
        self.line(LINE_BYTES)
    }

    pub(super) fn send(&mut self, line: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        parcel::send(self.stream.get_ref(), line.as_bytes(), descriptors)
    }

    pub(super) fn line(&mut self, most: u64) -> io::Result<String> {
        read_line(&mut self.stream, most)?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Asks a question about `places`, descriptors opened with `O_PATH`, which its words name by `@` and their index.
    pub fn question(&mut self, words: &[Vec<u8>], places: &[BorrowedFd<'_>]) -> io::Result<Answer> {
        let mut records = Vec::new();
        let end = self.question_each(words, places, &mut |record| {
            records.push(record);
            Ok(())
        })?;
        Ok(end.map(|()| records))
    }

    /// The same for an answer that can be long: `take` gets its records one by one.
    pub fn question_each(
        &mut self,
        words: &[Vec<u8>],
        places: &[BorrowedFd<'_>],
        take: Take<'_>,
    ) -> io::Result<Result<(), Refusal>> {
        self.must_be_of_one_version()?;
        self.send(&format!("do {} {}\n", places.len(), subvolumes::joined(words)), places)?;
        self.answer(take, &mut |_| {})
    }

    /// Asks a question about the stream of a descriptor; `report` is told how far the work is.
    pub fn question_with(
        &mut self,
        words: &[Vec<u8>],
        stream: BorrowedFd<'_>,
        places: &[BorrowedFd<'_>],
        report: &mut dyn FnMut(&[Vec<u8>]),
    ) -> io::Result<Answer> {
        self.must_be_of_one_version()?;
        let descriptors = [&[stream], places].concat();
        self.send(&format!("with {} {}\n", descriptors.len(), subvolumes::joined(words)), &descriptors)?;
        let mut records = Vec::new();
        let end = self.answer(
            &mut |record| {
                records.push(record);
                Ok(())
            },
            report,
        )?;
        Ok(end.map(|()| records))
    }

    fn must_be_of_one_version(&self) -> io::Result<()> {
        if self.version == VERSION {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "it is another version of butterfs (it speaks version {} of the protocol, this command {VERSION}); unmount, and \
             mount again with this one",
            self.version
        )))
    }

    fn answer(&mut self, take: Take<'_>, report: &mut dyn FnMut(&[Vec<u8>])) -> io::Result<Result<(), Refusal>> {
        loop {
            let line = self.line(RECORD_BYTES)?;
            let (kind, rest) = line.split_once(' ').unwrap_or((&line, ""));
            let words = subvolumes::split(rest).ok_or_else(malformed)?;
            match (kind, &words[..]) {
                ("record", _) => take(words)?,
                ("report", _) => report(&words),
                ("done", []) => return Ok(Ok(())),
                ("refused", [errno, sentence]) => {
                    let errno = std::str::from_utf8(errno).ok().and_then(|text| text.parse().ok());
                    let sentence = String::from_utf8_lossy(sentence).into_owned();
                    return Ok(Err(Refusal::new(errno.ok_or_else(malformed)?, sentence)));
                }
                _ => return Err(malformed()),
            }
        }
    }

    #[cfg(test)]
    pub(super) fn pretend_version(&mut self, version: u32) {
        self.version = version;
    }
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the answer makes no sense")
}

fn refused(line: &str) -> io::Error {
    let words = subvolumes::split(line).unwrap_or_default();
    io::Error::other(
        words.get(2).map_or_else(|| line.into(), |sentence| String::from_utf8_lossy(sentence)).into_owned(),
    )
}

/// Waits for the process that serves a mount to end.
#[derive(Debug)]
pub struct Waiter(Caller);

impl Waiter {
    /// Whether the process has ended within this time. The inner error says why not everything is durable.
    pub fn end_within(&mut self, patience: Duration) -> io::Result<Option<Result<(), String>>> {
        let Caller { stream, process, .. } = &mut self.0;
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

    #[cfg(test)]
    pub(super) fn forget_process(&mut self) {
        self.0.process = None;
    }
}

fn outcome(answer: &str) -> Result<(), String> {
    match answer.strip_prefix("failed ") {
        Some(why) => Err(why.to_owned()),
        None => Ok(()),
    }
}
