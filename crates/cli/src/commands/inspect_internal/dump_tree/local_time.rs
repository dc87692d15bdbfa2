//! Local time, as `TZ` or the system's configuration defines it.

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// A time zone.
pub struct Zone(TimeZone);

impl Zone {
    /// The zone of `TZ` or `/etc/localtime`; UTC where neither can be understood.
    pub fn of_system() -> Zone {
        Zone(crate::moments::zone())
    }

    /// Seconds that local time is ahead of UTC at `seconds` since 1970; 0 for a time that no calendar has.
    pub fn utc_offset(&self, seconds: i64) -> i32 {
        Timestamp::from_second(seconds).map_or(0, |at| self.0.to_offset(at).seconds())
    }
}
