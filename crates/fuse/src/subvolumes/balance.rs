//! Questions about the balance of a filesystem.
//!
//! Invariant: a balance works on the thread that answers who has asked for it, and is cancelled when that one has gone,
//! as the kernel's is when its ioctl is killed.

use super::Refused;
use super::perform::{Answering, Each, malformed};
use butterfs_control::question::{BalanceStop, ResumeBalance, StartBalance, StopBalance};
use butterfs_control::{BalancePhase, BalanceRecord};
use butterfs_fs::{BalanceEnd, BalanceItem, BalanceProgress, BalanceRun, BalanceState};
use std::time::{Duration, Instant};

/// The interval of progress reports to those who wait for a balance.
const TELL_EVERY: Duration = Duration::from_millis(500);

impl Answering<'_> {
    pub(super) fn start_balance(&self, question: &StartBalance, each: Each<'_, BalanceRecord>) -> Result<(), Refused> {
        self.changed(question.through)?;
        self.access().must_be_privileged()?;
        let control = BalanceItem::from_bytes(&question.control).ok_or_else(malformed)?;
        let run = self.filesystem().balance_begin(control)?;
        self.drive(run, each)
    }

    pub(super) fn resume_balance(
        &self,
        question: &ResumeBalance,
        each: Each<'_, BalanceRecord>,
    ) -> Result<(), Refused> {
        self.changed(question.through)?;
        self.access().must_be_privileged()?;
        let run = self.filesystem().balance_begin_again()?;
        self.drive(run, each)
    }

    pub(super) fn stop_balance(&self, question: &StopBalance) -> Result<(), Refused> {
        self.changed(question.through)?;
        self.access().must_be_privileged()?;
        match question.how {
            BalanceStop::Pause => Ok(self.filesystem().balance_pause()?),
            BalanceStop::Cancel => Ok(self.filesystem().balance_cancel()?),
        }
    }

    pub(super) fn get_balance(&self, each: Each<'_, BalanceRecord>) -> Result<(), Refused> {
        self.access().must_be_privileged()?;
        let Some(status) = self.filesystem().balance_status() else { return Ok(()) };
        let phase = match status.state {
            BalanceState::Running => BalancePhase::Running,
            BalanceState::PauseRequested => BalancePhase::PauseRequested,
            BalanceState::CancelRequested => BalancePhase::CancelRequested,
            BalanceState::Paused => BalancePhase::Paused,
        };
        each(BalanceRecord { control: status.control.to_bytes(), ..record(phase, status.progress, 0) })
    }

    fn drive(&self, mut run: BalanceRun, each: Each<'_, BalanceRecord>) -> Result<(), Refused> {
        let (mut told, mut gone) = (Instant::now(), false);
        loop {
            match self.filesystem().balance_step(&mut run)? {
                Some(end) => return each(ended(end, run.progress())),
                None if gone || told.elapsed() < TELL_EVERY => {}
                None => {
                    told = Instant::now();
                    let progress = self.filesystem().balance_status().map(|status| status.progress);
                    gone = each(record(BalancePhase::Running, progress.unwrap_or_default(), 0)).is_err();
                    if gone {
                        self.filesystem().balance_ask_to_cancel();
                    }
                }
            }
        }
    }
}

fn ended(end: BalanceEnd, so_far: BalanceProgress) -> BalanceRecord {
    match end {
        BalanceEnd::Completed { progress, no_space } => record(BalancePhase::Completed, progress, no_space),
        BalanceEnd::Paused => record(BalancePhase::Paused, so_far, 0),
        BalanceEnd::Cancelled => record(BalancePhase::Cancelled, so_far, 0),
    }
}

fn record(phase: BalancePhase, progress: BalanceProgress, no_space: u64) -> BalanceRecord {
    let BalanceProgress { expected, considered, completed } = progress;
    BalanceRecord { phase, control: Vec::new(), expected, considered, completed, no_space }
}
