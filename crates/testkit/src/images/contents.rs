//! The content of the images: everything that a filesystem can show and that is stored in a way of its own.
//!
//! All through the kernel; nothing here knows the format except by what makes the kernel use it.

use crate::kernel::run_ok;
use crate::mounted::Mounted;
use crate::names;
use crate::operation::{AllocateHow, Content, Kind, Moment, Object, Op, OperationTarget, RelPath, Text};
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// Noise, so that it is neither compressed nor found equal elsewhere.
const NOISE: u64 = 2;
/// Words, which compress well.
const WORDS: u64 = 1;

struct Fill {
    root: PathBuf,
    mounted: Mounted,
}

/// Fills a mounted filesystem.
pub(super) fn fill(root: &Path) {
    let mut fill = Fill { root: root.to_owned(), mounted: Mounted::new(root) };
    let parts: [fn(&mut Fill); 12] = [
        Fill::names,
        Fill::links,
        Fill::kinds,
        Fill::attributes,
        Fill::extended_attributes,
        Fill::inline,
        Fill::sparse,
        Fill::preallocated,
        Fill::compressed,
        Fill::shared,
        Fill::fragments,
        Fill::snapshots,
    ];
    for part in parts {
        part(&mut fill);
        // A commit between the parts spreads them over generations.
        fill.must(Op::Sync);
    }
}

impl Fill {
    fn must(&mut self, op: Op) {
        let outcome = self.mounted.apply(&op);
        assert!(outcome.is_ok(), "{op:?}: {outcome:?}");
    }

    fn folder(&mut self, path: &str) -> RelPath {
        let path = RelPath::from(path);
        self.must(Op::Mkdir { path: path.clone(), mode: 0o755 });
        path
    }

    fn file(&mut self, path: &RelPath, content: &[(u64, Content)]) {
        self.must(Op::Create { path: path.clone(), mode: 0o644 });
        content.iter().for_each(|(offset, content)| self.write(path, *offset, *content));
    }

    fn write(&mut self, path: &RelPath, offset: u64, content: Content) {
        self.must(Op::Write { object: Object::Path(path.clone()), offset, content });
    }

    /// Runs a program on paths below the root.
    fn run(&self, program: &str, arguments: &[&str], paths: &[&str]) {
        let paths: Vec<String> = paths.iter().map(|path| self.root.join(path).display().to_string()).collect();
        let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
        run_ok(60, program, &[arguments, &paths].concat());
    }

    fn remount(&self, options: &str) {
        run_ok(60, "mount", &["-o", &format!("remount,{options}"), &self.root.display().to_string()]);
    }

    fn names(&mut self) {
        let folder = self.folder("names");
        let special = (0..20).map(names::longest).chain((0..10).map(names::odd)).chain(names::colliding("", 5));
        for name in special {
            self.file(&folder.join(&name), &[]);
        }
        // Collisions that were taken apart again.
        for name in names::colliding("-gone", 4).iter().enumerate().map(|(number, name)| (number % 3, name)) {
            self.file(&folder.join(name.1), &[]);
            if name.0 == 0 {
                self.must(Op::Unlink { path: folder.join(name.1) });
            }
        }
        let mut deep = self.folder("deep");
        for level in 0..60 {
            deep = deep.join(format!("level-{level}").as_bytes());
            self.must(Op::Mkdir { path: deep.clone(), mode: 0o755 });
        }
        let many = self.folder("many");
        for number in 0..1500 {
            self.file(&many.join(format!("file-{number:05}").as_bytes()), &[]);
        }
    }

    /// Links to one file: 3,000, or as many as fit where there are no extended references.
    fn links(&mut self) {
        let folder = self.folder("links");
        let from = folder.join(b"original");
        self.file(&from, &[(0, Content { seed: WORDS, len: 5000 })]);
        let colliding = names::colliding("-link", 5);
        let plain = (0..3000 - colliding.len()).map(|number| format!("link-{number:04}").into_bytes());
        for name in colliding.into_iter().chain(plain) {
            match self.mounted.apply(&Op::Link { from: from.clone(), to: folder.join(&name) }) {
                Ok(_) => {}
                Err(Errno::MLINK) => break,
                Err(error) => panic!("link {}: {error}", name.escape_ascii()),
            }
        }
        let elsewhere = self.folder("links/elsewhere");
        let second = elsewhere.join(b"second");
        self.file(&second, &[]);
        self.must(Op::Link { from: second.clone(), to: RelPath::from("second-link") });
        self.must(Op::Unlink { path: second });
    }

    fn kinds(&mut self) {
        let folder = self.folder("kinds");
        for (name, kind, major, minor) in [
            ("fifo", Kind::Fifo, 0, 0),
            ("socket", Kind::Socket, 0, 0),
            ("block", Kind::BlockDevice, 8, 1),
            ("char", Kind::CharDevice, 1, 3),
            ("large-numbers", Kind::CharDevice, 4095, (1 << 20) - 1),
        ] {
            let path = folder.join(name.as_bytes());
            self.must(Op::Mknod { path, kind, mode: 0o640, major, minor });
        }
        for len in [1, 60, 1000, 3000] {
            let path = folder.join(format!("symlink-{len}").as_bytes());
            self.must(Op::Symlink { path, target: Text(vec![b'/'; len]) });
        }
    }

    fn attributes(&mut self) {
        let folder = self.folder("attributes");
        for (number, mode) in [0o000, 0o777, 0o4755, 0o2755, 0o1777, 0o6711].into_iter().enumerate() {
            let path = folder.join(format!("mode-{mode:o}").as_bytes());
            self.file(&path, &[]);
            let uid = [0, 1000, 0xffff_fffe][number % 3];
            self.must(Op::Chown { path: path.clone(), uid, gid: uid / 2 });
            self.must(Op::Chmod { object: Object::Path(path), mode });
        }
        let times = [(0, 0), (-1, 999_999_999), (-10_000_000_000, 1), (1 << 35, 123_456_789), (1_700_000_000, 500)];
        for (number, (sec, nsec)) in times.into_iter().enumerate() {
            let path = folder.join(format!("time-{number}").as_bytes());
            self.file(&path, &[]);
            let atime = Moment { sec, nsec };
            self.must(Op::SetTimes { path, atime, mtime: Moment { sec: sec + 7, nsec } });
        }
        self.folder("attributes/group");
        self.must(Op::Chmod { object: Object::Path(RelPath::from("attributes/group")), mode: 0o2775 });
        self.run("chattr", &["+i"], &["attributes/time-0"]);
        self.run("chattr", &["+a"], &["attributes/time-1"]);
        self.run("chattr", &["+Ad"], &["attributes/time-2"]);
        self.run("chattr", &["+C"], &["attributes/group"]);
        self.file(&RelPath::from("attributes/group/nocow"), &[(0, Content { seed: NOISE, len: 300_000 })]);
        self.write(&RelPath::from("attributes/group/nocow"), 100_000, Content { seed: WORDS, len: 50_000 });
    }

    fn extended_attributes(&mut self) {
        let folder = self.folder("xattrs");
        let file = folder.join(b"many");
        self.file(&file, &[]);
        let set = |path: &RelPath, name: String, len: usize| {
            let value = Content { seed: NOISE, len };
            Op::SetXattr { path: path.clone(), name, value, create: false, replace: false }
        };
        for number in 0..150 {
            self.must(set(&file, format!("user.number-{number}"), number));
        }
        for name in names::colliding("", 3) {
            self.must(set(&file, format!("user.{}", String::from_utf8_lossy(&name)), 20));
        }
        self.must(set(&file, format!("user.{}", "n".repeat(250)), 10));
        self.must(set(&folder, "user.large".to_owned(), 3000));
        self.must(set(&folder, "trusted.empty".to_owned(), 0));
        let link = folder.join(b"symlink");
        self.must(Op::Symlink { path: link.clone(), target: Text(b"many".to_vec()) });
        self.must(set(&link, "trusted.link".to_owned(), 30));
        self.file(&folder.join(b"capable"), &[(0, Content { seed: WORDS, len: 10 })]);
        self.run("setcap", &["cap_net_raw,cap_net_bind_service+ep"], &["xattrs/capable"]);
        self.folder("xattrs/acl");
        self.file(&folder.join(b"acl/file"), &[]);
        self.run("setfacl", &["-m", "u:1000:rwx,u:1001:r--,g:50:r-x,m::rwx"], &["xattrs/acl/file"]);
        self.run("setfacl", &["-m", "u:7:rwx,d:u:1000:rwx,d:g:50:---,d:o::r-x"], &["xattrs/acl"]);
        self.file(&folder.join(b"acl/inherits"), &[]);
        self.folder("xattrs/acl/inherits-too");
    }

    fn inline(&mut self) {
        let folder = self.folder("inline");
        for len in [0, 1, 100, 2047, 2048, 2049, 4095, 4096, 4097] {
            let path = folder.join(format!("size-{len}").as_bytes());
            self.file(&path, &[(0, Content { seed: NOISE, len })]);
        }
        let grown = folder.join(b"grown");
        self.file(&grown, &[(0, Content { seed: NOISE, len: 500 })]);
        self.must(Op::Sync);
        self.must(Op::Truncate { object: Object::Path(grown), size: 3000 });
        let cut = folder.join(b"cut");
        self.file(&cut, &[(0, Content { seed: NOISE, len: 1500 })]);
        self.must(Op::Sync);
        self.must(Op::Truncate { object: Object::Path(cut), size: 700 });
        let far = folder.join(b"far");
        self.file(&far, &[(0, Content { seed: NOISE, len: 90 })]);
        self.must(Op::Sync);
        self.must(Op::Truncate { object: Object::Path(far), size: 1 << 30 });
    }

    fn sparse(&mut self) {
        let folder = self.folder("sparse");
        let block = |seed| Content { seed, len: 4096 };
        let far = (1u64 << 40) + 12_345;
        self.file(
            &folder.join(b"islands"),
            &[(0, block(2)), (1 << 20, block(3)), (1 << 30, block(6)), (far, block(7))],
        );
        self.file(
            &folder.join(b"odd-islands"),
            &[(5000, Content { seed: 3, len: 3 }), (70_001, Content { seed: 2, len: 9999 })],
        );
        let tail = folder.join(b"hole-at-end");
        self.file(&tail, &[(0, Content { seed: NOISE, len: 10_000 })]);
        self.must(Op::Truncate { object: Object::Path(tail), size: 50_000_000 });
        let empty = folder.join(b"only-hole");
        self.file(&empty, &[]);
        self.must(Op::Truncate { object: Object::Path(empty), size: 1_000_001 });
        let punched = folder.join(b"punched");
        self.file(&punched, &[(0, Content { seed: NOISE, len: 400_000 })]);
        self.must(Op::Sync);
        for (offset, len) in [(0, 4096), (100_000, 50_000), (200_000, 100), (300_000, 200_000)] {
            let object = Object::Path(punched.clone());
            self.must(Op::Allocate { object, how: AllocateHow::PunchHole, offset, len });
        }
    }

    fn preallocated(&mut self) {
        let folder = self.folder("prealloc");
        for (name, how) in [("within", AllocateHow::Extend), ("beyond", AllocateHow::KeepSize)] {
            let path = folder.join(name.as_bytes());
            self.file(&path, &[(0, Content { seed: NOISE, len: 1000 })]);
            let object = Object::Path(path.clone());
            self.must(Op::Allocate { object, how, offset: 8192, len: 1 << 20 });
            self.must(Op::Sync);
            if how == AllocateHow::Extend {
                self.write(&path, 20_000, Content { seed: NOISE, len: 30_000 });
                self.must(Op::Sync);
                self.write(&path, 500_000, Content { seed: WORDS, len: 1 });
            }
        }
    }

    fn compressed(&mut self) {
        for method in ["zlib", "lzo", "zstd"] {
            self.remount(&format!("compress-force={method}"));
            let folder = self.folder(method);
            let words = |len| Content { seed: WORDS, len };
            self.file(&folder.join(b"inline"), &[(0, words(1900))]);
            self.file(&folder.join(b"words"), &[(0, words(700_001))]);
            self.file(&folder.join(b"repeated"), &[(0, Content { seed: 4, len: 1 << 20 })]);
            self.file(&folder.join(b"noise"), &[(0, Content { seed: NOISE, len: 300_000 })]);
            self.file(&folder.join(b"mixed"), &[(0, words(100_000)), (60_000, Content { seed: NOISE, len: 90_000 })]);
            self.file(&folder.join(b"sparse"), &[(131_072, words(4096)), (1 << 21, words(9000))]);
            let partly = folder.join(b"overwritten");
            self.file(&partly, &[(0, words(400_000))]);
            let cut = folder.join(b"cut");
            self.file(&cut, &[(0, words(131_072))]);
            self.must(Op::Sync);
            for (offset, len) in [(8192, 4096), (100_000, 60_000), (262_144, 1)] {
                self.write(&partly, offset, Content { seed: NOISE, len });
                self.must(Op::Sync);
            }
            self.must(Op::Truncate { object: Object::Path(cut.clone()), size: 50_000 });
            self.must(Op::Sync);
            self.must(Op::Truncate { object: Object::Path(cut), size: 90_000 });
        }
        self.remount("compress=no");
    }

    /// Extents with many references.
    fn shared(&mut self) {
        let folder = self.folder("shared");
        let source = folder.join(b"source");
        self.file(&source, &[(0, Content { seed: NOISE, len: 1 << 20 })]);
        self.must(Op::Sync);
        for number in 0..300 {
            let path = folder.join(format!("clone-{number}").as_bytes());
            self.file(&path, &[]);
            let from_offset = number % 16 * 65536;
            self.must(Op::CopyRange {
                from: source.clone(),
                from_offset,
                to: path,
                to_offset: 4096 * (number % 5),
                len: 65536,
            });
        }
        self.must(Op::Sync);
        self.write(&source, 70_000, Content { seed: WORDS, len: 70_000 });
    }

    /// Free space in so many pieces that it is kept in bitmaps, and data in more than one chunk.
    fn fragments(&mut self) {
        let folder = self.folder("fragments");
        let name = |number: u64| format!("piece-{number:04}").into_bytes();
        for number in 0..1200 {
            let len = 4096 * (1 + number as usize % 3);
            self.file(&folder.join(&name(number)), &[(0, Content { seed: 4 * number + NOISE, len })]);
        }
        self.must(Op::Sync);
        for number in (0..1200).filter(|number| number % 2 == 0) {
            self.must(Op::Unlink { path: folder.join(&name(number)) });
        }
        self.must(Op::Sync);
        let large = folder.join(b"large");
        let pieces: Vec<(u64, Content)> =
            (0..40).map(|at| (at << 20, Content { seed: 4 * at + NOISE, len: 1 << 20 })).collect();
        self.file(&large, &pieces);
    }

    fn snapshots(&mut self) {
        let subvolume = |arguments: &[&str], paths: &[&str]| {
            let shown: Vec<String> = paths.iter().map(|path| self.root.join(path).display().to_string()).collect();
            let shown: Vec<&str> = shown.iter().map(String::as_str).collect();
            run_ok(60, "btrfs", &[&["-q", "subvolume"], arguments, &shown].concat());
        };
        subvolume(&["create"], &["volume"]);
        let folder = RelPath::from("volume");
        let mut model = crate::model::ModelFs::default();
        let mut inside = Mounted::new(&self.root.join("volume"));
        let shape = crate::workload::Shape { inodes_max: 4500, ..crate::workload::Shape::ORDINARY };
        let mut generator = crate::workload::Generator::new(7, shape);
        // With nodes of 4 KiB these need two levels above the leaves, so that nodes are shared too.
        let many = |number: usize| RelPath(format!("many/file-{number:04}").into_bytes());
        let mut both = |op: &Op, model: &mut crate::model::ModelFs| {
            let done = crate::workload::step(op, model, &mut inside);
            done.unwrap_or_else(|outcomes| panic!("{op:?}: {outcomes:?}"));
        };
        both(&Op::Mkdir { path: RelPath::from("many"), mode: 0o755 }, &mut model);
        for number in 0..3000 {
            both(&Op::Create { path: many(number), mode: 0o644 }, &mut model);
        }
        for number in 0..5 {
            for file in (number..3000).step_by(97) {
                both(&Op::Chmod { object: Object::Path(many(file)), mode: 0o600 }, &mut model);
            }
            for _ in 0..400 {
                let op = generator.next_op(&model);
                both(&op, &mut model);
            }
            let name = format!("snapshot-{number}");
            let flags: &[&str] = if number % 2 == 0 { &["snapshot", "-r"] } else { &["snapshot"] };
            subvolume(flags, &["volume", &name]);
        }
        drop(inside);
        subvolume(&["create"], &["volume/nested"]);
        subvolume(&["snapshot"], &["volume", "snapshot-of-nested"]);
        self.file(&RelPath::from("snapshot-1/changed"), &[(0, Content { seed: NOISE, len: 20_000 })]);
        self.file(&folder.join(b"changed"), &[(0, Content { seed: NOISE, len: 20_000 })]);
        self.file(&RelPath::from("volume/nested/inside"), &[(0, Content { seed: WORDS, len: 20_000 })]);
    }
}
