//! Times as btrfs-progs prints them: local time, with or without the zone.

use crate::commands::inspect_internal::dump_tree::local_time::Zone;
use butterfs_ondisk::dump::civil;

/// `2026-11-21 21:57:50`.
pub fn short(zone: &Zone, seconds: i64) -> String {
    let local = seconds.saturating_add(zone.utc_offset(seconds).into());
    let (year, month, day) = civil(local.div_euclid(86_400));
    let second = local.rem_euclid(86_400);
    format!("{year}-{month:02}-{day:02} {:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

/// `2026-11-21 21:57:50 +0000`.
pub fn with_zone(zone: &Zone, seconds: i64) -> String {
    let offset = zone.utc_offset(seconds);
    let sign = if offset < 0 { '-' } else { '+' };
    let minutes = offset.abs() / 60;
    format!("{} {sign}{:02}{:02}", short(zone, seconds), minutes / 60, minutes % 60)
}
