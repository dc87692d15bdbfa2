//! Cases that streams get wrong, each as the work before and after a snapshot: what the kernel's streams lose, and what
//! earlier generators got wrong. A strict receiver and `btrfs receive` check all of them.

use crate::kernel::{received, same_tree};
use crate::world::{World, job, travel};
use butterfs_fs::{Filesystem, InodeId, SetAttr};
use butterfs_send::wire::Version;
use butterfs_testkit::engine::{self, FORMATS};
use butterfs_testkit::library::{Library, ROOT};
use butterfs_testkit::operation::RelPath;
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::watchdog::Watchdog;

/// A folder in which a case works, by paths.
pub struct At<'a> {
    fs: &'a Filesystem,
    top: InodeId,
}

impl At<'_> {
    fn find(&self, path: &str) -> InodeId {
        path.split('/').filter(|name| !name.is_empty()).fold(self.top, |at, name| {
            self.fs.lookup(at, name.as_bytes()).unwrap_or_else(|error| panic!("{path}: {error}")).id
        })
    }

    fn parent<'p>(&self, path: &'p str) -> (InodeId, &'p [u8]) {
        let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
        (self.find(directory), name.as_bytes())
    }

    fn mkdir(&self, path: &str) -> &Self {
        let (parent, name) = self.parent(path);
        self.fs.mkdir(&ROOT, parent, name, 0o755).unwrap_or_else(|error| panic!("{path}: {error}"));
        self
    }

    fn file(&self, path: &str, content: &[u8]) -> &Self {
        let (parent, name) = self.parent(path);
        self.fs.create(&ROOT, parent, name, 0o644).unwrap_or_else(|error| panic!("{path}: {error}"));
        self.write(path, 0, content)
    }

    fn write(&self, path: &str, offset: u64, content: &[u8]) -> &Self {
        self.fs.write(self.find(path), offset, content, false).unwrap_or_else(|error| panic!("{path}: {error}"));
        self
    }

    fn rename(&self, from: &str, to: &str) -> &Self {
        let ((old, old_name), (new, new_name)) = (self.parent(from), self.parent(to));
        let done = self.fs.rename(old, old_name, new, new_name, butterfs_fs::RenameMode::Replace);
        done.unwrap_or_else(|error| panic!("{from} to {to}: {error}"));
        self
    }

    fn link(&self, existing: &str, path: &str) -> &Self {
        let (parent, name) = self.parent(path);
        self.fs.link(self.find(existing), parent, name).unwrap_or_else(|error| panic!("{path}: {error}"));
        self
    }

    fn unlink(&self, path: &str) -> &Self {
        let (parent, name) = self.parent(path);
        self.fs.unlink(parent, name).unwrap_or_else(|error| panic!("{path}: {error}"));
        self
    }

    fn rmdir(&self, path: &str) -> &Self {
        let (parent, name) = self.parent(path);
        self.fs.rmdir(parent, name).unwrap_or_else(|error| panic!("{path}: {error}"));
        self
    }

    fn set(&self, path: &str, change: SetAttr) -> &Self {
        self.fs.setattr(&ROOT, self.find(path), &change).unwrap_or_else(|error| panic!("{path}: {error}"));
        self
    }

    fn chmod(&self, path: &str, mode: u32) -> &Self {
        self.set(path, SetAttr { mode: Some(mode), ..SetAttr::default() })
    }

    fn chown(&self, path: &str, uid: u32, gid: u32) -> &Self {
        self.set(path, SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() })
    }

    fn truncate(&self, path: &str, size: u64) -> &Self {
        self.set(path, SetAttr { size: Some(size), ..SetAttr::default() })
    }

    fn xattr(&self, path: &str, name: &str, value: &[u8]) -> &Self {
        let done = self.fs.set_xattr(&ROOT, self.find(path), name.as_bytes(), value, 0);
        done.unwrap_or_else(|error| panic!("{path}: {name}: {error}"));
        self
    }

    fn no_xattr(&self, path: &str, name: &str) -> &Self {
        let done = self.fs.remove_xattr(&ROOT, self.find(path), name.as_bytes());
        done.unwrap_or_else(|error| panic!("{path}: {name}: {error}"));
        self
    }

    fn allocate(&self, path: &str, mode: u32, offset: u64, len: u64) -> &Self {
        let done = self.fs.fallocate(self.find(path), mode, offset, len, false);
        done.unwrap_or_else(|error| panic!("{path}: {error}"));
        self
    }

    fn clone(&self, (from, at): (&str, u64), (to, offset): (&str, u64), len: u64) -> &Self {
        self.fs.sync().expect("a good device");
        let done = self.fs.clone_range((self.find(from), at), (self.find(to), offset), len);
        done.unwrap_or_else(|error| panic!("{from} {at} to {to} {offset}: {error}"));
        self
    }

    fn subvolume(&self, path: &str) -> &Self {
        let (parent, name) = self.parent(path);
        self.fs.create_subvolume(&ROOT, parent, name).unwrap_or_else(|error| panic!("{path}: {error}"));
        self
    }

    fn no_subvolume(&self, path: &str) -> &Self {
        let (parent, name) = self.parent(path);
        self.fs.delete_subvolume(parent, name).unwrap_or_else(|error| panic!("{path}: {error}"));
        self
    }
}

pub type Work = fn(&At<'_>);

/// A capability as the kernel stores it: version 2, effective, cap_net_raw.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// An ACL with a named user: owner rwx, user 1000 rwx, group r-x, mask rwx, others nothing.
fn acl() -> Vec<u8> {
    let entry = |tag: u16, permissions: u16, id: u32| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let none = u32::MAX;
    let entries = [entry(1, 7, none), entry(2, 7, 1000), entry(4, 5, none), entry(16, 7, none), entry(32, 0, none)];
    [vec![2, 0, 0, 0], entries.concat()].concat()
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    butterfs_testkit::rng::Rng::new(seed).fill(&mut bytes);
    bytes
}

pub const CASES: &[(&str, Work, Work)] = &[
    (
        "times of the root below which names go round",
        |at| {
            at.mkdir("d").file("d/a", b"a").file("d/b", b"b");
        },
        |at| {
            at.rename("d/a", "d/c").rename("d/b", "d/a").rename("d/c", "d/b").mkdir("d/new");
        },
    ),
    (
        "set-user-id after a change of owner",
        |at| {
            at.file("program", b"#!").chmod("program", 0o4755);
        },
        |at| {
            at.chown("program", 5, 6).chmod("program", 0o4755);
        },
    ),
    (
        "set-user-id in a full stream",
        |at| {
            at.file("program", b"#!").chown("program", 5, 6).chmod("program", 0o6755);
        },
        |at| {
            at.chmod("program", 0o2755);
        },
    ),
    (
        "a default ACL and a property of the root",
        |at| {
            at.xattr("", "system.posix_acl_default", &acl()).xattr("", "btrfs.compression", b"zstd").mkdir("d");
            at.file("d/f", b"f").no_xattr("d/f", "system.posix_acl_access").chmod("d/f", 0o644);
            at.no_xattr("d", "system.posix_acl_default").no_xattr("d", "system.posix_acl_access").chmod("d", 0o755);
        },
        |at| {
            at.file("f", b"f").no_xattr("f", "system.posix_acl_access").chmod("f", 0o640).mkdir("e").file("d/g", b"g");
        },
    ),
    (
        "a default ACL that came with the snapshot before",
        |at| {
            at.mkdir("d").xattr("d", "system.posix_acl_default", &acl()).xattr("d", "btrfs.compression", b"zlib");
        },
        |at| {
            at.file("d/f", b"f").mkdir("d/e").file("d/e/g", b"g");
            at.mkdir("d/x").no_xattr("d/x", "system.posix_acl_default").no_xattr("d/x", "system.posix_acl_access");
        },
    ),
    (
        "a default ACL that goes",
        |at| {
            at.mkdir("d").xattr("d", "system.posix_acl_default", &acl()).file("d/f", b"f");
        },
        |at| {
            at.no_xattr("d", "system.posix_acl_default").file("d/g", b"g").mkdir("d/e");
        },
    ),
    (
        "a set-group-id directory",
        |at| {
            at.mkdir("d").chown("d", 0, 50).chmod("d", 0o2775);
        },
        |at| {
            at.file("d/f", b"f")
                .chown("d/f", 0, 0)
                .mkdir("d/e")
                .chown("d/e", 0, 0)
                .chmod("d/e", 0o700)
                .file("d/e/g", b"g");
        },
    ),
    (
        "a removed directory that held a subvolume",
        |at| {
            at.mkdir("d").subvolume("d/s").mkdir("d/e").file("d/e/f", b"f");
        },
        |at| {
            at.no_subvolume("d/s").unlink("d/e/f").rmdir("d/e").rmdir("d");
        },
    ),
    (
        "a subvolume where a file was",
        |at| {
            at.file("x", b"x").mkdir("d").subvolume("y");
        },
        |at| {
            at.unlink("x").no_subvolume("y").file("y", b"y").rmdir("d");
        },
    ),
    (
        "an attribute named like the beginning of a capability",
        |at| {
            at.file("f", b"f").xattr("f", "security.cap", b"1").xattr("f", "security.capability", &CAPABILITY);
        },
        |at| {
            at.xattr("f", "security.cap", b"2").xattr("f", "user.empty", b"");
        },
    ),
    (
        "capabilities live on when content and owner change",
        |at| {
            for name in ["a", "b", "c", "d"] {
                at.file(name, b"content").xattr(name, "security.capability", &CAPABILITY);
            }
        },
        |at| {
            at.chown("a", 1, 2).xattr("a", "security.capability", &CAPABILITY);
            at.write("b", 0, b"CONTENT").xattr("b", "security.capability", &CAPABILITY);
            at.truncate("c", 3).xattr("c", "security.capability", &CAPABILITY);
            at.write("d", 0, b"no more");
        },
    ),
    (
        "attributes larger than a path",
        |at| {
            at.file("f", b"f").xattr("f", "user.long", &noise(6000, 1));
        },
        |at| {
            at.xattr("f", "user.long", &noise(6666, 2)).xattr("f", "user.other", &noise(5555, 3));
        },
    ),
    (
        "children go elsewhere before their directory goes",
        |at| {
            for path in ["a", "a/b", "a/b/c", "y", "z", "d1", "d1/d2", "d1/d2/d3", "d4"] {
                at.mkdir(path);
            }
            at.rename("y", "a/b/c/y").rename("z", "a/b/c/z").rename("d1/d2", "a/b/c/d2");
        },
        |at| {
            at.rename("a/b/c/y", "d4/y").rename("a/b/c/z", "d4/y/z").rename("a/b/c/d2", "a/b/d2").rmdir("a/b/c");
        },
    ),
    (
        "a file goes up, a directory into it",
        |at| {
            for path in ["a", "a/b", "a/b/c", "a/b/c/d", "a/b/c/d/e"] {
                at.mkdir(path);
            }
            at.mkdir("a/b/c/f");
        },
        |at| {
            at.rename("a/b/c/f", "a/b/f").rename("a/b/c/d/e", "a/b/f/e").rename("a/b/c", "a/b/f/e2");
            at.rename("a/b/f/e2/d", "a/b/f/d2").chmod("a/b/f/e", 0o700);
        },
    ),
    (
        "ancestors become descendants",
        |at| {
            for path in ["1", "1/2", "1/2/3", "1/2/3/4", "1/2/3/4/5"] {
                at.mkdir(path);
            }
        },
        |at| {
            at.rename("1/2/3/4/5", "5").rename("1/2/3/4", "5/4").rename("1/2/3", "5/4/3").rename("1/2", "5/4/3/2");
            at.rename("1", "5/4/3/2/1");
        },
    ),
    (
        "a chain turned round under the same names",
        |at| {
            for path in ["a", "a/b", "a/b/c"] {
                at.mkdir(path);
            }
        },
        |at| {
            at.rename("a/b/c", "x").rename("a/b", "x/b").rename("a", "x/b/c").rename("x", "a");
        },
    ),
    (
        "a whole directory deleted and made again",
        |at| {
            at.mkdir("t").mkdir("t/foo").mkdir("t/foo/bar").file("t/baz", b"1").file("t/foo/bar/x", b"2");
        },
        |at| {
            at.unlink("t/foo/bar/x").rmdir("t/foo/bar").rmdir("t/foo").unlink("t/baz").rmdir("t");
            at.mkdir("t").mkdir("t/foo").mkdir("t/foo/bar").file("t/baz", b"3").file("t/foo/bar/x", b"4");
        },
    ),
    (
        "a name goes to another inode whose old name stays",
        |at| {
            at.mkdir("A").file("f1", b"1").file("f2", b"2").file("f3", b"3").link("f3", "A/hard");
        },
        |at| {
            at.rename("f1", "A/f1").rename("f2", "A/f2").rename("A", "B").link("B/hard", "A");
        },
    ),
    (
        "a file takes a directory's name",
        |at| {
            at.file("a", b"a").file("b", b"b").mkdir("t").file("t/a", b"ta");
        },
        |at| {
            at.rename("a", "a2")
                .file("t/new", b"n")
                .rename("b", "b2")
                .link("a2", "b")
                .rename("t", "t_2")
                .rename("a2", "t");
        },
    ),
    (
        "links beyond one item",
        |at| {
            at.mkdir("d").file("d/f", b"f");
            for number in 0..1500 {
                at.link("d/f", &format!("d/a_long_name_of_a_link_{number}"));
            }
            at.unlink("d/f");
        },
        |at| {
            for number in (0..1500).step_by(3) {
                at.unlink(&format!("d/a_long_name_of_a_link_{number}"));
            }
            at.mkdir("e");
            for number in 0..20 {
                at.link("d/a_long_name_of_a_link_1", &format!("e/{number}"));
            }
        },
    ),
    (
        "holes",
        |at| {
            at.file("f", &noise(1 << 20, 1))
                .file("g", &noise(300_000, 2))
                .file("h", &noise(9000, 3))
                .file("i", &noise(70000, 4));
        },
        |at| {
            at.allocate("f", 3, 200_704, 409_600)
                .allocate("g", 3, 4096, 295_904)
                .truncate("h", 0)
                .truncate("h", 9_000_000);
            at.truncate("i", 5000).truncate("i", 50_000).write("i", 40_000, b"x");
        },
    ),
    (
        "space without data",
        |at| {
            at.file("f", &noise(500_000, 1)).allocate("f", 1, 1_200_000, 800_000).file("g", b"").allocate(
                "g",
                1,
                0,
                4 << 20,
            );
            at.write("g", 0, &noise(1 << 20, 2)).file("h", b"").allocate("h", 0, 0, 100_000);
        },
        |at| {
            at.allocate("f", 3, 0, 500_000).allocate("g", 3, 1 << 20, 2 << 20).write("h", 50_000, b"in the middle");
            at.file("i", &noise(100_000, 3)).allocate("i", 3, 0, 50_000).allocate("i", 1, 0, 50_000);
        },
    ),
    (
        "shared within and between",
        |at| {
            at.file("a", &noise(500_000, 1)).file("b", b"").clone(("a", 0), ("b", 0), 500_000);
        },
        |at| {
            at.file("c", b"").clone(("a", 0), ("c", 0), 500_000).clone(("a", 65_536), ("a", 917_504), 131_072);
            at.file("d", b"").clone(("b", 8192), ("d", 4096), 200_704).write("b", 100_000, &noise(50_000, 2));
            at.file("e", b"").clone(("b", 0), ("e", 0), 0).truncate("e", 300_001);
        },
    ),
    (
        "shared to the end of a file that is smaller",
        |at| {
            at.file("foo", &noise(1_048_581, 1)).file("bar", &noise(1 << 20, 2)).file("big", &noise(3 << 20, 3));
        },
        |at| {
            at.truncate("bar", 0).clone(("foo", 0), ("bar", 0), 0).clone(("foo", 0), ("big", 65_536), 1_048_576);
        },
    ),
    (
        "shared extents that lie at lower offsets",
        |at| {
            at.file("f", &noise(400_000, 1));
        },
        |at| {
            at.clone(("f", 262_144), ("f", 0), 131_072).file("g", b"").clone(("f", 131_072), ("g", 0), 65_536);
        },
    ),
];

/// Does the work of every case in a subvolume of its own.
pub fn with_cases(world: &World, mut each: impl FnMut(&str, usize, butterfs_fs::TreeId, butterfs_fs::TreeId)) {
    for (number, (name, before, after)) in CASES.iter().enumerate() {
        let (id, _): (_, Library) = world.subvolume(&format!("w{number}"));
        let at = At { fs: &world.fs, top: InodeId::root_of(id) };
        before(&at);
        let old = world.snapshot(id, &format!("old{number}"));
        after(&at);
        each(name, number, old, world.snapshot(id, &format!("new{number}")));
    }
}

#[test]
fn cases_travel() {
    let _watchdog = Watchdog::new("cases_travel", 300);
    let world = World::new(2 << 30);
    with_cases(&world, |name, number, old, new| {
        let (old_name, new_name) = (format!("old{number}"), format!("new{number}"));
        travel(name, &world, (old, &old_name), (new, &new_name));
    });
}

#[test]
fn the_kernel_receives_the_cases() {
    if !requirement::kernel_btrfs("the_kernel_receives_the_cases") {
        return;
    }
    let _watchdog = Watchdog::new("the_kernel_receives_the_cases", 300);
    let scratch = Scratch::new("send-cases");
    let image = scratch.sparse_file("sent.img", 2 << 30);
    let device = engine::device(&image);
    FORMATS[0].make(&device);
    let world = World::open(device);
    for version in [Version::V1, Version::V2] {
        let (mut stream, mut sent) = (Vec::new(), Vec::new());
        let mut add = |name: &str, number: usize, old, new| {
            stream.extend(world.send(&job(old, None, version)));
            stream.extend(world.send(&job(new, Some(old), version)));
            for part in ["old", "new"] {
                let path = format!("{part}{number}");
                sent.push((format!("{name}, {part}, {version:?}"), without_subvolumes(world.print(&path)), path));
            }
        };
        if version == Version::V1 {
            with_cases(&world, add);
        } else {
            for (number, (name, ..)) in CASES.iter().enumerate() {
                let id = |part: &str| {
                    let path = RelPath::from(format!("{part}{number}").as_str());
                    world.fs.lookup(crate::world::TOP, &path.0).expect("it was made").id.tree
                };
                add(name, number, id("old"), id("new"));
            }
        }
        received(&scratch, &stream, |top| {
            sent.iter().for_each(|(what, print, name)| same_tree(what, print, &top.join(name)));
        });
    }
}

#[test]
fn without_data_only_the_places_of_changes_are_told() {
    let world = World::new(1 << 30);
    let (id, _) = world.subvolume("work");
    let at = At { fs: &world.fs, top: InodeId::root_of(id) };
    at.file("changed", &noise(300_000, 1)).file("punched", &noise(300_000, 2)).file("grown", b"");
    let old = world.snapshot(id, "old");
    at.write("changed", 4096, b"xyz").allocate("punched", 3, 8192, 4096).truncate("grown", 5000).file("new", b"new");
    let new = world.snapshot(id, "new");
    let mut without = job(new, Some(old), Version::V1);
    without.options.no_data = true;
    let stream = world.send(&without);
    let mut decoder = butterfs_send::wire::Decoder::new(&stream[..]);
    let mut told = Vec::new();
    while let Some(event) = decoder.next().expect("a good stream") {
        use butterfs_send::wire::{Command, Event};
        match event {
            Event::Command(_, Command::UpdateExtent { path, offset, len }) => {
                told.push((String::from_utf8_lossy(path).into_owned(), offset, len));
            }
            Event::Command(_, Command::Write { .. } | Command::Clone { .. }) => panic!("{event:?}"),
            _ => {}
        }
    }
    let told: Vec<_> = told.iter().map(|(path, offset, len)| (path.as_str(), *offset, *len)).collect();
    assert_eq!(told, [("changed", 4096, 4096), ("punched", 8192, 4096), ("new", 0, 3)]);
}

/// The bytes of what is common: the kernel needs 6 commands and 279 bytes for the first, 3 and 130 for the second.
#[test]
fn common_changes_are_small() {
    let world = World::new(1 << 30);
    let (id, _) = world.subvolume("work");
    let at = At { fs: &world.fs, top: InodeId::root_of(id) };
    at.mkdir("directory").mkdir("other").file("directory/old_name_", b"x").chmod("directory/old_name_", 0o600);
    at.file("deleted", b"");
    let sizes = |old, new| {
        let mut receiver = crate::receiver::Receiver::default();
        receiver.receive(&world.send(&job(old, None, Version::V1))).expect("a good stream");
        receiver.counts.clear();
        let stream = world.send(&job(new, Some(old), Version::V1));
        receiver.receive(&stream).expect("a good stream");
        (receiver.counts, stream.len())
    };
    let first = world.snapshot(id, "first");
    let same = world.snapshot(id, "same");
    let (counts, empty) = sizes(first, same);
    assert_eq!((counts.len(), empty), (2, 17 + 78 + 4 + 10), "{counts:?}");
    at.rename("directory/old_name_", "directory/new_name_");
    let renamed = world.snapshot(id, "renamed");
    let (counts, len) = sizes(same, renamed);
    let head = 17 + 78 + 7 + 10;
    assert_eq!((counts.get("rename"), counts.get("utimes")), (Some(&1), Some(&1)), "{counts:?}");
    assert_eq!(len - head, (18 + 2 * 19) + (62 + 9), "a rename, and the times of the directory");
    at.file("other/new_file", b"content");
    let added = world.snapshot(id, "added");
    let (counts, len) = sizes(renamed, added);
    let (path, head) = ("other/new_file".len(), 17 + 78 + 5 + 10);
    let of = ["mkfile", "write", "chmod", "utimes"].map(|name| counts.get(name).copied());
    assert_eq!(of, [Some(1), Some(1), Some(1), Some(2)], "{counts:?}");
    assert_eq!(len - head, (26 + path) + (30 + path + 7) + (26 + path) + (62 + path) + (62 + 5));
    at.unlink("deleted");
    let (counts, _) = sizes(added, world.snapshot(id, "less"));
    assert_eq!((counts.get("unlink"), counts.values().sum::<usize>()), (Some(&1), 4), "{counts:?}");
}

/// Nothing is sent for a subvolume inside a snapshot, where an empty directory without times stands for it.
pub fn without_subvolumes(
    mut print: butterfs_testkit::fingerprint::Fingerprint,
) -> butterfs_testkit::fingerprint::Fingerprint {
    let stands_in: Vec<Vec<u8>> = print
        .entries
        .iter()
        .filter(|(_, entry)| entry.kind == butterfs_testkit::operation::Kind::Folder && entry.mtime.is_none())
        .map(|(path, _)| path.clone())
        .collect();
    for path in stands_in {
        print.entries.remove(&path);
        let at = path.iter().rposition(|byte| *byte == b'/');
        let (parent, name) = at.map_or((&b""[..], &path[..]), |at| (&path[..at], &path[at + 1..]));
        // A directory's size counts the names of subvolumes too.
        print.entries.get_mut(parent).expect("a directory").size -= 2 * name.len() as u64;
    }
    print
}
