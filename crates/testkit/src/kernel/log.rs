//! The kernel's log since a moment, and what of it is a complaint of btrfs.
//!
//! Invariant: lines are told apart by their sequence number, so nothing is seen twice and nothing between two reads is
//! missed while the kernel's buffer holds it. Other mounts of this machine are told apart by the device's name.

use rustix::fs::{Mode, OFlags};

/// A moment in the log.
#[derive(Clone, Copy, Debug)]
pub struct KernelLog {
    after: u64,
}

impl KernelLog {
    /// Now.
    pub fn mark() -> KernelLog {
        KernelLog { after: records().last().map_or(0, |(sequence, _)| *sequence) }
    }

    /// Lines of btrfs since the mark that concern `device` or name no device.
    pub fn lines(&self, device: &str) -> Vec<String> {
        let since = records().into_iter().filter(|(sequence, _)| *sequence > self.after).map(|(_, line)| line);
        since.filter(|line| is_about(line, device)).collect()
    }

    /// Those of `lines` that are complaints.
    pub fn complaints(&self, device: &str) -> Vec<String> {
        self.lines(device).into_iter().filter(|line| is_complaint(line)).collect()
    }
}

fn is_about(line: &str, device: &str) -> bool {
    let lower = line.to_lowercase();
    if !lower.contains("btrfs") {
        return false;
    }
    match line.split_once("(device ") {
        Some((_, rest)) => rest.split([')', ' ', ':']).next() == Some(device),
        None => is_complaint(line) && node_named_in(line).is_none_or(|name| name == device),
    }
}

/// The device node that a line about no mount names (`duplicate device /dev/loop3 devid 1`).
fn node_named_in(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("/dev/")?;
    rest.split(|letter: char| !letter.is_alphanumeric() && letter != '-').next()
}

fn is_complaint(line: &str) -> bool {
    let bad = ["BTRFS error", "BTRFS warning", "BTRFS critical", "BTRFS alert", "BTRFS emerg", "BTRFS: error"];
    let splat = ["WARNING:", "BUG:", "kernel BUG"].iter().any(|word| line.contains(word)) && line.contains("btrfs");
    // What is said of options names no device, and may be about somebody else's mount.
    let of_the_disk = !["is being deprecated", "excessive commit interval"].iter().any(|words| line.contains(words));
    (splat || bad.iter().any(|prefix| line.contains(prefix))) && of_the_disk
}

fn records() -> Vec<(u64, String)> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open("/dev/kmsg", flags, Mode::empty()).expect("root reads the kernel log");
    let mut records = Vec::new();
    let mut buffer = [0; 16384];
    loop {
        match rustix::io::read(&file, &mut buffer) {
            Ok(0) | Err(rustix::io::Errno::AGAIN) => return records,
            // Overwritten while we read: go on with the oldest that is left.
            Err(rustix::io::Errno::PIPE | rustix::io::Errno::INTR) => {}
            Err(error) => panic!("cannot read the kernel log: {error}"),
            Ok(len) => records.extend(record(&String::from_utf8_lossy(&buffer[..len]))),
        }
    }
}

/// `level,sequence,time,flags;text`, then lines of dictionary.
fn record(text: &str) -> Option<(u64, String)> {
    let (head, rest) = text.split_once(';')?;
    let sequence = head.split(',').nth(1)?.parse().ok()?;
    Some((sequence, rest.lines().next().unwrap_or_default().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_told_from_news() {
        for (line, about, complaint) in [
            ("BTRFS error (device loop3): parent transid verify failed", true, true),
            ("BTRFS error (device loop3 state EA): x", true, true),
            ("BTRFS error (device loop31): x", false, true),
            ("BTRFS info (device loop3): using crc32c", true, false),
            ("BTRFS: device fsid 1 devid 1 transid 7 /dev/loop3", false, false),
            ("BTRFS warning: duplicate device /dev/loop3 devid 1 generation 7 scanned by mount (1)", true, true),
            ("BTRFS warning: duplicate device /dev/loop31 devid 1 generation 7 scanned by mount (1)", false, true),
            ("BTRFS error: device fsid 1 changed", true, true),
            ("WARNING: CPU: 1 PID: 2 at fs/btrfs/extent-tree.c:1 btrfs_free", true, true),
            ("EXT4-fs error (device loop3)", false, false),
        ] {
            assert_eq!((is_about(line, "loop3"), is_complaint(line)), (about, complaint), "{line}");
        }
    }

    #[test]
    fn records_are_parsed() {
        assert_eq!(record("6,1234,5678,-;text\n SUBSYSTEM=x\n"), Some((1234, "text".to_owned())));
    }
}
