//! The sound images that are changed: small, and together with every structure that the engine reads.

use super::ground::Ground;
use super::kernel_made;
use super::surroundings::steady;
use super::{filling, judged};
use crate::editor::Editor;
use crate::engine::Format;
use crate::library::ROOT;
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::mkfs::{MkfsOptions, mkfs};
use butterfs_fs::{Filesystem, InodeId, Options, TreeId};
use butterfs_ondisk::ChecksumKind;
use butterfs_ondisk::profile::Profile;
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

const STALE: &str = "a stale device";

/// Bytes of each device.
const DEVICE_BYTES: u64 = 192 << 20;

/// A sound image.
pub struct Shape {
    /// The name of the shape.
    pub name: String,
    /// Its devices.
    pub disks: Vec<Arc<MemoryDevice>>,
    /// The places that can be changed.
    pub ground: Ground,
    /// Paths of everything that operations work with, in the top level.
    pub paths: Vec<Vec<u8>>,
    /// Inodes of the top level that nothing works with.
    pub sound: BTreeSet<u64>,
    /// Subvolumes, the top level among them.
    pub subvolumes: Vec<TreeId>,
    /// Whether the checker finds it clean.
    pub is_clean: bool,
    /// The checker's notes about it, though it is sound.
    pub notes: BTreeSet<String>,
}

impl Shape {
    fn of(name: &str, disks: Vec<Arc<MemoryDevice>>) -> Shape {
        let report = judged(&disks);
        // Copies that a device has missed are bad, which is what the engine must cope with.
        let is_clean = report.is_clean();
        assert_eq!(is_clean, name != STALE, "{name}: {}", crate::judge::text(&report));
        let ground = Ground::of(&Editor::open(shared(&disks)));
        let copy = copy_of(&disks);
        // A look, by which a log is replayed; the image itself stays as it is.
        let filesystem = open(&shared(&copy), Options::default()).unwrap_or_else(|error| panic!("{name}: {error}"));
        let (paths, sound) = filling::paths(&filesystem);
        let subvolumes = filesystem.subvolumes().expect("a sound image").iter().map(|info| info.id).collect();
        let notes = super::remarks(&report);
        Shape { name: name.to_owned(), disks, ground, paths, sound, subvolumes, is_clean, notes }
    }
}

/// Copies that share everything with these until one side writes.
pub fn copy_of(disks: &[Arc<MemoryDevice>]) -> Vec<Arc<MemoryDevice>> {
    disks.iter().map(|disk| Arc::new(disk.snapshot())).collect()
}

/// As the engine takes them.
pub fn shared(disks: &[Arc<MemoryDevice>]) -> Vec<Arc<dyn BlockDevice>> {
    disks.iter().map(|disk| disk.clone() as Arc<dyn BlockDevice>).collect()
}

/// Opens without threads and with small caches.
pub fn open(devices: &[Arc<dyn BlockDevice>], options: Options) -> butterfs_fs::Result<Filesystem> {
    let options = Options { node_cache_bytes: 4 << 20, dirty_data_bytes: 4 << 20, ..options };
    Filesystem::open(devices.to_vec(), options, steady())
}

/// All shapes that this machine can make.
pub fn shapes() -> &'static [Shape] {
    static SHAPES: OnceLock<Vec<Shape>> = OnceLock::new();
    SHAPES.get_or_init(|| {
        let mut all = Vec::new();
        for (name, format) in &FORMATS {
            all.push(Shape::of(name, filled(format)));
        }
        all.push(Shape::of("a log", with_log(&FORMATS[0].1)));
        all.push(Shape::of("a log, mixed", with_log(&FORMATS[2].1)));
        all.push(Shape::of("half a subvolume", half_dropped()));
        all.push(Shape::of("two devices", on_two_devices()));
        all.push(Shape::of(STALE, with_a_stale_device()));
        all.extend(kernel_made::images().into_iter().map(|(name, disk)| Shape::of(&name, vec![disk])));
        all
    })
}

const FORMATS: [(&str, Format); 4] = [
    ("small nodes", Format { nodesize: 4096, checksum: ChecksumKind::Crc32c, features: "" }),
    (
        "holes, no block group tree",
        Format { nodesize: 16384, checksum: ChecksumKind::Xxhash64, features: "^no-holes,^block-group-tree" },
    ),
    (
        "mixed groups, full metadata items",
        Format { nodesize: 4096, checksum: ChecksumKind::Crc32c, features: "mixed-bg,^skinny-metadata" },
    ),
    (
        "no free space tree",
        Format { nodesize: 4096, checksum: ChecksumKind::Sha256, features: "^free-space-tree,^block-group-tree" },
    ),
];

fn made(format: &Format) -> Vec<Arc<MemoryDevice>> {
    let disk = Arc::new(MemoryDevice::new(DEVICE_BYTES));
    format.make(&(disk.clone() as Arc<dyn BlockDevice>));
    vec![disk]
}

fn opened(disks: &[Arc<MemoryDevice>]) -> Filesystem {
    open(&shared(disks), Options::default()).expect("a sound image")
}

fn closed(filesystem: Filesystem) {
    filesystem.shutdown().expect("memory can be written");
}

fn filled(format: &Format) -> Vec<Arc<MemoryDevice>> {
    let disks = made(format);
    let filesystem = opened(&disks);
    filling::fill(&filesystem);
    closed(filesystem);
    disks
}

/// Files without a name, and a log, as a crash leaves them.
fn with_log(format: &Format) -> Vec<Arc<MemoryDevice>> {
    let disks = filled(format);
    let filesystem = opened(&disks);
    filling::orphans(&filesystem);
    filesystem.sync().expect("memory can be written");
    filling::log(&filesystem);
    drop(filesystem);
    assert!(Filesystem::has_log(shared(&disks)).expect("a sound image"), "the fsyncs wrote a log");
    disks
}

/// A deleted subvolume of which one step of the cleaner has dropped a part.
fn half_dropped() -> Vec<Arc<MemoryDevice>> {
    let disks = made(&FORMATS[0].1);
    let filesystem = opened(&disks);
    filling::fill(&filesystem);
    let deleted = filesystem.create_subvolume(&ROOT, top(), b"doomed").expect("room");
    filling::many_leaves(&filesystem, InodeId::root_of(deleted), 560);
    filesystem.sync().expect("memory can be written");
    filesystem.delete_subvolume(top(), b"doomed").expect("it is there");
    filesystem.sync().expect("memory can be written");
    assert!(filesystem.clean_once().expect("a sound image"), "there is something to drop");
    filesystem.commit_recorded().expect("memory can be written");
    assert_eq!(filesystem.deleted_subvolumes().expect("a sound image"), [deleted], "a step drops a part");
    drop(filesystem);
    disks
}

fn on_two_devices() -> Vec<Arc<MemoryDevice>> {
    let disk = |name| Arc::new(MemoryDevice::named(name, DEVICE_BYTES));
    let disks = vec![disk("one"), disk("two")];
    let (metadata, data) = (Profile::named("raid1"), Profile::named("raid1"));
    let options = MkfsOptions { metadata, data, nodesize: Some(4096), ..MkfsOptions::default() };
    mkfs(&shared(&disks), &options, &steady()).expect("devices of this size");
    let filesystem = opened(&disks);
    filling::fill(&filesystem);
    closed(filesystem);
    disks
}

/// The second device was away while the first one was written, and nothing has brought it up to date.
fn with_a_stale_device() -> Vec<Arc<MemoryDevice>> {
    let disks = on_two_devices();
    let alone = open(&shared(&disks[..1]), Options { degraded: true, ..Options::default() }).expect("RAID1");
    filling::something(&alone, b"while it was away");
    closed(alone);
    let both = opened(&disks);
    filling::something(&both, b"since it is back");
    both.sync().expect("memory can be written");
    drop(both);
    disks
}

/// The root directory of the top level.
pub fn top() -> InodeId {
    InodeId::root_of(TreeId::FS)
}
