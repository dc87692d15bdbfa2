//! The destination of the stream of a `send`: a descriptor of another process, whose reader may stop reading for ever.
//!
//! Invariant: a write ends soon after the stream is not wanted any more, whatever the reader of a pipe or socket does.
//! The descriptor's flags stay as they are, because others have it too. Other kinds (files, devices) are written as
//! usual.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};
use rustix::net::{SendFlags, send};
use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// Polling interval for the end of the reader while nothing can be written.
const HEARTBEAT: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
/// PIPE_BUF: as much never waits where poll(2) has found room.
const PIPE_BUF: usize = 4096;

/// See the [module](self).
pub struct Outlet<'a> {
    file: File,
    way: Way,
    is_wanted: &'a AtomicBool,
}

/// How to write without waiting.
#[derive(Clone, Copy)]
enum Way {
    Pipe,
    /// A kernel before 6.4, whose pipes know no RWF_NOWAIT.
    OldPipe,
    Socket,
    /// Does not wait for a reader.
    Other,
}

impl<'a> Outlet<'a> {
    pub fn new(descriptor: OwnedFd, is_wanted: &'a AtomicBool) -> Outlet<'a> {
        let kind = fstat(&descriptor).map(|stat| FileType::from_raw_mode(stat.st_mode));
        let way = match kind {
            Ok(FileType::Fifo) => Way::Pipe,
            Ok(FileType::Socket) => Way::Socket,
            _ => Way::Other,
        };
        Outlet { file: File::from(descriptor), way, is_wanted }
    }

    /// Writes what there is room for. `AGAIN`: nothing.
    fn write_some(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        match self.way {
            Way::Pipe => match pwritev2(&self.file, &[IoSlice::new(bytes)], u64::MAX, ReadWriteFlags::NOWAIT) {
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                    self.way = Way::OldPipe;
                    Err(Errno::AGAIN)
                }
                outcome => outcome,
            },
            Way::OldPipe if !self.has_room(&Timespec::default())? => Err(Errno::AGAIN),
            Way::OldPipe => rustix::io::write(&self.file, &bytes[..bytes.len().min(PIPE_BUF)]),
            Way::Socket => send(&self.file, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL),
            Way::Other => rustix::io::write(&self.file, bytes),
        }
    }

    /// Waits for room, but not for long.
    fn has_room(&self, patience: &Timespec) -> Result<bool, Errno> {
        match poll(&mut [PollFd::new(&self.file, PollFlags::OUT)], Some(patience)) {
            Err(Errno::INTR) => Ok(false),
            outcome => outcome.map(|ready| ready > 0),
        }
    }
}

impl Write for Outlet<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        while self.is_wanted.load(Ordering::Relaxed) {
            match self.write_some(bytes) {
                Err(Errno::AGAIN) => drop(self.has_room(&HEARTBEAT)?),
                Err(Errno::INTR) => {}
                outcome => return Ok(outcome?),
            }
        }
        Err(io::Error::other("the sending command is gone"))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    fn check(descriptor: OwnedFd, way: Option<Way>, mut reader: impl Read + Send) {
        let (wanted, bytes) = (AtomicBool::new(true), vec![7; 3 << 20]);
        let mut outlet = Outlet::new(descriptor, &wanted);
        outlet.way = way.unwrap_or(outlet.way);
        std::thread::scope(|scope| {
            let whole = scope.spawn(|| outlet.write_all(&bytes).map(|()| outlet));
            let mut read = vec![0; bytes.len()];
            reader.read_exact(&mut read).unwrap();
            assert!(read == bytes);
            let mut outlet = whole.join().unwrap().unwrap();
            // Nobody reads any more.
            let stopped = scope.spawn(move || outlet.write_all(&[7; 3 << 20]).unwrap_err());
            std::thread::sleep(Duration::from_millis(50));
            assert!(!stopped.is_finished());
            wanted.store(false, Ordering::Relaxed);
            assert!(stopped.join().unwrap().to_string().contains("gone"));
        });
    }

    #[test]
    fn writing_ends_when_the_stream_is_not_wanted() {
        for way in [None, Some(Way::OldPipe)] {
            let (reader, writer) = io::pipe().unwrap();
            check(writer.into(), way, reader);
        }
        let (reader, writer) = UnixStream::pair().unwrap();
        check(writer.into(), None, reader);
    }
}
