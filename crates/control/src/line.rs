//! Lines, which are the same in every version.

use crate::{MOST_DESCRIPTORS, QUESTION_BYTES, Refusal};
use std::fmt::{self, Display, Formatter};

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Says the version of whoever asks; 0 where it makes no sense.
    Hello(u32),
    /// Asks whether the mount is still there.
    Status,
    /// Has something done.
    Order(Order),
    /// Waits for the end.
    Wait,
    /// A [`Question`](crate::Question) follows.
    Question(Attached),
    /// A [`StreamQuestion`](crate::StreamQuestion) follows; its first descriptor is the stream.
    StreamQuestion(Attached),
    /// A [`MountQuestion`](crate::MountQuestion) follows.
    MountQuestion(Attached),
    /// A question of version 1 or 2, all of it on the line.
    OldQuestion,
    /// A question that nobody knows the end of.
    BrokenQuestion,
}

/// An order to the process that serves a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Make everything durable.
    Sync,
    /// Allow writing.
    MakeWritable,
    /// Make everything durable and refuse writing.
    MakeReadOnly,
}

/// The attachments of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The number of descriptors.
    pub descriptors: usize,
    /// The number of bytes.
    pub bytes: usize,
}

const ORDERS: [(&str, Order); 3] =
    [("sync", Order::Sync), ("writable", Order::MakeWritable), ("readonly", Order::MakeReadOnly)];

impl Request {
    /// Reads a line without its end. None: it is no request.
    pub fn parse(line: &str) -> Option<Request> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        if let Some((_, order)) = ORDERS.iter().find(|(name, _)| *name == line) {
            return Some(Request::Order(*order));
        }
        match (word, rest) {
            ("hello", version) => Some(Request::Hello(version.parse().unwrap_or(0))),
            ("state", "") => Some(Request::Status),
            ("wait", "") => Some(Request::Wait),
            ("ask", text) => Some(Attached::parse(text).map_or(Request::BrokenQuestion, Request::Question)),
            ("carry", text) => Some(Attached::parse(text).map_or(Request::BrokenQuestion, Request::StreamQuestion)),
            ("mounts", text) => Some(Attached::parse(text).map_or(Request::BrokenQuestion, Request::MountQuestion)),
            ("do" | "with", _) => Some(Request::OldQuestion),
            _ => None,
        }
    }
}

impl Attached {
    fn parse(text: &str) -> Option<Attached> {
        let (descriptors, bytes) = text.split_once(' ')?;
        let attached = Attached { descriptors: descriptors.parse().ok()?, bytes: bytes.parse().ok()? };
        (attached.descriptors <= MOST_DESCRIPTORS && attached.bytes <= QUESTION_BYTES).then_some(attached)
    }
}

/// The line, without its end.
impl Display for Request {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Request::Hello(version) => write!(formatter, "hello {version}"),
            Request::Status => formatter.write_str("state"),
            Request::Order(order) => {
                let name = ORDERS.iter().find(|(_, known)| known == order).map_or("", |(name, _)| *name);
                formatter.write_str(name)
            }
            Request::Wait => formatter.write_str("wait"),
            Request::Question(Attached { descriptors, bytes }) => write!(formatter, "ask {descriptors} {bytes}"),
            Request::StreamQuestion(Attached { descriptors, bytes }) => {
                write!(formatter, "carry {descriptors} {bytes}")
            }
            Request::MountQuestion(Attached { descriptors, bytes }) => {
                write!(formatter, "mounts {descriptors} {bytes}")
            }
            Request::OldQuestion => formatter.write_str("do"),
            Request::BrokenQuestion => formatter.write_str("ask"),
        }
    }
}

/// An answer that is a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// The server's version.
    Version(u32),
    /// The mount is there.
    Serving,
    /// The mount is gone, and what was changed is being made durable.
    Ending,
    /// The end will be told.
    Waiting,
    /// It is done.
    Done,
    /// It could not be done; a sentence.
    Failed(String),
    /// The server does not talk with whoever asks, or not in that version.
    Refused(Refusal),
}

impl Response {
    /// Reads a line without its end. None: it is no answer.
    pub fn parse(line: &str) -> Option<Response> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match (word, rest) {
            ("butterfs", version) => version.parse().ok().map(Response::Version),
            ("serving", "") => Some(Response::Serving),
            ("ending", "") => Some(Response::Ending),
            ("waiting", "") => Some(Response::Waiting),
            ("ok", "") => Some(Response::Done),
            ("failed", why) => Some(Response::Failed(why.to_owned())),
            ("refused", refusal) => {
                let (errno, sentence) = refusal.split_once(' ')?;
                Some(Response::Refused(Refusal::new(errno.parse().ok()?, unescaped(sentence)?)))
            }
            _ => None,
        }
    }

    /// The answer to an order.
    pub fn of_outcome(outcome: &Result<(), String>) -> Response {
        outcome.as_ref().map_or_else(|why| Response::Failed(why.clone()), |()| Response::Done)
    }
}

/// The line, without its end.
impl Display for Response {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Response::Version(version) => write!(formatter, "butterfs {version}"),
            Response::Serving => formatter.write_str("serving"),
            Response::Ending => formatter.write_str("ending"),
            Response::Waiting => formatter.write_str("waiting"),
            Response::Done => formatter.write_str("ok"),
            Response::Failed(why) => write!(formatter, "failed {}", why.replace('\n', " ")),
            Response::Refused(Refusal { errno, sentence }) => {
                write!(formatter, "refused {errno} {}", escaped(sentence))
            }
        }
    }
}

/// A text as one word: everything but printable ASCII as `%` and two hexadecimal digits, no text as a lone `%`.
fn escaped(text: &str) -> String {
    if text.is_empty() {
        return "%".to_owned();
    }
    let mut word = String::new();
    for byte in text.bytes() {
        match byte {
            b'!'..=b'~' if byte != b'%' => word.push(byte.into()),
            _ => word.push_str(&format!("%{byte:02x}")),
        }
    }
    word
}

fn unescaped(word: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = if word == "%" { &[] } else { word.as_bytes() };
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte == b'%' {
            let (digits, tail) = rest.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = tail;
        } else {
            bytes.push(byte);
        }
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_survive_and_old_ones_are_known() {
        let attached = Attached { descriptors: 2, bytes: 27 };
        let orders = ORDERS.map(|(_, order)| Request::Order(order));
        let others = [
            Request::Hello(3),
            Request::Status,
            Request::Wait,
            Request::Question(attached),
            Request::StreamQuestion(attached),
            Request::OldQuestion,
            Request::BrokenQuestion,
        ];
        for request in orders.into_iter().chain(others) {
            assert_eq!(Request::parse(&request.to_string()), Some(request));
        }
        for old in ["do 0 list", "do 1 create @0 18 %", "with 1 send 1 % - 0", "do", "with"] {
            assert_eq!(Request::parse(old), Some(Request::OldQuestion), "{old}");
        }
        assert_eq!(Request::parse("hello you"), Some(Request::Hello(0)));
        for broken in ["ask", "ask 1", "carry 1 x", "ask -1 1", "ask 251 1", "carry 1 4097", "ask 1 2 3"] {
            assert_eq!(Request::parse(broken), Some(Request::BrokenQuestion), "{broken}");
        }
        for nonsense in ["", "nonsense", "wait 1", "state x", "synchronize"] {
            assert_eq!(Request::parse(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn responses_survive() {
        let refusal = Refusal::new(71, "not today, 100 % \u{e9}\n");
        let all = [
            Response::Version(3),
            Response::Serving,
            Response::Ending,
            Response::Waiting,
            Response::Done,
            Response::Failed("not today".into()),
            Response::Refused(refusal),
            Response::Refused(Refusal::new(7, "")),
        ];
        for response in all {
            let line = response.to_string();
            assert!(line.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{line}");
            assert_eq!(Response::parse(&line), Some(response));
        }
        assert_eq!(Response::Failed("not\ntoday".into()).to_string(), "failed not today");
        for nonsense in
            ["", "butterfs x", "refused", "refused 1", "refused x y", "refused 1 %1", "refused 1 %zz", "okay"]
        {
            assert_eq!(Response::parse(nonsense), None, "{nonsense}");
        }
    }
}
