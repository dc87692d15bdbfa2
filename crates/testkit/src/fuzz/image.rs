//! Whole images: bytes changed in blocks and superblocks of sound ones, with the checksums made good or not. The
//! checker and the engine answer; what the checker finds clean the engine reads without an error.
//!
//! Input: which image, then for each change the block, the place in it, how, and a number.

use super::Tape;
use crate::editor::Editor;
use crate::engine::Format;
use crate::fingerprint::Fingerprint;
use crate::judge::judge_memory;
use crate::library::Library;
use crate::model::ModelFs;
use crate::operation::{Content, Object, Op, OperationTarget, RelPath};
use crate::workload::{Generator, Shape, run as run_workload};
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::{Caller, Env, Filesystem, InodeId, Options};
use butterfs_ondisk::superblock::{OFFSETS, SUPERBLOCK_LEN};
use butterfs_ondisk::{ChecksumKind, Logical, TreeId};
use butterfs_tree::Node;
use std::sync::{Arc, OnceLock};

/// A sound image and where its blocks are.
pub struct Base {
    disk: Arc<MemoryDevice>,
    blocks: Vec<Logical>,
}

const SUPERBLOCK: u64 = OFFSETS[0].0;

/// The images: small, with a snapshot, in formats that meet in the code.
pub fn bases() -> &'static [Base] {
    static BASES: OnceLock<Vec<Base>> = OnceLock::new();
    const FORMATS: [Format; 3] = [
        Format { nodesize: 4096, checksum: ChecksumKind::Crc32c, features: "" },
        Format { nodesize: 16384, checksum: ChecksumKind::Xxhash64, features: "^no-holes,^block-group-tree" },
        Format { nodesize: 4096, checksum: ChecksumKind::Crc32c, features: "mixed-bg,^skinny-metadata" },
    ];
    BASES.get_or_init(|| FORMATS.iter().enumerate().map(|(seed, format)| base(seed as u64, format)).collect())
}

fn options(read_only: bool) -> Options {
    Options { read_only, commit_interval_secs: 3600, node_cache_bytes: 16 << 20, ..Options::default() }
}

fn open(disk: &Arc<MemoryDevice>, read_only: bool) -> Result<Filesystem, String> {
    Filesystem::open(vec![disk.clone()], options(read_only), Env::system()).map_err(|error| error.to_string())
}

fn base(seed: u64, format: &Format) -> Base {
    let disk = Arc::new(MemoryDevice::new(160 << 20));
    format.make(&(disk.clone() as Arc<dyn BlockDevice>));
    let filesystem = open(&disk, false).expect("a new filesystem");
    let (top, caller) = (InodeId::root_of(TreeId::FS), Caller { uid: 0, gid: 0, umask: 0o022, privileged: true });
    let work = filesystem.create_subvolume(&caller, top, b"work").expect("room");
    let (mut model, mut library) = (ModelFs::default(), Library::below(&filesystem, &RelPath::from("work")));
    let shape = Shape { inodes_max: 40, write_max: 30_000, file_max: 60_000, orphans: false, ..Shape::SMALL };
    let mut generator = Generator::new(900 + seed, shape);
    for round in 0..2 {
        run_workload(&mut generator, 200, &mut model, &mut library).unwrap_or_else(|found| panic!("{found:?}"));
        let name = format!("snapshot-{round}");
        filesystem.snapshot(work, top, name.as_bytes(), round == 0).expect("room");
    }
    for handle in model.handles().keys().copied().collect::<Vec<u32>>() {
        library.apply(&Op::Close { handle }).expect("it is open");
    }
    drop(library);
    filesystem.shutdown().expect("a good device");
    let report = judge_memory(&disk);
    assert!(report.is_clean(), "{}", crate::judge::text(&report));
    let editor = Editor::open(vec![disk.clone()]);
    let mut trees = vec![TreeId::ROOT, TreeId::CHUNK];
    editor.each_leaf(TreeId::ROOT, &mut |leaf| {
        let roots = leaf.items().filter(|(key, _)| key.kind == butterfs_ondisk::KeyType::ROOT_ITEM);
        trees.extend(roots.map(|(key, _)| TreeId(key.objectid)));
        false
    });
    let mut blocks: Vec<Logical> = trees.into_iter().flat_map(|tree| editor.blocks(tree)).collect();
    blocks.sort();
    blocks.dedup();
    Base { disk, blocks }
}

/// The primary superblock.
pub fn superblock(base: &Base) -> Vec<u8> {
    let mut bytes = vec![0; SUPERBLOCK_LEN];
    base.disk.read_at(SUPERBLOCK, &mut bytes).expect("memory can be read");
    bytes
}

/// All tree blocks.
pub fn blocks(base: &Base) -> Vec<Node> {
    let editor = Editor::open(vec![base.disk.clone()]);
    base.blocks.iter().map(|at| editor.node(*at)).collect()
}

/// The leaves.
pub fn leaves(base: &Base) -> Vec<Node> {
    blocks(base).into_iter().filter(Node::is_leaf).collect()
}

pub fn seeds() -> Vec<Vec<u8>> {
    let mut rng = crate::rng::Rng::new(4711);
    let one = |rng: &mut crate::rng::Rng, number: u64| {
        let mut seed = vec![number as u8];
        let mut changes = vec![0; 9 * (1 + number as usize % 3)];
        rng.fill(&mut changes);
        seed.extend(changes);
        seed
    };
    (0..60).map(|number| one(&mut rng, number)).collect()
}

/// The places near the front of a block, where headers are, are as likely as all others together.
fn place(tape: &mut Tape<'_>, len: usize) -> usize {
    let at = tape.number::<2>() as usize;
    if at & 1 == 0 { (at >> 1) % 512.min(len) } else { (at >> 1) % len }
}

fn change(tape: &mut Tape<'_>, bytes: &mut [u8]) {
    let at = place(tape, bytes.len());
    let (how, value) = (tape.byte(), tape.number::<3>());
    match how % 4 {
        0 => bytes[at] ^= 1 << (value % 8),
        1 => bytes[at] = value as u8,
        2 => bytes[at] = bytes[at].wrapping_add((value as u8) % 5).wrapping_sub(2),
        _ => {
            let len = 8.min(bytes.len() - at);
            bytes[at..at + len].copy_from_slice(&(value.wrapping_mul(0x1001)).to_le_bytes()[..len]);
        }
    }
}

pub fn run(input: &[u8]) {
    let mut tape = Tape::new(input);
    let bases = bases();
    let base = &bases[usize::from(tape.byte()) % bases.len()];
    let (editor, disk) = Editor::of_copy(&base.disk);
    let mut superblock = superblock(base);
    for _ in 0..8 {
        if tape.is_over() {
            break;
        }
        let (which, seal) = (tape.number::<2>() as usize, tape.byte());
        match base.blocks.get(which % (base.blocks.len() + 2)) {
            Some(at) => {
                let mut bytes = editor.node(*at).bytes().to_vec();
                change(&mut tape, &mut bytes);
                if seal % 8 == 0 { editor.write_raw(*at, &bytes) } else { editor.stamp(*at, bytes) }
            }
            None => {
                change(&mut tape, &mut superblock);
                let digest = editor.sb.checksum_kind().expect("known").digest(&superblock[32..]);
                if seal % 8 != 0 {
                    superblock[..32].copy_from_slice(&digest);
                }
                disk.write_at(SUPERBLOCK, &superblock).expect("memory can be written");
            }
        }
    }
    let report = judge_memory(&disk);
    let shown = open(&disk, true).and_then(|filesystem| Fingerprint::of_library(&filesystem));
    if report.is_clean() && report.notes.is_empty() {
        // The checker unpacks nothing.
        let allowed = |sentence: &String| sentence.contains("compressed");
        if let Err(sentence) = shown.as_ref().map_err(String::clone).map(drop)
            && !allowed(&sentence)
        {
            panic!("the judge finds nothing, the engine says: {sentence}");
        }
    }
    write_something(&disk);
}

/// A damaged filesystem may answer with any error, but it must answer.
fn write_something(disk: &Arc<MemoryDevice>) {
    let Ok(filesystem) = open(disk, false) else { return };
    let mut library = Library::new(&filesystem);
    let path = RelPath::from("visitor");
    let _ = library.apply(&Op::Create { path: path.clone(), mode: 0o644 });
    let content = Content { seed: 2, len: 10_000 };
    let _ = library.apply(&Op::Write { object: Object::Path(path.clone()), offset: 0, content });
    let _ = library.apply(&Op::Sync);
    let _ = library.apply(&Op::Unlink { path });
    drop(library);
    let _ = filesystem.delete_subvolume(InodeId::root_of(TreeId::FS), b"snapshot-0");
    let _ = filesystem.clean_subvolumes();
    let _ = filesystem.shutdown();
}
