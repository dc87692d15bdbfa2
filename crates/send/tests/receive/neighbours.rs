//! A folder that belongs to another user, who exchanges names while root receives there: nothing outside of the tree
//! changes, and nobody gets a file that is root's in name only.

use crate::world::{Stream, receive_into};
use butterfs_send::apply::{Directory, Moment, Section, StreamTarget, words::uuid_text};
use butterfs_send::wire::Command;
use butterfs_testkit::requirement::skip;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::watchdog::Watchdog;
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, RenameFlags, Uid, chownat, mknodat, renameat_with};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

const NOBODY: u32 = 65_534;

fn give(path: &Path) {
    let owner = (Some(Uid::from_raw(NOBODY)), Some(Gid::from_raw(NOBODY)));
    chownat(CWD, path, owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// A folder of nobody's, and beside it a file and a folder of root's. `None`, said: only root can be attacked.
struct Neighbours {
    scratch: Scratch,
    at: PathBuf,
    victim: PathBuf,
}

impl Neighbours {
    fn new(test: &str) -> Option<Neighbours> {
        if !rustix::process::geteuid().is_root() {
            skip(test, "needs root");
            return None;
        }
        let scratch = Scratch::new(test);
        let (at, victim) = (scratch.folder("at"), scratch.join("victim"));
        fs::write(&victim, b"precious").unwrap();
        fs::set_permissions(&victim, fs::Permissions::from_mode(0o600)).unwrap();
        give(&at);
        Some(Neighbours { scratch, at, victim })
    }

    fn assert_victim_is_untouched(&self) {
        let now = fs::metadata(&self.victim).unwrap();
        assert_eq!((now.mode() & 0o7777, now.uid(), now.gid()), (0o600, 0, 0));
        assert_eq!(fs::read(&self.victim).unwrap(), b"precious");
    }

    fn receive(&self, stream: &[u8]) -> Vec<String> {
        receive_into(stream, &mut Directory::open(&self.at).unwrap()).errors
    }

    /// Receives while somebody does something at a moment, once.
    fn receive_while(&self, stream: &[u8], at: Moment, number: usize, work: impl FnOnce() + 'static) -> Vec<String> {
        let (mut work, mut seen) = (Some(work), 0);
        let meanwhile = move |moment| {
            seen += usize::from(moment == at);
            if seen > number
                && let Some(work) = work.take()
            {
                work();
            }
        };
        let mut target = Directory::open(&self.at).unwrap().meanwhile(Box::new(meanwhile));
        receive_into(stream, &mut target).errors
    }
}

fn one_file(name: &str, uuid: u8) -> Vec<u8> {
    Stream::subvol(name, uuid).file("f").write("f", 0, b"content").end()
}

#[test]
fn a_file_with_a_markers_name_is_replaced_and_not_opened() {
    const TEST: &str = "what_has_a_markers_name";
    let _watchdog = Watchdog::new(TEST, 30);
    let Some(world) = Neighbours::new(TEST) else { return };
    let marker = world.at.join(".a.butterfs-received");
    let obstacles: [(&str, &dyn Fn()); 3] = [
        ("fifo", &|| mknodat(CWD, &marker, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap()),
        ("symbolic link", &|| symlink(&world.victim, &marker).unwrap()),
        ("hard link", &|| fs::hard_link(&world.victim, &marker).unwrap()),
    ];
    for (what, put) in obstacles {
        put();
        assert_eq!(world.receive(&one_file("a", 1)), [""; 0], "{what}");
        assert!(fs::symlink_metadata(&marker).unwrap().is_file(), "{what}");
        assert!(fs::read_to_string(&marker).unwrap().contains("01010101-"), "{what}");
        world.assert_victim_is_untouched();
        fs::remove_dir_all(world.at.join("a")).unwrap();
        fs::remove_file(&marker).unwrap();
    }
    // Nor is one read.
    mknodat(CWD, &marker, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    assert!(world.receive(&Stream::snapshot("b", 2, 1).end())[0].contains("cannot find the parent"));
}

#[test]
fn a_subvolume_is_not_named_like_a_marker() {
    let scratch = Scratch::new("a_subvolume_is_not_named_like_a_marker");
    let mut target = Directory::open(scratch.path()).unwrap();
    let refusal = receive_into(&one_file(".a.butterfs-received", 1), &mut target).errors.remove(0);
    assert!(refusal.contains("a name that a marker beside a received tree would have"), "{refusal}");
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
}

/// The staging directory is exchanged before it is opened: the links in the other one would lead root elsewhere.
#[test]
fn a_staging_directory_is_the_one_that_was_made() {
    let Some(world) = Neighbours::new("a_staging_directory_is_the_one_that_was_made") else { return };
    let (at, victim) = (world.at.clone(), world.victim.clone());
    let errors = world.receive_while(&one_file("a", 1), Moment::StagingMade, 0, move || {
        fs::rename(at.join("a.partial"), at.join("aside")).unwrap();
        fs::create_dir(at.join("a.partial")).unwrap();
        give(&at.join("a.partial"));
        symlink(victim, at.join("a.partial/tree")).unwrap();
    });
    assert!(errors[0].contains("somebody has put something else in its place"), "{errors:?}");
    world.assert_victim_is_untouched();
    assert_eq!(fs::read_link(world.at.join("a.partial/tree")).unwrap(), world.victim);
    assert_eq!(fs::metadata(world.at.join("a.partial")).unwrap().uid(), NOBODY);
    // What another user has there is not for root to delete.
    let errors = world.receive(&one_file("a", 1));
    assert!(errors[0].contains("belongs to user 65534"), "{errors:?}");
    world.assert_victim_is_untouched();
}

/// The same with an empty folder of theirs, which root would lend its hands; with the comparison left out, this test
/// finds it.
#[test]
fn a_folder_of_theirs_does_not_become_the_staging_directory() {
    for trusts in [false, true] {
        let Some(world) = Neighbours::new("a_folder_of_theirs_does_not_become") else { return };
        let theirs = world.at.join("a.partial");
        let (at, put) = (world.at.clone(), theirs.clone());
        let exchange = move |moment| {
            if moment == Moment::StagingMade {
                fs::rename(&put, at.join("aside")).unwrap();
                fs::create_dir(&put).unwrap();
                fs::set_permissions(&put, fs::Permissions::from_mode(0o777)).unwrap();
                give(&put);
            }
        };
        let target = Directory::open(&world.at).unwrap().meanwhile(Box::new(exchange));
        let mut target = if trusts { target.trusting_names() } else { target };
        let errors = receive_into(&one_file("a", 1), &mut target).errors;
        let found = fs::metadata(&theirs).map(|found| (found.mode() & 0o7777, found.uid(), found.gid()));
        let is_untouched = found.is_ok_and(|found| found == (0o777, NOBODY, NOBODY))
            && fs::read_dir(&theirs).unwrap().next().is_none();
        let is_refused = errors.first().is_some_and(|error| error.contains("put something else in its place"));
        assert_eq!((is_untouched, is_refused), (!trusts, !trusts), "trusts {trusts}: {errors:?}");
        assert_eq!(world.at.join("a").exists(), trusts);
    }
}

#[test]
fn a_tree_that_loses_its_name_is_no_success() {
    let Some(world) = Neighbours::new("a_tree_that_loses_its_name") else { return };
    let marker = world.at.join(".a.butterfs-received");
    let at = world.at.clone();
    let errors = world.receive_while(&one_file("a", 1), Moment::Complete, 0, move || {
        fs::create_dir(at.join("a")).unwrap();
        fs::write(at.join("a/theirs"), b"").unwrap();
    });
    assert!(errors[0].contains("File exists"), "{errors:?}");
    assert!(!marker.exists() && world.at.join("a/theirs").exists());
    fs::remove_dir_all(world.at.join("a")).unwrap();
    let at = world.at.clone();
    let errors = world.receive_while(&one_file("a", 1), Moment::Named, 0, move || {
        fs::rename(at.join("a"), at.join("aside")).unwrap();
        fs::create_dir(at.join("a")).unwrap();
    });
    assert!(errors[0].contains("somebody has taken a away"), "{errors:?}");
    assert!(!marker.exists());
    world.assert_victim_is_untouched();
}

/// The parent of an increment lies where another user can exchange names: a copy has content and owner of one inode.
#[test]
fn a_copy_is_of_one_inode() {
    let Some(world) = Neighbours::new("a_copy_is_of_one_inode") else { return };
    let first = Stream::subvol("a", 1)
        .dir("d")
        .file("d/s")
        .write("d/s", 0, b"root's")
        .chmod("d/s", 0o4755)
        .chown("d", u64::from(NOBODY), 0)
        .end();
    assert_eq!(world.receive(&first), [""; 0]);
    let at = world.at.clone();
    // The second that is found is `d/s`.
    let errors = world.receive_while(&Stream::snapshot("b", 2, 1).end(), Moment::Found, 1, move || {
        let name = at.join("a/d/s");
        fs::rename(&name, at.join("a/d/aside")).unwrap();
        fs::write(&name, b"theirs").unwrap();
        give(&name);
    });
    assert_eq!(errors, [""; 0]);
    let copy = fs::metadata(world.at.join("b/d/s")).unwrap();
    let content = fs::read(world.at.join("b/d/s")).unwrap();
    assert_eq!((copy.uid(), copy.mode() & 0o7777, content), (0, 0o4755, b"root's".to_vec()));
}

#[test]
fn markers_of_others_lead_to_no_parent() {
    let Some(world) = Neighbours::new("markers_of_others_lead_to_no_parent") else { return };
    let marker = world.at.join(".a.butterfs-received");
    fs::create_dir(world.at.join("a")).unwrap();
    let text = format!("butterfs received tree, version 1\nuuid {}\ntransid 7\n", uuid_text(&[1; 16]));
    fs::write(&marker, text).unwrap();
    give(&marker);
    let errors = world.receive(&Stream::snapshot("b", 2, 1).end());
    assert!(errors[0].contains("its marker belongs to another user"), "{errors:?}");
    chownat(CWD, &marker, Some(Uid::ROOT), None, AtFlags::empty()).unwrap();
    assert_eq!(world.receive(&Stream::snapshot("b", 2, 1).end()), [""; 0]);
}

#[test]
fn a_running_receive_keeps_its_name() {
    let scratch = Scratch::new("a_running_receive_keeps_its_directory");
    let open = || Directory::open(scratch.path()).unwrap();
    let mut running = open();
    running.begin(&Section { name: b"a", uuid: [1; 16], transid: 7, parent: None }).unwrap();
    running.command(&Command::Mkfile { path: b"mine", ino: 257 }).unwrap();
    let errors = receive_into(&one_file("a", 2), &mut open()).errors;
    assert!(errors[0].contains("another receive is at work on a.partial"), "{errors:?}");
    running.command(&Command::Write { path: b"mine", offset: 0, data: b"still" }).unwrap();
    running.finish().unwrap();
    assert_eq!(fs::read(scratch.join("a/mine")).unwrap(), b"still");
}

/// A complete tree may be called as if it were not, and hold a file like the marker of one that is not.
#[test]
fn a_complete_tree_is_no_leftover() {
    let scratch = Scratch::new("a_complete_tree_is_no_leftover");
    let receive = |stream: &[u8]| receive_into(stream, &mut Directory::open(scratch.path()).unwrap()).errors;
    let text = format!("butterfs received tree, version 1\nuuid {}\ntransid 7\n", uuid_text(&[1; 16]));
    let stream = Stream::subvol("a.partial", 1).file("butterfs-received");
    assert_eq!(receive(&stream.write("butterfs-received", 0, text.as_bytes()).end()), [""; 0]);
    let errors = receive(&one_file("a", 1));
    assert!(errors[0].contains("a.partial exists, and is a tree that was received"), "{errors:?}");
    assert!(scratch.join("a.partial/butterfs-received").exists());
}

/// Another user exchanges the staging directory with one of their own, all the time: whatever comes of each receive,
/// root has changed nothing of what the links in it lead to, and what is complete is root's.
#[test]
fn names_that_are_exchanged_all_the_time() {
    const TEST: &str = "names_that_are_exchanged_all_the_time";
    let _watchdog = Watchdog::new(TEST, 60);
    let Some(world) = Neighbours::new(TEST) else { return };
    let evil = world.at.join("evil");
    fs::create_dir(&evil).unwrap();
    for name in ["tree", "butterfs-received", "received", "new"] {
        symlink(&world.victim, evil.join(name)).unwrap();
    }
    give(&evil);
    let rounds: usize = std::env::var("BUTTERFS_SEND_ATTACKS").ok().and_then(|text| text.parse().ok()).unwrap_or(150);
    let done = AtomicBool::new(false);
    let (at, done) = (world.at.as_path(), &done);
    let folder = fs::File::open(at).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The rights of the other user, in this thread only.
            let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
            set_thread_groups(&[]).unwrap();
            set_thread_res_gid(gid, gid, gid).unwrap();
            set_thread_res_uid(uid, uid, uid).unwrap();
            while !done.load(Ordering::Relaxed) {
                for pair in [("a.partial", "evil"), ("a", "evil")] {
                    let _ = renameat_with(&folder, pair.0, &folder, pair.1, RenameFlags::EXCHANGE);
                }
            }
        });
        let mut complete = 0;
        for _ in 0..rounds {
            complete += usize::from(world.receive(&one_file("a", 1)).is_empty());
            world.assert_victim_is_untouched();
            // What is left under any name but the other user's own goes, by root's own hand.
            for entry in fs::read_dir(at).unwrap().flatten() {
                let path = entry.path();
                let is_roots = fs::symlink_metadata(&path).is_ok_and(|found| found.uid() == 0);
                if is_roots && fs::symlink_metadata(path.join("tree")).map_or(true, |tree| !tree.is_symlink()) {
                    let _ = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
                }
            }
        }
        done.store(true, Ordering::Relaxed);
        println!("{complete} of {rounds} were completed");
    });
    world.assert_victim_is_untouched();
    drop(world.scratch);
}
