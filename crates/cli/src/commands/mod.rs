//! The subcommands, one file each. To add one: write the file with an argument structure whose doc comment is the
//! help text and that implements [`Run`], declare the module, and add a line to the table.

pub mod balance;
pub mod check;
pub mod completions;
pub mod dedupe;
pub mod device;
pub mod filesystem;
pub mod health;
pub mod image;
pub mod inspect_internal;
pub mod manual;
pub mod mkfs;
pub mod mount;
pub mod property;
pub mod receive;
pub mod reflink;
pub mod replace;
pub mod rescue;
pub mod restore;
pub mod scrub;
pub mod send;
pub mod stream;
pub mod subvolume;
pub mod umount;
pub mod volume;

use crate::error::CliError;
use crate::output::{self, Format};
use clap::{Parser, Subcommand};
use std::io::Write;

/// A parsed command line that can be run.
pub trait Run {
    /// Does the work; text for the user goes to `out`.
    fn run(self, out: &mut dyn Write) -> Result<(), CliError>;

    /// The same, with the result in a format. Commands that have no other format than text refuse before they do
    /// anything.
    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError>
    where
        Self: Sized,
    {
        output::must_be_text(format)?;
        self.run(out)
    }
}

/// Arguments that are much larger than those of other commands.
impl<T: Run> Run for Box<T> {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        (*self).run(out)
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        (*self).run_as(format, out)
    }
}

const EXIT_CODES: &str = "Exit codes: 0 success, 1 failure, 2 the command line makes no sense";

/// btrfs in userspace: make, mount and inspect the filesystems that the Linux kernel calls btrfs.
#[derive(Parser, Debug)]
#[command(name = "butterfs", version, subcommand_required = true, arg_required_else_help = true)]
#[command(infer_subcommands = true, max_term_width = 100, after_help = EXIT_CODES)]
pub struct Butterfs {
    /// Show the result as text or, where the command can, as JSON
    #[arg(long, value_enum, global = true, default_value_t, value_name = "FORMAT", hide_possible_values = true)]
    pub format: Format,
    #[command(subcommand)]
    pub command: Command,
}

/// An enumeration of subcommands with its [`Run`], from one table.
macro_rules! subcommands {
    ($(#[$attribute:meta])* $name:ident { $($variant:ident($(#[$inner:meta])* $args:ty),)* }) => {
        $(#[$attribute])*
        #[derive(Subcommand, Debug)]
        pub enum $name { $($(#[$inner])* $variant($args),)* }

        impl Run for $name {
            fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
                match self { $($name::$variant(args) => args.run(out),)* }
            }

            fn run_as(self, format: $crate::output::Format, out: &mut dyn Write) -> Result<(), CliError> {
                match self { $($name::$variant(args) => args.run_as(format, out),)* }
            }
        }
    };
}
pub(crate) use subcommands;

// A group of subcommands (`inspect-internal`, `filesystem`) is a module with a table of its own and stands here as
// `Group(#[command(subcommand)] group::Group)`.
subcommands! {
    /// Every subcommand.
    Command {
        Balance(#[command(subcommand)] balance::Group),
        Check(check::Args),
        Mkfs(Box<mkfs::Args>),
        Mount(mount::Args),
        Umount(umount::Args),
        Filesystem(#[command(subcommand)] filesystem::Group),
        Device(#[command(subcommand)] device::Group),
        Scrub(#[command(subcommand)] scrub::Group),
        Health(health::Args),
        Replace(#[command(subcommand)] replace::Group),
        Rescue(#[command(subcommand)] rescue::Group),
        Restore(Box<restore::Args>),
        Subvolume(#[command(subcommand)] subvolume::Group),
        Property(#[command(subcommand)] property::Group),
        Receive(receive::Args),
        Send(send::Args),
        Stream(#[command(subcommand)] stream::Group),
        Volume(#[command(subcommand)] volume::Group),
        Reflink(#[command(subcommand)] reflink::Group),
        Dedupe(dedupe::Args),
        Image(#[command(subcommand)] image::Group),
        InspectInternal(#[command(subcommand)] inspect_internal::InspectInternal),
        Completions(completions::Args),
        Manual(#[command(hide = true)] manual::Args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn assert_documented(command: &clap::Command) {
        assert!(command.get_about().is_some(), "'{}' has no help text", command.get_name());
        for argument in command.get_arguments() {
            assert!(
                argument.get_help().is_some(),
                "'{}' of '{}' has no help text",
                argument.get_id(),
                command.get_name()
            );
        }
        command.get_subcommands().for_each(assert_documented);
    }

    #[test]
    fn the_command_line_is_consistent_and_documented() {
        Butterfs::command().debug_assert();
        let mut command = Butterfs::command();
        command.build();
        assert_documented(&command);
    }
}
