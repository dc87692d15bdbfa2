//! The text of commands, one line each, as `btrfs receive --dump` prints it.
//!
//! Its oddities are intended: `chown` names the group first, `fileattr` prints decimal digits behind `0x`, the
//! source of `clone` and the goal of `rename` carry the name of the subvolume that is received, the target of `link`
//! carries none. END and unknown commands have no line.

use super::Command;
use super::attribute::{Timespec, Uuid};
use std::fmt::Write;

/// Turns commands into lines.
pub struct Dump<'z> {
    subvolume: Vec<u8>,
    utc_offset: &'z dyn Fn(i64) -> i32,
}

/// Columns of the name, and of the path behind it.
const NAME_COLUMNS: usize = 16;
const PATH_COLUMNS: usize = 32;

impl<'z> Dump<'z> {
    /// Times are local: `utc_offset` says how many seconds that is ahead of UTC at a time.
    pub fn new(utc_offset: &'z dyn Fn(i64) -> i32) -> Dump<'z> {
        Dump { subvolume: Vec::new(), utc_offset }
    }

    /// Appends the line of a command, with its newline.
    pub fn line(&mut self, command: &Command<'_>, out: &mut String) {
        if let Command::Subvol { path, .. } | Command::Snapshot { path, .. } = command {
            self.subvolume.clear();
            self.subvolume.extend_from_slice(path);
        }
        let Some(path) = command.path() else { return };
        let _ = write!(out, "{:NAME_COLUMNS$}", command.name());
        let before = out.len();
        match command {
            Command::Subvol { .. } | Command::Snapshot { .. } => {
                out.push_str("./");
                escape(&self.subvolume, out);
            }
            _ => self.push_path(path, out),
        }
        let after_path = out.len();
        let columns = after_path - before;
        out.extend(std::iter::repeat_n(' ', PATH_COLUMNS.saturating_sub(columns).max(1)));
        let values = out.len();
        self.push_values(command, out);
        if out.len() == values {
            out.truncate(after_path);
        }
        out.push('\n');
    }

    fn push_path(&self, path: &[u8], out: &mut String) {
        out.push_str("./");
        escape(&self.subvolume, out);
        out.push('/');
        escape(path, out);
    }

    fn push_values(&self, command: &Command<'_>, out: &mut String) {
        // Writing to a string does not fail.
        let _ = match *command {
            Command::Subvol { ref uuid, transid, .. } => write!(out, "uuid={} transid={transid}", Text(uuid)),
            Command::Snapshot { ref uuid, transid, ref parent_uuid, parent_transid, .. } => write!(
                out,
                "uuid={} transid={transid} parent_uuid={} parent_transid={parent_transid}",
                Text(uuid),
                Text(parent_uuid)
            ),
            Command::Mknod { mode, rdev, .. } => write!(out, "mode={mode:o} dev=0x{rdev:x}"),
            Command::Symlink { target, .. } => {
                out.push_str("dest=");
                escape(target, out);
                Ok(())
            }
            Command::Rename { to, .. } => {
                out.push_str("dest=");
                self.push_path(to, out);
                Ok(())
            }
            Command::Link { existing, .. } => {
                out.push_str("dest=");
                escape(existing, out);
                Ok(())
            }
            Command::SetXattr { name, value, .. } => {
                out.push_str("name=");
                escape(name, out);
                out.push(' ');
                escape(value, out);
                write!(out, " len={}", value.len())
            }
            Command::RemoveXattr { name, .. } => {
                out.push_str("name=");
                escape(name, out);
                Ok(())
            }
            Command::Write { offset, data, .. } => write!(out, "offset={offset} len={}", data.len()),
            Command::Clone { offset, len, source, source_offset, .. } => {
                let _ = write!(out, "offset={offset} len={len} from=");
                self.push_path(source, out);
                write!(out, " clone_offset={source_offset}")
            }
            Command::Truncate { size, .. } => write!(out, "size={size}"),
            Command::Chmod { mode, .. } => write!(out, "mode={mode:o}"),
            Command::Chown { uid, gid, .. } => write!(out, "gid={gid} uid={uid}"),
            Command::Utimes { atime, mtime, ctime, .. } => {
                for (name, time) in [("atime=", atime), (" mtime=", mtime), (" ctime=", ctime)] {
                    out.push_str(name);
                    self.push_time(time, out);
                }
                Ok(())
            }
            Command::UpdateExtent { offset, len, .. } => write!(out, "offset={offset} len={len}"),
            Command::Fallocate { mode, offset, len, .. } => write!(out, "mode={mode} offset={offset} len={len}"),
            Command::Fileattr { flags, .. } => write!(out, "fileattr=0x{flags}"),
            Command::EncodedWrite {
                offset,
                unencoded_file_len,
                unencoded_len,
                unencoded_offset,
                compression,
                encryption,
                data,
                ..
            } => write!(
                out,
                "offset={offset} len={} unencoded_file_len={unencoded_file_len} unencoded_len={unencoded_len} \
                 unencoded_offset={unencoded_offset} compression={compression} encryption={encryption}",
                data.len()
            ),
            Command::EnableVerity { algorithm, block_size, salt, signature, .. } => write!(
                out,
                "algorithm={algorithm} block_size={block_size} salt_len={} sig_len={}",
                salt.len(),
                signature.len()
            ),
            _ => Ok(()),
        };
    }

    /// Local time to the second, as `%FT%T%z` of `strftime(3)`.
    fn push_time(&self, time: Timespec, out: &mut String) {
        let ahead = (self.utc_offset)(time.sec);
        let local = time.sec.saturating_add(i64::from(ahead));
        let (year, month, day) = civil(local.div_euclid(86_400));
        let second = local.rem_euclid(86_400);
        let (hours, minutes) = (ahead.abs() / 3600, ahead.abs() / 60 % 60);
        let _ = write!(
            out,
            "{year}-{month:02}-{day:02}T{:02}:{:02}:{:02}{}{hours:02}{minutes:02}",
            second / 3600,
            second / 60 % 60,
            second % 60,
            if ahead < 0 { '-' } else { '+' },
        );
    }
}

/// Year, month and day of a day counted from 1970-01-01 in the Gregorian calendar.
fn civil(days: i64) -> (i64, i64, i64) {
    // Counted in years that begin in March, so that the leap day is the last of one: eras of 400 years have 146097
    // days.
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Appends bytes so that they are one word of printable characters.
fn escape(bytes: &[u8], out: &mut String) {
    for &byte in bytes {
        match byte {
            0x07 => out.push_str("\\a"),
            0x08 => out.push_str("\\b"),
            0x1b => out.push_str("\\e"),
            0x0c => out.push_str("\\f"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            0x0b => out.push_str("\\v"),
            b' ' => out.push_str("\\ "),
            b'\\' => out.push_str("\\\\"),
            0x21..=0x7e => out.push(char::from(byte)),
            other => {
                let _ = write!(out, "\\{other:03o}");
            }
        }
    }
}

/// A UUID as text.
struct Text<'a>(&'a Uuid);

impl std::fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                f.write_char('-')?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}
