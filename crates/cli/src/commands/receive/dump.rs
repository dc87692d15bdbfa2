//! `butterfs receive --dump`: the commands of a stream as text, one line each.
//!
//! Like btrfs-progs it ends at the first end command.

use crate::commands::inspect_internal::dump_tree::local_time::Zone;
use crate::error::CliError;
use butterfs_send::wire::dump::Dump;
use butterfs_send::wire::{Command, Decoder, Event};
use std::io::{Read, Write};

/// Prints what `input` holds.
pub fn dump(input: impl Read, out: &mut dyn Write) -> Result<(), CliError> {
    let zone = Zone::of_system();
    let utc_offset = |seconds: i64| zone.utc_offset(seconds);
    let mut lines = Dump::new(&utc_offset);
    let mut out = std::io::BufWriter::with_capacity(1 << 16, out);
    let mut decoder = Decoder::new(input);
    let mut text = String::new();
    loop {
        match decoder.next() {
            Ok(Some(Event::Header(_))) => {}
            Ok(Some(Event::Command(_, Command::End {}))) => return Ok(out.flush()?),
            Ok(Some(Event::Command(_, command))) => {
                text.clear();
                lines.line(&command, &mut text);
                out.write_all(text.as_bytes())?;
            }
            Ok(None) => return Err(CliError::failed("empty stream is not considered valid")),
            Err(error) => {
                out.flush()?;
                return Err(CliError::failed(error.to_string()));
            }
        }
    }
}
