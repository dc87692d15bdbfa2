//! Times, as `seconds.nanoseconds (local date and time)`.

use super::DumpOptions;
use crate::items::Timespec;
use std::io::{self, Write};

/// Prints one time of an item on a line of its own.
pub(super) fn line(out: &mut dyn Write, label: &str, time: &Timespec, options: &DumpOptions) -> io::Result<()> {
    let seconds = time.sec.get();
    let local = seconds.saturating_add(i64::from((options.utc_offset)(seconds)));
    let (days, of_day) = (local.div_euclid(86400), local.rem_euclid(86400));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    write!(out, "\t\t{label} {}.{} ", seconds as u64, time.nsec)?;
    writeln!(out, "({year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02})")
}

/// Year, month and day of a number of days since 1970-01-01, in the proleptic Gregorian calendar.
pub fn civil(days: i64) -> (i64, i64, i64) {
    // Years start in March here, so that a leap day is the last day of its year. 719468 days lie between
    // 0000-03-01 and 1970-01-01; 146097 are an era of 400 years.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next_year) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (year_of_era + era * 400 + next_year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let cases = [
            (0, (1970, 1, 1)),
            (-1, (1969, 12, 31)),
            (11016, (2000, 2, 29)),
            (11017, (2000, 3, 1)),
            (-719_528, (0, 1, 1)),
            (-719_529, (-1, 12, 31)),
            (2_932_897, (10000, 1, 1)),
        ];
        for (days, date) in cases {
            assert_eq!(civil(days), date, "day {days}");
        }
    }

    #[test]
    fn every_time_can_be_printed() {
        let options = super::super::tests::options();
        for sec in [i64::MIN, i64::MAX, 0, -1] {
            let mut out = Vec::new();
            line(&mut out, "atime", &Timespec { sec: sec.into(), nsec: 0.into() }, &options).unwrap();
        }
    }
}
