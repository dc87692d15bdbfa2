//! A short run of every fuzz target, and the inputs that once failed.
//!
//! `BUTTERFS_FUZZ=100` does a hundred times as much; `BUTTERFS_FUZZ_SEED` begins elsewhere.

use butterfs_testkit::fuzz::{TARGETS, from_hex, smoke, target};
use butterfs_testkit::watchdog::Watchdog;

/// Inputs that failed, by target; fixed, and kept.
const FAILED_ONCE: &[(&str, &str)] = &[
    // A packed extent that says that it is larger than any.
    ("image", "08bd2472ac7a06c1f4a9628ef1c736a8ab0745ad6596f9ba1f8dc33cab07453d6096f9ba1f8dc33c"),
    // An entry that leads to a key of no type.
    ("image", "1a003c136eaab2eb83823d3054922fb1cc09d75b18dff714ff00"),
];

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

fn smoke_of(name: &str) {
    let (times, seed) = (number("BUTTERFS_FUZZ", 1), number("BUTTERFS_FUZZ_SEED", 2026));
    let watchdog = Watchdog::new(name, 300 * times);
    watchdog.note(&format!("seed {seed}"));
    let target = target(name).expect("it is in the table");
    smoke(target, seed, target.smoke_runs * times as u32);
}

macro_rules! smokes {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            smoke_of(stringify!($name));
        })*

        #[test]
        fn every_target_has_a_smoke_test() {
            assert_eq!(TARGETS.iter().map(|target| target.name).collect::<Vec<_>>(), [$(stringify!($name)),*]);
        }
    };
}

smokes! { superblock items nodes image mutants trees filesystem }

#[test]
fn inputs_that_failed_once_do_not_fail_again() {
    for (name, input) in FAILED_ONCE {
        let target = target(name).unwrap_or_else(|| panic!("there is no target {name}"));
        (target.run)(&from_hex(input));
    }
}
