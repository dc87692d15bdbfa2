//! Every public function of an open filesystem aborts it when it panics: it begins with an alarm, unless it only hands
//! out what never changes.

use std::path::Path;

/// What needs none: it looks at single values.
const QUIET: [&str; 11] = [
    "root",
    "notes",
    "options",
    "superblock",
    "is_read_only",
    "take_messages",
    "info",
    "sectorsize",
    "halt_switch",
    "abort",
    "chunks",
];

fn without_alarm(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let (mut of_ours, mut lines) = (false, text.lines());
    while let Some(line) = lines.next() {
        if line.starts_with("impl") {
            of_ours = line == "impl Filesystem {" || line == "impl SnapshotReader {";
        }
        let Some(rest) = line.strip_prefix("    pub fn ").filter(|_| of_ours) else { continue };
        let name = rest.split(['(', '<']).next().unwrap_or_default();
        let mut signature = line.to_owned();
        while !signature.ends_with('{') {
            signature += lines.next().expect("a signature ends");
        }
        let has_alarm = lines.next().is_some_and(|first| first.contains("alarm()"));
        if signature.contains("&self") && !has_alarm && !QUIET.contains(&name) {
            found.push(name.to_owned());
        }
    }
    found
}

#[test]
fn everything_that_can_be_called_has_an_alarm() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/filesystem");
    let (mut missing, mut files) = (Vec::new(), 0);
    for entry in std::fs::read_dir(folder).expect("the sources are there").flatten() {
        let text = std::fs::read_to_string(entry.path()).expect("a source file");
        files += 1;
        missing.extend(without_alarm(&text));
    }
    assert!(files > 5 && missing.is_empty(), "`let _alarm = self.0.core.alarm();` is missing in {missing:?}");
}

#[test]
fn one_without_is_found() {
    let text = "impl Filesystem {\n    pub fn loud(\n        &self,\n    ) {\n        work();\n    }\n}\n";
    assert_eq!(without_alarm(text), ["loud"]);
}
