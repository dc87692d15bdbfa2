//! Damage as text and as JSON.

use butterfs_control::{DamagedFile, ScrubFinding, ScrubOutcome};
use serde_json::{Value, json};
use std::io::{self, Write};

/// A finding as one sentence, without its files.
pub fn sentence(finding: &ScrubFinding) -> String {
    let ScrubFinding { device, device_name, physical, len, content, cause, outcome_text, .. } = finding;
    let at = finding.logical.map(|at| format!(" at logical {at}")).unwrap_or_default();
    format!("{len} bytes of {content}{at} on {device_name} (devid {device}) at {physical}: {cause}; {outcome_text}")
}

/// A file as text.
pub fn file(file: &DamagedFile) -> String {
    let DamagedFile { tree, ino, offset, len, path } = file;
    let who = match path.is_empty() {
        true => format!("inode {ino} of tree {tree}"),
        false => format!("'/{}' (inode {ino} of tree {tree})", String::from_utf8_lossy(path)),
    };
    format!("{who} at offset {offset} length {len}")
}

/// Prints a finding with all of its files, one line each.
pub fn print(out: &mut dyn Write, finding: &ScrubFinding) -> io::Result<()> {
    writeln!(out, "{}", sentence(finding))?;
    for one in &finding.files {
        writeln!(out, "  {}", file(one))?;
    }
    for tree in &finding.trees {
        writeln!(out, "  tree {tree}")?;
    }
    if finding.is_cut {
        writeln!(out, "  and others that are not listed")?;
    }
    Ok(())
}

/// A finding as JSON. A path that is not UTF-8 has replacement characters, and its bytes in `path_hex`.
pub fn value(finding: &ScrubFinding) -> Value {
    let file = |file: &DamagedFile| {
        let text = std::str::from_utf8(&file.path);
        let hex = text.is_err().then(|| file.path.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
        json!({
            "path": if file.path.is_empty() { None } else { Some(String::from_utf8_lossy(&file.path)) },
            "path_hex": hex,
            "subvolume": file.tree,
            "inode": file.ino,
            "offset": file.offset,
            "length": file.len,
        })
    };
    let outcome = match finding.outcome {
        ScrubOutcome::Repaired => "repaired",
        ScrubOutcome::Repairable => "repairable",
        ScrubOutcome::Lost => "lost",
        ScrubOutcome::Noticed => "noticed",
    };
    json!({
        "devid": finding.device,
        "device": finding.device_name,
        "physical": finding.physical,
        "logical": finding.logical,
        "length": finding.len,
        "content": finding.content,
        "cause": finding.cause,
        "outcome": outcome,
        "detail": finding.outcome_text,
        "files": finding.files.iter().map(file).collect::<Vec<_>>(),
        "trees": finding.trees,
        "incomplete": finding.is_cut,
    })
}

/// Addresses that damage was found at, in at most `most` ranges: neighbours are joined until they are few enough.
pub fn ranges(findings: &[ScrubFinding], most: usize) -> Vec<(u64, u64)> {
    let ends = findings.iter().filter_map(|finding| Some((finding.logical?, finding.logical? + finding.len)));
    let mut all: Vec<(u64, u64)> = ends.collect();
    all.sort_unstable();
    let mut gap = 0;
    loop {
        let mut joined: Vec<(u64, u64)> = Vec::new();
        for (from, to) in &all {
            match joined.last_mut() {
                Some(last) if from.saturating_sub(last.1) <= gap => last.1 = last.1.max(*to),
                _ => joined.push((*from, *to)),
            }
        }
        if joined.len() <= most {
            return joined;
        }
        (all, gap) = (joined, (gap * 2).max(4096));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_ranges_become_few() {
        let finding = |at: u64| ScrubFinding {
            device: 1,
            device_name: String::new(),
            physical: 0,
            logical: Some(at),
            len: 4096,
            content: "data".into(),
            cause: String::new(),
            outcome: ScrubOutcome::Lost,
            outcome_text: String::new(),
            files: Vec::new(),
            trees: Vec::new(),
            is_cut: false,
        };
        let findings: Vec<_> = (0..1000).rev().map(|i| finding(i << 20)).collect();
        let few = ranges(&findings, 10);
        assert!(few.len() <= 10);
        assert!(findings.iter().all(|f| few.iter().any(|(a, b)| (*a..*b).contains(&f.logical.unwrap()))));
        assert_eq!(ranges(&findings[..2], 10), [(998 << 20, (998 << 20) + 4096), (999 << 20, (999 << 20) + 4096)]);
    }
}
