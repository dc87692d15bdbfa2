//! Random layers of containers beside a simple model: what a layer deletes is what earlier layers have, in whatever
//! order its archive says so, and whatever other names the deleted files have.

use crate::oci::{entry, layout};
use butterfs::{Access, Device, Dir, FileType};
use butterfs_image::{Builder, Layers, OciSource};
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use std::collections::BTreeMap;

const FOLDERS: [&str; 3] = ["d", "d/f", "e"];
const FILES: [&str; 11] = ["a", "b", "c", "d/a", "d/b", "d/c", "d/f/a", "d/f/b", "e/a", "e/b", "e/c"];

/// Paths, and the contents of those that are files.
type Shown = BTreeMap<String, Option<Vec<u8>>>;

/// A layer's entries, and what it makes of what is below it.
fn layer(rng: &mut Rng, below: &Shown) -> (Vec<Vec<u8>>, Shown) {
    let mut shown = below.clone();
    let (mut new, mut entries, mut deletions) = (Shown::new(), Vec::new(), Vec::new());
    let marker = |path: &str| {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        entry(&format!("{folder}/.wh.{name}"), b'0', "", b"")
    };
    for folder in FOLDERS {
        let inside = format!("{folder}/");
        match rng.below(8) {
            0 => {
                deletions.push(marker(folder));
                shown.retain(|path, _| path != folder && !path.starts_with(&inside));
            }
            1 => {
                deletions.push(entry(&format!("{folder}/.wh..wh..opq"), b'0', "", b""));
                shown.retain(|path, _| !path.starts_with(&inside));
                if below.contains_key(folder) && rng.chance(50) {
                    entries.push(entry(&inside, b'5', "", b""));
                    new.insert(folder.to_owned(), None);
                }
            }
            2 => {
                entries.push(entry(&inside, b'5', "", b""));
                new.insert(folder.to_owned(), None);
            }
            _ => {}
        }
    }
    let old: Vec<&str> = FILES.into_iter().filter(|path| below.contains_key(*path)).collect();
    for file in FILES {
        match rng.below(6) {
            0 => {
                deletions.push(marker(file));
                shown.remove(file);
            }
            1 => {
                let content = rng.bits().to_le_bytes().to_vec();
                entries.push(entry(file, b'0', "", &content));
                new.insert(file.to_owned(), Some(content));
            }
            2 if !old.is_empty() => {
                let original = *rng.pick(&old);
                // A link to itself says nothing, and what this layer has already linked to is something else.
                if original != file && !new.contains_key(original) {
                    entries.push(entry(file, b'1', original, b""));
                    new.insert(file.to_owned(), below[original].clone());
                }
            }
            _ => {}
        }
    }
    // Links are made while their originals are there; within both groups the order does not matter.
    let is_link = |bytes: &Vec<u8>| bytes[156] == b'1';
    let (links, others): (Vec<_>, Vec<_>) = entries.into_iter().partition(is_link);
    let mut rest = [others, deletions].concat();
    for at in (1..rest.len()).rev() {
        rest.swap(at, rng.index(at + 1));
    }
    for path in new.keys().cloned().collect::<Vec<_>>() {
        for (slash, _) in path.match_indices('/') {
            new.entry(path[..slash].to_owned()).or_insert(None);
        }
    }
    shown.extend(new);
    ([links, rest].concat(), shown)
}

fn read(folder: &Dir, path: &str, into: &mut Shown) {
    for found in folder.read_dir(".").unwrap() {
        let found = found.unwrap();
        let name = found.file_name().to_str().unwrap();
        let path = if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
        if found.file_type() == FileType::Directory {
            into.insert(path.clone(), None);
            read(&folder.open_dir(name).unwrap(), &path, into);
        } else {
            into.insert(path, Some(folder.read(name).unwrap()));
        }
    }
}

#[test]
fn random_layers_show_what_a_simple_model_shows() {
    let scratch = Scratch::new("image-layers");
    let image = scratch.join("image");
    let count = std::env::var("BUTTERFS_LAYERS").ok().and_then(|count| count.parse().ok()).unwrap_or(40);
    for seed in 0..count {
        let mut rng = Rng::new(seed);
        let mut shown = Shown::new();
        let mut layers = Vec::new();
        for _ in 0..2 + rng.below(3) {
            let (entries, after) = layer(&mut rng, &shown);
            layers.push([entries.concat(), vec![0; 1024]].concat());
            shown = after;
        }
        let folder = layout(&scratch.folder(&format!("layout-{seed}")), &layers);
        Builder::new().source("/", OciSource::new(&folder, Layers::Flat)).unwrap().build(&image).unwrap();
        let opened = butterfs::Builder::new().device(Device::path(&image)).access(Access::ReadOnly).open().unwrap();
        let mut found = Shown::new();
        read(&opened.root(), "", &mut found);
        assert_eq!(found, shown, "seed {seed}");
        drop(opened);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
