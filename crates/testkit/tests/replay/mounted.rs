//! Logs and the mount: what was fsynced is there, also under a read-only mount, unless the user does not want it.

use butterfs_fs::Filesystem;
use butterfs_testkit::engine::device;
use butterfs_testkit::kernel::run_ok;
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::serve::Served;
use butterfs_testkit::watchdog::Watchdog;

#[test]
fn mounts_show_what_was_fsynced() {
    const TEST: &str = "mounts_show_what_was_fsynced";
    if !requirement::fuse(TEST) {
        return;
    }
    let _watchdog = Watchdog::new(TEST, 120);
    let scratch = Scratch::new(TEST);
    let Some(base) = super::unpacked(TEST, &scratch, "generic-065-1.img") else { return };
    let (image, at) = (scratch.join("image"), scratch.folder("mnt"));
    for (options, shown, replayed) in
        [("ro,rescue=nologreplay", false, false), ("ro", true, true), ("ro,noatime", true, true), ("rw", true, true)]
    {
        run_ok(60, "cp", &["--sparse=always", &base.to_string_lossy(), &image.to_string_lossy()]);
        let served = Served::mount(&image, &at, options);
        assert_eq!(at.join("mydir/x/y/z/qwerty").exists(), shown, "{options}");
        assert_eq!(std::fs::write(at.join("new"), b"new").is_ok(), options == "rw", "{options}");
        served.unmount();
        let has_log = Filesystem::has_log(vec![device(&image)]).expect("a filesystem");
        assert_eq!(has_log, !replayed, "{options}");
    }
}
