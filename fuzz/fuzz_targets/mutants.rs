//! The target `mutants` of `butterfs_testkit::fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    (butterfs_testkit::fuzz::target("mutants").expect("it is in the table").run)(input);
});
