//! Every public function of an open filesystem aborts it when it panics: it begins with an alarm, unless it only hands
//! out what never changes.

use butterfs_testkit::public_functions::{self, Function, functions_in};

/// Functions that need no alarm: they read single values.
const QUIET: [&str; 12] = [
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
    // Lets nobody in before it has an alarm.
    "transaction",
];

/// Functions of what is open that begin with no alarm.
fn without_alarm(functions: &[Function]) -> Vec<&str> {
    let is_ours = |function: &&Function| function.is_of("Filesystem") || function.is_of("SnapshotReader");
    let lacks_one = |function: &&Function| {
        function.signature.contains("&self")
            && !["begin()", "alarm()"].iter().any(|begins| function.first_line.contains(begins))
            && !QUIET.contains(&&*function.name)
    };
    functions.iter().filter(is_ours).filter(lacks_one).map(|function| &*function.name).collect()
}

#[test]
fn everything_that_can_be_called_has_an_alarm() {
    let functions = public_functions::all();
    let missing = without_alarm(&functions);
    assert!(functions.len() > 80 && missing.is_empty(), "`let _operation = self.begin();` is missing in {missing:?}");
}

#[test]
fn one_without_is_found() {
    let text = "impl Filesystem {\n    pub fn loud(\n        &self,\n    ) {\n        work();\n    }\n}\n";
    assert_eq!(without_alarm(&functions_in(text)), ["loud"]);
}
