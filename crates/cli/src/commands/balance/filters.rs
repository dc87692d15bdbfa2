//! The filters of a balance: read from the command line, and shown.

use butterfs_fs::{BalanceArgs, BalanceItem};
use butterfs_ondisk::balance::{SINGLE, args_flags as flags, balance_flags};
use butterfs_ondisk::profile::Profile;
use std::fmt::Write;

/// Reads `usage=5,limit=2` and the like. The error is one or two sentences, as btrfs says them.
pub fn parse(text: &str) -> Result<BalanceArgs, Vec<String>> {
    let mut args = BalanceArgs::default();
    for word in text.split(',').filter(|word| !word.is_empty()) {
        let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        apply(&mut args, name, value)?;
    }
    if args.has(flags::SOFT) && !args.has(flags::CONVERT) {
        return Err(vec!["'soft' option can be used only when converting profiles".to_owned()]);
    }
    if args.has(flags::DRANGE) && !args.has(flags::DEVID) {
        return Err(vec!["drange filter must be used with devid filter".to_owned()]);
    }
    Ok(args)
}

fn apply(args: &mut BalanceArgs, name: &str, value: Option<&str>) -> Result<(), Vec<String>> {
    let needed = |name: &str| value.ok_or_else(|| vec![format!("the {name} filter requires an argument")]);
    match name {
        "soft" => args.flags |= flags::SOFT,
        "profiles" => {
            for profile in needed(name)?.split('|') {
                let bits = profile_bits(profile).ok_or_else(|| unknown(profile, "profiles"))?;
                args.profiles |= bits;
            }
            args.flags |= flags::PROFILES;
        }
        "convert" => {
            let profile = needed(name)?;
            args.target = profile_bits(profile).ok_or_else(|| unknown(profile, "convert"))?.into();
            args.flags |= flags::CONVERT;
        }
        "usage" => usage(args, needed(name)?)?,
        "devid" => {
            let text = needed(name)?;
            let id = text.parse::<u64>().ok().filter(|id| *id > 0);
            args.devid = id.ok_or_else(|| vec![format!("invalid devid argument: {text}")])?.into();
            args.flags |= flags::DEVID;
        }
        "drange" => {
            let (start, end) = long_range(needed(name)?, "drange")?;
            (args.pstart, args.pend) = (start.into(), end.into());
            args.flags |= flags::DRANGE;
        }
        "vrange" => {
            let (start, end) = long_range(needed(name)?, "vrange")?;
            (args.vstart, args.vend) = (start.into(), end.into());
            args.flags |= flags::VRANGE;
        }
        "limit" => {
            let text = needed(name)?;
            match text.parse() {
                Ok(limit) => {
                    args.set_limit(limit);
                    args.flags |= flags::LIMIT;
                }
                Err(_) => {
                    let (least, most) = short_range(text, "limit")?;
                    (args.limit_min, args.limit_max) = (least.into(), most.into());
                    args.flags |= flags::LIMIT_RANGE;
                }
            }
        }
        "stripes" => {
            let (least, most) = short_range(needed(name)?, "stripes")?;
            (args.stripes_min, args.stripes_max) = (least.into(), most.into());
            args.flags |= flags::STRIPES_RANGE;
        }
        _ => return Err(vec![format!("unrecognized balance option: {name}")]),
    }
    Ok(())
}

fn usage(args: &mut BalanceArgs, text: &str) -> Result<(), Vec<String>> {
    let invalid = || vec![format!("invalid usage argument: {text}")];
    if let Ok(percent) = text.parse::<u64>() {
        if percent > 100 {
            return Err(invalid());
        }
        args.set_usage(percent);
        args.flags |= flags::USAGE;
        return Ok(());
    }
    let (least, most) = short_range(text, "usage")?;
    if most > 100 {
        return Err(invalid());
    }
    (args.usage_min, args.usage_max) = (least.into(), most.into());
    args.flags |= flags::USAGE_RANGE;
    Ok(())
}

fn unknown(profile: &str, filter: &str) -> Vec<String> {
    vec![format!("unknown profile: {profile}"), format!("invalid {filter} argument")]
}

fn profile_bits(name: &str) -> Option<u64> {
    let profile = Profile::named(name)?;
    Some(if profile.bit == 0 { SINGLE } else { profile.bit })
}

/// `A..B`, where either may be left out.
fn range(text: &str) -> Result<(u64, Option<u64>), Option<String>> {
    let (start, end) = text.split_once("..").ok_or(None)?;
    let number = |text: &str| if text.is_empty() { Ok(None) } else { text.parse().map(Some).map_err(|_| None) };
    let (start, end) = (number(start)?.unwrap_or(0), number(end)?);
    match end {
        Some(end) if end < start => Err(Some(format!("range {start}..{end} doesn't make sense"))),
        end => Ok((start, end)),
    }
}

fn long_range(text: &str, filter: &str) -> Result<(u64, u64), Vec<String>> {
    let invalid =
        |first: Option<String>| first.into_iter().chain([format!("Invalid {filter} argument: {text}")]).collect();
    let (start, end) = range(text).map_err(invalid)?;
    let end = end.unwrap_or(u64::MAX);
    if start == end {
        return Err(invalid(Some(format!("range {start}..{end} doesn't make sense"))));
    }
    Ok((start, end))
}

fn short_range(text: &str, filter: &str) -> Result<(u32, u32), Vec<String>> {
    let invalid = |first: Option<String>| -> Vec<String> {
        first.into_iter().chain([format!("Invalid {filter} argument: {text}")]).collect()
    };
    let (start, end) = range(text).map_err(invalid)?;
    let fits = |number: u64| u32::try_from(number).map_err(|_| invalid(None));
    Ok((fits(start)?, end.map_or(Ok(u32::MAX), fits)?))
}

/// The filters of a balance, as btrfs dumps them.
pub fn dump(control: &BalanceItem, state: u64) -> String {
    let all = control.flags.get();
    let force = if all & balance_flags::FORCE != 0 { "on" } else { "off" };
    let mut out = format!("Dumping filters: flags 0x{all:x}, state 0x{state:x}, force is {force}\n");
    let types = [
        ("DATA", balance_flags::DATA, &control.data),
        ("METADATA", balance_flags::METADATA, &control.metadata),
        ("SYSTEM", balance_flags::SYSTEM, &control.system),
    ];
    for (name, _, args) in types.into_iter().filter(|(_, flag, _)| all & flag != 0) {
        let _ = writeln!(out, "  {name} (flags 0x{:x}): {}", args.flags, dump_args(args));
    }
    out
}

fn dump_args(args: &BalanceArgs) -> String {
    let mut parts = Vec::new();
    if args.has(flags::CONVERT) {
        let soft = if args.has(flags::SOFT) { "on" } else { "off" };
        parts.push(format!("converting, target={}, soft is {soft}", args.target));
    } else {
        parts.push("balancing".to_owned());
    }
    let mut add = |flag: u64, text: String| parts.extend(args.has(flag).then_some(text));
    add(flags::PROFILES, format!("profiles={}", args.profiles));
    add(flags::USAGE, format!("usage={}", args.usage()));
    add(flags::USAGE_RANGE, dump_range("usage", args.usage_min.get(), args.usage_max.get()));
    add(flags::DEVID, format!("devid={}", args.devid));
    add(flags::DRANGE, format!("drange={}..{}", args.pstart, args.pend));
    add(flags::VRANGE, format!("vrange={}..{}", args.vstart, args.vend));
    add(flags::LIMIT, format!("limit={}", args.limit()));
    add(flags::LIMIT_RANGE, dump_range("limit", args.limit_min.get(), args.limit_max.get()));
    add(flags::STRIPES_RANGE, dump_range("stripes", args.stripes_min.get(), args.stripes_max.get()));
    parts.join(", ")
}

fn dump_range(name: &str, least: u32, most: u32) -> String {
    let end = |number: u32, open: u32| if number == open { String::new() } else { number.to_string() };
    format!("{name}={}..{}", end(least, 0), end(most, u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        match parse(text) {
            Ok(args) => format!("(flags 0x{:x}): {}", args.flags, dump_args(&args)),
            Err(sentences) => sentences.join(" | "),
        }
    }

    #[test]
    fn filters_are_read_and_shown_as_btrfs_does() {
        let table = [
            ("", "(flags 0x0): balancing"),
            ("usage=1,limit=2..3", "(flags 0x42): balancing, usage=1, limit=2..3"),
            (
                "convert=dup,soft,vrange=1..5,stripes=1..2,profiles=single|dup",
                "(flags 0x391): converting, target=32, soft is on, profiles=281474976710688, vrange=1..5, stripes=1..2",
            ),
            ("devid=2,drange=0..4096,usage=5..10", "(flags 0x40c): balancing, usage=5..10, devid=2, drange=0..4096"),
            ("usage=101", "invalid usage argument: 101"),
            ("foo", "unrecognized balance option: foo"),
            ("convert=foo", "unknown profile: foo | invalid convert argument"),
            ("profiles=foo", "unknown profile: foo | invalid profiles argument"),
            ("soft", "'soft' option can be used only when converting profiles"),
            ("limit=3..1", "range 3..1 doesn't make sense | Invalid limit argument: 3..1"),
            ("drange=1..2", "drange filter must be used with devid filter"),
        ];
        for (text, expected) in table {
            assert_eq!(shown(text), expected, "{text}");
        }
    }
}
