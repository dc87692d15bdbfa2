//! INIT: version and features, by a whitelist.
//!
//! A feature is on the list because its structures are decoded here and its duties are met by the adaptor. A kernel
//! that lacks one of the required ones is refused by name: without them names or permissions would come out wrong.

use crate::protocol::flags::{KERNEL_MINOR_VERSION, KERNEL_VERSION, init};
use crate::protocol::wire::{InitIn, InitOut, OutHeader};
use crate::protocol::{Operation, Request};
use crate::transport::dev_fuse::{DevFuse, Received, Sent};
use crate::transport::rings::{self, Prepared, Registered};
use crate::transport::{MAX_DATA_BYTES, REQUEST_BUFFER_BYTES, Transport};
use std::io;
use zerocopy::IntoBytes;

/// Requests of the background (read-ahead, write-back, direct I/O) that the kernel sends at a time.
const MAX_BACKGROUND: u16 = 64;
/// The page size that `max_pages` counts in is the kernel's; this is the smallest.
const PAGE_BYTES: usize = 4096;

/// Features that must be there, with the name to complain by.
const REQUIRED: [(u64, &str); 6] = [
    (init::DONT_MASK, "DONT_MASK"),
    (init::POSIX_ACL, "POSIX_ACL"),
    (init::MAX_PAGES, "MAX_PAGES"),
    (init::NO_OPENDIR_SUPPORT, "NO_OPENDIR_SUPPORT"),
    (init::HANDLE_KILLPRIV_V2, "HANDLE_KILLPRIV_V2"),
    (init::SETXATTR_EXT, "SETXATTR_EXT"),
];

/// Features that are used where they are.
///
/// ASYNC_DIO is not among them, although it lets libaio and io_uring keep many direct requests on their way. With it
/// the kernel sends no FSYNC after such a write to a file that is open with O_SYNC or O_DSYNC, and leaves pages in its
/// cache that somebody read while the write was on its way.
const WANTED: u64 = init::ASYNC_READ
    | init::ATOMIC_O_TRUNC
    | init::EXPORT_SUPPORT
    | init::BIG_WRITES
    | init::HAS_IOCTL_DIR
    | init::DO_READDIRPLUS
    | init::READDIRPLUS_AUTO
    | init::PARALLEL_DIROPS
    | init::CACHE_SYMLINKS
    | init::EXPLICIT_INVAL_DATA
    | init::INIT_EXT;

/// The outcome of the negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// The kernel's minor version of the protocol.
    pub minor: u32,
    /// The features in use, see [`init`].
    pub features: u64,
}

/// A connection on which INIT is answered.
pub struct Connected {
    /// The agreement.
    pub agreement: Agreement,
    /// The queues of io_uring, where it was agreed on.
    pub rings: Option<Registered>,
    /// Why it was not agreed on, where it was asked for.
    pub why_classic: Option<String>,
}

/// Why a connection cannot be served.
#[derive(Debug)]
pub enum Refusal {
    /// As it is.
    Failed(io::Error),
    /// Over io_uring; a fresh one over the classic transport may do.
    Rings(String),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Refusal {
        Refusal::Failed(error)
    }
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> io::Error {
        match refusal {
            Refusal::Failed(error) => error,
            Refusal::Rings(why) => io::Error::other(why),
        }
    }
}

/// Answers INIT on a fresh connection, and hands the kernel the queues of io_uring where `transport` has it so.
pub fn connect(device: &DevFuse, transport: Transport) -> Result<Connected, Refusal> {
    let mut why_classic = None;
    let mut prepared = match transport {
        Transport::Classic => None,
        Transport::Auto if !rings::may_be_offered() => {
            why_classic = Some(rings::why_not_offered());
            None
        }
        Transport::Auto | Transport::Uring => {
            Prepared::new().map_err(|error| why_classic = Some(format!("io_uring cannot be set up: {error}"))).ok()
        }
    };
    if let (Transport::Uring, Some(why)) = (transport, &why_classic) {
        return Err(Refusal::Rings(why.clone()));
    }
    let optional = if prepared.is_some() { init::OVER_IO_URING } else { 0 };
    let agreement = handshake_with(device, optional)?;
    if agreement.features & init::OVER_IO_URING == 0 && prepared.take().is_some() {
        why_classic = Some(rings::why_not_offered());
    }
    let rings = match prepared.map(|prepared| prepared.register(device)) {
        None => None,
        Some(Ok(rings)) => Some(rings),
        Some(Err(error)) => return Err(Refusal::Rings(format!("the kernel refused the queues of io_uring: {error}"))),
    };
    match (transport, why_classic) {
        (Transport::Uring, Some(why)) => Err(Refusal::Rings(why)),
        (_, why_classic) => Ok(Connected { agreement, rings, why_classic }),
    }
}

/// Answers INIT on a fresh connection, for the classic transport. Other requests cannot arrive before.
pub fn handshake(device: &DevFuse) -> io::Result<Agreement> {
    handshake_with(device, 0)
}

fn handshake_with(device: &DevFuse, optional: u64) -> io::Result<Agreement> {
    let mut buffer = vec![0; REQUEST_BUFFER_BYTES];
    loop {
        let received = device.receive(&mut buffer).map_err(|error| match error.kind() {
            // The kernel had a mount of the same block device and gave us that one.
            io::ErrorKind::PermissionDenied => io::Error::other("the device is mounted already"),
            _ => error,
        });
        match received? {
            Received::Nothing => {}
            Received::Ended => return Err(io::Error::other("the mount ended before it began")),
            Received::Request(len) => {
                if let Some(agreement) = first_request(device, &buffer[..len], optional)? {
                    return Ok(agreement);
                }
            }
        }
    }
}

/// Answers the first request. `None`: the kernel speaks a newer major version and will ask again in ours.
fn first_request(device: &DevFuse, bytes: &[u8], optional: u64) -> io::Result<Option<Agreement>> {
    let request =
        Request::decode(bytes).map_err(|error| io::Error::other(format!("{error:?} as the first request")))?;
    let Operation::Init { arguments, flags2 } = request.operation else {
        return Err(io::Error::other(format!("the first request is {}, not INIT", request.header.opcode)));
    };
    let unique = request.header.unique;
    if arguments.major > KERNEL_VERSION {
        reply(device, unique, &InitOut { major: KERNEL_VERSION, minor: KERNEL_MINOR_VERSION, ..InitOut::default() })?;
        return Ok(None);
    }
    match agree(&arguments, flags2, optional) {
        Ok((agreement, answer)) => reply(device, unique, &answer).map(|()| Some(agreement)),
        Err(why) => {
            let header = OutHeader { len: size_of::<OutHeader>() as u32, error: -libc::EPROTO, unique };
            device.send(&header, &[])?;
            Err(io::Error::new(io::ErrorKind::Unsupported, why))
        }
    }
}

fn reply(device: &DevFuse, unique: u64, answer: &InitOut) -> io::Result<()> {
    let len = (size_of::<OutHeader>() + size_of::<InitOut>()) as u32;
    match device.send(&OutHeader { len, error: 0, unique }, answer.as_bytes())? {
        Sent::Taken => Ok(()),
        Sent::Refused => Err(io::Error::other("the mount ended before it began")),
    }
}

/// The answer to the kernel's offer; `optional` flags are wanted beside the fixed ones.
fn agree(offer: &InitIn, flags2: u32, optional: u64) -> Result<(Agreement, InitOut), String> {
    if offer.major < KERNEL_VERSION {
        return Err(format!("the kernel speaks FUSE {}.{}, 7 is needed", offer.major, offer.minor));
    }
    let offered = u64::from(offer.flags) | if offers_more(offer) { u64::from(flags2) << 32 } else { 0 };
    if let Some((_, name)) = REQUIRED.iter().find(|(bit, _)| offered & bit == 0) {
        return Err(format!("the kernel's FUSE lacks {name} (Linux 5.14 has it)"));
    }
    let required = REQUIRED.iter().fold(0, |bits, (bit, _)| bits | bit);
    let features = offered & (required | WANTED | optional);
    let answer = InitOut {
        major: KERNEL_VERSION,
        minor: KERNEL_MINOR_VERSION.min(offer.minor),
        max_readahead: offer.max_readahead,
        flags: features as u32,
        max_background: MAX_BACKGROUND,
        congestion_threshold: MAX_BACKGROUND / 4 * 3,
        max_write: MAX_DATA_BYTES as u32,
        time_gran: 1,
        max_pages: (MAX_DATA_BYTES / PAGE_BYTES) as u16,
        flags2: (features >> 32) as u32,
        ..InitOut::default()
    };
    Ok((Agreement { minor: offer.minor, features }, answer))
}

fn offers_more(offer: &InitIn) -> bool {
    u64::from(offer.flags) & init::INIT_EXT != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(flags: u64) -> InitIn {
        InitIn { major: 7, minor: 40, max_readahead: 128 << 10, flags: flags as u32 }
    }

    #[test]
    fn only_what_is_known_is_agreed_on() {
        let (agreement, answer) = agree(&offer(u64::MAX), u32::MAX, 0).unwrap();
        let required = REQUIRED.iter().fold(0, |bits, (bit, _)| bits | bit);
        assert_eq!(agreement.features, WANTED | required);
        assert_eq!(agreement.features & init::ASYNC_DIO, 0);
        assert_eq!(u64::from(answer.flags) | u64::from(answer.flags2) << 32, agreement.features);
        assert_eq!((answer.minor, answer.max_readahead), (40, 128 << 10));
    }

    #[test]
    fn only_offered_features_are_agreed_on() {
        let required = REQUIRED.iter().fold(0, |bits, (bit, _)| bits | bit);
        assert_eq!(agree(&offer(required), u32::MAX, 0).unwrap().0.features, required);
    }

    #[test]
    fn a_kernel_that_lacks_something_is_refused_by_name() {
        for (bit, name) in REQUIRED {
            let why = agree(&offer(!bit), 0, 0).unwrap_err();
            assert!(why.contains(name), "{why}");
        }
        assert!(agree(&InitIn { major: 6, ..offer(u64::MAX) }, 0, 0).is_err());
    }
}
