//! Reading out of the middle: names, content, differences, and how many requests that takes.

use crate::world::{World, find, got, in_memory, on, put};
use butterfs_objects::{Access, Archive, Change, Entry, Repository, View, differences, items};
use butterfs_send::wire::{self, Command, Version};
use butterfs_testkit::object_server::{Fate, Server};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// All paths of a view with mode, size and content.
fn files(view: &View<'_>) -> BTreeMap<Vec<u8>, (u32, u64, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![(items::ROOT, Vec::new())];
    while let Some((ino, path)) = waiting.pop() {
        let mut after = Vec::new();
        loop {
            let names: Vec<Entry> = view.entries(ino, &after, 3).unwrap();
            let Some(last) = names.last() else { break };
            after = last.name.clone();
            for entry in names {
                let path = [&path[..], b"/", &entry.name].concat();
                assert_eq!(view.find(&path).unwrap(), entry.ino);
                let inode = view.inode(entry.ino).unwrap();
                // Files are sparse: bytes with their places.
                let mut content = Vec::new();
                if inode.is(items::REGULAR) {
                    let mut take = |at: u64, bytes: &[u8]| {
                        let placed = (at..).zip(bytes).filter(|(_, byte)| **byte != 0);
                        placed.for_each(|(at, byte)| content.extend([&at.to_le_bytes()[..], &[*byte]].concat()));
                        Ok(())
                    };
                    view.content(entry.ino, 0, u64::MAX, &mut take).unwrap();
                }
                if entry.kind == items::DIRECTORY {
                    waiting.push((entry.ino, path.clone()));
                }
                found.insert(path, (inode.mode, inode.size, content));
            }
        }
    }
    found
}

#[test]
fn differences_are_those_of_the_files() {
    for seed in 30..38 {
        let world = World::new(512 << 20);
        let chain = world.chain(seed, 2);
        let repository = in_memory();
        put(&repository, &world.send(chain[0], None, Version::V2), 1).unwrap();
        put(&repository, &world.send(chain[1], Some(chain[0]), Version::V2), 2).unwrap();
        let archive = Archive::new(&repository);
        let manifests = [find(&repository, "s0"), find(&repository, "s1")];
        let [old, new] = [0, 1].map(|at| files(&View::new(&archive, &manifests[at]).unwrap()));
        let mut told: BTreeMap<Change, BTreeSet<Vec<u8>>> = BTreeMap::new();
        differences(&archive, (&manifests[0], &manifests[1]), &mut |change, path| {
            told.entry(change).or_default().insert([b"/", path].concat());
            Ok(())
        })
        .unwrap();
        let none = BTreeSet::new();
        let told = |change| told.get(&change).unwrap_or(&none);
        for (path, file) in &new {
            match old.get(path) {
                // A name that leads to another inode is told as gone and come.
                _ if told(Change::Added).contains(path) => {}
                None if !is_below(told(Change::Added), path) => panic!("seed {seed}: {path:?} is new"),
                Some(before) if before != file && !is_below(told(Change::Added), path) => {
                    let is_link = told(Change::Modified).iter().any(|other| new.get(other) == Some(file));
                    assert!(told(Change::Modified).contains(path) || is_link, "seed {seed}: {path:?} differs");
                }
                _ => {}
            }
        }
        for path in old.keys().filter(|path| !new.contains_key(*path)) {
            assert!(is_below(told(Change::Removed), path), "seed {seed}: {path:?} is gone");
        }
        assert!(told(Change::Added).iter().all(|path| new.contains_key(path)));
        assert!(told(Change::Removed).iter().all(|path| old.contains_key(path)));
        differences(&archive, (&manifests[1], &manifests[1]), &mut |_, _| panic!("nothing differs")).unwrap();
    }
}

fn is_below(tops: &BTreeSet<Vec<u8>>, path: &[u8]) -> bool {
    tops.iter().any(|top| path == top || (path.starts_with(top) && path.get(top.len()) == Some(&b'/')))
}

/// A stream with many files, made by hand: 300 folders of 100 files with 100 bytes, then one file of a MiB.
fn large(uuid: u8, parent: Option<u8>) -> Vec<u8> {
    let mut out = Vec::new();
    wire::encode_header(Version::V1, &mut out);
    let mut add = |command: Command<'_>| wire::encode(&command, Version::V1, &mut out).unwrap();
    let name = format!("s{uuid}");
    let path = name.as_bytes();
    match parent {
        None => add(Command::Subvol { path, uuid: [uuid; 16], transid: 1 }),
        Some(parent) => {
            add(Command::Snapshot { path, uuid: [uuid; 16], transid: 1, parent_uuid: [parent; 16], parent_transid: 1 })
        }
    }
    if parent.is_none() {
        for folder in 0..120 {
            let folder = format!("folder{folder}");
            add(Command::Mkdir { path: folder.as_bytes(), ino: 0 });
            for file in 0..100 {
                let file = format!("{folder}/file{file}");
                add(Command::Mkfile { path: file.as_bytes(), ino: 0 });
                let data = [file.as_bytes(), &[7; 100]].concat();
                add(Command::Write { path: file.as_bytes(), offset: 0, data: &data });
            }
        }
        add(Command::Mkdir { path: b"folder7/deep", ino: 0 });
        add(Command::Mkfile { path: b"folder7/deep/large", ino: 0 });
    }
    for part in 0..32 {
        let data: Vec<u8> = (0..32768_u32).map(|byte| (byte * 7 + part + u32::from(uuid)) as u8).collect();
        if parent.is_none() || part % 8 == u32::from(uuid) % 8 {
            add(Command::Write { path: b"folder7/deep/large", offset: u64::from(part) << 15, data: &data });
        }
    }
    add(Command::End {});
    out
}

#[test]
fn one_file_out_of_a_chain_takes_few_requests() {
    let server = Server::start(|_| Fate::Served);
    let store = on(&server, Duration::from_secs(20));
    let repository = Repository::open_or_make(store.clone(), &Access::default()).unwrap();
    put(&repository, &large(1, None), 1).unwrap();
    for number in 2..=12 {
        put(&repository, &large(number, Some(number - 1)), number.into()).unwrap();
    }
    let before = server.requests();
    let repository = Repository::open(store, &Access::default()).unwrap();
    let manifest = find(&repository, "s11");
    let archive = Archive::new(&repository);
    let view = View::new(&archive, &manifest).unwrap();
    let ino = view.file(b"/folder7/deep/large").unwrap();
    let mut content = Vec::new();
    view.content(ino, 0, u64::MAX, &mut |at, bytes| {
        assert_eq!(at, content.len() as u64);
        content.extend_from_slice(bytes);
        Ok(())
    })
    .unwrap();
    let requests = server.requests() - before;
    // Pieces of eight snapshots lie in as many segments.
    assert!(requests <= 20, "{requests} requests");
    assert_eq!(content.len(), 1 << 20);
    for part in 0..32_u32 {
        let writer = (2..=11).rev().find(|uuid| part % 8 == uuid % 8).unwrap_or(1);
        let right: Vec<u8> = (0..32768_u32).map(|byte| (byte * 7 + part + writer) as u8).collect();
        assert!(content[(part as usize) << 15..][..32768] == right[..], "part {part}");
    }
    // The whole snapshot takes far fewer requests than it has files.
    let before = server.requests();
    got(&repository, &manifest, None).unwrap();
    let requests = server.requests() - before;
    assert!(requests < 300, "{requests} requests");
}
