//! The wheel is built, installed into a fresh virtual environment, and used: every example, and `tests/module.py`.
//!
//! The build tool comes from `cargo xtask test`, which installs it below the build output. The wheel is built in the
//! profile of the tests and shares their build output, so that little is compiled for it.

use butterfs_testkit::requirement;
use butterfs_testkit::scratch::{self, Scratch};
use std::path::{Path, PathBuf};
use std::process::Command;

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}\n{err}", output.status);
}

fn files(folder: &Path, end: &str) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files.filter(|file| file.extension().is_some_and(|own| own == end)).collect();
    files.sort();
    files
}

#[test]
fn the_wheel_works() {
    let maturin = scratch::tools().join("python/bin/maturin");
    if !maturin.is_file() {
        return requirement::skip("the_wheel_works", &format!("needs {} (cargo xtask test)", maturin.display()));
    }
    let scratch = Scratch::new("wheel");
    let wheels = scratch.folder("wheels");
    let build = ["build", "--quiet", "--profile", "dev", "--offline", "--out"];
    run(Command::new(&maturin).args(build).arg(&wheels).current_dir(folder()));
    let [wheel] = files(&wheels, "whl").try_into().expect("one wheel");
    assert!(wheel.to_string_lossy().contains("abi3"), "one wheel for all versions of Python: {}", wheel.display());

    let environment = scratch.join("venv");
    run(Command::new("python3").args(["-m", "venv"]).arg(&environment));
    let python = environment.join("bin/python");
    run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]).arg(&wheel));

    let examples = files(&folder().join("examples"), "py");
    assert_eq!(examples.len(), 10);
    for program in examples.iter().chain(&[folder().join("tests/module.py")]) {
        run(Command::new("timeout").arg("120").arg(&python).arg(program).current_dir(scratch.path()));
    }
}

/// Both languages have the same examples.
#[test]
fn the_examples_are_those_of_rust() {
    let names = |folder: &Path, end: &str| -> Vec<PathBuf> {
        files(folder, end).iter().map(|file| PathBuf::from(file.file_stem().unwrap())).collect()
    };
    let rust = names(&folder().join("../butterfs/examples"), "rs");
    assert_eq!(names(&folder().join("examples"), "py"), rust);
}
