//! The text about a scrub, as btrfs-progs prints it.

use super::record::{counter, uuid_text};
use crate::args::pretty_size;
use crate::commands::inspect_internal::dump_tree::local_time::Zone;
use butterfs_control::{ScrubDevice, ScrubEnd, ScrubState};
use butterfs_ondisk::dump::civil;
use std::io::{self, Write};

/// How it is printed.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub struct Style {
    /// Each device by itself
    #[arg(short = 'd')]
    pub each_device: bool,
    /// The counters instead of a summary
    #[arg(short = 'R')]
    pub counters: bool,
    /// Sizes in bytes
    #[arg(long)]
    pub raw: bool,
}

/// The counters in the order of the kernel's structure.
pub const COUNTERS: [&str; 15] = [
    "data_extents_scrubbed",
    "tree_extents_scrubbed",
    "data_bytes_scrubbed",
    "tree_bytes_scrubbed",
    "read_errors",
    "csum_errors",
    "verify_errors",
    "no_csum",
    "csum_discards",
    "super_errors",
    "malloc_errors",
    "uncorrectable_errors",
    "unverified_errors",
    "corrected_errors",
    "last_physical",
];

/// In place of a time for which there is no estimate yet.
const UNKNOWN: &str = "unknown";

/// Prints a scrub; `word` is what the headings of devices end with.
pub fn print(out: &mut dyn Write, state: &ScrubState, style: &Style, word: &str, now: i64) -> io::Result<()> {
    if !style.each_device {
        return block(out, &whole(state), state, style, now);
    }
    for device in state.devices.iter().filter(|device| device.started != 0) {
        writeln!(out, "\nScrub device {} (id {}) {word}", device.name, device.id)?;
        block(out, device, state, style, now)?;
    }
    Ok(())
}

/// All devices as one.
pub fn whole(state: &ScrubState) -> ScrubDevice {
    let mut all = ScrubDevice::default();
    let scrubbed = || state.devices.iter().filter(|device| device.started != 0);
    for name in COUNTERS.into_iter().chain(["unchecked_parity", "parity_errors"]) {
        let sum = scrubbed().map(|device| counter(device, name)).fold(0, u64::saturating_add);
        let last = scrubbed().next_back().map_or(0, |device| counter(device, name));
        all.counters.push((name.to_owned(), if name == "last_physical" { last } else { sum }));
    }
    all.total_bytes = state.devices.iter().map(|device| device.total_bytes).sum();
    all.started = scrubbed().map(|device| device.started).min().unwrap_or(0);
    all.resumed = scrubbed().map(|device| device.resumed).max().unwrap_or(0);
    all.duration_secs = scrubbed().map(|device| device.duration_secs).max().unwrap_or(0);
    let limits = || state.devices.iter().map(|device| device.limit);
    all.limit = if limits().any(|limit| limit == 0) { 0 } else { limits().sum() };
    let has = |wanted: fn(&ScrubEnd) -> bool| scrubbed().any(|device| wanted(&device.end));
    all.end = match () {
        () if has(|end| *end == ScrubEnd::Running) => ScrubEnd::Running,
        () if has(|end| matches!(end, ScrubEnd::Failed(_))) => ScrubEnd::Failed(String::new()),
        () if has(|end| *end == ScrubEnd::Cancelled) => ScrubEnd::Cancelled,
        () => ScrubEnd::Finished,
    };
    all
}

/// The word for how a scrub ended.
pub fn status(device: &ScrubDevice, is_running: bool) -> &'static str {
    match device.end {
        ScrubEnd::Running if is_running => "running",
        ScrubEnd::Running => "interrupted",
        ScrubEnd::Finished => "finished",
        ScrubEnd::Cancelled | ScrubEnd::Failed(_) => "aborted",
    }
}

fn block(out: &mut dyn Write, device: &ScrubDevice, state: &ScrubState, style: &Style, now: i64) -> io::Result<()> {
    let is_running = state.is_running && device.end == ScrubEnd::Running;
    let (word, time) = if device.resumed != 0 { ("resumed", device.resumed) } else { ("started", device.started) };
    if device.started == 0 {
        writeln!(out, "\tno stats available")?;
    } else {
        writeln!(out, "{:<18}{}", format!("Scrub {word}:"), date(time))?;
        writeln!(out, "{:<18}{}", "Status:", status(device, state.is_running))?;
        writeln!(out, "{:<18}{}", "Duration:", duration(device.duration_secs))?;
    }
    if style.counters {
        return COUNTERS.iter().try_for_each(|name| writeln!(out, "\t{name}: {}", counter(device, name)));
    }
    let done = counter(device, "data_bytes_scrubbed").saturating_add(counter(device, "tree_bytes_scrubbed"));
    let rate = done / device.duration_secs.max(1);
    let size = |bytes| if style.raw { format!("{bytes}") } else { pretty_size(bytes) };
    if is_running {
        // The first second tells nothing.
        let left = device.total_bytes.saturating_sub(done).checked_div(rate).filter(|_| device.duration_secs > 0);
        let end = left.map(|left| date(now.saturating_add(left.min(1 << 40) as i64)));
        writeln!(out, "{:<18}{}", "Time left:", left.map_or(UNKNOWN.to_owned(), duration))?;
        writeln!(out, "{:<18}{}", "ETA:", end.as_deref().unwrap_or(UNKNOWN))?;
    }
    writeln!(out, "{:<18}{}", "Total to scrub:", size(device.total_bytes))?;
    if is_running {
        let percent = done as f64 * 100.0 / device.total_bytes.max(1) as f64;
        writeln!(out, "{:<18}{}  ({percent:.2}%)", "Bytes scrubbed:", size(done))?;
    }
    writeln!(out, "{:<18}{}/s{}", "Rate:", size(rate), limit_note(device, state, style))?;
    errors(out, device, state.read_only)
}

fn limit_note(device: &ScrubDevice, state: &ScrubState, style: &Style) -> String {
    let size = |bytes| if style.raw { format!("{bytes}") } else { pretty_size(bytes) };
    match device.limit {
        0 if !style.each_device && state.devices.iter().any(|one| one.limit != 0) => {
            " (some device limits set)".to_owned()
        }
        0 => String::new(),
        limit => format!(" (limit {}/s)", size(limit)),
    }
}

fn errors(out: &mut dyn Write, device: &ScrubDevice, read_only: bool) -> io::Result<()> {
    let kinds =
        [("read", "read_errors"), ("super", "super_errors"), ("verify", "verify_errors"), ("csum", "csum_errors")];
    let found: Vec<String> = kinds
        .iter()
        .filter_map(|(word, name)| Some(counter(device, name)).filter(|n| *n > 0).map(|n| format!("{word}={n}")))
        .collect();
    let uncorrectable = counter(device, "uncorrectable_errors");
    if found.is_empty() && uncorrectable == 0 {
        writeln!(out, "{:<18}no errors found", "Error summary:")?;
    } else {
        writeln!(out, "{:<18}{}", "Error summary:", found.join(" "))?;
        // A run that writes nothing has corrected nothing.
        let corrected = if read_only { "Correctable:" } else { "Corrected:" };
        writeln!(out, "  {corrected:<16}{}", counter(device, "corrected_errors"))?;
        writeln!(out, "  {:<16}{uncorrectable}", "Uncorrectable:")?;
        writeln!(out, "  {:<16}0", "Unverified:")?;
    }
    match counter(device, "parity_errors") {
        0 => {}
        sectors if read_only => writeln!(out, "{:<18}{sectors} sectors do not fit the data", "Parity:")?,
        sectors => writeln!(out, "{:<18}{sectors} sectors did not fit the data, computed anew", "Parity:")?,
    }
    match counter(device, "unchecked_parity") {
        0 => Ok(()),
        parity => writeln!(out, "{:<18}{} not compared, data of their rows is lost", "Parity:", pretty_size(parity)),
    }
}

fn duration(secs: u64) -> String {
    format!("{}:{:02}:{:02}", secs / 3600, secs / 60 % 60, secs % 60)
}

/// `Mon Nov 23 02:22:21 2026`, local time.
pub fn date(seconds: i64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let local = seconds.saturating_add(Zone::of_system().utc_offset(seconds).into());
    let (days, second) = (local.div_euclid(86_400), local.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let (weekday, month) = (DAYS[days.rem_euclid(7) as usize], MONTHS[(month as usize).saturating_sub(1) % 12]);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{weekday} {month} {day:2} {hour:02}:{minute:02}:{second:02} {year}")
}

/// A scrub as JSON.
pub fn json(state: &ScrubState) -> serde_json::Value {
    let device = |device: &ScrubDevice| {
        let counters: serde_json::Map<String, serde_json::Value> =
            COUNTERS.iter().map(|name| ((*name).to_owned(), counter(device, name).into())).collect();
        serde_json::json!({
            "devid": device.id,
            "device": device.name,
            "status": if device.started == 0 { "never" } else { status(device, state.is_running) },
            "reason": if let ScrubEnd::Failed(why) = &device.end { Some(why) } else { None },
            "started": device.started,
            "resumed": device.resumed,
            "duration": device.duration_secs,
            "total": device.total_bytes,
            "limit": device.limit,
            "unchecked_parity": counter(device, "unchecked_parity"),
            "parity_errors": counter(device, "parity_errors"),
            "counters": counters,
        })
    };
    serde_json::json!({
        "uuid": uuid_text(&state.fsid),
        "running": state.is_running,
        "read_only": state.read_only,
        "findings": state.findings,
        "findings_omitted": state.omitted,
        "devices": state.devices.iter().map(device).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(state: &ScrubState, style: Style) -> String {
        let mut out = Vec::new();
        print(&mut out, state, &style, "done", 0).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn there_is_no_estimate_without_a_rate() {
        let running = |duration_secs, done: u64| {
            let device = ScrubDevice {
                started: 1,
                duration_secs,
                total_bytes: 1 << 30,
                counters: vec![("data_bytes_scrubbed".to_owned(), done)],
                ..ScrubDevice::default()
            };
            text(&ScrubState { is_running: true, devices: vec![device], ..ScrubState::default() }, Style::default())
        };
        for (secs, done) in [(0, 0), (0, 4096), (9, 0), (9, 8)] {
            let said = running(secs, done);
            assert!(said.contains("Time left:        unknown\nETA:              unknown\n"), "{said}");
        }
        assert!(running(2, 1 << 29).contains("Time left:        0:00:02\n"));
    }

    #[test]
    fn a_summary_has_the_columns_of_btrfs_progs() {
        let counters = [("csum_errors", 3), ("verify_errors", 4), ("super_errors", 1), ("corrected_errors", 7)];
        let device = ScrubDevice {
            id: 1,
            name: "/dev/x".into(),
            started: 1,
            end: ScrubEnd::Finished,
            total_bytes: 1 << 20,
            counters: counters.map(|(name, value)| (name.to_owned(), value)).to_vec(),
            ..ScrubDevice::default()
        };
        let state = ScrubState { devices: vec![device], ..ScrubState::default() };
        let all = text(&state, Style::default());
        let tail = "Status:           finished\nDuration:         0:00:00\nTotal to scrub:   1.00MiB\n\
                    Rate:             0.00B/s\nError summary:    super=1 verify=4 csum=3\n  Corrected:      7\n  \
                    Uncorrectable:  0\n  Unverified:     0\n";
        assert!(all.ends_with(tail), "{all}");
        let each = text(&state, Style { each_device: true, counters: true, ..Style::default() });
        assert!(each.starts_with("\nScrub device /dev/x (id 1) done\nScrub started:    "), "{each}");
        assert!(each.contains("\n\tcsum_errors: 3\n\tverify_errors: 4\n\tno_csum: 0\n"), "{each}");
        let read_only = ScrubState { read_only: true, ..state };
        assert!(text(&read_only, Style::default()).contains("\n  Correctable:    7\n"));
    }
}
