//! The number of FUSE requests that everyday work sends, by the kernel's tracepoint `fuse:fuse_request_send`.
//!
//! Each request is a round trip between the kernel and the serving process, most of what work on names and small files
//! costs.

use crate::Scale;
use crate::subject::{Side, Subject};
use crate::table::Table;
use butterfs_testkit::kernel::run_ok;
use butterfs_testkit::{requirement, scratch};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const BACKING_BYTES: u64 = 4 << 30;
const TRACING: &str = "/sys/kernel/tracing";
/// Of the event, in a tracing instance of our own: nobody else's tracing is disturbed.
const INSTANCE: &str = "/sys/kernel/tracing/instances/butterfs-bench";
const EVENT: &str = "events/fuse/fuse_request_send";
/// Room for the events of a piece of work on each processor.
const BUFFER_KIB: &str = "65536";
/// Files in a folder of the tree.
const IN_A_FOLDER: u64 = 50;

/// The steps with a tree of small files, in order: its name, and the commands. `$A` is the archive.
const ON_A_TREE: &[(&str, &str)] = &[
    ("unpack", "tar -xf $A"),
    ("copy (cp -a)", "cp -a tree copy"),
    ("the first grep -r of the copy", "grep -r no_such_word copy; true"),
    ("the second", "grep -r no_such_word copy; true"),
    ("the third", "grep -r no_such_word copy; true"),
    ("find", "find copy -size +1G"),
    ("rm -rf", "rm -rf copy"),
];

/// Counts on our mount of an image.
pub fn run(scale: Scale, table: &mut Table) {
    if !requirement::fuse("bench: requests") {
        return;
    }
    let folder = scratch::Scratch::new("bench-requests");
    let subject = Subject::new(Side::Ours, &folder.sparse_file("backing.img", BACKING_BYTES), &folder.folder("mnt"));
    let counter = match Counter::of(subject.path()) {
        Ok(counter) => counter,
        Err(error) => return eprintln!("SKIPPED: bench: requests: no tracefs: {error}"),
    };
    let files = scale.files / 10;
    let mut count = |what: &str, work: &dyn Fn(&Path)| {
        let counts = counter.during(|| work(subject.path())).expect("tracefs answers");
        table.value(&format!("requests for each file: {what}"), shown(&counts, files), None, None, "");
    };
    count("create and close", &|root| files_in(&root.join("empty"), files, &[]));
    count("create, write 3,000 bytes and close", &|root| files_in(&root.join("small"), files, &[7; 3000]));
    let archive = archive(&folder, files);
    for (what, script) in ON_A_TREE {
        let script = script.replace("$A", &format!("'{}'", archive.display()));
        let in_root = |root: &Path| shell(root, &script);
        count(what, &in_root);
    }
    subject.finish();
}

fn shell(folder: &Path, script: &str) {
    run_ok(900, "sh", &["-c", &format!("cd '{}' && {script}", folder.display())]);
}

fn files_in(folder: &Path, count: u64, content: &[u8]) {
    std::fs::create_dir(folder).expect("a new name");
    for number in 0..count {
        let mut file = File::create_new(folder.join(format!("file-{number:06}"))).expect("a new folder");
        // Not even a request without bytes.
        if !content.is_empty() {
            file.write_all(content).expect("room");
        }
    }
}

/// Files of 200 to 6,200 bytes, in folders.
fn archive(folder: &scratch::Scratch, files: u64) -> PathBuf {
    let tree = folder.folder("tree");
    for number in 0..files {
        let inner = tree.join(format!("folder-{:04}", number / IN_A_FOLDER));
        if number % IN_A_FOLDER == 0 {
            std::fs::create_dir(&inner).expect("a new name");
        }
        let len = 200 + number * 37 % 6000;
        std::fs::write(inner.join(format!("file-{number:06}")), vec![b'x'; len as usize]).expect("room");
    }
    let archive = folder.join("tree.tar");
    shell(folder.path(), &format!("tar -cf '{}' tree", archive.display()));
    archive
}

/// The number of times that each request was sent, by its name.
type Counts = BTreeMap<String, u64>;

/// The requests of one mount.
struct Counter {
    names: BTreeMap<u64, String>,
}

impl Counter {
    /// Of the mount that `path` lies on. Mounts tracefs where it is not mounted yet.
    fn of(path: &Path) -> io::Result<Counter> {
        if !Path::new(TRACING).join(EVENT).exists() {
            run_ok(60, "mount", &["-t", "tracefs", "tracefs", TRACING]);
        }
        let names = names(&std::fs::read_to_string(Path::new(TRACING).join(EVENT).join("format"))?);
        let device = std::fs::metadata(path)?.dev();
        // As the kernel keeps a device number in memory.
        let connection = u64::from(rustix::fs::major(device)) << 20 | u64::from(rustix::fs::minor(device));
        if !Path::new(INSTANCE).exists() {
            std::fs::create_dir(INSTANCE)?;
        }
        let counter = Counter { names };
        set("buffer_size_kb", BUFFER_KIB)?;
        set(&format!("{EVENT}/filter"), &format!("connection == {connection}"))?;
        Ok(counter)
    }

    fn during(&self, work: impl FnOnce()) -> io::Result<Counts> {
        set("trace", "")?;
        set(&format!("{EVENT}/enable"), "1")?;
        work();
        set(&format!("{EVENT}/enable"), "0")?;
        let trace = std::fs::read_to_string(Path::new(INSTANCE).join("trace"))?;
        Ok(counts(&trace, &self.names))
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        // Best effort: it holds memory, and nothing else.
        let _ = std::fs::remove_dir(INSTANCE);
    }
}

fn set(file: &str, value: &str) -> io::Result<()> {
    std::fs::write(Path::new(INSTANCE).join(file), value)
}

/// The opcodes' names, from the format of the event: `{1, "FUSE_LOOKUP"}, …`.
fn names(format: &str) -> BTreeMap<u64, String> {
    let pairs = format.split('{').filter_map(|part| part.split('}').next()?.split_once(", \"FUSE_"));
    let named = |(number, name): (&str, &str)| Some((number.parse().ok()?, name.trim_end_matches('"').to_owned()));
    // Linux 6.18 sends it without knowing its name here.
    let unnamed = (53, "COPY_FILE_RANGE_64".to_owned());
    std::iter::once(unnamed).chain(pairs.filter_map(named)).collect()
}

/// The events of a trace, a line for each: `… fuse_request_send: connection 45 req 18 opcode 35 (FUSE_CREATE) len 63`.
/// Lost events are said in the lines at its head.
fn counts(trace: &str, names: &BTreeMap<u64, String>) -> Counts {
    let entries = trace.lines().find_map(|line| line.split_once("entries-in-buffer/entries-written: "));
    if let Some((kept, written)) = entries.and_then(|(_, counts)| counts.split_whitespace().next()?.split_once('/')) {
        assert_eq!(kept, written, "the buffer was too small for all events");
    }
    let mut counts = Counts::new();
    let events = trace.lines().filter_map(|line| line.split_once(": connection ")?.1.split_once(" opcode "));
    for opcode in events.filter_map(|(_, opcode)| opcode.split_whitespace().next()?.parse::<u64>().ok()) {
        *counts.entry(names.get(&opcode).cloned().unwrap_or_else(|| opcode.to_string())).or_default() += 1;
    }
    counts
}

/// The most frequent first, for each file, then their sum. What few files need is left out.
fn shown(counts: &Counts, files: u64) -> String {
    let each = |hits: u64| hits as f64 / files as f64;
    let mut counts: Vec<(&String, f64)> = counts.iter().map(|(name, hits)| (name, each(*hits))).collect();
    counts.sort_by(|one, other| other.1.total_cmp(&one.1));
    let words: Vec<String> =
        counts.iter().filter(|(_, each)| *each >= 0.1).map(|(name, each)| format!("{name} {each:.1}")).collect();
    let sum = counts.iter().fold(0.0, |sum, (_, each)| sum + each);
    if words.is_empty() { format!("{sum:.1}") } else { format!("{sum:.1}: {}", words.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_trace_is_parsed() {
        let names = names(
            "print fmt: \"opcode %u (%s)\", __print_symbolic(REC->opcode, {1, \"FUSE_LOOKUP\"}, {35, \"FUSE_CREATE\"})",
        );
        let trace = "# tracer: nop\n#\n# entries-in-buffer/entries-written: 4/4   #P:2\n#\n\
            tar-12 [000] ..... 1.0: fuse_request_send: connection 45 req 8 opcode 1 (FUSE_LOOKUP) len 45\n\
            tar-12 [000] ..... 1.1: fuse_request_send: connection 45 req 10 opcode 35 (FUSE_CREATE) len 63\n\
            tar-12 [001] ..... 1.2: fuse_request_send: connection 45 req 12 opcode 35 (FUSE_CREATE) len 63\n\
            tar-12 [001] ..... 1.3: fuse_request_send: connection 45 req 14 opcode 99 (0x63) len 63\n";
        let counts = counts(trace, &names);
        assert_eq!(shown(&counts, 1), "4.0: CREATE 2.0, 99 1.0, LOOKUP 1.0");
        assert_eq!(shown(&Counts::new(), 1000), "0.0");
    }
}
