//! Discards in the simulator: what is discarded reads as garbage, so a discard of what a durable state needs is found.

use butterfs_fs::DiscardMode;
use butterfs_fs::options::Canary;
use butterfs_sim::campaign::{Campaign, Totals};
use butterfs_sim::plan::Plan;
use butterfs_sim::run::Manner;

fn run(seeds: std::ops::Range<u64>, canary: Option<Canary>) -> Totals {
    let campaign = Campaign { seeds, until: None, manner: Manner::default(), threads: 2 };
    campaign.run(|seed| Plan { canary, ..Plan::with_discards(seed) }, |_| {})
}

#[test]
fn nothing_that_a_durable_state_needs_is_discarded() {
    let totals = run(1..21, None);
    assert!(totals.failure.is_none(), "{:?}", totals.failure);
    assert_eq!(totals.runs, 20);
}

#[test]
fn discarding_before_the_commit_is_durable_is_found() {
    let totals = run(1..21, Some(Canary::DiscardedEarly));
    let failure = totals.failure.expect("it is found");
    assert_ne!(failure.plan.discard, DiscardMode::Off);
}
