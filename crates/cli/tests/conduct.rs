//! Rules for every command: help, version, exit codes, closed outputs, and that the README tells the truth.

mod common;
mod listings;

use common::{butterfs, butterfs_ok, ran};
use listings::{LISTINGS, OTHERS};
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

/// Every command with its subcommands, as their help lists them.
fn commands() -> Vec<Vec<String>> {
    let mut found = vec![Vec::new()];
    let mut next = 0;
    while next < found.len() {
        let words: Vec<String> = found[next].clone();
        let help = help_of(&words);
        let listed = help.split("\nCommands:\n").nth(1).unwrap_or_default().lines();
        let names = listed.take_while(|line| line.starts_with("  ")).filter(|line| !line.starts_with("   "));
        let names = names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
        found.extend(names.map(|name| [words.clone(), vec![name.to_owned()]].concat()).collect::<Vec<_>>());
        next += 1;
    }
    found
}

fn help_of(words: &[String]) -> String {
    let mut arguments: Vec<&str> = words.iter().map(String::as_str).collect();
    arguments.push("--help");
    butterfs_ok(&arguments)
}

#[test]
fn every_command_has_help() {
    let commands = commands();
    assert!(commands.len() > 4, "{commands:?}");
    for command in commands {
        let help = help_of(&command);
        assert!(
            help.contains(&format!("Usage: {}", [vec!["butterfs".to_owned()], command].concat().join(" "))),
            "{help}"
        );
    }
}

#[test]
fn version_and_nonsense() {
    assert_eq!(butterfs_ok(&["--version"]), format!("butterfs {}\n", env!("CARGO_PKG_VERSION")));
    for arguments in
        [&[][..], &["frobnicate"], &["--frobnicate"], &["mkfs", "--frobnicate"], &["filesystem"], &["mount"]]
    {
        let said = butterfs(arguments);
        assert_eq!((said.code, said.stdout.as_str()), (Some(2), ""), "{arguments:?}: {said:?}");
        assert!(said.stderr.starts_with("ERROR: "), "{arguments:?}: {said:?}");
        let hints = said.stderr.lines().skip(1);
        assert!(hints.clone().count() > 0 && hints.into_iter().all(|line| line.starts_with("hint: ")), "{said:?}");
    }
}

#[test]
fn an_output_that_nobody_reads_is_no_error_and_one_that_is_full_is() {
    let command = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_butterfs"));
        command.args(["mkfs", "-O", "list-all"]);
        command
    };
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let said = ran(command().stdout(writer).stderr(Stdio::piped()).output().unwrap());
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""));
    let full = File::options().write(true).open("/dev/full").unwrap();
    let said = ran(command().stdout(full).output().unwrap());
    assert_eq!(said.code, Some(1));
    assert_eq!(said.stderr, "ERROR: cannot write to standard output: No space left on device\n");
}

/// The commands in a row of the README's table: the first name is whole, the others are its siblings.
fn commands_in_row(row: &str) -> Vec<String> {
    let cell = row.split(" | ").next().unwrap_or_default();
    let mut names = cell.split('`').skip(1).step_by(2);
    let first = names.next().and_then(|name| name.strip_prefix("butterfs ")).unwrap_or_default();
    let group = first.rsplit_once(' ').map(|(group, _)| format!("{group} ")).unwrap_or_default();
    let siblings: Vec<String> = names.map(|name| format!("{group}{name}")).collect();
    [vec![first.to_owned()], siblings].concat()
}

#[test]
fn the_readme_lists_every_command_and_no_other() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let rows = readme.lines().filter(|line| line.starts_with("| `butterfs "));
    let mut listed: Vec<String> = rows.flat_map(commands_in_row).collect();
    listed.sort();
    assert_eq!(listed, present());
}

/// Every command that is no group of others, sorted.
fn present() -> Vec<String> {
    let commands = commands();
    let is_group =
        |command: &Vec<String>| commands.iter().any(|other| other.len() > command.len() && other.starts_with(command));
    let mut present: Vec<String> =
        commands.iter().filter(|command| !is_group(command)).map(|words| words.join(" ")).collect();
    present.sort();
    present
}

/// Each command prints JSON, as `docs/json.md` says, or stands in the table of those that have nothing to list.
#[test]
fn every_listing_has_json() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/json.md");
    let document = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    for (command, _, key) in LISTINGS {
        assert!(document.contains(&format!("| `{command}` | `{key}` |")), "docs/json.md does not describe '{command}'");
    }
    let others = OTHERS.iter().flat_map(|(_, commands)| commands.iter().copied());
    let mut known: Vec<&str> = LISTINGS.iter().map(|(command, ..)| *command).chain(others.clone()).collect();
    known.sort();
    assert_eq!(known, present());
    for command in others {
        let words: Vec<&str> = command.split(' ').collect();
        let help = butterfs_ok(&[&words[..], &["--help"]].concat());
        let arguments = if help.contains("<") { &["/nowhere"; 3][..] } else { &[] };
        let refused = butterfs(&[&["--format", "json"], &words[..], arguments].concat());
        assert!(refused.code != Some(0) && refused.stdout.is_empty(), "{command}: {refused:?}");
    }
}
