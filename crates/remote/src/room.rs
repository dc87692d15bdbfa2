//! Room for bytes that are on their way from a store: those who ask for more wait until others have arrived.

use butterfs_store::{Error, Kind, Result};
use parking_lot::{Condvar, Mutex};

/// Bytes that are on their way to the readers of a device, beside those that are read ahead.
pub const FOR_READERS: u64 = 8 << 20;

#[derive(Default)]
struct Used {
    bytes: u64,
    most: u64,
    /// Those who have asked, and those of them who need not wait any more: each gets room in turn.
    asked: u64,
    served: u64,
    is_closed: bool,
}

/// See the [module](self).
pub struct Room {
    bytes: u64,
    used: Mutex<Used>,
    less: Condvar,
}

/// Room that was taken; it is given back when this is dropped.
pub struct Taken<'a> {
    room: &'a Room,
    bytes: u64,
}

impl Room {
    /// Room for so many bytes.
    pub fn new(bytes: u64) -> Room {
        Room { bytes, used: Mutex::default(), less: Condvar::new() }
    }

    /// Waits for room for so many bytes; more than there is count as all of it. [`Kind::Cancelled`] after
    /// [`Room::close`].
    pub fn take(&self, bytes: u64) -> Result<Taken<'_>> {
        let bytes = bytes.min(self.bytes);
        let mut used = self.used.lock();
        let turn = used.asked;
        used.asked += 1;
        while (used.served != turn || used.bytes + bytes > self.bytes) && !used.is_closed {
            self.less.wait(&mut used);
        }
        if used.is_closed {
            return Err(Error::new(Kind::Cancelled, "nobody reads ahead any more"));
        }
        used.served += 1;
        self.less.notify_all();
        used.bytes += bytes;
        used.most = used.most.max(used.bytes);
        Ok(Taken { room: self, bytes })
    }

    /// Nobody gets room any more.
    pub fn close(&self) {
        self.used.lock().is_closed = true;
        self.less.notify_all();
    }

    /// The most bytes that were taken at one time.
    pub fn most_used(&self) -> u64 {
        self.used.lock().most
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.room.used.lock().bytes -= self.bytes;
        self.room.less.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn those_who_ask_for_more_wait_and_nobody_waits_after_the_end() {
        let room = Room::new(10);
        let first = room.take(6).unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| room.take(100).is_ok());
            std::thread::sleep(Duration::from_millis(20));
            assert!(!second.is_finished());
            drop(first);
            assert!(second.join().unwrap());
            let all = room.take(10).unwrap();
            let late = scope.spawn(|| room.take(1).is_err());
            room.close();
            assert!(late.join().unwrap() && room.take(1).is_err());
            drop(all);
        });
        assert_eq!(room.most_used(), 10);
    }
}
