//! Data covered by `fsync` is there after a power cut: scripts of operations, cut right after an `fsync` that wrote a
//! log, checked after the kernel's replay of the log (and `btrfs check`).

mod files;
mod flushes;
mod full;
mod names;
mod world;

use butterfs_testkit::engine::FORMATS;
use butterfs_testkit::requirement;
use butterfs_testkit::watchdog::Watchdog;
use world::{World, options};

/// Runs scripts, each on a filesystem of its own, cuts the power, and checks.
fn judge(test: &str, format: usize, scripts: &[(&str, &str)]) {
    if !requirement::kernel_btrfs(test) {
        return;
    }
    let watchdog = Watchdog::new(test, 300);
    for (script, expected) in scripts {
        watchdog.note(script);
        let mut world = World::new(&FORMATS[format], options());
        world.run(script);
        world.judge_by_us(script, expected);
        world.judge_by_kernel(script, expected);
    }
}
