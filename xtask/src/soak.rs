//! `cargo xtask soak`: long runs that a test run has no time for. Builds the command and the tests with full
//! optimisation, then runs the ignored tests that the words stand for; their output is shown as it comes.

use crate::{suites, tools, workspace};
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

/// A word, the package and test program, the test, and what makes it longer.
const RUNS: &[(&str, &str, &str, &str)] = &[
    ("stress-ng", "butterfs-testkit", "soak", "every_stressor_beside_the_kernel"),
    ("fsx", "butterfs-testkit", "soak", "fsx_in_each_mode"),
    ("random", "butterfs-fs", "contents", "random::soak"),
    ("kernel-left", "butterfs-fs", "devices", "left::work_of_the_kernel_is_finished_at_many_moments"),
    ("mutants", "butterfs-testkit", "mutants", "soak"),
    ("objects", "butterfs-cli", "stream", "puts_and_gets_that_are_killed_continue"),
    ("objects", "butterfs-objects", "objects", "resumed::a_half_failing_server_is_normal"),
    ("ceph", "butterfs-cli", "volume", "ceph_serves_volumes_and_snapshots"),
    ("volumes", "butterfs-cli", "volume", "what_was_synced_is_there_after_kills_on_a_server_that_fails"),
    ("volumes", "butterfs-remote", "volumes", "model::what_was_flushed_is_there_after_a_crash"),
    ("volumes", "butterfs-sim", "objects", "hosts_take_a_volume_over_and_no_state_mixes_them"),
    ("rescue", "butterfs-rescue", "rescue", "damage::at_least_as_many_files_are_saved_from_many"),
    ("rescue-repairs", "butterfs-rescue", "rescue", "repairs::repairs_keep_at_least_as_many_files"),
    ("rescue-profiles", "butterfs-rescue", "rescue", "profiles::stripes_of_all_profiles_are_put_in_order"),
    ("rescue-mutants", "butterfs-rescue", "hostile", "many_mutants_end_in_a_sentence_or_files"),
    ("full-disk", "butterfs-testkit", "full_disk_kills", "killed_on_a_full_disk"),
    ("costs", "butterfs-fs", "costs", "beside_everything"),
    ("waits", "butterfs-fs", "costs", "waits::others_do_not_wait_anywhere"),
    ("growth", "butterfs-cli", "growth", "through_a_mount_beside_everything"),
    ("growth-waits", "butterfs-cli", "growth", "others_do_not_wait_and_memory_comes_back"),
    ("fio", "butterfs-testkit", "neighbours", "scripts::fio_with_every_engine_and_flag"),
    ("rsync", "butterfs-testkit", "neighbours", "scripts::rsync_twice"),
    ("git", "butterfs-testkit", "neighbours", "scripts::git_in_parallel"),
    ("fio-kills", "butterfs-testkit", "neighbours", "killed::fio_killed_with_each_engine"),
    ("git-kills", "butterfs-testkit", "neighbours", "killed::git_killed_while_it_packs"),
    ("git-suite", "butterfs-testkit", "neighbours", "suites::the_suite_of_git"),
    ("sqlite-suite", "butterfs-testkit", "neighbours", "suites::the_suite_of_sqlite"),
    ("containers", "butterfs-testkit", "neighbours", "containers::containers_with_each_driver"),
    ("sqlite", "butterfs-testkit", "neighbours", "sqlite::sqlite_in_each_journal_mode"),
    ("overlay", "butterfs-testkit", "neighbours", "overlay::overlayfs_on_top"),
    ("server", "butterfs-testkit", "neighbours", "server::memory_and_descriptors_come_back"),
    ("pjdfstest", "butterfs-testkit", "posix", "pjdfstest"),
    ("intruders", "butterfs-cli", "kills", "intruders::killed_while_an_intruder_comes_among_writers"),
    ("intruders-quiet", "butterfs-cli", "kills", "intruders::killed_while_a_sync_meets_what_an_intruder_left"),
    ("receives", "butterfs-cli", "kills", "receives::servers_of_receives_are_killed"),
    ("btrbk", "butterfs-cli", "backup_tool", "btrbk_with_kills"),
    ("repairs", "butterfs-repair", "planted", "kernel::every_repair_is_judged_by_the_kernel"),
    ("repair-kills", "butterfs-cli", "repair", "killed_and_run_again_as_if_never_killed"),
    ("lost-blocks", "butterfs-repair", "random", "lost_blocks_of_any_tree_for_long"),
    ("wheel", "butterfs-python", "wheel", "the_wheel_works"),
    ("images", "butterfs-image", "images", "debian::an_installed_system_boots_from_each_source"),
    ("images", "butterfs-image", "images", "random::many_random_trees_come_out_as_they_went_in"),
    ("images", "butterfs-image", "images", "hostile::ten_million_entries_take_bounded_memory"),
    ("images", "butterfs-cli", "image", "the_example_runs_in_a_container"),
    ("images", "butterfs-cli", "image", "mkosi_builds_with_our_mkfs"),
];

/// Rounds, kills, and factors for the scenes of costs and for neighbours, unless the environment says otherwise.
const LONGER: [(&str, &str); 6] = [
    ("BUTTERFS_OBJECT_ROUNDS", "500"),
    ("BUTTERFS_VOLUME_ROUNDS", "500"),
    ("BUTTERFS_SIMULATED_VOLUMES", "2000"),
    ("BUTTERFS_TORTURE", "200"),
    ("BUTTERFS_COSTS", "4"),
    ("BUTTERFS_NEIGHBOURS", "5"),
];

/// Runs what `words` name, everything without a name. Optimised; `--debug` among the words builds the tests in the
/// profile of a test run instead, where every lock checks its order and arithmetic its overflow.
pub fn run(words: &[&str]) -> Result<bool, String> {
    let is_debug = words.contains(&"--debug");
    let names: Vec<&str> = words.iter().copied().filter(|word| *word != "--debug").collect();
    if let Some(name) = names.iter().find(|name| RUNS.iter().all(|(known, ..)| known != *name)) {
        let mut known: Vec<&str> = RUNS.iter().map(|(name, ..)| *name).collect();
        known.dedup();
        return Err(format!("soak does not know {name}; it knows {}", known.join(", ")));
    }
    tools::ensure().iter().for_each(|why| println!("soak: {why}"));
    let build = ["build", "--release", "-p", "butterfs-cli"];
    if !start(Command::new("cargo").args(build).current_dir(workspace::root()))? {
        return Ok(false);
    }
    let scratch = std::env::var_os("BUTTERFS_SCRATCH").map_or_else(workspace::scratch, PathBuf::from);
    std::fs::create_dir_all(&scratch).map_err(|error| format!("cannot create {}: {error}", scratch.display()))?;
    let mut lines = Vec::new();
    for (name, package, program, test) in RUNS.iter().filter(|(name, ..)| names.is_empty() || names.contains(name)) {
        if let Err(why) = suites::ensure(name) {
            lines.push((false, format!("{name}: {why}")));
            continue;
        }
        println!("soak {name}: {package} {program} {test}");
        let mut command = Command::new("cargo");
        command.args(["test", "-p", package, "--test", program]).args((!is_debug).then_some("--release"));
        command.args(["--", "--include-ignored", "--nocapture", "--exact", test]);
        command.current_dir(workspace::root()).envs(tools::environment()).env("BUTTERFS_SCRATCH", &scratch);
        command.env("BUTTERFS_BIN", workspace::target().join("release/butterfs"));
        command.envs(LONGER.iter().filter(|(name, _)| std::env::var_os(name).is_none()).copied());
        let begun = Instant::now();
        let is_good = start(&mut command)?;
        let verdict = if is_good { "ok" } else { "FAILED" };
        lines.push((is_good, format!("{name}: {test}: {verdict} after {} s", begun.elapsed().as_secs())));
    }
    lines.iter().for_each(|(_, line)| println!("soak {line}"));
    Ok(lines.iter().all(|(is_good, _)| *is_good))
}

/// Whether the program ends well.
fn start(command: &mut Command) -> Result<bool, String> {
    let status = command.status().map_err(|error| format!("cannot start cargo: {error}"))?;
    Ok(status.success())
}
