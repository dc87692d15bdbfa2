//! What a directory could not keep of a stream: counted by kind, so that a million files whose owner cannot be set are
//! one sentence; and remembered line by line, up to a limit, for the marker beside the tree.

use super::super::Failure;

/// Lines that are remembered.
const MOST_LINES: usize = 1000;

/// One kind of loss.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loss {
    /// The command that could not be carried out as it stands.
    pub command: String,
    /// Why not.
    pub reason: String,
    /// How often.
    pub count: u64,
    /// What it was about the first time.
    pub first: String,
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Loss { command, reason, count, first } = self;
        match count {
            1 => write!(f, "{command} {first}: {reason}"),
            _ => write!(f, "{count} times {command}, first {first}: {reason}"),
        }
    }
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct Losses {
    kinds: Vec<Loss>,
    lines: Vec<String>,
}

impl Losses {
    /// A section begins, with lines of its own.
    pub fn begin(&mut self) {
        self.lines.clear();
    }

    /// Notes one; `what` is the command and what it is about.
    pub fn note(&mut self, what: &str, failure: &Failure) {
        if self.lines.len() < MOST_LINES {
            self.lines.push(format!("{what}: {}", failure.reason));
        }
        let (command, about) = what.split_once(' ').unwrap_or((what, ""));
        let known = self.kinds.iter_mut().find(|loss| loss.command == command && loss.reason == failure.reason);
        match known {
            Some(loss) => loss.count += 1,
            None => self.kinds.push(Loss {
                command: command.to_owned(),
                reason: failure.reason.clone(),
                count: 1,
                first: about.to_owned(),
            }),
        }
    }

    pub fn all(&self) -> &[Loss] {
        &self.kinds
    }

    /// What the section could not keep, a line each.
    pub fn lines(&self) -> Vec<String> {
        self.lines.clone()
    }
}
