//! New filesystems on memory devices: read back whole, crashed at every point, refused.

use super::*;
use crate::env::{Source, Time};
use butterfs_device::{BlockDevice, Kept, MemoryDevice, ReadOnlyDevice, Recorder};
use butterfs_ondisk::chunk::parse_sys_chunk_array;
use butterfs_ondisk::features::compat_ro;
use butterfs_ondisk::items::{BlockGroupItem, FreeSpaceInfo, RootItem, block_group_flags};
use butterfs_ondisk::profile::Profile;
use butterfs_ondisk::superblock::{OFFSETS, SUPERBLOCK_LEN, Superblock};
use butterfs_ondisk::{Generation, Key, KeyType, Level, Logical};
use butterfs_tree::{BlockIdentity, NodePtr, verify};
use std::collections::BTreeMap;
use zerocopy::{FromBytes, IntoBytes};

const MIB: u64 = 1 << 20;

/// Always the same time; UUIDs count up.
struct Counting(std::sync::atomic::AtomicU8);

impl Source for Counting {
    fn now(&self) -> Time {
        Time { sec: 1_700_000_000, nsec: 5 }
    }
    fn random(&self) -> [u8; 16] {
        [self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed); 16]
    }
    fn threads(&self) -> usize {
        1
    }
}

fn env() -> Env {
    Env::new(Counting(1.into()))
}

fn memory(bytes: u64) -> Arc<dyn BlockDevice> {
    Arc::new(MemoryDevice::new(bytes))
}

fn features(list: &str) -> FeatureChoice {
    let mut choice = FeatureChoice::default();
    choice.apply(list).unwrap();
    choice
}

fn read_superblock(device: &dyn BlockDevice, at: u64) -> Option<Superblock> {
    let mut bytes = [0; SUPERBLOCK_LEN];
    device.read_at(at, &mut bytes).ok()?;
    let sb = Superblock::read_from_bytes(&bytes).unwrap();
    let kind = sb.checksum_kind()?;
    let valid = sb.magic == butterfs_ondisk::superblock::MAGIC && kind.matches(&sb.as_bytes()[32..], &sb.csum);
    (valid && sb.bytenr.get() == at).then_some(sb)
}

/// Everything in a filesystem on one device, read through its chunks; all copies of a block must be equal.
struct Image<'a> {
    device: &'a dyn BlockDevice,
    identity: BlockIdentity,
    chunks: Vec<Chunk>,
    sb: Superblock,
    /// Every block that was read.
    blocks: BTreeMap<Logical, (TreeId, Level)>,
}

impl<'a> Image<'a> {
    fn open(device: &'a dyn BlockDevice) -> Image<'a> {
        let sb = read_superblock(device, OFFSETS[0].0).expect("a valid primary superblock");
        let identity = BlockIdentity {
            fsid: sb.fsid,
            seeds: Default::default(),
            chunk_tree_uuid: [0; 16],
            checksum: sb.checksum_kind().unwrap(),
            nodesize: sb.nodesize.get(),
            sectorsize: sb.sectorsize.get(),
            incompat: sb.incompat_flags.get(),
            super_generation: sb.generation(),
            ignores_checksums: false,
            writable: true,
        };
        let chunks = parse_sys_chunk_array(&sb).unwrap();
        let mut image = Image { device, identity, chunks, sb, blocks: BTreeMap::new() };
        let (at, level, generation) = sb.chunk_tree_root();
        let limits = (&sb).into();
        let items = image.tree(TreeId::CHUNK, at, level, generation);
        let chunks = items.iter().filter(|(key, _)| key.kind == KeyType::CHUNK_ITEM);
        image.chunks = chunks.map(|(key, data)| Chunk::parse(Logical(key.offset), data, &limits).unwrap()).collect();
        image
    }

    /// All items of a tree, ascending.
    fn tree(&mut self, tree: TreeId, at: Logical, level: Level, generation: Generation) -> Vec<(Key, Vec<u8>)> {
        let mut items = Vec::new();
        self.visit(&NodePtr { at, generation, level, tree, first_key: None }, &mut items);
        assert!(items.windows(2).all(|pair| pair[0].0 < pair[1].0), "tree {tree} is out of order");
        items
    }

    fn visit(&mut self, ptr: &NodePtr, items: &mut Vec<(Key, Vec<u8>)>) {
        let chunk = self.chunks.iter().find(|chunk| chunk.start <= ptr.at && ptr.at < chunk.end()).expect("mapped");
        let copies: Vec<Vec<u8>> = (chunk.stripes.iter())
            .map(|stripe| {
                let mut bytes = vec![0; self.identity.nodesize as usize];
                self.device.read_at(stripe.physical.0 + ptr.at.0 - chunk.start.0, &mut bytes).unwrap();
                bytes
            })
            .collect();
        assert!(copies.iter().all(|copy| *copy == copies[0]), "copies of block {} differ", ptr.at);
        let system = chunk.kind & block_group_flags::SYSTEM != 0;
        assert_eq!(system, ptr.tree == TreeId::CHUNK, "block {} lies in the wrong chunk", ptr.at);
        let node = verify(copies[0].clone().into_boxed_slice(), ptr, &self.identity).unwrap();
        assert_eq!(self.blocks.insert(ptr.at, (ptr.tree, ptr.level)), None, "block {} has two parents", ptr.at);
        match node.is_leaf() {
            true => items.extend(node.items().map(|(key, data)| (key, data.to_vec()))),
            false => (0..node.nritems()).for_each(|slot| self.visit(&node.child_ptr(slot, ptr.tree), items)),
        }
    }

    /// Reads every tree.
    fn all(&mut self) -> BTreeMap<TreeId, Vec<(Key, Vec<u8>)>> {
        let (at, level, generation) = self.sb.tree_root();
        let root = self.tree(TreeId::ROOT, at, level, generation);
        let mut trees = BTreeMap::new();
        for (key, data) in root.iter().filter(|(key, _)| key.kind == KeyType::ROOT_ITEM) {
            let (id, item) = (TreeId(key.objectid), RootItem::parse(data).unwrap());
            let (at, generation) = (Logical(item.bytenr.get()), Generation(item.generation.get()));
            trees.insert(id, self.tree(id, at, Level(item.level), generation));
        }
        trees.insert(TreeId::ROOT, root);
        trees
    }
}

/// Makes a filesystem and checks that the books agree with the blocks that are there.
fn check(options: &MkfsOptions, bytes: u64) {
    let device = memory(bytes);
    let report = mkfs(std::slice::from_ref(&device), options, &env()).unwrap_or_else(|error| panic!("{error}"));
    let mut image = Image::open(&*device);
    let trees = image.all();
    let nodesize = u64::from(report.nodesize);
    assert_eq!(image.sb.bytes_used.get(), image.blocks.len() as u64 * nodesize);

    let extents = &trees[&TreeId::EXTENT];
    let is_extent = |key: &Key| matches!(key.kind, KeyType::METADATA_ITEM | KeyType::EXTENT_ITEM);
    let recorded: Vec<u64> =
        extents.iter().map(|(key, _)| key).filter(|key| is_extent(key)).map(|key| key.objectid).collect();
    let present: Vec<u64> = image.blocks.keys().map(|at| at.0).collect();
    assert_eq!(recorded, present, "extent items and blocks");

    let groups = trees.get(&TreeId::BLOCK_GROUP).unwrap_or(extents);
    for chunk in &report.chunks {
        let key = Key::new(chunk.start.0, KeyType::BLOCK_GROUP_ITEM, chunk.length);
        let (_, data) = groups.iter().find(|(found, _)| *found == key).expect("a block group for each chunk");
        let used = image.blocks.range(chunk.start..chunk.end()).count() as u64 * nodesize;
        assert_eq!(BlockGroupItem::read_from_bytes(data).unwrap().used.get(), used);
        if let Some(free) = trees.get(&TreeId::FREE_SPACE) {
            check_free_space(free, chunk, used);
        }
    }
    let has = |bit| report.compat_ro & bit != 0;
    assert_eq!(trees.contains_key(&TreeId::FREE_SPACE), has(compat_ro::FREE_SPACE_TREE));
    assert_eq!(trees.contains_key(&TreeId::BLOCK_GROUP), has(compat_ro::BLOCK_GROUP_TREE));
}

/// The runs of a chunk's group are as many as it says, and as long together as what is not used.
fn check_free_space(items: &[(Key, Vec<u8>)], chunk: &Chunk, used: u64) {
    let inside = |key: &Key| (chunk.start.0..chunk.end().0).contains(&key.objectid);
    let of = |kind: KeyType| items.iter().filter(move |(key, _)| key.kind == kind && inside(key));
    let (key, data) = of(KeyType::FREE_SPACE_INFO).next().expect("a summary for each group");
    assert_eq!((key.objectid, key.offset), (chunk.start.0, chunk.length));
    let runs: Vec<u64> = of(KeyType::FREE_SPACE_EXTENT).map(|(key, _)| key.offset).collect();
    assert_eq!(FreeSpaceInfo::read_from_bytes(data).unwrap().extent_count.get() as usize, runs.len());
    assert_eq!(runs.iter().sum::<u64>(), chunk.length - used);
}

#[test]
fn a_new_filesystem_reads_back_and_adds_up() {
    let checksums = [ChecksumKind::Crc32c, ChecksumKind::Xxhash64, ChecksumKind::Sha256, ChecksumKind::Blake2b];
    let lists = [
        "",
        "^block-group-tree",
        "^free-space-tree",
        "^no-holes",
        "^skinny-metadata",
        "^extref",
        "mixed-bg,^skinny-metadata",
    ];
    for (list, checksum) in lists.iter().zip(checksums.iter().cycle()) {
        for nodesize in [4096, 8192, 16384, 32768, 65536] {
            if list.contains("mixed-bg") && nodesize != 4096 {
                continue;
            }
            let (features, checksum) = (features(list), *checksum);
            check(&MkfsOptions { features, checksum, nodesize: Some(nodesize), ..Default::default() }, 300 * MIB);
        }
    }
    for (metadata, data) in [("single", "single"), ("dup", "dup"), ("single", "dup")] {
        let (metadata, data) = (Profile::named(metadata), Profile::named(data));
        check(&MkfsOptions { metadata, data, ..Default::default() }, 300 * MIB);
    }
}

#[test]
fn four_kib_nodes_split_the_root_tree() {
    let device = memory(200 * MIB);
    mkfs(std::slice::from_ref(&device), &MkfsOptions { nodesize: Some(4096), ..Default::default() }, &env()).unwrap();
    assert_eq!(Image::open(&*device).sb.root_level, 1);
}

#[test]
fn superblock_copies_exist_where_a_reader_looks() {
    for (bytes, copies) in [(93323264, 1), (300 * MIB, 2)] {
        let options = MkfsOptions { metadata: Profile::named("single"), ..Default::default() };
        let bytes = if copies == 1 { 64 * MIB + 4096 } else { bytes };
        let device = memory(bytes);
        mkfs(std::slice::from_ref(&device), &options, &env()).unwrap();
        let found = OFFSETS.iter().filter(|at| read_superblock(&*device, at.0).is_some()).count();
        assert_eq!(found, copies, "{bytes}");
    }
}

/// A filesystem of the smallest default size, with UUIDs that count up from `first`.
fn small(first: u8) -> MemoryDevice {
    let device = Arc::new(MemoryDevice::new(94 * MIB));
    let shared: Arc<dyn BlockDevice> = device.clone();
    mkfs(&[shared], &MkfsOptions::default(), &Env::new(Counting(first.into()))).unwrap();
    device.snapshot()
}

#[test]
fn the_same_environment_makes_the_same_bytes() {
    assert!(small(1).to_bytes() == small(1).to_bytes());
    assert!(small(1).to_bytes() != small(2).to_bytes());
}

#[test]
fn a_crash_leaves_the_old_filesystem_or_none_or_the_new_one() {
    let old = small(1);
    let recorder = Recorder::new();
    let recording: Arc<dyn BlockDevice> = Arc::new(recorder.record(Arc::new(old.snapshot())));
    let options = MkfsOptions { force: true, keep_old_blocks: true, ..Default::default() };
    let new = mkfs(&[recording], &options, &Env::new(Counting(100.into()))).unwrap().fsid;
    let mut seen = [0; 3];
    for prefix in 0..=recorder.len() {
        // Of what is not durable: all, nothing, every second write, the other ones.
        let patterns: [fn(usize) -> bool; 4] = [|_| true, |_| false, |index| index % 2 == 0, |index| index % 2 == 1];
        for keep in patterns {
            let after = old.snapshot();
            let kept = |index| if keep(index) { Kept::Whole } else { Kept::Nothing };
            recorder.crash(prefix, &[&after], &mut |index, _| kept(index)).unwrap();
            match read_superblock(&after, OFFSETS[0].0) {
                None => seen[1] += 1,
                Some(sb) => {
                    assert_eq!(Image::open(&after).all().len(), 9, "after {prefix} events");
                    seen[if sb.fsid == new { 2 } else { 0 }] += 1;
                }
            }
        }
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
    assert_eq!(read_superblock(&old, OFFSETS[0].0).map(|sb| sb.fsid == new), Some(false));
}

#[test]
fn existing_content_is_refused_by_name_unless_forced() {
    let table: &[(&str, u64, &[u8])] = &[
        ("btrfs", 0x10040, b"_BHRfS_M"),
        ("ext2, ext3 or ext4", 0x438, &[0x53, 0xef]),
        ("xfs", 0, b"XFSB"),
        ("swap", 4086, b"SWAPSPACE2"),
        ("LUKS", 0, b"LUKS\xba\xbe"),
        ("LVM2 physical volume", 0x218, b"LVM2 001"),
        ("Linux RAID", 4096, &[0xfc, 0x4e, 0x2b, 0xa9]),
        ("GPT partition table", 512, b"EFI PART"),
        ("DOS partition table or boot sector", 510, &[0x55, 0xaa]),
        ("vfat", 82, b"FAT32   "),
        ("zfs", 0x20000 + 7 * 1024, &[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0]),
    ];
    for (name, offset, magic) in table {
        let device = memory(94 * MIB);
        device.write_at(*offset, magic).unwrap();
        let error = mkfs(std::slice::from_ref(&device), &MkfsOptions::default(), &env()).expect_err(name);
        assert!(error.is(Errno::EEXIST) && error.to_string().contains(name), "{error}");
        let mut found = vec![0; magic.len()];
        device.read_at(*offset, &mut found).unwrap();
        assert_eq!(found, *magic, "a refusal changes nothing");
        mkfs(std::slice::from_ref(&device), &MkfsOptions { force: true, ..Default::default() }, &env()).unwrap();
        assert_eq!(recognise(&*device).unwrap(), Some("btrfs"), "nothing of {name} is left");
    }
}

#[test]
fn the_wipe_reaches_what_marks_the_end_and_stops_at_the_byte_count() {
    let device = memory(200 * MIB);
    device.write_at(100 * MIB - 512, b"EFI PART").unwrap();
    device.write_at(200 * MIB - 512, b"EFI PART").unwrap();
    let options = MkfsOptions { byte_count: Some(100 * MIB), ..Default::default() };
    let report = mkfs(std::slice::from_ref(&device), &options, &env()).unwrap();
    assert_eq!(report.total_bytes, 100 * MIB);
    let mut bytes = [[0u8; 8]; 2];
    device.read_at(100 * MIB - 512, &mut bytes[0]).unwrap();
    device.read_at(200 * MIB - 512, &mut bytes[1]).unwrap();
    assert_eq!(bytes, [[0; 8], *b"EFI PART"]);
}

#[test]
fn too_small_and_too_large_are_refused_with_the_numbers() {
    let refusal = |bytes, byte_count| {
        let options = MkfsOptions { byte_count, ..Default::default() };
        mkfs(&[memory(bytes)], &options, &env()).expect_err("refused").to_string()
    };
    assert!(refusal(93323263, None).contains("the minimum is 93323264 bytes"));
    assert!(refusal(0, None).contains("the minimum is 93323264 bytes"));
    assert!(refusal(200 * MIB, Some(MIB)).contains("1048576 bytes is too small"));
    assert!(refusal(100 * MIB, Some(200 * MIB)).contains("expected 209715200, found 104857600"));
    check(&MkfsOptions::default(), 93323264);
    check(&MkfsOptions::default(), 93323264 + 4095);
}

#[test]
fn a_failing_device_is_an_error_that_names_it() {
    let inner: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::named("disk7", 94 * MIB));
    let device: Arc<dyn BlockDevice> = Arc::new(ReadOnlyDevice::new(inner));
    let error = mkfs(&[device], &MkfsOptions { force: true, ..Default::default() }, &env()).expect_err("read-only");
    assert!(error.to_string().contains("disk7"), "{error}");
}
