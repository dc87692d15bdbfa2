//! The output for commands: encoded into a buffer, which another thread writes while the next one is filled.
//!
//! # Invariants
//! 1. The stream is never held: there are at most `BUFFERS` buffers of about `BUFFER_BYTES`.
//! 2. The maker never waits for the sink without asking its watch now and then whether the stream is still wanted. A
//!    sink that can wait for ever must end by itself once it is not.

use super::error::{Error, Result};
use crate::wire::{Command, Version, encode, encode_filled, encode_header};
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

/// A buffer this full is written.
const BUFFER_BYTES: usize = 512 << 10;
/// Buffers that wait to be written or are being filled.
const BUFFERS: usize = 4;
/// The interval at which the watch is asked while the sink takes nothing.
const HEARTBEAT: Duration = Duration::from_millis(200);

/// The progress of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the stream, its headers included.
    pub bytes: u64,
    /// Commands.
    pub commands: u64,
    /// How much of the subvolume at hand has been gone through, in thousandths; an estimate.
    pub permille: u32,
}

/// Told of the progress now and then, also while the sink takes nothing; `false` ends the work.
pub type Watch<'a> = &'a mut dyn FnMut(&Progress) -> bool;

/// Takes the bytes of a stream.
pub type Sink<'a> = &'a mut (dyn Write + Send);

/// See the [module](self).
pub struct Output<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    writer: Writer<'scope, 'env>,
    version: Version,
    buffer: Vec<u8>,
    written: u64,
    progress: Progress,
    watch: Watch<'env>,
}

enum Writer<'scope, 'env> {
    Idle(Sink<'env>),
    Running(Running<'scope>),
    Failed,
}

struct Running<'scope> {
    full: SyncSender<Vec<u8>>,
    empty: Receiver<Vec<u8>>,
    thread: ScopedJoinHandle<'scope, io::Result<()>>,
}

impl<'scope, 'env> Output<'scope, 'env> {
    pub(super) fn new(
        scope: &'scope Scope<'scope, 'env>,
        sink: Sink<'env>,
        version: Version,
        watch: Watch<'env>,
    ) -> Output<'scope, 'env> {
        let progress = Progress::default();
        Output { scope, writer: Writer::Idle(sink), version, buffer: Vec::new(), written: 0, progress, watch }
    }

    /// The version of the stream.
    pub(super) fn version(&self) -> Version {
        self.version
    }

    /// Appends the header of a stream.
    pub(super) fn header(&mut self) {
        encode_header(self.version, &mut self.buffer);
    }

    /// Appends a command.
    pub(super) fn put(&mut self, command: &Command<'_>) -> Result<()> {
        encode(command, self.version, &mut self.buffer)?;
        self.counted()
    }

    /// Appends a command with data that `fill` appends to the buffer.
    pub(super) fn put_filled(
        &mut self,
        command: &Command<'_>,
        fill: impl FnOnce(&mut Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        encode_filled(command, self.version, &mut self.buffer, fill)?;
        self.counted()
    }

    fn counted(&mut self) -> Result<()> {
        self.progress.commands += 1;
        if self.buffer.len() >= BUFFER_BYTES { self.pass_on() } else { Ok(()) }
    }

    /// Notes how much of the subvolume is done.
    pub(super) fn note(&mut self, permille: u32) {
        self.progress.permille = permille;
    }

    /// The progress of the stream.
    pub fn progress(&self) -> Progress {
        Progress { bytes: self.written + self.buffer.len() as u64, ..self.progress }
    }

    /// Hands the buffer to the writing thread and takes an empty one.
    fn pass_on(&mut self) -> Result<()> {
        self.progress = self.progress();
        if !(self.watch)(&self.progress) {
            return Err(Error::Stopped);
        }
        if let Writer::Idle(_) = self.writer {
            self.start();
        }
        let Writer::Running(running) = &mut self.writer else { return Err(Error::Stopped) };
        let next = match next_buffer(&running.empty, &self.progress, self.watch)? {
            Some(empty) => empty,
            // The thread has failed, and says why.
            None => return self.finish(),
        };
        let full = std::mem::replace(&mut self.buffer, next);
        self.written += full.len() as u64;
        self.buffer.clear();
        if running.full.send(full).is_err() {
            return self.finish();
        }
        Ok(())
    }

    fn start(&mut self) {
        let Writer::Idle(sink) = std::mem::replace(&mut self.writer, Writer::Failed) else { return };
        let (full, to_write) = sync_channel::<Vec<u8>>(BUFFERS);
        let (give_back, empty) = sync_channel(BUFFERS);
        (1..BUFFERS).for_each(|_| drop(give_back.try_send(Vec::with_capacity(BUFFER_BYTES * 5 / 4))));
        let thread = self.scope.spawn(move || {
            for buffer in to_write {
                sink.write_all(&buffer)?;
                let _ = give_back.try_send(buffer);
            }
            sink.flush()
        });
        self.writer = Writer::Running(Running { full, empty, thread });
    }

    /// Writes what is left and waits until everything is written.
    pub(super) fn finish(&mut self) -> Result<()> {
        let rest = std::mem::take(&mut self.buffer);
        self.written += rest.len() as u64;
        if let Writer::Idle(_) = self.writer {
            self.start();
        }
        let Writer::Running(running) = std::mem::replace(&mut self.writer, Writer::Failed) else {
            return Err(Error::Stopped);
        };
        let Running { full, empty, thread } = running;
        // Refused only by a thread that has failed, and says why when it is joined.
        let _ = full.send(rest);
        drop(full);
        self.progress = self.progress();
        while next_buffer(&empty, &self.progress, self.watch)?.is_some() {}
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the writing thread panicked")))?;
        let progress = self.progress;
        let _ = (self.watch)(&progress);
        Ok(())
    }
}

/// Waits for a buffer that has been written. `None`: the thread has ended.
fn next_buffer(empty: &Receiver<Vec<u8>>, progress: &Progress, watch: Watch<'_>) -> Result<Option<Vec<u8>>> {
    loop {
        match empty.recv_timeout(HEARTBEAT) {
            Ok(buffer) => return Ok(Some(buffer)),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) if watch(progress) => {}
            Err(RecvTimeoutError::Timeout) => return Err(Error::Stopped),
        }
    }
}
