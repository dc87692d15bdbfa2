//! `butterfs inspect-internal`: looks at the structures on disk. Grammar and text are those of btrfs-progs 6.2.

pub mod dump_super;
pub mod dump_tree;
mod map_swapfile;
mod min_dev_size;
mod resolve;

use super::{Run, subcommands};
use crate::error::CliError;
use clap::Subcommand;
use std::io::Write;

subcommands! {
    /// Look at the structures on disk.
    InspectInternal {
        DumpSuper(dump_super::Args),
        DumpTree(dump_tree::Args),
        MapSwapfile(map_swapfile::Args),
        MinDevSize(min_dev_size::Args),
        Rootid(resolve::RootidArgs),
        TreeStats(dump_tree::stats::Args),
        SubvolidResolve(resolve::SubvolidArgs),
        InodeResolve(resolve::InodeArgs),
        LogicalResolve(resolve::LogicalArgs),
    }
}

/// Parses a number the way C does: decimal, hexadecimal after `0x`, octal after `0`.
pub fn number(text: &str) -> Result<u64, String> {
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None if text.len() > 1 && text.starts_with('0') => (&text[1..], 8),
        None => (text, 10),
    };
    if digits.is_empty() || !digits.chars().all(|digit| digit.is_digit(radix)) {
        return Err(format!("{text} is not a valid numeric value"));
    }
    u64::from_str_radix(digits, radix).map_err(|_| format!("{text} is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_c() {
        let good = [("0", 0), ("4096", 4096), ("0x1508000", 22052864), ("0XfF", 255), ("010", 8)];
        for (text, value) in good {
            assert_eq!(number(text), Ok(value), "{text}");
        }
        for text in ["", "abc", "20M", "-5", "+5", "0x", "08", "0x-1", " 5", "18446744073709551616"] {
            assert!(number(text).is_err(), "{text}");
        }
    }
}
