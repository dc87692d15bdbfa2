//! `butterfs manual`: the manual pages, made from the same declarations as `--help`. For packagers, so not listed.

use super::{Butterfs, Run};
use crate::error::{CliError, os_message};
use clap::{Command, CommandFactory};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Write a manual page for every command into a directory.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// An existing directory
    directory: PathBuf,
}

impl Run for Args {
    fn run(self, _: &mut dyn Write) -> Result<(), CliError> {
        pages().into_iter().try_for_each(|(name, page)| write(&self.directory.join(name), &page))
    }
}

fn write(path: &Path, page: &[u8]) -> Result<(), CliError> {
    std::fs::write(path, page)
        .map_err(|error| CliError::failed(format!("cannot write '{}': {}", path.display(), os_message(&error))))
}

/// All pages with their file names, such as `butterfs-subvolume-list.8`.
fn pages() -> Vec<(String, Vec<u8>)> {
    let mut root = Butterfs::command().disable_help_subcommand(true);
    root.build();
    let mut found = Vec::new();
    collect(&root, &mut found);
    found
}

fn collect(command: &Command, found: &mut Vec<(String, Vec<u8>)>) {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let page = clap_mangen::Man::new(command.clone()).section("8").manual("butterfs");
    let mut text = Vec::new();
    page.render(&mut text).expect("a vector takes any text");
    found.push((format!("{name}.8"), text));
    command.get_subcommands().filter(|inner| !inner.is_hide_set()).for_each(|inner| collect(inner, found));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_with_its_options() {
        let pages = pages();
        let page = |name: &str| {
            let (_, text) = pages.iter().find(|(page, _)| page == name).unwrap_or_else(|| panic!("no page {name}"));
            String::from_utf8_lossy(text).into_owned()
        };
        assert!(page("butterfs.8").contains("butterfs\\-subvolume(8)"), "{}", page("butterfs.8"));
        let list = page("butterfs-subvolume-list.8");
        assert!(list.contains("List subvolumes and snapshots") && list.contains("\\-\\-sort"), "{list}");
        assert!(!pages.iter().any(|(name, _)| name.contains("manual")));
    }
}
