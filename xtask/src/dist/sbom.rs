//! The list of what the program contains, in the form CycloneDX 1.5: each crate with its version, licence and checksum.

use super::{Dist, Failure, read, write};
use crate::workspace;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// A crate as cargo names it.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Component {
    name: String,
    version: String,
    licence: String,
}

/// Writes the list, and returns the licences in it.
fn write_list(dist: &Dist) -> Result<BTreeSet<String>, String> {
    let components = components(dist)?;
    let checksums = checksums(&read(&workspace::root().join("Cargo.lock"))?);
    let entries: Vec<String> = components.iter().map(|component| entry(component, &checksums)).collect();
    let text = format!(
        "{{\n  \"bomFormat\": \"CycloneDX\",\n  \"specVersion\": \"1.5\",\n  \"version\": 1,\n  \"metadata\": {{\n    \
         \"component\": {{ \"type\": \"application\", \"name\": \"butterfs\", \"version\": {} }}\n  }},\n  \
         \"components\": [\n{}\n  ]\n}}\n",
        quoted(&dist.version),
        entries.join(",\n")
    );
    write(&dist.out("butterfs.cdx.json"), &text)?;
    let to = dist.root().join("usr/share/doc/butterfs/butterfs.cdx.json");
    write(&to, &text)?;
    Ok(components.into_iter().map(|component| component.licence).collect())
}

/// Writes the list. A crate that can be had under no other licence than one of the GPL's family is an error.
pub fn list(dist: &Dist) -> Result<(), Failure> {
    let copyleft = |licence: &String| licence.split(" OR ").all(|choice| choice.contains("GPL"));
    match write_list(dist)?.into_iter().find(copyleft) {
        None => Ok(()),
        Some(licence) => Err(Failure::Failed(format!("a crate has the licence '{licence}'"))),
    }
}

fn components(dist: &Dist) -> Result<BTreeSet<Component>, String> {
    let mut tree = Command::new("cargo");
    tree.args(["tree", "-p", "butterfs-cli", "-e", "normal", "--prefix", "none", "--format", "{p}|{l}"]);
    let listed = dist.run("cargo-tree", tree.current_dir(workspace::root()))?;
    let parsed = listed.lines().filter_map(component).collect::<BTreeSet<_>>();
    match parsed.is_empty() {
        true => Err("cargo tree listed no crate".to_owned()),
        false => Ok(parsed),
    }
}

/// `name v1.2.3 (path)|MIT OR Apache-2.0 (*)`.
fn component(line: &str) -> Option<Component> {
    let (package, licence) = line.split_once('|')?;
    let mut words = package.split_whitespace();
    let name = words.next()?.to_owned();
    let version = words.next()?.strip_prefix('v')?.to_owned();
    let licence = licence.trim_end_matches("(*)").trim().replace('/', " OR ");
    Some(Component { name, version, licence })
}

/// SHA-256 by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let value = |block: &str, key: &str| {
        block.lines().find_map(|line| Some(line.strip_prefix(key)?.trim_matches([' ', '=', '"']).to_owned()))
    };
    lock.split("[[package]]")
        .filter_map(|block| Some(((value(block, "name")?, value(block, "version")?), value(block, "checksum")?)))
        .collect()
}

fn entry(component: &Component, checksums: &BTreeMap<(String, String), String>) -> String {
    let Component { name, version, licence } = component;
    let hash = checksums.get(&(name.clone(), version.clone())).map_or(String::new(), |sum| {
        format!(", \"hashes\": [{{ \"alg\": \"SHA-256\", \"content\": {} }}]", quoted(sum))
    });
    let licences = match licence.is_empty() {
        true => String::new(),
        false => format!(", \"licenses\": [{{ \"expression\": {} }}]", quoted(licence)),
    };
    format!(
        "    {{ \"type\": \"library\", \"name\": {}, \"version\": {}, \"purl\": {}{licences}{hash} }}",
        quoted(name),
        quoted(version),
        quoted(&format!("pkg:cargo/{name}@{version}"))
    )
}

fn quoted(text: &str) -> String {
    let escaped = text.chars().flat_map(|c| match c {
        '"' | '\\' => vec!['\\', c],
        c if c.is_control() => vec![' '],
        c => vec![c],
    });
    format!("\"{}\"", escaped.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargos_lines_and_its_lock_file_are_read() {
        let read = component("zstd v0.13.4|MIT/Apache-2.0 (*)").expect("a crate");
        assert_eq!((read.name.as_str(), read.version.as_str()), ("zstd", "0.13.4"));
        assert_eq!(read.licence, "MIT OR Apache-2.0");
        let lock = "[[package]]\nname = \"zstd\"\nversion = \"0.13.4\"\nchecksum = \"ab\"\n";
        assert_eq!(checksums(lock)[&("zstd".to_owned(), "0.13.4".to_owned())], "ab");
        assert!(entry(&read, &checksums(lock)).contains("\"content\": \"ab\""));
    }
}
