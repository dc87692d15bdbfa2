//! Images whose items are each well-formed and contradict one another: fields of items are changed under good checksums,
//! then the engine works in them. It must answer, whatever it answers: no panic, no hang, no memory without bound.
//!
//! Input: which image, then for each change the leaf, the item, the field, how, and a number; then what is done.

use super::{Tape, image};
use crate::editor::Editor;
use crate::fingerprint::Fingerprint;
use crate::library::Library;
use crate::operation::{AllocateHow, Content, Object, Op, RelPath, RenameHow, Target};
use butterfs_device::MemoryDevice;
use butterfs_fs::{Env, Filesystem, InodeId, Options, TreeId};
use butterfs_ondisk::superblock::{OFFSETS, SUPERBLOCK_LEN};
use butterfs_ondisk::{Key, Logical};
use butterfs_tree::Node;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

const MOST_CHANGES: usize = 3;
const OPERATIONS: usize = 40;
/// So much a damaged image of this size may cost, on a machine that does other things too.
const PATIENCE: Duration = Duration::from_secs(60);

pub fn seeds() -> Vec<Vec<u8>> {
    let mut rng = crate::rng::Rng::new(1616);
    let one = |rng: &mut crate::rng::Rng, number: usize| {
        let mut seed = vec![0; 2 + 11 * (1 + number % MOST_CHANGES) + 3 * OPERATIONS];
        rng.fill(&mut seed);
        (seed[0], seed[1]) = (number as u8, (number % MOST_CHANGES) as u8);
        seed
    };
    (0..120).map(|number| one(&mut rng, number)).collect()
}

/// An image with the places of its leaves and the paths of its files.
struct Ground {
    leaves: Vec<Logical>,
    paths: Vec<RelPath>,
}

fn grounds() -> &'static [Ground] {
    static GROUNDS: OnceLock<Vec<Ground>> = OnceLock::new();
    GROUNDS.get_or_init(|| {
        let ground = |base| {
            let leaves = image::leaves(base).iter().map(Node::at).collect();
            let disk = Arc::new(image::disk(base));
            let filesystem = open(&disk).expect("a sound image");
            let shown = Fingerprint::of_library(&filesystem).expect("a sound image");
            Ground { leaves, paths: shown.entries.into_keys().map(RelPath).collect() }
        };
        image::bases().iter().map(ground).collect()
    })
}

fn open(disk: &Arc<MemoryDevice>) -> Result<Filesystem, butterfs_fs::Error> {
    let options = Options { commit_interval_secs: 3600, node_cache_bytes: 4 << 20, ..Options::default() };
    Filesystem::open(vec![disk.clone()], options, Env::system())
}

pub fn run(input: &[u8]) {
    let mut tape = Tape::new(input);
    let which = usize::from(tape.byte()) % grounds().len();
    let (base, ground) = (&image::bases()[which], &grounds()[which]);
    let (editor, disk) = Editor::of_copy(&image::disk(base));
    for _ in 0..=usize::from(tape.byte()) % MOST_CHANGES {
        change(&mut tape, &editor, ground, &disk);
    }
    drop(editor);
    let begun = Instant::now();
    for _ in 0..2 {
        let Ok(filesystem) = open(&disk) else { return };
        work(&filesystem, &mut tape, &ground.paths);
        let _ = filesystem.shutdown();
    }
    assert!(begun.elapsed() < PATIENCE, "it took {:?}", begun.elapsed());
}

fn change(tape: &mut Tape<'_>, editor: &Editor, ground: &Ground, disk: &Arc<MemoryDevice>) {
    let leaf = tape.number::<2>() as usize;
    if leaf % 40 == 39 {
        return change_superblock(tape, editor, disk);
    }
    let (slot, field, how) = (tape.number::<2>() as usize, tape.byte(), tape.byte());
    let (other, number) = (tape.number::<2>() as usize, tape.number::<3>());
    let at = ground.leaves[leaf % ground.leaves.len()];
    let donor = editor.node(ground.leaves[other % ground.leaves.len()]);
    editor.edit(at, |leaf| {
        if leaf.nritems() == 0 {
            return;
        }
        let slot = slot % leaf.nritems();
        if field % 6 == 5 {
            change_key(leaf, slot, how, number)
        } else {
            change_field(leaf, slot, field, how, number, &donor)
        }
    });
}

/// A key stays in order, and the first one of a leaf as its parent has it.
fn change_key(leaf: &mut Node, slot: usize, how: u8, number: u64) {
    let key = leaf.key(slot);
    let changed = match how % 3 {
        0 => Key { objectid: value(key.objectid, how >> 2, number), ..key },
        _ => Key { offset: value(key.offset, how >> 2, number), ..key },
    };
    let after = slot > 0 && leaf.key(slot - 1) < changed;
    if after && (slot + 1 == leaf.nritems() || changed < leaf.key(slot + 1)) {
        leaf.set_key(slot, changed);
    }
}

fn change_field(leaf: &mut Node, slot: usize, field: u8, how: u8, number: u64, donor: &Node) {
    let len = leaf.item(slot).len();
    let widths = [8, 8, 4, 2, 1];
    let width = widths[usize::from(field) % widths.len()];
    if len < width {
        return;
    }
    // Structures have fields of eight bytes, some behind heads of odd length.
    let at = (usize::from(field) / 6 * 4 + usize::from(how & 1) * (number as usize % 8)) % (len - width + 1);
    let number_at = |bytes: &[u8]| {
        let mut wide = [0; 8];
        wide[..width].copy_from_slice(&bytes[at..at + width]);
        u64::from_le_bytes(wide)
    };
    let kind = leaf.key(slot).kind;
    let like = |node: &Node| {
        let alike = |slot: &usize| node.key(*slot).kind == kind && node.item(*slot).len() >= at + width;
        let found: Vec<u64> = (0..node.nritems()).filter(alike).map(|slot| number_at(node.item(slot))).collect();
        (!found.is_empty()).then(|| found[number as usize % found.len()])
    };
    let old = number_at(leaf.item(slot));
    let new = match how % 2 {
        0 => like(donor).or_else(|| like(leaf)).unwrap_or(old),
        _ => value(old, how >> 1, number),
    };
    leaf.item_mut(slot)[at..at + width].copy_from_slice(&new.to_le_bytes()[..width]);
}

fn value(old: u64, how: u8, number: u64) -> u64 {
    match how % 10 {
        0 => 0,
        1 => old.wrapping_add(1),
        2 => old.wrapping_sub(1),
        3 => old.wrapping_add(4096 * (1 + number % 4)),
        4 => old.wrapping_sub(4096 * (1 + number % 4)),
        5 => old.wrapping_mul(2),
        6 => u64::MAX - number % 3,
        7 => 1 << 63,
        8 => number,
        _ => 256 + number % 64,
    }
}

fn change_superblock(tape: &mut Tape<'_>, editor: &Editor, disk: &Arc<MemoryDevice>) {
    use butterfs_device::BlockDevice;
    let mut bytes = vec![0; SUPERBLOCK_LEN];
    disk.read_at(OFFSETS[0].0, &mut bytes).expect("memory can be read");
    let (field, how, number) = (tape.byte(), tape.byte(), tape.number::<3>());
    let at = 64 + 8 * (usize::from(field) % 20);
    let old = u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    bytes[at..at + 8].copy_from_slice(&value(old, how, number).to_le_bytes());
    let digest = editor.sb.checksum_kind().expect("known").digest(&bytes[32..]);
    bytes[..32].copy_from_slice(&digest);
    disk.write_at(OFFSETS[0].0, &bytes).expect("memory can be written");
}

/// Whatever it answers: it must answer.
fn work(filesystem: &Filesystem, tape: &mut Tape<'_>, paths: &[RelPath]) {
    let mut library = Library::new(filesystem);
    let top = InodeId::root_of(TreeId::FS);
    for number in 0..OPERATIONS / 2 {
        let (kind, which, other) = (tape.byte(), tape.byte(), tape.byte());
        let path = |which: u8| paths[(usize::from(which) * 7 + number) % paths.len()].clone();
        let (path, second) = (path(which), path(other));
        let fresh = RelPath::from(format!("work/fresh-{number}").as_str());
        let (object, offset) = (Object::Path(path.clone()), u64::from(other) * 1500);
        let content = Content { seed: u64::from(which), len: 20_000 };
        let _ = match kind % 16 {
            0 | 1 => library.apply(&Op::Write { object, offset, content }),
            2 => library.apply(&Op::Truncate { object, size: offset }),
            3 => library.apply(&Op::Unlink { path }),
            4 => library.apply(&Op::Create { path: fresh, mode: 0o644 }),
            5 => library.apply(&Op::Mkdir { path: fresh, mode: 0o755 }),
            6 => library.apply(&Op::Rename { from: path, to: fresh, how: RenameHow::Replace }),
            7 => library.apply(&Op::CopyRange { from: path, from_offset: 0, to: second, to_offset: 0, len: 65536 }),
            8 => library.apply(&Op::Link { from: path, to: fresh }),
            9 => library.apply(&Op::Allocate { object, how: AllocateHow::PunchHole, offset, len: 9000 }),
            10 => library.apply(&Op::Fsync { object, data_only: false }),
            11 => library.apply(&Op::Sync),
            12 => library.apply(&Op::ReadFolder { path }),
            13 => library.apply(&Op::Rmdir { path }),
            14 => {
                let name = format!("again-{number}");
                let source = filesystem.lookup(top, b"work").map(|found| found.id.tree).unwrap_or(TreeId::FS);
                let _ = filesystem.snapshot(source, top, name.as_bytes(), false);
                library.apply(&Op::Read { object, offset: 0, len: 100_000 })
            }
            _ => {
                let _ = filesystem.delete_subvolume(top, if other % 2 == 0 { b"snapshot-0" } else { b"snapshot-1" });
                let _ = filesystem.clean_subvolumes();
                library.apply(&Op::Sync)
            }
        };
    }
    for id in filesystem.subvolumes().unwrap_or_default() {
        let _ = filesystem.subvolume_path(id.id);
    }
}
