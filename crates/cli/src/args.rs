//! Values that several subcommands take, from text to checked numbers.

/// Parses a size: a whole number of bytes, or one with a suffix k, m, g, t, p or e (powers of 1024, either case,
/// optionally written out as in `4KiB`). A bare `b` means bytes.
pub fn size(text: &str) -> Result<u64, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, suffix) = text.split_at(digits);
    if number.is_empty() {
        return Err("a size is a whole number, with a suffix k, m, g, t, p or e if it is not in bytes".to_owned());
    }
    let shift =
        suffix_shift(suffix).ok_or_else(|| format!("unknown size suffix '{suffix}', known are k, m, g, t, p and e"))?;
    let too_large = || "the size does not fit into 64 bits".to_owned();
    let number: u64 = number.parse().map_err(|_| too_large())?;
    number.checked_mul(1 << shift).ok_or_else(too_large)
}

/// The power of two that a suffix stands for.
fn suffix_shift(suffix: &str) -> Option<u32> {
    let lower = suffix.to_ascii_lowercase();
    let letter = match lower.as_str() {
        "" | "b" => return Some(0),
        unit => unit.strip_suffix("ib").unwrap_or(unit),
    };
    ["k", "m", "g", "t", "p", "e"].iter().zip(1..).find(|(unit, _)| **unit == letter).map(|(_, power)| power * 10)
}

/// A byte count as btrfs-progs prints it: two decimals and a binary unit.
pub fn pretty_size(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let power = ((u64::BITS - bytes.leading_zeros()).saturating_sub(1) / 10).min(6);
    let value = bytes as f64 / (1u64 << (power * 10)) as f64;
    format!("{value:.2}{}", UNITS[power as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse() {
        let good: &[(&str, u64)] = &[
            ("0", 0),
            ("4096", 4096),
            ("512b", 512),
            ("1k", 1 << 10),
            ("1K", 1 << 10),
            ("16KiB", 16 << 10),
            ("3m", 3 << 20),
            ("2G", 2 << 30),
            ("5t", 5 << 40),
            ("6p", 6 << 50),
            ("15E", 15 << 60),
            ("18446744073709551615", u64::MAX),
        ];
        for &(text, bytes) in good {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let bad =
            ["", "k", "-1", "1.5g", "1x", "1kk", "1 g", "1ib", "16E", "18446744073709551616", "1G ", "0x10", "١k"];
        for text in bad {
            assert!(size(text).is_err(), "{text}");
        }
        assert!(size("1x").unwrap_err().contains("'x'"));
    }

    #[test]
    fn sizes_print_as_in_btrfs_progs() {
        let table: &[(u64, &str)] = &[
            (0, "0.00B"),
            (4096, "4.00KiB"),
            (8 << 20, "8.00MiB"),
            (53673984, "51.19MiB"),
            (1 << 30, "1.00GiB"),
            (114294784, "109.00MiB"),
            (u64::MAX, "16.00EiB"),
        ];
        for &(bytes, text) in table {
            assert_eq!(pretty_size(bytes), text);
        }
    }
}
