//! The module is put into a fresh virtual environment and used: every example, and `tests/module.py`.
//!
//! In each test run it is the library that the workspace's build has made; `cargo xtask soak wheel` builds the wheel,
//! which compiles the engine once more, by the tool that `cargo xtask test` installs below the build output.

use butterfs_testkit::requirement;
use butterfs_testkit::scratch::{self, Scratch};
use std::fs;
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

fn files_of(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn files(folder: &Path, end: &str) -> Vec<PathBuf> {
    let mut files = files_of(folder);
    files.retain(|file| file.extension().is_some_and(|own| own == end));
    files
}

/// The interpreter of a fresh virtual environment.
fn environment(scratch: &Scratch, pip: &[&str]) -> PathBuf {
    let environment = scratch.join("venv");
    run(Command::new("python3").args(["-m", "venv"]).args(pip).arg(&environment));
    environment.join("bin/python")
}

fn every_program_runs(python: &Path, scratch: &Scratch) {
    let examples = files(&folder().join("examples"), "py");
    assert_eq!(examples.len(), 10);
    for program in examples.iter().chain(&[folder().join("tests/module.py")]) {
        run(Command::new("timeout").arg("120").arg(python).arg(program).current_dir(scratch.path()));
    }
}

#[test]
fn the_module_works() {
    let scratch = Scratch::new("module");
    let python = environment(&scratch, &["--without-pip"]);
    let mut folders = files_of(&scratch.join("venv/lib"));
    let packages = folders.pop().expect("lib/pythonX.Y").join("site-packages/butterfs");
    fs::create_dir(&packages).unwrap();
    for file in files_of(&folder().join("python/butterfs")).iter().filter(|file| file.is_file()) {
        fs::copy(file, packages.join(file.file_name().unwrap())).unwrap();
    }
    let program = std::env::current_exe().unwrap();
    let library = program.ancestors().nth(2).unwrap().join("lib_butterfs.so");
    fs::copy(&library, packages.join("_butterfs.abi3.so")).unwrap();
    every_program_runs(&python, &scratch);
}

#[test]
#[ignore = "compiles the engine: cargo xtask soak wheel"]
fn the_wheel_works() {
    let maturin = scratch::tools().join("python/bin/maturin");
    if !maturin.is_file() {
        return requirement::skip("the_wheel_works", &format!("needs {} (cargo xtask test)", maturin.display()));
    }
    let scratch = Scratch::new("wheel");
    let wheels = scratch.folder("wheels");
    run(Command::new(&maturin).args(["build", "--quiet", "--offline", "--out"]).arg(&wheels).current_dir(folder()));
    let [wheel] = files(&wheels, "whl").try_into().expect("one wheel");
    assert!(wheel.to_string_lossy().contains("abi3"), "one wheel for all versions of Python: {}", wheel.display());
    let python = environment(&scratch, &[]);
    run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]).arg(&wheel));
    every_program_runs(&python, &scratch);
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
