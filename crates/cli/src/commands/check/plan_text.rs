//! A plan of a repair as text and as JSON, and the report of quota groups.

use crate::error::{CliError, FAILED};
use butterfs_check::finding::json_text;
use butterfs_check::{Finding, Severity};
use butterfs_device::BlockDevice;
use butterfs_repair::{Means, Plan, QuotaGroup, Start, quota_report, repair_of};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

/// Findings of one kind that are shown one by one.
const SHOWN: usize = 10;

/// Every finding with its repair, every step with what it loses, and what stays.
pub fn text(out: &mut dyn Write, plan: &Plan) -> Result<(), CliError> {
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for finding in &plan.before.findings {
        let seen = kinds.entry(finding.id()).or_default();
        *seen += 1;
        if *seen <= SHOWN {
            writeln!(out, "{}: {finding} [{}]", word(finding), finding.id())?;
        }
        let Some(repair) = repair_of(finding.id()).filter(|_| *seen == 1) else { continue };
        let label = match repair.means {
            Means::Automatic => "repair",
            Means::WhereCertain => "repair, where it is certain",
            Means::Consent => "repair, with --accept-data",
            Means::Instead => "no repair; instead",
        };
        writeln!(out, "    {label} ({}): {}", repair.pass, repair.how)?;
        if !repair.lost.is_empty() {
            writeln!(out, "    lost: {}", repair.lost)?;
        }
    }
    for (kind, count) in kinds.into_iter().filter(|(_, count)| *count > SHOWN) {
        writeln!(out, "note: {} more of the kind {kind}", count - SHOWN)?;
    }
    if !plan.actions.is_empty() {
        writeln!(out, "steps:")?;
    }
    for action in &plan.actions {
        writeln!(out, "  {}: {}", action.pass, action.what)?;
        if let Some(lost) = &action.lost {
            writeln!(out, "    lost: {lost}")?;
        }
    }
    if let Some(trouble) = &plan.trouble {
        writeln!(out, "cannot go on: {trouble}")?;
    }
    for (finding, repair) in plan.left() {
        writeln!(out, "stays: {finding} [{}]", finding.id())?;
        let Some(repair) = repair else { continue };
        let label = match repair.means {
            Means::Instead => "instead",
            Means::Consent => "repaired with --accept-data",
            Means::Automatic | Means::WhereCertain => "not possible here",
        };
        writeln!(out, "    {label}: {}", repair.how)?;
    }
    let estimate = plan.estimate;
    if !plan.is_empty() {
        writeln!(
            out,
            "writes {} KiB, after {} KiB of undo file; needs {} MiB of memory, and about {} s",
            estimate.write_bytes >> 10,
            estimate.undo_bytes >> 10,
            (estimate.memory_bytes >> 20) + 1,
            estimate.apply_in.as_secs() + 1
        )?;
    }
    match (plan.is_empty(), plan.is_clean()) {
        (true, true) => writeln!(out, "nothing to repair")?,
        (false, true) => writeln!(out, "afterwards a check finds no error")?,
        (_, false) => writeln!(out, "afterwards a check finds {} errors", plan.after.errors)?,
    }
    Ok(())
}

fn word(finding: &Finding) -> &'static str {
    if finding.severity() == Severity::Error { "ERROR" } else { "WARNING" }
}

/// One object.
pub fn json(out: &mut dyn Write, plan: &Plan) -> Result<(), CliError> {
    let of = |findings: &[Finding]| findings.iter().map(planned).collect::<Vec<_>>().join(",");
    let step = |action: &butterfs_repair::Action| {
        let lost = action.lost.as_ref().map_or("null".to_owned(), |lost| json_text(lost));
        format!("{{\"pass\":\"{}\",\"what\":{},\"lost\":{lost}}}", action.pass, json_text(&action.what))
    };
    let steps: Vec<String> = plan.actions.iter().map(step).collect();
    let trouble = plan.trouble.as_ref().map_or("null".to_owned(), |trouble| json_text(&trouble.to_string()));
    let fsid = uuid::Uuid::from_bytes(plan.before.fsid);
    let estimate = plan.estimate;
    writeln!(
        out,
        "{{\"fsid\":\"{fsid}\",\"findings\":[{}],\"steps\":[{}],\"left\":[{}],\"trouble\":{trouble},\"clean\":{},\
         \"write_bytes\":{},\"undo_bytes\":{},\"memory_bytes\":{},\"apply_ms\":{}}}",
        of(&plan.before.findings),
        steps.join(","),
        of(&plan.after.findings),
        plan.is_clean(),
        estimate.write_bytes,
        estimate.undo_bytes,
        estimate.memory_bytes,
        estimate.apply_in.as_millis()
    )?;
    Ok(())
}

fn planned(finding: &Finding) -> String {
    let repair = repair_of(finding.id());
    let of = |value: Option<&str>| value.map_or("null".to_owned(), json_text);
    format!(
        "{{\"id\":\"{}\",\"message\":{},\"pass\":{},\"repair\":{},\"lost\":{}}}",
        finding.id(),
        json_text(&finding.to_string()),
        of(repair.map(|repair| repair.pass.name())),
        of(repair.map(|repair| repair.how)),
        of(repair.map(|repair| repair.lost).filter(|lost| !lost.is_empty()))
    )
}

/// Every quota group, in the words of btrfs check.
pub fn quotas(
    out: &mut dyn Write,
    devices: Vec<Arc<dyn BlockDevice>>,
    start: &Start,
    names: &[PathBuf],
) -> Result<(), CliError> {
    let report = quota_report(devices, start).map_err(|trouble| CliError::failed(trouble.to_string()))?;
    let Some(report) = report else {
        return Err(CliError::failed("quotas are not enabled on this filesystem"));
    };
    let name = names.first().map_or_else(String::new, |name| name.display().to_string());
    writeln!(out, "Print quota groups for {name}")?;
    writeln!(out, "UUID: {}", uuid::Uuid::from_bytes(report.fsid))?;
    for group in &report.groups {
        quota_group(out, group)?;
    }
    if report.is_inconsistent {
        writeln!(out, "note: the quota groups are marked as inconsistent; a rescan counts them anew")?;
    }
    let is_right = report.is_inconsistent || report.groups.iter().all(QuotaGroup::is_right);
    if is_right { Ok(()) } else { Err(CliError::Reported { code: FAILED }) }
}

fn quota_group(out: &mut dyn Write, group: &QuotaGroup) -> Result<(), CliError> {
    let (level, number) = (group.id >> 48, group.id & ((1 << 48) - 1));
    let verdict = if group.is_right() { "" } else { "are different" };
    writeln!(out, "Counts for qgroup id: {level}/{number} {verdict}")?;
    let pairs = [("referenced", group.referenced, group.stored.0), ("exclusive", group.exclusive, group.stored.1)];
    for (what, ours, stored) in pairs {
        writeln!(out, "our:\t\t{what} {ours} {what} compressed {ours}")?;
        writeln!(out, "disk:\t\t{what} {stored} {what} compressed {stored}")?;
        if ours != stored {
            let difference = ours.wrapping_sub(stored) as i64;
            writeln!(out, "diff:\t\t{what} {difference} {what} compressed {difference}")?;
        }
    }
    Ok(())
}
