//! The hostile images: a plan is a plan or a sentence, never a panic, and takes bounded time.

#[path = "../../check/tests/support/mod.rs"]
mod support;

use butterfs_device::{BlockDevice, FileDevice, FileOptions};
use butterfs_repair::{Options, plan};
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

#[test]
fn hostile_images_get_a_plan_or_a_sentence() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/corpus/fuzz");
    let Ok(folder) = std::fs::read_dir(&corpus) else {
        return support::skip("hostile images", "needs ../shared/corpus/fuzz");
    };
    let scratch = support::Scratch::new("repair-hostile");
    let (mut count, mut clean, mut failures) = (0, 0, Vec::new());
    let is_packed = |path: &std::path::PathBuf| path.extension().is_some_and(|end| end == "xz");
    for packed in folder.flatten().map(|entry| entry.path()).filter(is_packed) {
        let image = scratch.0.join("image");
        let out = File::create(&image).expect("an image can be made");
        let unpacked = Command::new("xz").arg("-dc").arg(&packed).stdout(out).status().expect("xz runs");
        assert!(unpacked.success(), "{}", packed.display());
        let device = FileDevice::open(&image, &FileOptions::inspect()).expect("the image can be opened");
        let devices: Vec<Arc<dyn BlockDevice>> = vec![Arc::new(device)];
        let options = Options { accept_data: true, drop_log: true, ..Options::default() };
        let begun = std::time::Instant::now();
        match catch_unwind(AssertUnwindSafe(|| plan(&devices, &options, &|_, _| {}))) {
            Ok(Ok(plan)) => clean += u32::from(plan.is_clean()),
            Ok(Err(trouble)) => assert!(!trouble.to_string().is_empty()),
            Err(_) => failures.push(format!("{}: panic", packed.display())),
        }
        if begun.elapsed().as_secs() >= 30 {
            failures.push(format!("{} took {:?}", packed.display(), begun.elapsed()));
        }
        count += 1;
    }
    println!("{clean} of {count} are clean after the repair");
    assert!(count >= 31 && failures.is_empty(), "{count} images: {failures:#?}");
}
