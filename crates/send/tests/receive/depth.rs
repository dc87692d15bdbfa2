//! Trees with more levels, folders and hard links than a process has descriptors, and paths longer than the kernel
//! takes.

use crate::world::{Stream, receive_into};
use butterfs_send::apply::Directory;
use butterfs_send::wire::Command;
use butterfs_testkit::kernel::run;
use butterfs_testkit::scratch::Scratch;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Folders with hard links.
const FOLDERS: usize = 1100;
/// Levels of folders.
const LEVELS: usize = 600;
/// Folders with long names above one another, whose paths are longer than 4095 bytes.
const LONG: usize = 40;
/// Descriptors that the process may have open.
const DESCRIPTORS: usize = 32;
/// Set for the process that receives: where.
const AT: &str = "BUTTERFS_TEST_DEPTH";

fn path_of(name: &str, levels: usize) -> String {
    vec![name; levels].join("/")
}

fn tree() -> Stream {
    let mut stream = Stream::subvol("a", 1);
    for number in 0..FOLDERS {
        let (first, folder) = (format!("first{number}"), format!("folder{number}"));
        stream = stream.dir(&folder).file(&first);
        let name = format!("{folder}/second");
        stream = stream.add(Command::Link { path: name.as_bytes(), existing: first.as_bytes() });
    }
    let long = "long".repeat(50);
    for (name, levels) in [("n", LEVELS), (long.as_str(), LONG)] {
        for level in 1..=levels {
            stream = stream.dir(&path_of(name, level));
        }
        let file = format!("{}/file", path_of(name, levels));
        let link = format!("{}/link", path_of(name, levels / 2));
        stream = stream.file(&file).write(&file, 0, b"content");
        stream = stream.add(Command::Link { path: link.as_bytes(), existing: file.as_bytes() });
        stream = stream.utimes(&path_of(name, levels), 50).utimes(&path_of(name, 1), 60);
    }
    stream
}

/// Run in a process of its own, which may have few descriptors.
#[test]
fn received_with_few_descriptors() {
    let Some(at) = std::env::var_os(AT) else { return };
    let at = Path::new(&at);
    let receive = |stream: &[u8]| receive_into(stream, &mut Directory::open(at).unwrap()).errors;
    assert_eq!(receive(&tree().end()), [""; 0]);
    let deep = format!("{}/file", path_of(&"long".repeat(50), LONG));
    let increment = || Stream::snapshot("b", 2, 1).write(&deep, 0, b"CONTENT").unlink("first7");
    assert_eq!(receive(&increment().open_end()).len(), 1, "interrupted");
    assert_eq!(receive(&increment().end()), [""; 0]);
}

#[test]
fn the_number_of_descriptors_does_not_depend_on_the_tree() {
    let scratch = Scratch::new("the_number_of_descriptors");
    let at = scratch.folder("at");
    let me = std::env::current_exe().unwrap();
    let script = format!(
        "ulimit -n {DESCRIPTORS}; {AT}='{}' exec '{}' --exact depth::received_with_few_descriptors --nocapture",
        at.display(),
        me.display()
    );
    let done = run(100, "bash", &["-c", &script]);
    assert_eq!(done.code, Some(0), "{}", done.output);
    assert!(done.output.contains("1 passed"), "{}", done.output);
    for tree in ["a", "b"] {
        let look = |path: &str| std::fs::metadata(at.join(tree).join(path)).unwrap();
        let deep = look(&format!("{}/file", path_of("n", LEVELS)));
        let link = look(&format!("{}/link", path_of("n", LEVELS / 2)));
        assert_eq!((deep.ino(), deep.nlink()), (link.ino(), 2));
        assert_eq!((look(&path_of("n", LEVELS)).mtime(), look("n").mtime()), (50, 60), "{tree}");
        for number in 0..FOLDERS {
            let second = look(&format!("folder{number}/second"));
            let expected = if tree == "b" && number == 7 { 1 } else { 2 };
            assert_eq!(second.nlink(), expected, "{tree} {number}");
        }
        // Too deep for a path: by steps, as a shell does it.
        let long = "long".repeat(50);
        let script = format!(
            "cd '{}'; for n in $(seq {LONG}); do cd -P {long}; done; cat file; stat -c %h file",
            at.join(tree).display()
        );
        let shown = run(20, "bash", &["-c", &script]).output;
        let content = if tree == "a" { "content" } else { "CONTENT" };
        assert!(shown.contains(content) && shown.trim().ends_with('2'), "{tree}: {shown}");
    }
}
