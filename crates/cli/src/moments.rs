//! Times that users give: with an offset from UTC ("2026-11-27T10:00:00Z"), or local ("2026-11-27 10:00",
//! "2026-11-27").

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// A time as seconds since 1970; for the command line.
pub fn seconds(text: &str) -> Result<i64, String> {
    let advice = "it takes a time such as '2026-11-27 10:00' (local) or 2026-11-27T10:00:00Z";
    parsed(text, &zone()).map(|time| time.as_second()).ok_or_else(|| advice.to_owned())
}

/// Mount options, in which the library wants the times of `at=` in UTC.
pub fn options_in_utc(list: &str) -> String {
    let zone = zone();
    let in_utc = |option: &str| {
        let time = option.strip_prefix("at=").filter(|value| value.contains('-'))?;
        Some(format!("at={}", parsed(time, &zone)?))
    };
    list.split(',').map(|option| in_utc(option).unwrap_or_else(|| option.to_owned())).collect::<Vec<_>>().join(",")
}

/// The zone of `TZ` or `/etc/localtime`; UTC where neither can be understood.
pub fn zone() -> TimeZone {
    TimeZone::try_system().unwrap_or(TimeZone::UTC)
}

/// A time as lists show it: local, to the minute.
pub fn shown(seconds: i64) -> String {
    let time = Timestamp::from_second(seconds).unwrap_or(Timestamp::UNIX_EPOCH);
    zone().to_datetime(time).strftime("%Y-%m-%d %H:%M").to_string()
}

fn parsed(text: &str, zone: &TimeZone) -> Option<Timestamp> {
    text.parse().ok().or_else(|| zone.to_timestamp(text.parse::<DateTime>().ok()?).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_local_unless_they_say_otherwise() {
        let zone = TimeZone::fixed(jiff::tz::offset(2));
        let seconds = |text| parsed(text, &zone).map(Timestamp::as_second);
        assert_eq!(seconds("1970-01-02T00:00:00Z"), Some(86_400));
        assert_eq!(seconds("1970-01-02 02:00"), Some(86_400));
        assert_eq!(seconds("1970-01-02"), Some(86_400 - 7_200));
        assert_eq!(seconds("yesterday"), None);
        assert_eq!(options_in_utc("ro,at=backup1,at=17"), "ro,at=backup1,at=17");
        assert_eq!(options_in_utc("ro,at=1970-01-02T00:00:00+01:00"), "ro,at=1970-01-01T23:00:00Z");
    }
}
