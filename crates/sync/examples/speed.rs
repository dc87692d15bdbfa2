//! The cost of the seam: locks of this crate and of `parking_lot`, taken and released without anybody in the way.
//!
//! `cargo run --release -p butterfs-sync --example speed [ROUNDS]`. Each figure is the least of several tries, in
//! nanoseconds for one lock and its release. With a second word (`ours`, `theirs`) only that side runs, for tools that
//! count instructions.

use std::hint::black_box;
use std::time::Instant;

const TRIES: usize = 15;

fn least(rounds: u64, mut work: impl FnMut()) -> f64 {
    let tries = (0..TRIES).map(|_| {
        let start = Instant::now();
        (0..rounds).for_each(|_| work());
        start.elapsed().as_nanos() as f64 / rounds as f64
    });
    tries.fold(f64::INFINITY, f64::min)
}

macro_rules! side {
    ($name:ident, $locks:ident) => {
        fn $name(rounds: u64) -> [f64; 3] {
            let (mutex, lock) = (black_box($locks::Mutex::<_>::new(1u64)), black_box($locks::RwLock::<_>::new(1u64)));
            [
                least(rounds, || *mutex.lock() += 1),
                least(rounds, || assert_ne!(black_box(*lock.read()), 0)),
                least(rounds, || *lock.write() += 1),
            ]
        }
    };
}

side!(ours, butterfs_sync);
side!(theirs, parking_lot);

fn main() {
    let mut words = std::env::args().skip(1);
    let rounds = words.next().map_or(2_000_000, |word| word.parse().expect("a number of rounds"));
    let side = words.next();
    let asked = |name: &str| side.as_deref().is_none_or(|side| side == name);
    let figures = |name: &str, run: fn(u64) -> [f64; 3]| if asked(name) { run(rounds) } else { [f64::NAN; 3] };
    let (ours, theirs) = (figures("ours", ours), figures("theirs", theirs));
    for (what, (ours, theirs)) in ["mutex", "read", "write"].iter().zip(ours.iter().zip(theirs)) {
        println!("{what:6} {ours:6.2} ns, parking_lot {theirs:6.2} ns, {:+.2} ns", ours - theirs);
    }
}
