//! Receiving as a question: `receive DIR OPTIONS ERRORS VERBOSITY`, with a descriptor that the stream is read from.
//!
//! DIR as [`subvolumes`](butterfs_fuse::subvolumes) names inodes; options by name, separated by commas; after how many
//! errors to stop, 0 for never; −1, 0, 1 or 2 for how much is told. What is told comes as reports, see [`ReceiveReport`].

use butterfs_fs::Errno;
use butterfs_fuse::control::Report;
use butterfs_fuse::subvolumes::{Answer, Record, Refusal, Stage, changed_inode_of};
use butterfs_send::apply::{self, Engine, Options, ReceiveReport, ReceiveReporter, Summary};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

/// What a pipe is made to hold, so that its two ends wait for each other less.
const PIPE_BYTES: usize = 1 << 20;

const FIRST_STREAM_ONLY: &str = "first-stream-only";
const FORCE_DECOMPRESS: &str = "force-decompress";

/// What `receive` is asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// The word for the directory.
    pub directory: Vec<u8>,
    pub first_stream_only: bool,
    pub force_decompress: bool,
    pub max_errors: u64,
    pub verbosity: i32,
}

fn malformed() -> Refusal {
    Refusal::new(Errno::EINVAL.0, "the question makes no sense")
}

impl Request {
    /// As a question.
    pub fn to_words(&self) -> Record {
        let chosen = [(self.first_stream_only, FIRST_STREAM_ONLY), (self.force_decompress, FORCE_DECOMPRESS)];
        let options: Vec<&str> = chosen.iter().filter(|(is, _)| *is).map(|(_, name)| *name).collect();
        let texts = ["receive".to_owned(), options.join(","), self.max_errors.to_string(), self.verbosity.to_string()];
        let [verb, options, errors, verbosity] = texts.map(String::into_bytes);
        vec![verb, self.directory.clone(), options, errors, verbosity]
    }

    /// What words ask for.
    fn parse(words: &[Vec<u8>]) -> Option<Request> {
        let [directory, options, errors, verbosity] = words else { return None };
        let text = |word: &[u8]| std::str::from_utf8(word).map(str::to_owned).ok();
        let options = text(options)?;
        let has = |name| options.split(',').any(|option| option == name);
        Some(Request {
            directory: directory.clone(),
            first_stream_only: has(FIRST_STREAM_ONLY),
            force_decompress: has(FORCE_DECOMPRESS),
            max_errors: text(errors)?.parse().ok()?,
            verbosity: text(verbosity)?.parse().ok()?,
        })
    }
}

/// While no stream comes, how often the asking command is looked for.
const HEARTBEAT: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// A stream that ends with an error when the asking command is gone, also while nothing can be read: whoever writes the
/// stream may keep a pipe open for ever that nobody wants to be read any more.
struct Wanted<'a> {
    file: File,
    is_wanted: &'a Cell<bool>,
    /// Tells the command that it is waited for the stream; false when the command is gone.
    is_there: &'a dyn Fn() -> bool,
}

impl Wanted<'_> {
    /// Whether there is something to read, now or soon.
    fn has_come(&self) -> io::Result<bool> {
        match poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(&HEARTBEAT)) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl Read for Wanted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.is_wanted.get() {
            if self.has_come()? {
                return self.file.read(buffer);
            }
            self.is_wanted.set((self.is_there)());
        }
        Err(io::Error::other("the receiving command is gone"))
    }
}

/// Answers the question.
pub(super) fn receive(stage: &Stage<'_>, words: &[Vec<u8>], descriptor: OwnedFd, report: Report<'_>) -> Answer {
    let request = Request::parse(words).ok_or_else(malformed)?;
    let destination = changed_inode_of(stage, &request.directory)?;
    // Only pipes can be made larger, and only up to the user's limit.
    let _ = rustix::pipe::fcntl_setpipe_size(&descriptor, PIPE_BYTES);
    let is_wanted = Cell::new(true);
    let report = RefCell::new(report);
    let is_there = || (*report.borrow_mut())(&[b"waiting".to_vec()]);
    let input = Wanted { file: File::from(descriptor), is_wanted: &is_wanted, is_there: &is_there };
    let mut engine = Engine::new(stage.filesystem.clone(), destination)
        .force_decompress(request.force_decompress)
        .on_change(Box::new(|directory, name| (stage.changed)(directory, name)))
        .on_close(Box::new(|directory, name, is_closed| (stage.closed)(directory, name, is_closed)));
    let mut tell = |news: ReceiveReport| {
        if !(*report.borrow_mut())(&to_words(news)) {
            is_wanted.set(false);
        }
    };
    let options = Options { max_errors: request.max_errors, first_stream_only: request.first_stream_only };
    let summary = apply::receive(input, &mut engine, &options, &mut ReceiveReporter::new(request.verbosity, &mut tell));
    let Summary { streams, sections, commands, bytes, errors } = summary;
    Ok(vec![[streams, sections, commands, bytes, errors].map(|number| number.to_string().into_bytes()).to_vec()])
}

fn to_words(news: ReceiveReport) -> Record {
    let line = |word: &str, line: String| vec![word.as_bytes().to_vec(), line.into_bytes()];
    match news {
        ReceiveReport::Out(text) => line("out", text),
        ReceiveReport::Err(text) => line("err", text),
        ReceiveReport::Error(text) => line("error", text),
        ReceiveReport::Progress { bytes, commands } => {
            vec![b"progress".to_vec(), bytes.to_string().into_bytes(), commands.to_string().into_bytes()]
        }
    }
}

/// What a report tells; none where it tells nothing, or makes no sense.
pub fn news_of(words: &[Vec<u8>]) -> Option<ReceiveReport> {
    let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    let number = |word: &[u8]| text(word).parse().ok();
    match words {
        [word, line] => match word.as_slice() {
            b"out" => Some(ReceiveReport::Out(text(line))),
            b"err" => Some(ReceiveReport::Err(text(line))),
            b"error" => Some(ReceiveReport::Error(text(line))),
            _ => None,
        },
        [word, bytes, commands] if word == b"progress" => {
            Some(ReceiveReport::Progress { bytes: number(bytes)?, commands: number(commands)? })
        }
        _ => None,
    }
}

/// The summary in an answer.
pub fn summary_of(records: &[Record]) -> Option<Summary> {
    let numbers: Vec<u64> =
        records.first()?.iter().map(|word| std::str::from_utf8(word).ok()?.parse().ok()).collect::<Option<_>>()?;
    let [streams, sections, commands, bytes, errors] = numbers[..] else { return None };
    Some(Summary { streams, sections, commands, bytes, errors })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_lead_back() {
        let request = Request {
            directory: b"@0".to_vec(),
            first_stream_only: true,
            force_decompress: false,
            max_errors: 3,
            verbosity: -1,
        };
        let parsed = Request::parse(&request.to_words()[1..]).unwrap();
        assert_eq!(parsed.to_words(), request.to_words());
        assert!(Request::parse(&[]).is_none());
        for news in [
            ReceiveReport::Out("a b".into()),
            ReceiveReport::Error("%".into()),
            ReceiveReport::Progress { bytes: 7, commands: 8 },
        ] {
            assert_eq!(news_of(&to_words(news.clone())), Some(news));
        }
        assert!(news_of(&[b"sing".to_vec(), Vec::new()]).is_none());
        assert!(news_of(&[b"waiting".to_vec()]).is_none());
    }
}
