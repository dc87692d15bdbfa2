//! Watches the progress of long operations, and stops one of them.
//!
//! `cargo run -p butterfs --example progress`

use butterfs::{Access, Check, DataCheck, Device, Filesystem, Mkfs, SendErrorKind};
use std::error::Error;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let disk = Device::memory(512 << 20);
    Mkfs::new().device(disk.clone()).run()?;
    let filesystem = Filesystem::open(disk.clone())?;
    let root = filesystem.root();
    root.create_subvolume("data")?;
    for number in 0..8 {
        root.write(format!("data/{number}"), vec![number; 2 << 20])?;
    }
    let snapshot = root.snapshot("data", "snapshot", Access::ReadOnly)?;

    let mut stream = Vec::new();
    let mut reports = 0;
    let send = filesystem.send(snapshot).on_progress(|progress| {
        reports += 1;
        println!("sent {} bytes, about {} %", progress.bytes, progress.permille / 10);
        ControlFlow::Continue(())
    });
    send.write_to(&mut stream)?;
    assert!(reports > 1);

    // Break ends the work at the next report.
    let stop = |progress: &butterfs::SendProgress| match progress.bytes {
        0..4_000_000 => ControlFlow::Continue(()),
        _ => ControlFlow::Break(()),
    };
    let error = filesystem.send(snapshot).on_progress(stop).write_to(std::io::sink()).unwrap_err();
    assert_eq!(error.kind(), SendErrorKind::Stopped);

    root.create_dir("received")?;
    let received = root.open_dir("received")?;
    let receive = received.receive().on_progress(|progress| {
        println!("received {} bytes", progress.bytes);
        ControlFlow::Continue(())
    });
    receive.read_from(stream.as_slice())?;
    filesystem.close()?;

    // The checker works with several threads, which report at the same time.
    let read = AtomicU64::new(0);
    let check = Check::new().device(disk).data(DataCheck::Verify).on_progress(|progress| {
        read.fetch_max(progress.data_bytes, Ordering::Relaxed);
        println!("[{}/{}] {}", progress.number, progress.stages, progress.stage);
    });
    assert!(check.run()?.is_clean());
    println!("{} bytes of data are good", read.into_inner());
    Ok(())
}
