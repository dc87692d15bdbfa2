//! Sections: how they are marked, completed, left, found again; errors and where the program goes on.

use crate::world::receive_into;
use crate::world::{Stream, World};
use butterfs_fs::InodeId;
use butterfs_fs::subvolume::uuid_tree::UuidKind;
use butterfs_send::apply::{Options, Section, StreamTarget};
use butterfs_send::wire::{Command, Version};

#[test]
fn a_received_subvolume_knows_what_it_is() {
    let world = World::new();
    world.receive_ok(&Stream::subvol("a", 1).file("f").write("f", 0, b"content").end());
    let id = world.attr("a").id.tree;
    let info = world.fs.subvolume_info(id).unwrap();
    assert!(info.is_readonly());
    assert_eq!((info.received_uuid, info.transids[2]), ([1; 16], 7));
    assert!(info.transids[3] > 0 && info.times[3].sec > 0 && info.times[2].sec == 0);
    assert_eq!(world.fs.subvolumes_by_uuid(UuidKind::Received, &[1; 16]).unwrap(), [id]);
    assert_eq!(world.fs.list_xattrs(world.attr("a").id).unwrap(), b"");
    assert_eq!(world.names(), ["a"]);
    world.receive_ok(&Stream::snapshot("b", 2, 1).write("f", 3, b"TENT!").end());
    assert_eq!((world.content("a/f"), world.content("b/f")), (b"content".to_vec(), b"conTENT!".to_vec()));
    world.check("a_received_subvolume_knows_what_it_is");
}

/// An interrupted receive that a tool must not take for a good copy: neither read-only nor received.
#[test]
fn an_interrupted_receive_is_marked_and_gives_way_to_the_next() {
    let world = World::new();
    let whole = Stream::subvol("a", 1).file("f").end();
    let cut = Stream::subvol("a", 1).file("f").open_end();
    assert!(world.refusal(&cut).contains("no end command"));
    assert_eq!(world.names(), ["a.partial"]);
    assert_eq!(world.xattr("a.partial", "user.butterfs.partial"), Some(vec![1; 16]));
    assert!(world.fs.subvolumes_by_uuid(UuidKind::Received, &[1; 16]).unwrap().is_empty());
    let left = world.fs.subvolume_info(world.attr("a.partial").id.tree).unwrap();
    assert_eq!((left.is_readonly(), left.received_uuid), (false, [0; 16]));
    let mut engine = world.engine();
    assert_eq!(receive_into(&whole, &mut engine).errors, [""; 0]);
    assert_eq!(world.names(), ["a"]);
    // The same for another subvolume of that name, and for a snapshot.
    assert!(world.refusal(&Stream::subvol("b", 2).dir("d").file("d/f").open_end()).contains("no end command"));
    world.receive_ok(&Stream::snapshot("b", 3, 1).file("g").end());
    assert!(world.refusal(&Stream::snapshot("d", 4, 1).file("g").open_end()).contains("no end command"));
    world.receive_ok(&Stream::snapshot("d", 4, 1).file("g").end());
    assert_eq!(world.names(), ["a", "b", "d"]);
    // What is complete stays, and so does what only looks like a left-over.
    assert!(world.refusal(&whole).contains("File exists"));
    let mine = world.fs.create_subvolume(&Default::default(), crate::world::TOP, b"c.partial").unwrap();
    world.fs.create(&Default::default(), InodeId::root_of(mine), b"mine", 0o600).unwrap();
    let other = Stream::subvol("c", 3).end();
    let refusal = world.refusal(&other);
    assert!(refusal.contains("no interrupted receive has left it"), "{refusal}");
    assert!(world.find("c.partial/mine").is_some());
}

#[test]
fn a_running_receive_keeps_its_name() {
    let world = World::new();
    let section = Section { name: b"a", uuid: [1; 16], transid: 7, parent: None };
    let mut running = world.engine();
    running.begin(&section).unwrap();
    running.command(&Command::Mkfile { path: b"mine", ino: 257 }).unwrap();
    let refusal = world.refusal(&Stream::subvol("a", 2).end());
    assert!(refusal.contains("another receive is at work on a.partial"), "{refusal}");
    assert!(world.find("a.partial/mine").is_some());
    // Others go on, and this one is completed as if nothing had been.
    world.receive_ok(&Stream::subvol("b", 3).end());
    running.finish().unwrap();
    assert!(world.find("a/mine").is_some());
    // One that ends while the next one waits for it hands the name over.
    running.begin(&Section { name: b"c", ..section }).unwrap();
    let fs = world.fs.clone();
    let waiting = std::thread::spawn(move || {
        let whole = Stream::subvol("c", 4).file("whole").end();
        receive_into(&whole, &mut butterfs_send::apply::Engine::new(fs, crate::world::TOP)).errors
    });
    running.abandon();
    assert_eq!(waiting.join().unwrap(), [""; 0]);
    assert!(world.find("c/whole").is_some() && world.find("c.partial").is_none());
}

#[test]
fn streams_and_sections_follow_each_other() {
    let world = World::new();
    let two = Stream::new(Version::V1)
        .add(Command::Subvol { path: b"a", uuid: [1; 16], transid: 1 })
        .file("f")
        .add(Command::Snapshot { path: b"b", uuid: [2; 16], transid: 2, parent_uuid: [1; 16], parent_transid: 1 })
        .file("g")
        .end();
    let more = Stream::snapshot("c", 3, 2).file("h").end();
    let both = [&two[..], &more[..]].concat();
    let received = world.receive(&both);
    assert_eq!((received.summary.streams, received.summary.sections, received.summary.errors), (2, 3, 0));
    assert_eq!(received.summary.bytes, both.len() as u64);
    assert!(world.find("c/f").is_some() && world.find("c/g").is_some() && world.find("c/h").is_some());
    let only_first = Options { first_stream_only: true, ..Options::default() };
    let again = [Stream::subvol("d", 4).end(), b"anything".to_vec()].concat();
    assert_eq!(world.receive_with(&again, &mut world.engine(), &only_first).errors, [""; 0]);
    assert_eq!(world.refusal(b""), "empty stream is not considered valid");
    world.receive_ok(&Stream::new(Version::V1).end());
}

#[test]
fn a_section_with_an_error_is_never_completed() {
    let world = World::new();
    // The first is broken, the second good: the first must not pass for received when the second begins.
    let stream = Stream::subvol("bad", 1)
        .unlink("nothing")
        .file("f")
        .add(Command::Subvol { path: b"good", uuid: [2; 16], transid: 1 })
        .file("f")
        .end();
    let stop_never = Options { max_errors: 0, ..Options::default() };
    let received = world.receive_with(&stream, &mut world.engine(), &stop_never);
    assert_eq!((received.summary.errors, received.summary.sections), (1, 1));
    assert!(received.errors[0].starts_with("unlink nothing (byte 66 of the stream) failed: "), "{received:?}");
    assert_eq!(world.names(), ["bad.partial", "good"]);
    assert!(world.find("bad.partial/f").is_some(), "what follows the error is done");
    // What comes behind a stream with errors is not looked at.
    let behind = [Stream::subvol("worse", 3).unlink("x").end(), Stream::subvol("later", 4).end()].concat();
    world.receive_with(&behind, &mut world.engine(), &stop_never);
    assert!(world.find("later").is_none());
    // As many errors as are allowed.
    let many = (0..10).fold(Stream::subvol("many", 5), |stream, _| stream.unlink("x")).end();
    let three = Options { max_errors: 3, ..Options::default() };
    assert_eq!(world.receive_with(&many, &mut world.engine(), &three).summary.errors, 3);
}

#[test]
fn a_damaged_command_counts_as_an_error() {
    let world = World::new();
    let mut stream = Stream::subvol("a", 1).file("f").file("g").end();
    let at = stream.len() - 20;
    stream[at] ^= 1;
    let stop_never = Options { max_errors: 0, ..Options::default() };
    let received = world.receive_with(&stream, &mut world.engine(), &stop_never);
    assert_eq!(received.errors.len(), 1);
    assert!(received.errors[0].contains("mkfile at byte") && received.errors[0].contains("crc32 mismatch"));
    assert!(world.find("a").is_none() && world.find("a.partial/f").is_some());
}

#[test]
fn parents_are_found_by_either_uuid_and_must_be_unchanged() {
    let world = World::new();
    world.receive_ok(&Stream::subvol("a", 1).file("f").end());
    let own = world.fs.subvolume_info(world.attr("a").id.tree).unwrap().uuid;
    let by_own = Stream::new(Version::V1)
        .add(Command::Snapshot { path: b"b", uuid: [2; 16], transid: 1, parent_uuid: own, parent_transid: 1 })
        .end();
    world.receive_ok(&by_own);
    let unknown = world.refusal(&Stream::snapshot("c", 3, 9).end());
    assert!(unknown.contains("cannot find the parent subvolume 09090909-"), "{unknown}");
    // A copy of the received one inherits what it was received as; each of them will do.
    let a = world.attr("a").id.tree;
    world.fs.snapshot(a, crate::world::TOP, b"copy", true).unwrap();
    world.fs.delete_subvolume(crate::world::TOP, b"a").unwrap();
    world.receive_ok(&Stream::snapshot("d", 4, 1).file("g").end());
    assert!(world.find("d/f").is_some());
}

#[test]
fn names_as_long_as_names_can_be() {
    let world = World::new();
    let name = "n".repeat(255);
    world.receive_ok(&Stream::subvol(&name, 1).dir(&name).file(&format!("{name}/{name}")).end());
    assert!(world.find(&format!("{name}/{name}/{name}")).is_some());
    assert_eq!(world.names(), [name]);
}
