//! On which processors a thread of a queue runs.
//!
//! At home, on the queue's processor: the client waits there, and waking a thread of another one costs more than a
//! small request. One with much to do is served wherever a processor is free. At home it would take turns with the
//! client that works on what came before, and so would the threads that help with it, which begin with the processors
//! of who starts them.

use crate::protocol::request::opcode;
use crate::protocol::wire::{InHeader, ReadIn};
use rustix::thread::CpuSet;
use zerocopy::FromBytes;

/// Bytes of a read or write that has much to do: more than one compressed extent.
const MUCH_BYTES: usize = 128 << 10;

/// The processors of the current thread. A copy is for a thread that it starts.
#[derive(Clone, Copy)]
pub struct Affinity {
    home: CpuSet,
    anywhere: CpuSet,
    away: bool,
}

impl Affinity {
    /// Moves this thread, which can run wherever the process may, to the processor of `queue`, if it is one of those.
    pub fn at_home(queue: u16) -> Affinity {
        let anywhere = rustix::thread::sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
        let (mut home, own) = (anywhere, usize::from(queue));
        if own < CpuSet::MAX_CPU && anywhere.is_set(own) {
            home = CpuSet::new();
            home.set(own);
        }
        let mut affinity = Affinity { home, anywhere, away: true };
        affinity.go(false);
        affinity
    }

    /// Goes where `request` is to be served.
    pub fn prepare_for(&mut self, request: &[u8]) {
        self.go(has_much_to_do(request));
    }

    fn go(&mut self, away: bool) {
        if self.away != away {
            // Where it may not go it stays: that is slower, and no more.
            let _ = rustix::thread::sched_setaffinity(None, if away { &self.anywhere } else { &self.home });
            self.away = away;
        }
    }
}

/// Whether a request moves many bytes, or may write back what many others have left behind.
fn has_much_to_do(request: &[u8]) -> bool {
    let Ok((header, arguments)) = InHeader::read_from_prefix(request) else { return false };
    match header.opcode {
        opcode::Read => ReadIn::read_from_prefix(arguments).is_ok_and(|(read, _)| read.size as usize >= MUCH_BYTES),
        opcode::Write => arguments.len() >= MUCH_BYTES,
        opcode::Fsync | opcode::Fsyncdir | opcode::Syncfs | opcode::Destroy => true,
        opcode::Fallocate | opcode::CopyFileRange | opcode::CopyFileRange64 => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    fn request(opcode: u32, arguments: &[u8]) -> Vec<u8> {
        [InHeader { opcode, ..InHeader::default() }.as_bytes(), arguments].concat()
    }

    #[test]
    fn large_requests_have_much_to_do() {
        let read = |size: usize| request(opcode::Read, ReadIn { size: size as u32, ..ReadIn::default() }.as_bytes());
        assert!(!has_much_to_do(&read(MUCH_BYTES - 1)) && has_much_to_do(&read(MUCH_BYTES)));
        assert!(!has_much_to_do(&request(opcode::Write, &[0; 4096])));
        assert!(has_much_to_do(&request(opcode::Write, &[0; MUCH_BYTES + 40])));
        assert!(has_much_to_do(&request(opcode::Fsync, &[])) && !has_much_to_do(&request(opcode::Lookup, b"a\0")));
        assert!(!has_much_to_do(&[]) && !has_much_to_do(&request(opcode::Read, &[])));
    }

    #[test]
    fn a_thread_goes_away_and_comes_home() {
        let allowed = || rustix::thread::sched_getaffinity(None).expect("its own");
        std::thread::spawn(move || {
            let before = allowed();
            let first = (0..CpuSet::MAX_CPU).find(|cpu| before.is_set(*cpu)).expect("it runs somewhere");
            let mut affinity = Affinity::at_home(first as u16);
            assert!(allowed().count() == 1 && allowed().is_set(first));
            affinity.prepare_for(&request(opcode::Syncfs, &[]));
            assert_eq!(allowed().count(), before.count());
            affinity.prepare_for(&request(opcode::Getattr, &[]));
            assert_eq!(allowed().count(), 1);
            let stays = Affinity::at_home(u16::MAX);
            assert!(!stays.away && allowed().count() == 1);
        })
        .join()
        .expect("no failure");
    }
}
