//! Reading from two devices, beside the kernel: everything is on both (RAID1) or half on each (RAID0).
//!
//! Both images lie on one disk here, so that the figure is the cost of the work without a gain by a second disk.

use crate::Scale;
use crate::data::read;
use crate::subject::{Mount, Side, Sides, empty_caches};
use crate::table::Table;
use butterfs_testkit::kernel::run_ok;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::serve::binary;
use butterfs_testkit::{requirement, scratch};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

const BAR: &str = ">= 0.70x";
const READERS: usize = 4;

/// Rates in MB/s by measurement.
type Rates = BTreeMap<String, f64>;

/// Runs everything on both sides.
pub fn run(scale: Scale, table: &mut Table) {
    if !requirement::fuse("bench") || !requirement::kernel_btrfs("bench of several devices") {
        return;
    }
    let folder = scratch::Scratch::new("bench-devices");
    let sides = Sides::measure(true, |side| measure(side, scale, &folder));
    for what in sides.ours.keys() {
        let rates = sides.find(|rates| rates.get(what).copied()).expect("one of ours");
        table.compared(what, rates, |rate| format!("{rate:.0} MB/s"), false, BAR);
    }
    crate::device_work::run_all(scale, table);
}

fn measure(side: Side, scale: Scale, folder: &scratch::Scratch) -> Rates {
    let mut rates = Rates::new();
    let at = folder.folder("mnt");
    for profile in ["raid1", "raid0"] {
        let image = |id| folder.sparse_file(&format!("{profile}-{id}"), scale.bytes + (1 << 30));
        let images: Vec<PathBuf> = [1, 2].map(image).to_vec();
        // Both sides read files that the same program made.
        let paths: Vec<&str> = images.iter().map(|image| image.to_str().expect("a text path")).collect();
        run_ok(60, binary(), &[&["mkfs", "-q", "-f", "-d", profile, "-m", "raid1"], &paths[..]].concat());
        let mount = Mount::new(side, &images, &at, "noatime");
        let mut noise = vec![0; scale.bytes as usize / READERS];
        for reader in 0..READERS {
            Rng::new(reader as u64 + 1).fill(&mut noise);
            std::fs::write(mount.path().join(reader.to_string()), &noise).expect("room");
        }
        mount.end();
        empty_caches();
        let mut read = |what: &str, images: &[PathBuf], options: &str, together: bool| {
            let mount = Mount::new(side, images, &at, options);
            let started = Instant::now();
            let bytes = read_all(mount.path(), together);
            let rate = bytes as f64 / 1e6 / started.elapsed().as_secs_f64();
            rates.insert(format!("{profile}: {what}, MB/s"), rate);
            mount.end();
            empty_caches();
        };
        read("read by one", &images, "noatime", false);
        read("read by four", &images, "noatime", true);
        if profile == "raid1" {
            read("read by one, without a device", &images[1..], "ro,degraded", false);
        }
        images.iter().for_each(|image| std::fs::remove_file(image).expect("our own file"));
    }
    rates
}

/// Reads all files, one after the other or all at once; returns the bytes.
fn read_all(folder: &Path, together: bool) -> usize {
    let paths: Vec<PathBuf> = (0..READERS).map(|reader| folder.join(reader.to_string())).collect();
    if !together {
        return paths.iter().map(|path| read(path)).sum();
    }
    std::thread::scope(|scope| {
        let readers: Vec<_> = paths.iter().map(|path| scope.spawn(move || read(path))).collect();
        readers.into_iter().map(|reader| reader.join().expect("a reader")).sum()
    })
}
