//! Which files are open for writing. Only those can have content in the kernel's cache that has not reached the
//! server: what is written through a mapping, which holds the file open and writes back when it ends.

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// Locks the table is spread over.
const SHARDS: usize = 16;

/// See the [module](self). Files are node ids.
#[derive(Default)]
pub struct Writers {
    shards: [Mutex<FxHashMap<u64, Open>>; SHARDS],
}

/// The users that have a file open for writing. Closing does not say who closes, so users are forgotten with the last
/// descriptor.
#[derive(Default)]
struct Open {
    count: u64,
    users: Vec<u32>,
}

impl Writers {
    /// Notes that `user` opened `node` with the flags of open(2).
    pub fn opened(&self, node: u64, flags: u32, user: u32) {
        if may_write(flags) {
            let mut shard = self.shard(node).lock();
            let open = shard.entry(node).or_default();
            open.count += 1;
            if !open.users.contains(&user) {
                open.users.push(user);
            }
        }
    }

    /// Notes that it was closed; the flags are those it was opened with.
    pub fn closed(&self, node: u64, flags: u32) {
        if !may_write(flags) {
            return;
        }
        let mut shard = self.shard(node).lock();
        if let Some(open) = shard.get_mut(&node) {
            open.count -= 1;
            if open.count == 0 {
                shard.remove(&node);
            }
        }
    }

    /// Whether `node` is open for writing.
    pub fn contains(&self, node: u64) -> bool {
        self.shard(node).lock().contains_key(&node)
    }

    /// Whether `user` is one of those who opened `node` for writing.
    pub fn includes(&self, node: u64, user: u32) -> bool {
        self.shard(node).lock().get(&node).is_some_and(|open| open.users.contains(&user))
    }

    /// All files that are open for writing.
    pub fn all(&self) -> Vec<u64> {
        self.shards.iter().flat_map(|shard| shard.lock().keys().copied().collect::<Vec<_>>()).collect()
    }

    fn shard(&self, node: u64) -> &Mutex<FxHashMap<u64, Open>> {
        &self.shards[node as usize % SHARDS]
    }
}

/// Whether flags of open(2) include writing.
pub fn may_write(flags: u32) -> bool {
    flags as i32 & libc::O_ACCMODE != libc::O_RDONLY
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_writer_counts_and_readers_do_not() {
        let writers = Writers::default();
        let (read, write, both) = (libc::O_RDONLY as u32, libc::O_WRONLY as u32, libc::O_RDWR as u32);
        writers.opened(7, read, 1);
        assert!(!writers.contains(7));
        writers.opened(7, write, 2);
        writers.opened(7, both, 2);
        writers.closed(7, read);
        writers.closed(7, write);
        assert!(writers.contains(7));
        assert!(writers.includes(7, 2) && !writers.includes(7, 1) && !writers.includes(8, 2));
        assert_eq!(writers.all(), [7]);
        writers.closed(7, both);
        writers.closed(7, both);
        assert!(!writers.contains(7) && writers.all().is_empty());
    }
}
