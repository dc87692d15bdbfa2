//! The checker.

use crate::device::devices;
use crate::error::raised;
use crate::values::{Finding, Report};
use butterfs::{Check, DataCheck, Severity};
use pyo3::prelude::*;

/// Checks the filesystem on one or several devices, which is not open. With `data` all data is read too. `progress` is
/// called with a word for the stage, its number and the number of stages.
#[pyfunction]
#[pyo3(signature = (devices_or_paths, *, data=false, progress=None))]
pub fn check(
    py: Python<'_>,
    devices_or_paths: &Bound<'_, PyAny>,
    data: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<Report> {
    let devices = devices(devices_or_paths)?;
    let failed = std::sync::Mutex::new(None);
    let report = py.detach(|| {
        let check = devices.into_iter().fold(Check::new(), Check::device);
        let check = check.data(if data { DataCheck::Verify } else { DataCheck::Skip });
        let told = |now: &butterfs::CheckProgress| {
            let Some(progress) = &progress else { return };
            Python::attach(|py| {
                if let Err(error) = progress.call1(py, (now.stage, now.number, now.stages)) {
                    failed.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert(error);
                }
            });
        };
        check.on_progress(told).run()
    });
    if let Some(error) = failed.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()) {
        return Err(error);
    }
    let report = report.map_err(raised)?;
    let findings = report.findings().iter().map(|finding| {
        let is_error = finding.severity() == Severity::Error;
        Py::new(py, Finding { id: finding.id(), is_error, message: finding.to_string() })
    });
    Ok(Report {
        findings: findings.collect::<PyResult<_>>()?,
        errors: report.errors(),
        warnings: report.warnings(),
        notes: report.notes().to_vec(),
        is_clean: report.is_clean(),
    })
}
