//! Several operations in one transaction: an update that a crash, or a failing step, cannot leave half done.
//!
//! `cargo run -p butterfs --example transaction`

use butterfs::{Device, Filesystem, Mkfs, Rename, Transaction};
use std::error::Error;

pub fn main() -> Result<(), Box<dyn Error>> {
    let disk = Device::memory(256 << 20);
    Mkfs::new().device(disk.clone()).run()?;
    let filesystem = Filesystem::open(disk)?;
    let root = filesystem.root();
    root.create_dir("app")?;
    root.write("app/program", "version 1")?;
    root.write("app/config", "for version 1")?;

    // An error in the closure takes everything back.
    let failed: Result<(), Box<dyn Error>> = filesystem.transaction(|tx| install(tx, "version 2", None));
    println!("the first try failed: {}", failed.unwrap_err());
    assert_eq!(root.read("app/program")?, b"version 1");
    assert!(!root.exists("app.new")?);

    // When this has returned, both files are new, also after a crash. No crash shows one without the other.
    filesystem.transaction(|tx| install(tx, "version 2", Some("for version 2")))?;
    assert_eq!(root.read("app/program")?, b"version 2");
    assert_eq!(root.read("app/config")?, b"for version 2");
    println!("the second try worked");
    filesystem.close()?;
    Ok(())
}

/// Puts a new version in the place of the old one.
fn install(tx: &Transaction<'_>, program: &str, config: Option<&str>) -> Result<(), Box<dyn Error>> {
    let root = tx.root();
    root.create_dir("app.new")?;
    root.write("app.new/program", program)?;
    root.write("app.new/config", config.ok_or("the new version has no configuration")?)?;
    root.rename("app", "app.new", Rename::Exchange)?;
    root.remove_dir_all("app.new")?;
    Ok(())
}
