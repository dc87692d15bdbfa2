//! The table of `filesystem usage -T`: a row for each device, a column for each type and profile.

use crate::error::CliError;
use crate::output::UnitFormat;
use crate::space::{Overview, device_name, profile_name, type_name};
use butterfs_control::{MemberRecord, SpaceRecord};
use std::io::Write;

/// How a cell is aligned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

use Side::{Left, Right};

type Cell = (Side, String);

fn left(text: impl Into<String>) -> Cell {
    (Left, text.into())
}

fn right(text: impl Into<String>) -> Cell {
    (Right, text.into())
}

/// Bytes of a device that the filesystem leaves alone.
pub fn slack(member: &MemberRecord) -> u64 {
    member.storage.as_ref().map_or(0, |(_, bytes)| bytes.saturating_sub(member.total_bytes))
}

/// Prints an empty line and the table.
pub fn show(shown: &Overview, spaces: &[SpaceRecord], units: UnitFormat, out: &mut dyn Write) -> Result<(), CliError> {
    let rows = rows(shown, spaces, units);
    let columns = rows[0].len();
    let width = |column: usize| rows.iter().map(|row| row[column].1.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let rule: Vec<Cell> = widths.iter().map(|width| left("-".repeat(*width))).collect();
    writeln!(out)?;
    let (head, rest) = rows.split_at(2);
    let (devices, sums) = rest.split_at(rest.len() - 2);
    let lines = head.iter().chain([&rule]).chain(devices).chain([&rule]).chain(sums);
    for row in lines {
        let cells = row.iter().zip(&widths).map(|((side, text), width)| match side {
            Left => format!("{text:<width$}"),
            Right => format!("{text:>width$}"),
        });
        writeln!(out, "{}", cells.collect::<Vec<_>>().join(" "))?;
    }
    Ok(())
}

/// Two rows of headings, one for each device, and two of sums.
fn rows(shown: &Overview, spaces: &[SpaceRecord], units: UnitFormat) -> Vec<Vec<Cell>> {
    let size = |bytes| right(units.size(bytes));
    let or_dash = |bytes: u64| if bytes == 0 { right("-") } else { size(bytes) };
    let row = |first: [Cell; 2], middle: &dyn Fn(&SpaceRecord) -> Cell, last: [Cell; 3]| -> Vec<Cell> {
        first.into_iter().chain(spaces.iter().map(middle)).chain(last).collect()
    };
    let nothing = || left("");
    let headings = [left("Unallocated"), left("Total"), left("Slack")];
    let mut rows = vec![
        row([nothing(), nothing()], &|space| left(type_name(space.flags)), [nothing(), nothing(), nothing()]),
        row([left("Id"), left("Path")], &|space| left(profile_name(space.flags)), headings),
    ];
    let whole = &shown.whole;
    if let Some(details) = &shown.details {
        for member in &details.members {
            let unallocated = size(member.total_bytes.saturating_sub(member.allocated));
            let last = [unallocated, size(member.total_bytes), or_dash(slack(member))];
            let here = |space: &SpaceRecord| or_dash(details.on_device(space.flags, member.id));
            rows.push(row([right(member.id.to_string()), left(device_name(member))], &here, last));
        }
    }
    let allocated: u64 = whole.spaces.iter().map(|space| space.raw).sum();
    let unallocated = size(whole.device_bytes.saturating_sub(allocated));
    let last = [unallocated, size(whole.device_bytes), size(whole.slack_bytes)];
    rows.push(row([nothing(), left("Total")], &|space| size(space.total), last));
    rows.push(row([nothing(), left("Used")], &|space| size(space.used), [nothing(), nothing(), nothing()]));
    rows
}
