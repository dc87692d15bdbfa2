//! `butterfs-sim`: runs seeds; see `cargo xtask sim`.

use butterfs_fs::options::Canary;
use butterfs_sim::campaign::{Campaign, Totals};
use butterfs_sim::explore::{Exploration, Explored};
use butterfs_sim::faults::Struck;
use butterfs_sim::interleave::weaving::{Weaving, Woven};
use butterfs_sim::objects::journal::StoreCanary;
use butterfs_sim::plan::Plan;
use butterfs_sim::run::Manner;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const HELP: &str = "\
usage: cargo xtask sim [--seed S] [--runs N] [--hours H] [--kernel-every N] [--threads N] \
[--faults|--members|--parity|--split|--together|--discards|--maintenance|--objects]
                       [--explore 1|2 [--shard I/N] [--from U]] [--canary NAME]
                       [--interleave N|random [--shard I/N] [--from U] [--runs N]]

  --seed S           the first seed (default 1)
  --runs N           so many seeds (default 1 with --seed, else 1000)
  --hours H          until this time is over, instead of a number of runs (0.5 is half an hour)
  --kernel-every N   one state of N is also mounted by the kernel and checked by btrfs check (needs root)
  --split            two sides live on without each other, and are given together then
  --explore 1|2      instead of seeds, every sequence of one or two operations
  --interleave N     instead of seeds, all pairs of operations inside each other, with at most N interruptions
  --interleave random
                     instead of seeds, three threads with one or two operations each, in random turns
  --shard I/N        of that the part I, from 0, of N
  --from U           and of that only from this unit of work on
  --threads N        seeds at one time (default: all cores)
  --faults           the device goes wrong too, not only the power
  --objects          on a volume in an object store, which several hosts take over from each other
  --maintenance      chunks are balanced, and devices added, removed, resized, replaced and lost
  --discards         freed space is discarded by commits or in the background, free space by fstrim; it reads as garbage
  --together         several steps become durable together, or are taken back
  --members          devices leave, return and fail, and data may have no checksums
  --parity           the same on RAID5 and RAID6
  --canary NAME      a bug on purpose: no-barrier, miscounted, reused-early, item-left-out, log-early,
                     discarded-early (with --discards),
                     checksum-ignored, error-ignored; with --interleave checked-early, in-place-unprotected; with \
                     --members
                     stale-believed, stale-forgotten, mirrors-take-turns, log-on-too-few, interrupted-forgiven,
                     loss-unnamed, repairs-from-stale, unshared-early; with --split
                     histories-not-compared; with --objects condition-ignored, record-early, segment-early";

struct Arguments {
    seed: u64,
    runs: Option<u64>,
    hours: Option<f64>,
    kernel_every: usize,
    threads: usize,
    faults: bool,
    members: bool,
    parity: bool,
    together: bool,
    split: bool,
    discards: bool,
    maintenance: bool,
    objects: bool,
    explore: usize,
    /// Pairs with so many interruptions at most, or none for random threads.
    interleave: Option<Option<usize>>,
    shard: (u64, u64),
    from: u64,
    canary: Option<Canary>,
    store_canary: Option<StoreCanary>,
}

fn parse(words: &[String]) -> Result<Arguments, String> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut arguments = Arguments {
        seed: 1,
        runs: None,
        hours: None,
        kernel_every: 0,
        threads,
        faults: false,
        members: false,
        parity: false,
        split: false,
        discards: false,
        maintenance: false,
        objects: false,
        together: false,
        explore: 0,
        interleave: None,
        shard: (0, 1),
        from: 0,
        canary: None,
        store_canary: None,
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let flag = match word.as_str() {
            "--faults" => Some(&mut arguments.faults),
            "--members" => Some(&mut arguments.members),
            "--parity" => Some(&mut arguments.parity),
            "--split" => Some(&mut arguments.split),
            "--together" => Some(&mut arguments.together),
            "--discards" => Some(&mut arguments.discards),
            "--maintenance" => Some(&mut arguments.maintenance),
            "--objects" => Some(&mut arguments.objects),
            _ => None,
        };
        if let Some(flag) = flag {
            *flag = true;
            continue;
        }
        let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
        let bad = || format!("{word}: {value} is not a value for it");
        match word.as_str() {
            "--seed" => {
                arguments.seed = value.parse().map_err(|_| bad())?;
                arguments.runs.get_or_insert(1);
            }
            "--runs" => arguments.runs = Some(value.parse().map_err(|_| bad())?),
            "--hours" => arguments.hours = Some(value.parse().map_err(|_| bad())?),
            "--kernel-every" => arguments.kernel_every = value.parse().map_err(|_| bad())?,
            "--explore" => {
                arguments.explore = value.parse().ok().filter(|length| (1..=2).contains(length)).ok_or_else(bad)?;
            }
            "--interleave" if value == "random" => arguments.interleave = Some(None),
            "--interleave" => arguments.interleave = Some(Some(value.parse().map_err(|_| bad())?)),
            "--shard" => arguments.shard = shard(value).ok_or_else(bad)?,
            "--from" => arguments.from = value.parse().map_err(|_| bad())?,
            "--threads" => arguments.threads = value.parse().map_err(|_| bad())?,
            "--canary" if store_canary(value).is_some() => arguments.store_canary = store_canary(value),
            "--canary" => {
                arguments.canary = Some(match value.as_str() {
                    "no-barrier" => Canary::NoBarrier,
                    "miscounted" => Canary::ReferenceMiscounted,
                    "discarded-early" => Canary::DiscardedEarly,
                    "reused-early" => Canary::PinnedReusedEarly,
                    "item-left-out" => Canary::LoggedItemLeftOut,
                    "checksum-ignored" => Canary::ChecksumIgnored,
                    "error-ignored" => Canary::WriteErrorIgnored,
                    "stale-believed" => Canary::StaleBelieved,
                    "stale-forgotten" => Canary::StaleForgotten,
                    "histories-not-compared" => Canary::HistoriesNotCompared,
                    "mirrors-take-turns" => Canary::MirrorsTakeTurns,
                    "log-on-too-few" => Canary::LogOnTooFew,
                    "repairs-from-stale" => Canary::RepairsFromStale,
                    "unshared-early" => Canary::UnsharedEarly,
                    "loss-unnamed" => Canary::LossUnnamed,
                    "together-separated" => Canary::TogetherSeparated,
                    "left-behind" => Canary::LeftBehind,
                    "interrupted-forgiven" => Canary::InterruptedForgiven,
                    "copies-behind" => Canary::CopiesBehind,
                    "log-early" => Canary::LogSuperblockEarly,
                    "checked-early" => Canary::SubvolumeCheckedEarly,
                    "panic-forgiven" => Canary::PanicForgiven,
                    "parity-not-updated" => Canary::ParityNotUpdated,
                    "rows-shared" => Canary::RowsShared,
                    "stripes-swapped-early" => Canary::StripesSwappedEarly,
                    "piece-not-copied" => Canary::PieceNotCopied,
                    "move-not-followed" => Canary::MoveNotFollowed,
                    "relocation-unmarked" => Canary::RelocationUnmarked,
                    "relocation-without-checksums" => Canary::RelocationWithoutChecksums,
                    "relocation-in-one-tree" => Canary::RelocationInOneTree,
                    "in-place-unprotected" => Canary::InPlaceUnprotected,
                    _ => return Err(bad()),
                });
            }
            _ => return Err(format!("unknown option {word}")),
        }
    }
    Ok(arguments)
}

fn store_canary(name: &str) -> Option<StoreCanary> {
    match name {
        "condition-ignored" => Some(StoreCanary::ConditionIgnored),
        "record-early" => Some(StoreCanary::RecordEarly),
        "segment-early" => Some(StoreCanary::SegmentEarly),
        _ => None,
    }
}

fn shard(value: &str) -> Option<(u64, u64)> {
    let (part, parts) = value.split_once('/')?;
    let (part, parts) = (part.parse().ok()?, parts.parse().ok()?);
    (part < parts).then_some((part, parts))
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match parse(&words) {
        Ok(arguments) if arguments.explore > 0 => explore(&arguments),
        Ok(arguments) if arguments.interleave.is_some() => interleave(&arguments),
        Ok(arguments) => run(&arguments),
        Err(sentence) => {
            eprintln!("{sentence}\n\n{HELP}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> ExitCode {
    let started = Instant::now();
    let limit = arguments.hours.map(|hours| started + Duration::from_secs_f64(hours * 3600.0));
    let runs = if limit.is_some() { u64::MAX } else { arguments.runs.unwrap_or(1000) };
    let campaign = Campaign {
        seeds: arguments.seed..arguments.seed.saturating_add(runs),
        until: limit,
        manner: Manner { kernel_every: arguments.kernel_every },
        threads: arguments.threads,
    };
    let progress = |totals: &Totals| {
        if totals.runs.is_multiple_of(100) {
            report(totals, started);
        }
    };
    let plan = |seed| match arguments {
        Arguments { faults: true, .. } => Plan::with_faults(seed),
        Arguments { members: true, .. } => Plan::with_members(seed),
        Arguments { parity: true, .. } => Plan::with_parity(seed),
        Arguments { together: true, .. } => Plan::with_together(seed),
        Arguments { split: true, .. } => Plan::with_split(seed),
        Arguments { discards: true, .. } => Plan::with_discards(seed),
        Arguments { maintenance: true, .. } => Plan::with_maintenance(seed),
        Arguments { objects: true, store_canary, .. } => Plan::with_objects(seed).with_store_canary(*store_canary),
        _ => Plan::of(seed),
    };
    let totals = campaign.run(|seed| Plan { canary: arguments.canary, ..plan(seed) }, progress);
    report(&totals, started);
    let Some(failure) = totals.failure else { return ExitCode::SUCCESS };
    println!("FAILED after {} runs\n{failure:?}", totals.runs);
    println!("shrinking");
    let smallest = failure.shrunk();
    println!("{smallest:?}");
    match smallest.export(&std::env::temp_dir()) {
        Ok(path) => println!("the disk is in {}", path.display()),
        Err(error) => println!("the disk could not be exported: {error}"),
    }
    let kind = match arguments {
        Arguments { faults: true, .. } => " --faults",
        Arguments { members: true, .. } => " --members",
        Arguments { parity: true, .. } => " --parity",
        Arguments { together: true, .. } => " --together",
        Arguments { split: true, .. } => " --split",
        Arguments { discards: true, .. } => " --discards",
        Arguments { maintenance: true, .. } => " --maintenance",
        Arguments { objects: true, .. } => " --objects",
        _ => "",
    };
    println!("again: cargo xtask sim --seed {}{kind}", failure.plan.seed);
    ExitCode::FAILURE
}

fn explore(arguments: &Arguments) -> ExitCode {
    let started = Instant::now();
    let exploration = Exploration {
        length: arguments.explore,
        shard: arguments.shard,
        from: arguments.from,
        until: arguments.hours.map(|hours| started + Duration::from_secs_f64(hours * 3600.0)),
        kernel_every: arguments.kernel_every as u64,
        threads: arguments.threads,
        canary: arguments.canary,
    };
    let told = std::sync::Mutex::new(started);
    let explored = exploration.run(|explored| {
        let mut told = told.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if told.elapsed() > Duration::from_secs(10) {
            *told = Instant::now();
            report_explored(explored, started);
        }
    });
    report_explored(&explored, started);
    for (number, failure) in explored.failures.iter().enumerate() {
        println!("FAILED\n{failure:?}");
        if number == 0 {
            match failure.export(&std::env::temp_dir()) {
                Ok(path) => println!("the disk is in {}", path.display()),
                Err(error) => println!("the disk could not be exported: {error}"),
            }
        }
    }
    if explored.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn interleave(arguments: &Arguments) -> ExitCode {
    let started = Instant::now();
    let weaving = Weaving {
        pairs: arguments.interleave.flatten(),
        shard: arguments.shard,
        from: arguments.from,
        most: arguments.runs.unwrap_or(u64::MAX),
        until: arguments.hours.map(|hours| started + Duration::from_secs_f64(hours * 3600.0)),
        threads: arguments.threads,
        canary: arguments.canary,
    };
    let told = std::sync::Mutex::new(started);
    let woven = weaving.run(|woven| {
        let mut told = told.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if told.elapsed() > Duration::from_secs(10) {
            *told = Instant::now();
            report_woven(woven, started);
        }
    });
    report_woven(&woven, started);
    woven.failures.iter().for_each(|failure| println!("FAILED\n{failure}"));
    if woven.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn report_woven(woven: &Woven, started: Instant) {
    let Woven { units, done, runs, states, failures } = woven;
    let of = if *units > 0 { format!(" of {units} pairs") } else { " seeds".to_owned() };
    let seconds = started.elapsed().as_secs_f64();
    println!("{done}{of}: {runs} runs, {states} crash states, {} failed, in {seconds:.0} s", failures.len());
}

fn report_explored(explored: &Explored, started: Instant) {
    let Explored { units, done, workloads, states, log_states, kernel_states, failures } = explored;
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{done} of {units} units (go on with --from {done}): {workloads} workloads, {states} states ({log_states} with \
         a log, {kernel_states} by the kernel too), {} failed, in {seconds:.0} s",
        failures.len()
    );
}

fn report(totals: &Totals, started: Instant) {
    let Totals { runs, states, kernel_states, log_states, steps, events, struck, digest, .. } = totals;
    let seconds = started.elapsed().as_secs_f64();
    if struck != &Struck::default() {
        println!("faults: {struck:?}");
    }
    println!(
        "{runs} runs, {steps} steps, {events} writes and flushes, {states} crash states ({log_states} with a \
         log, {kernel_states} by the kernel too) in {seconds:.0} s, digest {digest:016x}"
    );
}
