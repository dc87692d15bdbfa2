//! Local time, as `TZ` or the system's configuration defines it.

use tz::TimeZone;

/// A time zone.
pub struct Zone(TimeZone);

impl Zone {
    /// The zone of `TZ` or `/etc/localtime`; UTC where neither can be understood.
    pub fn of_system() -> Zone {
        let name = std::env::var("TZ").ok();
        let zone = match name.as_deref() {
            Some(name) => TimeZone::from_posix_tz(name),
            None => TimeZone::local(),
        };
        Zone(zone.unwrap_or_else(|_| TimeZone::utc()))
    }

    /// Seconds that local time is ahead of UTC at `seconds` since 1970.
    pub fn utc_offset(&self, seconds: i64) -> i32 {
        self.0.find_local_time_type(seconds).map_or(0, |kind| kind.ut_offset())
    }
}
