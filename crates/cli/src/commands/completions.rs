//! `butterfs completions`.

use super::{Butterfs, Run};
use crate::error::CliError;
use clap::CommandFactory;
use clap_complete::Shell;
use std::io::Write;

/// Print a completion script for a shell.
///
/// For bash: butterfs completions bash > /etc/bash_completion.d/butterfs
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Butterfs::command(), "butterfs", &mut script);
        Ok(out.write_all(&script)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shell_gets_every_command() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut out = Vec::new();
            Args { shell }.run(&mut out).unwrap();
            let script = String::from_utf8(out).unwrap();
            for command in Butterfs::command().get_subcommands().filter(|command| !command.is_hide_set()) {
                assert!(script.contains(command.get_name()), "{shell}: {}", command.get_name());
            }
        }
    }
}
