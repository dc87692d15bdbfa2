//! Checks a filesystem, its data included, and shows what the checker says about damage.
//!
//! `cargo run -p butterfs --example check [DEVICE...]`

use butterfs::{BlockDevice, Check, CheckReport, DataCheck, Device, Filesystem, MemoryDevice, Mkfs};
use std::error::Error;
use std::ffi::OsString;
use std::sync::Arc;

pub fn main() -> Result<(), Box<dyn Error>> {
    run(std::env::args_os().skip(1).collect())
}

pub fn run(arguments: Vec<OsString>) -> Result<(), Box<dyn Error>> {
    let devices: Vec<Device> = arguments.into_iter().map(Device::path).collect();
    if !devices.is_empty() {
        let check = devices.into_iter().fold(Check::new(), Check::device);
        show(&check.data(DataCheck::Verify).run()?);
        return Ok(());
    }

    // Keep the memory at hand, to damage it behind the filesystem's back.
    let disk = Arc::new(MemoryDevice::new(256 << 20));
    let device = Device::from(Arc::clone(&disk) as Arc<dyn BlockDevice>);
    Mkfs::new().device(device.clone()).run()?;
    let filesystem = Filesystem::open(device.clone())?;
    filesystem.root().write("poem", "So much depends upon a red wheel barrow. ".repeat(1000))?;
    filesystem.close()?;

    let report = Check::new().device(device.clone()).data(DataCheck::Verify).run()?;
    show(&report);
    assert!(report.is_clean());

    let bytes = disk.to_bytes();
    let at = bytes.windows(11).position(|window| window == b"wheel barro").expect("the poem is on the disk");
    disk.write_at(at as u64, b"wheelbarrow")?;
    let report = Check::new().device(device).data(DataCheck::Verify).run()?;
    show(&report);
    assert!(!report.is_clean());
    Ok(())
}

fn show(report: &CheckReport) {
    println!("{}: {} errors, {} warnings", report.uuid(), report.errors(), report.warnings());
    report.findings().iter().for_each(|finding| println!("  {finding} [{}]", finding.id()));
    report.notes().iter().for_each(|note| println!("  note: {note}"));
}
