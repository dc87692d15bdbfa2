//! The bytes of version 3. Where they change, commands and servers of version 3 no longer understand each other: then
//! [`VERSION`] changes, and these lines with it. What comes to the end of a table is no such change.

mod samples;

use butterfs_control::{Message, MountAnswer, MountQuestion, Question, Reply, StreamQuestion, VERSION, encode};

fn hex(message: &impl Message) -> String {
    encode(message).expect("short").iter().map(|byte| format!("{byte:02x}")).collect()
}

fn lines(messages: &[impl Message + std::fmt::Debug]) -> String {
    messages.iter().map(|message| format!("{} {message:?}\n", hex(message))).collect()
}

/// All samples, each with its bytes before it: those that were pinned are there, and all are pinned.
#[test]
fn version_3_has_these_bytes() {
    let streams = [lines(&samples::stream_questions()), lines(&samples::replies())].concat();
    let mounts = [lines(&samples::mount_questions()), lines(&samples::mount_answers())].concat();
    let now = [lines(&samples::questions()), streams, mounts].concat();
    assert_eq!(VERSION, 3);
    let pinned = include_str!("version-3.txt");
    let bytes = |text: &'static str| text.lines().filter_map(|line| line.split(' ').next());
    let now: &'static str = now.leak();
    let gone: Vec<_> = bytes(pinned).filter(|one| !bytes(now).any(|other| other == *one)).collect();
    assert_eq!(gone, [""; 0], "version {VERSION} had these messages");
    let is_pinned = |line: &&str| bytes(pinned).any(|one| line.split(' ').next() == Some(one));
    let new: Vec<_> = now.lines().filter(|line| !is_pinned(line)).collect();
    assert!(new.is_empty(), "these are to be pinned, too:\n{}", new.join("\n"));
}

#[test]
fn tables_begin_as_they_did() {
    let starts = |all: &[&str], known: &str| known.split_whitespace().zip(all).all(|(old, new)| old == *new);
    let questions = "CreateSubvolume Snapshot DeleteSubvolume DeleteSubvolumeById ListSubvolumes ListDeleted \
                     DescribeSubvolume DescribeSubvolumeById DescribeSubvolumeByUuid ListSnapshots FindSubvolume \
                     GetDefault SetDefault GetReadOnly SetReadOnly FindNew FindSubvolumePath FindPaths FindPathsById \
                     FindUsers ListExtents AskToShare Dedupe Defragment GetLabel SetLabel StoreData CountDeviceErrors \
                     SyncAll CountWork";
    assert!(starts(Question::VARIANTS, questions) && Question::VARIANTS.len() >= questions.split_whitespace().count());
    assert!(starts(StreamQuestion::VARIANTS, "SendSubvolumes ReceiveSubvolumes"));
    assert!(starts(Reply::VARIANTS, "Record Report Done Refused"));
    assert!(starts(MountQuestion::VARIANTS, "Locate Join ShowOptions"));
    assert!(starts(MountAnswer::VARIANTS, "Located Joined Options Refused"));
}
