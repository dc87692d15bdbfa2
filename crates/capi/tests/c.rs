//! The header is what cbindgen makes of the sources, and C programs compile against it, link and run.

use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Rewrites the header with `BUTTERFS_WRITE_HEADER=1`.
#[test]
fn the_header_is_current() {
    let mut made = Vec::new();
    cbindgen::generate(folder()).expect("cbindgen reads the sources").write(&mut made);
    let (made, path) = (String::from_utf8(made).unwrap(), folder().join("include/butterfs.h"));
    if std::env::var_os("BUTTERFS_WRITE_HEADER").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    let command = "BUTTERFS_WRITE_HEADER=1 cargo test -p butterfs-capi";
    assert!(made == kept, "{} is not what cbindgen makes; run {command}", path.display());
}

/// The shared library: the one that `BUTTERFS_LIB` names, as `cargo xtask test` does, or one that cargo builds now.
fn library() -> PathBuf {
    if let Some(path) = std::env::var_os("BUTTERFS_LIB") {
        return PathBuf::from(path);
    }
    static BUILT: LazyLock<String> = LazyLock::new(|| {
        let build = ["build", "-q", "-p", "butterfs-capi", "--message-format=json"];
        run(Command::new(env!("CARGO")).args(build).current_dir(folder()))
    });
    let names = BUILT.split('"').filter(|text| text.ends_with("/libbutterfs.so"));
    names.map(PathBuf::from).next_back().expect("cargo names the library")
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}\n{err}", output.status);
    out.into_owned()
}

fn compile(source: &Path, program: &Path, library: &Path) {
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-D_GNU_SOURCE", "-I"]);
    cc.arg(folder().join("include")).arg(source).arg("-o").arg(program).arg(library);
    run(cc.args(["-lpthread", "-ldl", "-lm"]));
}

#[test]
fn the_example_runs_with_the_shared_library() {
    if !requirement::programs("the_example_runs_with_the_shared_library", &["cc"]) {
        return;
    }
    let (scratch, library) = (Scratch::new("capi"), library());
    let program = scratch.join("image");
    compile(&folder().join("examples/image.c"), &program, &library);
    let out = run(Command::new(&program).arg(scratch.path()).env("LD_LIBRARY_PATH", library.parent().unwrap()));
    assert!(out.contains("monday/letter") && out.contains(env!("CARGO_PKG_VERSION")), "{out}");
    for image in ["first.img", "second.img"] {
        butterfs_testkit::judge::assert_clean(&scratch.join(image));
    }
}

#[test]
fn devices_of_the_program_work() {
    if !requirement::programs("devices_of_the_program_work", &["cc"]) {
        return;
    }
    let (scratch, library) = (Scratch::new("capi-device"), library());
    let program = scratch.join("device");
    compile(&folder().join("tests/device.c"), &program, &library);
    run(Command::new(&program).env("LD_LIBRARY_PATH", library.parent().unwrap()));
}
