//! What the tests of the judge share: images made by mkfs.btrfs and the kernel, in memory, and an editor that changes
//! blocks and stamps their checksums anew on all copies.

#![allow(dead_code)] // each test program uses a part

use butterfs_check::{Options, Report, check};
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_ondisk::chunk::{Chunk, ChunkLimits};
use butterfs_ondisk::items::RootItem;
use butterfs_ondisk::{Key, KeyType, Logical, Superblock, TreeId};
use butterfs_tree::Node;
use butterfs_volume::Volume;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Says that a test cannot run; fails in CI.
pub fn skip(test: &str, reason: &str) {
    assert!(std::env::var("CI").as_deref() != Ok("true"), "CI does not skip {test}: {reason}");
    let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: {reason}");
}

/// A folder for one test, removed when it ends well.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("the build folder can be written");
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

/// Whether the kernel's btrfs can be used; says so if not.
pub fn kernel(test: &str) -> bool {
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let ready = known.contains("btrfs") && Command::new("mkfs.btrfs").arg("--version").output().is_ok();
    let root = std::fs::write("/proc/self/oom_score_adj", "0").is_ok()
        && Command::new("id").arg("-u").output().is_ok_and(|out| out.stdout == b"0\n");
    if !(ready && root) {
        skip(test, "needs root, the kernel's btrfs and mkfs.btrfs");
    }
    ready && root
}

/// Fills a mounted filesystem: snapshots that share, many links, sparse and preallocated files, a deleted subvolume.
const FILL: &str = r#"
set -e
btrfs subvolume create sv > /dev/null
for i in $(seq 250); do echo $i > sv/f$i; ln sv/f$i sv/l$i; done
for i in $(seq 60); do ln sv/f1 sv/a-long-name-that-fills-the-item-of-links-$(printf %0150d $i); done
for i in $(seq 200); do head -c 8192 /dev/urandom > sv/d$i; done
for i in $(seq 0 2 399); do dd if=/dev/urandom of=sv/sparse bs=4k seek=$i count=1 conv=notrunc status=none; done
fallocate -l 1M sv/pre; head -c 12M /dev/urandom > sv/big
touch sv/nocow; chattr +C sv/nocow; head -c 256K /dev/urandom > sv/nocow
cp --reflink sv/d1 sv/clone; ln -s target sv/sym; mkfifo sv/fifo; setfattr -n user.a -v b sv/f1 || true
sync
for s in 1 2 3; do btrfs subvolume snapshot sv snap$s > /dev/null; for i in $(seq $s 5 250); do echo new$s > sv/f$i; done; sync; done
btrfs subvolume create snap2/inner > /dev/null
btrfs subvolume delete snap3 > /dev/null
mkdir -p a/b/c; sync
"#;

/// An image with that content, or `None` where the machine cannot make one, which has been said.
pub fn filled(test: &str, bytes: u64, options: &[&str]) -> Option<Arc<MemoryDevice>> {
    if !kernel(test) {
        return None;
    }
    let scratch = Scratch::new(test);
    let (image, mount) = (scratch.0.join("image"), scratch.0.join("mount"));
    std::fs::File::create(&image).and_then(|file| file.set_len(bytes)).expect("an image can be made");
    std::fs::create_dir_all(&mount).expect("a folder can be made");
    let run = |command: &mut Command| {
        let out = command.output().expect("the program runs");
        assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
    };
    run(Command::new("mkfs.btrfs").arg("-q").args(options).arg(&image));
    run(Command::new("mount").args(["-o", "loop,noatime"]).arg(&image).arg(&mount));
    let filled = Command::new("timeout").args(["100", "bash", "-c", FILL]).current_dir(&mount).output();
    run(Command::new("umount").arg(&mount));
    let filled = filled.expect("bash runs");
    assert!(filled.status.success(), "{}", String::from_utf8_lossy(&filled.stderr));
    Some(Arc::new(MemoryDevice::from_bytes(&std::fs::read(&image).expect("the image can be read"))))
}

/// The verdict on a device.
pub fn judge(device: &Arc<MemoryDevice>) -> Report {
    judge_with(device, &Options { check_data: true, ..Options::default() })
}

pub fn judge_with(device: &Arc<MemoryDevice>, options: &Options) -> Report {
    check(vec![device.clone() as Arc<dyn BlockDevice>], options, &|_| {})
}

/// Changes an image below everything that would forbid it.
pub struct Editor {
    pub device: Arc<MemoryDevice>,
    pub volume: Volume,
    pub sb: Superblock,
}

impl Editor {
    /// An editor of a copy of `base`.
    pub fn new(base: &Arc<MemoryDevice>) -> Editor {
        let device = Arc::new(base.snapshot());
        let (volume, sb, _) = Volume::open(vec![device.clone()]).expect("the image opens");
        let editor = Editor { device, volume, sb };
        let limits = ChunkLimits { sectorsize: sb.sectorsize.get(), incompat: sb.incompat_flags.get() };
        let mut chunks = Vec::new();
        editor.each_leaf(TreeId::CHUNK, &mut |leaf| {
            for (key, data) in leaf.items().filter(|(key, _)| key.kind == KeyType::CHUNK_ITEM) {
                chunks.push(Chunk::parse(Logical(key.offset), data, &limits).expect("the image is sound"));
            }
            false
        });
        editor.volume.set_chunk_map(butterfs_volume::ChunkMap::from_chunks(chunks).expect("the image is sound"));
        editor
    }

    pub fn node(&self, at: Logical) -> Node {
        let mut bytes = vec![0; self.sb.nodesize.get() as usize].into_boxed_slice();
        self.volume.read_copy(at, 0, &mut bytes).expect("the block can be read");
        Node::from_checked(bytes)
    }

    pub fn root(&self, tree: TreeId) -> Logical {
        match tree {
            TreeId::CHUNK => Logical(self.sb.chunk_root.get()),
            TreeId::ROOT => Logical(self.sb.root.get()),
            tree => {
                let mut found = None;
                self.each_leaf(TreeId::ROOT, &mut |leaf| {
                    for (key, data) in leaf.items() {
                        if key.objectid == tree.get() && key.kind == KeyType::ROOT_ITEM {
                            found = RootItem::parse(data).map(|item| Logical(item.bytenr.get()));
                        }
                    }
                    found.is_some()
                });
                found.expect("the tree is there")
            }
        }
    }

    /// Calls `with` for the leaves of a tree in order, until it says true.
    pub fn each_leaf(&self, tree: TreeId, with: &mut dyn FnMut(&Node) -> bool) {
        self.below(self.root(tree), with);
    }

    fn below(&self, at: Logical, with: &mut dyn FnMut(&Node) -> bool) -> bool {
        let node = self.node(at);
        if node.is_leaf() {
            return with(&node);
        }
        (0..node.nritems()).any(|slot| self.below(node.child(slot).0, with))
    }

    /// The first item of a tree that `wanted` accepts.
    pub fn find(&self, tree: TreeId, wanted: &dyn Fn(&Node, usize) -> bool) -> (Logical, usize) {
        let mut found = None;
        self.each_leaf(tree, &mut |leaf| {
            found = (0..leaf.nritems()).find(|slot| wanted(leaf, *slot)).map(|slot| (leaf.at(), slot));
            found.is_some()
        });
        found.unwrap_or_else(|| panic!("tree {tree} has no such item"))
    }

    /// Changes a block and stamps it, on all copies.
    pub fn edit(&self, at: Logical, change: impl FnOnce(&mut Node)) {
        let mut node = self.node(at);
        change(&mut node);
        self.stamp(at, node.bytes().to_vec());
    }

    /// Writes a block with its checksum, on all copies.
    pub fn stamp(&self, at: Logical, mut bytes: Vec<u8>) {
        let digest = self.sb.checksum_kind().expect("a known checksum").digest(&bytes[32..]);
        bytes[..32].copy_from_slice(&digest);
        self.volume.write(at, &bytes).expect("memory can be written");
    }

    /// Changes the superblock and stamps it, on all copies.
    pub fn superblock(&self, change: impl FnOnce(&mut Superblock)) {
        let mut sb = self.sb;
        change(&mut sb);
        self.volume.write_superblock(&sb).expect("memory can be written");
    }

    /// Where the second copy of a block lies on the device.
    pub fn second_copy(&self, at: Logical) -> u64 {
        let map = self.volume.chunk_map();
        let chunk = map.get(at).expect("the block is mapped");
        chunk.stripes[1].physical.get() + (at.get() - chunk.start.get())
    }
}

/// Whether the item in `slot` has this type, and is not the first of its leaf, whose key the parent has too.
pub fn is(leaf: &Node, slot: usize, kind: KeyType) -> bool {
    slot > 0 && leaf.key(slot).kind == kind
}

/// A key's parts, for conditions.
pub fn key(leaf: &Node, slot: usize) -> Key {
    leaf.key(slot)
}
