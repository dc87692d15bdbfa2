//! A disk that a server of the NBD protocol exports over a socket of this machine: `qemu-nbd` shows disks of every form
//! that QEMU knows this way, with their backing files.
//!
//! # Invariants
//! 1. A request asks for at most [`AT_ONCE`] bytes, and an answer brings no more.
//! 2. After an answer that breaks the protocol, none within [`PATIENCE`], or a flush that failed, nothing more is sent:
//!    every later request fails.

use super::fields::{be_u16, be_u32, be_u64};
use crate::error::{Error, Result};
use butterfs_device::BlockDevice;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes of a request.
const AT_ONCE: usize = 1 << 20;
/// The time that a server has for an answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest message that is read.
const MAX_MESSAGE: u32 = 4096;

const GREETING: &[u8; 16] = b"NBDMAGICIHAVEOPT";
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
/// "Fixed" and without padding.
const CLIENT_FLAGS: u32 = 3;
/// The option that begins the work.
const GO: u32 = 7;
const ACKNOWLEDGED: u32 = 1;
const INFO: u32 = 3;
const IS_ERROR: u32 = 1 << 31;

const REQUEST: u32 = 0x2560_9513;
const REPLY: u32 = 0x6744_6698;

/// Kinds of requests.
const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;

/// Flags of an export.
const READ_ONLY: u16 = 1 << 1;
const HAS_FLUSH: u16 = 1 << 2;
const HAS_TRIM: u16 = 1 << 5;

/// An exported disk. See the [module](self).
#[derive(Debug)]
pub struct NbdDevice {
    socket: PathBuf,
    len: u64,
    flags: u16,
    /// `None` when nothing more is sent.
    connection: Mutex<Option<Connection>>,
}

#[derive(Debug)]
struct Connection {
    stream: UnixStream,
    cookie: u64,
}

impl NbdDevice {
    /// The default export of the server that listens at `socket`.
    pub fn connect(socket: impl AsRef<Path>) -> Result<NbdDevice> {
        let socket = socket.as_ref();
        let named = |error: io::Error| Error::source(format!("cannot use nbd:unix:{}: {error}", socket.display()));
        let connected = || -> io::Result<(UnixStream, u64, u16)> {
            let mut stream = UnixStream::connect(socket)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            let (len, flags) = begin(&mut stream)?;
            Ok((stream, len, flags))
        };
        let (stream, len, flags) = connected().map_err(named)?;
        let connection = Mutex::new(Some(Connection { stream, cookie: 0 }));
        Ok(NbdDevice { socket: socket.to_owned(), len, flags, connection })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Connection>> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request with its data, and fills `answer`.
    fn ask(&self, kind: u16, offset: u64, len: u32, data: &[u8], answer: &mut [u8]) -> io::Result<()> {
        let mut connection = self.lock();
        let Some(open) = connection.as_mut() else { return Err(broken("the connection has ended")) };
        match open.ask(kind, offset, len, data, answer) {
            Ok(0) => Ok(()),
            Ok(errno) => {
                // Nobody knows what has become of what was written before.
                *connection = connection.take().filter(|_| kind != FLUSH);
                Err(io::Error::from_raw_os_error(errno.cast_signed()))
            }
            Err(error) => {
                *connection = None;
                Err(error)
            }
        }
    }

    fn check(&self, offset: u64, len: usize, kind: io::ErrorKind) -> io::Result<()> {
        match offset.checked_add(len as u64).is_some_and(|end| end <= self.len) {
            true => Ok(()),
            false => Err(io::Error::new(kind, format!("{len} bytes at {offset} lie outside of {}", self.name()))),
        }
    }
}

impl Connection {
    /// The errno of the answer.
    fn ask(&mut self, kind: u16, offset: u64, len: u32, data: &[u8], answer: &mut [u8]) -> io::Result<u32> {
        self.cookie += 1;
        let head = [&REQUEST.to_be_bytes()[..], &[0, 0], &kind.to_be_bytes(), &self.cookie.to_be_bytes()].concat();
        self.stream.write_all(&[&head[..], &offset.to_be_bytes(), &len.to_be_bytes()].concat())?;
        self.stream.write_all(data)?;
        let head: [u8; 16] = read(&mut self.stream)?;
        if be_u32(&head, 0) != REPLY || be_u64(&head, 8) != self.cookie {
            return Err(broken("the server does not answer what was asked"));
        }
        let errno = be_u32(&head, 4);
        if errno == 0 {
            self.stream.read_exact(answer)?;
        }
        Ok(errno)
    }
}

fn read<const LEN: usize>(stream: &mut UnixStream) -> io::Result<[u8; LEN]> {
    let mut bytes = [0; LEN];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Greets, and asks for the default export: its length and flags.
fn begin(stream: &mut UnixStream) -> io::Result<(u64, u16)> {
    let greeting: [u8; 18] = read(stream)?;
    if !greeting.starts_with(GREETING) || be_u16(&greeting, 16) & 3 != 3 {
        return Err(broken("the server does not speak the newer form of the NBD protocol"));
    }
    stream.write_all(&CLIENT_FLAGS.to_be_bytes())?;
    // A name without bytes, and no information beyond what every server sends.
    stream.write_all(&[&GREETING[8..], &GO.to_be_bytes(), &6u32.to_be_bytes(), &[0; 6]].concat())?;
    let mut found = None;
    // Servers may send information that nobody has asked for; not without end.
    for _ in 0..64 {
        let head: [u8; 20] = read(stream)?;
        let (kind, len) = (be_u32(&head, 12), be_u32(&head, 16));
        if be_u64(&head, 0) != OPTION_REPLY || len > MAX_MESSAGE {
            return Err(broken("the server does not answer what was asked"));
        }
        let mut message = vec![0; len as usize];
        stream.read_exact(&mut message)?;
        match kind {
            INFO if message.len() >= 12 && be_u16(&message, 0) == 0 => {
                found = Some((be_u64(&message, 2), be_u16(&message, 10)));
            }
            INFO => {}
            ACKNOWLEDGED => return found.ok_or_else(|| broken("the server does not say how large its disk is")),
            kind if kind & IS_ERROR != 0 => {
                return Err(broken(&format!("the server refuses: {}", message.escape_ascii())));
            }
            _ => return Err(broken("the server does not answer what was asked")),
        }
    }
    Err(broken("the server does not begin"))
}

impl BlockDevice for NbdDevice {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.check(offset, buf.len(), io::ErrorKind::UnexpectedEof)?;
        let mut parts = (offset..).step_by(AT_ONCE).zip(buf.chunks_mut(AT_ONCE));
        parts.try_for_each(|(at, part)| self.ask(READ, at, part.len() as u32, &[], part))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if self.is_read_only() {
            let message = format!("{} is exported read-only", self.name());
            return Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, message));
        }
        self.check(offset, data.len(), io::ErrorKind::InvalidInput)?;
        let mut parts = (offset..).step_by(AT_ONCE).zip(data.chunks(AT_ONCE));
        parts.try_for_each(|(at, part)| self.ask(WRITE, at, part.len() as u32, part, &mut []))
    }

    fn flush(&self) -> io::Result<()> {
        // Servers without it write through.
        if self.flags & HAS_FLUSH == 0 { Ok(()) } else { self.ask(FLUSH, 0, 0, &[], &mut []) }
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        if !self.supports_discard() || self.is_read_only() {
            return Ok(());
        }
        (offset..offset + len)
            .step_by(AT_ONCE)
            .try_for_each(|at| self.ask(TRIM, at, (offset + len - at).min(AT_ONCE as u64) as u32, &[], &mut []))
    }

    fn supports_discard(&self) -> bool {
        self.flags & HAS_TRIM != 0
    }

    fn name(&self) -> String {
        format!("nbd:unix:{}", self.socket.display())
    }

    fn is_read_only(&self) -> bool {
        self.flags & READ_ONLY != 0
    }
}

impl Drop for NbdDevice {
    fn drop(&mut self) {
        if let Some(open) = self.lock().as_mut() {
            let head = [&REQUEST.to_be_bytes()[..], &[0, 0], &DISCONNECT.to_be_bytes(), &[0; 20]].concat();
            // A farewell, to which there is no answer.
            let _ = open.stream.write_all(&head);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// The end with a server that says these bytes.
    fn served(said: &[&[u8]]) -> String {
        let said = said.concat();
        let path = std::env::temp_dir().join(format!("butterfs-nbd-{}-{}", std::process::id(), said.len()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // The client may have gone.
            let _ = stream.write_all(&said);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = io::copy(&mut stream, &mut io::sink());
        });
        let device = NbdDevice::connect(&path);
        let found = match &device {
            Err(error) => error.to_string(),
            Ok(device) => {
                let first = device.read_at(0, &mut [0; 512]).map_or_else(|error| error.to_string(), |()| "read".into());
                let again = device.read_at(0, &mut [0; 512]).is_ok();
                format!("{} {first} {again}", device.len())
            }
        };
        drop(device);
        std::fs::remove_file(path).unwrap();
        server.join().unwrap();
        found
    }

    const HELLO: &[u8] = b"NBDMAGICIHAVEOPT\0\x03";
    /// Information about an export of 64 KiB, and the end of it.
    const BEGUN: &[u8] = b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x03\0\0\0\x0c\0\0\0\0\0\0\0\x01\0\0\0\x01\
        \0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x01\0\0\0\0";

    #[test]
    fn servers_that_break_the_protocol_end_in_a_sentence() {
        for (said, part) in [
            (&[&b"SSH-2.0-OpenSSH_9.2\r\n"[..]][..], "newer form"),
            (&[b"NBD"], "cannot use nbd:unix:"),
            (&[HELLO, &[0xff; 20]], "does not answer"),
            (&[HELLO, b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\x80\0\0\x06\0\0\0\x04none"], "refuses: none"),
            (&[HELLO, b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x03\xff\0\0\0"], "does not answer"),
            (&[HELLO, b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x01\0\0\0\0"], "how large"),
            (&[HELLO, BEGUN, &[7; 16]], "65536 the server does not answer what was asked false"),
            (&[HELLO, BEGUN, b"\x67\x44\x66\x98\0\0\0\x05\0\0\0\0\0\0\0\x01"], "65536 Input/output error"),
        ] {
            let found = served(said);
            assert!(found.contains(part), "{part}: {found}");
        }
    }
}
