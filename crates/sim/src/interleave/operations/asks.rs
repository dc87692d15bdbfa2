//! Operations that only show something.

use super::{Operation, answer, done};
use crate::interleave::scene::Scene;
use butterfs_fs::file::Whence;
use butterfs_fs::subvolume::uuid_tree::UuidKind;
use butterfs_fs::{Errno, Generation, InodeId, Result};
use butterfs_ondisk::Key;
use butterfs_testkit::operation::{Object, Op, Outcome, Reply};
use std::ops::ControlFlow;
use std::time::Duration;

fn names(scene: &Scene, folder: InodeId) -> Outcome {
    let mut found = Vec::new();
    let listed = scene.fs.readdir(folder, 0, &mut |entry| {
        found.push(entry.name.to_vec());
        true
    });
    found.retain(|name| name != b"." && name != b"..");
    found.sort();
    answer(listed, |()| Reply::Names(found))
}

/// Looks a name up and forgets the inode.
fn look_up(scene: &Scene, folder: InodeId, name: &[u8]) -> Outcome {
    done(scene.fs.lookup(folder, name).map(|attr| scene.fs.forget(attr.id, 1)))
}

/// Reads all items of the read-only snapshot.
fn read_all(scene: &Scene) -> Result<()> {
    let reader = scene.fs.read_snapshot(scene.id("R").tree)?;
    let (mut count, whole) = (0, (Key::MIN, Key::MAX));
    reader.scan(whole.0, whole.1, &mut |_, _| {
        count += 1;
        Ok::<_, butterfs_fs::Error>(ControlFlow::Continue(()))
    })?;
    assert!(count > 3, "a snapshot has items");
    reader.last_before(Key::MAX).map(drop)
}

pub(super) fn all() -> Vec<Operation> {
    let mut all = of_names();
    all.extend(of_contents());
    all.extend(of_subvolumes());
    all.extend(of_all());
    all
}

fn of_names() -> Vec<Operation> {
    vec![
        Operation::new(
            "lookup A/new",
            &["lookup"],
            |s| look_up(s, s.id("A"), b"new"),
            |v| {
                v.op(v.inside("A", "new").map(|path| Op::Stat { object: Object::Path(path) }))
                    .map(|outcome| outcome.map(|_| Reply::Done))
            },
        ),
        Operation::new(
            "lookup A/foo",
            &["lookup"],
            |s| look_up(s, s.id("A"), b"foo"),
            |v| {
                v.op(v.inside("A", "foo").map(|path| Op::Stat { object: Object::Path(path) }))
                    .map(|outcome| outcome.map(|_| Reply::Done))
            },
        ),
        Operation::new(
            "readdir A",
            &["readdir"],
            |s| names(s, s.id("A")),
            |v| {
                let path = v.path("A")?;
                let listed = v.op(Some(Op::ReadFolder { path }))?;
                Some(listed.map(|reply| match reply {
                    Reply::Entries(entries) => Reply::Names(entries.into_iter().map(|(name, _)| name).collect()),
                    other => other,
                }))
            },
        ),
        Operation::asks("readdirplus A", &["readdirplus", "readdir_until", "last_offset"], |s| {
            let last = s.fs.last_offset(s.id("A")).unwrap_or(u64::MAX);
            let mut found = Vec::new();
            let listed = s.fs.readdirplus(s.id("A"), 0, last, &mut |_, attr| {
                found.extend(attr.map(|attr| attr.id));
                true
            });
            found.into_iter().for_each(|id| s.fs.forget(id, 1));
            done(listed.and_then(|()| s.fs.readdir_until(s.id("B"), 0, u64::MAX, &mut |_| true)))
        }),
        Operation::new(
            "getattr A/foo",
            &["getattr"],
            |s| answer(s.fs.getattr(s.id("A/foo")), |attr| Reply::Count(u64::from(attr.nlink) << 32 | attr.size)),
            |v| {
                let node = v.model.node(v.node("A/foo")?);
                Some(Ok(Reply::Count(u64::from(node.links) << 32 | node.size())))
            },
        ),
        Operation::asks("readlink, parent", &["readlink", "parent", "acquire", "release"], |s| {
            s.fs.acquire(s.id("A/sym"));
            let read = done(s.fs.readlink(s.id("A/sym")).and_then(|_| s.fs.parent(s.id("A/C"))));
            s.fs.release(s.id("A/sym"));
            read
        }),
        Operation::asks("xattrs, writable", &["list_xattrs", "check_writable", "note_coming_access"], |s| {
            let list = s.fs.list_xattrs(s.id("A/foo"));
            let writable = s.fs.check_writable(s.id("A/foo"), false);
            done(list.and(writable).and_then(|()| s.fs.note_coming_access(s.id("A/foo"))))
        }),
        Operation::asks("claim A/new", &["claim"], |s| {
            drop(s.fs.claim(s.id("A"), b"new", Duration::from_secs(1)).expect("claims are given back"));
            Ok(Reply::Done)
        }),
        Operation::asks("paths", &["directory_path", "inode_paths", "subvolume_path"], |s| {
            let paths =
                s.fs.directory_path(s.id("A/C"))
                    .and_then(|_| s.fs.inode_paths(s.id("A/foo")).collect::<Result<Vec<_>, _>>());
            done(paths.and_then(|_| s.fs.subvolume_path(s.id("T").tree)))
        }),
    ]
}

fn of_contents() -> Vec<Operation> {
    vec![
        Operation::asks("extents A/bar", &["extents", "some_extents", "is_shared", "may_share"], |s| {
            let found = s.fs.extents(s.id("A/bar"), 0..u64::MAX).and_then(|all| {
                let some = s.fs.some_extents(s.id("A/bar"), 0..u64::MAX, 2)?;
                assert!(some.len() <= 2);
                all.iter().try_for_each(|extent| s.fs.is_shared(s.id("A/bar"), extent).map(drop))
            });
            done(found.and_then(|()| s.fs.may_share(s.id("A/foo"), s.id("A/bar"))))
        }),
        Operation::asks("seek S/pre", &["seek", "lseek"], |s| {
            let _ = s.fs.lseek(s.id("S/pre"), 0, 4);
            done(s.fs.seek(s.id("S/pre"), 0, Whence::Hole))
        }),
        Operation::asks("new_extents", &["new_extents"], |s| {
            done(s.fs.new_extents(s.id("T").tree, Generation(1), &mut |_, _| Ok(())))
        }),
        Operation::asks("users", &["users_of", "referrers_of"], |s| {
            let found = s.fs.extents(s.id("A/twin"), 0..4096).and_then(|extents| {
                let extent = extents.first().filter(|extent| extent.at.0 != 0);
                let Some(extent) = extent else { return Ok(()) };
                s.fs.users_of(extent.at, true)?.try_for_each(|user| user.map(drop))?;
                s.fs.referrers_of(extent.at)?.try_for_each(|referrer| referrer.map(drop))
            });
            done(found)
        }),
    ]
}

fn of_subvolumes() -> Vec<Operation> {
    vec![
        Operation::asks(super::READS_R, &["read_snapshot"], |s| done(read_all(s))),
        Operation::asks("subvolumes", &["subvolumes", "some_subvolumes", "deleted_subvolumes"], |s| {
            let all = s.fs.subvolumes().and_then(|_| s.fs.some_subvolumes(s.id("S").tree, 2));
            done(all.and_then(|_| s.fs.deleted_subvolumes()))
        }),
        Operation::asks(
            "subvolume_info S",
            &["subvolume_info", "snapshots_of", "subvolumes_by_uuid", "default_subvolume_id", "deleted_generation"],
            |s| {
                let _ = s.fs.deleted_generation(s.id("S").tree);
                let found = s.fs.subvolume_info(s.id("S").tree).and_then(|info| {
                    s.fs.snapshots_of(&info.uuid)?;
                    s.fs.subvolumes_by_uuid(UuidKind::Subvolume, &info.uuid)
                });
                done(found.and_then(|_| s.fs.default_subvolume_id()))
            },
        ),
    ]
}

fn of_all() -> Vec<Operation> {
    vec![
        Operation::asks(
            "counts",
            &[
                "statfs",
                "block_groups",
                "device_stats",
                "memory_held",
                "log_stats",
                "take_messages",
                "root",
                "notes",
                "options",
                "chunks",
                "superblock",
                "is_read_only",
            ],
            |s| {
                drop((s.fs.statfs(), s.fs.block_groups(), s.fs.device_stats(), s.fs.memory_held(), s.fs.log_stats()));
                drop((
                    s.fs.take_messages(),
                    s.fs.root(),
                    s.fs.notes(),
                    s.fs.options(),
                    s.fs.chunks(),
                    s.fs.superblock(),
                ));
                assert!(!s.fs.is_read_only());
                Ok(Reply::Done)
            },
        ),
        Operation::asks("scrub", &["scrub", "scrub_progress", "last_scrub"], |s| {
            let scrub = match s.fs.scrub(Default::default(), Vec::new()) {
                Ok(scrub) => scrub,
                // Another thread scrubs.
                Err(error) if error.is(Errno::EINPROGRESS) => return Ok(Reply::Done),
                refused => return done(refused),
            };
            let damage: Vec<_> = scrub.findings(0).iter().map(|finding| finding.damage.to_string()).collect();
            assert!(damage.is_empty(), "nothing is damaged: {damage:?}");
            drop((s.fs.scrub_progress(), s.fs.last_scrub()));
            Ok(Reply::Done)
        }),
        Operation::asks("reset device stats", &["reset_device_stats"], |s| done(s.fs.reset_device_stats(None))),
        Operation::asks("set_label", &["set_label"], |s| done(s.fs.set_label(b"woven"))),
    ]
}
