//! The asking side: a connection to the process that serves a mount.

use super::{address, parcel};
use crate::credentials::process_of_peer;
use butterfs_control::{
    Ask, AskStream, Attached, LINE_BYTES, Message, MountAnswer, MountQuestion, Order, Question, Refusal, Reply,
    Request, Response, StreamQuestion, VERSION, encode, read_framed, read_reply,
};
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// See the [module](self).
#[derive(Debug)]
pub struct ControlClient {
    stream: BufReader<UnixStream>,
    /// The process; none where it cannot be had.
    process: Option<OwnedFd>,
    /// The version that the process speaks.
    version: u32,
}

impl ControlClient {
    /// Finds the process that serves the mount with this device number, made by `user`. `None`: nobody listens.
    pub fn find(device: (u32, u32), user: u32) -> io::Result<Option<ControlClient>> {
        let Some(stream) = address::connect(device, user)? else { return Ok(None) };
        let process = process_of_peer(&stream).ok();
        let mut client = ControlClient { stream: BufReader::new(stream), process, version: 0 };
        // A server that does not want to talk says so and closes, maybe before it is greeted.
        let greeted = client.send(Request::Hello(VERSION), &[], &[]);
        client.version = match client.response().or_else(|error| greeted.and(Err(error)))? {
            Response::Version(version) => version,
            Response::Refused(refusal) => return Err(io::Error::other(refusal.sentence)),
            _ => return Err(nonsense()),
        };
        Ok(Some(client))
    }

    /// Finds the process of this user that `serves` says is meant. Processes that do not answer, or are of another
    /// version, are passed over.
    pub fn find_serving(mut serves: impl FnMut(&mut ControlClient) -> bool) -> Option<ControlClient> {
        let user = rustix::process::geteuid().as_raw();
        address::served(user).into_iter().find_map(|device| {
            let mut client = ControlClient::find(device, user).ok().flatten()?;
            serves(&mut client).then_some(client)
        })
    }

    /// Whether the mount is gone, also from every other place it was visible at.
    pub fn is_ending(&mut self) -> io::Result<bool> {
        Ok(self.request(Request::Status)? != Response::Serving)
    }

    /// Gives an order. The inner error is the server's reason.
    pub fn order(&mut self, order: Order) -> io::Result<Result<(), String>> {
        self.request(Request::Order(order)).map(outcome)
    }

    /// Begins to wait for the end. From here on the process does not end without telling. `None`: it does not tell us.
    pub fn wait(mut self) -> io::Result<Option<Waiter>> {
        let answer = self.request(Request::Wait)?;
        Ok((answer == Response::Waiting).then_some(Waiter(self)))
    }

    /// Asks a question about inodes behind `descriptors`, which are opened with `O_PATH`.
    pub fn ask<Q: Ask>(
        &mut self,
        question: Q,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<Result<Vec<Q::Record>, Refusal>> {
        let mut records = Vec::new();
        let end = self.ask_each(question, descriptors, &mut |record| {
            records.push(record);
            Ok(())
        })?;
        Ok(end.map(|()| records))
    }

    /// The same for an answer that can be long: `take` gets its records one by one, and an error of it ends the answer.
    pub fn ask_each<Q: Ask>(
        &mut self,
        question: Q,
        descriptors: &[BorrowedFd<'_>],
        take: &mut dyn FnMut(Q::Record) -> io::Result<()>,
    ) -> io::Result<Result<(), Refusal>> {
        self.send_question::<Question>(question.into(), Request::Question, descriptors)?;
        loop {
            match self.reply()? {
                Reply::Record(record) => take(record.try_into().map_err(|_| nonsense())?)?,
                Reply::Done => return Ok(Ok(())),
                Reply::Refused(refusal) => return Ok(Err(refusal)),
                Reply::Report(_) => return Err(nonsense()),
            }
        }
    }

    /// Asks a question about the stream of a descriptor; `report` learns how far the work is.
    pub fn ask_stream<Q: AskStream>(
        &mut self,
        question: Q,
        stream: BorrowedFd<'_>,
        descriptors: &[BorrowedFd<'_>],
        report: &mut dyn FnMut(Q::Report),
    ) -> io::Result<Result<Q::Record, Refusal>> {
        let descriptors = [&[stream], descriptors].concat();
        self.send_question::<StreamQuestion>(question.into(), Request::StreamQuestion, &descriptors)?;
        let mut answer = None;
        loop {
            match self.reply()? {
                Reply::Record(record) => answer = Some(record.try_into().map_err(|_| nonsense())?),
                Reply::Report(news) => report(news.try_into().map_err(|_| nonsense())?),
                Reply::Done => return answer.map(Ok).ok_or_else(nonsense),
                Reply::Refused(refusal) => return Ok(Err(refusal)),
            }
        }
    }

    /// Asks a question about mounts. A mount comes as a descriptor.
    pub fn ask_about_mounts(&mut self, question: MountQuestion) -> io::Result<(MountAnswer, Option<OwnedFd>)> {
        self.send_question(question, Request::MountQuestion, &[])?;
        // Nothing else is on its way, so nothing is in the buffer.
        let mut received = Received { stream: self.stream.get_ref(), descriptors: Vec::new() };
        let answer = read_framed(&mut received)?;
        Ok((answer, received.descriptors.pop()))
    }

    /// Gives up when the process says nothing for so long.
    pub fn be_patient_for(&self, patience: Option<Duration>) -> io::Result<()> {
        self.stream.get_ref().set_read_timeout(patience)
    }

    fn send_question<M: Message>(
        &mut self,
        question: M,
        request: fn(Attached) -> Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        self.must_be_of_one_version()?;
        let bytes = encode(&question).map_err(io::Error::other)?;
        let attached = Attached { descriptors: descriptors.len(), bytes: bytes.len() };
        self.send(request(attached), &bytes, descriptors)
    }

    fn must_be_of_one_version(&self) -> io::Result<()> {
        if self.version == VERSION {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "it is another version of butterfs (it speaks version {} of the protocol, this command {VERSION}); \
             unmount, and mount again with this one",
            self.version
        )))
    }

    pub(super) fn request(&mut self, request: Request) -> io::Result<Response> {
        self.send(request, &[], &[])?;
        self.response()
    }

    pub(super) fn send(&mut self, request: Request, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let message = [format!("{request}\n").as_bytes(), bytes].concat();
        parcel::send(self.stream.get_ref(), &message, descriptors)
    }

    pub(super) fn response(&mut self) -> io::Result<Response> {
        let line = read_line(&mut self.stream)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        Response::parse(&line).ok_or_else(nonsense)
    }

    pub(super) fn reply(&mut self) -> io::Result<Reply> {
        read_reply(&mut self.stream)
    }

    #[cfg(test)]
    pub(super) fn pretend_version(&mut self, version: u32) {
        self.version = version;
    }
}

/// Reads bytes, and keeps the descriptors that come with them.
struct Received<'a> {
    stream: &'a UnixStream,
    descriptors: Vec<OwnedFd>,
}

impl Read for Received<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (len, descriptors) = parcel::receive_into(self.stream, buffer)?;
        self.descriptors.extend(descriptors);
        Ok(len)
    }
}

fn nonsense() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the answer makes no sense")
}

fn read_line(stream: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = String::new();
    let len = Read::take(stream, LINE_BYTES as u64).read_line(&mut line)?;
    Ok((len > 0).then(|| line.trim_end().to_owned()))
}

/// Waits for the process that serves a mount to end.
#[derive(Debug)]
pub struct Waiter(ControlClient);

impl Waiter {
    /// Whether the process has ended within this time. The inner error says why not everything is durable.
    pub fn end_within(&mut self, patience: Duration) -> io::Result<Option<Result<(), String>>> {
        let ControlClient { stream, process, .. } = &mut self.0;
        stream.get_ref().set_read_timeout(Some(patience))?;
        let outcome = match read_line(stream) {
            Ok(Some(line)) => Response::parse(&line).map_or(Ok(()), outcome),
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

fn outcome(answer: Response) -> Result<(), String> {
    match answer {
        Response::Failed(why) => Err(why),
        _ => Ok(()),
    }
}
