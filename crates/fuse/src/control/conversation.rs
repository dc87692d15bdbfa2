//! One connection of the serving side: requests, one after the other, and what is answered.

use super::parcel::{self, Incoming};
use super::reply_writer::ReplyWriter;
use super::server::Shared;
use super::{Asked, GUEST_PATIENCE, MOST_OF_GUESTS_DESCRIPTORS};
use crate::subvolumes::{Capabilities, Peer};
use butterfs_control::{
    Attached, DecodeError, LINE_BYTES, Message, MountAnswer, MountQuestion, Question, Refusal, Request, Response,
    StreamQuestion, VERSION, decode, frame,
};
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// See the [module](self).
pub struct Conversation<'a> {
    server: &'a Shared,
    stream: &'a UnixStream,
    incoming: Incoming<'a>,
    peer: &'a Peer,
    /// The version that the peer speaks; 0 as long as it has not said so.
    version: u32,
}

/// The descriptors and bytes that came with the line of a question.
struct Parcel {
    bytes: Vec<u8>,
    /// None: fewer than the line says.
    descriptors: Option<Vec<OwnedFd>>,
}

impl<'a> Conversation<'a> {
    pub fn new(
        server: &'a Shared,
        stream: &'a UnixStream,
        mut incoming: Incoming<'a>,
        peer: &'a Peer,
    ) -> io::Result<Conversation<'a>> {
        if !peer.has(Capabilities::ADMINISTRATION) {
            stream.set_read_timeout(Some(GUEST_PATIENCE))?;
            stream.set_write_timeout(Some(GUEST_PATIENCE))?;
            incoming.limit(MOST_OF_GUESTS_DESCRIPTORS);
        }
        Ok(Conversation { server, stream, incoming, peer, version: 0 })
    }

    /// Serves requests until the peer is gone, or makes no sense.
    pub fn run(mut self) -> io::Result<()> {
        while let Some(line) = self.incoming.line(LINE_BYTES)? {
            if self.serve(Request::parse(&line))?.is_break() {
                break;
            }
        }
        Ok(())
    }

    fn serve(&mut self, request: Option<Request>) -> io::Result<ControlFlow<()>> {
        match request {
            Some(Request::Hello(version)) => {
                self.version = version;
                self.respond(&Response::Version(VERSION))?;
            }
            Some(Request::Question(attached)) => self.question(attached, Self::answer)?,
            Some(Request::StreamQuestion(attached)) => self.question(attached, Self::carry)?,
            Some(Request::MountQuestion(attached)) => self.mount_question(attached)?,
            Some(Request::OldQuestion) => self.respond(&Response::Refused(self.wrong_version()))?,
            Some(Request::BrokenQuestion) => {
                // What follows cannot be told from lines.
                self.respond(&Response::Refused(malformed()))?;
                return Ok(ControlFlow::Break(()));
            }
            Some(Request::Status | Request::Order(_) | Request::Wait) | None => self.order(request)?,
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Reads a question and answers it by `answer`, which returns how the answer ends.
    fn question(
        &mut self,
        attached: Attached,
        answer: fn(&Self, Parcel, &mut ReplyWriter<'_>) -> Result<(), Refusal>,
    ) -> io::Result<()> {
        let bytes = self.incoming.bytes(attached.bytes)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let parcel = Parcel { bytes, descriptors: self.incoming.descriptors(attached.descriptors) };
        if self.version != VERSION {
            return self.respond(&Response::Refused(self.wrong_version()));
        }
        let mut replies = ReplyWriter::new(self.stream, !self.peer.has(Capabilities::ADMINISTRATION));
        let end = answer(self, parcel, &mut replies);
        replies.end(end)
    }

    /// The answer comes in one piece, with a descriptor where it is a mount.
    fn mount_question(&mut self, attached: Attached) -> io::Result<()> {
        let bytes = self.incoming.bytes(attached.bytes)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let refused = |refusal| (MountAnswer::Refused(refusal), None);
        let (answer, mount) = match understood::<MountQuestion>(&bytes) {
            _ if self.version != VERSION => refused(self.wrong_version()),
            _ if !self.peer.has(Capabilities::ADMINISTRATION) => refused(Refusal::new(libc::EPERM, "not permitted")),
            Ok(question) => (self.server.powers.mounts)(&question),
            Err(refusal) => refused(refusal),
        };
        let descriptors: Vec<_> = mount.iter().map(AsFd::as_fd).collect();
        parcel::send(self.stream, &frame(&answer).map_err(io::Error::other)?, &descriptors)
    }

    fn answer(&self, parcel: Parcel, replies: &mut ReplyWriter<'_>) -> Result<(), Refusal> {
        let question: Question = understood(&parcel.bytes)?;
        let descriptors = parcel.descriptors.ok_or_else(malformed)?;
        let asked = Asked { peer: self.peer, question: &question, descriptors };
        (self.server.powers.respond)(asked, &mut |record| replies.record(record))
    }

    fn carry(&self, parcel: Parcel, replies: &mut ReplyWriter<'_>) -> Result<(), Refusal> {
        let question: StreamQuestion = understood(&parcel.bytes)?;
        let mut descriptors = parcel.descriptors.filter(|all| !all.is_empty()).ok_or_else(malformed)?;
        let stream = descriptors.remove(0);
        let asked = Asked { peer: self.peer, question: &question, descriptors };
        let record = (self.server.powers.carry)(asked, stream, &mut |report| replies.report(report))?;
        replies.record(record)
    }

    fn order(&self, request: Option<Request>) -> io::Result<()> {
        let failed = |why: &str| Response::Failed(why.to_owned());
        let response = match request {
            Some(Request::Status) => self.server.state(),
            _ if !self.peer.has(Capabilities::ADMINISTRATION) => failed("not permitted"),
            Some(Request::Order(order)) => Response::of_outcome(&(self.server.powers.obey)(order)),
            Some(Request::Wait) => return self.server.report_end(|response| self.respond(&response)),
            _ => failed("unknown order"),
        };
        self.respond(&response)
    }

    fn respond(&self, response: &Response) -> io::Result<()> {
        respond(self.stream, response)
    }

    fn wrong_version(&self) -> Refusal {
        let sentence = format!(
            "the command is another version of butterfs (it speaks version {} of the protocol, the process that serves \
             the mount {VERSION})",
            self.version
        );
        Refusal::new(libc::EPROTO, sentence)
    }
}

/// The question that bytes are.
fn understood<M: Message>(bytes: &[u8]) -> Result<M, Refusal> {
    decode(bytes).map_err(|error| match error {
        DecodeError::Unknown { .. } => {
            let sentence = format!(
                "the process that serves the mount does not know this question ({error}); unmount, and mount again \
                 with the version of this command"
            );
            Refusal::new(libc::EOPNOTSUPP, sentence)
        }
        _ => Refusal::new(libc::EINVAL, format!("the question makes no sense: {error}")),
    })
}

fn malformed() -> Refusal {
    Refusal::new(libc::EINVAL, "the question makes no sense")
}

/// Sends a line.
pub fn respond(mut stream: &UnixStream, response: &Response) -> io::Result<()> {
    stream.write_all(format!("{response}\n").as_bytes())
}
