//! A plan of a repair as text and as JSON.

use crate::error::CliError;
use butterfs_check::finding::json_text;
use butterfs_check::{Finding, Severity};
use butterfs_repair::{Means, Plan, repair_of};
use std::collections::BTreeMap;
use std::io::Write;

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
    for (finding, how) in plan.left() {
        writeln!(out, "stays: {finding} [{}]", finding.id())?;
        writeln!(out, "    instead: {how}")?;
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
