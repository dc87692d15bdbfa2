//! When memory that a mount has used goes back to the system: when much less is held than was, and has been for a
//! while. A program that fills and empties the same buffers again and again is not to ask the system for them each
//! time.

/// The decrease that must have happened.
const EBB_BYTES: u64 = 16 << 20;
/// At so many looks in a row.
const LOOKS: u32 = 5;
/// Caches grow older once in so many looks.
const LOOKS_PER_AGE: u32 = 30;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Tide {
    high: u64,
    low_for: u32,
    looks: u32,
}

impl Tide {
    /// Whether caches are to grow older at this look.
    pub fn ages(&mut self) -> bool {
        self.looks = (self.looks + 1) % LOOKS_PER_AGE;
        self.looks == 0
    }

    /// Whether memory is to be given back, now that `held` bytes are held.
    pub fn ebbs(&mut self, held: u64) -> bool {
        self.high = self.high.max(held);
        self.low_for = if self.high - held >= EBB_BYTES { self.low_for + 1 } else { 0 };
        if self.low_for < LOOKS {
            return false;
        }
        (self.high, self.low_for) = (held, 0);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_once_and_not_while_it_comes_and_goes() {
        let mut tide = Tide::default();
        let mut given_back = |held: &[u64]| held.iter().filter(|held| tide.ebbs(**held << 20)).count();
        assert_eq!(given_back(&[100, 10, 10, 100, 10, 10, 100, 10, 10, 10, 10]), 0);
        assert_eq!(given_back(&[10, 10, 10, 20, 25, 10, 10]), 1);
        assert_eq!(given_back(&[100, 90, 90, 90, 90, 90, 90]), 0);
        assert_eq!(given_back(&[70; 20]), 1);
    }

    #[test]
    fn caches_grow_older_now_and_then() {
        let mut tide = Tide::default();
        assert_eq!((0..90).filter(|_| tide.ages()).count(), 3);
    }
}
